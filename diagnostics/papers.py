"""Holds the papers' settings, agents and experiments as tables. experiments.py trains and measures them.

An agent is a script, which is a name in algos/ or the absolute path of one of your own, and its settings. A setting is
a table from environments to flags. An experiment names its agents and the diagnostics that make its results. An
experiment of your own is one more record, in a file that `experiments.py --file` reads:

    from papers import AGENTS, EXPERIMENTS, IM, PPO, PPO_STEP, Experiment

    AGENTS["no-gae"] = "ppo", IM, PPO_STEP, PPO, {"all": "--gae-lambda 1"}
    EXPERIMENTS["gae"] = Experiment("mine", "what is GAE worth?", ["PPO", "no-gae"], seeds=5, envs=["Hopper"])
"""

from itertools import product
from typing import NamedTuple

# Settings: environment -> flags, even where they are the defaults of the script --------------------------------------

# Implementation Matters (IM), Tables 4 to 6, and what the released configurations add: value clip, initialization,
# annealing. The released code clips only the policy's gradient, and in TRPO+ no gradient at all. These settings do the
# same, since that gave the papers' numbers.
IM = {
    "all": """--num-envs 1 --num-steps 2048 --num-minibatches 32 --value-epochs 10 --gamma 0.99 --entropy-coef 0
              --policy-hidden 64 64 --value-hidden 64 64 --adv-norm""",
}
PPO_STEP = {"all": "--policy-epochs 10 --clip-eps 0.2"}
TRPO_STEP = {"all": "--fisher-fraction 0.1 --cg-steps 10 --cg-damping 0.1 --backtrack-steps 10 --backtrack-ratio 0.5"}
PPO = {
    "all": """--gae-lambda 0.95 --reward-scale --orthogonal-init --anneal-lr --tanh
              --reward-clip --reward-clip-range 10 --obs-norm --obs-clip --obs-clip-range 10
              --no-grad-clip --no-value-grad-clip""",
    "Walker2d": "--policy-lr 4e-4    --value-lr 3e-4    --value-clip",
    "Humanoid": "--policy-lr 1.5e-4  --value-lr 1e-4    --value-clip",
    "Hopper":   "--policy-lr 3e-4    --value-lr 2.5e-4  --no-value-clip",
}  # fmt: skip
PPO_M = {
    "all": "--gae-lambda 0.95",
    "Walker2d": "--policy-lr 1e-4    --value-lr 2e-4",
    "Humanoid": "--policy-lr 9e-5    --value-lr 4e-4",
    "Hopper":   "--policy-lr 1.7e-4  --value-lr 4e-4",
}  # fmt: skip
# Observations are clipped as in the released configurations; the table prints 30 for Walker2d and 2.5 for Hopper.
PPO_NOCLIP = {
    "all": "--policy-epochs 10 --reward-scale --reward-clip --obs-norm --tanh --grad-clip --no-value-grad-clip",
    "Walker2d": """--policy-lr 7.25e-5  --value-lr 6e-4  --gae-lambda 0.85   --entropy-coef -0.01   --max-grad-norm 0.1
                   --reward-scale-by rewards  --reward-clip-range 30   --no-obs-clip --obs-clip-range 10
                   --no-value-clip --orthogonal-init --anneal-lr""",
    "Humanoid": """--policy-lr 2e-5     --value-lr 5e-5  --gae-lambda 0.85   --entropy-coef 0.005   --max-grad-norm 0.5
                   --reward-scale-by returns  --reward-clip-range 10   --obs-clip --obs-clip-range 10
                   --value-clip --no-orthogonal-init --no-anneal-lr""",
    "Hopper":   """--policy-lr 6e-5     --value-lr 4e-4  --gae-lambda 0.925  --entropy-coef -0.005  --max-grad-norm 4
                   --reward-scale-by rewards  --reward-clip-range 2.5  --obs-clip --obs-clip-range 10
                   --no-value-clip --orthogonal-init --anneal-lr""",
}  # fmt: skip
TRPO = {
    "all": "--gae-lambda 0.95",
    "Walker2d": "--max-kl 0.04  --value-lr 3e-4",
    "Humanoid": "--max-kl 0.07  --value-lr 3e-4",
    "Hopper":   "--max-kl 0.13  --value-lr 2e-4",
}  # fmt: skip
# The table's largest gradient norms, which clipped nothing: Walker2d 1, Humanoid 0.5, Hopper 1.
TRPO_PLUS = {
    "all": """--reward-scale --reward-clip --reward-clip-range 10 --no-anneal-lr --tanh
              --obs-norm --obs-clip --obs-clip-range 10 --no-grad-clip""",
    "Walker2d": "--max-kl 0.07  --value-lr 1e-4  --gae-lambda 0.95  --no-value-clip  --orthogonal-init",
    "Humanoid": "--max-kl 0.1   --value-lr 5e-5  --gae-lambda 0.85  --value-clip     --no-orthogonal-init",
    "Hopper":   "--max-kl 0.04  --value-lr 2e-4  --gae-lambda 0.95  --no-value-clip  --orthogonal-init",
}  # fmt: skip
# The paper has this schedule; the released code configured it but did not run it.
KL_SCHEDULE = {"Walker2d": "--max-kl-final 0.04", "Humanoid": "--max-kl-final 0.05", "Hopper": "--max-kl-final 0.07"}
# By definition PPO-M and TRPO have none of the nine. As released, and so in the paper's numbers, they kept two.
AS_RELEASED = {
    "all": """--no-value-clip --no-reward-scale --no-orthogonal-init --no-anneal-lr --no-reward-clip
              --obs-norm --no-obs-clip --tanh --no-grad-clip""",
}
# A Closer Look (CL), Table 1: its PPO has its own learning rates, and its TRPO is IM's.
CL_PPO = {
    "Walker2d": "--policy-lr 4e-4    --value-lr 3e-4",
    "Humanoid": "--policy-lr 2.5e-4  --value-lr 1e-4",
    "Hopper":   "--policy-lr 4.5e-4  --value-lr 2e-4",
}  # fmt: skip

