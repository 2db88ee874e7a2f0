"""Makes a run of agents of Stable-Baselines3: `python diagnostics/sb3 --help` says how. It needs lab.py beside it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import lab
import sb3

if __name__ == "__main__":
    lab.run_program(sb3.main)
