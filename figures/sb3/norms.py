"""norms.py RUN ...: whose gradient the joint norm of Stable-Baselines3's PPO clips. It prints a line of JSON for the
iteration after each checkpoint. critic_step is how long the critic's step is for Adam's eps, as a share of what it
would be without: the mean of sqrt(v) / (sqrt(v) + eps) over the parameters."""

import json
import sys
from pathlib import Path

sys.path.insert(0, "diagnostics")
import torch
from measuring import runs, sampling

for folder in map(Path, sys.argv[1:]):
    [sources] = runs.open_runs((folder,), None)
    for source in runs.with_step(sources, ()):
        script, args, _ = sampling.checkpoint_state(source)
        _, after, statistics, *_ = sampling.next_iteration(source)
        critic = {id(x) for x in after.value.parameters()}
        own = torch.cat([torch.full((x.numel(),), id(x) in critic) for x in script.in_order(after)])
        root = after.adam["exp_avg_sq"][own].sqrt()
        share = (root / (root + args.adam_eps)).mean().item()
        numbers = dict(run=folder.name, iteration=source.iteration, critic_step=share) | statistics
        print(json.dumps(numbers), flush=True)
