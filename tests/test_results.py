"""The READMEs quote what was measured: every number in them stands in a file beside the figures, or is one that is
given, by a paper or as a setting."""

import json
import re
import statistics
from itertools import permutations, product

import numpy as np
import pytest
from common import intervals
from conftest import ALGOS, ROOT, load
from scipy import stats

FIGURES = ROOT / "figures"
PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "figures/README.md")}


def measured(path):
    text = (FIGURES / f"{path}.json").read_text()
    assert '"/' not in text  # no folder of the machine that measured it
    return json.loads(text)


def show(numbers, digits=0):
    """Value, or mean, and interval as the pages write them: −242 [−1412, 928]."""
    value = numbers["mean"]
    return "{} [{}, {}]".format(*(plain(x, digits) for x in (value, *numbers["interval"])))


def plain(x, digits=0):
    return f"{round(x, digits) + 0:.{digits}f}".replace("-", "−")  # + 0: no −0


def span(values, digits=0):
    """−1.5 to 3.0: the smallest and the largest."""
    return f"{plain(min(values), digits)} to {plain(max(values), digits)}"


def agent(cell):
    """CL's PPO and TRPO and IM's PPO-M, by the name of the run."""
    if cell["algo"] == "trpo_plus":
        return "TRPO"
    return "PPO" if "policy-lr" in cell["run"] else "PPO-M"


def by_agent(path, first=0):
    """{agent: its cells from this iteration on}, of a diagnostic."""
    found = {}
    for x in measured(path):
        if x["iteration"] >= first:
            found.setdefault(agent(x), []).append(x)
    return found


# What the pages say, section by section, its numbers filled in from the files ----------------------------------------


def learning():
    ppo, trpo_plus = measured("ppo/rewards")["settings"]
    yield f"**{show(ppo['mean'])}**, seeds from {span(ppo['finals'])}"
    yield f"{show(trpo_plus['mean'])}, seeds from {span(trpo_plus['finals'])}"


def case(cell):
    """Which of the nine, or all, and whether the others are on."""
    return cell["switched"][0] if len(cell["switched"]) < 3 else "all", bool(cell["others_on"])


def worth_of_the_nine():
    """What each is worth, by environment, optimization and whether the others are on, and the settings' rewards."""
    worth, settings = {}, {}
    for env in ("Hopper", "Walker2d"):
        results = measured(f"leave-one-out/{env.lower()}")
        settings[env] = {x["label"]: x["mean"] for x in results["settings"]}
        for x in results["paired"]:
            assert x["seeds"] == [1, 2, 3, 4, 5]
            worth[env, *case(x)] = x["mean"] | dict(by_seed=np.array(x["differences"]))
    return worth, settings


