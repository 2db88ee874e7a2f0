"""What report.py says about numbers. A verdict is a function of them and of a threshold. RULES states the threshold as
the page shows it, with its source: a paper, or "ours". A verdict claims no more than the 95 % interval of its number
supports: where the interval contains the threshold, the verdict is "cannot tell". Numbers have the same form as
everywhere, dict(mean=..., interval=[low, high])."""

import math
from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from measuring.intervals import percent, short
from scipy import stats

GOOD, CAUTION, BAD, UNCLEAR, NONE = "good", "caution", "bad", "cannot tell", "no verdict"
WORST_FIRST = [BAD, CAUTION, UNCLEAR, GOOD, NONE]


class Finding(NamedTuple):
    status: str
    number: str
    verdict: str


NOT_MEASURED = Finding(NONE, "", "Not measured yet; without --quick it is.")

FAR_TOO_SMALL = 100  # batches in a noise scale
LARGEST_DELTA = 0.13  # nats
TOO_OFTEN = 0.05  # share of the iterations
FAR_BEYOND = 10  # times the bound
MOST, LITTLE = 0.5, 0.05  # shares of the variance; the lowest interval of 24 healthy critics reaches 0.07
PART = 0.25  # share of what was gained
ALMOST_NONE, GROWN = 0.05, 1.5  # share of half an action's range, multiple of the first standard deviation
CLIPPED = 0.01  # share of the steps
GAP = 0.5  # share of the larger return
STEPS, BELOW = 20_480, 0.01  # between the points of reference curves, probability
TRIFLE = 0.05  # share of the median gain; in a solved environment all ten runs may have the same return
REFUSED = 10  # iterations that may have had no step
LATE, JUMPED = 0.25, 10  # share of the training, multiple of the scale
HIGH, LOW, SHRUNK = 0.5, 0.25, 0.1  # two explained variances, share of the first value loss

