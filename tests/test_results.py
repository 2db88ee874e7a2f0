"""The pages quote what was measured. Tables and verdicts are those that the rooms' claims.py compute, and every other
number stands in a table of its page, or a section below computes it, or it is given, by a paper or as a setting."""

import importlib.util
import json
import re
import sys
from itertools import permutations

import gymnasium
import numpy as np
import pytest
import torch
from conftest import ALGOS, ROOT, load, start
from matplotlib.colors import to_hex
from measuring import intervals
from scipy import stats

FIGURES = ROOT / "figures"
sys.path.insert(0, str(FIGURES))

import claims
import estimates
import papers
from claims import room
from estimates import PLACES, Estimate, by_seed, finals, in_percent, in_places, measured, plain, span

reward, clipping, nine, steps, gradients, critic, landscapes, algorithms = map(
    room, ("reward", "clipping", "nine", "steps", "gradients", "critic", "landscapes", "algorithms")
)
ROOMS = claims.ROOMS
PAGES = {"README.md": (ROOT / "README.md").read_text(), "first page": (FIGURES / "README.md").read_text()}
PAGES |= {name: (FIGURES / name / "README.md").read_text() for name in ROOMS}


def show(numbers, digits=0):
    """Mean and interval as the pages write them: −240 [−1,410, 930], or with so many digits after the point."""
    if digits == 0 and np.ptp(numbers["interval"]):
        return estimates.show(numbers["mean"], *numbers["interval"])
    return "{} [{}, {}]".format(*(plain(x, digits) for x in (numbers["mean"], *numbers["interval"])))


# What the pages say beyond their tables -------------------------------------------------------------------------------


def of_the_reward():
    """What the page says beside its table: other agents, stages, and the paper's TRPO."""
    written, now = finals("reward/hopper_as_written"), reward.rewards("Hopper")
    yield "PPO-M reaches {} and TRPO {} (10 seeds)".format(
        *(Estimate([written[f"{x}-defined"]]) for x in ("PPO-M", "TRPO"))
    )
    yield "Walker2d {:.0f}, Hopper {:.0f}, Humanoid {:.0f}".format(*(np.ceil(reward.margin(x)) for x in PLACES))
    assert f"{reward.effect('Humanoid', reward.STEP).p():.0e}" == "3e-05"  # "p = 3e-5"
    trpo = reward.rewards("Humanoid")["TRPO"]
    yield "{:.0f} [{:.0f}, {:.0f}] for 586".format(trpo.mean(), *Estimate([trpo]).interval())
    assert 0.6 < trpo.mean() / 586 < 0.7  # "a third below IM's"
    *_, plain_trpo, noforce = measured("reward/humanoid_checks")["settings"]
    more = Estimate([np.array(noforce["finals"]), reward.rewards("Humanoid")["TRPO+"]], (1, -1))
    yield f"to {show(noforce['mean'])} (5 seeds), {more} more than with them, which is not significant"
    yield f"TRPO ({plain_trpo['finals'][0]:.0f}, one seed)"
    for place, x, y in (("Walker2d", "PPO", "TRPO+"), ("Humanoid", "PPO", "TRPO+"), ("Humanoid", "PPO-M", "TRPO")):
        assert np.prod(reward.in_paper(place, (1, -1), (x, y))[1:]) > 0  # "Of IM's own numbers, too"
    halves = [finals(f"reward/walker2d{x}") for x in ("", "_new")]
    assert {len(x[name]) for x in halves for name in reward.FOUR} == {20}
    yield "at the end it is {} and {}".format(
        *(Estimate([x[name] for name in reward.FOUR], reward.OPTIMIZATIONS) for x in halves)
    )
    first = finals("reward/hopper_first")
    assert {len(x) for x in first.values()} == {20} and not set(first["PPO"]) & set(now["PPO"])
    pooled = {name: np.append(now[name], first[name]) for name in ("PPO", "PPO-M", "TRPO")}
    yield f"PPO − PPO-M is {Estimate([pooled['PPO'], pooled['PPO-M']], (1, -1))} and"
    yield f"TRPO+ − TRPO {Estimate([now['TRPO+'], pooled['TRPO']], (1, -1))}"
    yield f"was {Estimate([first['PPO'], first['PPO-NoClip, clip 2.5']], (1, -1))}."  # in the room about clipping
    assert min(now, key=lambda label: now[label].std()) == "PPO-NoClip"  # "its seeds differ least"
    yield f"TRPO reaches {now['TRPO'].mean():.0f} on Hopper-v4"


def of_later_seeds():
    """IM's four agents on Hopper in the seeds that later scripts trained, mostly for the protocols."""
    new, deltas = finals("reward/hopper_new_scripts"), finals("reward/deltas")
    later = {
        "PPO": np.append(new["PPO"], finals("clipping/rates_hopper")["PPO-3e-4"]),
        "PPO-M": finals("reward/ladder_hopper")["PPO-M-rates-obs-norm-tanh"],
        "TRPO": deltas["TRPO"],
        "TRPO+": np.append(new["TRPO+"], deltas["TRPO+"]),
    }
    assert [len(x) for x in later.values()] == [15, 10, 10, 15]
    before = reward.rewards("Hopper")
    differences = [Estimate([x, before[name]], (1, -1)) for name, x in later.items()]
    yield "PPO ends {}, PPO-M {}, TRPO {} and TRPO+ {} above the 30".format(*differences)
    pooled = {name: np.append(before[name], x) for name, x in later.items()}
    for form, of in ("optimizations is {}, the step's {}", later), ("would be {} and {}", pooled):
        yield form.format(*(Estimate([of[x] for x in reward.FOUR], y) for y in (reward.OPTIMIZATIONS, reward.STEP)))
    step = Estimate([pooled[x] for x in reward.FOUR], reward.STEP)
    assert not claims.negligible(step, reward.margin("Hopper"))  # "would no longer be negligible"
    cell = claims.claims_of("reward")["IM: the step makes no difference"]["Hopper"]
    pooled_cell = claims.of_none(step, reward.margin("Hopper"))
    assert (claims.mark(cell), pooled_cell.verdict) == ("(✓)30", claims.UNCLEAR)  # "would be a ?"
    later = {"PPO": finals("clipping/rates_walker2d")["PPO-3e-4"]}
    later["PPO-M"] = finals("reward/ladder_walker2d")["PPO-M-rates-obs-norm-tanh"]
    of = {name: np.append(x, later.get(name, [])) for name, x in reward.rewards("Walker2d").items()}
    yield f"PPO − PPO-M would be {Estimate([of['PPO'], of['PPO-M']], (1, -1))}"
    verdicts = {x: cells()["Walker2d"].verdict for x, cells in reward.CLAIMS.items() if x.startswith("IM")}
    with pytest.MonkeyPatch.context() as patch:
        before = reward.rewards
        patch.setattr(reward, "rewards", lambda place: of if place == "Walker2d" else before(place))
        assert verdicts == {x: reward.CLAIMS[x]()["Walker2d"].verdict for x in verdicts}  # "no verdict would change"