def leave_one_out():
    worth, settings = worth_of_the_nine()
    for name in (name for env, name, on in worth if env == "Hopper" and on):
        cells = [show(worth[env, name, on]) for env in settings for on in (True, False)]
        yield f"`--{name.replace('_', '-')}` | {' | '.join(cells)} |"
    yield "all nine together | {} | | {} | |".format(*(show(worth[env, "all", False]) for env in settings))
    yield f"Of {sum(x['by_seed'].any() for x in worth.values())} intervals at 95 %"
    clipped = [worth["Walker2d", *x]["by_seed"] for x in (("reward_clip", False), ("obs_clip", True))]
    [reward], changes = ([plain(x) for x in y[y != 0]] for y in clipped)  # "in one run of 5", "in three"
    yield f"its final reward is {reward} higher"
    yield "theirs change by {}, {} and {}".format(*changes)
    claimed = [
        [show(worth[env, x, True]) for x in ("reward_scale", "anneal_lr", "orthogonal_init")] for env in settings
    ]
    yield "Hopper {}, {}, {}, Walker2d {}, {}, {}".format(*claimed[0], *claimed[1])
    yield f"all but it is the best setting, {show(settings['Hopper']['without-grad-clip'])}"
    off = [measured(f"leave-one-out/without_value_clip/{env.lower()}") for env in settings]
    yield "With both off, PPO reaches {} on Hopper and {} on Walker2d".format(
        *(show(x["settings"][1]["mean"]) for x in off)
    )
    [hopper, walker2d] = (x["mean"] for of in off for x in of["paired"])
    yield f"without value clipping, {show(hopper)} and {show(walker2d)}, 5 seeds do not tell from nothing"
    assert np.prod(hopper["interval"]) < 0 and np.prod(walker2d["interval"]) < 0
    less = [
        worth[env, "reward_scale", True]["by_seed"] - of["paired"][0]["differences"] for env, of in zip(settings, off)
    ]
    less = [show(intervals.mean_of(x)) for x in less]
    yield "less than with it by {} on Hopper, perhaps by chance, and by {} on Walker2d".format(*less)


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
    assert clear == ["reward_scale"]  # "the only one that 5 seeds tell from nothing in both"
    r, p, _ = agreement(alone)
    yield f"the rank correlation of seven is {r} (p = {p})"
    four = "value_clip", "reward_scale", "orthogonal_init", "anneal_lr"
    more = {name: intervals.difference(y["by_seed"], x["by_seed"]) for name, (x, y) in alone.items()}
    yield "by {}, {}, {} and {} more".format(*(show(more[name]) for name in four))
    assert {name for name, x in more.items() if np.prod(x["interval"]) > 0} == set(four)
    assert all(alone[name][0]["mean"] < 0 < alone[name][1]["mean"] for name in four)


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
        key = case(x)
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
# IM's claims about differences, by sign: above 0, below 0, or, of the step itself, none.
CLAIMED = {"PPO - PPO-M": 1, "TRPO+ - TRPO": 1, "TRPO+ - PPO-M": 1, "PPO - PPO-NoClip": -1, "PPO-NoClip - PPO-M": 1}
EFFECTS = dict(optimizations=(1, -1, -1, 1), step=(1, 1, -1, -1), interaction=(1, -1, 1, -1))  # halves, over the four


def verdict(interval, sign):
    """Of a claim that a difference is above 0 (sign 1), below 0 (-1), or none (0)."""
    low, high = interval
    if low <= 0 <= high:
        return "cannot tell"
    return "holds" if sign * (low + high) > 0 else "does not"


def by_verdict(verdicts):
    """Walker2d, Hopper: cannot tell; Humanoid: holds."""
    return "; ".join(f"{', '.join(places)}: {found}" for found, places in verdicts.items())


def clipping():
    """IM's Tables 2 and 3: the means, and the differences that the claims are about, with intervals of t and Welch from
    the final rewards, whatever interval rewards.py once wrote beside them."""
    claims, rows = {}, {}  # by difference, by agent: a text for each environment
    for place in PLACES:
        results = measured(f"clipping/{place.lower()}")
        of, [cell] = {x["label"]: np.array(x["finals"]) for x in results["settings"]}, results["aai"]
        seeds = max(map(len, of.values()))
        fewer = [f"{label} {len(x)}" for label, x in of.items() if len(x) < seeds]
        yield f"{place}-v4, {seeds} seeds" + f" ({', '.join(fewer)})" * bool(fewer)
        found = differences(of)
        for name, x in found.items():
            said = claims.setdefault(name, ([], {}))
            said[0].append(f"{place} {show(x)}")
            said[1].setdefault(verdict(x["interval"], CLAIMED.get(name, 0)), []).append(place)
        for x in results["settings"]:
            rows.setdefault(f"| {x['label']} |", []).append(f" {show(intervals.mean_of(of[x['label']]))} |")
        for name in ("AAI", "ACLI"):
            rows.setdefault(f"| {name}: what", []).append(f" {plain(cell[name.lower()]['mean'])} |")
        for name, signs in EFFECTS.items():
            effect = intervals.contrast([of[x] for x in FOUR], [x / 2 for x in signs])
            rows.setdefault(f"| main effect of the {name}" if name != "interaction" else "| interaction", []).append(
                f" {show(effect)} |"
            )
        halves = [(x["interval"][1] - x["interval"][0]) / 2 for x in found.values()]
        sd = [round(x.std(ddof=1), -1) for x in of.values()]
        yield f"{place} ±{span([round(x, -1) for x in halves])} (seeds differ by a standard deviation of {span(sd)})"
        if place == "Hopper":
            yield f"TRPO reaches {of['TRPO'].mean():.0f} on Hopper-v4"
            assert min(of, key=lambda label: of[label].std()) == "PPO-NoClip"  # "its seeds differ least"
    decided = [sum(place not in verdicts.get("cannot tell", []) for _, verdicts in claims.values()) for place in PLACES]
    yield f"of the {len(claims)} rows above Walker2d decides none, Hopper {decided[1]}, Humanoid {decided[2]}"
    assert decided[0] == 0
    for name, (texts, verdicts) in claims.items():
        yield name.replace(" - ", " − "), ", ".join(texts), f"| {by_verdict(verdicts)} |"
    yield from ((row, *cells) for row, cells in rows.items())


