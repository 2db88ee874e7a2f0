"""Is this run all right? This is one half of the report; script_checks.py is the other. It judges what is there: the
log, the checkpoints, and the fresh segments of the script's half."""

import dataclasses
import math
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import checks
import lab
import numpy as np
import rewards
import script_checks
import torch
from checks import BAD, CANNOT_TELL, CAUTION, FACT, Verdict, percent, verdict
from recorded import FORCED, Script, has_step
from rewards import short, text

CHECKS: list[checks.Check] = []
check = checks.into(CHECKS)
SCRIPT = " ".join(["sampled", *(x.find.__name__ for x in script_checks.CHECKS)])  # what may explain how a run went


class Run:
    """A run on disk: its progress by iteration, nan where there is no number, and what its checkpoints hold."""

    def __init__(self, checkpoints: list[lab.Checkpoint], seed: int):
        self.seed, self.config = seed, lab.read_config(checkpoints[0].run)
        self.args, self.batch_size = self.config["args"], math.prod(lab.batch_shape(checkpoints[0].run))
        self.planned, rows = rewards.planned_steps(self.config), rewards.read_progress(checkpoints[0].run)
        iterations = [int(float(row["iteration"])) for row in rows]
        self.progress = {x: np.full(max(iterations) + 1, np.nan) for row in rows[:1] for x in row}
        for i, name, x in [(i, *item) for i, row in zip(iterations, rows) for item in row.items()]:
            # A mean KL that is not a number was no short step.
            self.progress[name][i] = float("inf" if (name, x) == ("mean_kl", "nan") else x or "nan")
        self.saved = {x.iteration: lab.load_script(x.script).load_checkpoint(x.path) for x in checkpoints}
        self.checked = ([x for x in checkpoints if has_step(x)] or checkpoints)[-1]
        self.iteration = self.checked.iteration

    @cached_property
    def script(self) -> Script:
        return Script(self.checked, self.seed)

    def logged(self, name: str) -> np.ndarray:
        return self.progress.get(name, np.full(len(self.progress["global_step"]), np.nan))


def given(config: dict[str, Any], script: Path) -> dict[str, Any]:
    """Returns the arguments of a run's setting that are not the defaults of its script."""
    plain = lambda x: [*x] if isinstance(x, tuple) else x  # as JSON keeps it
    defaults = {f.name: plain(f.default) for f in dataclasses.fields(lab.load_script(script).Args)}
    setting = [*rewards.setting(config).items()][1:]  # the first is the algorithm's name
    return {x: y for x, y in setting if x not in defaults or defaults[x] != y}


@check("it has run to its end")
def ended(run: Run) -> Verdict:
    """All planned steps are done. An agent of Stable-Baselines3 has ended where its next file would be beyond them."""
    steps = run.progress["global_step"]
    between = run.batch_size * int(np.diff([*run.saved])[-1:].sum()) if run.config["algo"] == "sb3" else 1
    lacks = f"; progress.csv lacks {np.isnan(steps).sum():,} of {len(steps):,} iterations" * bool(np.isnan(steps).any())
    number = f"{steps[-1]:,.0f} of {run.planned:,} steps{lacks}"
    tell = "It has not ended: everything here is about an unfinished run."
    return verdict(steps[-1] <= run.planned - max(1, between), tell, number, CAUTION)


@check("its resumptions repeated what was interrupted", "restore")
def resumed(run: Run) -> Verdict | None:
    """No checkpoint names an iteration in which the run was resumed with a new episode, because its environment did not
    repeat the unfinished one. Otherwise the same command, uninterrupted, gives another run."""
    last = run.saved[max(run.saved)]
    if "inexact_resumes" not in last:
        return None
    at = ", ".join(map(str, last["inexact_resumes"]))
    tell = f"It was resumed inexactly, in iteration {at}: uninterrupted, the same command gives another run."
    return verdict(at, tell, f"{len(run.saved)} checkpoints", CAUTION)


