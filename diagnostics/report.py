"""Is this run healthy? One page about a run, or about several side by side, answers: does its script compute what it
should, did it learn, is its batch large enough, do its steps do what they promise, does its critic predict, does it
still explore, what do its normalizers do, and how fast was it? The page is report.html, one self-contained file; the
same is printed as text, and verdicts.json holds the verdicts for programs.

    python diagnostics/report.py runs/Hopper-v5__ppo__seed1                        # a few minutes on two cores
    python diagnostics/report.py runs/Hopper-v5__ppo__seed1 --quick                # seconds
    python diagnostics/report.py runs/Hopper-v5__ppo__seed1 --watch                # while it trains
    python diagnostics/report.py runs/Hopper-v5__{ppo,trpo}__seed[12] --out results

What progress.csv and the checkpoints say is taken from there. The other diagnostics (evaluate, gradient, trust_region,
steps, value) measure the rest, at four checkpoints and from fewer samples than by default, and keep it in their
files in the same folder. So an interrupted report resumes where it stopped, and results from more samples are
preferred. --quick samples only a few segments, to check the script, and shows what these files contain.

Whether a run learned enough is told by what runs of ppo.py had earned after as many steps (reference.py), or the runs
that --like names.

The verdicts are functions of the numbers and are in verdicts.py, with their thresholds; the page states these with
their source. To work elsewhere, this script needs report.html.jinja, reference.json and what it imports beside it.
"""

import base64
import hashlib
import io
import json
import re
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import evaluate
import gradient
import jinja2
import matplotlib
import numpy as np
import reference
import steps
import torch
import trust_region
import value
import verdicts
from matplotlib.axes import Axes
from measuring import figures, intervals, kept, runs, sampling, yardsticks
from measuring.intervals import difference, short
from measuring.runs import COUNT, AtLeast, Source
from measuring.sampling import Sampler
from verdicts import NONE, NOT_MEASURED, RULES, UNCLEAR, Finding, with_ends

VERSION = 2  # raised whenever its own numbers change; since version 2 returns are not the script's own

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Args(runs.LabelledOptions):
    quick: bool = False
    """sample only a few segments, to check the script; use what is known already for the rest"""
    like: tuple[Path, ...] = ()
    """runs to compare with, in place of reference.json: whether this one learned enough"""
    watch: bool = False
    """make the quick report again at each new checkpoint, and print what changes, until the training ends"""
    checkpoints: Annotated[tuple[int, ...], AtLeast(0)] = ()
    """iterations to sample at; default: 0 150 300 450, or else the first, the last with a step, and two between them"""
    episodes: Annotated[int, AtLeast(1, most=COUNT)] = 40
    """episodes at each of these checkpoints, and at the last one"""
    gradient_pairs: int = 100_000
    """least number of pairs for the noise scale at each of them; 20 estimates, each from a training batch or more"""
    reward_pairs: int = 8_000
    """approximate number of pairs of the episodes before and after each of eight updates, together"""
    heldout_pairs: int = 10_240
    """fresh pairs that the step's length, the critic and the normalizers are measured on"""


UPDATES = 8  # at each checkpoint; a single one says little about the typical one
POLL = 2  # seconds between two looks for a new checkpoint

# Runs, and what is measured of them ----------------------------------------------------------------------------------


class Run(NamedTuple):
    name: str  # that of its folder
    style: dict[str, Any]  # how its lines are drawn; the label is that of its setting
    config: dict[str, Any]
    defaults: dict[str, Any]  # defaults of the script's arguments
    progress: dict[str, np.ndarray]  # the columns of progress.csv, each [iterations], nan where there is no number
    stds: dict[int, list[float]]  # the policy's, by iteration; empty where they depend on the state
    bounds: list[float] | None  # half the range of each action; None if unbounded or squashed
    has_critic: bool
    last: int = 0  # iteration of the newest checkpoint
    saved: dict[int, dict[str, Any]] = {}  # what its checkpoints hold, by iteration, as `summarize` returns it
    cells: dict[str, list[dict[str, Any]]] = {}  # by the file that holds them, one for each measured iteration
    checked: int | None = None  # iteration of the checkpoint on which the script was checked
    faults: dict[str, str] = {}  # what was checked of the script, with a text where it is wrong
    curve: list[float] = []  # what it earned, as reference.read_curve returns it
    reference: dict[str, Any] | None = None  # what others earned, as reference.curves returns it

    @property
    def batch_size(self) -> int:
        return runs.batch_size(self.config)

    @property
    def title(self) -> str:
        return f"{self.style['label']}, seed {self.config['args']['seed']}"

    def steps(self, cells: list[dict[str, Any]]) -> np.ndarray:
        """Returns the environment steps at the cells' checkpoints, nan where progress.csv ends before them. They are
        read, because REINFORCE takes more steps than the batch size says."""
        known = dict(enumerate([0, *self.progress["global_step"]]))
        return np.array([known.get(cell["iteration"], np.nan) for cell in cells])


def draw_fresh(args: Args, source: Source, sample: Sampler, _: Any) -> dict[str, Any]:
    """Samples fresh segments of the checkpoint's policy."""
    return sampling.collect(source, (args.seed, source.iteration, 0), args.heldout_pairs, sample)


