"""collect.py: what the diagnostics measured of each run, in a file for each environment."""

import json
import sys
from pathlib import Path

sys.path.insert(0, "diagnostics")
from measuring import runs

for env in ("Hopper", "HalfCheetah"):
    cells = []
    for folder in sorted(Path("runs").glob(f"{env}-v5__*__seed[123]")):
        rows, algo = runs.read_progress(folder), runs.read_config(folder)["algo"]
        returns = [[int(row["iteration"]), float(row["episodic_return"])] for row in rows if row["episodic_return"]]
        numbers = {}
        for name in ("gradient", "trust_region", "value", "norms"):
            path = Path("out") / env / folder.name / f"{name}.jsonl"
            for cell in map(json.loads, path.read_text().splitlines() if path.is_file() else ()):
                numbers.setdefault(cell["iteration"], {})[name] = cell
        for iteration, of in sorted(numbers.items()):
            found = dict(run=folder.name, algo=algo, iteration=iteration)
            if "gradient" in of:
                scale = of["gradient"]["noise_scale"]["value network"]
                found["noise_scale"] = {x: scale[x] for x in ("pairs", "interval", "grad_sq", "trace")}
            if "trust_region" in of:
                found["heldout"] = {x: of["trust_region"]["heldout"][x] for x in ("mean_kl", "max_kl", "max_ratio")}
            if "value" in of:
                found["value_error"] = {x: of["value"]["heldout_returns"][x] for x in ("mean", "median")}
            found |= {x: y for x, y in of.get("norms", {}).items() if "grad" in x or x == "critic_step"}
            cells.append(found)
        cells.append(dict(run=folder.name, algo=algo, returns=returns))
    Path(f"figures/sb3/{env.lower()}.json").write_text(json.dumps(cells).replace("}, {", "},\n{") + "\n")