# The Definitive Guide (GUIDE), Table 2 and Appendix A. It mentions neither a value clip nor an initialization, so
# both are off here. It does not say which share of the states TRPO's Fisher matrix uses, so that is IM's. 61 iterations
# are 999,424 steps, so that there is a checkpoint at 1M (its Table 3).
GUIDE = {
    "all": """--num-envs 8 --num-steps 2048 --num-minibatches 8 --gamma 0.99 --no-anneal-lr --no-orthogonal-init
              --policy-hidden 32 32 32 32 --no-tanh --activation-without-tanh silu --bound-action tanh --entropy-coef 0
              --obs-norm --obs-clip --obs-clip-range 10 --reward-scale
              --reward-clip --reward-clip-range 10 --grad-clip --max-grad-norm 0.5 --checkpoint-every 61""",
}
GUIDE_VALUE = {"all": "--value-hidden 256 256 256 256 256 --value-lr 3e-4 --gae-lambda 0.95 --no-value-clip"}
GUIDE_REINFORCE = {
    "all": "--num-envs 1 --num-minibatches 1 --policy-lr 3e-4 --policy-epochs 1 --baseline none --checkpoint-every 488",
}
GUIDE_A2C = {
    "all": "--policy-lr 3e-4 --policy-epochs 1 --value-epochs 1 --value-grad-clip --entropy-coef 0.1 --adv-norm",
}
GUIDE_TRPO = {"all": "--value-epochs 10 --max-kl 0.01 --backtrack-ratio 0.8 --adv-norm"}  # The rest is as IM's.
GUIDE_PPO = {
    "all": "--policy-lr 3e-4 --policy-epochs 10 --value-epochs 10 --value-grad-clip --clip-eps 0.2 --adv-norm",
}
GUIDE_VMPO = {
    "all": """--policy-lr 3e-4 --policy-epochs 10 --value-epochs 10 --value-grad-clip
              --eps-temperature 0.01 --eps-mean 0.01 --eps-std 5e-5
              --init-multipliers 1 1 1 --min-multiplier 1e-8 --top-half""",
}

# Agents: a script, then its settings; a later setting replaces an earlier one ----------------------------------------

