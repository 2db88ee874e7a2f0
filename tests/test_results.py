"""The pages quote what was measured. The tables of the results are those that figures/claims.py computes, and every
other number stands in a file beside the figures, or is one that is given, by a paper or as a setting."""

import importlib.util
import json
import re
import statistics
import sys
from itertools import permutations

import numpy as np
import pytest
import torch
from conftest import ALGOS, ROOT, load, start
from measuring import intervals
from scipy import stats

FIGURES = ROOT / "figures"
PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "figures/README.md", "figures/scripts.md")}


def of_file(path):
    """A script that stands in no folder of scripts, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


claims, draw = of_file(FIGURES / "claims.py"), of_file(FIGURES / "draw.py")


def measured(path):
    text = (FIGURES / f"{path}.json").read_text()
    assert '"/' not in text  # no folder of the machine that measured it
    return json.loads(text)


def show(numbers, digits=0):
    """Mean and interval as the pages write them: −240 [−1,410, 930], or with so many digits after the point."""
    if digits == 0 and np.ptp(numbers["interval"]):
        return claims.show_dict(numbers)
    return "{} [{}, {}]".format(*(plain(x, digits) for x in (numbers["mean"], *numbers["interval"])))


def plain(x, digits=0):
    return f"{round(x, digits) + 0:.{digits}f}".replace("-", "−")  # + 0: no −0


def span(values, digits=0):
    """−1.5 to 3.0: the smallest and the largest."""
    return f"{plain(min(values), digits)} to {plain(max(values), digits)}"


# What the pages say, section by section, its numbers filled in from the files ----------------------------------------


def learning():
    ppo, trpo_plus = measured("ppo/rewards")["settings"]
    yield f"**{show(ppo['mean'])}**, seeds from {span(ppo['finals'])}"
    micro = np.array(measured("ppo/micro")["finals"])
    yield from map(show, (ppo["mean"], intervals.mean_of(micro)))  # in the README
    yield f"{show(trpo_plus['mean'])}, seeds from {span(trpo_plus['finals'])}"


def worth_of_the_nine():
    """What each is worth, by environment, optimization and whether the others are on, and the settings' rewards, over
    all seeds."""
    worth, settings, seeds = {}, {}, {}
    for env, batch in (("Hopper", "hopper"), ("Hopper", "hopper_new"), ("Walker2d", "walker2d")):
        results = measured(f"leave-one-out/{batch}")
        for x in results["settings"]:
            settings.setdefault(env, {}).setdefault(x["label"], []).extend(x["finals"])
        for x in results["paired"]:
            worth.setdefault((env, *claims.case(x)), []).extend(x["differences"])
            seeds.setdefault((env, *claims.case(x)), []).extend(x["seeds"])
    assert all(x == list(range(1, 11 if env == "Hopper" else 6)) for (env, *_), x in seeds.items())
    settings = {env: {x: intervals.mean_of(y) for x, y in of.items()} for env, of in settings.items()}
    return {key: intervals.mean_of(x) | dict(by_seed=np.array(x)) for key, x in worth.items()}, settings


def leave_one_out():
    worth, settings = worth_of_the_nine()
    for name in (name for env, name, on in worth if env == "Hopper" and on):
        cells = [show(worth[env, name, on]) for env in settings for on in (True, False)]
        yield f"`--{name.replace('_', '-')}` | {' | '.join(cells)} |"
    yield "all nine together | {} | | {} | |".format(*(show(worth[env, "all", False]) for env in settings))
    ps = sorted(stats.ttest_1samp(x["by_seed"], 0).pvalue for x in worth.values() if x["by_seed"].any())
    significant = next(i for i, p in enumerate(ps) if p >= 0.05 / (len(ps) - i))  # Holm's correction
    yield f"After Holm's correction, {significant} of these {len(ps)} differences are significant"
    keys = ("Hopper", "reward_scale", True), ("Hopper", "all", False), ("Walker2d", "reward_scale", True)
    assert ps[:significant] == sorted(stats.ttest_1samp(worth[key]["by_seed"], 0).pvalue for key in keys)
    first, new = (claims.labelled_finals(f"leave-one-out/{x}") for x in ("hopper", "hopper_new"))
    batches = {label: stats.ttest_ind(first[label], new[label], equal_var=False).pvalue for label in first}
    least = min(batches, key=batches.get)
    unlike = len({x.round(6) for x in batches.values()})  # clipping that changes no bit makes equal settings
    assert least == "only-grad-clip" and unlike == 17 and batches[least] < 0.05 / 17
    texts = [show(intervals.mean_of(x[least])) for x in (first, new)]
    yield "gradient clipping alone, from {} to {}.".format(*texts)
    yield f"Its p of {batches[least]:.3f} is the smallest of {unlike} and"
    suggested = [
        ("value_clip", False),
        ("reward_scale", False),
        ("anneal_lr", False),
        ("grad_clip", False),
        ("grad_clip", True),
    ]
    first, new = (claims.worth_of_each(x) for x in ("hopper", "hopper_new"))
    for key in suggested:  # "each of the first intervals lay on one side of 0"
        assert np.prod(intervals.t_interval(first[key])) > 0 > np.prod(intervals.t_interval(new[key]))
    left = [key for key in suggested if np.prod(worth["Hopper", *key]["interval"]) > 0]  # "two intervals still do"
    assert left == [("value_clip", False), ("grad_clip", True)] and all(worth["Hopper", *x]["mean"] < 0 for x in left)
    assert all(stats.ttest_1samp(worth["Hopper", *x]["by_seed"], 0).pvalue > ps[significant - 1] for x in left)
    clipped = [worth["Walker2d", *x]["by_seed"] for x in (("reward_clip", False), ("obs_clip", True))]
    [reward], changes = ([plain(x) for x in y[y != 0]] for y in clipped)  # "in one run of 5", "in three"
    yield f"its final reward is {reward} higher"
    yield "theirs change by {}, {} and {}".format(*changes)
    yield f"all but it is the best setting, {show(settings['Hopper']['without-grad-clip'])}"
    off = [measured(f"leave-one-out/without_value_clip/{env.lower()}") for env in settings]
    yield "With both off, PPO reaches {} on Hopper and {} on Walker2d".format(
        *(show(x["settings"][1]["mean"]) for x in off)
    )
    [hopper, walker2d] = (x["mean"] for of in off for x in of["paired"])
    yield f"without value clipping, {show(hopper)} and {show(walker2d)}, is not significant"
    assert np.prod(hopper["interval"]) < 0 and np.prod(walker2d["interval"]) < 0
    less = [
        worth[env, "reward_scale", True]["by_seed"][:5] - of["paired"][0]["differences"]
        for env, of in zip(settings, off)
    ]
    less = [show(intervals.mean_of(x)) for x in less]
    yield "less than with it by {} on Hopper and by {} on Walker2d".format(*less)


def carried_over():
    """Hopper's and Walker2d's compared."""
    worth, settings = worth_of_the_nine()
    hopper, walker2d = ({label: show(x) for label, x in of.items()} for of in settings.values())
    yield f"reaches {hopper['all']} with all nine and {hopper['none']} without any"
    yield f"on Walker2d {walker2d['all']} and {walker2d['none']}"
    yield f"On Walker2d the other eight reach {walker2d['without-reward-scale']} without it"
    yield f"No single one reaches more than {walker2d['only-obs-norm']}"
    singles = {label: x["mean"] for label, x in settings["Walker2d"].items() if label.startswith("only")}
    assert max(singles, key=singles.get) == "only-obs-norm"

    def both(on):
        """{optimization: what it is worth in each environment}, of those that change anything in both."""
        found = {name: [worth[env, name, on] for env in settings] for _, name, _ in worth if name != "all"}
        return {name: x for name, x in found.items() if x[0]["by_seed"].any() and x[1]["by_seed"].any()}

    others_on, alone = both(True), both(False)
    assert (len(others_on), len(alone)) == (8, 7)
    r, p, same = agreement(others_on)
    yield f"the eight that change anything in both have a rank correlation of {r} (p = {p})"
    assert same == 6  # "six have the same sign"
    clear = [name for name, of in others_on.items() if all(np.prod(x["interval"]) > 0 for x in of)]
    assert clear == ["reward_scale"]  # "the only one that is significant in both"
    r, p, _ = agreement(alone)
    yield f"the rank correlation of seven is {r} (p = {p})"
    more = {name: intervals.difference(y["by_seed"], x["by_seed"]) for name, (x, y) in alone.items()}
    assert [name for name, x in more.items() if np.prod(x["interval"]) > 0] == ["value_clip"]
    yield f"differs significantly between the environments, by {show(more['value_clip'])}"


def agreement(cells):
    """Rank correlation of the values in two environments, its two-sided p from all orders (of so few, scipy's is an
    approximation), and how many have the same sign."""
    x, y = np.transpose([[x["mean"] for x in of] for of in cells.values()])
    a, b, n = stats.rankdata(x), stats.rankdata(y), len(x)
    distances = ((a[np.array(list(permutations(range(n))))] - b) ** 2).sum(1)
    found = 1 - 6 * distances / (n**3 - n)  # of all orders, the first of which is the measured one
    p = (abs(found) >= abs(found[0]) - 1e-9).mean()
    return plain(found[0], 2), f"{p:.2f}" if p > 0.1 else f"{p:.3f}", (x * y > 0).sum()


STARTS = "orthogonal_init", "tanh", "obs_norm", "reward_scale"  # they change the gradient before the first step


def noise_of_the_nine():
    """What each does to the cosine of two estimates, with 2 seeds on Walker2d."""
    cases, reward, equal = {}, {}, set()  # by optimization and whether the others are on
    for x in measured("leave-one-out/noise")["paired"]:
        key = claims.case(x)
        assert x["seeds"] == [1, 2] and [y["iteration"] for y in x["noise"]] == [0, 150, 300, 450]
        cases[key], reward[key] = [y["mean"] for y in x["noise"]], x["mean"]["mean"]
        if not any(x["differences"]):
            equal.add(key)
    yield f"| {' | '.join(show(x, 2) for x in cases.pop(('all', False)))} |"
    init, tanh, norm, scale = ([show(cases[name, on][0], 2) for on in (False, True)] for name in STARTS)
    yield f"the cosine rises by {init[0]} with initialization, {tanh[0]} with tanh, {norm[0]} with observation"
    yield f"with the others on it changes by {init[1]}, {tanh[1]} and {norm[1]}"
    yield f"Reward scaling lowers it ({scale[0]} with the others off, {scale[1]} on)"
    assert {name for name, _ in equal} == {"reward_clip", "obs_clip"} and len(equal) == 4
    clips = [abs(x["mean"]) for key in equal for x in cases[key]]
    assert len(clips) == 16 and sorted(clips)[-2] == 0 < sorted(clips)[-1] < 1e-6  # "one, in its seventh decimal"
    late = [x for key, means in cases.items() if key not in equal for x in means[1:]]
    more, less = (sum(x["interval"][i] * sign > 0 for x in late) for i, sign in ((0, 1), (1, -1)))
    largest = max(abs(x["mean"]) for x in late)
    assert not any(x["interval"][0] > 0 for (_, on), means in cases.items() if not on for x in means[1:])
    yield f"of {len(late)} differences {more} are above 0 and {less} below, the largest {largest:.2f}"
    keys = [key for key in cases if key not in equal]
    rank = stats.spearmanr(
        [np.mean([x["mean"] for x in cases[key][1:]]) for key in keys], [reward[key] for key in keys]
    )
    yield f"rank correlation of {plain(rank.statistic, 2)} (p = {rank.pvalue:.2f})"


PLACES = "Walker2d", "Hopper", "Humanoid"


def effects():
    """What the page's first sentences and its prose say of IM's Tables 2 and 3."""
    yield f"by what IM says they do, {claims.effect('Hopper', claims.OPTIMIZATIONS)};"
    assert (
        abs(claims.effect("Hopper", claims.OPTIMIZATIONS).mean - claims.in_paper("Hopper", claims.OPTIMIZATIONS)[0])
        < 20
    )
    new, first = claims.new_finals("Walker2d"), claims.finals("Walker2d")
    assert {len(new[x]) for x in claims.FOUR} == {20} and not set(new["PPO"]) & set(first["PPO"])
    yield f"20 seeds suggested it, {claims.Estimate([first[x] for x in claims.FOUR], claims.OPTIMIZATIONS)}, and"
    walker2d = claims.effect("Walker2d", claims.OPTIMIZATIONS)
    yield f"20 new ones do not, {walker2d}."
    assert walker2d.interval()[1] < claims.in_paper("Walker2d", claims.OPTIMIZATIONS)[0]  # "does not reach the paper's"
    yield f"PPO's step ends {claims.effect('Humanoid', claims.STEP)} above TRPO's"
    yield "Walker2d {:.0f}, Hopper {:.0f}, Humanoid {:.0f}".format(*(np.ceil(claims.margin(x)) for x in PLACES))
    first = {x["label"]: np.array(x["finals"]) for x in measured("clipping/hopper_first")["settings"]}
    now = claims.finals("Hopper")
    assert {len(x) for x in first.values()} == {20} and not set(first["PPO"]) & set(now["PPO"])
    yield f"was {claims.Estimate([first['PPO'], first['PPO-NoClip, clip 2.5']], (1, -1))}."
    pooled = {name: np.append(now[name], first[name]) for name in ("PPO", "PPO-M", "TRPO")}
    yield f"Hopper's PPO − PPO-M is {claims.Estimate([pooled['PPO'], pooled['PPO-M']], (1, -1))} and"
    yield f"TRPO+ − TRPO {claims.Estimate([now['TRPO+'], pooled['TRPO']], (1, -1))}."
    yield f"TRPO reaches {now['TRPO'].mean():.0f} on Hopper-v4"
    assert min(now, key=lambda label: now[label].std()) == "PPO-NoClip"  # "its seeds differ least"
    share = claims.gain(*(claims.finals("Humanoid")[x] for x in claims.FOUR))
    assert 0.4 < share < 0.6  # "half of PPO's gain over TRPO is due to the optimizations"
    for place, x, y in (("Walker2d", "PPO", "TRPO+"), ("Humanoid", "PPO", "TRPO+"), ("Humanoid", "PPO-M", "TRPO")):
        assert np.prod(claims.in_paper(place, (1, -1), (x, y))[1:]) > 0  # "the paper's own numbers contradict"
    on_walker2d = [x.cells.get("Walker2d") for x in claims.about_the_step() + claims.about_clipping()]
    assert {x.verdict for x in on_walker2d if x} == {"cannot tell"} and on_walker2d.count(None) == 6  # the controls


def as_written():
    """Hopper with what IM's text defines and its released runs did not do."""
    new, released = claims.labelled_finals("clipping/hopper_as_written"), claims.finals("Hopper")
    assert {name: len(x) for name, x in new.items()} == {"PPO-M-defined": 10, "TRPO-defined": 10, "TRPO+schedule": 10}
    ppo_m, trpo = (new[f"{x}-defined"] for x in ("PPO-M", "TRPO"))
    more = claims.Estimate([ppo_m, released["PPO-M"], trpo, released["TRPO"]], (-0.5, 0.5, -0.5, 0.5))
    yield "PPO-M reaches {} and TRPO {}, and".format(*(claims.Estimate([x], (1,)) for x in (ppo_m, trpo)))
    yield f"the main effect of the optimizations grows by {more} to"
    effect = more.mean + claims.effect("Hopper", claims.OPTIMIZATIONS).mean
    assert effect > 2 * claims.in_paper("Hopper", claims.OPTIMIZATIONS)[0]  # "more than twice the paper's"
    assert more.mean > effect / 2  # "more than half of what all nine are worth"


