"""Do the gradients mean anything? Cosine similarity of independent estimates of the policy gradient, and of each with
the "true" one, against the number of state-action pairs; and the same of whole update steps.

    python diagnostics/gradient.py runs/Hopper-v5__ppo__seed1
    python diagnostics/gradient.py runs/Hopper-v5__ppo__seed* --out figures --true-pairs 10_000_000
    python diagnostics/gradient.py runs/Hopper-v5__ppo__seed1 --baselines --steps

"A Closer Look at Deep Policy Gradients" (CL) Fig. 1, 2, 4, 9, 10; "Are Deep Policy Gradient Algorithms Truly Policy
Gradient Algorithms?" (TPG) Fig. 2, 3, 5, 11 to 13, 16. The gradient is that of CL eq. 1, for every algorithm: of
E[pi / pi_old A] at pi = pi_old, A normalized over the estimate's pairs. The pairs come from segments of num_steps, each
from a reset, with frozen statistics; an estimate from fewer pairs is made of the first of a segment. A repeat's
estimates from more pairs contain those of its estimates from fewer (all but a last part of a segment); the repeats are
independent. The "true" gradient that a repeat is held against comes from the pairs of all the other repeats, and from
as many more as --true-pairs asks for.
"""

import ast
import contextlib
import copy
import fcntl
import functools
import hashlib
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple, NoReturn

import numpy as np
import torch
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.distributions import kl_divergence
from tqdm import tqdm

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """run folders, of one environment"""
    labels: tuple[str, ...] = ()
    """labels of your own, each "LABEL=ALGO FLAG ...": for the algorithm's runs with these flags, spelled as run folders
    spell them"""
    checkpoints: tuple[int, ...] = ()
    """iterations; default: 0 150 300 450 or, where a run has fewer, its first, its thirds, its last with a step"""
    pairs: tuple[int, ...] = (100, 1000, 10_000, 100_000)
    """state-action pairs of an estimate"""
    repeats: int = 10
    """independent estimates from each number of pairs"""
    true_pairs: int = 900_000
    """pairs of the "true" gradient, at least; what the other repeats do not give is sampled besides"""
    baselines: bool = False
    """compare the value network with a "true" value function and with none"""
    value_pairs: int = 500_000
    """pairs whose returns the "true" value function is fitted to"""
    steps: bool = False
    """compare whole update steps from training-size batches"""
    step_repeats: int = 100
    """update steps to compare"""
    script: Path | None = None
    """algorithm script; default: the one in algos/ that the run names"""
    out: Path | None = None
    """folder of figures and numbers; default: figures/ inside the run's folder"""
    jobs: int = len(os.sched_getaffinity(0))
    """worker processes; numbers do not depend on it"""
    seed: int = 0
    """seed of everything sampled here"""


class Source(NamedTuple):
    """A checkpoint and the script that understands it; small, so that tasks for workers can carry it."""

    script: Path
    run: Path
    iteration: int

    @property
    def path(self) -> Path:
        return self.run / "checkpoints" / f"iter_{self.iteration:06d}.pt"


# Gradient estimates --------------------------------------------------------------------------------------------------

BASELINES = ["value network", "true value function", "none"]


def gradient_sums(source: Source, seed: tuple, num_envs: int, num_steps: int, true_value: tuple | None) -> np.ndarray:
    """Sums over each segment's pairs that a gradient estimate is made of, [segments, baselines, 2 P + 3]: of A grad ln
    pi [P], of grad ln pi [P], the number of pairs, of A and of A^2. Baselines: the value network and, given the
    "true" value function (parameters, scale and shift), that and none."""
    script, args, state = fresh_state(source, seed, num_envs, num_steps)
    experience = script.rollout(args, state)
    batch = script.estimate_advantages(args, state, experience)
    weights = [batch["advantages"]]
    if true_value is not None:
        parameters, scale, shift = true_value
        network = script.with_parameters(state.value, parameters)
        with_true_value = replace(state, value=lambda obs: network(obs) * scale + shift)
        weights += [script.estimate_advantages(args, with_true_value, experience)["advantages"]]
        weights += [returns(script, args, state, experience)]
    parameters = script.flat_parameters(state.policy).requires_grad_()
    policy, sums = script.with_parameters(state.policy, parameters), []
    for rows in segment_rows(experience, num_steps):
        log_probs = policy(batch["obs"][rows]).log_prob(batch["actions"][rows])
        [score] = torch.autograd.grad(log_probs.sum(), parameters, retain_graph=True)
        for A in weights:
            [weighted] = torch.autograd.grad(log_probs @ A[rows], parameters, retain_graph=True)
            A = A[rows].double()
            moments = torch.stack([torch.tensor(float(len(A))).double(), A.sum(), A @ A])
            sums.append(torch.cat([weighted, score, moments]).numpy())
    return np.reshape(sums, (-1, len(weights), len(sums[0])))