AGENTS = {
    "PPO": ("ppo", IM, PPO_STEP, PPO),
    "PPO-M": ("ppo", IM, PPO_STEP, PPO_M, AS_RELEASED, {"all": "--no-value-grad-clip"}),
    "PPO-M-defined": ("ppo_m", IM, PPO_STEP, PPO_M),
    "PPO-NoClip": ("ppo_noclip", IM, PPO_NOCLIP),
    "TRPO": ("trpo_plus", IM, TRPO_STEP, TRPO, AS_RELEASED),
    "TRPO-defined": ("trpo", IM, TRPO_STEP, TRPO),
    "TRPO+": ("trpo_plus", IM, TRPO_STEP, TRPO_PLUS),
    "TRPO+schedule": ("trpo_plus", IM, TRPO_STEP, TRPO_PLUS, KL_SCHEDULE),
    "CL-PPO": ("ppo", IM, PPO_STEP, PPO, CL_PPO),
    "REINFORCE": ("reinforce", GUIDE, GUIDE_REINFORCE),
    "REINFORCE-2-epochs": ("reinforce", GUIDE, GUIDE_REINFORCE, {"all": "--policy-epochs 2"}),
    "REINFORCE-5-epochs": ("reinforce", GUIDE, GUIDE_REINFORCE, {"all": "--policy-epochs 5"}),
    "A2C": ("a2c", GUIDE, GUIDE_VALUE, GUIDE_A2C),
    "A2C-2-epochs": ("a2c", GUIDE, GUIDE_VALUE, GUIDE_A2C, {"all": "--policy-epochs 2 --value-epochs 2"}),
    "A2C-5-epochs": ("a2c", GUIDE, GUIDE_VALUE, GUIDE_A2C, {"all": "--policy-epochs 5 --value-epochs 5"}),
    "A2C-entropy-0.01": ("a2c", GUIDE, GUIDE_VALUE, GUIDE_A2C, {"all": "--entropy-coef 0.01"}),
    "A2C-entropy-0": ("a2c", GUIDE, GUIDE_VALUE, GUIDE_A2C, {"all": "--entropy-coef 0"}),
    "GUIDE-TRPO": ("trpo_plus", GUIDE, GUIDE_VALUE, TRPO_STEP, GUIDE_TRPO),
    "GUIDE-PPO": ("ppo", GUIDE, GUIDE_VALUE, GUIDE_PPO),
    "V-MPO": ("vmpo", GUIDE, GUIDE_VALUE, GUIDE_VMPO),
}

# IM says "a grid of learning rates". Here the grid is of the policy's rate; the value network keeps PPO's.
ABLATION = {}
for switches in product(("--", "--no-"), repeat=4):
    flags = [no + name for no, name in zip(switches, ("anneal-lr", "orthogonal-init", "reward-scale", "value-clip"))]
    for rate in ("1e-4", "2.5e-4", "5e-4", "1e-3"):
        ABLATION[f"PPO{''.join(flags)}-{rate}"] = (*AGENTS["PPO"], {"all": " ".join([*flags, "--policy-lr", rate])})

# CL sec. 5: "better gradient estimates can require lower learning rates". All have minibatches of 64 pairs and the
# same number of steps between checkpoints.
SAMPLES = {}
for pairs, rate in product((2048, 8192, 32_768), ("1e-4", "4.5e-4", "2e-3")):
    sizes = f"--num-steps {pairs} --num-minibatches {pairs // 64} --checkpoint-every {131_072 // pairs}"
    SAMPLES[f"CL-PPO-{pairs}-{rate}"] = (*AGENTS["CL-PPO"], {"all": f"{sizes} --policy-lr {rate}"})

# Ours, with protocols beside the results: figures/{clipping,nine,reward}/protocol.md. Is clipping insurance against the
# learning rate?
UNCLIPPED, RATES = ("ppo_noclip", IM, {"all": "--policy-epochs 10"}, PPO), {}
for rate in ("6e-5", "3e-4", "6e-4", "1.2e-3"):
    RATES[f"PPO-{rate}"] = (*AGENTS["PPO"], {"all": f"--policy-lr {rate}"})
    RATES[f"PPO-unclipped-{rate}"] = (*UNCLIPPED, {"all": f"--policy-lr {rate}"})

