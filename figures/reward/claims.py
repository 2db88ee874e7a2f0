"""What the reward is due to: the step or the optimizations (IM's Tables 1, 2 and 3)."""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from claims import Cell, Cells, differs, of_none, of_sign, turns
from estimates import PLACES, Estimate, Runs, bootstrap, factorial, measured, plain
from pictures import forest

sys.path.append(str(Path(__file__).parents[2] / "diagnostics"))

import rewards

FOUR = "PPO", "PPO-M", "TRPO", "TRPO+"
PAPER = {  # IM's Tables 2 and 3: mean and 95 % interval
    "PPO": ((3292, 3157, 3426), (2513, 2391, 2632), (806, 785, 827)),
    "PPO-M": ((2735, 2602, 2866), (2142, 2008, 2279), (674, 656, 695)),
    "PPO-NoClip": ((2867, 2701, 3024), (2371, 2316, 2424), (831, 798, 869)),
    "TRPO": ((2791, 2709, 2873), (2043, 1948, 2136), (586, 576, 596)),
    "TRPO+": ((3050, 2976, 3126), (2466, 2381, 2549), (1030, 979, 1083)),
}
LADDER = "PPO-rates", "PPO-M-rates", "PPO-rates-obs-norm", "PPO-rates-tanh", "PPO-M-rates-obs-norm", "PPO-M-rates-tanh"
LADDER += "PPO-rates-obs-norm-tanh", "PPO-M-rates-obs-norm-tanh"  # from none of the nine to the released PPO-M
ON = {name: {x: x in name for x in ("PPO-M-rates", "obs-norm", "tanh")} for name in LADDER}
CONTRASTS = dict(
    OPTIMIZATIONS="0.5*PPO - 0.5*PPO-M - 0.5*TRPO + 0.5*TRPO+",
    STEP="0.5*PPO + 0.5*PPO-M - 0.5*TRPO - 0.5*TRPO+",
    INTERACTION="0.5*PPO - 0.5*PPO-M + 0.5*TRPO - 0.5*TRPO+",
    AS_DEFINED="0.5*PPO - 0.5*PPO-M-defined - 0.5*TRPO-defined + 0.5*TRPO+",
    RATES=factorial(ON, "PPO-M-rates"),
    NORM=factorial(ON, "obs-norm"),
    TANH=factorial(ON, "tanh"),
    RATES_NORM=factorial(ON, "PPO-M-rates", "obs-norm"),
    RATES_TANH=factorial(ON, "PPO-M-rates", "tanh"),
    NORM_TANH=factorial(ON, "obs-norm", "tanh"),
    ALL_THREE=factorial(ON, "PPO-M-rates", "obs-norm", "tanh"),
    LADDER="PPO-M-rates-obs-norm-tanh - PPO-rates",
    OWN="PPO-M-rates-obs-norm-tanh - PPO-rates-obs-norm-tanh",
    PPO_KEPT="PPO-M - PPO-M-defined",
    PPO_WHOLE="PPO - PPO-M-defined",
    TRPO_KEPT="TRPO - TRPO-defined",
    TRPO_WHOLE="TRPO+ - TRPO-defined",
    KEPT="0.5*PPO_KEPT + 0.5*TRPO_KEPT",
    WHOLE="0.5*PPO_WHOLE + 0.5*TRPO_WHOLE",
)
TABLE_2 = "reward/{}", "reward/{}_new"
LATER = "reward/hopper_new_scripts", "reward/deltas", "clipping/rates_hopper as PPO-3e-4=PPO"
LATER += "nine/scaling_hopper as PPO-scaled=PPO", "nine/scaling_walker2d as PPO-scaled-clip=PPO"
LATER += ("reward/ladder_{} as PPO-M-rates-obs-norm-tanh=PPO-M",)
OTHERS = "reward/{}_as_written", "reward/ladder_{}", "reward/deltas as at/", "reward/hopper_first as first/"
OTHERS += "nine/scaling_walker2d as PPO-scaled-clip=new/PPO", "clipping/rates_hopper as PPO-3e-4=new/PPO"
OTHERS += ("nine/scaling_hopper as PPO-scaled=new/PPO",)
runs = Runs(*TABLE_2, *OTHERS, **CONTRASTS)
later, pooled = Runs(*LATER, **CONTRASTS), Runs(*TABLE_2, *LATER, **CONTRASTS)
released = Runs("released/released", **CONTRASTS)  # IM's own code on Humanoid-v4
halves = [Runs(x, **CONTRASTS) for x in TABLE_2]
with_first = Runs(*TABLE_2, "reward/hopper_first", **CONTRASTS)
*_, trpo_noforce, noforce = measured("reward/humanoid_checks")["settings"]  # without contact forces
IN_THE_PAPER = 400  # IM's main effect, as the protocols round it
TOGETHER = [(["optimizations raise TRPO's reward at the same bound", "the larger bound raises it"], ["Hopper"])]
MAIN_EFFECTS = "PPO-M's rates raise the reward", "observation normalization raises it", "tanh raises it"
TOGETHER += [(MAIN_EFFECTS, [place]) for place in ("Walker2d", "Hopper")]