@check("its natural gradient steps are solved and taken", "conjugate_gradient, line_search", after=SCRIPT)
def solved(run: Run) -> Verdict | None:
    """The line search accepts a step in half of the iterations or more. In a tenth of them or more, conjugate gradient
    leaves a residual below half of the gradient: healthy runs of trpo.py, with no more than its ten steps, have medians
    of 0.3 to 0.4."""
    residual, taken = run.logged("cg_residual"), run.logged("line_search_step")
    if not np.isfinite(taken).any():
        return None
    refused = f"{np.sum(taken == 0):,} of {len(taken):,} steps refused"
    number = f"residual {short(np.nanmedian(residual))} (median), {refused}"
    if np.nanmedian(taken) == 0:
        return Verdict(BAD, "Its line search refuses most steps.", number)
    return verdict(np.nanquantile(residual, 0.1) >= 0.5, "Conjugate gradient hardly solves.", number, CAUTION)


@check("every part of its state goes on", "train, update, rollout")
def goes_on(run: Run) -> Verdict:
    """From checkpoint to checkpoint running statistics take in samples, the random generator has a new state and Adam's
    moments and count of steps change, and no parameter of a network stands still for ten iterations (a line search may
    refuse some steps). In a folder of RL Baselines3 Zoo all agents have the statistics of the last one, so theirs
    cannot be told."""
    wrong, tested, other_moment = [], [], []
    if len(run.saved) < 2:
        return Verdict(CANNOT_TELL, "Whether its state goes on cannot be told from a single checkpoint.")
    for name, part in run.saved[max(run.saved)].items():
        at = {i: x[name] for i, x in run.saved.items() if name in x}
        if name == "rng":
            known = list(at.values())  # SB3 saves none, so all of its are alike
            again = [k for n, k in enumerate(at) if at[k] in known[:n] and any(x != known[0] for x in known)]
            found = [f"the random generator's state of iteration {k} has been there before" for k in again]
        elif name in ("policy", "value"):
            later = {i: [k for k in at if k >= i + 10][:1] for i in at}
            still = [(x, i, k) for x in part for i in at for k in later[i] if torch.equal(at[i][x], at[k][x])]
            found = [f"{x} of the {name} network stood still from iteration {i} to {k}" for x, i, k in still]
        elif isinstance(part, dict) and {"count", "mean"} <= part.keys() and part["count"] > 1:
            counts = [(i, k, at[i]["count"], at[k]["count"]) for i, k in pairwise(run.saved)]
            bad = [x for x in counts if x[3] <= x[2] and run.args.get("norm_training", True)]
            if bad and run.config["algo"] == "sb3":
                other_moment.append(name)
                continue
            found = [f"{name} had seen {n:,.0f} samples by iteration {i} and {m:,.0f} by {k}" for i, k, n, m in bad]
        elif name.endswith("_adam"):
            same = [(i, k) for i, k in pairwise(run.saved) for x, y in zip(at[i], at[k]) if torch.equal(x, y)]
            found = [f"a part of {name} is the same in iterations {i} and {k}" for i, k in same]
        else:
            continue
        tested, wrong = [*tested, name], wrong + found[:1]
    number = f"{', '.join(tested)} in {len(run.saved)} checkpoints"
    if other_moment and not wrong:
        text = f"Whether {' and '.join(other_moment)} go on cannot be told: some are of another moment than the agent."
        return Verdict(CANNOT_TELL, text, number)
    return verdict(wrong, f"Something does not go on: {'; '.join(wrong)}.", number)