def early_in_training():
    """The same five after 300,000 steps: what the optimizations do there."""
    apart = 0
    for place in PLACES:
        path = f"clipping/{place.lower()}{'_new' * (place == 'Walker2d')}"
        early = {x["label"]: after(300_000, x["curve"]) for x in measured(path)["settings"]}
        for x, y in ("PPO", "PPO-M"), ("TRPO+", "TRPO"):
            assert early[x]["mean"] > early[y]["mean"]
            apart += early[x]["interval"][0] > early[y]["interval"][1]
    yield f"in all three environments, with intervals that are apart in {apart} of 6 cases"


def below_the_paper():
    """What was tried about TRPO+ on Humanoid."""
    *_, noforce = measured("clipping/humanoid_checks")["settings"]
    more = intervals.difference(np.array(noforce["finals"]), claims.finals("Humanoid")["TRPO+"])
    yield f"brings TRPO+ to {show(noforce['mean'])} (5 seeds), which includes the paper's mean"
    assert noforce["mean"]["interval"][0] < 1030 < noforce["mean"]["interval"][1]
    yield f"that this is {show(more)} more than with them is not significant"


def new_scripts():
    """Runs of the scripts of today against the table's, at 99 %."""
    old, new = (
        {x["label"]: x["finals"] for x in measured(f"clipping/{name}")["settings"]}
        for name in ("hopper", "hopper_new_scripts")
    )
    texts = {}
    for label, finals in new.items():
        assert len(finals) == 5 and len(old[label]) == 30
        ends = stats.ttest_ind(finals, old[label], equal_var=False).confidence_interval(0.99)
        assert ends.low < 0 < ends.high
        texts[label] = show(dict(mean=np.mean(finals) - np.mean(old[label]), interval=[ends.low, ends.high]))
    seeds = {seed for x in measured("clipping/hopper_new_scripts")["settings"] for seed in x["seeds"]}
    yield f"PPO and of TRPO+ on Hopper, {min(seeds)} to {max(seeds)}, check"
    yield f"PPO ends {texts['PPO']} above the 30 seeds, TRPO+ {texts['TRPO+']} (99 % Welch intervals)"


