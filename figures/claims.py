"""The rules by which the numbers in these folders judge the papers' claims.

A claim is a row of a room's page.md, which begins with its name, <!-- IM: PPO ends above PPO-M -->, and goes on with
the paper's words and numbers. How it is judged stands under the same name in judge_all() of the room's claims.py. Most
claims are contrasts of mean rewards, or count at how many checkpoints something is so. pages.py fills the rest.

Runs as a sample, by a rule that was written down before it was known which rows it changes:
- Five runs or more are tested, in their room, as anything else is.
- Three or four runs are tested where a row compares a number of each run with a threshold, and the number is that run's
  alone. The test is Student's t, two-sided, of these numbers against the threshold. (BCa intervals of three numbers
  mean nothing.) All such cells of all rooms are one family, which Holm corrects. A cell that stands is a test of so
  many runs. One that does not stays a count, as it was, since three runs that fail to show something say little.
- Fewer runs, and rows that are so or not so without such a number, are counted.
Most thresholds were chosen after a look at the first of the three runs, which makes these tests a little too kind.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from estimates import FIGURES, PLACES, Estimate
from protocols import missing
from scipy import stats

ROOMS = "reward", "clipping", "nine", "steps", "gradients", "critic", "landscapes", "algorithms", "sb3"
PLANNED = "noise_or_length", "gains_add_up", "critic_or_clip", "bounds", "time_limits", "released", "jagged"
PLANNED += "reference", "ten_seeds", "value_clip", "guide", "surfaces"
# The pages of these were written before their last run, and lack what can be said only after a look.
PARTS_OF = {"ten_seeds": ["ten-seeds"], "guide": ["algorithms", "algorithms-halfcheetah"]}
PARTS_OF |= {"surfaces": ["surfaces", "surfaces-humanoid"]}
ROOMS += tuple(x for x in PLANNED if not any(missing(part) for part in PARTS_OF.get(x, ())))
HOLDS, NOT, UNCLEAR = "holds", "does not hold", "cannot tell"
ENVIRONMENTS = *PLACES, "HalfCheetah"


@dataclass
class Cell:
    """What was measured about a claim in one environment."""

    text: str
    verdict: str
    seeds: int
    p: float | None = None  # of a test; None where seeds are counted
    unit: str = ""  # what is counted where nothing is tested: seeds or checkpoints
    so: int = 0  # in how many of them it is so
    against: int = 0  # and in how many it is known not to be so
    needs: int | None = None  # how many seeds would decide in four of five cases, where these cannot tell
    depends: bool = False  # whether another definition of what the claim is about is known to give another answer
    everywhere: bool = False  # whether the claim's own words ask for every environment
    unlike: str = ""  # why what was measured is not like the paper's: it confirms and refutes nothing
    runs: Estimate | None = None  # of three or four runs: the number that the claim is about, minus the threshold
    side: int = 1  # where this is above 0 if the claim is so, and -1 where below
    holm: bool | None = None  # whether the verdict stands after Holm's correction; None of controls, which have none


Cells = dict[str, Cell]  # by environment


# Rules ---------------------------------------------------------------------------------------------------------------


def differs(x: Estimate, bound: float = 0) -> int:
    """Answers the first question: on which side of the bound the 95 % interval lies, or 0."""
    low, high = x.ends()
    return int(low > bound) - int(high < bound)


def negligible(x: Estimate, margin: float) -> bool:
    """Answers the second question: whether the 90 % interval lies within the margin, which is two one-sided tests."""
    low, high = x.ends(0.9)
    return -margin < low and high < margin


def answered(x: Estimate, margin: float) -> str:
    """Writes an effect with the answers to both questions."""
    answers = ("yes" if y else "no" for y in (differs(x), negligible(x, margin)))
    return "{} (differs: {}; negligible: {})".format(x, *answers)


def of_sign(x: Estimate, sign: int = 1, size: float | None = None, margin: float | None = None, text: str = "") -> Cell:
    """Judges the claim that x is above 0, or below it with sign -1. `size` is how large the paper's effect is, from
    which follows how many seeds would decide. With a margin the second question is answered beside it."""
    verdict = {sign: HOLDS, -sign: NOT, 0: UNCLEAR}[differs(x)]
    needs = x.needed(size) if verdict == UNCLEAR and size else None
    return Cell(text or (answered(x, margin) if margin else str(x)), verdict, x.seeds, x.p(), needs=needs)


def of_none(x: Estimate, margin: float) -> Cell:
    """Judges the claim that there is no difference: it holds if the difference is negligible, and does not if it
    differs from 0 and is not negligible."""
    small, other = negligible(x, margin), differs(x)
    verdict = HOLDS if small else NOT if other else UNCLEAR
    needs = x.needed(margin, 1.645 + 1.282) if verdict == UNCLEAR else None
    low, high = (float(stats.t.cdf((side * x.mean - margin) / x.error, x.freedom)) for side in (-1, 1))
    return Cell(answered(x, margin), verdict, x.seeds, max(low, high) if small else x.p(), needs=needs)


def turns(verdict: str, other: str, difference: Estimate | None = None) -> bool:
    """Answers whether two definitions of what a claim is about are known to give different answers. They are if the
    verdicts are opposite. Where one of them cannot tell, the estimates must be known to differ, because "holds" beside
    "cannot tell" is no difference."""
    if {verdict, other} == {HOLDS, NOT}:
        return True
    return verdict != other and difference is not None and differs(difference) != 0


def counted(text: str, found: Iterable[bool | None], unit: str = "seeds") -> Cell:
    """Counts where something is so (True), is not so (False) or cannot be told (None), without a test."""
    found = list(found)
    so, against = found.count(True), found.count(False)
    verdict = HOLDS if so == len(found) else NOT if against == len(found) else UNCLEAR
    return Cell(text, verdict, len(found), unit=unit, so=so, against=against)


def agreed(sides: Iterable[bool | None]) -> bool | None:
    """Returns whether something is so throughout (True), somewhere known not to be (False), or cannot be told."""
    sides = list(sides)
    return True if all(sides) else False if False in sides else None


def correct(cells: Iterable[Cell], planned: int = 0) -> None:
    """Corrects these tests by Holm for one another. Those that are planned and have not been run count."""
    significant, tested = True, sorted((x for x in cells if x.p is not None), key=lambda x: x.p)
    for i, cell in enumerate(tested):
        significant = significant and cell.p < 0.05 / (max(len(tested), planned) - i)
        cell.holm = significant


def after_holm(estimates: Iterable[Estimate]) -> list[bool]:
    """Returns which of these estimates differ from 0 after Holm's correction for one another."""
    cells = [Cell("", "", x.seeds, x.p()) for x in estimates]
    correct(cells)
    return [x.holm for x in cells]