def early_in_training():
    """The same five after 300,000 steps: what the optimizations do there."""
    rows, apart = {}, 0  # by agent: a text for each environment
    for place in PLACES:
        early = {x["label"]: after(300_000, x["curve"]) for x in measured(f"clipping/{place.lower()}")["settings"]}
        for label, x in early.items():
            rows.setdefault(f"| {label}, early |", []).append(f" {show(x)} |")
        for x, y in ("PPO", "PPO-M"), ("TRPO+", "TRPO"):
            assert early[x]["mean"] > early[y]["mean"]
            apart += early[x]["interval"][0] > early[y]["interval"][1]
    yield from (row + "".join(cells) for row, cells in rows.items())
    yield f"in all three, with intervals that are apart in {apart} of 6 cases"


def below_the_paper():
    """What was tried about TRPO and TRPO+ on Humanoid."""
    schedule, trpo, noforce = measured("clipping/humanoid_checks")["settings"]
    [trpo_plus] = [x for x in measured("clipping/humanoid")["settings"] if x["label"] == "TRPO+"]
    more = intervals.difference(np.array(noforce["finals"]), np.array(trpo_plus["finals"]))
    yield f"brings TRPO+ no nearer ({schedule['mean']['mean']:.0f}, 1 seed)"
    yield f"TRPO+ reaches {show(noforce['mean'])} (5 seeds), which includes the paper's mean"
    yield f"{show(more)} more than with them may be chance"
    yield f"TRPO stays where it was ({trpo['mean']['mean']:.0f}, 1 seed)"


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
    yield f"seeds of PPO and of TRPO+ on Hopper-v4, {min(seeds)} to {max(seeds)}, whose number"
    yield f"PPO ends {texts['PPO']} above the 30 seeds of the table, TRPO+ {texts['TRPO+']} (99 % Welch intervals)"


FOUR = "PPO", "PPO-M", "TRPO", "TRPO+"
PAIRS = [("PPO", "PPO-M"), ("TRPO+", "TRPO"), ("TRPO+", "PPO-M"), ("PPO", "TRPO+"), ("PPO-M", "TRPO")]
PAIRS += [("PPO", "PPO-NoClip"), ("PPO-NoClip", "PPO-M")]


def differences(of):
    """{difference: its value and Welch interval, by scipy}, from the final rewards of each agent."""
    found = {}
    for x, y in PAIRS:
        ends = stats.ttest_ind(of[x], of[y], equal_var=False).confidence_interval()
        found[f"{x} - {y}"] = dict(mean=of[x].mean() - of[y].mean(), interval=[ends.low, ends.high])
        ours = intervals.difference(of[x], of[y])
        assert ours["interval"] == pytest.approx(found[f"{x} - {y}"]["interval"])
    return found


def after(steps, curve):
    """Mean reward and its interval where the curve has taken so many steps."""
    at = np.abs(np.array(curve["steps"]) - steps).argmin()
    return dict(mean=curve["mean"][at], interval=[curve["low"][at], curve["high"][at]])