def after(steps, curve):
    """Mean reward and its interval where the curve has taken so many steps."""
    at = np.abs(np.array(curve["steps"]) - steps).argmin()
    return dict(mean=curve["mean"][at], interval=[curve["low"][at], curve["high"][at]])


def values():
    by_seed = claims.in_places("values", claims.LATE)
    runs = {env: [cells for of in seeds for cells in of.values()] for env, seeds in by_seed.items()}  # checkpoints
    exact, shares = {}, []  # shares: of the error and of the pairs, within 63 steps of a cut
    for env, cells in ((env, cells) for env, of in runs.items() for cells in of):
        assert len(cells) in (5, 16)
        released = [x["heldout_released"] for x in cells]
        exact.setdefault(env == "Humanoid", []).append(statistics.median(x["exact_v"] / x["mean"] for x in released))
        if env != "Humanoid":
            bins = [[(y["steps"], y["mean"] * y["pairs"], y["pairs"]) for y in x["by_distance"]] for x in released]
            near = [[[z for steps, *z in of if steps and steps[1] < 64], [z for _, *z in of]] for of in bins]
            shares.append(np.median([np.sum(x, axis=0) / np.sum(y, axis=0) for x, y in near], axis=0))
    yield f"would have {span(exact[False], 2)} times the measured error on Walker2d and Hopper, and"
    yield f"{span(exact[True], 2)} times on Humanoid"
    error, pairs = np.transpose(shares) * 100
    yield f"{span(error)} % of the error comes from the {span(pairs)} % of the pairs that are within 63 steps"
    yield f"There {span(error)} % of it comes from the few pairs"
    seeds = [of for env in PLACES[:2] for of in by_seed[env]]
    means, medians = (
        [x for of in seeds for x in claims.errors(of, "heldout_released", number)] for number in ("mean", "median")
    )
    yield f"famous error of a half is {span(means, 2)} on Walker2d and Hopper"
    yield f"the median pair is off by {max(medians):.2f} at most."