def measure_fresh(source: Source, _: Sampler, __: Any, drawn: Callable) -> Iterator[dict[str, Any]]:
    """Yields what the networks of a checkpoint see and learn from on fresh segments, and what the critic explains of
    it."""
    data, (_, settings, state) = drawn(), sampling.checkpoint_state(source)
    numbers = dict(seen_std=data["obs"].std(0).tolist(), pairs=len(data["obs"]))
    for name, of_step in (("obs", np.abs(data["obs"]).max(1)), ("reward", np.abs(data["rewards"]))):
        if getattr(settings, f"{name}_clip", False):
            clipped = of_step >= getattr(settings, f"{name}_clip_range")
            numbers[f"clipped_{name}"] = intervals.ratio_of_sums(clipped, 1, data["ends"])
    if getattr(settings, "reward_scale", False):
        numbers["reward_std"] = float(state.reward_stats.std)
    if hasattr(state, "value"):
        with torch.no_grad():
            values = state.value(torch.from_numpy(data["obs"])).double().numpy()
        returns = sampling.discounted_returns(settings.gamma, state.value, data)
        errors = returns - values
        squares = (errors - errors.mean()) ** 2, (returns - returns.mean()) ** 2
        left = intervals.ratio_of_sums(*squares, data["ends"], in_logarithms=True)
        ends = left["interval"] and [1 - x for x in left["interval"][::-1]]
        numbers["explained_variance"] = dict(mean=1 - left["mean"], interval=ends, episodes=left["episodes"])
    yield numbers