def values():
    errors, exact, left_out = {}, [], ([], [])
    for env in ("Walker2d", "Hopper", "Humanoid"):
        for name, cells in by_agent(f"values/{env.lower()}", first=100).items():
            assert len(cells) == (5 if env == "Humanoid" else 16)
            row = f"| {env}-v5, {name} |"
            for target in ("gae", "returns", "released"):
                x = errors[env, name, target] = [cell[f"heldout_{target}"]["mean"] for cell in cells]
                row += f" {statistics.median(x):.3f}, {span(x, 3)} |"
            yield row
            shares = [x["heldout_released"]["exact_v"] / x["heldout_released"]["mean"] for x in cells]
            exact.append(statistics.median(shares))
            left_out[env == "Humanoid"].extend(x["heldout_released"]["near_zero"] for x in cells)
    assert [env for env, _, target in errors if target == "gae"] == 3 * ["Walker2d"] + 3 * ["Hopper"] + 2 * ["Humanoid"]
    yield f"that is {span(exact[:6], 2)} of what was measured ({span(exact[6:], 2)} on Humanoid;"
    yield "the pairs, {:.2f} % at most, on Humanoid {:.2f} %, whose targets".format(*(100 * max(x) for x in left_out))
    middle = {key: statistics.median(x) for key, x in errors.items()}
    gae, returns = ([x for key, x in middle.items() if key[2] == target] for target in ("gae", "returns"))
    yield f"the networks err by {span(returns[:6], 3)} (medians), on Humanoid by {span(returns[6:], 3)}"
    yield f"mean error held out {span(gae[:6], 3)}, on Humanoid {span(gae[6:], 3)}"
    found = {key: middle["Walker2d", *key] for key in product(("PPO", "TRPO"), ("released", "returns"))}
    yield "{:.3f} (PPO), {:.3f} (TRPO) against returns that stop at cuts".format(
        found["PPO", "released"], found["TRPO", "released"]
    )
    yield "{:.3f} and {:.3f} where cuts are bootstrapped".format(found["PPO", "returns"], found["TRPO", "returns"])


def trust_region():
    seen = {}
    for path in ("hopper", "walker2d"):
        for name, cells in by_agent(f"trust_region/{path}").items():
            assert len(cells) == 20
            seen[path, name] = cells

    def of(name, part, what):
        return [x[part][what] for (_, found), cells in seen.items() if found == name for x in cells]

    for name in ("PPO", "PPO-M"):
        ratios = of(name, "train", "max_ratio")
        assert min(ratios) > 1.2 and len(ratios) == 40
        yield f"{span(ratios, 1)} for {name}"
    ratios, trpo = of("PPO", "train", "max_ratio") + of("PPO-M", "train", "max_ratio"), of("TRPO", "train", "max_ratio")
    assert min(ratios + trpo) > 1.2 and len(ratios + trpo) == 120
    yield f"above 1.2 at all 120 checkpoints: PPO and PPO-M {span(ratios, 1)}, TRPO {span(trpo, 1)}"
    largest = max(of("PPO", "train", "mean_kl") + of("PPO-M", "train", "mean_kl"))
    yield f"Their mean KL is {largest:.2f} nats at most"
    peaks, ranks, larger, shares, medians, states, beyond = [], [], [], [], [], [], []
    for path, bound in (("hopper", 0.13), ("walker2d", 0.04)):
        ppo, ppo_m, trpo = ([x["train"]["mean_kl"] for x in seen[path, name]] for name in ("PPO", "PPO-M", "TRPO"))
        iterations = [x["iteration"] for x in seen[path, "PPO"]]
        assert ppo[-1] < ppo[0]
        peaks.append(iterations[np.argmax(ppo)])
        rank = stats.spearmanr(iterations, ppo_m)
        ranks.append(f"{rank.statistic:.2f} (p = {rank.pvalue:.3f})")
        of_two = [x > y for x, y in zip(ppo, ppo_m)]
        larger.append(f"{sum(of_two)} of 20")
        assert not any(of_two[-3:]) and sum(of_two[:16]) >= 12  # "mostly", "none of the last three"
        shares.append(f"{max(ppo_m) / bound:.2f}")
        assert max(trpo) <= bound
        medians.append(f"{np.median(trpo) / bound:.2f}")
        states.append(span([x["train"]["max_kl"] / bound for x in seen[path, "TRPO"]]))
        heldout = [x["heldout"]["mean_kl"] for x in seen[path, "TRPO"]]
        yield f"at {sum(x > bound for x in heldout)} of 20 checkpoints, {max(heldout):.3f} at most"
        beyond += [x / bound - 1 for x in heldout if x > bound]
    yield f"held out above it at {len(beyond)}, by {100 * max(beyond):.0f} % at most"
    yield "Hopper peak at iteration {}, Walker2d at {} of 488".format(*peaks)
    yield "is largest at iteration {} on Hopper, at {} on Walker2d".format(*peaks)
    yield "rank correlation with the iteration {}, {}".format(*ranks)
    yield "rank correlation with the iteration {} on Hopper, {} on Walker2d".format(*ranks)
    yield "PPO's is the larger of the two at {} and at {} checkpoints".format(*larger)
    yield "at most {} (Hopper) and {} (Walker2d) of TRPO's bound".format(*shares)
    yield "half of them below {} and {} of it".format(*medians)
    yield "Hopper {} times, Walker2d {} times".format(*states)
    yield f"its ratios reach {max(of('TRPO', 'train', 'max_ratio')):.0f}, its largest KL in one state"
    yield f"{max(of('TRPO', 'train', 'max_kl')):.0f} nats"