def of_the_ladder():
    for place in reward.CLIMBED:  # "after Holm's correction … this holds in neither environment"
        assert min(cells()[place].p for name, cells in reward.LADDER.items() if "is worth more" in name) > 0.05 / 3
    tanh = [reward.of_ladder(place, "PPO-M-rates", "tanh") for place in reward.CLIMBED]
    mean = Estimate(sum((x.samples for x in tanh), []), [w / 2 for x in tanh for w in x.weights])
    yield f"like the two numbers before, is {mean}"
    (walker2d, _), (low, high) = (reward.of_ladder(x, "PPO-M-rates").interval() for x in reward.CLIMBED)
    papers_walker2d, papers_hopper = (reward.in_paper(x, reward.OPTIMIZATIONS)[0] for x in reward.CLIMBED)
    assert round(walker2d) == round(papers_walker2d) and low < papers_hopper < high
    yield f"begins at the {papers_walker2d:.0f} that IM finds"
    yield f"contains IM's {papers_hopper:.0f}"
    for form, change in (
        ("are worth {} and {}", "PPO-M-rates-obs-norm"),
        ("by {} and {}", "PPO-M-rates-obs-norm-tanh"),
    ):
        other = change.replace("PPO-M-rates", "PPO-rates")
        yield form.format(*(reward.ladder_difference(place, change, other) for place in reward.CLIMBED))
    all_three = "PPO-M-rates-obs-norm-tanh", "PPO-rates"
    effects = [reward.of_ladder("Walker2d", x) for x in reward.CHANGES]
    weights = {x: np.array(y.weights) for x, y in zip(reward.CHANGES, effects)}
    for other in ("PPO-M-rates", "tanh"):  # "normalization the most"
        assert Estimate(effects[0].samples, weights["obs-norm"] - weights[other]).interval()[0] > 0
    half = weights["obs-norm"] - np.array([{all_three[0]: 0.5, all_three[1]: -0.5}.get(x, 0) for x in reward.RUNGS])
    yield f"worth {Estimate(effects[0].samples, half)} more than half"
    yield f"{effects[1]} of the whole ladder's {reward.ladder_difference('Walker2d', *all_three)}"
    yield f"nine reaches {Estimate([finals('reward/ladder_walker2d')['PPO-rates']])}"


def at(steps, path):
    """Each agent's mean and standard error where its curve has taken so many steps."""
    found = {}
    for x in measured(path)["settings"]:
        i = np.abs(np.array(x["curve"]["steps"]) - steps).argmin()
        mean, low, high = (x["curve"][y][i] for y in ("mean", "low", "high"))
        found[x["label"]] = mean, (high - low) / 2 / stats.t.ppf(0.975, len(x["finals"]) - 1)
    return found


def early_in_training():
    """The two halves of Walker2d's seeds, and what the optimizations do after 300,000 steps."""
    halves = [at(400_000, f"reward/walker2d{x}")["PPO-M"] for x in ("", "_new")]
    yield "at 400,000 steps PPO-M has {} and {}, at".format(*(plain(x) for x, _ in halves))
    zs = [(halves[1][0] - halves[0][0]) / np.hypot(halves[0][1], halves[1][1])]
    effects = []
    for path in ("reward/walker2d", "reward/walker2d_new"):
        of = at(500_000, path)
        parts = [(w * of[name][0], w * of[name][1]) for w, name in zip(reward.OPTIMIZATIONS, reward.FOUR)]
        effects.append((sum(x for x, _ in parts), np.hypot.reduce([x for _, x in parts])))
    yield "main effect is {} and {} (z = 3.3 each)".format(*(plain(x, -1) for x, _ in effects))
    zs.append((effects[0][0] - effects[1][0]) / np.hypot(effects[0][1], effects[1][1]))
    assert [f"{z:.1f}" for z in zs] == ["3.3", "3.3"]
    above = 0
    for place in PLACES:
        batches = [at(300_000, f"reward/{place.lower()}{x}") for x in (("", "_new") if place == "Walker2d" else ("",))]
        of = {x: np.mean([y[x][0] for y in batches]) for x in reward.FOUR}
        error = {x: np.hypot.reduce([y[x][1] for y in batches]) / len(batches) for x in reward.FOUR}
        freedom = 2 * (len(reward.rewards(place)["PPO"]) - len(batches))
        for x, y in ("PPO", "PPO-M"), ("TRPO+", "TRPO"):
            assert of[x] > of[y]
            above += of[x] - of[y] > stats.t.ppf(0.975, freedom) * np.hypot(error[x], error[y])
    yield f"above 0 in {above} of 6 cases"


def of_the_nine():
    """What the page says of all settings, over all seeds."""
    settings = {env: {} for env in ("Hopper", "Walker2d")}
    for env, batch in (("Hopper", "hopper"), ("Hopper", "hopper_new"), ("Walker2d", "walker2d")):
        for label, x in finals(f"nine/{batch}").items():
            settings[env].setdefault(label, []).extend(x)
    mean = {env: {label: show(intervals.mean_of(x)) for label, x in of.items()} for env, of in settings.items()}
    yield f"reaches {mean['Walker2d']['all']} with all nine, {mean['Walker2d']['none']} without any, and"
    yield f"{mean['Walker2d']['without-reward-scale']} with all but reward scaling"
    yield f"on Hopper {mean['Hopper']['all']} and {mean['Hopper']['none']}."
    ps, significant = nine.holm()
    yield f"After Holm's correction, {len(significant)} of these {len(ps)} differences are significant"
    assert set(significant) == {
        ("Hopper", "reward_scale", True),
        ("Hopper", "all", False),
        ("Walker2d", "reward_scale", True),
    }
    halves = [np.ptp(intervals.t_interval(x)) / 2 for (_, on), x in nine.worth("Walker2d").items() if on and x.any()]
    yield f"with the others on is {round(np.mean(halves), -1):,.0f}"
    first, new = finals("nine/hopper"), finals("nine/hopper_new")
    batches = {label: stats.ttest_ind(first[label], new[label], equal_var=False).pvalue for label in first}
    least, unlike = min(batches, key=batches.get), len({x.round(6) for x in batches.values()})
    assert least == "only-grad-clip" and unlike == 17 and batches[least] < 0.05 / 17
    texts = [show(intervals.mean_of(x[least])) for x in (first, new)]
    yield f"alone, from {texts[0]} to {texts[1]} (p = {batches[least]:.3f})"
    [clipped] = [x for x in nine.worth("Walker2d")["reward_clip", False] if x]  # "in one run of 5"
    yield f"its final reward is {plain(clipped)} higher"
    for on, n, p, text in ((True, 8, ".3f", "0.88 (p = 0.007)"), (False, 7, ".2f", "0.36 over seven (p = 0.44)")):
        both = [
            [nine.worth(env)[name, o] for env in settings]
            for name, o in nine.worth("Hopper")
            if o is on and name != "all"
        ]
        x, y = np.transpose([[z.mean() for z in pair] for pair in both if pair[0].any() and pair[1].any()])
        assert len(x) == n
        a, b = stats.rankdata(x), stats.rankdata(y)
        distances = ((a[np.array(list(permutations(range(n))))] - b) ** 2).sum(1)  # of all orders, for an exact p
        found = 1 - 6 * distances / (n**3 - n)
        exact = (abs(found) >= abs(found[0]) - 1e-9).mean()
        assert text.startswith(plain(found[0], 2)) and text.endswith(f"(p = {exact:{p}})")
        yield text
    off = [measured(f"nine/without_value_clip_{env.lower()}")["paired"][0]["differences"] for env in settings]
    yield "worth {} on Hopper and {} on Walker2d".format(*(show(intervals.mean_of(x)) for x in off))
    less = [nine.worth(env)["reward_scale", True][:5] - x for env, x in zip(settings, off)]
    yield "by {} and by {}.".format(*(show(intervals.mean_of(x)) for x in less))


