"""Which update broke it? This script repeats some of training's iterations bit for bit. For every update, it shows
what training did not log: what the surrogate promised, and beside it what the reward did.

    python diagnostics/replay.py runs/Hopper-v5__ppo__seed1 --from 300 --to 325
    python diagnostics/replay.py runs/Hopper-v5__trpo_plus__seed2 --from 425 --to 450 --episodes 24

Update 300 is the one that ends iteration 300; --from 300 --to 325 are the 25 updates between the states in which these
two iterations begin. The replay runs from the newest checkpoint at or before --from, through --to, to the next one. For
every checkpoint on its way, it says whether it arrives at the same state, and for progress.csv, whether it repeats it
to the last digit. Where it arrives at a different state (because of another version of a library or of the script, or
without a compiler), it continues from the checkpoint.

- promised: the change of the script's own objective on the update's batch, in that objective's units.
- reward: the mean undiscounted return of complete episodes of the policies before and after the update. Both act with
  the normalizers as the iteration's rollout left them, with which the next iteration begins. All have the same seeds,
  which determine an episode's reset and the noise of its actions (common random numbers).
- its change: the mean of the differences seed by seed, with Student's t interval. That is what updates do; what the
  normalizers do between two updates is the difference between one's after and the next one's before. With n updates
  these are 2 n - 1 intervals, with confidence 1 - 0.05 / (2 n - 1) (Bonferroni). Where one lies below 0 and costs more
  than 5 % of the reward, the update or the move of the normalizers gets a line. Where none does, the call says which
  fall it would have detected with a power of 0.8: (t of the interval + t of 0.8) standard errors, the median over the
  updates. The last line has all together: after the last update against before the first, each with its normalizers.
- KL(before || after) on the batch; the largest KL, the pair (row of the batch) that has it, and the step of its episode
  to which that pair belongs. The explained variance is that of the value targets, before and after the fit.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from matplotlib.ticker import MaxNLocator
from measuring import intervals, plots, runs, sampling, table
from measuring.runs import Source
from torch import Tensor, nn

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.Options):
    first: Annotated[int, tyro.conf.arg(name="from")]
    """iteration that ends with the first update"""
    last: Annotated[int, tyro.conf.arg(name="to")]
    """iteration that begins after the last update"""
    episodes: int = 100
    """episodes before and after each update; 100 for 25 updates on Hopper-v5 take two cores less than 10 minutes"""


# Replay --------------------------------------------------------------------------------------------------------------

WHEN = "before", "after"  # the update


def measure(source: Source, seed: int, first: int, last: int, episodes: int) -> dict[str, Any]:
    """Continues a checkpoint, and returns what each of the updates first, ..., last - 1 did."""
    [run] = runs.open_runs((source.run,), source.script)
    with TemporaryDirectory() as folder:
        shutil.copy(source.run / "config.json", folder)  # makes the folder a run for the worker processes
        taken = replay(sources_between(run, first, last), first, last, Path(folder))
        states = {i: Source(source.script, Path(folder), i + 1) for i in range(first, last)}
        policies = [(states[i], (seed,), parameters) for i in states for parameters in taken[i][1:]]
        played = iter(sampling.play_policies(policies, 0, episodes))  # all at once, so that no process waits
        for i in states:
            for when in WHEN:
                returns, lengths = zip(*next(played))
                taken[i][0][when] = dict(returns=list(returns), lengths=list(lengths))
    return dict(updates=[taken[i][0] for i in range(first, last)])


def sources_between(run: list[Source], first: int, last: int) -> list[Source]:
    """Returns a run's newest checkpoint at or before the first iteration, and those that follow, through the last."""
    begun = [source for source in run if source.iteration <= first]
    if not begun:
        runs.stop(f"--from {first}: no checkpoint at or before it; there are {' '.join(str(x.iteration) for x in run)}")
    past = [source for source in run if source.iteration >= last]
    return [x for x in run if begun[-1].iteration <= x.iteration < last] + past[:1]


