"""The rules by which the numbers in these folders judge the papers' claims, and the tables and pictures of all claims.

    python figures/claims.py                # fills the tables of all pages and draws all pictures
    python figures/claims.py reward nine    # the same for these rooms and for the first page alone

A claim stands once, as a row of the README.md of a room: its name (in a comment), the paper's words and the paper's own
numbers are written there by hand. The function of that name in the room's claims.py computes what was measured and the
verdict, by the rules below, and this file fills the rest of the row. A test holds the rows against these functions.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from estimates import FIGURES, PLACES, Estimate, OfSeed, finals  # it makes measuring importable, too
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from measuring import figures
from PIL import Image
from scipy import stats

ROOMS = "reward", "clipping", "nine", "steps", "gradients", "critic", "landscapes", "algorithms", "sb3"
ROOMS += "replay", "report"
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
    other: str | None = None  # the verdict by another definition of what the claim is about
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


def of_sign(
    x: Estimate, sign: int = 1, bound: float = 0, text: str = "", size: float | None = None, margin: float | None = None
) -> Cell:
    """Judges the claim that x is above the bound, or below it with sign -1. `size` is how large the paper's effect is,
    from which follows how many seeds would decide. With a margin the second question is answered beside it."""
    verdict = {sign: HOLDS, -sign: NOT, 0: UNCLEAR}[differs(x, bound)]
    needs = x.needed(size) if verdict == UNCLEAR and size else None
    text = text or (answered(x, margin) if margin else str(x))
    return Cell(text, verdict, x.seeds, x.p() if bound == 0 else None, needs=needs)


def of_none(x: Estimate, margin: float, text: str = "") -> Cell:
    """Judges the claim that there is no difference: it holds if the difference is negligible, and does not if it
    differs from 0 and is not negligible."""
    small, other = negligible(x, margin), differs(x)
    verdict = HOLDS if small else NOT if other else UNCLEAR
    needs = x.needed(margin, 1.645 + 1.282) if verdict == UNCLEAR else None
    low, high = (float(stats.t.cdf((side * x.mean - margin) / x.error, x.freedom)) for side in (-1, 1))
    return Cell(text or answered(x, margin), verdict, x.seeds, max(low, high) if small else x.p(), needs=needs)


def answered(x: Estimate, margin: float) -> str:
    """Writes an effect with the answers to both questions."""
    answers = ("yes" if y else "no" for y in (differs(x), negligible(x, margin)))
    return "{} (differs: {}; negligible: {})".format(x, *answers)


def of_all(cells: list[Cell], text: str) -> Cell:
    """Judges a claim that says several things: it holds if all hold, and does not if one does not."""
    verdicts = [x.verdict for x in cells]
    verdict = NOT if NOT in verdicts else UNCLEAR if UNCLEAR in verdicts else HOLDS
    return Cell(text, verdict, min(x.seeds for x in cells), max(x.p or 0 for x in cells))


def counted(text: str, found: list[bool | None], unit: str = "seeds") -> Cell:
    """Counts where something is so (True), is not so (False) or cannot be told (None), without a test."""
    so, against = found.count(True), found.count(False)
    verdict = HOLDS if so == len(found) else NOT if against == len(found) else UNCLEAR
    return Cell(text, verdict, len(found), unit=unit, so=so, against=against)


def correct(cells: Iterable[Cell], planned: int = 0) -> None:
    """Corrects these tests by Holm for one another. Those that are planned and have not been run count."""
    significant, tested = True, sorted((x for x in cells if x.p is not None), key=lambda x: x.p)
    for i, cell in enumerate(tested):
        significant = significant and cell.p < 0.05 / (max(len(tested), planned) - i)
        cell.holm = significant


# Runs of a few seeds -------------------------------------------------------------------------------------------------


def in_turn(texts: Iterable[str]) -> str:
    """Writes one text after the other, once where all are the same, and a common end once: 18, 20, 19 of 20."""
    texts = list(texts)
    starts, _, ends = zip(*(x.partition(" of ") for x in texts))
    if len(set(texts)) == 1 and len(texts) > 1:
        return texts[0]
    return ", ".join(starts) + f" of {ends[0]}" if len(set(ends)) == 1 and ends[0] else ", ".join(texts)


def of_seeds(
    form: str, judge: Callable, seeds: dict[str, list[OfSeed]], bound: float | None = None, above: bool = True
) -> Cells:
    """Judges a claim about the runs of each seed. Of one seed, `judge(environment, cells)` makes the texts that go into
    the form and what is found: a number, which must be above the bound or below it, or whether it is so. Of numbers,
    the one that is least favourable to the claim is written, too."""
    cells = {}
    for env, of in seeds.items():
        texts, found = zip(*(judge(env, x) for x in of))
        text = form.format(*map(in_turn, zip(*texts)))
        if bound is not None and len(of) > 1:
            text += f"; least favourable {(min if above else max)(found):.3g}"
        cells[env] = counted(text, [bool(x > bound) is above for x in found] if bound is not None else list(found))
    return cells


# Rooms and tables ----------------------------------------------------------------------------------------------------

REPLICATED, REFUTED, DEPENDS, OPEN, FEW = (
    *("replicated (✓ somewhere, ✗ nowhere)", "refuted (✗ somewhere, ✓ nowhere)"),
    *(
        "depends on a definition or the environment",
        "cannot tell (in brackets: uncorrected)",
        "few runs only",
    ),
)
MARKS = {HOLDS: "✓", NOT: "✗", UNCLEAR: "?"}


@functools.cache
def room(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_claims", FIGURES / name / "claims.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def claims_of(name: str) -> dict[str, Cells]:
    """Returns a room's claims by their names. The first one is its question's primary test, which is corrected for its
    environments alone; the paper's other claims are corrected for one another. So are the primary tests of a protocol,
    which are the claims of TOGETHER in the environments that stand there."""
    claims = {text: cells() for text, cells in getattr(room(name), "CLAIMS", {}).items()}
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
    """Returns the heading under which the first page lists a claim. Runs that are only counted decide nothing."""
    tested = [x for x in cells.values() if not x.unit]
    verdicts = {x.verdict for x in tested if x.holm is not False}
    if any(x.other not in (None, x.verdict) for x in cells.values()) or verdicts >= {HOLDS, NOT}:
        return DEPENDS
    if not tested:
        return FEW
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
    holm = {None: "", True: " after Holm", False: " alone, not after Holm"}[
        cell.holm if cell.verdict != UNCLEAR else None
    ]
    needs = f" ({cell.needs} seeds would)" if cell.needs and cell.needs > cell.seeds else ""
    needs = needs or " (n suffices for the paper's effect)" * bool(cell.needs)
    return f"{cell.verdict}{holm}{needs}, n = {cell.seeds}"


def line_of(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def filled(header: list[str], row: str, cells: Cells) -> str:
    """Returns a claim's row, whose words and paper's numbers are given, with what was measured."""
    given = [x.strip() for x in row.strip()[1:-1].split("|")][: 1 + ("the paper" in header)]
    verdicts = {}
    for place, cell in cells.items():
        verdicts.setdefault(name_verdict(cell), []).append(place)
    one = len(verdicts) == 1
    verdict = "; ".join(x if one else f"{', '.join(y)}: {x}" for x, y in verdicts.items())
    columns = [x.split("-v")[0] for x in header if x.split("-v")[0] in ENVIRONMENTS]
    assert set(cells) <= set(columns), (row, columns)
    texts = [cells[x].text if x in cells else "" for x in columns]
    return line_of([*given, *texts, verdict])


def with_tables(page: str, name: str) -> str:
    """Returns a room's page with the row of each claim, and with each table that the room writes itself."""
    for claim, cells in claims_of(name).items():
        [row] = re.findall(rf"^\| <!-- {re.escape(claim)} -->.*$", page, re.MULTILINE)
        header = page[: page.index(row)].rsplit("| claim |", 1)[1].split("\n")[0]
        page = page.replace(row, filled(["claim", *(x.strip() for x in header.split("|"))], row, cells))
    for table, rows in getattr(room(name), "TABLES", {}).items():
        page = with_table(page, table, *rows())
    return page