def of_the_grid():
    """IM's Fig. 1: the grid is whole, and its effects are those of a regression."""
    grid = nine.grid()
    assert len({tuple(on.values()) for on, _ in grid}) == 16 and {x.shape for _, x in grid} == {(4, 2)}
    runs = [(on, y) for on, x in grid for y in x.ravel()]
    signs = {name: np.array([1 if on[name] else -1 for on, _ in runs]) for name in nine.ABLATED}
    both = signs["reward_scale"] * signs["value_clip"]
    slopes = np.linalg.lstsq(np.transpose([*signs.values(), both, abs(both)]), [y for _, y in runs])[0]
    effects = [nine.over_rates(name).mean / 2 for name in nine.ABLATED]
    np.testing.assert_allclose(slopes[:-1], [*effects, nine.over_rates("reward_scale", "value_clip").mean / 4])
    clipped, unclipped = ([x for x in grid if x[0]["value_clip"] is clip] for clip in (True, False))
    crossed = nine.factorial("reward_scale", choose=nine.at_others_best, settings=clipped)
    best = [nine.factorial("reward_scale", settings=x) for x in (clipped, unclipped)]
    yield f"worth {best[0]} at the best rates (cross-validated {plain(crossed.mean, -2)}), and without it {best[1]}."
    at_rate = [nine.factorial("anneal_lr", choose=lambda x, i=i: x[i], settings=grid) for i in range(4)]
    yield f"at 1e-3 it is worth {at_rate[3]}, and"
    assert all(np.prod(x.interval()) < 0 for x in at_rate[:3])  # "nothing that 32 runs each can tell"
    ends = [
        f.interval()
        for x in ("anneal_lr", "orthogonal_init")
        for f in (nine.factorial(x), nine.factorial(x, choose=nine.at_others_best))
    ]
    yield f"from {plain(min(x for x, _ in ends), -1)} to {plain(max(x for _, x in ends), -1)}"


def of_scaling():
    """What the wide clip brings back, and what its width comes from: what scaling divides the rewards by in the end."""
    shares = [nine.brought_back(place) for place in ("Walker2d", "Hopper")]
    yield "back {} on Walker2d and {} on Hopper".format(*map(in_percent, shares))
    hopper, walker2d = (finals(f"nine/scaling_{place.lower()}")["PPO-unscaled-clip"].mean() for place in nine.SCALED)
    yield f"({hopper:.0f} on Hopper, {walker2d:.0f} on Walker2d)"
    for place, setting in papers.WIDE_CLIP.items():
        stds = [x["std"] for x in measured("nine/units") if x["env_id"] == f"{place}-v4"]
        assert len(stds) == 10 and setting == f"--value-clip-eps {0.2 * np.mean(stds):.0f}"
        yield f"{0.2 * np.mean(stds):.0f} on {place}"


def of_clipping():
    """How far the policy goes without clipping, and which rates are the best."""
    more, chosen = {}, {}
    for place in clipping.RATED:
        kl = {label: np.median(x["largest_kl"]) for label, x in clipping.agents_at(place).items()}
        more[place] = [kl[f"PPO-unclipped-{rate}"] / kl[f"PPO-{rate}"] for rate in clipping.RATES]
        clipped, unclipped = (clipping.at_rates(place, side) for side in clipping.SIDES)
        assert (np.diff(unclipped.mean(1)) < 0).all()  # "ends the lower, the higher the rate is"
        halves = [[clipping.RATES[y.mean(1).argmax()] for y in np.split(x, 2, axis=1)] for x in (clipped, unclipped)]
        assert halves[1] == ["6e-5", "6e-5"]
        chosen[place] = halves[0]
    yield "it is {:.0f} times as large on Hopper and {:.0f} times on Walker2d at 6e-5".format(
        *(more[x][0] for x in clipping.RATED)
    )
    assert min(y for x in more.values() for y in x[1:3]) > 100  # "more than a hundred times at 3e-4 and 6e-4"
    assert {y for x in chosen.values() for y in x} == {"3e-4", "6e-4", "1.2e-3"}
    each = [claims.Cell("", "", 10, clipping.worth_at(x, y).p()) for y in clipping.RATES for x in clipping.RATED]
    claims.correct(each)
    assert [x.holm for x in each] == [False] * 2 + [True] * 6  # "from 3e-4 on hold after Holm's correction"
    clipped, unclipped = (clipping.at_rates("Walker2d", side).mean(1) for side in clipping.SIDES)
    assert 0.4 < 1 - clipped[-1] / clipped.max() < 0.6  # "loses about half at the top"
    assert unclipped[1] < unclipped[0] / 2  # "most is lost before the range begins"
    assert clipping.more_at_a_high_rate("Walker2d").interval()[1] < 1100  # "excludes the effect of 1,100"
    begins = (plain(clipping.worth_at_best(x).interval()[0], -1) for x in clipping.RATED)
    yield "begin at {} and {}.".format(*begins)


def noise_of_the_nine():
    """What each does to the cosine of two estimates, with 2 seeds on Walker2d."""
    cases, gain, equal = {}, {}, set()  # by optimization and whether the others are on
    for x in measured("nine/noise")["paired"]:
        key = nine.case(x)
        assert x["seeds"] == [1, 2] and [y["iteration"] for y in x["noise"]] == [0, 150, 300, 450]
        cases[key], gain[key] = [y["mean"] for y in x["noise"]], x["mean"]["mean"]
        equal |= set() if any(x["differences"]) else {key}
    yield "by {} before training and by {}, {} and {} later".format(*(show(x, 2) for x in cases.pop(("all", False))))
    late = [x for key, means in cases.items() if key not in equal for x in means[1:]]
    more, less = (sum(x["interval"][i] * sign > 0 for x in late) for i, sign in ((0, 1), (1, -1)))
    assert not any(x["interval"][0] > 0 for (_, on), means in cases.items() if not on for x in means[1:])
    largest = max(abs(x["mean"]) for x in late)
    yield f"of {len(late)} differences {more} are above 0 and {less} below, the largest {largest:.2f}, and"
    keys = [key for key in cases if key not in equal]
    rank = stats.spearmanr([np.mean([x["mean"] for x in cases[key][1:]]) for key in keys], [gain[key] for key in keys])
    yield f"rank correlation of {plain(rank.statistic, 2)} (p = {rank.pvalue:.2f})"


def of_steps():
    seeds = in_places("steps/{}", places=PLACES[:2])
    trpo = [x for of in seeds.values() for by_agent in of for x in by_agent["TRPO"]]
    yield f"state is {max(x['train']['max_kl'] for x in trpo):.0f} nats"
    heldout = np.concatenate([steps.share(env, x, "TRPO", "heldout") for env, of in seeds.items() for x in of])
    yield f"{(heldout > 1).sum()} of {len(heldout)} steps on Walker2d and Hopper exceed the bound, the worst by"
    yield f"by {100 * heldout.max() - 100:.0f} %"
    ratios = [x["train"]["max_ratio"] for env in PLACES for x in measured(f"steps/{env.lower()}")]
    assert len(ratios) == 420 and min(ratios) > 1.2  # "all 420 steps exceed 1.2"
    peaks = [max(of["PPO"], key=lambda x: x["train"]["mean_kl"])["iteration"] / 488 for of in seeds["Hopper"]]
    assert 0.2 <= round(min(peaks), 1) and max(peaks) < 0.4  # "a fifth to a third of the way on Hopper"
    [humanoid] = by_seed("steps/humanoid")
    assert 25 < (steps.of_steps(humanoid["TRPO"], "max_kl") / 0.07).max() < 35  # "thirty times the bound at most"
    assert 0.4 < steps.share("Humanoid", humanoid, "TRPO", "heldout").max() < 0.55  # "half of their bound", in reward
    first, *_ = by_seed("steps/walker2d")
    kl, late = steps.share("Walker2d", first, "TRPO"), np.array([x["iteration"] > 100 for x in first["TRPO"]])
    assert kl[~late].min() > 0.6 and 0.25 < np.median(kl[late]) < 0.4  # "at the bound until iteration 100"