def gradient():
    cells = measured("gradient/walker2d")
    [place] = {x["pairs"].index(2048) for x in cells}
    start, later = ([x for x in cells if (x["iteration"] == 0) == first] for first in (True, False))
    assert len(start) == 3 and len(later) == 9
    for name in ("variance", "convergence"):
        for part in (start, later):
            yield span([x[name]["value network"][place]["mean"] for x in part], 2)
    for env, path in (("Walker2d", "walker2d"), ("Humanoid", "humanoid")):
        for name, of in by_agent(f"gradient/{path}").items():
            cells = [pairs(x["noise_scale"]["value network"]) for x in of]
            yield f"| {env}-v5, {name} | {' | '.join(cells)} |"
            if name == "PPO":
                start, *rest = cells
                yield f"{env} {start} pairs at iteration 0, then {', '.join(rest)}"
    above = {}  # the iterations up to which Humanoid's interval is above Walker2d's
    for name, of in by_agent("gradient/humanoid").items():
        both = zip(of, by_agent("gradient/walker2d")[name], strict=True)
        apart = [bounds(x)[0] > bounds(y)[1] for x, y in both]
        assert apart == sorted(apart, reverse=True)
        above[name] = of[sum(apart) - 1]["iteration"]
    yield "Walker2d's intervals are below up to iteration {PPO} (PPO), {TRPO} (TRPO)".format(**above)
    humanoid = [x for x in measured("gradient/humanoid") if x["iteration"] > 0]
    yield f"Humanoid {span([x['variance']['value network'][0]['mean'] for x in humanoid], 2)}"


def steps():
    cells = measured("steps/walker2d")
    start, later = ([x["cosine"] for x in cells if (x["iteration"] == 0) == first] for first in (True, False))
    assert len(start) == 3 and len(later) == 9
    yield f"{span([x['mean'] for x in start], 2)} before the first step, {span([x['mean'] for x in later], 3)} later"
    yield f"{sum(x['interval'][0] > 0 for x in later)} of these 9 are known to be above 0"


