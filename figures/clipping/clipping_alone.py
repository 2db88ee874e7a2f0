"""Trains PPO-NoClip with and without the clipping, in all else alike (its agents scale by rewards, as ppo.py cannot):

    ./benchmark.sh clipping-alone --file figures/clipping/clipping_alone.py --env-version v4

It writes ppo_noclip_clipped.py to results/clipping-alone, which is ppo_noclip.py with the ratio's clipping of ppo.py.
"""

from pathlib import Path

from papers import AGENTS, EXPERIMENTS, Experiment

SCRIPT, COPY = Path(__file__).parents[2] / "algos/ppo_noclip.py", Path("results/clipping-alone/ppo_noclip_clipped.py")
OPTION = "    entropy_coef: float = 0.0"  # before which the new one stands
WITHOUT = "    surrogate = (ratios * advantages).mean()"
WITH = """    clipped_ratios = ratios.clamp(1 - args.clip_eps, 1 + args.clip_eps)
    surrogate = torch.minimum(ratios * advantages, clipped_ratios * advantages).mean()"""

text = SCRIPT.read_text()
if (text.count(OPTION), text.count(WITHOUT)) != (1, 1):
    raise ValueError("the clipping does not fit ppo_noclip.py")
text = text.replace(OPTION, f"    clip_eps: float = 0.2  # how far a ratio may move from 1\n{OPTION}")
text = text.replace(WITHOUT, WITH)
COPY.parent.mkdir(parents=True, exist_ok=True)
if not COPY.exists() or COPY.read_text() != text:  # each task of a job array runs this file, and the script
    COPY.write_text(text)
AGENTS["PPO-NoClip, clipped"] = str(COPY.resolve()), *AGENTS["PPO-NoClip"][1:]
agents = ["PPO-NoClip", "PPO-NoClip, clipped"]
EXPERIMENTS["clipping-alone"] = Experiment("ours", "is it the clipping alone?", agents, seeds=20, envs=["Hopper"])