def of_updates():
    """What the typical update does."""
    places = [(x, y) for x in steps.UPDATED for y in steps.AGENTS]  # Walker2d first
    few, many = ({x: steps.mean_change(*x, pairs) for x in places} for pairs in steps.BATCHES)
    found = [steps.spread_and_harm(*x, 2048) for x in places]
    assert [x for x, y in zip(places, found) if "harmful" not in y] == [("Walker2d", "TRPO")]  # "cannot be told"
    del found[2]
    yield f"standard deviation of {span(x['spread']['mean'] for x in found)} from one batch"
    harmful = [100 * x["harmful"]["mean"] for x in found]
    yield f"On Hopper {span(harmful[2:])} % of the updates lower"
    yield "On Walker2d {:.0f} % of PPO's do and {:.0f} % of PPO-M's, less surely".format(*harmful)
    gained = {x: steps.gained_in_training(*x) for x in places}
    yield f"changed the return by {span(sum(gained.values(), []), 1)} an update"
    undecided = [x for x in places if claims.differs(few[x]) == 0]
    assert set(places) - set(undecided) == {("Walker2d", "TRPO")}
    yield f"reach {span(np.ptp(few[x].interval()) / 2 for x in undecided)} to either side"
    for low, high, gain in ((*few[x].interval(), gained[x]) for x in undecided):
        assert low < 0 < high and low < min(gain) and max(gain) < high  # "neither such a drift nor none"
    gains = [claims.Cell("", "", 9, steps.gain_of_more_pairs(*x).p()) for x in places]
    claims.correct(gains)
    assert all(x.holm for x in gains)  # "also after Holm's correction over the six"
    cells = {(*x, y): steps.changes(*x, y, steps.LATER) for x in places for y in steps.BATCHES}
    promised = {x: np.ravel([[z["promised"] for z in y["changes"]] for y in of]) for x, of in cells.items()}
    assert min(map(min, promised.values())) > 0
    yield f"it rises in all {sum(map(len, promised.values())):,} updates"
    hopper, walker2d = ([promised[x, "PPO", y].mean() for y in steps.BATCHES] for x in ("Hopper", "Walker2d"))
    yield f"promises {hopper[0]:.3f} on Hopper and {walker2d[0]:.3f} on Walker2d from 2,048 pairs"
    yield f"{hopper[1]:.3f} and {walker2d[1]:.3f} from 50,000, each"
    trpo = [x.mean() for x in many["Hopper", "TRPO"].samples]
    yield f"by {max(trpo):.0f} on average at one checkpoint and lower it by {-min(trpo):.0f} at another"
    over = [steps.over_checkpoints(many[x]) for x in places]
    yield f"But Hopper's {str(over[3]).split()[0]} is {str(over[3]).split(maxsplit=1)[1]} with"  # on the first page
    assert [claims.differs(x) for x in over] == [1, 1, 1, 0, 1, 0] and over[3].interval()[0] > -5  # "nearly PPO's"
    more = [steps.over_checkpoints(many[x], few[x]) for x in places]
    assert [claims.differs(x) for x in more] == [1, 1, 1, 1, 0, 0]
    yield f"for PPO on Hopper, {more[3]}"
    [fallen] = [x["change"]["mean"] for x in cells["Hopper", "PPO-M", 50_000] if x["change"]["interval"][1] < 0]
    yield f"lower the reward by {-fallen:.0f} at one checkpoint"
    ends = [x["change"]["interval"] for place in steps.UPDATED for x in cells[place, "PPO", 50_000]]
    rises, falls = sum(low > 0 for low, _ in ends), sum(high < 0 for _, high in ends)
    assert falls == 0
    yield f"raise it at {rises} of {len(ends)} checkpoints and lower it at none"
    trpo = "Walker2d", "TRPO"
    yield f"gains {many[trpo].mean:.0f} on Walker2d, where training gained {span(gained[trpo], 1)} by each of its own"
    harm = steps.spread_and_harm("Hopper", "TRPO", 50_000)
    yield f"There, {in_percent(harm['harmful'])} of TRPO's updates lower"
    yield f"or {in_percent(harm['harmful_at_each'])} with each checkpoint's own mean"
    untrained = [steps.mean_change(*x, y, steps.FIRST) for x in places[:3] for y in steps.BATCHES]
    assert all(0 < x.ends()[0] and x.ends()[1] < steps.MARGIN for x in untrained)  # "by less than 5"
    hopper, walker2d = ([of[x, "PPO"] for of in (few, many)] for x in ("Hopper", "Walker2d"))
    yield f"{hopper[0]} on Hopper-v5 and {walker2d[0]} on Walker2d-v5 from 2,048 pairs"  # on the first page
    yield f"and by {hopper[1]} and {walker2d[1]} from 50,000, where CL sees it fall"
    shares = [steps.spread_and_harm(x, "PPO", 2048)["harmful"]["mean"] for x in steps.UPDATED]
    assert all(0.4 < x < 0.5 for x in shares)  # "nearly a coin flip"
    some = [("Walker2d", "PPO"), ("Hopper", "PPO"), ("Hopper", "PPO-M"), ("Walker2d", "TRPO")]
    shares = [steps.spread_and_harm(*x, 50_000)[y] for x in some for y in ("harmful", "harmful_at_each")]
    assert max(x["interval"][1] for x in shares) < 0.4  # "well below a half of them harm"

    def at_300(name, pairs):
        of = (steps.mean_change(x, name, pairs, (300,)).samples for x in steps.UPDATED)
        return Estimate([np.array([x.mean() for samples in of for x in samples])])  # over checkpoints, as in the table

    yield f"2,048 pairs change the reward by {at_300('TRPO', 2048)}, and PPO's from 50,000 by {at_300('PPO', 50_000)}"


