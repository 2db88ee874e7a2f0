"""Is my script right, and is this run all right? This prints what script_checks.py and run_checks.py find of runs. It
writes report.html, with the findings beside the pictures of the diagnostics, and verdicts.json for programs.

    python diagnostics/report runs/Hopper-v5__ppo__seed1 --quick      # seconds: the script, and what is on disk
    python diagnostics/report runs/Hopper-v5__ppo__seed1              # minutes: it runs the diagnostics first

It measures nothing itself but some fresh segments and updates, to check the script. Without --quick it runs each
diagnostic that has no row of a run yet, with smaller samples than by default. Rows in the output folder, or in the
run's figures/, are used as they are, whoever measured them."""

import json
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import checks
import jinja2
import lab
import rewards
import run_checks
import script_checks
import torch
import tyro


@dataclass(frozen=True)
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]  # run folders, all of one environment
    quick: bool = False  # run no diagnostic; check the script, and use the rows that are there
    script: Path | None = None  # the algorithm's script; default: the one in algos/ that the run names
    out: Path | None = None  # folder of the page, figures and rows; default: figures/ inside the first run
    jobs: int = lab.CORES  # worker processes of the diagnostics
    seed: int = 0  # of everything that is sampled here
    overwrite: bool = False  # measure again what an earlier call has measured


SCRIPT, RUN = "Is the script right?", "Is this run all right?"
ORDER = [checks.BAD, checks.CAUTION, checks.CANNOT_TELL, checks.FACT, checks.GOOD]
MEASURED = dict(  # by the name of their rows: the diagnostics that the page shows, with samples of a report's size
    gradient=("gradient", "--pairs 2048 --repeats 20 --true-pairs 95000"),
    trust_region=("trust_region", "--heldout-pairs 10240"),
    updates=("steps", "--rewards 8 --reward-pairs 8000"),
    value=("value", "--heldout-pairs 10240"),
)


def measure(args: Args, opened: list[list[lab.Checkpoint]]) -> None:
    """Runs the diagnostics one after another, each for the runs of which it has no row yet."""
    shared = ["--out", str(args.out), "--jobs", str(args.jobs), "--seed", str(args.seed)]
    if args.overwrite:
        shared.append("--overwrite")
    if args.script:
        shared += ["--script", str(args.script)]
    for name, (program, options) in MEASURED.items():
        lacking = []
        for checkpoints in opened:
            run, has_value = checkpoints[0].run, hasattr(lab.load_script(checkpoints[0].script), "value_loss")
            there = run_checks.rows_from(checkpoints, [args.out, run / "figures"], name)
            if (has_value or program != "value") and (args.overwrite or not there):
                lacking.append(str(run))
        if lacking:
            print(f"{program}.py {options}", flush=True)
            path = Path(lab.__file__).with_name(f"{program}.py")
            done = subprocess.run([sys.executable, str(path), *lacking, *shared, *options.split()])
            if done.returncode:
                lab.refuse(f"{program}.py stopped", done.returncode)


def find(args: Args, opened: list[list[lab.Checkpoint]]) -> list[dict[str, Any]]:
    """Returns of each run what the checks found, the worst first, and what no diagnostic has measured. Writes it as the
    page for people and, with the path of the run in each finding, for programs."""
    page, out = [], args.out
    for checkpoints in opened:
        folder, config = checkpoints[0].run, lab.read_config(checkpoints[0].run)
        run = run_checks.Run(checkpoints, [out, folder / "figures"], args.seed)
        halves = {SCRIPT: checks.judge(script_checks.CHECKS, run.script)}
        halves |= {RUN: checks.judge(run_checks.CHECKS, run)} if run.progress else {}  # which may not have begun
        found = [dict(half=half, run=str(folder.resolve())) | x for half, of in halves.items() for x in of]
        silent = [x for x in run_checks.CHECKS if ".py" in x.where and x.tested not in {y["tested"] for y in found}]
        todo = [f"{x.where} RUN would tell whether {x.tested}" for x in silent]
        title = f"{config['args']['env_id']}, {rewards.spell(config)}, seed {config['args']['seed']}: {folder}"
        found.sort(key=lambda x: ORDER.index(x["status"]))
        page.append(dict(title=title, at=run.script.checkpoint.iteration, found=found, todo=todo))
    (out / "verdicts.json").write_text(json.dumps([x for run in page for x in run["found"]], indent=1))
    loader, pictures = jinja2.FileSystemLoader(Path(__file__).parent), sorted(x.name for x in out.glob("*.png"))
    template = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True).get_template("report.html.jinja")
    (out / "report.html").write_text(template.render(runs=page, halves=(SCRIPT, RUN), pictures=pictures))
    return page


def sentence(x: dict[str, Any]) -> str:
    """Writes a finding. An alarm names the script's functions to look at."""
    look = f" Look at {x['where']}." if x["status"] in ORDER[:2] and x["where"] and ".py" not in x["where"] else ""
    return f"[{x['status']}] {x['text'] + look if x['text'] else x['tested']}" + f" ({x['number']})" * bool(x["number"])


def main(argv: list[str] | None = None) -> None:
    args = lab.read_options(Args, argv, __doc__)
    torch.set_num_threads(1)  # with two, the updates that check the script take ten times as long
    opened = lab.open_runs(args, with_step=False)
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.quick:
        measure(args, opened)
    for run in find(args, opened):
        lines = [run["title"], f"  {SCRIPT} (checked at iteration {run['at']}; nothing else is tested)"]
        lines += [f"    {sentence(x)}" for x in run["found"] if x["half"] == SCRIPT] + [f"  {RUN}"]
        lines += [f"    {sentence(x)}" for x in run["found"] if x["half"] == RUN]
        for line in lines + [f"    Not measured: {x}." for x in run["todo"]]:
            print(textwrap.fill(line, 112, subsequent_indent=" " * 6))
    print(f"\n{args.out / 'report.html'}")
