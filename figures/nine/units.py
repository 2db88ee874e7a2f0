"""units.py RUN ...: what reward scaling divides the rewards by in the end. It prints a line of JSON for each run."""

import json
import sys
from pathlib import Path

sys.path.insert(0, "diagnostics")
from measuring import runs

for folder in map(Path, sys.argv[1:]):
    [sources] = runs.open_runs((folder,), None)
    last = runs.load_script(sources[-1].script).load_checkpoint(sources[-1].path)
    stats, args = last["reward_stats"], last["args"]
    std = (stats["sum_sq"] / (stats["count"] - 1)) ** 0.5
    print(json.dumps(dict(env_id=args["env_id"], seed=args["seed"], iteration=sources[-1].iteration, std=std)))