def of_gradients():
    average = [
        gradients.average(env, of, kind)[1]
        for kind in ("variance", "convergence")
        for env, seeds in gradients.places().items()
        if env != "Humanoid"
        for of in seeds
    ]
    yield f"have a cosine of {span(average[:6], 2)}, one and the “true” gradient {span(average[6:], 2)} (averages"
    [walker2d], [humanoid] = by_seed("gradients/walker2d"), by_seed("gradients/humanoid")
    scales = [gradients.show_noise(gradients.noise(x)) for x in (*walker2d["PPO"][:3:2], humanoid["PPO"][0])]
    yield "In seed 1 on Walker2d PPO's is {} pairs before training, and {} at iteration 300".format(*scales)
    yield f"a batch is a {gradients.noise(walker2d['PPO'][2])[0] / 2048:.0f}rd; on Humanoid it is {scales[2]} already"

    def told(of):
        late = gradients.cosines(of, "convergence")[1]
        return np.array([sum(x["interval"][0] > 0 for x in late), len(late)])

    two = sum(told(of) for env in PLACES[:2] for of in gradients.places()[env])
    yield "at {} of {} on Walker2d and Hopper; from 450,000 pairs at {} of {} of seed 1".format(*two, *told(walker2d))
    times = [gradients.noise(humanoid[x][0])[0] / gradients.noise(walker2d[x][0])[0] for x in ("PPO", "TRPO")]
    yield f"is {span(times)} times Walker2d's"
    yield f"gain {gradients.interaction()} beyond"
    yield f"{gradients.interaction((2048, 2e-3))}. Larger batches"
    seed_1, *_ = by_seed("gradients/noise_hopper")
    late = [gradients.noise(x) for of in seed_1.values() for x in of if x["iteration"] >= 200]
    batches = [(pairs or low) / 2048 for pairs, low, _ in late]  # where it is unbounded, the least that it is
    assert min(batches) > 5
    yield f"in {sum(x > 20 for x in batches)} of {len(batches)} cases less than a twentieth"  # in the README


def of_the_critic():
    """How much of the error comes from cuts, and what the target alone would make of the exact value function."""
    seeds = in_places("critic/{}", critic.LATE)
    exact, shares = {}, []  # shares: of the error and of the pairs, within 63 steps of a cut
    for env, cells in ((env, cells) for env, of in seeds.items() for x in of for cells in x.values()):
        assert len(cells) in (5, 16)
        released = [x["heldout_released"] for x in cells]
        exact.setdefault(env == "Humanoid", []).append(np.median([x["exact_v"] / x["mean"] for x in released]))
        if env != "Humanoid":
            bins = [[(y["steps"], y["mean"] * y["pairs"], y["pairs"]) for y in x["by_distance"]] for x in released]
            near = [[[z for steps, *z in of if steps and steps[1] < 64], [z for _, *z in of]] for of in bins]
            shares.append(np.median([np.sum(x, axis=0) / np.sum(y, axis=0) for x, y in near], axis=0))
    yield f"would have {span(exact[False], 2)} times the measured error on Walker2d and Hopper, and"
    yield f"{span(exact[True], 2)} times on Humanoid"
    error, pairs = np.transpose(shares) * 100
    yield f"{span(error)} % of the error comes from the {span(pairs)} % of the pairs that are within 63 steps"
    clean = {env: [y for of in x for y in critic.before_the_end(of)] for env, x in seeds.items()}
    yield "is off by {} on Walker2d, {} on Hopper and {} on Humanoid".format(*(span(x, 2) for x in clean.values()))
    half = [x for env in PLACES[:2] for of in seeds[env] for x in critic.errors(of, "heldout_released")]
    yield "{} on Walker2d-v5 and Hopper-v5 as CL measures it, but {} and {} where a".format(
        *(span(x, 2) for x in (half, *clean.values()))
    )
    yield f"one seed, {span(clean['Humanoid'], 2)}"

    def less(x, y):
        found = [z for env in PLACES[:2] for z in critic.compare_noise(env, x, y)]
        assert False not in found
        return f"{found.count(True)} of {len(found)}"

    yield f"does is clear at {less(critic.RETURNS, critic.NO_BASELINE)} checkpoints, what *GAE's lambda* of 0.95"
    yield f"does at {less(critic.TRUE, critic.RETURNS)}. A “true” V would help at {less(critic.TRUE, critic.NETWORK)}."
    ends = [critic.share_left(name)[1:] for name in ("PPO", "TRPO")]
    assert all(low > 0.1 for low, _ in ends) and any(low < 0.2 < high for low, high in ends)  # "a tenth", "a fifth"


def of_landscapes():
    for name in ("PPO", "PPO-M"):  # "below its start in all twelve runs"
        for env in PLACES[:2]:
            for of in by_seed(f"landscapes/{env.lower()}", [300]):
                along = {x: landscapes.steps_of(of)[name, landscapes.MANY][x, 0.0]["surrogate"] for x in (1.0, 3.0)}
                assert along[1.0] > 0 > along[3.0]
    sides = [x for env, of in landscapes.late("PPO", landscapes.MANY, 3.0).items() if env != "Humanoid" for x in of]
    falls, rises, n = sides.count(-1), sides.count(1), len(sides)
    yield f"the reward falls at {falls} of {n} checkpoints on Walker2d and Hopper and rises at {rises}."
    seeds = [landscapes.steps_of(of) for env in ("walker2d", "hopper") for of in by_seed(f"landscapes/{env}", [300])]
    trpo = Estimate([np.array([x["TRPO", landscapes.FEW][1.0, 0.0]["change"]["mean"] for x in seeds])])
    yield f"(p = {trpo.p():.3f}, one of a dozen"
    random = [x["PPO", landscapes.FEW][0.0, 1.0]["change"] for x in seeds[3:]]
    yield "by {} and {}.".format(*(show(x) for x in random if x["interval"][0] > 0))


def of_algorithms():
    returns, kls = algorithms.through_training()
    relative = kls["a2c"] / kls["trpo_plus"]
    yield f"A2C's is a {1 / relative[0]:.0f}th of"
    [taken] = [x["kl"]["steps"] for x in measured("algorithms/rewards")["settings"] if x["algo"] == "a2c"]
    yield f"as large at {(np.array([x for x in taken if x > 1e6]) / 1e6)[np.argmax(relative > 1)]:.1f}M"
    of = {(x["env_id"], x["algo"]): x for x in measured("algorithms/eight")["settings"]}
    assert {algo for _, algo in of} == set(ALGOS) and all(x["seeds"] == [1, 2, 3] for x in of.values())
    yield "PPO-M reaches {:.0f} on Hopper, TRPO {:.0f}".format(
        *(of["Hopper-v5", x]["mean"]["mean"] for x in ("ppo_m", "trpo"))
    )
    for env_id, where in (("Hopper-v5", "Hopper"), ("HalfCheetah-v5", "HalfCheetah")):
        guide = {
            x["algo"]: plain(x["mean"]["mean"])
            for x in measured("algorithms/eight_guide")["settings"]
            if x["env_id"] == env_id
        }
        yield "{reinforce}, {a2c} and {vmpo} on {where}".format(where=where, **guide)
    ppo, trpo_plus = measured("algorithms/five_seeds")["settings"]
    yield f"**{show(ppo['mean'])}**, seeds from {span(map(int, ppo['finals'])).replace(',', '')}"
    yield f"{show(trpo_plus['mean'])}, seeds from {span(map(round, trpo_plus['finals'])).replace(',', '')}"
    yield from (show(x) for x in (ppo["mean"], intervals.mean_of(measured("algorithms/micro")["finals"])))  # README


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
    hopper = [x["critic_step"] for x in measured("sb3/hopper") if x["algo"] == "sb3" and x.get("iteration") == 463]
    yield f"at 463, SB3's critic's step on Hopper is {show(intervals.mean_of(hopper), 3)}"


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


def replay_of_ppo():
    """A fall of the curve that complete episodes of the same policies do not show."""
    replay, cells = load("replay"), measured("replay/ppo")
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


def of_the_reference():
    report = room("report")
    counts = {env_id: report.accused(curves) for env_id, curves in report.references().items()}
    points = sum(np.size(x["returns"]) for x in report.references().values())
    yield f"{sum(map(sum, counts.values()))} of {points:,} points"
    yield f"{max(counts['Hopper-v5'])} are in one run on Hopper-v5"