RULES = dict(
    faults="Judged on fresh segments, by two updates from the newest checkpoint with a step, and by the first eight "
    "steps of a new run, with code that is not the script's. Noise: standard normal within 6 standard errors, another "
    "one in each segment, and that of the policy as it is now. Rewards: the environment's times one factor. Episodes: "
    "they do not all begin in the same state, the observation after a step is that of the next row, and a time limit, "
    "of which each segment gets one, is no terminal state unless the arguments say so. Advantages and value targets "
    "(at lambda 1): equal to the sums that define them, row by row. Objective and value loss: before an update, their "
    "gradients have a cosine of 0.99 or more with the policy gradient of the advantages and with the gradient of the "
    "squared error. Clip of the ratio: where a fifth of the ratios or more are outside, a cosine of 0.99 or more with "
    "the gradient of PPO's clipped surrogate. Shuffling: an update depends on the random generator. Update: it raises "
    "the objective on its own batch, and lowers the squared error. Adam: the first steps end within a hundredth of "
    "their length of Adam's (all ours).",
    learning="Learned: the last policy's mean return is above the untrained one's by more than the standard deviation "
    "of the untrained one's episodes (ours; Welch's t-interval). Fallen: it is below that of the best checkpoint "
    "between by more than as much (corrected for their number). Where no episodes are measured: the last 10 iterations "
    "of progress.csv against its first, which is taken as exact, and any gain counts; fallen, where they are below the "
    f"best ten iterations by more than {100 * PART:g} % of what these had gained. Enough: what progress.csv logged in "
    f"the last {STEPS:,} steps is not below that of every reference run after as many steps. Too little: it is below "
    f"by more than {100 * TRIFLE:g} % of their median gain, and below the level that one more run of their kind falls "
    f"below with a probability of {100 * BELOW:g} %, if the logarithms of their gains are normal (ours). Reference "
    "runs are of ppo.py with its defaults, or those of --like. The planned length is a setting, too: a short run, "
    "whose learning rates decay sooner, may have learned less. Not as logged: the evaluated return and its interval "
    "lie outside all returns that training logged in the ten iterations around the checkpoint, by more than "
    f"{100 * GAP:g} % of the larger one and by more than the episodes' standard deviation (ours; in 56 comparisons of "
    "healthy runs they lay outside by at most 3 %). Rollouts that are shorter than an episode log only the short ones; "
    "where these were shorter than those evaluated, logged returns are also scaled to their length.",
    batch="Large enough: the noise scale or more, where an estimate is as much signal as noise (McCandlish et al. "
    f"2018). Less is usual where agents learn (CL Fig. 2), so it gets no verdict; less than 1/{FAR_TOO_SMALL} is far "
    "too small (ours).",
    lengths=f"Short enough: TRPO's own bound on the mean KL; of other algorithms {LARGEST_DELTA} nats, the largest "
    f"bound in IM's tables of TRPO's settings. Too long: more than {100 * TOO_OFTEN:g} % of the iterations exceed it, "
    f"or one of them exceeds {FAR_BEYOND} times as much, and the median return of the five after it is below that of "
    "the six to it (ours). What is not finite exceeds both. Adam: from checkpoint to checkpoint it takes steps, and no "
    "fewer than epochs times minibatches an iteration. Its learning rate is not 0 before the last iteration (ours).",
    gains="Raise or lower the reward: the t interval of the mean change over updates, corrected for the number of "
    "checkpoints, lies on one side of 0. Good: they raise it at half of the checkpoints or more, and lower it at none "
    "(ours).",
    critic="Explained variance of the discounted returns of fresh segments: at 0 the critic is no better than a "
    f"constant, by definition; above {MOST} it predicts most of what differs. In between there is no verdict, unless "
    f"the interval ends at {LITTLE} or below (ours). Where an episode is cut off, by a time limit or the segment's "
    "end, its returns continue with the critic's own value, as in training. As logged: its median over ten iterations "
    f"fell from above {HIGH} to below {LOW}, stayed there to the end, for twenty iterations or more, and the value "
    "loss did not fall; or it was not above 0 in the second half of the training, where the loss was "
    f"{100 * SHRUNK:g} % of the first or more (both ours). Where returns become alike, as in a solved environment, the "
    "loss falls, and nothing is said.",
    exploration=f"Stopped: every action's standard deviation is below {ALMOST_NONE} of half the action's range. Grown: "
    f"one is above {GROWN} times what it was at first (both ours). Never changed: all are exactly as at first.",
    normalizers=f"Many: more than {100 * CLIPPED:g} % of the steps, at the checkpoint with the most (ours). A "
    "normalizer aims at a standard deviation of 1 over all of training, not of today's policy. Reset: a checkpoint's "
    "statistics have seen fewer samples than those of the checkpoint before. Stopped: at the last checkpoints they "
    f"have seen as many as at one before. Jumped: after the first {100 * LATE:g} % of the iterations, what rewards are "
    f"divided by changed {JUMPED} times or more from one checkpoint to the next (ours).",
    speed="Uneven: the 10th percentile over iterations is below half of the median (ours). The first iteration, which "
    "compiles, is left out.",
)


def with_ends(numbers: dict[str, Any], text: Callable = short) -> str:
    """Returns the mean and the interval as a text."""
    ends = numbers["interval"]
    return text(numbers["mean"]) + (f" [{text(ends[0])}, {text(ends[1])}]" if ends else " (no interval)")


def widened(numbers: dict[str, Any], n: int, looks: int) -> dict[str, Any]:
    """Takes a mean whose 95 % t interval is from n values, and returns it with the interval that it has as one of
    several looks (Bonferroni)."""
    if numbers["interval"] is None:
        return numbers
    factor = (stats.t.ppf(1 - 0.025 / looks, n - 1) / stats.t.ppf(0.975, n - 1)).item()
    mean = numbers["mean"]
    return numbers | dict(interval=[mean + (end - mean) * factor for end in numbers["interval"]])