def noise():
    cells, walker2d = by_agent("noise/hopper"), by_agent("noise/walker2d")
    above = []  # at each later checkpoint, whether it is known to be above the first
    for by_name in (cells, walker2d):
        later = []
        for start, *rest in by_name.values():
            assert start["iteration"] == 0 and len(rest) == 8
            above += [bounds(x)[0] > bounds(start)[1] for x in rest]
            later += [x["noise_scale"]["value network"] for x in rest]
    [again] = [x for x in walker2d["PPO"] if x["iteration"] == 150]
    yield f"at 150 PPO's on Walker2d is {pairs(again['noise_scale']['value network'])} from these"
    yield f"known to be above iteration 0's at {sum(above)} of {len(above)} later checkpoints"
    yield f"is at most {max(2048 / (x['pairs'] or x['interval'][0]) for x in later):.2f} of it later"  # Walker2d's
    late = [x["noise_scale"]["value network"] for of in cells.values() for x in of if x["iteration"] >= 200]
    batches = [(x["pairs"] or x["interval"][0]) / 2048 for x in late]  # where it is unbounded, the least that it is
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
    explained, none = [], []
    for env, path in (("Walker2d", "walker2d"), ("Hopper", "hopper")):
        for x in measured(f"baselines/{path}"):
            names = "value network", "true value function", "discounted returns (no baseline)"
            scales = [x["noise_scale"][name] for name in names]
            yield f"| {env}-v5 | {x['iteration']} | {' | '.join(map(pairs, scales))} |"
            if x["iteration"] == 150:
                yield f"{pairs(scales[1])} for {pairs(scales[0])}"
            low, network = scales[2]["interval"][0], pairs(scales[0])
            if not network.startswith("more") and low > scales[0]["interval"][1]:  # the intervals are apart
                none.append(f"{pairs(scales[2])} for {network.split()[0]}")
            explained.append(list(x["explained_variance"].values()))
    yield "the three checkpoints that tell: {}; {}; {}".format(*none)
    assert all(true > network for network, true in explained)
    network, true = (f"{min(x):.3f} to {max(x):.3f}" for x in zip(*explained))
    yield f'of the variance of held-out returns it explains {network}, the "true" one {true}'


def bounds(cell):
    """Both ends of a noise scale's interval; where it has no upper one, infinity."""
    low, high = cell["noise_scale"]["value network"]["interval"]
    return low, np.inf if high is None else high


def pairs(noise):
    """A noise scale, 16,000 [10,000, 24,000], or the least that it is."""
    digits, (low, high) = load("gradient").two_digits, noise["interval"]
    if high is None:
        return f"more than {digits(low)}"
    return f"{digits(noise['pairs'])} [{digits(low)}, {digits(high)}]"


SIGNS = {("TRPO", 50_000): 1}  # CL: along the other late steps the reward falls