def of_the_study():
    """The bugs that were written later, as they were judged then and as they are now."""
    sabotage, then = load_copy(ROOT / "tests" / "sabotage.py"), measured("report/then")
    now = [x for x in measured("report/sabotage") if x["new"]]
    names = [x.name for x in sabotage.BUGS if x.new]
    assert names == [x["name"] for x in then] == [x["name"] for x in now] and len(names) == 16
    found, named = (sum(f(x, "quick") for x in then) for f in (sabotage.is_found, sabotage.is_named))
    yield f"`--quick` found {found} of 16 and named {named}."
    yield f"found {sabotage.exact(found, 16)} and named {named}"
    yield f"it names {sum(sabotage.is_named(x, 'quick') for x in now)} of them"


SECTIONS = of_the_reward, early_in_training, of_later_seeds, of_the_ladder, of_clipping, of_the_nine
SECTIONS += of_the_grid, of_scaling, noise_of_the_nine, of_steps, of_updates, of_gradients, of_the_critic
SECTIONS += of_landscapes, of_algorithms
SECTIONS += stable_baselines3, replay, replay_of_ppo, of_the_reference, of_the_study


@pytest.mark.parametrize("section", SECTIONS)
def test_the_pages_quote_what_was_measured(section):
    """Each text that a section gives stands in one of the pages."""
    text = " ".join("\n".join(PAGES.values()).split())
    assert [said for said in section() if said not in text] == []


# Tables and verdicts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", claims.ROOMS)
def test_the_tables_are_what_the_numbers_give(name):
    assert claims.with_tables(PAGES[name], name) == PAGES[name]


def test_the_first_page_lists_every_claim():
    page = PAGES["first page"]
    assert claims.first_page(page) == page
    assert len(page.splitlines()) <= 150 and len(page.split()) <= 1800
    assert all(f"({name})" in page or f"({name}#" in page for name in (*ROOMS, "conformance"))


def test_a_wrong_verdict_is_found(monkeypatch):
    """If the numbers were others, the tables would not be the page's."""
    spoiled = re.sub(r"holds after Holm, n = 30", "does not hold, n = 30", PAGES["reward"])
    assert spoiled != PAGES["reward"] == claims.with_tables(spoiled, "reward")
    rewards = reward.rewards
    monkeypatch.setattr(reward, "rewards", lambda x: rewards(x) | {"PPO": rewards(x)["PPO"] - 500})
    monkeypatch.setattr(claims, "claims_of", claims.claims_of.__wrapped__)
    assert claims.with_tables(PAGES["reward"], "reward") != PAGES["reward"]


def test_rules_of_the_verdicts():
    """Against scipy, and on samples whose verdicts are known."""
    rng = np.random.default_rng(0)
    x, y, z = rng.normal(2, 1, 40), rng.normal(0, 2, 25), rng.normal(0, 0.1, 40)
    ours, welch = Estimate([x, y], (1, -1)), stats.ttest_ind(x, y, equal_var=False)
    assert ours.interval() == pytest.approx(tuple(welch.confidence_interval())) and ours.p() == pytest.approx(
        welch.pvalue
    )
    four = [x, y, x[:20] + 1, y[:10]]
    halves = Estimate(four, reward.OPTIMIZATIONS).interval()
    assert halves == pytest.approx(tuple(intervals.contrast(four, reward.OPTIMIZATIONS)["interval"]))
    assert [claims.of_sign(ours, sign).verdict for sign in (1, -1)] == [claims.HOLDS, claims.NOT]
    alone, small = Estimate([z]), Estimate([z / 10 + 0.01])
    assert claims.of_sign(alone).verdict == claims.UNCLEAR
    assert [claims.of_none(alone, x).verdict for x in (0.05, 0.02)] == [claims.HOLDS, claims.UNCLEAR]
    assert claims.differs(small) == 1 and claims.of_none(small, 0.05).verdict == claims.HOLDS  # differs, and negligible
    assert claims.of_none(ours, 0.1).verdict == claims.NOT
    one_value = Estimate([np.append(np.zeros(19), 60.0) + 0.6])  # Student's t contains 0, and BCa does not
    assert np.prod(one_value.interval()) < 0 < np.prod(one_value.bootstrapped()) and claims.differs(one_value) == 0
    cells = dict(zip("abcd", (claims.Cell("", claims.HOLDS, 9, p) for p in (0.03, 0.001, 0.02, 0.9))))
    claims.correct(cells.values())
    assert [x.holm for x in cells.values()] == [False, True, False, False]  # 0.02 is above 0.05 / 3
    for planned, stands in ((49, True), (51, False)):
        claims.correct(cells.values(), planned)
        assert cells["b"].holm is stands  # 0.001 is below 0.05 / 49, and above 0.05 / 51
    assert claims.overall(dict(a=cells["a"], d=cells["d"])) == claims.OPEN  # what Holm does not leave decides nothing


TEN = np.linspace(-90, 90, 10)  # what ten seeds add to their mean


def test_effects_of_the_ladder(monkeypatch):
    """Where the rates add 300, normalization 500, tanh 100, and both of the first two 200 more."""
    made_up = {}
    for name in reward.RUNGS:
        rates, norm, tanh = (x in name for x in reward.CHANGES)
        made_up[name] = 1000 + 300 * rates + 500 * norm + 100 * tanh + 200 * (rates and norm) + TEN
    monkeypatch.setattr(reward, "finals", lambda path: made_up)
    texts = [cells()["Hopper"].text.split(" [")[0] for cells in reward.LADDER.values()]
    assert [float(x.replace(",", "")) for x in texts] == [400, 600, 100, 200, 0, 0, 1100, 300, 500]
    assert set(reward.RUNGS) == set(papers.LADDER)


def test_what_clipping_is_worth_at_the_best_rates(monkeypatch):
    """The first half of the seeds is best at another rate than the second, so each counts where the other is best."""
    first, made_up = TEN < 0, {}
    for rate, of_first, of_second in zip(clipping.RATES, (0, 3000, 1000, 0), (0, 2000, 4000, -500)):
        made_up[f"PPO-{rate}"] = dict(finals=np.where(first, of_first, of_second) + TEN)
        made_up[f"PPO-unclipped-{rate}"] = dict(finals=np.where(rate == "6e-5", 700.0, -100) + TEN)
    monkeypatch.setattr(clipping, "agents_at", lambda place: made_up)
    # Clipped, the first half chooses 3e-4, which is worth 2,000 to the second; the second chooses 6e-4, worth 1,000.
    assert clipping.worth_at_best("Hopper").mean == pytest.approx((1000 + 2000) / 2 - 700)
    assert clipping.more_at_a_high_rate("Hopper").mean == pytest.approx(-250 - 2500)
    assert set(made_up) == set(papers.RATES)