def in_paper(place: str, contrast: str | dict[str, float]) -> SimpleNamespace:
    """Returns an effect and its interval from the paper's means, whose intervals are added as independent errors."""
    of = [(w, PAPER[name][PLACES.index(place)]) for name, w in runs.weights(contrast).items()]
    mean = sum(w * x[0] for w, x in of)
    half = sum((w * (x[2] - x[1]) / 2) ** 2 for w, x in of) ** 0.5
    return SimpleNamespace(mean=mean, interval=lambda: (mean - half, mean + half))


def paper(contrast: str, form: str = "{:.0f} [{:.0f}, {:.0f}]") -> str:
    of = [in_paper(place, contrast) for place in PLACES]
    return "; ".join(form.format(x.mean, *x.interval()) for x in of).replace("-", "−")


def margin(place: str) -> float:
    """Half of the paper's own main effect of the optimizations."""
    return in_paper(place, "OPTIMIZATIONS").mean / 2


def elsewhere(place: str, name: str, of: Runs) -> bool:
    """Answers whether an agent is known to end more than a quarter below or above the paper's. The quarter was chosen
    after a look: it tells TRPO and TRPO+ on Humanoid, which IM's released code does not reproduce either, from the
    others."""
    paper, (low, high) = PAPER[name][PLACES.index(place)][0], of(place, name).interval()
    return high < 0.75 * paper or low > 1.25 * paper


def mark_unlike(cells: Cells, contrast: str, of: Runs = runs) -> Cells:
    """Says of each cell if agents of the contrast are known to end elsewhere than the paper's."""
    for place, cell in cells.items():
        names = [x for x in of.weights(contrast) if x in PAPER and elsewhere(place, x, of)]
        cell.unlike = f"{' and '.join(names)} end{'s' * (len(names) == 1)} elsewhere than in the paper" * bool(names)
    return cells


def above(contrast: str, of: Runs = runs) -> Cells:
    cells = {x: of_sign(of(x, contrast), size=in_paper(x, contrast).mean) for x in of.places(contrast)}
    return mark_unlike(cells, contrast, of)


def none(contrast: str, of: Runs = runs) -> Cells:
    cells = {x: of_none(of(x, contrast), margin(x)) for x in of.places(contrast)}
    return mark_unlike(cells, contrast, of)


def with_released(cells: Cells, contrast: str) -> Cells:
    """Adds on Humanoid what IM's released code gives."""
    cells["Humanoid"].text += f"; with IM's released code {released('Humanoid', contrast)}"
    return cells


def planned(contrast: str, sign: int = 1, of: Runs = runs, size: float | None = IN_THE_PAPER) -> Cells:
    """Judges by a protocol, with the paper's main effect and a margin of half of it."""
    return {x: of_sign(of(x, contrast), sign, size, IN_THE_PAPER / 2) for x in of.places(contrast)}


def optimizations_help() -> Cells:
    """The released agents decide. None of the nine at PPO's own rates is the other definition of "off"."""
    cells = with_released(above("OPTIMIZATIONS"), "OPTIMIZATIONS")
    for place in PLACES[:2]:
        none = runs(place, "new/PPO - PPO-rates")
        if place in runs.places("AS_DEFINED"):
            cells[place].text += f"; as defined {runs(place, 'AS_DEFINED')}"
        cells[place].text += f"; all nine against none at PPO's rates: {none}"
        more = none - runs(place, "OPTIMIZATIONS")  # other seeds
        cells[place].depends = turns(cells[place].verdict, of_sign(none).verdict, more)
    return cells