def with_table(page: str, name: str, header: list[str], *rows: list[str]) -> str:
    return between(page, name, "\n".join(map(line_of, [header, ["---"] * len(header), *rows])))


def between(page: str, name: str, text: str) -> str:
    """Returns the page with this text between the table's two comments."""
    begin, end = f"<!-- table {name} -->", "<!-- end -->"
    before, after = page.split(begin)
    return f"{before}{begin}\n\n{text}\n\n{after[after.index(end) :]}"


def mark(cell: Cell | None) -> str:
    """Writes a verdict in one word: ✓30, (✓)30 where it does not stand after Holm's correction, ✓3/3 where seeds are
    counted, and ?40→130 where 130 seeds would decide."""
    if cell is None:
        return ""
    if cell.unit:
        return f"{MARKS[cell.verdict]}{cell.against if cell.verdict == NOT else cell.so}/{cell.seeds}"
    sign = f"({MARKS[cell.verdict]})" if cell.holm is False and cell.verdict != UNCLEAR else MARKS[cell.verdict]
    return f"{sign}{cell.seeds}" + f"→{cell.needs}" * bool(cell.needs and cell.needs > cell.seeds)


def all_claims() -> Iterable[tuple[str, str, str, Cells]]:
    """Yields each paper's claim under its heading: the heading, the room, the claim's name and its cells. Claims of
    our own, which are controls, stand in the rooms alone."""
    found = [(overall(x), name, text, x) for name in ROOMS for text, x in claims_of(name).items() if is_papers(text)]
    order, of_few = (REPLICATED, REFUTED, DEPENDS, OPEN, FEW), ({HOLDS}, {NOT})
    # Of few runs, those stand first that all say so, and then those that all say not so.
    unlike = lambda cells: next((i for i, x in enumerate(of_few) if {y.verdict for y in cells.values()} == x), 2)
    yield from sorted(found, key=lambda x: (order.index(x[0]), unlike(x[3]) * (x[0] == FEW)))


