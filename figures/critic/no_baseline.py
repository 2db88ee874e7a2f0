"""PPO and TRPO with and without a baseline, for ./benchmark.sh no-baseline --file figures/critic/no_baseline.py. The
scripts ppo_no_baseline.py and trpo_plus_no_baseline.py are copies with the change that the page shows."""

from papers import AGENTS, EXPERIMENTS, Experiment

names = ["PPO", "TRPO"]
for name in names:
    script, *settings = AGENTS[name]
    AGENTS[f"{name}, no baseline"] = f"{script}_no_baseline", *settings
agents = [*names, *(f"{name}, no baseline" for name in names)]
EXPERIMENTS["no-baseline"] = Experiment("CL sec. 2.2", "no baseline?", agents, seeds=5, envs=["Walker2d"])