def landscapes():
    first, last, starts, claims = [], [], [], {}  # by claim: {verdict: environments}
    for env in ("Hopper", "Walker2d"):
        cells = [x for x in measured(f"landscapes/{env.lower()}") if x["random"] == 0]
        assert min(x["surrogate"] for x in cells if 0 < x["step"] < 3) > 0
        last += cells
        for name in ("PPO", "PPO-M", "TRPO"):
            of = {(x["step_pairs"], x["step"]): x for x in cells if agent(x) == name}
            changes = {key: show(x["change"]) for key, x in of.items()}
            row = f"| {env}-v5, {name} | {show(of[2000, 0])} |"
            yield row + "".join(f" {changes[n, step]} |" for n in (2000, 50_000) for step in (1, 2))
            for n in (2000, 50_000) if name != "PPO-M" else ():
                yield f"{env} {changes[n, 1]}, after twice the step {changes[n, 2]}"
                found = verdict(of[n, 1]["change"]["interval"], SIGNS.get((name, n), -1))
                claims.setdefault((name, n), {}).setdefault(found, []).append(env)
        start = [x for x in measured(f"landscapes/{env.lower()}_start") if (x["step"], x["random"]) == (1, 0)]
        assert min(x["surrogate"] for x in start) > 0
        starts += [x["change"] for x in start]
        first += start
    assert len(starts) == 12 and min(x["interval"][0] for x in starts) > 0
    yield f"all 12 steps at iteration 0 raise both, the reward by {span([x['mean'] for x in starts])}"
    for (name, n), verdicts in claims.items():
        yield f"| {name}, late, step from {'few' if n == 2000 else 'many'} pairs: ", f"| {by_verdict(verdicts)} |"
    cells = last, first, [x for x in first if agent(x) == "PPO"]
    late, early, ppo = ([2 / x["step_norm"] for x in of] for of in cells)
    yield f"at iteration 300, {span(late)}; at iteration 0, {span(early)}, of which PPO's {span(ppo, 1)}"


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
    """GUIDE's five algorithms with its settings, two seeds: returns through 8M steps, and an iteration's KL."""
    steps, kls = {}, {}  # by algorithm, after 1M steps: million steps, and KLs in 0.01 nats
    for x in measured("guide/rewards")["settings"]:
        assert x["seeds"] == [1, 2]
        million, kl = np.array(x["kl"]["steps"]) / 1e6, np.array(x["kl"]["mean"]) / 0.01
        steps[x["algo"]], kls[x["algo"]] = million[million > 1], kl[million > 1]
    at = {}  # the return of each seed, by algorithm and million steps
    for x in sorted(measured("guide/evaluate"), key=lambda x: x["run"]):
        assert x["deterministic"] and x["episodes"] == 10 and x["run"][-7:] in ("__seed1", "__seed2")
        at.setdefault((x["algo"], round(x["global_step"] / 1e6)), []).append(x["returns"]["mean"])
    assert {len(x) for x in at.values()} == {2}

    def both(algo, million):
        return "{}, {}".format(*map(plain, at[algo, million]))

    names = dict(reinforce="REINFORCE", a2c="A2C", trpo_plus="TRPO", ppo="PPO", vmpo="V-MPO")
    ends, spans, beyond = {}, {}, {}
    for algo, name in names.items():
        of = kls[algo].tolist()
        ends[algo], spans[algo] = both(algo, 8), span(of, 4 if algo == "reinforce" else 2)
        beyond[algo] = f"{sum(x > 1 for x in of)} of {len(of)}"
        yield f"| {name} | {both(algo, 1)} | {ends[algo]} | {spans[algo]} | {beyond[algo]} |"
    yield "PPO {ppo}; V-MPO {vmpo}; TRPO {trpo_plus}; A2C {a2c}; REINFORCE {reinforce}".format(**ends)
    yield "TRPO {trpo_plus}, REINFORCE {reinforce}, A2C {a2c}".format(**spans)
    ratios = {algo: plain(max(x) / min(x), 1) for algo, x in kls.items()}
    yield "TRPO {trpo_plus}, V-MPO {vmpo}, PPO {ppo}".format(**ratios)
    yield f"V-MPO's is above the bound at {beyond['vmpo']} places"
    best = [[max(names, key=lambda x: at.get((x, m), (0, 0))[seed]) for m in range(1, 9)] for seed in (0, 1)]
    first = min(i for i, pair in enumerate(zip(*best)) if pair != ("ppo", "ppo"))
    yield f"PPO is ahead up to {first}M steps in both seeds"
    assert [x[-1] for x in best] == ["vmpo", "ppo"]  # "at 8M V-MPO in one and PPO in the other"
    gaps = [at["ppo", million][1] - at["trpo_plus", million][1] for million in range(1, 9)]
    assert abs(at["ppo", 8][0] - at["trpo_plus", 8][0]) < 100  # "as high as PPO at the end in one"
    yield f"{span(gaps)} behind it in the other"
    ahead = [[at["vmpo", m][seed] > at["trpo_plus", m][seed] for m in range(1, 9)] for seed in (0, 1)]
    assert all(x == sorted(x) for x in ahead)
    yield "V-MPO is ahead of TRPO from {}M steps on, {}M".format(*(x.index(True) + 1 for x in ahead))
    reach = [
        [min(m for m in range(9) if at[algo, m][seed] > at["a2c", 8][seed]) for seed in (0, 1)]
        for algo in ("trpo_plus", "vmpo")
    ]
    yield "TRPO has at {}M, {}M, V-MPO at {}M, {}M".format(*reach[0], *reach[1])
    for algo, million in at:  # "REINFORCE is last from 2M on"
        if algo == "reinforce" and million >= 2:
            assert all(at[algo, million][seed] < at["a2c", million][seed] for seed in (0, 1))
    relative = kls["a2c"] / kls["trpo_plus"]
    assert round(1 / relative[0], -1) == 50  # "a fiftieth of TRPO's at 1M steps"
    yield f"as large at {steps['a2c'][np.argmax(relative > 1)]:.1f}M"