# Is reward scaling worth so much because it gives the value clip its units, or the value network its step size? The
# wide clip is 0.2 times what ten runs of PPO-scaled-clip divided their rewards by in the end (figures/nine/units.json).
WIDE_CLIP = {"Walker2d": "--value-clip-eps 34", "Hopper": "--value-clip-eps 24"}
FIVE_TIMES = {"Walker2d": "--value-lr 1.5e-3", "Humanoid": "--value-lr 5e-4", "Hopper": "--value-lr 1.25e-3"}
SCALING = {
    "PPO-scaled-clip": (*AGENTS["PPO"], {"all": "--value-clip"}),
    "PPO-scaled": (*AGENTS["PPO"], {"all": "--no-value-clip"}),
    "PPO-unscaled-clip": (*AGENTS["PPO"], {"all": "--no-reward-scale --value-clip"}),
    "PPO-unscaled": (*AGENTS["PPO"], {"all": "--no-reward-scale --no-value-clip"}),
    "PPO-unscaled-wide-clip": (*AGENTS["PPO"], {"all": "--no-reward-scale --value-clip"}, WIDE_CLIP),
    "PPO-unscaled-value-rate": (*AGENTS["PPO"], {"all": "--no-reward-scale --no-value-clip"}, FIVE_TIMES),
}

# Does TRPO+ differ from TRPO by its optimizations, or by its delta? Each has the other's here.
DELTA = {"Walker2d": "--max-kl 0.07", "Humanoid": "--max-kl 0.1", "Hopper": "--max-kl 0.04"}
DELTA_PLUS = {"Walker2d": "--max-kl 0.04", "Humanoid": "--max-kl 0.07", "Hopper": "--max-kl 0.13"}
DELTAS = {
    "TRPO-at-other-delta": (*AGENTS["TRPO"], DELTA),
    "TRPO+at-other-delta": (*AGENTS["TRPO+"], DELTA_PLUS),
}

NINE = "value-clip reward-scale orthogonal-init anneal-lr reward-clip obs-norm obs-clip tanh grad-clip".split()
NINTH_TOO = {"grad-clip": ["grad-clip", "value-grad-clip"]}  # one argument per network, switched together


def nine(on: set[str]) -> tuple:
    """Returns the agent that is PPO with these of the nine and no others."""
    flags = [("--" if name in on else "--no-") + x for name in NINE for x in NINTH_TOO.get(name, [name])]
    return *AGENTS["PPO"], {"all": " ".join(flags)}


LEAVE_ONE_OUT = {"all": nine(set(NINE)), "none": nine(set())}
for name in NINE:
    LEAVE_ONE_OUT |= {f"without-{name}": nine(set(NINE) - {name}), f"only-{name}": nine({name})}

# What lies between none of the nine at PPO's rates and the released PPO-M?
LADDER = {}
for on in ([], ["obs-norm"], ["tanh"], ["obs-norm", "tanh"]):
    LADDER["-".join(["PPO-rates", *on])] = nine(set(on))
    LADDER["-".join(["PPO-M-rates", *on])] = (*nine(set(on)), PPO_M)

# From which width on does a value clip do no harm? A width has the units of the values.
DOSES = {"PPO-unscaled": SCALING["PPO-unscaled"]}
for eps in ("0.6", "2", "7"):
    flags = {"all": f"--no-reward-scale --value-clip --value-clip-eps {eps}"}
    DOSES[f"PPO-unscaled-clip-{eps}"] = (*AGENTS["PPO"], flags)

# What do the eight scripts reach as they are? An agent without tables is a script at its defaults.
SCRIPTS = "ppo ppo_m ppo_noclip trpo trpo_plus a2c reinforce vmpo".split()
DEFAULTS = {f"{algo}.py": (algo,) for algo in SCRIPTS}