def more_than_the_step() -> Cells:
    """The optimizations' main effect is the larger one if it exceeds both the step's and its negative."""
    cells = {}
    for place in PLACES:
        both = runs(place, "TRPO+ - PPO-M"), runs(place, "PPO - TRPO")
        least, signs = min(both, key=lambda x: x.mean), sorted(map(differs, both))
        verdict = {(1, 1): "holds", (-1, 1): "does not hold"}.get(tuple(signs), "cannot tell")
        needs = least.needed(in_paper(place, "TRPO+ - PPO-M").mean) if verdict == "cannot tell" else None
        cells[place] = Cell(str(least), verdict, least.seeds, max(x.p() for x in both), needs=needs)
    return mark_unlike(cells, "OPTIMIZATIONS")


def gain(*samples: np.ndarray) -> np.ndarray:
    """Returns the share of PPO's gain over TRPO that is the main effect of the optimizations."""
    ppo, ppo_m, trpo, trpo_plus = (x.mean(-1) for x in samples)
    return (ppo - ppo_m - trpo + trpo_plus) / 2 / (ppo - trpo)


def most_of_the_gain() -> Cells:
    """Where there is a gain, they are most of it if their main effect is above the step's, and the difference of both
    is TRPO+ - PPO-M."""
    cells = {}
    for place in PLACES:
        total, of = runs(place, "PPO - TRPO"), [runs.of(place)[x] for x in FOUR]
        cell = cells[place] = of_sign(runs(place, "TRPO+ - PPO-M"), text=f"{100 * float(gain(*of)):.0f} %")
        if differs(total) == 1:
            ends = bootstrap(gain, *of)["interval"]
            cell.text += " [{:.0f}, {:.0f}]".format(*(100 * x for x in ends))
        else:
            cell.text, cell.verdict = f"{cell.text}, no interval: the gain is {total}", "cannot tell"
        cell.p = max(cell.p, total.p())  # There must be a gain, too.
    return mark_unlike(cells, "OPTIMIZATIONS")


def share_kept(part: str, whole: str) -> Cells:
    """How much of the effect goes if observation normalization and tanh go, too, and by how much it exceeds a half."""
    share, x = 100 * runs("Hopper", part).mean / runs("Hopper", whole).mean, runs("Hopper", f"{part} - 0.5*{whole}")
    return dict(Hopper=of_sign(x, text=f"{share:.0f} %; above half of it by {x}"))


def judge_all() -> dict[str, Cells]:
    """Judges each row of the page's tables, in their order."""
    return {
        "IM: optimizations raise the reward": optimizations_help(),
        "IM: optimizations matter more than the step": more_than_the_step(),
        "IM: optimizations make most of PPO's gain over TRPO": most_of_the_gain(),
        "IM: the step makes no difference": with_released(none("STEP"), "STEP"),
        "IM: PPO and TRPO+ differ little": with_released(none("PPO - TRPO+"), "PPO - TRPO+"),
        "IM: PPO-M and TRPO differ little": with_released(none("PPO-M - TRPO"), "PPO-M - TRPO"),
        "IM: PPO ends above PPO-M": above("PPO - PPO-M"),
        "IM: TRPO+ ends above TRPO": with_released(above("TRPO+ - TRPO"), "TRPO+ - TRPO"),
        "PPO-M as defined is PPO-M as released": none("PPO-M-defined - PPO-M"),
        "TRPO as defined is TRPO as released": none("TRPO-defined - TRPO"),
        "TRPO+'s schedule makes no difference": none("TRPO+schedule - TRPO+"),
        "normalization and tanh are most of it": share_kept("KEPT", "WHOLE"),
        "… for PPO": share_kept("PPO_KEPT", "PPO_WHOLE"),
        "… for TRPO": share_kept("TRPO_KEPT", "TRPO_WHOLE"),
        "PPO-M's rates raise the reward": planned("RATES"),
        "observation normalization raises it": planned("NORM"),
        "tanh raises it": planned("TANH"),
        "normalization is worth more at PPO-M's rates": planned("RATES_NORM"),
        "tanh is worth more at PPO-M's rates": planned("RATES_TANH"),
        "normalization is worth more with tanh": planned("NORM_TANH"),
        "the whole ladder": planned("LADDER"),
        "normalization and tanh are worth more than the rates": planned("NORM + TANH - RATES"),
        "PPO-M ends higher at its own rates": planned("PPO-M-rates-obs-norm-tanh - PPO-rates-obs-norm-tanh"),
        "together the three add less": planned("ALL_THREE", -1),
        "all nine are worth something at the same rates": planned("new/PPO - PPO-rates"),
        "the others add to normalization and tanh": planned("new/PPO - PPO-rates-obs-norm-tanh"),
        "optimizations raise TRPO's reward at the same bound": planned(
            "-0.5*at/TRPO-at-other-delta - 0.5*at/TRPO + 0.5*at/TRPO+ + 0.5*at/TRPO+at-other-delta"
        ),
        "the larger bound raises it": planned(
            "-0.5*at/TRPO-at-other-delta + 0.5*at/TRPO - 0.5*at/TRPO+ + 0.5*at/TRPO+at-other-delta"
        ),
        "TRPO+ ends above TRPO in these seeds, too": planned("at/TRPO+ - at/TRPO"),
    }