# Claims about checkpoints of a few runs ------------------------------------------------------------------------------


def n(x: Iterable[bool]) -> str:
    return f"{np.sum(x)} of {len(x)}"


def sides(x: Iterable[float], half: Iterable[float]) -> list[bool | None]:
    """Returns of each number, whose interval reaches half to either side, whether it is above 0 (True), below 0 (False)
    or neither."""
    return [True if mean > y else False if mean < -y else None for mean, y in zip(x, half)]


Look = Callable[[Any], tuple]  # from a run's numbers to what a claim is about, and texts


def in_turn(texts: Iterable[str]) -> str:
    """Writes one text after the other, once where all are the same, and a common end once: 18, 20, 19 of 20."""
    texts = list(texts)
    starts, _, ends = zip(*(x.partition(" of ") for x in texts))
    if len(set(texts)) == 1 and len(texts) > 1:
        return texts[0]
    return ", ".join(starts) + f" of {ends[0]}" if len(set(ends)) == 1 and ends[0] else ", ".join(texts)


def tally(
    seeds: dict[str, list[Any]],
    form: str,
    look: Look,
    below: float | None = None,
    above: float | None = None,
    unit: str = "seeds",
) -> Cells:
    """Judges a claim about the runs of each seed. `look` is given what was measured of a seed's runs, and returns what
    the claim is about, and then a text for each {} of the form. Either that is so, is not so or cannot be told (None),
    or it is a number, and so where it is below or above a bound. Of numbers the least favourable is written, too."""
    cells = {}
    for place, of in seeds.items():
        found, *texts = zip(*map(look, of))
        text, runs = form.format(*map(in_turn, texts)), None
        if below is not None or above is not None:
            least = max(found) if above is None else min(found)
            text += f"; least favourable {least:.3g}".replace("-", "−") * (len(of) > 1)
            runs = Estimate([np.array(found) - (below if above is None else above)]) if len(of) > 2 else None
            found = [x < below if above is None else x > above for x in found]
        cell = cells[place] = counted(text, [x if x is None else bool(x) for x in found], unit)
        cell.runs, cell.side = runs, -1 if above is None else 1
    return cells