def first_page(page: str) -> str:
    """Returns the first page with the table of all claims."""
    rows, last = [], ""
    for heading, name, text, cells in all_claims():
        if heading != last:
            rows.append([f"**{heading}**", "", "", "", "", ""])
        marks = [mark(cells.get(x)) for x in ENVIRONMENTS]
        rows.append([text, *marks, f"[-{room(name).VERSION}]({name})"])
        last = heading
    header = ["claim", *ENVIRONMENTS, "room"]
    return between(page, "claims", "\n".join("|".join(["", *x, ""]) for x in [header, ["---"] * len(header), *rows]))


# Pictures ------------------------------------------------------------------------------------------------------------

HUES = {HOLDS: (27, 120, 55), NOT: (217, 106, 0), UNCLEAR: (110, 110, 110)}


def shade(cell: Cell) -> tuple[tuple[float, float, float], str]:
    """Returns a verdict's colour, the darker the more runs it rests on, and the ink that can be read on it."""
    strength = np.select([cell.seeds < 2, bool(cell.unit), cell.seeds < 10], [0.08, 0.25, 0.5], 1.0)
    strength *= 0.35 if cell.verdict == UNCLEAR or cell.holm is False else 1
    colour = 1 - strength * (1 - np.array(HUES[cell.verdict]) / 255)
    return tuple(colour), "white" if strength > 0.7 else "black"


