"""Trains PPO and TRPO with and without a baseline (CL sec. 2.2):

    ./benchmark.sh no-baseline --file figures/critic/no_baseline.py

It writes ppo_no_baseline.py and trpo_plus_no_baseline.py to results/no-baseline, which are the scripts of algos/ with
the change that this room's page shows.
"""

import re
from pathlib import Path

from papers import AGENTS, EXPERIMENTS, Experiment

ALGOS, PAGE = Path(__file__).parents[2] / "algos", Path(__file__).with_name("page.md")
COPIES = Path("results/no-baseline").resolve()


def without_baseline(source: str) -> str:
    """Returns a script with the page's diff applied. Each of its parts must occur once in the script."""
    [diff] = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", diff, flags=re.MULTILINE):
        old, new = (re.sub(r"^.", "", x, flags=re.MULTILINE) for x in (old, new))
        if source.count(old) != 1:
            raise ValueError(f"the page's diff does not fit the script: {old.strip()}")
        source = source.replace(old, new)
    return source


names = ["PPO", "TRPO"]
COPIES.mkdir(parents=True, exist_ok=True)
for name in names:
    script, *settings = AGENTS[name]
    copy, text = COPIES / f"{script}_no_baseline.py", without_baseline((ALGOS / f"{script}.py").read_text())
    if not copy.exists() or copy.read_text() != text:  # each task of a job array runs this file, and the script
        copy.write_text(text)
    AGENTS[f"{name}, no baseline"] = str(copy), *settings
agents = [*names, *(f"{name}, no baseline" for name in names)]
EXPERIMENTS["no-baseline"] = Experiment("CL sec. 2.2", "no baseline?", agents, seeds=5, envs=["Walker2d"])