# Does every diagnostic work? These runs take seconds, and what is measured of them is just enough to see that it is.
SHORT = {"all": "--num-envs 1 --num-steps 512 --num-minibatches 4 --checkpoint-every 1 --no-compile"}
SMOKE = {f"short-{name}": (*AGENTS[name], SHORT) for name in ("PPO", "PPO-M", "TRPO", "TRPO+")}
SMOKE["short-PPO-unscaled"] = (*SCALING["PPO-unscaled"], SHORT)
SMALL = [
    "rewards --kl --paired",
    "gradient --pairs 64 512 --repeats 2 --true-pairs 512 --jobs 1",
    "baselines --pairs 64 512 --repeats 2 --true-pairs 512 --value-pairs 512 --jobs 1",
    "steps --repeats 2 --jobs 1",
    "steps --rewards 2 --step-pairs 64 --reward-pairs 64 --jobs 1",
    "value --heldout-pairs 512 --jobs 1",
    "trust_region --heldout-pairs 512 --jobs 1",
    "landscape --grid 2 --step-pairs 64 --reward-pairs 64 --surfaces --concentration 64 128 --jobs 1",
    "evaluate --episodes 2 --jobs 1",
]
AGENTS |= DEFAULTS | DOSES | RATES | SCALING | DELTAS | ABLATION | SAMPLES | LEAVE_ONE_OUT | LADDER | SMOKE

# Experiments ---------------------------------------------------------------------------------------------------------

IM_ENVS = ["Walker2d", "Hopper", "Humanoid"]
GUIDE_ENVS = ["HalfCheetah", "Ant", "Humanoid", "Hopper"]
SIX_ENVS = ["Hopper", "Walker2d", "HalfCheetah", "Ant", "Humanoid", "Swimmer"]


class Experiment(NamedTuple):
    source: str
    question: str
    agents: list[str]
    results: list[str] = ["rewards"]  # diagnostics and their options
    seeds: int = 3
    steps: int = 1_000_000
    envs: list[str] = IM_ENVS
    version: str = "v5"


FOUR, M = ["PPO", "PPO-M", "TRPO", "TRPO+"], 1_000_000
PAIRED = ["rewards --paired"]
BEST = ["rewards --paired --best-of policy_lr"]
EVALUATED = ["rewards --kl", "evaluate --deterministic --checkpoints all --episodes 10"]
FIVE = ["REINFORCE", "A2C", "GUIDE-TRPO", "GUIDE-PPO", "V-MPO"]
ENTROPY = ["A2C", "A2C-entropy-0.01", "A2C-entropy-0"]
EPOCHS = ["A2C", "A2C-2-epochs", "A2C-5-epochs", "REINFORCE", "REINFORCE-2-epochs", "REINFORCE-5-epochs"]
DEFINED = ["PPO-M", "PPO-M-defined", "TRPO", "TRPO-defined"]
TWO = ["Hopper", "Walker2d"]
FOUR_DELTAS = ["TRPO", "TRPO+", *DELTAS]
MEASURES = [
    "gradient --checkpoints 0 150 300 450 --pairs 10_240 --true-pairs 90_000",
    "value --checkpoints 150 300 450",
    "trust_region --checkpoints 0 150 300 450",
    "steps --checkpoints 150 300 --rewards 8 --step-pairs 2048 50_000",
]
SURFACES = [
    "landscape --checkpoints 0 150 300 450 --step-pairs 2000 50_000 --reward-pairs 20_000 --surfaces",
    "landscape --checkpoints 150 300 --step-pairs 2000 --reward-pairs 2000 --concentration 2000 20_000 100_000",
]
ONE_SURFACE = ["landscape --checkpoints 300 --step-pairs 2000 50_000 --reward-pairs 20_000 --surfaces"]
X = Experiment