def replay(sources: list[Source], first: int, last: int, folder: Path) -> dict[int, tuple]:
    """Continues the first of the checkpoints as training did, to the last iteration and up to the last checkpoint.
    Returns for each iteration its numbers, and the policy parameters [P] before and after it. The states after the
    wanted iterations are saved in the folder."""
    script, settings, state = sampling.training_state(sources[0])
    base, later = runs.checkpoint_of(sources[0]), {source.iteration: source for source in sources[1:]}
    logged = {int(row["iteration"]): row for row in runs.read_progress(sources[0].run)}
    taken, arrived = {}, sources[0].iteration
    for i in range(arrived, max([last, *later])):
        before = sampling.flat_parameters(state.policy).numpy()
        numbers = dict(iteration=i, checkpoint_iteration=arrived) | take_iteration(script, settings, state)
        unlike = unlike_progress(numbers, logged.get(i))
        numbers |= dict(unlike_progress=unlike, next_checkpoint=None, unlike_checkpoint=None)
        taken[i] = numbers, before, sampling.flat_parameters(state.policy).numpy()
        if first <= i < last:
            save_state(base, state, Source(sources[0].script, folder, i + 1).path)
        if i + 1 in later:
            _, _, there = sampling.training_state(later[i + 1])
            unlike = [k for k, x in vars(state).items() if k != "workers" and not same(x, getattr(there, k))]
            for j in range(arrived, i + 1):
                taken[j][0].update(next_checkpoint=i + 1, unlike_checkpoint=unlike)
            state, arrived, base = there if unlike else state, i + 1, runs.checkpoint_of(later[i + 1])
    return taken


def save_state(base: dict[str, Any], state: Any, path: Path) -> None:
    """Saves a checkpoint for the worker processes. It has the state's networks, statistics and counters, which are all
    that acting reads."""
    parts = {name: part for name, part in vars(state).items() if isinstance(part, int | float | Tensor)}
    parts |= {name: part.state_dict() for name, part in vars(state).items() if hasattr(part, "state_dict")}
    path.parent.mkdir(exist_ok=True)
    torch.save(base | parts, path)