def judge_completeness(done: int, planned: int, between: int = 0) -> Finding:
    """Judges by the steps that are done. An agent that was saved every `between` steps, and perhaps never at its very
    end, has ended where its next file would be beyond it."""
    number = f"{done:,} of {planned:,} steps"
    if planned - between < done < planned:
        return Finding(NONE, number, "It has run to its end, or to the last file before it.")
    if done < planned:
        return Finding(CAUTION, number, "It has not ended: everything below describes an unfinished run.")
    return Finding(NONE, number, "It has run to its end.")  # which says nothing good about a spoilt run


CAUSE = " The other sections may show why; if all is well there, train another seed."
POWER = stats.norm.ppf(0.8).item()  # standard errors


def judge_learning(
    gain: dict[str, Any], spread: float, fall: dict[str, Any] | None, least: float, episodes: int
) -> Finding:
    """Judges what the run gained over its untrained policy, whose episodes scatter with the standard deviation
    `spread`, and what it has lost since it was best, which counts only if it is more than `least`."""
    number = f"return {with_ends(gain)} above the untrained policy's, from {episodes:,} episodes"
    low, high = gain["interval"] or (-math.inf, math.inf)
    if low > spread:
        status, text = NONE, "It learned something."  # whether that is much, judge_enough says
    elif high < -spread:
        status, text = BAD, f"It ended below where it began.{CAUSE}"
    elif high <= spread:
        gained = f"it gained less than {short(spread)}" if spread else "its return is the same"
        status, text = BAD, f"It ended as it began: {gained}.{CAUSE}"
    else:
        status, text = UNCLEAR, f"Cannot tell from {episodes:,} episodes whether it learned."
    if fall and fall["interval"] and fall["interval"][0] > least:
        status = status if status == BAD else CAUTION
        text += f" It was better at iteration {fall['iteration']}, and has fallen by {with_ends(fall)}."
        text += " `evaluate.py RUN` shows when."
    elif fall and fall["interval"] and low > 0:
        half = (fall["interval"][1] - fall["interval"][0]) / 2
        seen = max(0, least) + half * (1 + POWER / stats.norm.ppf(1 - 0.025 / fall["looks"]))
        if seen < gain["mean"]:
            share = percent(seen / gain["mean"])
            number += f"; a fall by {share} of that from an earlier height would have been seen in 4 of 5 cases"
    return Finding(status, number, text)


def judge_enough(curve: list[float], reference: dict[str, Any], algo: str, differing: list[str]) -> Finding:
    """Judges a curve of returns [n] by those of reference runs, which are of the algorithm `algo`, after as many steps;
    `differing` are the arguments in which the run differs from them. What runs gain over their untrained policies
    differs by factors, so it is its logarithm that is compared with the t interval of one more run."""
    mine, others = np.array(curve, float), np.array(reference["returns"], float)
    n, size = len(others), min(len(mine), others.shape[1])
    mine, others, untrained = mine[:size], others[:, :size], np.mean(reference["untrained"])
    known = np.flatnonzero(np.isfinite(mine) & np.isfinite(others).all(0))
    if not len(known):
        return Finding(UNCLEAR, "no episodes after as many steps", "Whether it learned enough cannot be told.")
    at, least, gains = known[-1], others.min(0), others[:, known[-1]] - untrained
    number = f"{short(mine[at])} after {STEPS * (at + 1):,} steps; {n} reference runs, of {algo}, "
    number += f"{short(least[at])} to {short(others[:, at].max())}"
    if n < 2 or gains.min() <= 0:
        return Finding(UNCLEAR, number, "Whether it learned enough cannot be told from these reference runs.")
    logs, errors = np.log(gains), np.std(np.log(gains), ddof=1) * (1 + 1 / n) ** 0.5
    low = untrained + np.exp(logs.mean() + stats.t.ppf(BELOW, n - 1) * errors)
    seen = min(low, least[at] - TRIFLE * np.median(gains))
    if mine[at] >= least[at] and seen - untrained > PART * np.median(gains):
        text = f"It learned as much as the reference runs. Less than {short(seen)} would have been named."
        return Finding(GOOD, number, text)
    if mine[at] >= least[at]:
        text = "It learned as much as the reference runs, but whether that is enough cannot be told, so much do they "
        return Finding(UNCLEAR, number, f"{text}differ: only less than {short(seen)} would have been named.")
    since = STEPS * (at + 1 - np.argmin(np.append((mine < least)[at::-1], False)))
    text = f"It learned less than each of {n} reference runs had after as many steps"
    if "algo" in differing:
        return Finding(UNCLEAR, number, f"{text}; an agent of another kind may learn more slowly.")
    if mine[at] >= seen:
        return Finding(UNCLEAR, number, f"{text}, as one of {n + 1} healthy runs does.")
    text += f", since step {since:,}."
    if differing:
        names = ", ".join(differing[:3]) + ", ..." * (len(differing) > 3)
        return Finding(CAUTION, number, f"{text} Its settings differ ({names}), which may be why.")
    text += " Its settings are theirs: compare its script with theirs, or train another seed."
    return Finding(CAUTION, number, text)  # and no more, since ten runs do not show how rare this is


