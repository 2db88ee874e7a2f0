"""Writes algos/details.md from page.md: PPO's details, the line of each in ppo.py, what other code does, and what each
is worth here. In {{ }} stand the lines, which are looked up, and the numbers, which come from the rooms of figures/.

    python figures/details/write.py
"""

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

import jinja2
from scipy import stats

sys.path.append(str(Path(__file__).parent.parent))

from claims import room
from estimates import Estimate, Runs, measured
from pages import so, wrapped

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PAGE, SCRIPT = ROOT / "algos" / "details.md", ROOT / "algos" / "ppo.py"
LIBRARIES = "cleanrl", "stable-baselines3", "rsl-rl", "skrl", "tianshou", "torchrl"  # as conformance.json names them


def line(name: str, text: str) -> str:
    """Returns a link to the one line of ppo.py that has this text, in the function or class of this name."""
    source = SCRIPT.read_text()
    [node] = [x for x in ast.walk(ast.parse(source)) if getattr(x, "name", "") == name]
    lines = range(node.lineno, node.end_lineno + 1)
    found = [i for i in lines if text in source.splitlines()[i - 1]]
    assert len(found) == 1, f"{name} of ppo.py has {text!r} in {len(found)} lines, and not in one"
    return f"[line {found[0]}](ppo.py#L{found[0]})"


def ways(function: str, detail: str) -> list[str]:
    """Returns how each library does a detail, as conformance measured it; "" where it was not asked or cannot tell."""
    answers = [measured("conformance/conformance")[x]["functions"].get(function, {}) for x in LIBRARIES]
    return [x.get("way", {}).get(detail) or "" for x in answers]


def cells(function: str, detail: str, wrapper: Iterable[str] = (), off: Iterable[str] = (), **words: str) -> str:
    """Writes these as cells of the table, in other words where those are given. In some libraries a wrapper does it
    that a user may choose, and in others it is off by default."""
    texts = []
    for library, way in zip(LIBRARIES, ways(function, detail)):
        text = words.get(way, way) or "–"
        texts.append(f"– ({text})" if library in wrapper else f"off ({text})" if library in off else text)
    return " | ".join(texts)


def cells_of_value_clipping() -> str:
    """Writes the form of each library's value clip, in brackets where the clip is off by default."""
    defaults = zip(LIBRARIES, ways("update", "value clipping"))
    # torchrl leaves the update to its user, and its clip_value is None.
    return cells("value_loss", "clipping", off=[x for x, way in defaults if way in ("", "unclipped")])


def worth(name: str) -> str:
    """Writes what one of the nine is worth beside the other eight, and alone."""
    texts = []
    for place in ("Hopper", "Walker2d"):
        beside, alone = (Estimate([room("nine").worth(place)[name, others]]) for others in (True, False))
        texts.append(f"{place} {beside}, alone {alone}")
    return "; ".join(texts)


def seeds(place: str) -> int:
    return len(room("nine").worth(place)["all", False])


def level(runs: Runs, contrast: str, places: Iterable[str]) -> str:
    """Writes a contrast in each of the environments."""
    texts = [f"{runs(x, contrast)} on {x}" for x in places]
    return ", ".join(texts[:-1]) + " and " + texts[-1]


def gradients_clipped(network: str) -> list[float]:
    """Returns which percentage of a network's gradients 9 shortens on Hopper-v5, in the middle 90 % of iterations."""
    return [round(100 * x) for x in measured("algorithms/columns")["Hopper-v5"][f"{network}_grads_clipped"]]


def saved_by_a_clip(bound: float) -> float:
    """Returns how many times as large E[a^2] of a standard normal action is as that of the action clipped at ±bound."""
    inside = stats.norm.cdf(bound) - stats.norm.cdf(-bound)
    return 1 / (inside - 2 * bound * stats.norm.pdf(bound) + bound**2 * (1 - inside))


def render() -> str:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    known = dict(line=line, cells=cells, cells_of_value_clipping=cells_of_value_clipping, worth=worth, seeds=seeds)
    known |= dict(level=level, gradients_clipped=gradients_clipped, saved_by_a_clip=saved_by_a_clip)
    known |= dict(room=room, so=so, len=len)
    return wrapped(environment.from_string((HERE / "page.md").read_text()).render(known))


if __name__ == "__main__":
    PAGE.write_text(render())