SECTIONS = learning, leave_one_out, carried_over, noise_of_the_nine, clipping, early_in_training, below_the_paper
SECTIONS += (new_scripts,)
SECTIONS += trust_region, gradient, steps, noise, baselines, values, landscapes
SECTIONS += algorithms, guide, replay, replay_of_ppo, report


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
    "README.md": """Python 3.11; ICLR 2020; (2018; TPG); Lehmann, 2024; gains sqrt(2), 0.01 (policy);
        prints 2.5 (Hopper); 1b8af2d (April 2020); 094994f (November 2019);
        its KL of the std is 0.5; one of 49, at 99.9 %; half of what TRPO allows (0.04);
        0.67 | 4.1 times; 0.47 | 6.3 times; 0.69 | 3.2 times; 5 to 25 seconds""",
    "figures/README.md": """Gymnasium 1.4, MuJoCo 4.0; 242, 47, −224; −56, 99, 88; 425, 142, −25; about 0.5 on Walker2d;
        from 0.1 to 0.05;
        3292 [3157, 3426]; 2735 [2602, 2866]; 2867 [2701, 3024]; 2791 [2709, 2873]; 3050 [2976, 3126];
        2513 [2391, 2632]; 2142 [2008, 2279]; 2371 [2316, 2424]; 2043 [1948, 2136]; 2466 [2381, 2549];
        806 [785, 827]; 674 [656, 695]; 831 [798, 869]; 586 [576, 596]; 1030 [979, 1083];
        PPO 2396, PPO-M 2172, TRPO 2124 (4 seeds), TRPO+ 2594 (3 seeds);
        | −68 |; | −26 |; | −156 |;
        has 4332 at 1M and 6414 at 8M; TPG sec. 5.4; CL's agents without a baseline (sec. 2.2);
        prints 421 as Hopper's ACLI; in 0.01 nats; its bound, 0.01 nats; above 0.01 nats; 0.8 of it; 0.64 of its KL;
        PPO 4330 and 781, PPO-M 3364 and 3004, TRPO 3285 and 2700;
        move by 0.2 in an iteration; 1 + eps = 1.2; bound 0.13;
        Walker2d, 0.04; iterations 100 to 475; (0.13 nats a step); mean KL above 0.13 nats""",
}
# An interval, a range, a fraction, a negative number, and, since counts have commas (2,048), a final reward.
NUMBER = re.compile(r"\[[^\[\]]*\d[^\[\]]*\]|[−\d][\d.,]* to −?\d[\d.,]*|−?\d[\d,]*\.\d+|−\d+|\d{4,}")


@pytest.mark.parametrize("name", PAGES)
def test_every_number_is_measured_or_given(name):
    text = re.sub(r"```(?:bash|python).*?```|\]\([^)]*\)", " ", PAGES[name], flags=re.DOTALL)
    text = " ".join(text.split())
    said = [[x] if isinstance(x, str) else x for section in SECTIONS for x in section()]
    known = [part.strip(" |") for parts in said for part in parts if re.search(r"\d", part)]
    for x in sorted([*known, *" ".join(GIVEN[name].split()).split("; ")], key=len, reverse=True):
        text = text.replace(x, "()")
    text = re.sub(r"`[^`]*`", " ", text)
    assert [text[max(0, x.start() - 30) : x.end() + 30] for x in NUMBER.finditer(text)] == []