def same(a: Any, b: Any) -> bool:
    """Returns whether two parts of a training state are equal bit for bit."""
    if isinstance(a, np.random.Generator):
        a, b = a.bit_generator.state, b.bit_generator.state
    elif hasattr(a, "__dict__") and not isinstance(a, Tensor):
        a, b = (x.state_dict() if isinstance(x, nn.Module) else vars(x) for x in (a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return len(a) == len(b) and all(map(same, a, b)) if isinstance(a, list) else np.array_equal(a, b)


def unlike_progress(numbers: dict[str, Any], logged: dict[str, str] | None) -> list[str] | None:
    """Returns the names of the logged numbers that the iteration does not repeat to the last digit, or None where
    nothing was logged. What was logged are texts that Python made from floats, so they have all their digits."""
    episodes = numbers["training_episodes"]
    mine = numbers["statistics"] | dict(global_step=numbers["global_step"], episodes=len(episodes))
    if episodes:
        mine |= dict(zip(("episodic_return", "episodic_length"), np.mean(episodes, axis=0).tolist()))
    return [name for name, x in mine.items() if logged.get(name) and logged[name] != str(x)] if logged else None


# Updates -------------------------------------------------------------------------------------------------------------


def take_iteration(script: ModuleType, settings: Any, state: Any) -> dict[str, Any]:
    """Takes the state through one iteration, in place, and measures the update on its own batch."""
    before = sampling.copied(state)
    lengths = [0 if worker.obs is None else len(worker.actions) for worker in state.workers]
    experience = sampling.roll_out(script, settings, state)
    batch = script.estimate_advantages(settings, state, experience)
    numbers = dict(statistics=script.update(settings, state, batch))
    with torch.no_grad():
        _, kls = sampling.compare_policies(state.policy, batch)
        values = [sampling.objective(script, settings, x.policy, batch).item() for x in (before, state)]
    pair = kls.argmax().item()
    step = episode_steps(experience, settings.num_steps, lengths)[pair]
    numbers |= dict(mean_kl=kls.mean().item(), max_kl=kls[pair].item(), max_kl_pair=pair, max_kl_step=step)
    numbers |= dict(promised=values[1] - values[0])
    if hasattr(state, "value"):
        numbers["explained_variance"] = [explained_variance(x.value, batch) for x in (before, state)]
    return numbers | dict(global_step=state.global_step, training_episodes=experience["episodes"])


def episode_steps(experience: dict[str, Any], num_steps: int, lengths: list[int]) -> list[int]:
    """Returns for each pair [B] which step of its episode it is, 1 being the first. `lengths` gives the steps
    that each worker's unfinished episode had before the rollout."""
    begins = {rows.start: length for rows, length in zip(sampling.segment_rows(experience, num_steps), lengths)}
    steps, step = [], 0
    for place, ended in enumerate(experience["ends"]):
        step = begins.get(place, step) + 1
        steps.append(step)
        step = 0 if ended else step
    return steps


@torch.no_grad()
def explained_variance(value: Callable, batch: dict[str, Tensor]) -> float:
    return (1 - (batch["value_targets"] - value(batch["obs"])).var() / batch["value_targets"].var()).item()


# Verdicts ------------------------------------------------------------------------------------------------------------

TRIFLE = 0.05  # of the reward before; with enough episodes, a fall of any size is significant


def returns_of(update: dict[str, Any]) -> list[np.ndarray]:
    """Lists the episodes' returns before and after the update, seed by seed."""
    return [np.array(update[when]["returns"]) for when in WHEN]


def find_changes(updates: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns what each update did to the reward [n], and what the normalizers did before all but the first [n - 1]."""
    looks, returns = 2 * len(updates) - 1, [returns_of(update) for update in updates]
    of_updates = [intervals.paired_change(before, after, looks) for before, after in returns]
    return of_updates, [intervals.paired_change(x[1], y[0], looks) for x, y in pairwise(returns)]


def fell(change: dict[str, Any]) -> bool:
    """Returns whether the reward fell, significantly and by more than a trifle."""
    return change["interval"][1] < 0 and -change["mean"] > TRIFLE * abs(change["before"])


def reward_text(change: dict[str, Any]) -> str:
    before, after = intervals.short(change["before"]), intervals.short(change["after"])
    return f"reward {before} -> {after}, by {intervals.text(change)}"


def verdicts(updates: list[dict[str, Any]], changes: list[dict], moves: list[dict]) -> list[str]:
    """Returns a line for each update, and each move of the normalizers before it, after which the reward fell, or says
    that there is none. The last line is for all of them together."""
    lines = []
    for update, change, move in zip(updates, changes, [None, *moves]):
        if move and fell(move):
            lines.append(f"before update {update['iteration']} the normalizers moved: {reward_text(move)}")
        if fell(change):
            where = f"(pair {update['max_kl_pair']}, step {update['max_kl_step']} of its episode)"
            kl = f"largest KL {update['max_kl']:.2g} in one state {where}, mean {update['mean_kl']:.2g}"
            text = f"promised {update['promised']:+.3g}, {reward_text(change)}; {kl}"
            lines.append(f"update {update['iteration']}: {text}")
    if not lines:
        visible = intervals.short(np.median([change["visible"] for change in changes]))
        text = f"no update lowered the reward significantly and by more than {intervals.percent(TRIFLE)}; with "
        text += f"{len(returns_of(updates[0])[0])} episodes, a fall of {visible} would be detected with probability 0.8"
        lines.append(text)
    together = intervals.paired_change(returns_of(updates[0])[0], returns_of(updates[-1])[1], 1)
    return [*lines, f"all {len(updates)}, and the normalizers between them, at 95 %: {reward_text(together)}"]


def fidelity(updates: list[dict[str, Any]]) -> list[str]:
    """Says, in lines, whether the replay did what training did."""
    lines = []
    for checkpoint, unlike in {x["next_checkpoint"]: x["unlike_checkpoint"] for x in updates}.items():
        text = f"differs from it in {', '.join(unlike)}" if unlike else "arrives at the same state, bit for bit"
        lines.append(f"iter_{checkpoint:06d}.pt: the replay {text}" if checkpoint else "no later checkpoint to compare")
    logged = [update for update in updates if update["unlike_progress"] is not None]
    unlike = [f"{name} of iteration {update['iteration']}" for update in logged for name in update["unlike_progress"]]
    text = f"differs from it in {unlike[0]}" if unlike else "repeats it, to the last digit"
    text += f", and after that in {len(unlike) - 1} more" if len(unlike) > 1 else ""
    return [*lines, f"progress.csv: the replay {text}" if logged else "progress.csv: no such iteration to compare"]


# Figure --------------------------------------------------------------------------------------------------------------


def draw_updates(algo: str, updates: list[dict[str, Any]], changes: list[dict[str, Any]], path: Path) -> None:
    """Draws the quantities below one another, against the iteration. Updates that lowered the reward are shaded."""
    x, style = np.array([update["iteration"] for update in updates]), plots.look(algo)
    panels = {"change\npromised": {"of the objective": [y["promised"] for y in updates]}}
    panels["KL (nats)"] = dict(largest=[y["max_kl"] for y in updates], mean=[y["mean_kl"] for y in updates])
    if "explained_variance" in updates[0]:
        both = zip(*[update["explained_variance"] for update in updates])
        panels["explained\nvariance"] = {f"{when} the fit": y for when, y in zip(WHEN, both)}
    heights = [2, 1.5] + [1] * len(panels)
    figure, axes = plots.new_figure(len(heights), 1, (8.4, sum(heights)), sharex=True, height_ratios=heights)
    (reward, change, *rest), points = axes[:, 0], style | dict(linestyle="", markersize=4, elinewidth=0.8)
    training = [(i, episode[0]) for i, update in zip(x, updates) for episode in update["training_episodes"]]
    reward.plot(*zip(*training or [(x[0], np.nan)]), ".", color="0.7", markersize=3, label="training's episodes")
    for k, when in enumerate(WHEN):
        means = [intervals.mean_of(returns_of(update)[k]) for update in updates]
        like = dict(fillstyle=plots.FILLS[1 - k], label=f"{when} the update, 95 %")
        plots.draw_points(reward, x + 0.3 * k - 0.15, means, points | like)
    points["label"] = f"after minus before, {100 - 5 / (2 * len(x) - 1):.4g} %"
    plots.draw_points(change, x, changes, points)
    change.axhline(0, color="black", linewidth=0.6)
    for axis, lines in zip(rest, panels.values()):
        for (name, y), line, fill in zip(lines.items(), plots.LINES, plots.FILLS):
            axis.plot(x, y, **style | dict(label=name, linestyle=line, fillstyle=fill))
    if max(panels["KL (nats)"]["largest"]) > 0:  # a line search may have rejected every step
        rest[1].set_yscale("log")
        plots.label_log_axis(rest[1], 30)
    for axis, text in zip(axes[:, 0], ["episode\nreturn", "change of\nreturn", *panels]):
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=7, frameon=False)
        for handle in axis.get_legend_handles_labels()[0]:
            handle.set_label("_")  # it is named beside the panel, so not above all of them as well
        for i in (i for i, y in zip(x, changes) if fell(y)):
            axis.axvspan(i - 0.5, i + 0.5, color="0.85", linewidth=0, zorder=0)
        axis.set_ylabel(text)
        axis.tick_params(labelsize=7)
    axes[-1, 0].set_xlabel("iteration")
    axes[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    figure.align_ylabels()
    plots.save_figure(figure, path)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    # The first and the last iteration are checked below, where their options have their names.
    args = runs.read_options(Args, argv, __doc__, first=-(10**9), last=-(10**9), episodes=2)
    if len(args.runs) != 1:
        runs.stop("name one run")
    if runs.read_config(args.runs[0])["algo"] == "sb3":
        runs.stop(f"{args.runs[0]}: SB3 saves neither random numbers nor environments, so no update can be taken again")
    [run] = runs.open_runs(args.runs, args.script)
    if args.first >= args.last:
        runs.stop(f"--from {args.first} --to {args.last}: there is no update between them")
    end = max([run[-1].iteration, *(1 + int(x["iteration"]) for x in runs.read_progress(run[0].run))])
    if args.last > end:
        runs.stop(f"--to {args.last}: training has reached iteration {end}")
    settings = dict(first=args.first, last=args.last, episodes=args.episodes)
    [row] = table.fill(args, "replay", measure, [(sources_between(run, args.first, args.last)[0], settings)])
    changes, moves = find_changes(row["updates"])
    print(*fidelity(row["updates"]), *verdicts(row["updates"], changes, moves), sep="\n")
    draw_updates(row["algo"], row["updates"], changes, runs.figure_path(args, "replay"))


if __name__ == "__main__":
    runs.run_program(main)
