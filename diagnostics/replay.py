"""Which update broke it? This script repeats some of training's iterations bit for bit. For every update, it shows
what training logged and what it did not log, and what the surrogate promised beside what the reward did.

    python diagnostics/replay.py runs/Hopper-v5__ppo__seed1 --from 300 --to 325
    python diagnostics/replay.py runs/Hopper-v5__trpo_plus__seed2 --from 425 --to 450 --episodes 24

Update 300 is the one that ends iteration 300; --from 300 --to 325 are the 25 updates between the states in which these
two iterations begin. The replay runs from the newest checkpoint at or before --from, through --to, to the next one. For
every checkpoint on its way, it says whether it arrives at the same state, and for progress.csv, whether it repeats it
to the last digit. Where it arrives at a different state (because of another version of a library or of the script, or
without a compiler), it continues from the checkpoint.

- promised: the change of the script's own objective on the update's batch, in that objective's units.
- reward: the mean undiscounted return of complete episodes of the policies before and after the update. Both act with
  the normalizers as the iteration's rollout left them, with which the next iteration begins. So the effect of the
  normalizers is not in it; that lies between one update's after and the next one's before. All have the same seeds,
  which determine an episode's reset and the noise of its actions (common random numbers).
- its change: the mean of the differences seed by seed, with Student's t interval. That is what updates do; what the
  normalizers do between two updates is the difference between one's after and the next one's before. With n updates
  these are 2 n - 1 intervals, with confidence 1 - 0.05 / (2 n - 1) (Bonferroni): if nothing had any effect, one or more
  of them would exclude 0 in at most 5 % of calls.
  An update, or a move of the normalizers, whose interval lies below 0 and which costs more than 5 % of the reward gets
  a line. Where there is none, the call says which fall it would have detected with a power of 0.8: (t of the interval +
  t of 0.8) standard errors, the median over the updates. Then come all the updates together: after the last against
  before the first, each with its normalizers, at 95 %.
- KL(before || after) and ratios on the batch; the largest KL, the pair (row of the batch) that has it, and the step of
  its episode to which that pair belongs. The standard deviation of each action after the update is a mean over the
  batch.
- gradient norms of the objective and of the value loss on the whole batch, as the update begins. Beside them is what
  the script logs: the mean norm over its minibatches (for TRPO, that of its one step) and the share of them that is
  clipped. The explained variance is that of the value targets, before and after the fit.
- drift of the normalizers: how far a mean moved over the iteration's rollout, in its standard deviations (the largest
  over the observation's entries), and by which share a standard deviation changed (for rewards, that is their scale).
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from matplotlib.ticker import MaxNLocator
from measuring import figures, intervals, kept, runs, sampling
from measuring.runs import COUNT, AtLeast, Source
from measuring.sampling import Sampler
from torch import Tensor, nn
from tqdm import tqdm

VERSION = 1  # raised whenever the measured numbers change

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.Options):
    first: Annotated[int, AtLeast(0), tyro.conf.arg(name="from")]
    """iteration that ends with the first update"""
    last: Annotated[int, AtLeast(1), tyro.conf.arg(name="to")]
    """iteration that begins after the last update"""
    episodes: Annotated[int, AtLeast(2, "or there is no interval", COUNT)] = 100
    """episodes before and after each update; 100 for 25 updates on Hopper-v5 take two cores less than 10 minutes"""


# Replay --------------------------------------------------------------------------------------------------------------


def replay(args: Args, sources: list[Source], folder: Path) -> dict[int, tuple[dict[str, Any], np.ndarray, np.ndarray]]:
    """Continues the first checkpoint as training did, through --to and up to the last of the checkpoints. Returns for
    each iteration its numbers, and the policy parameters [P] before and after it. The states after the wanted
    iterations are saved in the folder."""
    script, settings, state = sampling.training_state(sources[0])
    base, later = runs.checkpoint_of(sources[0]), {source.iteration: source for source in sources[1:]}
    rows = {int(row["iteration"]): row for row in runs.read_progress(sources[0].run)}
    taken, arrived = {}, sources[0].iteration
    seconds = 0.1 if sys.stderr.isatty() else 30  # a file gets a line now and then
    for i in tqdm(range(arrived, max(args.last, *later, 0)), "replay", leave=False, mininterval=seconds):
        before = sampling.flat_parameters(state.policy).numpy()
        begin_episodes(settings, state, base)
        numbers = take_iteration(script, settings, state)
        numbers["unlike_progress"] = unlike_progress(numbers, rows.get(i))
        numbers |= dict(next_checkpoint=None, unlike_checkpoint=None)
        taken[i] = numbers, before, sampling.flat_parameters(state.policy).numpy()
        if args.first <= i < args.last:
            save_state(base, state, Source(script, folder, i + 1).path)
        if i + 1 in later:
            _, _, there = sampling.training_state(later[i + 1])
            parts = [name for name in vars(state) if name != "workers"]
            unlike = [name for name in parts if not same(getattr(state, name), getattr(there, name))]
            for j in range(arrived, i + 1):
                taken[j][0].update(next_checkpoint=i + 1, unlike_checkpoint=unlike)
            state, arrived, base = there if unlike else state, i + 1, runs.checkpoint_of(later[i + 1])
    return taken


def begin_episodes(settings: Any, state: Any, checkpoint: dict[str, Any]) -> None:
    """Begins new episodes after each checkpoint of a run of an older script, as it did. Its checkpoints have none."""
    every = getattr(settings, "checkpoint_every", None)
    if every and "workers" not in checkpoint and state.iteration % every == 0:
        for worker in state.workers:
            worker.obs = None


def save_state(base: dict[str, Any], state: Any, path: Path) -> None:
    """Saves a checkpoint for the workers. It has the state's networks, statistics and counters, which are all that
    acting reads."""
    parts = {name: part for name, part in vars(state).items() if isinstance(part, int | float | Tensor)}
    parts |= {name: part.state_dict() for name, part in vars(state).items() if hasattr(part, "state_dict")}
    path.parent.mkdir(exist_ok=True)
    torch.save(base | parts, path)


def same(a: Any, b: Any) -> bool:
    """Returns whether two parts of a training state are equal bit for bit."""
    if isinstance(a, Tensor | np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, nn.Module):
        a, b = a.state_dict(), b.state_dict()
    elif isinstance(a, np.random.Generator):
        a, b = a.bit_generator.state, b.bit_generator.state
    elif hasattr(a, "__dict__"):
        a, b = vars(a), vars(b)
    return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a) if isinstance(a, dict) else a == b


def unlike_progress(numbers: dict[str, Any], row: dict[str, str] | None) -> list[str] | None:
    """Returns the names of the logged numbers that the iteration does not repeat to the last digit, or None where
    nothing was logged. The row's numbers are texts that Python made from floats, so they have all their digits."""
    episodes = numbers["training_episodes"]
    mine = numbers["statistics"] | dict(global_step=numbers["global_step"], episodes=len(episodes))
    if episodes:
        mine |= dict(zip(("episodic_return", "episodic_length"), np.mean(episodes, axis=0).tolist()))
    return [name for name, x in mine.items() if row.get(name) and row[name] != str(x)] if row else None