def judge_agreement(evaluated: list[dict[str, Any]], logged: list[np.ndarray], lengths: list[np.ndarray]) -> list:
    """Judges whether the returns at checkpoints agree with those that training logged around each of them [n], whose
    episodes had these mean lengths [n]. What was evaluated is the mean, its interval, std, episodes, length and
    iteration. Returns no finding, or one about the first checkpoint where they do not agree."""
    for x, returns, of_length in zip(evaluated, logged, lengths):
        if len(returns) < 3 or x["interval"] is None:
            continue
        # A rollout that is shorter than an episode logs the short ones alone, whose returns are others.
        alike = np.append(returns, returns * np.maximum(1, x["length"] / of_length))
        (low, high), (least, most) = widened(x, x["episodes"], len(evaluated))["interval"], (alike.min(), alike.max())
        nearest = most if low > most else least
        if max(low - most, least - high) > max(GAP * max(abs(x["mean"]), abs(nearest)), x["std"]):
            number = f"evaluated {with_ends(x)}, logged {short(returns.min())} to {short(returns.max())} around it"
            text = (
                f"The policy of iteration {x['iteration']} does not earn what training logged there. Are rewards and "
            )
            first = max(0, x["iteration"] - 1)
            text += f"environment the same? `replay.py RUN --from {first} --to {first + 1}` repeats what training did."
            return [Finding(BAD, number, text)]
    return []


def judge_batch(batch_size: int, scale: dict[str, Any], iteration: int) -> Finding:
    """Judges by the noise scale in pairs and its interval. An end that is None lies beyond what the sample can
    measure."""
    if scale["interval"] is None:
        return Finding(UNCLEAR, f"{scale['estimates']} estimates", "Cannot tell from so few estimates of the gradient.")
    low, high = (math.inf if x is None else x for x in scale["interval"])
    B = "unmeasurably large" if scale["pairs"] is None else f"{scale['pairs']:,.0f}"
    ends = ", ".join("no end" if x == math.inf else f"{x:,.0f}" for x in (low, high))
    number = f"noise scale {B} [{ends}] pairs at iteration {iteration}, batch {batch_size:,}"
    least, most = (short(batch_size / (batch_size + x)) for x in (high, low))
    if low == math.inf:
        return Finding(UNCLEAR, number, "Cannot tell: no gradient was found in so few pairs.")
    if batch_size >= high:
        return Finding(GOOD, number, f"Large enough: gradients of two batches have a cosine of at least {least}.")
    if low > FAR_TOO_SMALL * batch_size:
        text = f"Far too small: almost only noise, gradients of two batches have a cosine of at most {most}. Try a "
        text += "larger --num-steps or more --num-envs."
        return Finding(BAD, number, text)
    if low > batch_size:
        text = f"More noise than signal, as usual: gradients of two batches have a cosine of at most {most}."
        return Finding(NONE, number, text)
    return Finding(UNCLEAR, number, "Cannot tell whether there is more signal or more noise in a batch.")