def returns(script: ModuleType, args: Any, state: Any, experience: dict[str, Any]) -> Tensor:
    """Discounted returns [B] of the scaled rewards: what GAE's targets are with lambda 1. Where an episode was cut off
    (a time limit, the end of a segment) they go on with the value network."""
    return script.estimate_advantages(replace(args, gae_lambda=1.0), state, experience)["value_targets"]


def gradient(sums: np.ndarray) -> np.ndarray:
    """Sums [2 P + 3] over K pairs -> gradient [P] of the mean of pi / pi_old A, A normalized over the K pairs."""
    size, (K, total, total_sq) = len(sums) // 2 - 1, sums[-3:]
    mean, std = total / K, np.sqrt((total_sq - total**2 / K) / (K - 1))
    return (sums[:size] - mean * sums[size : 2 * size]) / (K * (std + 1e-8))


def fit_value(args: Args, source: Source, sample: Callable) -> tuple[tuple[Tensor, float, float], dict[str, float]]:
    """The "true" value function: a network of the run's architecture, fitted anew to the standardized returns of many
    pairs, as its parameters [P], scale and shift; and the explained variance of returns by it and by the run's own
    network, on a tenth of the pairs that was held out."""
    experience = collect(source, (args.seed, source.iteration, 3), args.value_pairs, sample)
    script, settings, state = checkpoint_state(source)
    obs, targets = torch.from_numpy(experience["obs"]), returns(script, settings, state, experience)
    train, size, epochs = len(obs) - len(obs) // 10, 512, 20
    scale, shift = targets[:train].std().item(), targets[:train].mean().item()
    _, network = script.make_networks(settings, obs.shape[1], experience["actions"].shape[1])
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, epochs * -(-train // size))
    generator = torch.Generator().manual_seed(args.seed)
    for _ in range(epochs):
        for rows in torch.randperm(train, generator=generator).split(size):
            optimizer.zero_grad()
            nn.functional.mse_loss(network(obs[rows]), (targets[rows] - shift) / scale).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        values = dict(value_network=state.value(obs[train:]), true_value_function=network(obs[train:]) * scale + shift)
    left = {name: (x - targets[train:]).var() / targets[train:].var() for name, x in values.items()}
    return (script.flat_parameters(network), scale, shift), {name: 1 - x.item() for name, x in left.items()}


def estimate_sizes(args: Args, num_steps: int) -> list[tuple[int, int]]:
    """Groups of one repeat: the whole segments of its longest estimate, and for each estimate the rest beyond its whole
    segments."""
    rests = [(1, K % num_steps) for K in args.pairs if K % num_steps]
    return groups(max(args.pairs) // num_steps * num_steps, num_steps) + rests


def more_true_pairs(args: Args) -> int:
    return max(0, args.true_pairs - (args.repeats - 1) * max(args.pairs))


def measure_gradients(args: Args, source: Source, sample: Callable, _: Any) -> Iterator[dict[str, Any]]:
    """Cosines of the gradient estimates of a checkpoint, pairwise and with the "true" gradient."""
    num_steps = checkpoint_state(source)[1].num_steps
    true_value, explained = fit_value(args, source, sample) if args.baselines else (None, {})
    sizes = [size for _ in range(args.repeats) for size in estimate_sizes(args, num_steps)]
    sizes += groups(more_true_pairs(args), num_steps)
    seeds = [(args.seed, source.iteration, 0, i) for i in range(len(sizes))]
    results = sample(gradient_sums, [(source, seed, *size, true_value) for seed, size in zip(seeds, sizes)])

    repeats = []  # of each, the sums of its estimate from each number of pairs
    for _ in range(args.repeats):
        total, segments, sums = 0.0, 0, {K: 0.0 for K in args.pairs}
        for _ in groups(max(args.pairs) // num_steps * num_steps, num_steps):
            for segment in next(results):
                total, segments = total + segment, segments + 1
                sums |= {K: total for K in args.pairs if K // num_steps == segments}
        repeats.append({K: sums[K] + next(results)[0] if K % num_steps else sums[K] for K in args.pairs})
    longest = [sums[max(args.pairs)] for sums in repeats]
    everything = sum(longest) + sum(segment for result in results for segment in result)
    others = [everything - own for own in longest]

    numbers = dict(batch_size=num_steps * checkpoint_state(source)[1].num_envs, explained_variance=explained)
    numbers |= dict(true_pairs_used=int(others[0][0, -3]), variance={}, convergence=[])
    for b, baseline in enumerate(BASELINES if args.baselines else BASELINES[:1]):
        estimates = [np.array([gradient(sums[K][b]) for sums in repeats]) for K in args.pairs]
        numbers["variance"][baseline] = [pairwise(cosines(x, x)) for x in estimates]
        if b == 0:
            true = np.array([gradient(sums[0]) for sums in others])
            found = [np.diagonal(cosines(x, true)) for x in estimates]
            numbers["convergence"] = [dict(mean=x.mean().item(), interval=interval(x), all=x.tolist()) for x in found]
    yield numbers


def cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cosine similarity [n, m] of every row of x [n, P] with every row of y [m, P]; 0 where one of them is 0 (the step
    of a rejected line search)."""
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True).clip(1e-30) for z in (x, y))
    return x @ y.T


def pairwise(matrix: np.ndarray, resamples: int = 500) -> dict[str, Any]:
    """Mean of the matrix [n, n] over pairs of different items, its 95 % bootstrap interval over the n items (an item
    that was drawn twice is not compared with itself; two items have none), and the values above the diagonal. Around
    cosines of 0 these intervals are about one and a half times as wide as need be."""
    n, means = len(matrix), []
    for drawn in np.random.default_rng(0).integers(n, size=(resamples, n)):
        different = drawn[:, None] != drawn[None]
        if different.any():
            means.append(matrix[np.ix_(drawn, drawn)][different].mean())
    above = matrix[np.triu_indices(n, 1)]
    ends = np.percentile(means, [2.5, 97.5]).tolist() if n > 2 else None
    return dict(mean=above.mean().item(), interval=ends, all=above.tolist())


# Update steps --------------------------------------------------------------------------------------------------------


def training_step(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> Tensor:
    """Policy parameters [P] after one whole update on a fresh batch of the size that training uses."""
    script, args, state = fresh_state(source, seed, num_envs, num_steps)
    script.update(args, state, script.estimate_advantages(args, state, script.rollout(args, state)))
    return script.flat_parameters(state.policy)


def measure_steps(args: Args, source: Source, sample: Callable, _: Any) -> Iterator[dict[str, Any]]:
    """Pairwise cosines of update steps of a checkpoint, and pairwise KL of the policies they lead to, on the states of
    a separate batch and both directions (TPG Fig. 13)."""
    script, settings, state = checkpoint_state(source)
    size = settings.num_envs, settings.num_steps
    [experience] = sample(collect_group, [(source, (args.seed, source.iteration, 1), *size)])
    tasks = [(source, (args.seed, source.iteration, 2, i), *size) for i in range(args.step_repeats)]
    after = list(sample(training_step, tasks))
    steps = torch.stack(after) - script.flat_parameters(state.policy)
    obs = torch.from_numpy(experience["obs"])
    with torch.no_grad():
        policies = [script.with_parameters(state.policy, parameters)(obs) for parameters in after]
    kls = np.array([[kl_divergence(one, other).mean().item() for other in policies] for one in policies])
    steps = steps.double().numpy()
    numbers = dict(cosine=pairwise(cosines(steps, steps)), kl=pairwise((kls + kls.T) / 2))
    for pairs in numbers.values():
        del pairs["all"]  # 4,950 of each
    yield numbers | dict(norms=np.linalg.norm(steps, axis=1).tolist())


# Figures -------------------------------------------------------------------------------------------------------------


def draw_gradients(args: Args, styles: list[dict[str, Any]], runs: list[list[dict[str, Any]]], path: Path) -> None:
    """Rows: variance and convergence; columns: checkpoints; a line for each run (CL Fig. 9, 10)."""
    columns = list(zip(*runs))
    size = 1.9 * len(columns) + 0.6, 4
    figure, axes = new_figure(2, len(columns), size, sharex=True, sharey=True)
    for (above, below), cells in zip(axes.T, columns):
        for cell, style in zip(cells, styles):
            draw_line(above, args.pairs, cell["variance"]["value network"], style)
            draw_line(below, args.pairs, cell["convergence"], style)
            for axis in (above, below):
                axis.axvline(cell["batch_size"], color="black", linestyle=":", linewidth=1)
        above.set_title(title(cells))
        below.set(xlabel="state-action pairs", xscale="log")
    axes[0, 0].set_ylabel("cosine between\nestimates")
    axes[1, 0].set_ylabel('cosine with the\n"true" gradient')
    save_figure(figure, path)


def draw_baselines(args: Args, styles: list[dict[str, Any]], runs: list[list[dict[str, Any]]], path: Path) -> None:
    """Rows: settings; columns: checkpoints; a line for each baseline and run (CL Fig. 4)."""
    looks, alike = {"true value function": "ppo", "value network": "ppo_m", "none": "reinforce"}, {}
    for cells, style in zip(runs, styles):
        alike.setdefault(style["label"], []).append(cells)
    shape = len(alike), len(runs[0])
    figure, axes = new_figure(*shape, (1.9 * shape[1] + 0.6, 0.4 + 2 * shape[0]), sharex=True, sharey=True)
    for row, (label, of_setting) in zip(axes, alike.items()):
        for axis, cells in zip(row, zip(*of_setting)):
            for cell in cells:
                for baseline, algo in looks.items():
                    draw_line(axis, args.pairs, cell["variance"][baseline], look(algo) | dict(label=baseline))
                axis.axvline(cell["batch_size"], color="black", linestyle=":", linewidth=1)
            axis.set(title=title(cells), xscale="log")
        row[0].set_ylabel(f"{textwrap.fill(label, 24)}\ncosine between\nestimates")
    for axis in axes[-1]:
        axis.set_xlabel("state-action pairs")
    save_figure(figure, path)


def draw_steps(styles: list[dict[str, Any]], runs: list[list[dict[str, Any]]], path: Path) -> None:
    """Pairwise cosine and KL of update steps over training (TPG Fig. 13)."""
    figure, axes = new_figure(1, 2, (6.5, 2.8))
    for cells, style in zip(runs, styles):
        for axis, name in zip(axes[0], ("cosine", "kl")):
            iterations, points = [cell["iteration"] for cell in cells], [cell[name] for cell in cells]
            draw_line(axis, iterations, points, style)
    axes[0, 0].set(xlabel="iteration", ylabel="cosine between update steps")
    axes[0, 1].set(xlabel="iteration", ylabel="KL between policies (nats)", yscale="log")
    save_figure(figure, path)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_options(args)
    args = replace(args, pairs=tuple(sorted(set(args.pairs))))
    if min(*args.pairs, args.repeats, args.step_repeats) < 2:
        stop("--pairs, --repeats, --step-repeats: two or more, or there is nothing to compare")
    if args.value_pairs < 10:
        stop(f"--value-pairs {args.value_pairs}: ten or more, since a tenth is held out")
    runs = [choose(sources, args.checkpoints) for sources in open_runs(args.runs, args.script, args.baselines)]
    if len({len(sources) for sources in runs}) > 1:
        stop("the runs have different numbers of checkpoints; name those to measure with --checkpoints")
    styles = run_styles(args.runs, args.labels)
    path = output_folder(args.out, args.runs) / "gradient.json"

    estimates, steps = [], []
    for source in sum(runs, []):
        _, settings, _ = checkpoint_state(source)
        identity = identify(source, args.seed)
        sizes = dict(pairs=list(args.pairs), repeats=args.repeats, true_pairs=args.true_pairs)
        sizes |= dict(value_pairs=args.value_pairs) if args.baselines else {}
        cost = args.repeats * sum(n * steps for n, steps in estimate_sizes(args, settings.num_steps))
        cost += more_true_pairs(args) + args.baselines * args.value_pairs
        estimates.append((partial(measure_gradients, args), source, [identity | sizes], cost))
        if args.steps:
            if not can_step(source):
                stop(f"{source.path}: training ended there, so there is no step to compare")
            cost = (1 + args.step_repeats) * settings.num_envs * settings.num_steps
            identity |= dict(step_repeats=args.step_repeats)
            steps.append((partial(measure_steps, args), source, [identity], cost))
    cells = iter(measure_missing(path, args.jobs, estimates + steps))
    found = [[next(cells) for _ in sources] for sources in runs]
    draw_gradients(args, styles, found, path)
    if args.baselines:
        draw_baselines(args, styles, found, path.with_name("gradient_baselines"))
    if args.steps:
        draw_steps(styles, [[next(cells) for _ in sources] for sources in runs], path.with_name("gradient_steps"))


# =====================================================================================================================
# Shared by the diagnostics: runs and their scripts, sampling, workers, results, figures. No measurement below.
# =====================================================================================================================

GROUP = 8  # actors of a rollout; fixed, since a row's last bits depend on the size of the batch it is in
CONTRACT = "make_networks initial_state rollout estimate_advantages objective update".split()
HELPERS = """
    Args make_actors load_checkpoint restore planned_steps can_compile flat_parameters with_parameters
    compare_policies
""".split()
# compile: whether the machine could; runs' names leave it out as well
NOT_OF_THE_SETTING = "env_id seed runs_dir run_name overwrite checkpoint_every compile".split()
COLOURS = {
    **dict(ppo="#0072b2", ppo_m="#d55e00", ppo_noclip="#56b4e9", trpo="#009e73", trpo_plus="#e69f00"),
    **dict(reinforce="#999999", a2c="#cc79a7", vmpo="#000000"),
}
MARKERS = dict(zip(COLOURS, "os^Dv*Px"))  # colours are not enough in greyscale


def stop(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one line on standard error; status 2: bad input, 1: training failed."""
    print(f"{Path(__file__).name}: {message}", file=sys.stderr)
    raise SystemExit(status)


@functools.cache
def note(message: str) -> None:
    """Says something once."""
    print(f"{Path(__file__).name}: note: {message}", file=sys.stderr)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def check_options(args: Any) -> None:
    """Refuses what tyro lets through: every size must be greater than 0, every tuple of sizes hold one or more."""
    may_be_zero, may_be_empty = ("seed", "checkpoints"), ("labels", "checkpoints", "concentration")
    for name, value in vars(args).items():
        numbers = value if isinstance(value, tuple) else (value,)
        option = f"--{name.replace('_', '-')} {' '.join(map(str, numbers))}"
        if not numbers and name not in may_be_empty:
            stop(f"{option}: give one or more")
        for x in numbers:
            if isinstance(x, int) and not isinstance(x, bool) and x < (0 if name in may_be_zero else 1):
                stop(f"{option}: must {'not be negative' if name in may_be_zero else 'be greater than 0'}")


def load_script(path: Path) -> ModuleType:
    """An algorithm's script as a module. Stops where it cannot be imported or lacks a function of the contract."""
    name = f"script_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or not path.is_file():
            stop(f"{path}: no such Python script; name the one that made the run with --script")
        script = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look for it there
        try:
            spec.loader.exec_module(script)
        except Exception as error:
            stop(f"{path}: {type(error).__name__}: {error}")
        for function in CONTRACT + HELPERS:
            if not hasattr(script, function):
                stop(f"{path} has no {function}, which the diagnostics need")
    return sys.modules[name]


def open_runs(folders: tuple[Path, ...], script: Path | None, needs_critic: bool = False) -> list[list[Source]]:
    """The checkpoints of each run, in order. Stops at what is not a run, and at runs of different environments."""
    runs, env_ids = [], {}
    for folder in folders:
        if not (folder / "config.json").is_file():
            stop(f"{folder}: {'no config.json, so not a run' if folder.is_dir() else 'no such run'}")
        try:
            config = json.loads((folder / "config.json").read_text())
            algo, made_by, env_id = config["algo"], config["script"][:12], config["args"]["env_id"]
        except (ValueError, KeyError, TypeError):
            stop(f"{folder}: its config.json is damaged")
        path = script or Path(__file__).parent.parent / "algos" / f"{algo}.py"
        load_script(path)
        if digest(path) != made_by:
            note(f"{path} is not, or no longer, the script that made {folder}")
        names = [x.stem.removeprefix("iter_") for x in folder.glob("checkpoints/iter_*.pt")]
        iterations = sorted(int(name) for name in names if name.isdecimal())
        if not iterations:
            stop(f"{folder}: no checkpoints")
        runs.append([Source(path, folder, iteration) for iteration in iterations])
        env_ids[env_id] = folder
        if needs_critic and not hasattr(checkpoint_state(runs[-1][0])[2], "value"):
            stop(f"{folder}: {algo} has no value network to measure")
    if len(env_ids) > 1:
        stop(f"runs of different environments: {' and '.join(env_ids)}; draw each by itself")
    return runs


def output_folder(out: Path | None, folders: tuple[Path, ...]) -> Path:
    if out is None and len(folders) > 1:
        stop("several runs: name the folder for their figures with --out")
    out = out or folders[0] / "figures"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        stop(f"--out {out}: {error.strerror}")
    return out


def setting(config: dict[str, Any]) -> dict[str, Any]:
    """What makes the setting of a run, of its config.json: the algorithm and the arguments."""
    return dict(algo=config["algo"]) | {name: x for name, x in config["args"].items() if name not in NOT_OF_THE_SETTING}


def flag(name: str, value: Any) -> str:
    """An argument as run folders spell it: no-value-clip, policy-lr=0.0003, policy-hidden=64x64."""
    text = "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    name = name.replace("_", "-")
    return {"True": name, "False": f"no-{name}"}.get(text, f"{name}={text}")


def default_flags(algo: str) -> set[str]:
    """The defaults of algos/<algo>.py, read without running it; none where it cannot be read."""
    try:
        source = (Path(__file__).parent.parent / "algos" / f"{algo}.py").read_text()
        [args] = [x for x in ast.parse(source).body if isinstance(x, ast.ClassDef) and x.name == "Args"]
        return {flag(x.target.id, ast.literal_eval(x.value)) for x in args.body if isinstance(x, ast.AnnAssign)}
    except (OSError, SyntaxError, ValueError):
        return set()


def differing(settings: list[dict[str, Any]]) -> list[str]:
    """Names of the arguments that are not the same in all the settings."""
    names = dict.fromkeys(name for x in settings for name in x)
    return [name for name in names if any(x.get(name) != settings[0].get(name) for x in settings)]


def label_runs(settings: dict[Path, dict[str, Any]], labels: tuple[str, ...]) -> dict[Path, str]:
    """The label of each run folder's setting: a given one, or the algorithm and the flags that tell it from the
    algorithm's other settings here, as far as they are not the script's defaults."""
    found, given = {}, {}
    for algo in {x["algo"] for x in settings.values()}:
        alike, defaults = {folder: x for folder, x in settings.items() if x["algo"] == algo}, default_flags(algo)
        names = differing(list(alike.values()))
        for folder, x in alike.items():
            flags = [flag(name, x.get(name)) for name in names]
            found[folder] = " ".join([algo, *(text for text in flags if text not in defaults)])
    for text in labels:
        label, _, spelled = text.partition("=")
        algo, *flags = spelled.split() or stop(f'--labels {text}: write LABEL=ALGO or "LABEL=ALGO FLAG ..."')
        flags.append(flag("algo", algo))
        named = [folder for folder, x in settings.items() if {flag(*y) for y in x.items()}.issuperset(flags)]
        for folder in named or stop(f"--labels {text}: no run is {spelled}"):
            if folder in given:
                stop(f"--labels: {folder} is both {given[folder]} and {label}; add flags that tell them apart")
            given[folder] = label
    return found | given


def can_step(source: Source) -> bool:
    """Whether the checkpoint has a next iteration; the last of a finished run has learning rate 0."""
    script, args, state = checkpoint_state(source)
    return state.global_step < script.planned_steps(args)


def choose(sources: list[Source], iterations: tuple[int, ...]) -> list[Source]:
    """The checkpoints of a run at the given iterations; where none are given, 0, 150, 300 and 450 or, in a run without
    them, its first, its thirds and its last that still has a step."""
    have = {source.iteration: source for source in sources}
    if not iterations:
        going_on = [x for x in have if x < max(have) or can_step(have[x])] or [max(have)]
        thirds = [going_on[round(k * (len(going_on) - 1) / 3)] for k in range(4)]
        iterations = (0, 150, 300, 450) if {0, 150, 300, 450} <= set(going_on) else tuple(dict.fromkeys(thirds))
    for iteration in iterations:
        if iteration not in have:
            stop(f"{sources[0].run}: no checkpoint {iteration}; there are {' '.join(map(str, have))}")
    return [have[iteration] for iteration in iterations]


@functools.lru_cache(maxsize=4)
def read_checkpoint(source: Source) -> tuple[ModuleType, Any, Any]:
    """Script, arguments and training state of a checkpoint, its statistics frozen. At iteration 0, where there are none
    of observations and rewards yet, one discarded rollout makes them."""
    script = load_script(source.script)
    checkpoint = script.load_checkpoint(source.path)
    try:
        args = replace(script.Args(**checkpoint["args"]), compile=False)  # an update or two do not repay it
        state = script.initial_state(args, script.make_actors(args))
        script.restore(state, checkpoint)
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        text = " ".join(str(error).split())
        stop(f"{source.script} does not fit {source.run}: {type(error).__name__}: {text}")
    if state.iteration == 0:
        script.rollout(args, state)
    for part in vars(state).values():
        if hasattr(part, "frozen"):
            part.frozen = True
    return script, args, state


def checkpoint_state(source: Source) -> tuple[ModuleType, Any, Any]:
    """The same, with a copy of the state: updates change a state in place, and the next caller must not see that."""
    script, args, state = read_checkpoint(source)
    return script, args, copied(state)


def copied(state: Any) -> Any:
    """A copy of a training state but for its actors: a copied environment does not step to the same observations."""
    return replace(state, **{name: copy.deepcopy(part) for name, part in vars(state).items() if name != "actors"})


def fresh_state(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> tuple:
    """Script, arguments and the checkpoint's state with actors that will begin new episodes and a generator of its
    own."""
    script, args, state = checkpoint_state(source)
    args = replace(args, num_envs=num_envs, num_steps=num_steps)
    return script, args, replace(state, actors=script.make_actors(args), rng=np.random.default_rng(seed))


def groups(pairs: int, num_steps: int) -> list[tuple[int, int]]:
    """Actors and steps of each group that together give the pairs: as many whole segments as there are in them, and the
    first pairs of one more."""
    segments, rest = divmod(pairs, num_steps)
    whole = [(min(GROUP, segments - first), num_steps) for first in range(0, segments, GROUP)]
    return whole + ([(1, rest)] if rest else [])


def segment_rows(experience: dict[str, Any], num_steps: int) -> list[slice]:
    """Rows of each actor's segment in a rollout, num_steps each (REINFORCE's go on to the end of the episode)."""
    ends, rows, start = np.flatnonzero(experience["terminations"] | experience["truncations"]) + 1, [], 0
    while start < len(experience["obs"]):
        rows.append(slice(start, start + num_steps))
        start = ends[ends >= start + num_steps][0]
    return rows


def collect_group(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> dict[str, Any]:
    """Fresh segments of a checkpoint's policy, statistics frozen."""
    script, args, state = fresh_state(source, seed, num_envs, num_steps)
    return script.rollout(args, state)


def collect(source: Source, seed: tuple[int, ...], pairs: int, sample: Callable) -> dict[str, Any]:
    """As many pairs from fresh segments, as one rollout."""
    sizes = groups(pairs, checkpoint_state(source)[1].num_steps)
    parts = list(sample(collect_group, [(source, (*seed, i), *size) for i, size in enumerate(sizes)]))
    whole = {}
    for name in list(parts[0]):
        x = [part.pop(name) for part in parts]
        whole[name] = sum(x, []) if isinstance(x[0], list) else np.concatenate(x)
    return whole


def start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()  # no worker outlives it


@contextlib.contextmanager
def sampler(jobs: int, total: int, unit: str) -> Iterator[Callable]:
    """Yields sample(function, tasks): an iterator of the function's results for tasks (source, seed, actors, steps,
    ...), in their order. They are computed in `jobs` processes, which begin at once, or here, one by one as they are
    asked for. Meanwhile a bar shows how many steps (or whatever the unit) are done."""
    print(f"{total:,} {unit} to sample", flush=True)
    torch.set_num_threads(1)
    bar = tqdm(total=total, unit=f" {unit}", unit_scale=True, disable=None)
    start = last_line = time.perf_counter()
    done = 0

    def advance(steps: int) -> None:
        nonlocal done, last_line
        done, now = done + steps, time.perf_counter()
        bar.update(steps)
        if bar.disable and now - last_line > 30:  # no terminal: now and then a line instead of the bar
            left = tqdm.format_interval((now - start) / done * max(0, total - done))
            print(f"{done:,} of {total:,} {unit}, {left} left", flush=True)
            last_line = now

    def in_order(tasks: list[tuple], results: Iterator[Any]) -> Iterator[Any]:
        for task, result in zip(tasks, results):
            advance(task[2] * task[3])
            yield result

    def sample(function: Callable, tasks: list[tuple], here: bool = False) -> Iterator[Any]:
        return in_order(tasks, (map if here or jobs == 1 else executor.map)(function, *zip(*tasks)))

    with bar, ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), start_worker) as executor:
        try:
            yield sample
        except BaseException as error:
            executor.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                stop("a worker died, of memory perhaps; the same command goes on from what is measured", 1)
            raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes from writing the file meanwhile."""
    lock = path.with_suffix(".lock")
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            stop(f"{path} is in use by another process ({error.strerror})")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def measure_missing(path: Path, jobs: int, work: list[tuple], unit: str = "environment steps") -> list[dict[str, Any]]:
    """The cells of the work, a list of (measure, source, list of a cell's settings, environment steps of each): what
    the file at the path holds of them from an earlier call; for the rest measure(source, sample, missing settings)
    yields the numbers of one after another, and each cell is added to the file at once."""

    def find(settings: dict[str, Any]) -> dict[str, Any] | None:
        return next((cell for cell in cells if cell.items() >= settings.items()), None)

    with locked(path):
        try:
            cells = json.loads(path.read_text()) if path.exists() else []
        except (OSError, ValueError):
            cells = None
        if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
            stop(f"{path} is damaged; move it away")
        todo, planned = [], []
        for measure, source, settings, cost in work:
            missing = [x for x in settings if not find(x) and x not in planned]
            todo.append((measure, source, missing, cost))
            planned += missing
        if total := sum(len(missing) * cost for _, _, missing, cost in todo):
            with sampler(jobs, total, unit) as sample:
                for measure, source, missing, _ in todo:
                    for settings, numbers in zip(missing, measure(source, sample, missing)):
                        cells.append(settings | numbers)
                        path.with_suffix(".tmp").write_text("[\n" + ",\n".join(map(json.dumps, cells)) + "\n]\n")
                        path.with_suffix(".tmp").replace(path)
    return [find(x) for _, _, settings, _ in work for x in settings]


def identify(source: Source, seed: int) -> dict[str, Any]:
    """What a cell says of its checkpoint: its numbers are measured anew where any of it changes."""
    algo = json.loads((source.run / "config.json").read_text())["algo"]
    hashes = dict(script=digest(source.script), checkpoint=digest(source.path))
    return dict(run=source.run.name, algo=algo, iteration=source.iteration, seed=seed) | hashes


def interval(x: np.ndarray, resamples: int = 500) -> list[float] | None:
    """95 % bootstrap interval of the mean of x [n]; of one item there is none."""
    if len(x) < 2:
        return None
    means = np.random.default_rng(0).choice(x, (resamples, len(x))).mean(1)
    return np.percentile(means, [2.5, 97.5]).tolist()


def new_figure(rows: int, columns: int, size: tuple[float, float], **style: Any) -> tuple[Figure, np.ndarray]:
    """Figure of the size in inches, and its axes [rows, columns]."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **style)


def look(algo: str) -> dict[str, Any]:
    """How an algorithm's lines are drawn."""
    style = dict(color=COLOURS.get(algo, "#8c564b"), marker=MARKERS.get(algo, "."), label=algo)
    return style | dict(markersize=3.5, linewidth=1.2)


def line_styles(algo_of: dict[str, str]) -> dict[str, dict[str, Any]]:
    """How each label is drawn: as the algorithm that it spells (PPO-M is ppo_m), else as its own if that is not taken,
    else in the next colour that is not; dashed when all are."""
    spelled = {label: label.lower().replace("+", "_plus").replace("-", "_") for label in algo_of}
    looks, found = [(name, line) for line in ("-", "--", ":", "-.") for name in COLOURS], {}
    for label in sorted(algo_of, key=lambda x: spelled[x] not in COLOURS):
        wanted = [(spelled[label], "-"), (algo_of[label], "-"), *looks]
        found[label] = next((x for x in wanted if x in looks and x not in found.values()), looks[0])
    return {label: look(found[label][0]) | dict(linestyle=found[label][1], label=label) for label in algo_of}


def run_styles(folders: tuple[Path, ...], labels: tuple[str, ...]) -> list[dict[str, Any]]:
    """How the lines of each run are drawn: alike where the setting is the same."""
    settings = {folder: setting(json.loads((folder / "config.json").read_text())) for folder in folders}
    label_of = label_runs(settings, labels)
    styles = line_styles({label_of[folder]: x["algo"] for folder, x in settings.items()})
    return [styles[label_of[folder]] for folder in folders]


def draw_line(axis: Axes, x: list, points: list[dict[str, Any]], style: dict[str, Any]) -> None:
    """Means against x, their intervals shaded."""
    axis.plot(x, [point["mean"] for point in points], **style)
    low, high = zip(*[point["interval"] or (np.nan, np.nan) for point in points])
    axis.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


def title(cells: list[dict[str, Any]]) -> str:
    return "iteration " + " / ".join(dict.fromkeys(str(cell["iteration"]) for cell in cells))


def save_figure(figure: Figure, path: Path) -> None:
    """One legend for all lines, above the panels, for which the figure grows; then the figure as PNG and PDF."""
    for axis in figure.axes:
        if axis.name != "3d":
            axis.spines[["top", "right"]].set_visible(False)
    lines = {label: line for axis in figure.axes[::-1] for line, label in zip(*axis.get_legend_handles_labels())}
    if lines:
        width, height = figure.get_size_inches()
        texts = [textwrap.fill(label, int((width - 0.6) / 0.065), break_on_hyphens=False) for label in lines]  # inches
        longest = max(len(part) for text in texts for part in text.split("\n"))
        columns = max(1, min(len(texts), int(width / (0.6 + 0.065 * longest))))
        figure.set_figheight(height + 0.17 * sum(text.count("\n") + 1 for text in texts) / columns)
        figure.legend(lines.values(), texts, loc="outside upper center", ncols=columns, frameon=False, fontsize=8)
    for suffix in (".png", ".pdf"):
        figure.savefig(path.with_suffix(suffix), dpi=150)
    print(path.with_suffix(".png"))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    sys.path.append(os.getcwd())  # where an environment my_module:MyEnv-v0 and a script of one's own look for modules
    try:
        main()
    except KeyboardInterrupt:
        stop("interrupted; the same command goes on from what is measured", 130)