# Updates -------------------------------------------------------------------------------------------------------------

WHEN = "before", "after"  # the update


def take_iteration(script: ModuleType, settings: Any, state: Any) -> dict[str, Any]:
    """Takes the state through one iteration, in place, and measures the update on its own batch."""
    before = sampling.copied(state)
    lengths = [0 if worker.obs is None else len(worker.actions) for worker in state.workers]
    experience = sampling.roll_out(script, settings, state)
    batch = script.estimate_advantages(settings, state, experience)
    steps = episode_steps(experience, settings.num_steps, lengths)
    loss = script.policy_loss(settings, state.policy(batch["obs"]), batch)
    numbers = dict(policy_gradient=gradient_norm(loss, state.policy))
    if hasattr(state, "value"):
        loss = script.value_loss(settings, state.value(batch["obs"]), batch)
        numbers["value_gradient"] = gradient_norm(loss, state.value)
    numbers["statistics"] = script.update(settings, state, batch)
    numbers |= step_size(state.policy, batch, steps)
    with torch.no_grad():
        values = [sampling.objective(script, settings, x.policy, batch).item() for x in (before, state)]
    numbers |= dict(promised=values[1] - values[0], drift=drift(before, state))
    if hasattr(state, "value"):
        numbers["explained_variance"] = [explained_variance(x.value, batch) for x in (before, state)]
    return numbers | dict(global_step=state.global_step, training_episodes=experience["episodes"])