def judge_lengths(kls: np.ndarray, bounds: np.ndarray, heldout: list[dict], returns: np.ndarray) -> Finding:
    """Judges by the mean KL of every iteration's step on its own batch [n], by its bounds [n or more], by the mean KL
    held out at some checkpoints, and by the return that each iteration logged before its step [n]. A KL is inf where
    it was not finite, which is too long, and nan where none was logged."""
    of_training, logged = bounds[: len(kls)], ~np.isnan(kls)  # an agent from elsewhere may have logged none
    too_long = (kls > 1.001 * of_training)[logged]  # a line search accepts what rounding puts onto the bound
    above = too_long.mean().item() if logged.any() else 0.0
    bound = " to ".join(dict.fromkeys(short(x) for x in (of_training[0], of_training[-1])))  # TRPO's schedule has two
    number = f"mean KL above {bound} nats in {percent(above)} of {logged.sum():,} iterations (exact)"
    number = number if logged.any() else "no iteration's mean KL was logged"
    number += f", not finite in {np.isinf(kls).sum():,} of them" if np.isinf(kls).any() else ""
    if longest := max(heldout, key=lambda x: np.nan_to_num(x["mean"], nan=np.inf), default=None):
        number += f"; held out at most {with_ends(longest)}, at iteration {longest['iteration']}"
    if above > TOO_OFTEN:
        text = f"Steps go too far, the first of them in iteration {np.flatnonzero(logged)[too_long][0]}: try a smaller "
        return Finding(BAD, number, f"{text}--policy-lr or --max-kl, or fewer --policy-epochs.")
    largest = int(np.nanargmax(kls / of_training)) if logged.any() else 0
    if kls[largest] > FAR_BEYOND * of_training[largest]:
        first, last = max(0, largest - 5), min(len(kls), largest + 6)
        before, after = (typical(returns[x]) for x in (slice(first, largest + 1), slice(largest + 1, last)))
        if not after >= before:
            text = f"One step went much too far, that of iteration {largest}, with a mean KL of {short(kls[largest])}"
            return Finding(BAD, number, f"{text} nats: `replay.py RUN --from {first} --to {last}` shows what it did.")
        number += f"; that of iteration {largest} was {short(kls[largest])}, after which the return was no lower"
    corrected = [widened(x, x["parts"], len(heldout)) for x in heldout]
    longer = [x for x in corrected if x["interval"] and not x["interval"][0] <= bounds[x["iteration"]]]  # nor nan
    if longer:
        text = f"Steps are short enough on their own batch, but too long held out at {len(longer)} of {len(heldout)}"
        return Finding(CAUTION, number, f"{text} checkpoints.")
    if not logged.any():
        return Finding(UNCLEAR, number, "Cannot tell how long the steps between the checkpoints were.")
    return Finding(GOOD, number, "Steps are short enough.")


def judge_gains(cells: list[dict[str, Any]]) -> Finding:
    """Judges what updates from fresh batches did to the reward on average, at each of some checkpoints, as steps.py
    measures it."""
    changes = [x | widened(x["change"], x["updates"], len(cells)) for x in cells]
    rose, fell = ([x for x in changes if min(sign * end for end in x["interval"]) > 0] for sign in (1, -1))
    found = [f"{with_ends(x)} at iteration {x['iteration']}" for x in changes]
    number = f"an update changes the return by {'; '.join(found)}, the mean of {changes[0]['updates']} updates"
    text = f"Updates raise the reward on average at {len(rose)} of {len(cells)} checkpoints and lower it at {len(fell)}"
    unknown = len(cells) - len(rose) - len(fell)
    text += f"; {unknown} {'is' if unknown == 1 else 'are'} undecided." if unknown else "."
    if fell:
        return Finding(BAD if len(fell) > len(rose) else CAUTION, number, text)
    return Finding(GOOD if len(rose) >= unknown else UNCLEAR, number, text)


ERRORS = " `value.py RUN` shows its errors at every checkpoint; try more --value-epochs or a larger --value-lr."