def measure(args: Args, opened: list[list[Source]], out: Path) -> None:
    """Measures what is missing, one diagnostic after another, and keeps it in their files."""
    chosen = [source for sources in opened for source in runs.choose(sources, args.checkpoints)]
    for source in chosen if args.checkpoints else ():
        runs.with_step([source], (source.iteration,))
    played = list(dict.fromkeys([*chosen, *(sources[-1] for sources in opened)]))
    shared = {name: getattr(args, name) for name in ("runs", "script", "out", "jobs", "seed", "overwrite", "json")}
    of_gradient = dict(pairs=(), repeats=20, true_pairs=args.gradient_pairs * 19 // 20)
    of_updates = steps.Args(**shared, rewards=UPDATES, reward_pairs=args.reward_pairs)
    heldout = dict(heldout_pairs=args.heldout_pairs)
    parts = [
        ("evaluate", evaluate.Args(**shared, episodes=args.episodes), evaluate.episode_work, played),
        ("gradient", gradient.Args(**shared, **of_gradient), gradient.gradient_work, chosen),
        ("trust_region", trust_region.Args(**shared, **heldout), trust_region.step_work, chosen),
        ("updates", of_updates, steps.updates_work, chosen),
        ("value", value.Args(**shared, **heldout), value.value_work, [x for x in chosen if runs.has_critic(x)]),
        ("report", args, fresh_work, chosen),
    ]
    with sampling.sampler(args.jobs) as sample:  # all share the processes, which take seconds to start
        for number, (name, options, work, sources) in enumerate(parts, 1):
            print(f"{number} of {len(parts)}, {name}: ", end="", flush=True)
            unit = "episodes" if name == "evaluate" else "environment steps"
            works = [work(options, source) for source in sources]
            kept.measure_missing(options, out / f"{name}.jsonl", works, unit, sample)
            print("done")


def fresh_work(args: Args, source: Source) -> kept.Work:
    cells = [kept.identify(source, args.seed) | dict(fresh_pairs=args.heldout_pairs)]
    calls = partial(draw_fresh, args, source), partial(measure_fresh, source)
    return kept.Work(source, cells, args.heldout_pairs, *calls)


SIZES = dict(  # by file: the name of the size of its sample, and what it is
    evaluate=("episodes", "episodes"),
    gradient=("true_pairs", 'pairs of the "true" gradient'),
    trust_region=("heldout_pairs", "held-out pairs for the step's length"),
    updates=("reward_pairs", f"pairs or so for each of {UPDATES} updates"),
    value=("heldout_pairs", "held-out pairs for the critic's errors"),
    report=("fresh_pairs", "held-out pairs for the rest"),
)


def cells_of_run(folders: list[Path], sources: list[Source], batch_size: int) -> dict[str, list[dict[str, Any]]]:
    """Returns what the diagnostics' files in the folders hold about a run's checkpoints as they are now: for each
    iteration, the cell from the most samples. Updates count if they are from about as many pairs as in training. Stops
    at a damaged file."""
    found, run = {}, sources[0].run
    for name, (size, _) in SIZES.items():
        cells = []
        for folder in dict.fromkeys(folders):
            path = next((x for x in (folder / f"{name}.jsonl", folder / f"{name}.json") if x.is_file()), None)
            try:
                cells += kept.current_cells(kept.read_cells(path), run) if path else []
            except (TypeError, KeyError):
                runs.stop(f"{path} is damaged; move it away")
        cells = [x for x in cells if size in x and not x.get("deterministic")]
        cells = [x for x in cells if name != "updates" or 0.9 < x["step_pairs"] / batch_size < 1.1]
        found[name] = list(kept.largest_cells(cells, size).values())
    return found


COLUMNS = "global_step sps episodes episodic_return episodic_length entropy mean_kl explained_variance".split()


def read_columns(folder: Path) -> dict[str, np.ndarray]:
    """Returns the columns of progress.csv by iteration, nan where a row or a field is missing. A mean KL that was
    logged as nan is given as inf, since the step was not a short one."""
    rows = {int(row["iteration"]): row for row in runs.read_progress(folder)}
    if not rows or not {*rows[max(rows)], "explained_variance"}.issuperset(COLUMNS):  # REINFORCE has no critic
        runs.stop(f"{folder}: no progress.csv with an iteration, so nothing to report")
    found = {name: np.full(max(rows) + 1, np.nan) for name in {*rows[max(rows)], "explained_variance"}}
    for iteration, row in rows.items():
        for name in row:
            text = "inf" if (name, row[name]) == ("mean_kl", "nan") else row[name]
            found[name][iteration] = float(text or "nan")
    return found


def summarize(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Returns of a checkpoint the policy's standard deviations (None where they depend on the state), digests of the
    networks' parameters, the counts of running statistics and of the steps of each Adam, the standard deviation that
    rewards are divided by, and the state of the random generator."""
    log_std, networks = checkpoint["policy"].get("log_std"), {}
    for name in ("policy", "value"):
        tensors = [x for x in checkpoint.get(name, {}).values() if isinstance(x, torch.Tensor)]
        if tensors:
            networks[name] = hashlib.sha256(b"".join(x.double().numpy().tobytes() for x in tensors)).hexdigest()
    statistics = {k: x for k, x in checkpoint.items() if isinstance(x, dict) and {"count", "mean"} <= x.keys()}
    scale, of_rewards = None, statistics.get("reward_stats", {})
    if np.ndim(of_rewards.get("sum_sq", of_rewards.get("var", ()))) == 0:
        variance = of_rewards["var"] if "var" in of_rewards else of_rewards["sum_sq"] / max(1, of_rewards["count"] - 1)
        scale = float(variance) ** 0.5
    counts = {name: float(x["count"]) for name, x in statistics.items()}
    found = dict(networks=networks, counts=counts, scale=scale, generator=repr(checkpoint.get("rng")))
    adams = {x: checkpoint.get(f"{x}_adam") for x in ("policy", "value")}  # a list whose last is t, as in ppo.py
    counted = {x: adam[-1] for x, adam in adams.items() if isinstance(adam, list) and np.ndim(adam[-1]) == 0}
    found["adam"] = {x: float(t) for x, t in counted.items()}
    return found | dict(stds=None if log_std is None else log_std.exp().tolist())


def read_run(args: Args, sources: list[Source], style: dict[str, Any], out: Path) -> Run:
    folder, script = sources[0].run, runs.load_script(sources[0].script)
    config = runs.read_config(folder)
    saved = {source.iteration: summarize(runs.checkpoint_of(source)) for source in sources}
    stds = {i: x["stds"] for i, x in saved.items() if x["stds"] is not None}
    env = sampling.new_state(script, runs.read_args(script, config["args"])).workers[0].env
    space = env.unwrapped.action_space  # not that of a wrapper which clips or squashes actions
    bounded = space.is_bounded() and config["args"].get("bound_action") != "tanh"
    bounds, critic = ((space.high - space.low) / 2).tolist() if bounded else None, runs.has_critic(sources[0])
    run = Run(folder.name, style, config, vars(script.Args()), read_columns(folder), stds, bounds, critic)
    checked = [x for x in sources if x is not sources[-1] or runs.can_step(x)][-1:] or sources
    return run._replace(
        last=max(saved),
        saved=saved,
        cells=cells_of_run([out, folder / "figures"], sources, run.batch_size),
        checked=checked[-1].iteration,
        faults=yardsticks.check(checked[-1], args.seed),
        curve=reference.read_curve(folder)[1],
        reference=reference.curves(args.like) if args.like else reference.published(config["args"]["env_id"]),
    )


# Sections: what is found of a run, and drawn -------------------------------------------------------------------------


def find_completeness(run: Run) -> list[Finding]:
    settings, progress = run.config["args"], run.progress
    last, of_sb3 = int(progress["global_step"][-1]), run.config["algo"] == "sb3"
    between = run.batch_size * np.diff([*run.saved])[-1:].sum().item() if of_sb3 else 0  # as CheckpointCallback saves
    found = [verdicts.judge_completeness(last, runs.planned_steps(run.config), between)]
    found += verdicts.judge_generators({i: x["generator"] for i, x in run.saved.items()})
    if missing := np.isnan(progress["global_step"]).sum():
        text = "Rows of progress.csv are missing; everything below is about the other iterations."
        found.append(Finding(NONE, f"{missing:,} of {len(progress['global_step']):,} iterations", text))
    lengths = progress["episodic_length"][np.isfinite(progress["episodic_length"])][-10:]
    if len(lengths) and settings["num_steps"] < lengths.mean() and run.has_critic:
        text = f"Fresh segments are num_steps long: the first {settings['num_steps']} steps of an episode are all that"
        text += " the noise scale, the critic and the normalizers are measured on."
        found.append(Finding(NONE, f"its last episodes had {lengths.mean():.0f} steps", text))
    return found


def find_faults(run: Run) -> list[Finding]:
    if wrong := [text for text in run.faults.values() if text]:
        number = f"iteration {run.checked}; compare with algos/ppo.py"
        return [Finding(verdicts.BAD, number, text) for text in wrong]
    what = f"at iteration {run.checked}: {', '.join(run.faults)}"
    text = "No fault was found in what is listed, and nothing else about the script is checked here."
    if run.config["algo"] == "sb3":
        text += " The script is sb3.py, which repeats what Stable-Baselines3 does, and not the code that trained."
    return [Finding(verdicts.GOOD, what, text)]


def describe_run(run: Run) -> dict[str, str]:
    """Returns what there is to know about a run before its numbers."""
    defaults = {runs.flag(name, x) for name, x in run.defaults.items()}
    flags = [runs.flag(name, x) for name, x in runs.setting(run.config).items() if name in run.defaults]
    seconds = np.nansum(np.diff(run.progress["global_step"], prepend=0) / run.progress["sps"])
    timed = np.isfinite(run.progress["sps"]).any()
    sampled = {}
    for name, (size, text) in SIZES.items():
        for n in sorted({x[size] for x in run.cells[name]}):
            at = " ".join(str(x["iteration"]) for x in run.cells[name] if x[size] == n)
            sampled.setdefault(f"at iterations {at}", []).append(f"{n:,} {text}")
    algo = run.config["algo"]
    return {
        "made by": "PPO of Stable-Baselines3, imported by sb3.py" if algo == "sb3" else f"{algo}.py",
        "arguments that differ from the defaults": " ".join(f"--{x}" for x in flags if x not in defaults) or "none",
        "versions": ", ".join(f"{name} {x}" for name, x in run.config["versions"].items()),
        "steps": f"{run.progress['global_step'][-1]:,.0f} in {len(run.progress['sps']):,} iterations",
        "time": f"{seconds / 60:,.1f} minutes" if timed else "not logged",
        "sampled for this page": "; ".join(f"{at}: {', '.join(x)}" for at, x in sampled.items()) or "nothing",
    }


def find_learning(run: Run) -> list[Finding]:
    cells = run.cells["evaluate"]
    of_both_ends = len(cells) > 1 and (cells[0]["iteration"], cells[-1]["iteration"]) == (0, run.last)
    if of_both_ends and len(cells[0]["returns"]["all"]) > 1:
        first, *between, last = [np.array(x["returns"]["all"]) for x in cells]
        spread, fall = np.std(first, ddof=1).item(), None
        if between:
            best = max(range(len(between)), key=lambda i: between[i].mean())
            fall = difference(between[best], last, looks=len(between))
            fall |= dict(iteration=cells[best + 1]["iteration"], looks=len(between))
        learned = verdicts.judge_learning(difference(last, first), spread, fall, spread, len(last))
    else:
        learned = find_learning_curve(run)
    enough = find_enough(run)  # where that can be told, it does not matter that the episodes are too few
    told = learned.status == UNCLEAR and enough.status in (verdicts.GOOD, verdicts.CAUTION, verdicts.BAD)
    return [*([] if told else [learned]), enough, *find_agreement(run)]


def find_enough(run: Run) -> Finding:
    """Compares what the run logged with what others had logged after as many steps."""
    if run.reference is None:
        text = "Whether it learned enough cannot be told; `report.py RUN --like RUN ...` compares it with runs of "
        return Finding(UNCLEAR, "no reference runs for this environment", f"{text}yours.")
    names = reference.other_settings(run.reference, run.config)
    algo = run.reference["kind"].get("algo", "several algorithms")
    return verdicts.judge_enough(run.curve, run.reference, algo, names)


def find_agreement(run: Run) -> list[Finding]:
    """Compares what was evaluated at checkpoints with what training logged in the ten iterations around each."""
    evaluated, logged, lengths = [], [], []
    for x in run.cells["evaluate"]:
        returns, rows = x["returns"], slice(max(0, x["iteration"] - 5), x["iteration"] + 5)
        known = rows.start + np.flatnonzero(np.isfinite(run.progress["episodic_return"][rows]))
        logged.append(run.progress["episodic_return"][known])
        lengths.append(run.progress["episodic_length"][known])
        kind = dict(iteration=x["iteration"], episodes=len(returns["all"]), length=x["lengths"]["mean"])
        evaluated.append(dict(mean=returns["mean"], interval=returns["interval"], std=np.std(returns["all"])) | kind)
    return verdicts.judge_agreement(evaluated, logged, lengths)


def find_learning_curve(run: Run) -> Finding:
    """Judges learning where no episodes are measured, by what progress.csv says, ten iterations at a time."""
    returns, episodes = run.progress["episodic_return"], run.progress["episodes"]
    tens = np.flatnonzero(np.isfinite(returns))
    tens = tens[len(tens) % 10 :].reshape(-1, 10)
    if not np.isfinite(episodes[0]):
        known = "a run without logged episodes"
    elif episodes[0] < 10:  # the first iteration acts with the untrained policy
        known = f"{episodes[0]:.0f} untrained episodes"
    else:
        known = "fewer than ten iterations in which an episode ended"
    if not episodes[0] >= 10 or not len(tens):
        return Finding(UNCLEAR, f"{len(returns):,} iterations", f"Cannot tell from {known}.")
    gain = intervals.mean_of(returns[tens[-1]] - returns[0])
    best = tens[returns[tens].mean(1).argmax()]
    fall = difference(returns[best], returns[tens[-1]], looks=len(tens)) | dict(iteration=best[0], looks=len(tens))
    least = verdicts.PART * max(0, returns[best].mean() - returns[0])
    return verdicts.judge_learning(gain, 0.0, fall, least, int(episodes[tens[-1]].sum()))


def draw_learning(axis: Axes, run: Run) -> None:
    cells = run.cells["evaluate"]
    draw_progress(axis, run, "episodic_return")
    draw_sampled(axis, run, cells, [x["returns"] for x in cells])
    sampled = cells and cells[0]["iteration"] == 0
    untrained = cells[0]["returns"]["mean"] if sampled else run.progress["episodic_return"][0]
    draw_level(axis, untrained, "untrained", run)


def noise_scale(cell: dict[str, Any]) -> dict[str, Any]:
    return cell["noise_scale"][gradient.NETWORK]


def find_batch(run: Run) -> list[Finding]:
    if not run.cells["gradient"]:
        return [NOT_MEASURED]
    cell = middle(run.cells["gradient"], lambda x: noise_scale(x)["pairs"] or np.inf)
    return [verdicts.judge_batch(run.batch_size, noise_scale(cell), cell["iteration"])]


def draw_batch(axis: Axes, run: Run) -> None:
    """Draws the noise scale. Where its interval has no upper end, the bar extends to ten times the scale; where only
    the lower end is known, it is drawn as a triangle."""
    cells, numbers = [x for x in run.cells["gradient"] if noise_scale(x)["pairs"]], []
    for B, ends in ((noise_scale(x)["pairs"], noise_scale(x)["interval"]) for x in cells):
        numbers.append(dict(mean=B, interval=ends and [ends[0] or B, ends[1] or 10 * B]))
    draw_sampled(axis, run, cells, numbers, linestyle=run.style["linestyle"])
    beyond = [x for x in run.cells["gradient"] if not noise_scale(x)["pairs"]]
    low = [(noise_scale(x)["interval"] or [None])[0] for x in beyond]
    mark = run.style | dict(linestyle="none", marker="^", markersize=7, label=None)
    axis.plot(run.steps(beyond), [np.nan if x is None else x for x in low], **mark)
    if beyond:
        axis.plot([], [], "^", color=GREY, markersize=6, label="a lower bound only")
    axis.set_yscale("log")
    draw_level(axis, run.batch_size, "the batch", run)


def kl_bounds(run: Run) -> np.ndarray:
    """Returns the mean KL that the step of each iteration may have: TRPO's own bound, on its schedule, or the largest
    of IM's. The step from the newest checkpoint has one too, although training may not have taken it yet."""
    settings = run.config["args"]
    first = settings.get("max_kl") or verdicts.LARGEST_DELTA
    last = settings.get("max_kl_final") or first
    iterations = max(len(run.progress["mean_kl"]), run.last + 1)
    done = np.arange(iterations) / (runs.planned_steps(run.config) // run.batch_size)
    return first + done * (last - first)


def find_steps(run: Run) -> list[Finding]:
    heldout = [x["heldout"] | dict(iteration=x["iteration"]) for x in run.cells["trust_region"]]
    kls = [x | dict(mean=x["mean_kl"], interval=x["mean_kl_interval"]) for x in heldout]
    returns = run.progress["episodic_return"]
    lengths = verdicts.judge_lengths(run.progress["mean_kl"], kl_bounds(run), kls, returns)
    if clipped := [x for x in run.cells["trust_region"] if "max_ratio_allowed" in x]:
        # The clip may follow a schedule. Each ratio is a mean over parts of a batch's size, so it is typical of one.
        most = max(clipped, key=lambda x: x["heldout"]["max_ratio"] - x["max_ratio_allowed"])
        text = f"typical largest ratio in a batch of held-out pairs {short(most['heldout']['max_ratio'])}, at iteration"
        text = f"{lengths.number}; {text} {most['iteration']}, where the clip is at {short(most['max_ratio_allowed'])}"
        lengths = lengths._replace(number=text)
    gains = verdicts.judge_gains(run.cells["updates"]) if run.cells["updates"] else NOT_MEASURED
    return [lengths, gains, *find_motion(run, "policy", "policy")]


def find_motion(run: Run, name: str, text: str) -> list[Finding]:
    digests = {i: x["networks"][name] for i, x in run.saved.items() if name in x["networks"]}
    rates = run.progress.get(f"{name}_lr", np.full(len(run.progress["global_step"]), np.nan))
    taken = {i: x["adam"][name] for i, x in run.saved.items() if name in x["adam"]}
    expected = run.config["args"].get(f"{name}_epochs", 0) * run.config["args"].get("num_minibatches", 0)
    found = verdicts.judge_motion(text, digests, rates) + verdicts.judge_optimizer(text, taken, expected)
    return found + verdicts.judge_rates(text, rates)


def draw_lengths(axis: Axes, run: Run) -> None:
    cells = run.cells["trust_region"]
    heldout = [x["heldout"] for x in cells]
    draw_progress(axis, run, "mean_kl")
    draw_sampled(axis, run, cells, [dict(mean=x["mean_kl"], interval=x["mean_kl_interval"]) for x in heldout])
    axis.set_yscale("log")
    draw_level(axis, kl_bounds(run).max(), "bound", run)


def draw_gains(axis: Axes, run: Run) -> None:
    draw_sampled(axis, run, run.cells["updates"], [x["change"] for x in run.cells["updates"]])
    axis.axhline(0, **LEVEL)


def find_critic(run: Run) -> list[Finding]:
    if not run.has_critic:
        return [Finding(NONE, "", f"{run.config['algo']} has no value network, so there is nothing to judge.")]
    cells = [x for x in run.cells["report"] if "explained_variance" in x]
    explained, planned = run.progress["explained_variance"], runs.planned_steps(run.config) // run.batch_size
    losses = run.progress.get("value_loss", np.full(len(explained), np.nan))
    others = find_motion(run, "value", "value network")
    others += verdicts.judge_logged_critic(explained, losses, planned)
    if not cells:
        return [NOT_MEASURED, *others]
    cell = middle(cells, lambda x: -x["explained_variance"]["mean"])
    finding = verdicts.judge_critic(cell["explained_variance"], cell["iteration"])
    numbers, logged = [finding.number], run.progress["explained_variance"][cell["iteration"] :]
    if len(logged) and np.isfinite(logged[0]):
        numbers.append(f"training logged {short(logged[0])}, of targets that contain its own predictions")
    for x in run.cells["value"]:
        if x["iteration"] == cell["iteration"]:
            errors = {text: x[f"heldout_{name}"] for name, text in value.TARGETS.items()}
            numbers += [f"error against {text} {with_ends(error)}" for text, error in errors.items()]
    return [finding._replace(number="; ".join(numbers)), *others]


def draw_errors(axis: Axes, run: Run) -> None:
    cells = run.cells["value"]
    for (name, text), line in zip(value.TARGETS.items(), ("-", "--", ":")):
        draw_sampled(axis, run, cells, [x[f"heldout_{name}"] for x in cells], linestyle=line)
        axis.plot([], [], color=GREY, linestyle=line, label=text)
    axis.set_yscale("log")


def draw_explained(axis: Axes, run: Run) -> None:
    cells = [x for x in run.cells["report"] if "explained_variance" in x]
    if run.has_critic:
        draw_progress(axis, run, "explained_variance")
        draw_sampled(axis, run, cells, [x["explained_variance"] for x in cells])
    axis.set_ylim(-1, 1.05)
    axis.axhline(0, **LEVEL)


def find_exploration(run: Run) -> list[Finding]:
    logged = run.progress["entropy"][np.isfinite(run.progress["entropy"])]
    entropy = "its entropy was not logged"
    if len(logged):
        entropy = f"entropy {short(logged[0])} at the start, {short(logged[-1])} nats now"
    if not any(run.stds.values()):
        text = "It has no actions." if run.stds else "Its standard deviations depend on the state: see the entropy."
        return [Finding(NONE, entropy, text)]
    finding = verdicts.judge_exploration(run.stds, run.bounds)
    return [finding._replace(number=f"{finding.number}; {entropy}")]


def draw_stds(axis: Axes, run: Run) -> None:
    x = run.steps([dict(iteration=iteration) for iteration in run.stds])
    for of_action in zip(*run.stds.values()):
        axis.plot(x, of_action, **run.style | dict(marker="", linewidth=0.8, label=None))
    axis.set_ylim(bottom=0)
    for bound in dict.fromkeys(run.bounds or ()):
        draw_level(axis, verdicts.ALMOST_NONE * bound, "stopped", run)


def draw_entropy(axis: Axes, run: Run) -> None:
    draw_progress(axis, run, "entropy")


def find_normalizers(run: Run) -> list[Finding]:
    cells, shares = run.cells["report"], {}
    for name, key in (("observations", "clipped_obs"), ("rewards", "clipped_reward")):
        if found := [x[key] | dict(pairs=x["pairs"], looks=len(cells)) for x in cells if key in x]:
            shares[name] = max(found, key=lambda x: x["mean"])
    counts, texts = {}, dict(obs_stats="The statistics of observations", reward_stats="The statistics of rewards")
    for iteration, x in run.saved.items():
        for name, count in x["counts"].items():
            counts.setdefault(texts.get(name, f"The statistics {name}"), {})[iteration] = count
    scales = {i: x["scale"] for i, x in run.saved.items() if x["scale"] is not None}
    found = verdicts.judge_normalizers(shares, cells[-1]["seen_std"]) if cells else NOT_MEASURED
    return [found, *verdicts.judge_continuity(counts, scales)]


def draw_reward_scale(axis: Axes, run: Run) -> None:
    cells = [x for x in run.cells["report"] if "reward_std" in x]
    axis.plot(run.steps(cells), [x["reward_std"] for x in cells], **run.style)
    axis.set_ylim(bottom=0)


def draw_seen(axis: Axes, run: Run) -> None:
    cells, style = run.cells["report"], run.style | dict(markersize=2, linewidth=0.5, label=None)
    for of_dimension in zip(*[x["seen_std"] for x in cells]):
        axis.plot(run.steps(cells), of_dimension, **style)
    axis.set_ylim(bottom=0)
    axis.axhline(1, **LEVEL)


def find_speed(run: Run) -> list[Finding]:
    compiled = run.config["args"].get("compile", True) or not run.defaults.get("compile", True)  # REINFORCE never is
    return [verdicts.judge_speed(run.progress["sps"], compiled)]


def draw_speed(axis: Axes, run: Run) -> None:
    draw_progress(axis, run, "sps")
    axis.set_ylim(bottom=0)


class Section(NamedTuple):
    title: str
    find: Callable[[Run], list[Finding]]
    rules: str = ""
    panels: dict[str, Callable[[Axes, Run], None]] = {}


JUDGED_AT = " The median checkpoint after the first is judged."
LINES = " The line shows every iteration of training, the points what was sampled at checkpoints, with 95 % intervals."
PAIRED = f" The policies before and after each of {UPDATES} updates from fresh batches play with the same seeds. "
ERRORS = " Errors are the mean of |V - target| / |target| held out (CL Fig. 3): 1 is as large as the target."
SECTIONS = [
    Section("What was run", find_completeness),
    Section("Does the script compute what it should?", find_faults, RULES["faults"]),
    Section("Did it learn?", find_learning, RULES["learning"] + LINES, {"episode return": draw_learning}),
    Section("Is the batch large enough?", find_batch, RULES["batch"] + JUDGED_AT, {"noise scale (pairs)": draw_batch}),
    Section(
        "Do steps do what they promise?",
        find_steps,
        RULES["lengths"] + PAIRED + RULES["gains"] + LINES,
        {"mean KL (nats)": draw_lengths, "reward gained\nby a step": draw_gains},
    ),
    Section(
        "Does the critic predict?",
        find_critic,
        RULES["critic"] + JUDGED_AT + ERRORS + LINES,
        {"relative error": draw_errors, "explained variance": draw_explained},
    ),
    Section(
        "Is the policy still exploring?",
        find_exploration,
        RULES["exploration"],
        {"standard deviation\nof each action": draw_stds, "entropy (nats)": draw_entropy},
    ),
    Section(
        "What do the normalizers do?",
        find_normalizers,
        RULES["normalizers"],
        {"rewards are\ndivided by": draw_reward_scale, "std of each\nobservation": draw_seen},
    ),
    Section("How fast was it?", find_speed, RULES["speed"], {"steps a second": draw_speed}),
]


def middle(cells: list[dict[str, Any]], key: Callable) -> dict[str, Any]:
    """Returns the median of the cells by the key. If there are two in the middle, it is the one with the larger key.
    Only cells of trained policies count, if there are any."""
    trained = [x for x in cells if x["iteration"]] or cells
    return sorted(trained, key=key)[len(trained) // 2]


# Figures -------------------------------------------------------------------------------------------------------------

GREY = "0.3"
LEVEL = dict(color=GREY, linestyle=":", linewidth=0.9)


def draw_progress(axis: Axes, run: Run, name: str) -> None:
    """Draws a column of progress.csv over environment steps, averaged over each hundredth of the iterations."""
    found = []
    for rows in np.array_split(np.flatnonzero(np.isfinite(run.progress[name])), 100):
        if len(rows):
            found.append((run.progress["global_step"][rows].mean(), run.progress[name][rows].mean()))
    axis.plot(*np.reshape(found, (-1, 2)).T, **run.style | dict(marker="", linewidth=1))


def draw_sampled(axis: Axes, run: Run, cells: list[dict], numbers: list[dict[str, Any]], **style: Any) -> None:
    """Draws what was measured at the cells' checkpoints, with its intervals."""
    style = run.style | dict(linestyle="", markersize=4, capsize=2, zorder=3, label=None) | style
    figures.draw_points(axis, run.steps(cells), numbers, style)


def draw_level(axis: Axes, y: float, text: str, run: Run) -> None:
    """Draws a dotted line and names it, once, beside the panel, where nothing else is drawn."""
    axis.axhline(y, **LEVEL | dict(color=run.style["color"]))
    if not axis.texts:
        axis.text(1.01, y, text, transform=axis.get_yaxis_transform(), fontsize=7, va="center", color=GREY)


def draw(section: Section, shown: list[Run]) -> str:
    """Returns the section's figure as an SVG in a data URL. So there is nothing to load, and its text is outlines,
    which need no font."""
    n, several = len(section.panels), len({run.style["label"] for run in shown}) > 1
    figure, axes = figures.new_figure(n, 1, (4.4, 0.6 + 1.75 * n), sharex=True)
    for axis, (text, draw_panel) in zip(axes[:, 0], section.panels.items()):
        for run in shown:
            draw_panel(axis, run)
        if not any(len(line.get_xdata()) and line.get_color() != GREY for line in axis.lines):
            axis.text(0.5, 0.6, "not measured", transform=axis.transAxes, ha="center", color=GREY)
            axis.set_yticks([])
        axis.set_ylabel(text, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_yscale() == "log":
            figures.label_log_axis(axis)
    steps = max(run.progress["global_step"][-1] for run in shown)
    axes[-1, 0].set_xlim(-0.02 * steps, 1.02 * steps)
    axes[-1, 0].ticklabel_format(axis="x", scilimits=(0, 5))
    axes[-1, 0].set_xlabel("environment steps", fontsize=9)
    for run in shown:
        axes[0, 0].plot([], [], **run.style)
    named = [zip(*axis.get_legend_handles_labels()) for axis in figure.axes]
    lines = {text: line for pairs in named for line, text in pairs if several or line.get_color() == GREY}
    if lines:
        texts = [textwrap.fill(text, 60, break_on_hyphens=False) for text in lines]
        figure.legend(lines.values(), texts, loc="outside upper left", frameon=False, fontsize=7)
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "report"}):  # the same numbers give the same page
        figure.savefig(file, format="svg", metadata=dict(Date=None))
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()


# Page ----------------------------------------------------------------------------------------------------------------


def describe(found: list[Run]) -> dict[str, Any]:
    """Returns the page: the runs side by side, by setting, and what each section found about them."""
    labels = [run.style["label"] for run in found]
    ordered, sections = sorted(found, key=lambda run: labels.index(run.style["label"])), []
    for section in SECTIONS:
        found = [section.find(run) for run in ordered]
        statuses = [min((x.status for x in of_run), key=verdicts.WORST_FIRST.index) for of_run in found]
        measured = any(x.number or x.status != NONE for of_run in found for x in of_run)
        figure = draw(section, ordered) if section.panels and measured else None
        shown = dict(title=section.title, found=found, statuses=statuses, figure=figure, rules=section.rules)
        shown |= dict(panels=", ".join(section.panels).replace("\n", " "))
        sections.append(shown | dict(pooled=pooled(ordered) if section.find is find_learning else []))
    look = [dict(name=run.title, folder=run.name, color=run.style["color"]) for run in ordered]
    columns = [x | dict(facts=describe_run(run)) for x, run in zip(look, ordered)]
    return dict(env_id=ordered[0].config["args"]["env_id"], runs=columns, sections=sections)


def pooled(found: list[Run]) -> list[str]:
    """Says, for each setting that has several runs, what the return at the end is over the runs."""
    means = {}
    for run in found:
        for cell in run.cells["evaluate"]:
            if cell["iteration"] == run.last:
                means.setdefault(run.style["label"], []).append(cell["returns"]["mean"])
    several = {label: (with_ends(intervals.mean_of(x)), len(x)) for label, x in means.items() if len(x) > 1}
    return [f"{label}: return at the end {text}, over {n} runs" for label, (text, n) in several.items()]


def as_text(page: dict[str, Any]) -> str:
    """Returns the page as text, without its figures and rules."""
    lines = [f"{page['env_id']}: {'; '.join(run['name'] for run in page['runs'])}"]
    for number, section in enumerate(page["sections"]):
        lines += ["", section["title"], *(f"  {line}" for line in section["pooled"])]
        for run, findings in zip(page["runs"], section["found"]):
            lines += [f"  {run['name']}"] if len(page["runs"]) > 1 else []
            shown = [] if number else [f"{name}: {x}" for name, x in run["facts"].items()]
            shown += [f"[{x.status}] {x.verdict}" + f" ({x.number})" * bool(x.number) for x in findings]
            lines += [textwrap.fill(x, 110, initial_indent="    ", subsequent_indent="      ") for x in shown]
    return "\n".join(lines)


def as_findings(page: dict[str, Any]) -> dict[str, Any]:
    """Returns the page's findings for other programs: run, section, status, number and verdict of each."""
    found = []
    for section in page["sections"]:
        for run, findings in zip(page["runs"], section["found"]):
            found += [dict(run=run["folder"], section=section["title"], **x._asdict()) for x in findings]
    return dict(env_id=page["env_id"], findings=found)


# Main ----------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    args = runs.read_options(Args, argv, __doc__)
    torch.set_num_threads(1)  # with two, the updates that check the script take ten times as long
    opened, styles = runs.open_runs(args.runs, args.script), figures.run_styles(args.runs, args.labels)
    out = runs.output_folder(args.out, args.runs)
    stop_at_misfits(args)
    if args.watch:
        return watch(args, styles, out)
    for folder in args.runs:
        read_columns(folder)
    if not args.quick:
        measure(args, opened, out)
    print(as_text(write_page([read_run(args, sources, style, out) for sources, style in zip(opened, styles)], out)))
    print(f"\n{out / 'report.html'}")


def stop_at_misfits(args: Args) -> None:
    """Stops where options do not fit the runs or one another, before anything is measured."""
    quick = next((f"--{name}" for name in ("quick", "watch") if getattr(args, name)), "")
    for name in ("json", "checkpoints", "episodes", "gradient_pairs", "reward_pairs", "heldout_pairs"):
        if quick and getattr(args, name) != getattr(Args, name):
            runs.stop(f"--{name.replace('_', '-')}: has no meaning with {quick}, which measures nothing at checkpoints")
    env_id, seen = runs.read_config(args.runs[0])["args"]["env_id"], {}
    for folder in (*args.runs, *args.like):
        config = runs.read_config(folder)
        if (other := config["args"]["env_id"]) != env_id:
            runs.stop(f"--like {folder}: is a run on {other}, not on {env_id}")
        # A run twice would count as two. Agents of Stable-Baselines3 may not have saved the seed that tells them apart.
        key = folder.resolve() if config["algo"] == "sb3" else sampling.run_key(folder)
        if (same := seen.setdefault(key, folder)) is not folder:
            runs.stop(f"--like: {same} and {folder} are the same run")


def write_page(found: list[Run], out: Path) -> dict[str, Any]:
    page, loader = describe(found), jinja2.FileSystemLoader(Path(__file__).parent)
    template = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    (out / "verdicts.json").write_text(json.dumps(as_findings(page), indent=1))
    (out / "report.html").write_text(template.get_template("report.html.jinja").render(page))
    return page


def watch(args: Args, styles: list[dict[str, Any]], out: Path) -> None:
    """Makes the quick report again whenever a run has a new checkpoint, and prints each verdict that is new or has
    changed by more than its numbers. Ends when all runs have ended, or when nobody trains those that have not."""
    seen, told = None, set()
    while True:
        trained = [runs.in_use(folder) for folder in args.runs]  # before the look, or a last checkpoint might be missed
        opened = runs.open_runs(args.runs, args.script)
        newest = [sources[-1].iteration for sources in opened]
        if newest != seen and all(map(runs.read_progress, args.runs)):
            seen, told = newest, tell_changes(args, opened, styles, out, told)
        left = [folder for folder, sources in zip(args.runs, opened) if runs.can_step(sources[-1])]
        if not left or not any(trained):
            break
        time.sleep(POLL)
    print(f"\n{out / 'report.html'}")
    for folder in left:
        print(f"{folder}: nobody trains it any more; the command that trained it resumes it")


def tell_changes(
    args: Args, opened: list[list[Source]], styles: list[dict[str, Any]], out: Path, before: set[tuple]
) -> set[tuple]:
    """Writes the report and prints each verdict that was not told before. Returns those told by now."""
    findings = as_findings(
        write_page([read_run(args, sources, style, out) for sources, style in zip(opened, styles)], out)
    )
    told, at = set(), ", ".join(str(sources[-1].iteration) for sources in opened)
    for x in findings["findings"]:
        key = (x["run"], x["section"], x["status"], re.sub(r"[\d,.]+", "", x["verdict"]))
        told.add(key)
        if key not in before and x["verdict"] != NOT_MEASURED.verdict:
            print(f"iteration {at}, {x['run']}: {x['section']} [{x['status']}] {x['verdict']}", flush=True)
    return told


if __name__ == "__main__":
    runs.run_program(main)