def trust_region():
    seeds = claims.in_places("trust_region", places=PLACES[:2])
    trpo = [x for of in seeds.values() for by_agent in of for x in by_agent["TRPO"]]
    yield f"its largest KL in one state is {max(x['train']['max_kl'] for x in trpo):.0f} nats"
    heldout = np.concatenate(
        [
            claims.of_steps(by_agent["TRPO"], "mean_kl", "heldout") / claims.BOUNDS[env]
            for env, of in seeds.items()
            for by_agent in of
        ]
    )
    worst = f"{100 * heldout.max() - 100:.0f} %"
    yield f"{(heldout > 1).sum()} of {len(heldout)} steps on Walker2d and Hopper exceed it, the worst by {worst}"
    peaks = [max(of["PPO"], key=lambda x: x["train"]["mean_kl"])["iteration"] / 488 for of in seeds["Hopper"]]
    assert 0.2 <= round(min(peaks), 1) and max(peaks) < 0.4  # "a fifth to a third of the way on Hopper"
    [humanoid] = claims.by_seed("trust_region/humanoid")
    largest = claims.of_steps(humanoid["TRPO"], "max_kl") / claims.BOUNDS["Humanoid"]
    assert 25 < largest.max() < 35  # "thirty times the bound at most"

    def last_longer(of):
        """The last iteration at which PPO's step is longer than PPO-M's."""
        longer = claims.of_steps(of["PPO"], "mean_kl") > claims.of_steps(of["PPO-M"], "mean_kl")
        return max(x["iteration"] for x, more in zip(of["PPO"], longer) if more)

    assert 200 < last_longer(humanoid) < 250  # "until halfway on Humanoid"
    assert min(last_longer(x) for of in seeds.values() for x in of) >= 325  # "until late in training"


def gradient():
    late = [claims.cosines(of, "variance")[1] for seeds in claims.gradients().values() for of in seeds]
    average = max(np.mean([x["mean"] for x in of]) for of in late)
    yield f"the average cosine of two estimates from a training batch is {average:.2f} at most"
    walker2d, humanoid = (claims.by_agent(f"gradient/{x}")["PPO"] for x in ("walker2d", "humanoid"))
    scales = [claims.show_noise(claims.noise(x)) for x in (walker2d[0], walker2d[2], humanoid[0])]
    assert walker2d[2]["iteration"] == 300
    yield "In seed 1 on Walker2d PPO's is {} pairs before training, and {} at iteration 300".format(*scales)
    part = claims.noise(walker2d[2])[0] / 2048
    yield f"of which a batch is a {part:.0f}rd; on Humanoid it is {scales[2]} already before"
    (above, *_), so = claims.point_to_the_truth("Walker2d", claims.by_agent("gradient/walker2d"))
    yield f"correlated with it at {above} checkpoints"
    assert {x["true_pairs"] for x in measured("gradient/walker2d")} == {450_000} and so == claims.HOLDS
    found = [claims.point_to_the_truth(env, of)[0][0] for env in PLACES[:2] for of in claims.gradients()[env]]
    told, checkpoints = np.sum([list(map(int, x.split(" of "))) for x in found], axis=0)
    yield f"be told at only {told} of {checkpoints} checkpoints of three seeds"


def noise():
    seed_1, *_ = claims.by_seed("noise/hopper")
    late = [claims.noise(x) for of in seed_1.values() for x in of if x["iteration"] >= 200]
    batches = [(pairs or low) / 2048 for pairs, low, _ in late]  # where it is unbounded, the least that it is
    assert min(batches) > 5
    yield f"in {sum(x > 20 for x in batches)} of {len(batches)} cases less than a twentieth"


def replay():
    replay, cells = load("replay"), measured("replay/replay")
    changes, moves = replay.find_changes(cells)
    yield from replay.verdicts(cells, changes, moves)
    promised = [x["promised"] for x in cells]
    rank = stats.spearmanr(promised, [x["mean"] for x in changes])
    yield f"rank correlation of {plain(rank.statistic, 2)} (p = {rank.pvalue:.2f})"
    by_iteration = {x["iteration"]: x for x in cells}
    start, end = (round(x.mean(), -2) for x in replay.returns_of(by_iteration[434]))
    yield f"fall from about {start:,.0f} to {end:,.0f}"
    assert sorted(promised)[-2] == by_iteration[434]["promised"]  # "the second largest of the 25"
    yield f"one episode ended at step {min(n for _, n in by_iteration[433]['training_episodes'])}"
    explained = [by_iteration[i]["explained_variance"][0] for i in (432, 433)]
    yield "the explained variance dropped from {:.3f} to {:.2f}".format(*explained)
    yield "explained {1:.0f} % of the variance instead of {0:.1f}".format(*(100 * x for x in explained))