def draw_claims() -> Figure:
    """Draws all claims by their verdicts."""
    rows, last = [], ""
    for heading, name, text, cells in all_claims():
        rows += [(heading, None, "")] * (heading != last) + [(text, cells, room(name).VERSION)]
        last = heading
    figure = Figure(figsize=(8.8, 0.215 * len(rows) + 0.9), layout="constrained")
    axis = figure.subplots()
    for y, (text, cells, of) in enumerate(rows):
        axis.text(-4.35, y, text, va="center", fontsize=9, weight="normal" if cells else "bold")
        axis.text(-0.62, y, f"-{of}" if of else "", va="center", ha="right", fontsize=9, color="0.35")
        for x, place in enumerate(ENVIRONMENTS if cells else ()):
            face, ink = shade(cells[place]) if place in cells else ("white", "black")
            axis.add_patch(Rectangle((x - 0.48, y - 0.42), 0.96, 0.84, facecolor=face, edgecolor="#999999", lw=0.5))
            axis.text(x, y + 0.05, mark(cells.get(place)), color=ink, ha="center", va="center", fontsize=8.5)
    for x, place in enumerate(ENVIRONMENTS):
        axis.text(x, -1, place, ha="center", va="center", fontsize=9, weight="bold")
    says = "✓ so   ✗ not so   ? cannot tell   n: seeds   3/3: in 3 of 3 seeds, not tested   (✓): uncorrected\n"
    says += "darker: more seeds (1, 2 to 4, 5 to 9, 10 or more)   ?40→80: 80 seeds would decide in four of five cases"
    axis.text(-4.35, -2.7, says, fontsize=9, va="center")
    axis.set(xlim=(-4.4, len(ENVIRONMENTS) - 0.45), ylim=(len(rows), -3.6))
    axis.axis("off")
    return figure


def new_figure(rows: int, columns: int, height: float, **style: Any) -> tuple[Figure, np.ndarray]:
    """Returns a figure as wide as a page of GitHub shows it at 100 pixels an inch, and its axes [rows, columns]."""
    return figures.new_figure(rows, columns, (8.8, height), **style)


def draw_rows(series: dict[str, dict[str, Estimate]], xlabel: str, margin: float | None = None) -> Figure:
    """Draws estimates, whose names are the rows, of each series a mean with its interval, and beside it dots, which are
    the runs of one agent, or else the means of the samples. A margin is drawn around 0."""
    names = list(next(iter(series.values())))
    figure, [[axis]] = new_figure(1, 1, 1 + 0.45 * len(names))
    for (label, of), colour, marker, shift in zip(series.items(), ("#0072b2", "#d55e00"), "os", (-0.15, 0.15)):
        for y, name in enumerate(names):
            x = of[name]
            dots = x.samples[0] if len(x.samples) == 1 else [runs.mean() for runs in x.samples]
            axis.plot(dots, [y + 1.7 * shift] * len(dots), marker, color=colour, ms=3.5, alpha=0.5, mec="none")
            axis.plot(x.interval(), [y + shift] * 2, color=colour, lw=2)
            axis.plot(x.mean, y + shift, marker, color=colour, ms=6, label=None if y else label)
    if margin:
        axis.axvspan(-margin, margin, color="0.92", lw=0, zorder=0, label="margin")
        axis.axvline(0, color="black", lw=0.8)
    axis.set_yticks(range(len(names)), names, fontsize=9)
    axis.invert_yaxis()
    axis.set_xlabel(xlabel, fontsize=9)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def draw_agents(files: dict[str, str], agents: dict[str, str]) -> Figure:
    """Draws the final rewards of these agents, which are named. Of each environment a file is given."""
    series = {}
    for place, path in files.items():
        of = {says: Estimate([finals(path)[name]]) for name, says in agents.items()}
        series[f"{place}, {min(x.seeds for x in of.values())} seeds"] = of
    return draw_rows(series, "final reward: dots are runs, lines 95 % intervals of the means")


def save(figure: Figure, path: Path) -> None:
    drawn = io.BytesIO()
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(drawn, dpi=150)
    # In 256 colours a picture looks the same and takes a third of the space.
    Image.open(drawn).convert("RGB").quantize(256).save(path, optimize=True)


def main(names: list[str]) -> None:
    if unknown := [x for x in names if x not in ROOMS]:
        sys.exit(f"claims.py: there is no {', '.join(unknown)} among {', '.join(ROOMS)}")
    for name in names or ROOMS:
        page = FIGURES / name / "README.md"
        page.write_text(with_tables(page.read_text(), name))
        for picture, draw in room(name).PICTURES.items():
            save(draw(), FIGURES / name / f"{picture}.png")
    page = FIGURES / "README.md"
    page.write_text(first_page(page.read_text()))
    save(draw_claims(), FIGURES / "claims.png")


if __name__ == "__main__":
    import claims  # the rooms' files import this module, too, and there must be one of it

    claims.main(sys.argv[1:])