def test_the_spread_of_updates_and_the_share_that_harms(monkeypatch):
    """Of 180 updates, whose true changes are normal with a mean of 6 and a standard deviation of 12, and are measured
    with noise of 10."""
    rng, made_up = np.random.default_rng(1), []
    for k, iteration in enumerate(3 * [0, 150, 300, 450]):
        measured_changes = rng.normal(0 if iteration else 1000, 12, 20) + rng.normal(6, 10, 20)
        changes = [dict(mean=x, before=2.0 * iteration) for x in measured_changes]
        at = dict(step_pairs=2048, iteration=iteration, run_seed=k // 4)
        made_up.append(at | dict(agent="CL-PPO", noise=10.0, changes=changes))
        made_up.append(at | dict(agent="TRPO", noise=90.0, changes=changes))
        uneven = [dict(mean=x["mean"] + (-1000 if iteration == 150 else 1000)) for x in changes]
        made_up.append(at | dict(agent="PPO-M", noise=10.0, changes=uneven))
        more = [dict(mean=x["mean"] + 30) for x in changes]
        made_up.append(at | dict(agent="CL-PPO", step_pairs=50_000, noise=10.0, changes=more))
    monkeypatch.setattr(steps, "measured", lambda path: made_up)
    found = steps.spread_and_harm("Hopper", "PPO", 2048)
    for name, true in dict(spread=12, harmful=stats.norm.cdf(-6 / 12)).items():
        low, high = found[name]["interval"]
        assert low <= true <= high and high - low < true, name
    later, first = (steps.mean_change("Hopper", "PPO", 2048, x) for x in (steps.LATER, steps.FIRST))
    assert later.interval()[0] < 6 < later.interval()[1] and len(later.samples) == 9
    assert first.mean == pytest.approx(1006, abs=10) and len(first.samples) == 3
    assert set(steps.spread_and_harm("Hopper", "TRPO", 2048)) == {"spread"}  # noise explains more than all
    # At three of nine checkpoints of PPO-M every update lowers the reward, at the others none.
    assert steps.spread_and_harm("Hopper", "PPO-M", 2048)["harmful_at_each"]["mean"] == pytest.approx(1 / 3)
    of_nine = steps.over_checkpoints(steps.mean_change("Hopper", "PPO-M", 2048))
    nine_means = stats.ttest_1samp(6 * [1000] + 3 * [-1000], 0).confidence_interval()
    assert of_nine.seeds == 9 and of_nine.interval() == pytest.approx(tuple(nine_means), abs=15)
    assert steps.gained_in_training("Hopper", "PPO") == [2, 2, 2]
    assert steps.gain_of_more_pairs("Hopper", "PPO").mean == pytest.approx(30)
    more, fewer = (steps.mean_change("Hopper", "PPO", x) for x in (50_000, 2048))
    assert steps.over_checkpoints(more, fewer).interval() == pytest.approx((30, 30))


def test_the_number_of_seeds_that_would_decide():
    """With so many seeds, four of five experiments find the effect."""
    rng, size = np.random.default_rng(0), 0.7
    pilot = np.arange(-10.0, 11) / np.std(np.arange(-10.0, 11), ddof=1)  # its standard deviation is exactly 1
    n = Estimate([pilot, pilot], (1, -1)).needed(size)
    found = stats.ttest_ind(rng.normal(size, 1, (n, 4000)), rng.normal(0, 1, (n, 4000))).pvalue < 0.05
    assert 0.77 < found.mean() < 0.83


@pytest.mark.parametrize(
    "found, verdict, mark, text",
    [
        ([0.9, 1.0, 1.1], claims.HOLDS, "✓3/3", "so in 3 of 3 seeds"),
        ([0.1, 0.2, 3.0], claims.UNCLEAR, "?1/3", "so in 1 of 3 seeds, not so in 2"),
        ([0.1, 0.2, 0.3], claims.NOT, "✗3/3", "not so in 3 of 3 seeds"),
        ([3.0], claims.HOLDS, "✓1/1", "so in the one run"),
    ],
)
def test_few_seeds_are_counted_and_decide_nothing(found, verdict, mark, text):
    [cell] = claims.of_seeds("{}", lambda env, x: ((str(x),), x), dict(Hopper=found), 0.8).values()
    assert (cell.verdict, cell.p, claims.mark(cell), claims.name_verdict(cell)) == (verdict, None, mark, text)
    assert claims.overall(dict(Hopper=cell)) == claims.FEW
    assert (f"least favourable {min(found):.3g}" in cell.text) is (len(found) > 1)
    at_one, at_many = claims.counted("", [True], "checkpoints"), claims.counted("", [True, False], "checkpoints")
    assert claims.name_verdict(at_one) == "so at the one checkpoint"
    assert claims.name_verdict(at_many) == "so at 1 of 2 checkpoints, not so at 1"
    many = claims.Cell("", claims.HOLDS, 30, 0.001)
    assert np.sum(claims.shade(cell)[0]) > np.sum(claims.shade(many)[0])  # fewer seeds are never as dark


def test_the_picture_of_the_study_shows_every_run():
    """A square for each judged run, in the colour of what the report did with it."""
    report, sabotage = room("report"), load_copy(ROOT / "tests" / "sabotage.py")
    colours = [to_hex(box.get_facecolor()) for box in report.draw_hit_rate().axes[0].patches]
    runs = [run for run in measured("report/sabotage") if not run["new"]]
    judged = [(run, kind) for run in runs for kind in ("quick", "full") if kind in run]
    bugs = [(run, kind) for run, kind in judged if not run["healthy"]]
    assert len(colours) == len(judged)
    assert colours.count(report.COLOURS["named"]) == sum(sabotage.is_named(*x) for x in bugs)
    accused = sum(sabotage.is_found(*x) for x in judged) - sum(sabotage.is_found(*x) for x in bugs)
    missed = len(bugs) - sum(sabotage.is_found(*x) for x in bugs)
    assert colours.count(report.COLOURS["missed"]) == missed + accused
    assert "(hit_rate.png)" in PAGES["report"]


PICTURES = [(name, picture) for name in claims.ROOMS if name != "report" for picture in room(name).PICTURES]


@pytest.mark.parametrize("name, picture", PICTURES)
def test_pictures_are_drawn_from_the_numbers(name, picture):
    """A number of the files is drawn, and a page shows the picture."""
    figure = room(name).PICTURES[picture]()
    drawn = np.concatenate([np.ravel(line.get_xydata()) for axis in figure.axes for line in axis.lines])
    some = {
        "reward": lambda: [
            *reward.effect("Humanoid", reward.OPTIMIZATIONS).interval(),
            *at_end("reward/hopper"),
            *reward.rewards("Humanoid")["PPO"],
            *finals("reward/deltas")["TRPO"],
            *finals("reward/ladder_hopper")["PPO-rates"],
        ],
        "clipping": lambda: [
            reward.difference("Hopper", "PPO", "PPO-NoClip").mean,
            *finals("clipping/rates_hopper")["PPO-unclipped-3e-4"],
        ],
        "nine": lambda: [
            *nine.worth("Hopper")["tanh", True],
            *finals("nine/scaling_walker2d")["PPO-scaled"],
            *np.ravel(nine.grid()[0][1]),
            measured("nine/noise")["paired"][0]["noise"][1]["mean"]["mean"],
        ],
        "steps": lambda: [
            *(x["heldout"]["max_ratio"] for x in measured("steps/hopper")),
            *steps.mean_change("Hopper", "TRPO", 50_000).interval(),
        ],
        "gradients": lambda: (
            [
                2048 * x["noise_scale"]["value network"]["grad_sq"] / x["noise_scale"]["value network"]["trace"]
                for y in ("noise_hopper", "noise_walker2d")
                for x in measured(f"gradients/{y}")[:3]
            ]
            + [
                measured("gradients/steps")[0]["cosine"]["mean"],
                measured("gradients/walker2d")[0]["variance"]["value network"][1]["mean"],
            ]
        ),
        "critic": lambda: [
            measured("critic/baselines_hopper")[0]["noise_scale"]["value network"]["pairs"],
            *critic.errors(by_seed("critic/hopper", critic.LATE)[0], "heldout_released"),
        ],
        "landscapes": lambda: [
            x[y] if y == "surrogate" else x[y]["mean"]
            for x in measured("landscapes/hopper")
            if x["iteration"] == 300 and x["random"] == 0
            for y in ("surrogate", "change")
            if x["step"] == 1
        ],
        "algorithms": lambda: [
            *(x["returns"]["mean"] for x in measured("algorithms/evaluate")),
            *measured("algorithms/eight")["settings"][0]["finals"],
            *measured("algorithms/entropy")["settings"][0]["largest_kl"],
            *measured("algorithms/rewards")["settings"][1]["kl"]["mean"],
        ],
        "sb3": lambda: [x["critic_step"] for x in measured("sb3/hopper") if "critic_step" in x],
        "replay": lambda: [np.mean(x["before"]["returns"]) for x in measured("replay/replay")],
    }[name]()
    assert any(np.isclose(drawn, x, rtol=1e-9, atol=0).any() for x in some)
    assert f"({picture}.png)" in PAGES[name]


def at_end(path):
    return [x["curve"]["mean"][-1] for x in measured(path)["settings"]]


# Everything else that is written --------------------------------------------------------------------------------------


def load_copy(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("algo", ["ppo", "trpo_plus"])
def test_the_example_of_an_edit_makes_advantages_of_returns(algo, tmp_path):
    """The diff on the page, applied to the script as it is now."""
    [diff] = re.findall(r"```diff\n(.*?)```", PAGES["critic"], flags=re.DOTALL)
    source = (ROOT / "algos" / f"{algo}.py").read_text()
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", diff, flags=re.MULTILINE):
        old, new = (re.sub(r"^.", "", x, flags=re.MULTILINE) for x in (old, new))
        assert source.count(old) == 1
        source = source.replace(old, new)
    script, args, state = start(algo, gamma=0.9, env_id="InvertedPendulum-v5")
    (tmp_path / f"{algo}_no_baseline.py").write_text(source)
    experience, _ = script.rollout(args, state)
    batch = load_copy(tmp_path / f"{algo}_no_baseline.py").estimate_advantages(args, state, experience)
    beyond = state.value(torch.from_numpy(experience["next_obs"])).detach().numpy() * ~experience["terminations"]
    expected, total = [], 0.0
    for t in reversed(range(args.num_steps)):
        total = experience["rewards"][t] + 0.9 * (beyond[t] if experience["ends"][t] else total)
        expected.insert(0, total)
    np.testing.assert_allclose(batch["advantages"], expected, rtol=1e-5)
    assert torch.equal(batch["value_targets"], batch["advantages"])
    assert experience["terminations"].any() and not experience["terminations"][-1]  # both kinds of end


# What is written like a measured number and has no file: settings, definitions, results of the papers and of their
# code, and speeds.
GIVEN = {
    "first page": "Gymnasium 1.4 and MuJoCo 4.0",
    "reward": """4e-4 and 1e-4 on Walker2d; 3e-4 and 1.7e-4 on Hopper; 1.5e-4 and 9e-5 on Humanoid; 0.07 and 0.04;
        0.04 and 0.13; 0.1 and 0.07; (0.85 for 0.95); Versions 2.0; its 1,030""",
    "clipping": "observation clip of 2.5; effect of 1,100",
    "nine": "A clip of 0.2",
    "steps": "Hopper 0.13, Walker2d 0.04, Humanoid 0.07 nats; exceed 1.2",
    "gradients": "Fig. 2 to 10^7 pairs; Theorem 5.1",
    "critic": "lambda* of 0.95",
    "algorithms": "(0.13 nats a step); A2C with its 0.1",
    "sb3": "norm of 0.5",
    "README.md": """ICLR 2020; (2018; TPG); Lehmann, 2024; gains sqrt(2), 0.01 (policy); 2.9.2; 5 to 25 seconds;
        | 6,500 | 2.6 |; | 1,450 | 11.5 |; | 2,000 | 8.3 |; is 4.5 times; and 7.4 times; is 3.6 times;
        is 0.64, 0.43 and 0.67 of; a confidence of 99.9 %""",
}
# An interval with its mean, a range, a fraction, a negative number, and, since counts have commas (2,048), a reward.
NUMBER = re.compile(r"(?:−?[\d.,]+ )?\[[^\[\]]*\d[^\[\]]*\]|[−\d][\d.,]* to −?\d[\d.,]*|−?\d[\d,]*\.\d+|−\d+|\d{4,}")
TABLE = re.compile(r"^\|.*\|$", re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_every_number_is_measured_or_given(name):
    """A number of the prose stands in a table of the same page, or of any room where the page is the first or the
    README's; or a section says it."""
    own = [name] if name in claims.ROOMS else claims.ROOMS
    tables = " ".join(row for x in own for row in TABLE.findall(PAGES[x]))
    text = PAGES[name] if name not in (*claims.ROOMS, "first page") else TABLE.sub(" ", PAGES[name])
    text = re.sub(r"```(?:bash|python|diff).*?```|\]\([^)]*\)|<!--.*?-->", " ", text, flags=re.DOTALL)
    text = " ".join(text.split())
    said = [x.strip(" |") for section in SECTIONS for x in section() if re.search(r"\d", x)]
    for x in sorted([*said, *" ".join(GIVEN.get(name, "").split()).split("; ")], key=len, reverse=True):
        text = text.replace(x, "()") if x else text
    text = re.sub(r"`[^`]*`", " ", text)
    assert [text[max(0, x.start() - 30) : x.end() + 30] for x in NUMBER.finditer(text) if x.group() not in tables] == []


# The programs in the rooms -------------------------------------------------------------------------------------------


def test_humanoid_without_contact_forces():
    load_copy(FIGURES / "reward" / "noforce.py")
    ours, plain_one = (gymnasium.make(x).unwrapped for x in ("HumanoidNoForce-v4", "Humanoid-v4"))
    observations = [env.reset(seed=0)[0] for env in (ours, plain_one)]
    for _ in range(60):
        observations = [env.step(np.zeros(17))[0] for env in (ours, plain_one)]
    assert observations[1][-84:].any() and not observations[0][-84:].any()
    np.testing.assert_array_equal(*(x[:-84] for x in observations))


def test_the_experiment_without_a_baseline(monkeypatch):
    monkeypatch.setattr(papers, "AGENTS", dict(papers.AGENTS))
    monkeypatch.setattr(papers, "EXPERIMENTS", dict(papers.EXPERIMENTS))
    load_copy(FIGURES / "critic" / "no_baseline.py")
    experiment = papers.EXPERIMENTS["no-baseline"]
    assert set(experiment.agents) == set(finals("critic/agents")) and experiment.seeds == 5
    assert papers.AGENTS["TRPO, no baseline"][1:] == papers.AGENTS["TRPO"][1:]


def test_what_scaling_divides_by_in_the_end(known, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["units.py", str(known / "ppo")])
    load_copy(FIGURES / "nine" / "units.py")
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    last = torch.load(known / "ppo" / "checkpoints" / "iter_000003.pt", weights_only=True)
    stats = load("ppo").RunningStats(0.0)
    vars(stats).update(last["reward_stats"])
    assert printed == dict(env_id="InvertedPendulum-v5", seed=1, iteration=3, std=pytest.approx(stats.std))