def judge_critic(explained: dict[str, Any], iteration: int) -> Finding:
    """Judges by the explained variance of held-out returns."""
    number = f"explained variance of held-out returns {with_ends(explained)} at iteration {iteration}"
    low, high = explained["interval"] or (-math.inf, math.inf)
    if high <= 0:
        return Finding(BAD, number, f"The critic is no better than a constant.{ERRORS}")
    if low > MOST:
        return Finding(GOOD, number, "The critic predicts most of what differs between returns.")
    if high > MOST:
        text = f"Cannot tell from {explained['episodes']:,} episodes how much the critic predicts."
        return Finding(UNCLEAR, number, text)
    text = f"The critic predicts at most {percent(high)} of what differs."
    return Finding(CAUTION, number, text + ERRORS) if high <= LITTLE else Finding(NONE, number, text)


def judge_logged_critic(explained: np.ndarray, losses: np.ndarray, planned: int) -> list[Finding]:
    """Judges by the explained variance and the loss of the critic that training logged in each iteration [n], of the
    planned ones, nan where there is no number. Returns no finding where there is nothing to say."""
    known = np.flatnonzero(np.isfinite(explained))
    tens = known[len(known) % 10 :].reshape(-1, 10)
    medians = np.median(explained[tens], axis=1)
    turn = len(medians) - np.argmin(np.append(medians[::-1] < LOW, False))  # from here on all are low
    before, after = tens[:turn][medians[:turn] > HIGH], tens[turn:]
    if len(before) and len(after) > 1:
        if not typical(losses[after]) <= typical(losses[before]):  # else returns are more alike, and V is no worse
            first = after[0, 0]
            number = f"logged explained variance {short(medians[turn - 1])} before, {short(medians[-1])} at the end"
            text = f"The critic has got worse since about iteration {first}, and stayed so: `replay.py RUN --from "
            return [Finding(CAUTION, number, f"{text}{max(0, first - 10)} --to {first}` shows its fits.")]
    late = tens[:, 0] >= planned / 2
    alike = late.any() and typical(losses[tens[late]]) < SHRUNK * typical(losses[tens[0]])
    if late.any() and medians[late].max() <= 0 and not alike:
        number = f"logged explained variance at most {short(medians[late].max())} since iteration {tens[late][0, 0]}"
        text = "In the second half of the training the critic was no better than a constant: `value.py RUN` measures "
        return [Finding(CAUTION, number, f"{text}its errors on fresh pairs.")]
    return []


def typical(x: np.ndarray) -> float:
    """Returns the median of the finite numbers, or nan where there are none."""
    return np.median(x[np.isfinite(x)]).item() if np.isfinite(x).any() else math.nan


def judge_motion(network: str, parameters: dict[int, str], rates: np.ndarray) -> list[Finding]:
    """Judges whether a network moves, by digests of its parameters at the checkpoints and by the learning rate of each
    iteration [n], nan where none was logged. Then some steps may have been refused, as by a line search. Returns no
    finding, or one about the longest time for which it did not move."""
    still = []
    for alike in (list(group) for _, group in groupby(parameters, parameters.get)):
        first, last = alike[0], alike[-1]
        known = rates[first:last][np.isfinite(rates[first:last])]
        if known.any() or not len(known) and last - first >= REFUSED:
            still.append((last - first, first, last))
    if not still:
        return []
    _, first, last = max(still)
    when = f"did not move from iteration {first} to {last}"
    if last == max(parameters):
        when = f"has not moved since iteration {first}"
    number = f"its parameters have the same bits in the checkpoints {first} and {last}"
    text = f"The {network} {when}: `replay.py RUN --from {first} --to {first + 1}` repeats the update there."
    return [Finding(BAD, number, text)]


