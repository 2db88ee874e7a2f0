"""Writes hopper.json and halfcheetah.json: what the diagnostics measured of this room's runs, whose gradient the joint
norm of Stable-Baselines3's PPO clips, and the returns of training.

    python figures/sb3/collect.py runs out     # out/Hopper/RUN/gradient.jsonl and so on, as the page says
"""

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

sys.path.insert(0, str(Path(__file__).parents[1]))  # before this folder, which has a claims.py, too
sys.path.append(str(Path(__file__).parents[2] / "diagnostics"))

import lab
import rows


def norms(run: Path) -> dict[int, dict[str, float]]:
    """Returns, by iteration, means over the minibatches of the update after each checkpoint: of the norm of the joint
    gradient and of each network's part of it, and the share of minibatches in which it was clipped. critic_step is how
    long the critic's step is for Adam's eps, as a share of what it would be without: the mean over its parameters of

        sqrt(v) / (sqrt(v) + eps)."""
    [checkpoints], found = lab.open_runs(SimpleNamespace(runs=[run], script=None)), {}
    for checkpoint in checkpoints:
        script, args, state = lab.training_state(checkpoint)
        of_critic = {id(x) for x in state.value.parameters()}
        critic, seen = [id(x) in of_critic for x in script.in_order(state)], []

        def clip(
            parameters: list[nn.Parameter], largest: float, critic=critic, seen=seen, real=clip_grad_norm_
        ) -> None:
            squares = [x.grad.square().sum().item() for x in parameters]
            of_value = sum(x for x, own in zip(squares, critic) if own)
            seen.append(dict(grad_norm=sum(squares) ** 0.5, grads_clipped=float(sum(squares) ** 0.5 > largest)))
            seen[-1] |= dict(policy_grad_norm=(sum(squares) - of_value) ** 0.5, value_grad_norm=of_value**0.5)
            clip_grad_norm_(parameters, largest)

        with mock.patch.object(nn.utils, "clip_grad_norm_", clip):
            batch = script.estimate_advantages(args, state, script.rollout(args, state)[0])
            script.update(args, state, batch)
        own = [x["exp_avg_sq"].flatten().sqrt() for x, of_value in zip(state.adam.values(), critic) if of_value]
        roots = torch.cat(own)
        numbers = {name: float(np.mean([x[name] for x in seen])) for name in seen[0]}
        found[checkpoint.iteration] = numbers | dict(critic_step=(roots / (roots + args.adam_eps)).mean().item())
    return found


def collect(run: Path, measured: Path) -> list[dict[str, Any]]:
    """Returns a row for each iteration of which something was measured, and one with the returns of training."""
    algo, of_iterations = lab.read_config(run)["algo"], {}
    for name in ("gradient", "trust_region", "value"):
        path = measured / f"{name}.jsonl"
        for row in map(json.loads, path.read_text().splitlines() if path.is_file() else ()):
            of, cell = rows.WITH_NAMES[name](row), of_iterations.setdefault(row["iteration"], {})
            if name == "gradient":
                scale = of["noise_scale"][rows.NETWORK]
                cell["noise_scale"] = {x: scale[x] for x in ("pairs", "interval", "grad_sq", "trace")}
            elif name == "trust_region":
                cell["heldout"] = {x: of["heldout"][x] for x in ("mean_kl", "max_kl", "max_ratio")}
            else:
                cell["value_error"] = {x: of["heldout_returns"][x] for x in ("mean", "median")}
    for iteration, numbers in (norms(run) if algo == "sb3" else {}).items():
        of_iterations.setdefault(iteration, {}).update(numbers)
    about, log = dict(run=run.name, algo=algo), csv.DictReader((run / "progress.csv").open())
    cells = [about | dict(iteration=iteration) | of_iterations[iteration] for iteration in sorted(of_iterations)]
    returns = [[int(row["iteration"]), float(row["episodic_return"])] for row in log if row["episodic_return"]]
    return [*cells, about | dict(returns=returns)]


def main(runs: str, out: str, to: Path = Path(__file__).parent) -> None:
    for place in ("Hopper", "HalfCheetah"):
        cells = []
        for run in sorted(Path(runs).glob(f"{place}-v5__*__seed[123]")):
            cells += collect(run, Path(out) / place / run.name)
        (to / f"{place.lower()}.json").write_text(json.dumps(cells).replace("}, {", "},\n{") + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
