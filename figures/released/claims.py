"""Whether IM's released code ends on today's Humanoid where our scripts do, or where the paper did, by protocol.md."""

from collections.abc import Iterable

import numpy as np
from claims import room
from estimates import Estimate, Runs
from pictures import forest
from planned import Tests, column, within

reward = room("reward")
AGENTS, THEIRS = reward.FOUR, "released/"
PAPERS = {name: reward.PAPER[name][-1] for name in AGENTS}  # on Humanoid-v2: mean, and the ends of the 95 % interval
MARGINS = {"TRPO": 95, "TRPO+": 198}  # half of the gap between the paper and ours
runs = Runs(f"released/released as {THEIRS}", "reward/humanoid")


def on_humanoid(contrast: str) -> Estimate:
    return runs("Humanoid", contrast)


def against_paper(name: str) -> Estimate:
    """Returns what the released code earns minus the paper's mean, which has an error of its own: that of its interval.
    It comes from so many agents that its error counts as known (Satterthwaite)."""
    mean, low, high = PAPERS[name]
    x = Estimate([on_humanoid(THEIRS + name).samples[0] - mean])
    own, x.error = x.error, float(np.hypot(x.error, (high - low) / 2 / 1.96))
    x.freedom *= (x.error / own) ** 4
    return x


def primary() -> Tests:
    return {f"released {name} − the paper's": dict(Humanoid=against_paper(name)) for name in MARGINS}


def against_ours() -> Iterable[list[str]]:
    """Yields the final rewards and their differences, and whether those of TRPO and TRPO+ are negligible."""
    yield ["", "released", "ours", "released − ours", "", "the paper, -v2", "released, last 50"]
    for name, (mean, *ends) in PAPERS.items():
        x, negligible = on_humanoid(f"{THEIRS}{name} - {name}"), ""
        if name in MARGINS:
            negligible = "negligible" if within(x, MARGINS[name]) else f"not known to be within ±{MARGINS[name]}"
        means = str(on_humanoid(THEIRS + name)), str(on_humanoid(name))
        steadier = Estimate([column(runs, "Humanoid", THEIRS + name, "last_50")])
        yield [name, *means, str(x), negligible, f"{mean} {ends}", str(steadier)]


def effects() -> Iterable[list[str]]:
    """Yields the main effects by the released code and by ours, and their differences."""
    yield ["", "released", "ours", "released − ours"]
    for name in ("STEP", "OPTIMIZATIONS"):
        weights = reward.runs.weights(name)
        both = {THEIRS + x: w for x, w in weights.items()} | {x: -w for x, w in weights.items()}
        found = reward.released("Humanoid", name), reward.runs("Humanoid", name), runs("Humanoid", both)
        yield [f"the {name.lower()}", *map(str, found)]


def finals():
    """Draws the final rewards of the released code and of ours, and the paper's."""
    rows = {}
    for name in AGENTS:
        rows[name] = {"released": on_humanoid(THEIRS + name), "Humanoid, ours": on_humanoid(name)}
        rows[name] |= {reward.PAPERS: reward.in_paper("Humanoid", name)}
    return forest({"": rows}, "final reward on Humanoid-v4, 95 % interval; dots are runs", dots=True)


PICTURES = dict(released=finals)
