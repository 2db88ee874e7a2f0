"""Writes the pages of the results and draws their pictures. A page's template, page.md, has the sentences, and in {{ }}
the numbers, which are expressions of what the room's claims.py and this file know. A number that is not in {{ }} is a
paper's or a setting's.

    python figures/pages.py                # all pages and all pictures
    python figures/pages.py reward nine    # those of these rooms, the first page and that of all claims
"""

import re
import sys
import textwrap
from typing import Any

import claims
import estimates
import first_page
import jinja2
import numpy as np
import pictures
import planned
import protocols
from claims import ENVIRONMENTS, ROOMS, ROW, Cells, claims_of, room, template
from estimates import FIGURES

PAGES = *ROOMS, "report"
OVERVIEWS = {"README.md": "page.md", "claims.md": "claims-page.md"}  # and their templates


def so(*conditions: bool) -> str:
    """Writes nothing, and stops where the words before it are not so."""
    assert all(conditions), "a sentence is not so"
    return ""


def line_of(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(rows: list[list[str]]) -> str:
    header, *rows = map(list, rows)
    return "\n".join(map(line_of, [header, ["---"] * len(header), *rows]))


def filled(header: str, name: str, given: str, cells: Cells) -> str:
    """Returns a claim's row, whose words and paper's numbers are given, with what was measured."""
    verdicts = {}
    for place, cell in cells.items():
        verdicts.setdefault(claims.name_verdict(cell), []).append(place)
    verdict = "; ".join(x if len(verdicts) == 1 else f"{', '.join(y)}: {x}" for x, y in verdicts.items())
    columns = [x for x in (y.strip().split("-v")[0] for y in header.split("|")) if x in ENVIRONMENTS]
    assert set(cells) <= set(columns), (name, columns)
    texts = [cells[x].text if x in cells else "" for x in columns]
    return line_of([f"<!-- {name} -->{given.rstrip()}", *texts, verdict])


def with_claims(page: str, name: str) -> str:
    """Returns the page with what was measured in each claim's row."""

    def fill(row):
        header = page[: row.start()].rsplit("| claim |", 1)[1].split("\n")[0]
        return filled(header, row[1], row[2], claims_of(name)[row[1]])

    return ROW.sub(fill, page)


def all_claims() -> str:
    """Writes the table of all claims."""
    rows, last = [["claim", *ENVIRONMENTS, "room"]], ""
    for heading, name, text, cells in claims.all_claims():
        rows += [[f"**{heading}**", *[""] * 5]] * (heading != last)
        version = "v4" if name in ("reward", "clipping", "algorithms", "released") else "v5"
        rows.append([text, *(claims.mark(cells.get(x)) for x in ENVIRONMENTS), f"[-{version}]({name})"])
        last = heading
    return table(rows).replace("| ", "|").replace(" |", "|")


def wrapped(page: str) -> str:
    """Returns the page with its paragraphs and items in lines of 120 characters. Tables and code stay as they are."""
    form = dict(width=120, break_long_words=False, break_on_hyphens=False)

    def fill(block: str) -> str:
        if block[:1] in "|#!<\n" or not block.strip():
            return block
        items = re.split(r"\n(?=- |\d+\. )", block)
        indents = ["  " if x[:2] == "- " else "   " if re.match(r"\d+\. ", x) else "" for x in items]
        texts = [textwrap.fill(" ".join(x.split()), subsequent_indent=y, **form) for x, y in zip(items, indents)]
        return "\n".join(texts)

    parts = re.split(r"(^```.*?^```)", page, flags=re.DOTALL | re.MULTILINE)
    fill_all = lambda text: "".join(map(fill, re.split(r"(\n\n+|\n$|^\n)", text)))
    return "".join(x if i % 2 else fill_all(x) for i, x in enumerate(parts))


def known(name: str) -> dict[str, Any]:
    """Returns what a template's expressions may name. The overviews know the rooms."""
    overview = {x: room(x) for x in ROOMS} | dict(all_claims=all_claims, first_page=first_page)
    own = vars(room(name)) if name in ROOMS else overview
    ours = dict(so=so, table=table, np=np, abs=abs, all=all, len=len, list=list, max=max, min=min, round=round)
    ours |= dict(stopped=protocols.stopped, processors=protocols.processors)
    rules = vars(estimates) | vars(claims) | vars(planned)
    return {x: y for x, y in (rules | own | ours).items() if not x.startswith("__")}


def render(name: str) -> str:
    """Returns a room's page, or an overview."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    if name in OVERVIEWS:
        page = (FIGURES / OVERVIEWS[name]).read_text()
        return wrapped(environment.from_string(page).render(known(name)))
    if not (FIGURES / name / "page.md").exists():  # a room whose page has tables between comments
        page = (FIGURES / name / "README.md").read_text()
        for title, rows in room(name).TABLES.items():
            before, rest = page.split(f"<!-- table {title} -->")
            page = f"{before}<!-- table {title} -->\n\n{table(rows())}\n\n{rest[rest.index('<!-- end -->') :]}"
        return page
    page = with_claims(template(name), name)
    return wrapped(environment.from_string(page).render(known(name)))


def main(names: list[str]) -> None:
    if unknown := [x for x in names if x not in PAGES]:
        sys.exit(f"pages.py: there is no {', '.join(unknown)} among {', '.join(PAGES)}")
    for name in names or PAGES:
        (FIGURES / name / "README.md").write_text(render(name))
        for picture, draw in room(name).PICTURES.items():
            pictures.save(draw(), FIGURES / name / f"{picture}.png")
    for name in OVERVIEWS:
        (FIGURES / name).write_text(render(name))


if __name__ == "__main__":
    main(sys.argv[1:])