def episode_steps(experience: dict[str, Any], num_steps: int, lengths: list[int]) -> list[int]:
    """Returns for each pair [B] which step of its episode it is, 1 being the first. `lengths` gives the steps
    that each worker's unfinished episode had before the rollout."""
    begins = {rows.start: length for rows, length in zip(sampling.segment_rows(experience, num_steps), lengths)}
    steps, step = [], 0
    for row, ended in enumerate(experience["ends"]):
        step = begins.get(row, step) + 1
        steps.append(step)
        step = 0 if ended else step
    return steps


def gradient_norm(loss: Tensor, network: nn.Module) -> float:
    parts = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
    return torch.cat([part.flatten() for part in parts if part is not None]).norm().item()


@torch.no_grad()
def step_size(after: Callable, batch: dict[str, Tensor], steps: list[int]) -> dict[str, Any]:
    """Returns KL(before || after) in nats, ratios, where the largest KL is, and the standard deviations [action]
    after."""
    ratios, kls = sampling.compare_policies(after, batch)
    pair = kls.argmax().item()
    numbers = dict(mean_kl=kls.mean().item(), max_kl=kls[pair].item(), max_kl_pair=pair, max_kl_step=steps[pair])
    numbers |= dict(max_ratio=ratios.max().item(), min_ratio=ratios.min().item())
    return numbers | dict(stds=after(batch["obs"]).stddev.mean(0).tolist())


@torch.no_grad()
def explained_variance(value: Callable, batch: dict[str, Tensor]) -> float:
    return (1 - (batch["value_targets"] - value(batch["obs"])).var() / batch["value_targets"].var()).item()


def drift(before: Any, after: Any) -> dict[str, dict[str, Any]]:
    """Returns for each running statistics how far the mean moved, in standard deviations, and by which share the
    standard deviation changed, each the largest over the entries. At iteration 0 there is nothing to compare with, so
    it is empty."""
    found = {}
    for name, old in vars(before).items():
        if before.iteration and hasattr(old, "push"):
            new, scale = getattr(after, name), old.std + 1e-8
            changes = dict(mean=(new.mean - old.mean) / scale, std=(new.std - old.std) / scale)
            found[name] = {key: float(np.abs(x).max()) for key, x in changes.items()}
    return found


def measure_updates(
    args: Args, sources: list[Source], sample: Sampler, missing: list[dict[str, Any]], _: Any
) -> Iterator[dict[str, Any]]:
    """Yields the numbers of each update, with return and length of the episodes that are played before it and after
    it."""
    with TemporaryDirectory() as folder:
        shutil.copy(sources[0].run / "config.json", folder)  # makes the folder a run for the workers
        taken, plays = replay(args, sources, Path(folder)), []
        for i in (cell["iteration"] for cell in missing):  # all begin at once, so that no worker waits
            source = Source(sources[0].script, Path(folder), i + 1)
            of_both = [sampling.play(source, (args.seed,), 0, args.episodes, 1, sample, x) for x in taken[i][1:]]
            plays.append((taken[i][0], of_both))
        for numbers, of_both in plays:
            for when, episodes in zip(WHEN, of_both):
                returns, lengths = zip(*episodes)
                numbers[when] = dict(returns=returns, lengths=lengths)
            yield numbers