def judge_generators(states: dict[int, str]) -> list[Finding]:
    """Judges whether the random generator's state comes again, by checkpoint. If it is the same in all, the script uses
    another one. Returns no finding where each state is new."""
    first = {}
    for iteration, state in states.items():
        before = first.setdefault(state, iteration)
        if before != iteration and len(set(states.values())) > 1:
            number = f"its state in checkpoint {iteration} is that of checkpoint {before}"
            text = f"The random generator was reset by iteration {iteration}, so noise and minibatches come again:"
            return [Finding(BAD, number, f"{text} seed it once, in State.")]
    return []


BONUS = ": try a positive --entropy-coef, or a smaller --policy-lr."


def judge_exploration(stds: dict[int, list[float]], bounds: list[float] | None) -> Finding:
    """Judges by each action's standard deviation at the checkpoints, by iteration. Its unit is half the action's range
    or, where there is none, the first standard deviation."""
    values = np.array(list(stds.values()))  # [checkpoints, actions]
    unit, of = (np.array(bounds), "half the actions' range") if bounds else (values[0], "the first")
    relative = values[-1] / unit

    def since(true: np.ndarray) -> str:
        """Names the checkpoint since which something has been true of all actions."""
        first = len(true) - np.argmin(np.append(true.all(1)[::-1], False))
        return f" since iteration {list(stds)[first]}"

    number = f"standard deviations at the end: {short(relative.min())} to {short(relative.max())} of {of} (exact)"
    if len(values) > 1 and not np.ptp(values, axis=0).any():
        text = "Its standard deviations have never changed. If that is not meant, log_std gets no gradient."
        return Finding(CAUTION, number, text)
    if relative.max() < ALMOST_NONE:
        return Finding(BAD, number, f"It has stopped exploring{since(unit * ALMOST_NONE > values)}{BONUS}")
    if relative.min() < ALMOST_NONE:
        few = unit * ALMOST_NONE > values
        text = f"It has stopped exploring in {few[-1].sum()} of its actions{since(few | ~few[-1])}"
        return Finding(CAUTION, number, f"{text}{BONUS}")
    if (grown := values > GROWN * values[0])[-1].any():
        text = f"Its noise has grown{since(grown | ~grown[-1])}: try a smaller --entropy-coef or --policy-lr."
        return Finding(CAUTION, number, text)
    return Finding(GOOD, number, "It is still exploring.")


def judge_normalizers(shares: dict[str, dict[str, Any]], seen: list[float]) -> Finding:
    """Judges by the share of steps with a clipped observation and the share of clipped rewards, each with its interval,
    where the run clips them. Also reports the standard deviations of what the networks see."""
    clips = [f"{name} {with_ends(x, percent)} of {x['pairs']:,} steps" for name, x in shares.items()]
    number = f"clipped: {', '.join(clips) or 'nothing'}; observations, as the networks see them, have standard "
    number += f"deviations from {short(min(seen))} to {short(max(seen))}"
    corrected = {name: widened(x, x["episodes"], x["looks"]) for name, x in shares.items()}  # the largest of several
    ends = {name: x["interval"] or (0, 1) for name, x in corrected.items()}
    if clipped := [name for name, (low, _) in ends.items() if low > CLIPPED]:
        ranges = " and ".join(dict(observations="--obs-clip-range", rewards="--reward-clip-range")[x] for x in clipped)
        return Finding(BAD, number, f"Clipping changes many {' and '.join(clipped)}: try a larger {ranges}.")
    if unclear := [name for name, (_, high) in ends.items() if high > CLIPPED]:
        text = f"Cannot tell from so few episodes whether clipping changes many {' and '.join(unclear)}."
        return Finding(UNCLEAR, number, text)
    if not shares:
        return Finding(NONE, number, "Nothing is clipped, so there is nothing to judge.")
    if not any(x["mean"] for x in shares.values()):
        return Finding(GOOD, number, "No clipping was seen.")
    return Finding(GOOD, number, "Clipping changes next to nothing.")