def replay_of_ppo():
    """A fall of the curve that complete episodes of the same policies do not show."""
    replay, cells = load("replay"), measured("replay/ppo/replay")
    none, *_, together = replay.verdicts(cells, *replay.find_changes(cells))
    yield none
    yield together.split("reward ")[1].replace(" ->", " to").replace("-", "−")
    by_iteration = {x["iteration"]: x for x in cells}
    parts = [[by_iteration[i] for i in range(first, first + 5)] for first in (365, 370)]
    before, after = (np.mean([np.mean([y for y, _ in x["training_episodes"]]) for x in part]) for part in parts)
    yield f"fell from {before:,.0f} to {after:,.0f}"
    yield f"{before - after:.0f} less at iterations 370 to 374"
    counts = [len(x["training_episodes"]) for part in parts for x in part]
    assert (min(counts), max(counts)) == (2, 4)
    first, then = (np.mean([replay.returns_of(x)[0] for x in part], axis=0) for part in parts)  # by seed
    change = dict(mean=(then - first).mean(), interval=intervals.t_interval(then - first))
    yield f"changed by {show(change)}"


def report():
    """The table's rows hold what the page's text says."""
    text = " ".join((FIGURES / "report" / "four.txt").read_text().split())
    gained = re.findall(r"\(return (.*?) above the untrained", text)
    noise = re.findall(r"noise scale (.*?) pairs at", text)
    explained = re.findall(r"explained variance of held-out returns (.*?) at", text)
    far = [x if x != "0 %" else "" for x in re.findall(r"mean KL above 0.13 nats in (\d+ %)", text)]
    names = "defaults", "learning rates x 30", "`--value-lr 1e-9`", "batch of 64"
    for row in zip(names, gained, noise, far, explained, strict=True):
        yield f"| {' | '.join(row)} |".replace("|  |", "| |").replace("-0", "−0")


def baselines():
    """Counts of checkpoints at which one estimator is known to have less noise than another."""

    def less(x, y):
        found = [claims.compare_baselines(env, x, y) for env in ("Walker2d", "Hopper")]
        assert not any(more for _, more, _ in found)
        return f"{sum(x for x, *_ in found)} of {sum(n for *_, n in found)}"

    true = "true value function"
    yield f"it is clear at {less(claims.RETURNS, claims.NO_BASELINE)} checkpoints"
    yield f"the noise is less with GAE at {less(true, claims.RETURNS)}."
    assert less(true, "value network") == "1 of 6"  # "A better critic would help at one checkpoint"
    agents = claims.labelled_finals("baselines/agents")
    left = [agents[f"{name}, no baseline"].mean() / agents[name].mean() for name in ("PPO", "TRPO")]
    assert 0.3 < left[0] < 0.37 and 0.22 < left[1] < 0.28  # "PPO has a third of its reward left, TRPO a quarter"


def sample_regime():
    """The grid of batch sizes and learning rates, a row for each: final rewards, the largest mean KL of an iteration,
    and the cosine of two estimates from a training batch at three checkpoints, by the noise scale."""
    cosines = {}
    for x in measured("samples/noise"):
        signal = x["batch_size"] * x["noise_scale"]["grad_sq"] / x["noise_scale"]["trace"]
        cosines.setdefault(x["run"], {})[x["iteration"] * x["batch_size"]] = signal / (1 + signal)
    for x in measured("samples/rewards")["settings"]:
        pairs, rate = x["settings"]["num_steps"], x["settings"]["policy_lr"]
        assert sorted(x["seeds"]) == [1, 2, 3]
        of_seeds = [cosines[folder] for folder in x["folders"]]
        assert all(list(y) == [131_072, 524_288, 917_504] for y in of_seeds)
        means = [f"{np.mean([y[steps] for y in of_seeds]):.2f}" for steps in of_seeds[0]]
        kl = " to ".join(claims.two_digits(y) for y in (min(x["largest_kl"]), max(x["largest_kl"])))
        rate = f"{rate:.1e}".replace("e-0", "e-").replace(".0e", "e")
        yield f"| {pairs:,} | {rate} | {show(x['mean'])} | {kl} | {' | '.join(means)} |"


def ablation():
    """IM's Fig. 1: the grid is whole, its effects are those of a regression, and where its best place is."""
    grid = claims.ablation()
    assert len({tuple(on.values()) for on, _ in grid}) == 16 and len(grid[0][0]) == 4
    assert {(len(tried), *map(len, tried)) for _, tried in grid} == {(4, 2, 2, 2, 2)}
    assert all(list(map(np.mean, tried)) == sorted(map(np.mean, tried), reverse=True) for _, tried in grid)
    runs = [(on, y) for on, tried in grid for x in tried for y in x]
    signs = {name: np.array([1 if on[name] else -1 for on, _ in runs]) for name in claims.ABLATED}
    both = signs["reward_scale"] * signs["value_clip"]
    slopes = np.linalg.lstsq(np.transpose([*signs.values(), both, abs(both)]), [y for _, y in runs])[0]
    effects = [claims.factorial(name, rates=4).mean / 2 for name in claims.ABLATED]
    effects.append(claims.factorial("reward_scale", "value_clip", rates=4).mean / 4)
    np.testing.assert_allclose(slopes[:-1], effects)

    def worth(name, runs):
        weights = [(2 if on[name] else -2) / len(runs) for on, _ in runs]
        return claims.Estimate([x for _, x in runs], weights)

    best = [(on, tried[0]) for on, tried in grid]
    clipped, unclipped = ([x for x in best if x[0]["value_clip"] is clip] for clip in (True, False))
    yield "scaling is worth {} at the best rates, and without it {}.".format(
        *(worth("reward_scale", x) for x in (clipped, unclipped))
    )
    means = sorted((x.mean(), on["value_clip"] and not on["reward_scale"]) for on, x in best)
    assert [unscaled for _, unscaled in means] == [True] * 4 + [False] * 12
    yield f"do not scale rewards reach {plain(means[3][0])} at most, the other twelve {plain(means[4][0])} or more"
    settings = {
        tuple(x["settings"][name] for name in claims.ABLATED): x for x in measured("ablation/walker2d")["settings"]
    }
    top, every = max(settings.values(), key=lambda x: x["mean"]["mean"]), settings[True, True, True, True]
    assert top is settings[True, False, True, True] and top["tuned"] == dict(policy_lr=2.5e-4)
    yield f"all four but annealing, at 2.5e-4: {show(top['mean'])}"
    yield f"PPO reaches {show(every['mean'])} at its best rate"
    assert sum(x["mean"]["mean"] > every["mean"]["mean"] for x in settings.values()) == 10  # "the eleventh of the 16"
    of_rates = {}
    for x in settings.values():
        for y in x["tried"]:
            of_rates.setdefault(y["policy_lr"], []).append((x["settings"], np.array(y["finals"])))
    annealing = {rate: worth("anneal_lr", runs) for rate, runs in of_rates.items()}
    yield f"at 1e-3 it is worth {annealing.pop(1e-3)}, and"
    assert len(annealing) == 3 and all(np.prod(x.interval()) < 0 for x in annealing.values())  # "nothing that 32 runs"