# Verdicts ------------------------------------------------------------------------------------------------------------


def returns_of(cell: dict[str, Any]) -> list[np.ndarray]:
    """Lists the episodes' returns before and after the update, seed by seed."""
    return [np.array(cell[when]["returns"]) for when in WHEN]


def find_changes(cells: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Computes what each update did to the reward [n], and what the normalizers did before each but the first
    [n - 1]."""
    looks, returns = 2 * len(cells) - 1, [returns_of(cell) for cell in cells]
    of_updates = [intervals.paired_change(before, after, looks) for before, after in returns]
    return of_updates, [intervals.paired_change(x[1], y[0], looks) for x, y in pairwise(returns)]


def reward_text(change: dict[str, Any]) -> str:
    before, after = intervals.short(change["before"]), intervals.short(change["after"])
    return f"reward {before} -> {after}, by {intervals.text(change)}"


def verdict(cell: dict[str, Any], change: dict[str, Any]) -> str:
    text = f"update {cell['iteration']}: promised {cell['promised']:+.3g}, {reward_text(change)}; largest KL "
    text += f"{cell['max_kl']:.2g} in one state (pair {cell['max_kl_pair']}, step {cell['max_kl_step']} of its episode)"
    return f"{text}, mean {cell['mean_kl']:.2g}"


def between(cell: dict[str, Any], move: dict[str, Any]) -> str:
    """Says what the normalizers did before an update."""
    drift = cell["drift"].get("obs_stats")
    by = f" (the mean of an observation by {drift['mean']:.2g} standard deviations)" if drift else ""
    return f"before update {cell['iteration']} the normalizers moved{by}: {reward_text(move)}"


FAR = 5  # times the median over the updates
TRIFLE = 0.05  # of the reward before; with enough episodes, a fall of any size is significant
FELL = f"significantly and by more than {intervals.percent(TRIFLE)}"


def fell(change: dict[str, Any]) -> bool:
    """Returns whether the reward fell, significantly and by more than a trifle."""
    return change["interval"][1] < 0 and -change["mean"] > TRIFLE * abs(change["before"])


def verdicts(cells: list[dict[str, Any]], changes: list[dict[str, Any]], moves: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each update, and each move of the normalizers before it, after which the reward fell, or says
    that there is none. Then comes a line for each update that went far without harm, and one for all together."""
    lines = []
    for cell, change, move in zip(cells, changes, [None, *moves]):
        if move and fell(move):
            lines.append(between(cell, move))
        if fell(change):
            lines.append(verdict(cell, change))
    if not lines:
        visible = intervals.short(np.median([change["visible"] for change in changes]))
        episodes = len(returns_of(cells[0])[0])
        k = np.argmin([change["mean"] for change in changes])
        text = f"no update lowered the reward {FELL}"
        lines = [f"{text}; with {episodes} episodes, a fall of {visible} would be detected with probability 0.8"]
        lines.append(f"the lowest change: {verdict(cells[k], changes[k])}")
    middle = np.median([cell["mean_kl"] for cell in cells])
    for cell, change in zip(cells, changes):
        if cell["mean_kl"] > FAR * middle and not fell(change):
            text = f"mean KL {cell['mean_kl']:.2g}, {cell['mean_kl'] / middle:.0f} times the median"
            lines.append(f"update {cell['iteration']} went far, but did not lower the reward {FELL}: {text}")
    together = intervals.paired_change(returns_of(cells[0])[0], returns_of(cells[-1])[1], 1)
    return [*lines, f"all {len(cells)}, and the normalizers between them, at 95 %: {reward_text(together)}"]


def fidelity(cells: list[dict[str, Any]]) -> list[str]:
    """Says, in lines, whether the replay did what training did."""
    lines = []
    for checkpoint, unlike in {cell["next_checkpoint"]: cell["unlike_checkpoint"] for cell in cells}.items():
        text = f"differs from it in {', '.join(unlike)}" if unlike else "arrives at the same state, bit for bit"
        lines.append(f"iter_{checkpoint:06d}.pt: the replay {text}" if checkpoint else "no later checkpoint to compare")
    logged = [cell for cell in cells if cell["unlike_progress"] is not None]
    unlike = [f"{name} of iteration {cell['iteration']}" for cell in logged for name in cell["unlike_progress"]]
    text = f"differs from it in {unlike[0]}" if unlike else "repeats it, to the last digit"
    text += f", and after that in {len(unlike) - 1} more" if len(unlike) > 1 else ""
    return [*lines, f"progress.csv: the replay {text}" if logged else "progress.csv: no such iteration to compare"]


# Figure --------------------------------------------------------------------------------------------------------------


def panels_of(cells: list[dict[str, Any]]) -> dict[str, tuple[str, dict[str, list[float]]]]:
    """Returns the panels below those of the reward, each with its scale and its lines, as far as there is anything to
    draw."""

    def own(name: str, place: int | None = None) -> list[float]:
        found = [cell.get(name) for cell in cells]
        return [np.nan if x is None else x if place is None else x[place] for x in found]

    def logged(name: str) -> list[float]:
        return [cell["statistics"].get(name, np.nan) for cell in cells]

    def drifts(name: str, what: str) -> list[float]:
        return [cell["drift"].get(name, {}).get(what, np.nan) for cell in cells]

    norms = {"objective, whole batch": own("policy_gradient"), "policy, as logged": logged("policy_grad_norm")}
    norms |= {"value loss, whole batch": own("value_gradient"), "value, as logged": logged("value_grad_norm")}
    shares = {"ratios outside 1 ± eps": logged("clip_fraction"), "policy's gradients": logged("policy_grads_clipped")}
    moved = {"observations, mean": drifts("obs_stats", "mean"), "observations, std": drifts("obs_stats", "std")}
    actions = range(len(cells[0]["stds"]))
    panels = {
        "change\npromised": ("linear", {"of the objective": own("promised")}),
        "KL (nats)": ("log", {"largest": own("max_kl"), "mean": own("mean_kl")}),
        "ratio": ("log", {"largest": own("max_ratio"), "smallest": own("min_ratio")}),
        "share\nclipped": ("linear", shares | {"value network's gradients": logged("value_grads_clipped")}),
        "std of\nactions": ("linear", {f"action {k}": own("stds", k) for k in actions}),
        "gradient\nnorm": ("log", norms),
        "explained\nvariance": ("linear", {f"{x} the fit": own("explained_variance", k) for k, x in enumerate(WHEN)}),
        "drift of\nnormalizers": ("log", moved | {"rewards, std": drifts("reward_stats", "std")}),
    }
    for scale, lines in panels.values():
        for name in [name for name, y in lines.items() if not np.any(np.greater(y, 0 if scale == "log" else -np.inf))]:
            del lines[name]
    return {text: panel for text, panel in panels.items() if panel[1]}


def draw_updates(cells: list[dict[str, Any]], changes: list[dict[str, Any]], path: Path) -> None:
    """Draws the quantities below one another, on one axis of iterations. Updates that lowered the reward are shaded
    grey."""
    x, panels = np.array([cell["iteration"] for cell in cells]), panels_of(cells)
    style = figures.look(cells[0]["algo"]) | dict(linestyle="", markersize=4, elinewidth=0.8)
    heights = [2, 1.5] + [1] * len(panels)
    figure, axes = figures.new_figure(len(heights), 1, (8.4, sum(heights)), sharex=True, height_ratios=heights)
    reward, change, *rest = axes[:, 0]
    training = [(i, episode[0]) for i, cell in zip(x, cells) for episode in cell["training_episodes"]]
    reward.plot(*zip(*training or [(x[0], np.nan)]), ".", color="0.7", markersize=3, label="training's episodes")
    for k, when in enumerate(WHEN):
        returns, like = [returns_of(cell)[k] for cell in cells], dict(fillstyle=figures.FILLS[1 - k])
        like["label"] = f"{when} the update, 95 %"
        figures.draw_points(reward, x + 0.3 * k - 0.15, [intervals.mean_of(y) for y in returns], style | like)
    like = dict(label=f"after minus before, {100 - 5 / (2 * len(x) - 1):.4g} %")
    figures.draw_points(change, x, changes, style | like)
    change.axhline(0, color="black", linewidth=0.6)
    reward.set_ylabel("episode\nreturn")
    change.set_ylabel("change of\nreturn")
    for axis, (text, (scale, lines)) in zip(rest, panels.items()):
        for (name, y), line, fill in zip(lines.items(), figures.LINES * len(lines), figures.FILLS * len(lines)):
            axis.plot(x, y, **figures.look(cells[0]["algo"]) | dict(label=name, linestyle=line, fillstyle=fill))
        axis.set(ylabel=text, yscale=scale)
        if scale == "log":
            figures.label_log_axis(axis, 30)
    for axis in axes[:, 0]:
        handles, labels = axis.get_legend_handles_labels()
        axis.legend(handles, labels, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7, frameon=False)
        for handle in handles:
            handle.set_label("_")  # it is named beside the panel, so not above all of them as well
        for i in (i for i, y in zip(x, changes) if fell(y)):
            axis.axvspan(i - 0.5, i + 0.5, color="0.85", linewidth=0, zorder=0)
        axis.tick_params(labelsize=7)
    axes[-1, 0].set_xlabel("iteration")
    axes[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    figure.align_ylabels()
    figures.save_figure(figure, path)


# Main ----------------------------------------------------------------------------------------------------------------


def sources_between(run: list[Source], args: Args) -> list[Source]:
    """Returns the newest checkpoint at or before --from, and those that follow, up to the first at or after --to."""
    begun = [source for source in run if source.iteration <= args.first]
    if not begun:
        have = " ".join(str(source.iteration) for source in run)
        runs.stop(f"--from {args.first}: no checkpoint at or before it; there are {have}")
    rows = runs.read_progress(run[0].run)
    end = max([run[-1].iteration, *(1 + int(row["iteration"]) for row in rows)])
    if args.last > end:
        runs.stop(f"--to {args.last}: training has reached iteration {end}")
    if args.first >= args.last:
        runs.stop(f"--from {args.first} --to {args.last}: there is no update between them")
    past = [source for source in run if source.iteration >= args.last]
    return [x for x in run if begun[-1].iteration <= x.iteration < args.last] + past[:1]


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__)
    if len(args.runs) != 1:
        runs.stop("name one run")
    if runs.read_config(args.runs[0])["algo"] == "sb3":
        runs.stop(f"{args.runs[0]}: SB3 saves neither random numbers nor environments, so no update can be taken again")
    [run] = runs.open_runs(args.runs, args.script)
    sources = sources_between(run, args)
    path = runs.output_folder(args.out, args.runs) / "replay.jsonl"
    cells = []
    for i in range(args.first, args.last):
        base = [source for source in sources if source.iteration <= i][-1]
        replayed = dict(iteration=i, checkpoint_iteration=base.iteration, episodes=args.episodes)
        cells.append(kept.identify(base, args.seed) | replayed)
    work = kept.Work(sources[0], cells, 2 * args.episodes, lambda *_: None, partial(measure_updates, args, sources))
    cells = kept.measure_missing(args, path, [work], sampling.episodes_unit(sources[0]))
    changes, moves = find_changes(cells)
    print(*fidelity(cells), *verdicts(cells, changes, moves), sep="\n")
    draw_updates(cells, changes, path)


if __name__ == "__main__":
    runs.run_program(main)