@check("it learned", after=SCRIPT)
def learned(run: Run) -> Verdict:
    """By progress.csv the last ten iterations have a higher return than the first that together have ten episodes
    (Welch's t interval; a single first one counts as exact), and no lower one than the best ten between, by more than
    a quarter of what was gained (corrected for the number of looks). Whether that is much, it does not say."""
    returns, known = run.logged("episodic_return"), np.flatnonzero(np.isfinite(run.logged("episodic_return")))
    early = known[: int((np.cumsum(run.progress["episodes"][known]) < 10).sum()) + 1]
    tens = known[len(known) % 10 :].reshape(-1, 10)
    if len(known) < 10 + len(early):
        many = f"in {len(known):,} iterations an episode ended, and {10 + len(early)} are needed"
        return Verdict(CANNOT_TELL, "The log is too short to tell whether it learned.", many)
    first, last, best = returns[early], returns[tens[-1]], max(tens, key=lambda rows: returns[rows].mean())
    gain = checks.difference(last, first) if len(early) > 1 else lab.mean_of(last - first)
    fall = checks.difference(returns[best], last, looks=len(tens))
    number = f"mean return {short(first.mean())} until iteration {early[-1]} and {short(last.mean())} in the last ten: "
    number += f"a gain of {text(gain)}"
    if gain["interval"][1] <= 0:
        where = "below where" if gain["interval"][1] < 0 else "where"
        return Verdict(BAD, f"It ended {where} it began: if no other check says why, train another seed.", number)
    if fall["interval"][0] > (returns[best].mean() - first.mean()) / 4:
        number += f", and a fall of {text(fall)} from that of iterations {best[0]} to {best[-1]}"
        return Verdict(CAUTION, "It was better before: `evaluate.py RUN` shows when.", number)
    if gain["interval"][0] <= 0:
        return Verdict(CANNOT_TELL, "Whether it learned cannot be told: the interval of its gain contains 0.", number)
    return Verdict(FACT, "It learned something.", number)


def rate_of(run: Run) -> str:
    """Names the option that the length of a run's steps depends on."""
    return "learning_rate" if run.config["algo"] == "sb3" else "--max-kl" if "max_kl" in run.args else "--policy-lr"