def algorithms():
    by_algo = {}
    for x in sorted(measured("algorithms/rewards")["settings"], key=lambda x: x["env_id"], reverse=True):
        assert x["seeds"] == [1, 2, 3]
        by_algo.setdefault(x["algo"], []).append(f"{plain(x['mean']['mean'])} | {span(x['finals'])} |")
    assert sorted(by_algo) == ALGOS
    for algo in "ppo ppo_m ppo_noclip trpo trpo_plus reinforce a2c vmpo".split():
        yield f"| `{algo}.py` | {' '.join(by_algo[algo])}"
    of = {algo: x[0].split(" |")[0] for algo, x in by_algo.items()}
    yield f"PPO-M reaches {of['ppo_m']} on Hopper, TRPO {of['trpo']}"
    before = {}
    for x in measured("algorithms/guide")["settings"]:
        before.setdefault(x["env_id"], {})[x["algo"]] = plain(x["mean"]["mean"])
    for env_id, where in (("Hopper-v5", "Hopper"), ("HalfCheetah-v5", "HalfCheetah")):
        yield "{reinforce}, {a2c} and {vmpo} on {where}".format(where=where, **before[env_id])


def guide():
    returns, kls = claims.through_training()
    relative = kls["a2c"] / kls["trpo_plus"]
    assert round(1 / relative[0], -1) == 50  # "a fiftieth of TRPO's at 1M steps"
    [steps] = [x["kl"]["steps"] for x in measured("guide/rewards")["settings"] if x["algo"] == "a2c"]
    later = np.array([x for x in steps if x > 1e6]) / 1e6
    yield f"as large at {later[np.argmax(relative > 1)]:.1f}M"
    fig_6, fig_7 = claims.changed_runs("entropy"), claims.changed_runs("epochs")
    more = stats.gmean(fig_6["a2c", 0][1]) / stats.gmean(fig_6["a2c", 0.1][1])
    assert 200 < more < 400  # "hundreds of times as large"
    assert sum(fig_7["reinforce", 5][1] > 100) == 2  # "in two of three runs"
    assert fig_7["a2c", 5][0].min() > fig_7["a2c", 1][0].max() and fig_7["a2c", 5][1].min() > 5
    both = returns["reinforce"].keys() & returns["a2c"].keys()
    assert all(returns["reinforce"][m][i] < returns["a2c"][m][i] for m in both if m >= 2 for i in (0, 1))


def stable_baselines3():
    """SB3's PPO beside ppo.py, three seeds each, and what its joint gradient norm does."""
    places, texts = ("Hopper", "HalfCheetah"), {}
    rewards = measured("sb3/rewards")["settings"]
    [hopper] = [x for x in rewards if (x["env_id"], x["algo"]) == ("Hopper-v5", "sb3")]
    yield show(hopper["mean"])  # in the README
    for place in places:
        of = {x["algo"]: np.array(x["finals"]) for x in rewards if x["env_id"] == f"{place}-v5"}
        assert {len(x) for x in of.values()} == {3}
        texts.setdefault("finals", []).append(show(intervals.difference(of["sb3"], of["ppo"])))
        cells = measured(f"sb3/{place.lower()}")

        def at(algo, iteration, number, cells=cells):
            found = [number(x) for x in cells if (x["algo"], x.get("iteration")) == (algo, iteration)]
            assert len(found) == 3
            return intervals.mean_of(found)

        kls = [show(at(*x, lambda x: x["heldout"]["mean_kl"]), 3) for x in (("sb3", 463), ("ppo", 475))]
        texts.setdefault("kl", []).append("{} for {}".format(*kls))
        texts.setdefault("step", []).append(show(at("sb3", 488, lambda x: x["critic_step"]), 2))
    norms = [x for place in places for x in measured(f"sb3/{place.lower()}") if "grads_clipped" in x]
    yield f"clips {100 * min(x['grads_clipped'] for x in norms):.0f} % of the minibatches or more, at all {len(norms)}"
    yield "SB3 ends {} above on Hopper and {} on HalfCheetah".format(*texts["finals"])
    yield "{} on Hopper, {} on HalfCheetah (iterations 463 and 475)".format(*texts["kl"])
    yield f"policy's gradient, whose norm is {span([x['policy_grad_norm'] for x in norms], 1)}, that is too long"
    yield f"the critic's is {span([x['value_grad_norm'] for x in norms], 2)}"
    yield "{} of what it would be on Hopper, {} on HalfCheetah".format(*texts["step"])