def make_tests(cells: Iterable[Cell]) -> None:
    """Makes tests of the counts of three or four runs that stand after Holm's correction for one another. Where all
    runs have the same number, which leaves Student's t without a p, the sign test's counts."""
    cells = [x for x in cells if x.runs is not None]
    tests = [Cell("", "", x.seeds, x.runs.p() if x.runs.error else 0.5 ** (x.seeds - 1)) for x in cells]
    correct(tests)
    for cell, test in zip(cells, tests):
        if test.holm:
            cell.verdict = HOLDS if cell.runs.mean * cell.side > 0 else NOT
            cell.p, cell.holm, cell.unit = test.p, True, ""


# Rooms and verdicts --------------------------------------------------------------------------------------------------

REPLICATED, REFUTED, DEPENDS, OPEN, UNLIKE, FEW = (
    "holds in one task or more and fails in none",
    "refuted in one task or more and holds in none",
    "depends on a definition or the environment",
    "undecided",
    "decided only where what was measured is not like the paper's",
    "few runs only",
)
MARKS = {HOLDS: "✓", NOT: "✗", UNCLEAR: "?"}
ROW = re.compile(r"^\| <!-- (.*?) -->(.*)\|$", re.MULTILINE)


@functools.cache
def room(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_claims", FIGURES / name / "claims.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def template(name: str) -> str:
    return (FIGURES / name / "page.md").read_text()


@functools.cache
def all_rooms() -> dict[str, dict[str, Cells]]:
    """Returns the claims of all rooms, since those of three runs are corrected for one another in all of them."""
    rooms = {name: in_room(name) for name in ROOMS}
    make_tests(cell for claims in rooms.values() for cells in claims.values() for cell in cells.values())
    return rooms


def claims_of(name: str) -> dict[str, Cells]:
    """Returns a room's claims by their names."""
    return all_rooms()[name]


def in_room(name: str) -> dict[str, Cells]:
    """Judges the claims of a room by themselves. The first one is its question's primary test, which is corrected for
    its environments alone; the paper's other claims are corrected for one another. So are the primary tests of a
    protocol, which are the claims of TOGETHER in the environments that stand there."""
    claims = room(name).judge_all() if hasattr(room(name), "judge_all") else {}
    first, *others = [x for text, x in claims.items() if is_papers(text)] or [{}]
    correct(first.values())
    correct(cell for x in others for cell in x.values())
    for names, places in getattr(room(name), "TOGETHER", ()):
        tests = [claims[x][place] for x in names for place in places if place in claims[x]]
        correct(tests, len(names) * len(places))
    return claims


def is_papers(text: str) -> bool:
    """Returns whether a claim is a paper's, whose name comes first, or one of our own controls."""
    return ": " in text


def overall(cells: Cells) -> str:
    """Returns the heading under which a claim is listed. Runs that are only counted decide nothing, and a claim is
    confirmed, as it is refuted, only by what is like the paper's."""
    tested = [x for x in cells.values() if not x.unit]
    verdicts = {x.verdict for x in tested if x.holm is not False and not x.unlike}
    if any(x.depends for x in cells.values()) or verdicts >= {HOLDS, NOT}:
        return DEPENDS
    if not tested:
        return FEW
    if any(x.everywhere and (x.verdict != HOLDS or x.holm is False or x.unlike) for x in tested):
        return OPEN
    if any(x.unlike and x.holm and x.verdict != UNCLEAR for x in tested) and not verdicts & {HOLDS, NOT}:
        return UNLIKE
    return REPLICATED if HOLDS in verdicts else REFUTED if NOT in verdicts else OPEN


def name_verdict(cell: Cell) -> str:
    if cell.unit and cell.seeds == 1:
        one = {"seeds": "in the one run", "checkpoints": "at the one checkpoint"}.get(cell.unit, cell.unit)
        return {HOLDS: "so", NOT: "not so", UNCLEAR: "cannot tell"}[cell.verdict] + f" {one}"
    if cell.unit:
        where = "in" if cell.unit == "seeds" else "at"
        against = f"not so {where} {cell.against}" + f" of {cell.seeds} {cell.unit}" * (not cell.so)
        so = f"so {where} {cell.so} of {cell.seeds} {cell.unit}"
        return ", ".join([so] * (cell.so > 0 or not cell.against) + [against] * (cell.against > 0))
    known = cell.holm if cell.verdict != UNCLEAR else None
    holm = {None: "", True: " after Holm", False: " alone, not after Holm"}[known]
    needs = f" ({cell.needs} seeds would)" if cell.needs and cell.needs > cell.seeds else ""
    needs = needs or " (n suffices for the paper's effect)" * bool(cell.needs)
    unlike = f", but {cell.unlike}" * bool(cell.unlike and cell.verdict != UNCLEAR)
    return f"{cell.verdict}{holm}{needs}, n = {cell.seeds}{unlike}"


def mark(cell: Cell | None) -> str:
    """Writes a verdict in one word: ✓30, (✓)30 where it does not stand after Holm's correction, [✓]30 where what
    was measured is not like the paper's, ✓3/3 where seeds are counted, and ?40→130 where 130 seeds would decide."""
    if cell is None:
        return ""
    if cell.unit:
        return f"{MARKS[cell.verdict]}{cell.against if cell.verdict == NOT else cell.so}/{cell.seeds}"
    sign = MARKS[cell.verdict]
    if cell.verdict != UNCLEAR:
        sign = f"[{sign}]" if cell.unlike else f"({sign})" if cell.holm is False else sign
    return f"{sign}{cell.seeds}" + f"→{cell.needs}" * bool(cell.needs and cell.needs > cell.seeds)


@functools.cache
def all_claims() -> list[tuple[str, str, str, Cells]]:
    """Returns each paper's claim under its heading: the heading, the room, the claim's name and its cells. Where rooms
    judge the same claim, the later one decides in its environments. Claims of our own, which are controls, stand in the
    rooms alone."""
    claims = {}
    for name in ROOMS:
        for text, cells in claims_of(name).items():
            if is_papers(text):
                _, known = claims.get(text, (name, {}))
                # More seeds do not decide what a claim's words mean.
                depends = {x: y.depends or (x in known and known[x].depends) for x, y in cells.items()}
                claims[text] = name, known | {x: replace(y, depends=depends[x]) for x, y in cells.items()}
    found = [(overall(cells), name, text, cells) for text, (name, cells) in claims.items()]
    order, of_few = (REPLICATED, REFUTED, DEPENDS, OPEN, UNLIKE, FEW), ({HOLDS}, {NOT})
    # Of few runs, those stand first that all say so, and then those that all say not so.
    unlike = lambda cells: next((i for i, x in enumerate(of_few) if {y.verdict for y in cells.values()} == x), 2)
    return sorted(found, key=lambda x: (order.index(x[0]), unlike(x[3]) * (x[0] == FEW)))


def census() -> dict[str, int]:
    """Counts what the papers' claims rest on: those that are tested, by their headings, and those that are counted; and
    of those that hold, those that only tests of three or four runs decide."""
    found = [(heading, all(y.unit for y in x.values())) for heading, _, _, x in all_claims()]
    names = dict(so=REPLICATED, no=REFUTED, depends=DEPENDS, open=OPEN, unlike=UNLIKE)
    few = sum(is_few for _, is_few in found)
    of = {x: sum(heading == y and not is_few for heading, is_few in found) for x, y in names.items()}
    so = [x.values() for heading, _, _, x in all_claims() if heading == REPLICATED]
    three = sum(all(y.seeds < 5 for y in x if y.holm and y.verdict == HOLDS and not y.unlike) for x in so)
    cells = [y for of_room in all_rooms().values() for x in of_room.values() for y in x.values() if y.runs]
    of |= dict(asked=len(cells), stand=sum(y.unit == "" for y in cells))  # of three or four runs
    return dict(all=len(found), few=few, tested=len(found) - few, three=three) | of