@check("its steps are short", after=SCRIPT)
def lengths(run: Run) -> Verdict:
    """The mean KL on the training batch is above its bound in at most 5 % of the iterations, and in none ten times
    above it with lower returns in the five after it than in the six to it. The bound is TRPO's own, on its schedule, or
    0.13 nats, the largest in the tables of "Implementation Matters"."""
    kls, returns = run.logged("mean_kl"), run.logged("episodic_return")
    if np.isnan(kls).all():
        return Verdict(CANNOT_TELL, "No mean KL was logged.")
    first, n = run.args.get("max_kl") or 0.13, max(len(kls), max(run.saved) + 1)
    bound = first + np.arange(n) / (run.planned // run.batch_size) * ((run.args.get("max_kl_final") or first) - first)
    long = np.flatnonzero(kls > 1.001 * bound[: len(kls)])  # a line search accepts what rounding puts onto the bound
    number = f"mean KL {short(np.nanmedian(kls))} (median), above {short(bound[0])} nats in {len(long):,} iterations"
    if len(long) > 0.05 * len(kls):
        tell = f"Steps go too far, first in iteration {long[0]}: try a smaller {rate_of(run)}."
        return Verdict(BAD, tell, number)
    for i in long[kls[long] > 10 * bound[long]]:
        before, after = (np.nanmedian([*returns[a:b], np.nan]) for a, b in ((max(0, i - 5), i + 1), (i + 1, i + 6)))
        if not after >= before:
            fell = ", and returns fell" if after < before else ""  # no episode may have ended after it
            tell = f"Iteration {i} went much too far{fell}: try a smaller {rate_of(run)}."
            return Verdict(BAD if fell else CAUTION, tell, f"mean KL {short(kls[i])} nats in iteration {i}")
    return verdict(False, "", number)


@check("it explores", after=SCRIPT)
def explores(run: Run) -> Verdict | None:
    """Stopped: a standard deviation was 5 % of half its action's range or more at the first checkpoint and is below
    now. Small from the start: rescale the actions. Grown: it is 1.5 times what it was at first. Where the range is not
    finite, empty, above 1e30 or squashed, 5 % of the first standard deviation count."""
    if any("log_std" not in x["policy"] for x in run.saved.values()):
        return Verdict(CANNOT_TELL, "Whether it explores is not judged: its policy has no log_std.")
    if len(run.saved) < 2:
        return Verdict(CANNOT_TELL, "Whether it explores cannot be told from a single checkpoint.")
    stds = np.array([x["policy"]["log_std"].double().exp().tolist() for x in run.saved.values()])
    low, high = (x.astype(float) for x in (run.script.space.low, run.script.space.high))
    ranged = (high > low).all() and np.abs([low, high]).max() < 1e30 and run.args.get("bound_action") != "tanh"
    shares = stds / ((high / 2 - low / 2) if ranged else stds[0])
    first, last = shares[0], shares[-1]
    number = f"standard deviations {short(first.min())} to {short(first.max())} of "
    number += f"{'half the range' if ranged else 'the first'} at first, {short(last.min())} to {short(last.max())} now"
    stopped = (last < 0.05) & (first >= 0.05)
    if stopped.any():
        since = list(run.saved)[int((shares[:, stopped] >= 0.05).any(1).sum())]
        tell = f"By iteration {since} it has stopped exploring in {stopped.sum()} of {len(last)} actions"
        coefficient = "ent_coef" if run.config["algo"] == "sb3" else "--entropy-coef"
        return Verdict(BAD if stopped.all() else CAUTION, f"{tell}: try a positive {coefficient}.", number)
    if 0 in run.saved and (first < 0.05).any():
        return Verdict(CAUTION, "Its noise was a small part of the range from the start: rescale the actions.", number)
    bonus = "entropy bonus or " if run.args.get("entropy_coef", 0) > 0 else ""
    tell = f"Its noise has grown: if that is not meant, try a smaller {bonus}{rate_of(run)}."
    return verdict((stds[-1] > 1.5 * stds[0]).any(), tell, number, CAUTION)


@check("its normalizers let through what matters", "normalize_obs, scale_reward", after=SCRIPT)
def normalizers(run: Run) -> Verdict | None:
    """No observation that varies has a standard deviation below 0.01, as the networks see it, for today's policy and
    for an untrained one: then the statistics hold an outlier. (It varies if its own standard deviation is above 1e-6;
    Humanoid has masses that vary by rounding alone.) Clips change at most 1 % of the numbers in the observations, and
    of the rewards, of fresh segments (t interval over episodes)."""
    s, told, shares = run.script, [], {}
    natural = np.arange(len(s.first[0]["obs"])) % s.steps > max(FORCED)  # the rows after the last end that was made
    data = {x: y[natural] for x, y in s.first[0].items() if x != "episodes"}
    if known := s.statistics(1):
        spreads = s.first[1]["obs"][natural], s.new[3]["obs"]  # today's policy's and an untrained one's
        spread = np.array([x.std(0) for x in spreads])
        seen = (spread / (known.std + 1e-8))[:, (spread > 1e-6).all(0)]
        today, untrained = (short(x.min()) for x in seen)
        told = [f"the least standard deviation of an observation is {today}, and an untrained policy's {untrained}"]
        if (seen.max(0) < 0.01).any():
            tell = "The statistics of observations hold an outlier: the networks hardly see them vary."
            return Verdict(BAD, tell, told[0])
    for name, numbers in dict(obs=data["obs"], reward=data["rewards"][:, None]).items():
        if s.option(f"{name}_clip"):
            clipped = (np.abs(numbers) >= getattr(s.wide, f"{name}_clip_range")).mean(1)
            shares[name] = checks.share_of_rows(clipped, data["ends"])
            told.append(f"{name} clipped in {text(shares[name], percent)} of {numbers.size:,} numbers")
    if many := [name for name, x in shares.items() if x["interval"] and x["interval"][0] > 0.01]:
        sb3 = run.config["algo"] == "sb3"
        larger = f"clip_{many[0]} of VecNormalize" if sb3 else f"--{many[0]}-clip-range"
        return Verdict(BAD, f"Clipping changes many: try a larger {larger}.", "; ".join(told))
    unclear = any(not x["interval"] or x["interval"][1] > 0.01 for x in shares.values())
    tell = "There are too few episodes to tell whether clipping changes many."
    return verdict(unclear, tell, "; ".join(told), CANNOT_TELL) if told else None