def judge_continuity(counts: dict[str, dict[int, float]], scales: dict[int, float]) -> list[Finding]:
    """Judges whether running statistics continue, by their counts of samples and the scale of the rewards, each by
    checkpoint. Returns no finding where they do."""
    found = []
    for name, of_checkpoint in counts.items():
        pairs = zip(of_checkpoint.items(), list(of_checkpoint.items())[1:])
        for (before, many), (after, few) in pairs:
            if few < many:
                number = f"they had seen {many:,.0f} samples, then {few:,.0f}"
                text = f"{name} were reset between iterations {before} and {after}: "
                text += f"`replay.py RUN --from {before} --to {after}` shows when."
                found.append(Finding(BAD, number, text))
                break
        else:
            found += judge_growth(name, of_checkpoint)
    late = [(i, scale) for i, scale in scales.items() if i >= LATE * max(scales) and scale > 0]
    for (before, old), (after, new) in zip(late, late[1:]):
        if not found and not 1 / JUMPED < new / old < JUMPED:
            number = f"rewards were divided by {short(old)}, then by {short(new)}"
            text = f"The scale of the rewards jumped between iterations {before} and {after}: "
            text += f"`replay.py RUN --from {before} --to {after}` shows when."
            found.append(Finding(CAUTION, number, text))
    return found


def judge_growth(name: str, counts: dict[int, float]) -> list[Finding]:
    """Judges whether a count that each iteration raises still does so at the last checkpoint."""
    alike = [i for i, count in counts.items() if count == counts[max(counts)]]
    if len(alike) < 2 or not counts[max(counts)]:
        return []
    number = f"they had seen {counts[max(counts)]:,.0f} samples then and at the end"
    text = f"{name} have taken in nothing since iteration {min(alike)}. If that is not meant, look for what freezes "
    return [Finding(CAUTION, number, f"{text}them, or for a push that is missing.")]


def judge_optimizer(network: str, steps: dict[int, float], expected: int) -> list[Finding]:
    """Judges by the number of an Adam's steps at the checkpoints whether it remembers, and whether it takes the
    `expected` number of them in an iteration, which is 0 where the arguments do not say."""
    for (before, many), (after, few) in zip(steps.items(), list(steps.items())[1:]):
        number = f"it had taken {many:,.0f} steps by iteration {before}, and {few:,.0f} by iteration {after}"
        if few <= many:
            text = f"The Adam of the {network} forgot its moments: make it once, in State."
            return [Finding(BAD, number, text)]
        if few - many < expected * (after - before):
            text = f"The {network} takes fewer steps than the {expected:,} an iteration of its epochs and minibatches. "
            return [Finding(CAUTION, number, f"{text}If it does not stop early on purpose, a loop ends too soon.")]
    return []


def judge_rates(network: str, rates: np.ndarray) -> list[Finding]:
    """Judges the learning rate of each iteration [n], nan where none was logged: one that is 0 teaches nothing."""
    known = np.flatnonzero(np.isfinite(rates))
    if len(known) < 2 or rates[known[-2:]].any():  # the last one alone may be 0
        return []
    first = known[len(known) - np.argmin(np.append(rates[known][::-1] == 0, False))]
    text = f"The learning rate of the {network} has been 0 since iteration {first}, so nothing is learned any more: "
    text += "look at its schedule, or try --no-anneal-lr."
    return [Finding(BAD, f"{len(rates) - first:,} of {len(rates):,} iterations", text)]


def judge_speed(sps: np.ndarray, compiled: bool) -> Finding:
    """Judges by the steps per second of each iteration."""
    rest = sps[1:] if len(sps) > 1 else sps
    rest = rest[np.isfinite(rest)]  # rows of progress.csv may be missing
    if not len(rest):
        return Finding(NONE, "", "Its speed was not logged.")
    median, slow, fast = np.median(rest), *np.percentile(rest, [10, 90])
    number = f"{short(median)} steps a second, 80 % of the iterations from {short(slow)} to {short(fast)}"
    if not compiled:
        return Finding(CAUTION, number, "It ran with --no-compile, which makes updates many times slower.")
    if slow < median / 2:
        return Finding(CAUTION, number, "Its speed was uneven: other programs may have shared its cores.")
    return Finding(GOOD, number, "Its speed was even.")