# What follows -- goes to an experiment's first diagnostic. CL's sample sizes are, for `gradients` and for `landscapes`
# (and baselines.py has --value-pairs 5_000_000):
#     --pairs 100 1000 10_000 100_000 1_000_000 --true-pairs 9_000_000
#     --step-pairs 2000 1_000_000 --reward-pairs 1_000_000
# fmt: off
EXPERIMENTS = {
    "step-or-optimizations": X("IM Table 2", "PPO or TRPO, or their optimizations?", FOUR, seeds=10),
    "clipping": X("IM Table 3", "the same, and PPO without clipping", [*FOUR, "PPO-NoClip"], seeds=10),
    "ablation": X("IM Fig. 1", "four optimizations, four rates", [*ABLATION], BEST, 5, envs=["Humanoid", "Walker2d"]),
    "leave-one-out": X("ours", "what is each of the nine worth?", [*LEAVE_ONE_OUT], PAIRED, 5, envs=["Hopper"]),
    "definition": X("IM Table 1", "PPO-M, TRPO: as released, as defined", DEFINED, seeds=10),
    "kl-schedule": X("IM sec. 5", "TRPO+ with constant delta, with schedule", ["TRPO+", "TRPO+schedule"], seeds=10),
    "updates": X("CL sec. 2.3", "does the typical update raise the reward?", ["CL-PPO", "PPO-M", "TRPO"],
                 ["steps --rewards 20 --step-pairs 2048 50_000"], envs=TWO),
    "clipping-rates": X("ours", "does clipping insure against high rates?", [*RATES], seeds=10, envs=TWO, version="v4"),
    "reward-scaling": X("ours", "why is reward scaling worth so much?", [*SCALING], seeds=10, envs=TWO, version="v4"),
    "ladder": X("ours", "what lies between none of the nine and PPO-M?", [*LADDER], seeds=10, envs=TWO, version="v4"),
    "deltas": X("ours", "TRPO+ and TRPO at each other's delta", FOUR_DELTAS, seeds=10, envs=["Hopper"], version="v4"),
    "trust-region": X("IM Fig. 2-4, TPG", "how far do steps go?", ["PPO", "PPO-M", "PPO-NoClip", "TRPO"],
                      ["trust_region"]),
    "gradients": X("CL Fig. 1, 2, 4, 9", "do gradient estimates mean anything?", ["CL-PPO", "TRPO"],
                   ["gradient", "baselines", "steps", "rewards"]),
    "sample-regime": X("CL sec. 2.1, 5", "batch sizes x learning rates", [*SAMPLES], envs=["Hopper"]),
    "values": X("CL Fig. 3", "are values predicted?", ["CL-PPO", "TRPO"], ["value", "rewards"]),
    "landscapes": X("CL Fig. 5-7, 13-20", "does the surrogate know the reward?", ["CL-PPO", "TRPO", "PPO-M"],
                    ["landscape --surfaces --concentration 2000 20_000 100_000", "rewards"], seeds=1),
    "algorithms": X("GUIDE Fig. 4, 5", "five algorithms", FIVE, EVALUATED, 3, 8 * M, GUIDE_ENVS, "v4"),
    "entropy": X("GUIDE Fig. 6", "entropy coefficients of A2C", ENTROPY, EVALUATED, 3, 8 * M, ["HalfCheetah"], "v4"),
    "epochs": X("GUIDE Fig. 7", "A2C and REINFORCE: 1, 2, 5 epochs", EPOCHS, EVALUATED, 3, M, ["HalfCheetah"], "v4"),
    "ten-seeds": X("IM, CL, TPG", "steps, estimates and values, ten seeds", ["CL-PPO", "PPO-M", "TRPO"],
                   [*MEASURES, "rewards"], 10, envs=TWO),
    "value-clip": X("ours", "how wide must a value clip be?", [*DOSES], seeds=10, envs=TWO, version="v4"),
    "batches": X("ours", "do gains of larger batches add up?", ["ppo.py"], seeds=10, envs=TWO),
    "surfaces": X("CL Fig. 15-18", "is the reward's surface the surrogate's?", ["CL-PPO", "TRPO"], SURFACES, 1,
                  envs=TWO),
    "surfaces-humanoid": X("CL Fig. 6, 7", "and Humanoid's?", ["CL-PPO", "TRPO"], ONE_SURFACE, 1, envs=["Humanoid"]),
    "reference": X("ours", "eight scripts at their defaults", [*DEFAULTS], seeds=5, envs=SIX_ENVS),
    "smoke": X("ours", "does every diagnostic work? seconds each", [*SMOKE], SMALL, 1, 1024, ["Hopper"]),
}
# fmt: on