def surrogate():
    """In how many of six runs on Walker2d and Hopper a late step changes the reward, from few pairs and from many."""
    seeds = [claims.by_seed(f"landscapes/{env.lower()}", [300]) for env in PLACES[:2]]
    steps = [claims.steps_of(of) for of_env in seeds for of in of_env]

    def rises_and_falls(name, pairs, far=claims.FAR):
        ends = [x[name, pairs][far, 0.0]["change"]["interval"] for x in steps]
        return sum(low > 0 for low, _ in ends), sum(high < 0 for _, high in ends)

    _, falls = rises_and_falls("TRPO", claims.FEW)
    trpo, ppo, ppo_m = (rises_and_falls(name, claims.MANY) for name in ("TRPO", "PPO", "PPO-M"))
    yield f"lowers the reward in {falls} of {len(steps)} runs, as CL says"
    yield f"falls, as it does in {falls} of {len(steps)} runs on Walker2d and Hopper"
    assert ppo[0] == 1 and ppo_m[1] == 0  # "and rises in another", "lowers it in none"
    yield f"it falls in {ppo[1]} of {len(steps)} runs"
    yield f"step raises the reward in {trpo[0]} of {len(steps)} runs and lowers it in {trpo[1]}, PPO's raises it"
    yield f"in {ppo[0]} and lowers it in {ppo[1]}, and PPO-M's raises it in {ppo_m[0]} and lowers it in none"
    signs = [np.sign(x["PPO", claims.MANY][claims.FAR, 0.0]["change"]["interval"]).sum() for x in steps]
    assert signs == [2, 0, 0, -2, 0, 0]  # "only those of seed 1 lower the reward on Hopper and raise it on Walker2d"

    one = 1.0  # the step that the algorithm takes
    few, many, few_ppo, many_ppo = (
        rises_and_falls(name, pairs, one) for name in ("TRPO", "PPO") for pairs in (claims.FEW, claims.MANY)
    )
    yield f"the step itself does in {few[1]}."
    yield f"lowers it in {few[1]} of {len(steps)} runs and from many raises it in {many[0]}"
    assert (few[0], many[1], few_ppo, many_ppo) == (0, 0, (0, 1), (0, 1))  # "PPO's lowers it in 1 from either"
    assert rises_and_falls("PPO-M", claims.MANY, one) == (3, 0)  # "PPO-M's from many raises it in 3"

    def surrogates(name, pairs, far):
        return np.array([x[name, pairs][far, 0.0]["surrogate"] for x in steps])

    assert all((surrogates("TRPO", pairs, claims.FAR) > 0).all() for pairs in (claims.FEW, claims.MANY))
    for name in ("PPO", "PPO-M"):  # "rise at first and are below it in all six runs"
        assert (surrogates(name, claims.MANY, one) > 0).all() and (surrogates(name, claims.MANY, claims.FAR) < 0).all()


SECTIONS = learning, leave_one_out, carried_over, noise_of_the_nine, effects, as_written, early_in_training
SECTIONS += below_the_paper, new_scripts, trust_region, gradient, noise, baselines, values, algorithms, guide, replay
SECTIONS += replay_of_ppo, report, stable_baselines3, sample_regime, ablation, surrogate


@pytest.mark.parametrize("section", SECTIONS)
def test_the_pages_quote_what_was_measured(section):
    """Each text that a section gives stands in one of the pages; of several, all stand in one line."""
    lines, text = "\n".join(PAGES.values()).splitlines(), " ".join("\n".join(PAGES.values()).split())
    for said in section():
        if isinstance(said, tuple):
            assert any(all(part in line for part in said) for line in lines), said
        else:
            assert said in text


# What is written like a measured number and has no file: settings, definitions, results of the papers and of their
# code, and speeds.
GIVEN = {
    "README.md": """ICLR 2020; (2018; TPG); Lehmann, 2024; gains sqrt(2), 0.01 (policy); 2.9.2; 5 to 25 seconds;
        | 6,500 | 2.6 |; | 1,450 | 11.5 |; | 2,000 | 8.3 |; is 4.5 times; and 7.4 times; is 3.6 times;
        is 0.64, 0.43 and 0.67 of; a confidence of 99.9 %; half of what TRPO allows (0.04)""",
    "figures/README.md": """Gymnasium 1.4, MuJoCo 4.0; observation clip of 2.5; by 0.2 in an iteration; *GAE's
        lambda* of 0.95; Fig. 2 to 10^7 pairs; Theorem 5.1""",
    "figures/scripts.md": """(0.13 nats a step); mean KL above 0.13 nats; gradient norm of 0.5""",
}
# An interval, a range, a fraction, a negative number, and, since counts have commas (2,048), a final reward.
NUMBER = re.compile(r"\[[^\[\]]*\d[^\[\]]*\]|[−\d][\d.,]* to −?\d[\d.,]*|−?\d[\d,]*\.\d+|−\d+|\d{4,}")


def test_the_tables_are_what_the_numbers_give():
    assert claims.with_tables(PAGES["figures/README.md"]) == PAGES["figures/README.md"]


@pytest.mark.parametrize("name", draw.PICTURES)
def test_pictures_are_drawn_from_the_numbers(name):
    figure = draw.PICTURES[name]()
    lines = [line for axis in figure.axes for line in axis.lines]
    drawn = np.concatenate([np.ravel(line.get_xydata()) for line in lines])
    some = {
        "algorithms/rewards": lambda: measured(name)["settings"][0]["finals"],
        "baselines/baselines": lambda: [
            x["noise_scale"]["value network"]["pairs"] for x in measured("baselines/hopper")
        ],
        "guide/collapse": lambda: measured("guide/entropy")["settings"][2]["kl"]["mean"],
        "guide/evaluate": lambda: [x["returns"]["mean"] for x in measured("guide/evaluate")],
        "guide/rewards_kl": lambda: measured("guide/rewards")["settings"][1]["kl"]["mean"],
        "leave-one-out/paired": lambda: [
            y for x in measured("leave-one-out/hopper_new")["paired"] for y in x["differences"]
        ],
        "noise/hopper": lambda: [2048 / x["noise_scale"]["value network"]["pairs"] for x in measured(name)[:3]],
        "noise/walker2d": lambda: [2048 / x["noise_scale"]["value network"]["pairs"] for x in measured(name)[:3]],
        "sb3/sb3": lambda: [x["critic_step"] for x in measured("sb3/hopper") if "critic_step" in x],
    }[name]()
    assert len(some) and all(np.isclose(drawn, x).any() for x in some)


