"""Judges runs and their scripts: `python diagnostics/report --help` says how. It needs lab.py and rewards.py beside its
folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import lab
import report

if __name__ == "__main__":
    lab.run_program(report.main)