# What the page says beside its tables --------------------------------------------------------------------------------


def more(name: str) -> Estimate:
    """By how much the later seeds of an agent end above the 30 on Hopper."""
    return Estimate([later.of("Hopper")[name], runs.of("Hopper")[name]], (1, -1))


def whole(x: Estimate) -> str:
    return "{:.0f} [{:.0f}, {:.0f}]".format(x.mean, *x.interval())


def levels() -> Iterable[list[str]]:
    """Yields the rows of IM's Tables 2 and 3 beside ours."""
    yield ["", *(x for place in PLACES for x in (f"{place}-v4", "the paper, -v2"))]
    for name, numbers in PAPER.items():
        ours = [str(runs(place, name)) for place in PLACES]
        yield [name, *(x for our, (y, *ends) in zip(ours, numbers) for x in (our, f"{y} {ends}"))]


def table_of_improvements() -> Iterable[list[str]]:
    """Yields the last rows of IM's Table 2, AAI and ACLI, ours as diagnostics/rewards.py computes them."""
    settings = {}
    for place in PLACES:
        finals = runs.of(place)
        settings |= {(f"{place}-v4", name): [dict(final=x) for x in finals[name]] for name in FOUR}
    yield ["", "AAI", "the paper", "ACLI", "the paper", "either, if nothing differed"]
    printed = dict(zip(PLACES, ((242, 557), (99, 421), (224, 444))))
    for x, (aai, acli) in zip(rewards.improvements(settings), printed.values(), strict=True):
        yield [x["env_id"], plain(x["aai"]), str(aai), plain(x["acli"]), str(acli), plain(x["by_chance"])]


# Pictures ------------------------------------------------------------------------------------------------------------

PAPERS = "the paper (-v2, 80 agents or more)"
EFFECTS = {"optimizations": "OPTIMIZATIONS", "step": "STEP", "interaction": "INTERACTION"}
EFFECTS |= {x.replace(" - ", " − "): x for x in ("PPO - PPO-M", "TRPO+ - TRPO", "PPO - TRPO+", "PPO-M - TRPO")}


def effects():
    """Draws effects and differences with 95 % intervals, ours and the paper's."""
    panels = {}
    for place in PLACES:
        of = {x: {place: runs(place, y), PAPERS: in_paper(place, y)} for x, y in EFFECTS.items()}
        panels[f"{place}-v4, {runs(place, 'STEP').seeds} seeds"] = of
    return forest(panels, "difference of final rewards", list(map(margin, PLACES)))


def off():
    """Draws what the optimizations are worth by what "off" means, with the ladder between."""
    meanings = {
        "against IM's released baselines": "OPTIMIZATIONS",
        "against IM's definitions": "AS_DEFINED",
        "all nine, against none at PPO's rates": "new/PPO - PPO-rates",
        "ladder: all three, which is the released PPO-M": "LADDER",
        "ladder: PPO-M's rates alone": "PPO-M-rates - PPO-rates",
        "ladder: normalization alone": "PPO-rates-obs-norm - PPO-rates",
        "ladder: tanh alone": "PPO-rates-tanh - PPO-rates",
        "ladder: normalization and PPO-M's rates": "PPO-M-rates-obs-norm - PPO-rates",
        "ladder: normalization and tanh": "PPO-rates-obs-norm-tanh - PPO-rates",
    }
    rows = {says: {x: runs(x, of) for x in runs.places(of)} for says, of in meanings.items()}
    return forest({"": rows}, "what they add to the final reward on -v4, 95 % interval", [0])


PICTURES = dict(effects=effects, off=off)