def test_rules_of_the_verdicts():
    """Against scipy, and on samples whose verdicts are known."""
    rng = np.random.default_rng(0)
    x, y, z = rng.normal(2, 1, 40), rng.normal(0, 2, 25), rng.normal(0, 0.1, 40)
    ours, welch = claims.Estimate([x, y], (1, -1)), stats.ttest_ind(x, y, equal_var=False)
    assert ours.interval() == pytest.approx(tuple(welch.confidence_interval()))
    assert claims.judge_sign(ours) == (claims.HOLDS, pytest.approx(welch.pvalue))
    four = [x, y, x[:20] + 1, y[:10]]
    halves = claims.Estimate(four, claims.OPTIMIZATIONS).interval()
    assert halves == pytest.approx(tuple(intervals.contrast(four, claims.OPTIMIZATIONS)["interval"]))
    assert claims.judge_sign(ours, -1)[0] == claims.NOT
    alone = claims.Estimate([z], [1])
    assert claims.judge_sign(alone)[0] == claims.UNCLEAR
    p = [stats.ttest_1samp(z, end, alternative=side).pvalue for end, side in ((0.05, "less"), (-0.05, "greater"))]
    assert claims.judge_none(alone, -0.05, 0.05) == (claims.HOLDS, pytest.approx(max(p)))
    assert claims.judge_none(alone, -0.02, 0.02)[0] == claims.UNCLEAR
    assert claims.judge_none(ours, -0.1, 0.1)[0] == claims.NOT
    one_value = np.append(np.zeros(19), 60.0)  # Student's t contains 0, and BCa does not
    of_two_kinds = claims.Estimate([one_value + 0.6], [1])
    assert np.prod(of_two_kinds.interval()) < 0 < np.prod(of_two_kinds.bootstrapped())
    assert claims.judge_sign(of_two_kinds)[0] == claims.UNCLEAR
    cells = [claims.Cell("", claims.HOLDS, 9, p) for p in (0.03, 0.001, 0.02, 0.9)]
    claims.correct([claims.Claim("", "", "", dict(Hopper=x)) for x in cells])
    assert [x.alone for x in cells] == [True, False, True, True]  # 0.02 is above 0.05 / 3


@pytest.mark.parametrize(
    "found, verdict",
    [
        ([0.9, 1.0, 1.1], claims.HOLDS),  # sizes, by Student's t over the seeds
        ([-0.9, -1.0, -1.1], claims.NOT),
        ([0.1, 0.2, 3.0], claims.UNCLEAR),
        ([0.1], claims.HOLDS),
        ([True, True, True], claims.HOLDS),  # what is so or is not so in each seed
        ([True, False, True], claims.UNCLEAR),
        ([claims.NOT, claims.NOT], claims.NOT),
        ([claims.NOT, claims.UNCLEAR], claims.UNCLEAR),
    ],
)
def test_verdicts_over_seeds(found, verdict):
    claim = claims.of_seeds("", "", "", "{} of {}", lambda env, x: ((str(x), env), x), dict(Hopper=found))
    assert claim.cells["Hopper"].verdict == verdict and claim.cells["Hopper"].seeds == len(found)
    assert claim.cells["Hopper"].text.startswith(", ".join(map(str, found)))
    if isinstance(found[0], float) and len(found) > 1:
        assert claim.cells["Hopper"].p == pytest.approx(stats.ttest_1samp(found, 0).pvalue)


def test_a_wrong_verdict_is_found(monkeypatch):
    """If the numbers were others, the page's tables would not be theirs."""
    changed = claims.finals("Hopper") | {"PPO": claims.finals("Hopper")["PPO"] - 500}
    finals = claims.finals
    monkeypatch.setattr(claims, "finals", lambda place: changed if place == "Hopper" else finals(place))
    assert claims.table(claims.about_the_step()) not in PAGES["figures/README.md"]


@pytest.mark.parametrize("algo", ["ppo", "trpo_plus"])
def test_the_example_of_an_edit_makes_advantages_of_returns(algo, tmp_path):
    """The diff on the page, applied to the script as it is now."""
    [diff] = re.findall(r"```diff\n(.*?)```", PAGES["figures/README.md"], flags=re.DOTALL)
    source = (ROOT / "algos" / f"{algo}.py").read_text()
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", diff, flags=re.MULTILINE):
        old, new = (re.sub(r"^.", "", x, flags=re.MULTILINE) for x in (old, new))
        assert source.count(old) == 1
        source = source.replace(old, new)
    script, args, state = start(algo, gamma=0.9, env_id="InvertedPendulum-v5")
    (tmp_path / f"{algo}_no_baseline.py").write_text(source)
    experience = script.rollout(args, state)
    batch = of_file(tmp_path / f"{algo}_no_baseline.py").estimate_advantages(args, state, experience)
    beyond = state.value(torch.from_numpy(experience["next_obs"])).detach().numpy() * ~experience["terminations"]
    expected, total = [], 0.0
    for t in reversed(range(args.num_steps)):
        total = experience["rewards"][t] + 0.9 * (beyond[t] if experience["ends"][t] else total)
        expected.insert(0, total)
    np.testing.assert_allclose(batch["advantages"], expected, rtol=1e-5)
    assert torch.equal(batch["value_targets"], batch["advantages"])
    assert experience["terminations"].any() and not experience["terminations"][-1]  # both kinds of end


@pytest.mark.parametrize("name", PAGES)
def test_every_number_is_measured_or_given(name):
    text = re.sub(r"<!-- table.*?<!-- end -->", " ", PAGES[name], flags=re.DOTALL)
    text = re.sub(r"```(?:bash|python|diff).*?```|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    text = " ".join(text.split())
    said = [[x] if isinstance(x, str) else x for section in SECTIONS for x in section()]
    known = [part.strip(" |") for parts in said for part in parts if re.search(r"\d", part)]
    for x in sorted([*known, *" ".join(GIVEN[name].split()).split("; ")], key=len, reverse=True):
        text = text.replace(x, "()")
    text = re.sub(r"`[^`]*`", " ", text)
    assert [text[max(0, x.start() - 30) : x.end() + 30] for x in NUMBER.finditer(text)] == []
