"""Is my script right, and is this run all right? This prints what script_checks.py and run_checks.py find of runs. It
writes report.html for people and verdicts.json for programs.

    python diagnostics/report runs/Hopper-v5__ppo__seed1                       # seconds
    python diagnostics/report runs/Hopper-v5__ppo__seed1 --meant value_loss    # I mean what differs there

The script is judged by some fresh segments and updates that it makes, from the run's last checkpoint with a step, and
the run by its log and its checkpoints. It does not say whether the gradients mean anything, the values are right or the
updates help; the diagnostics measure that. What is wrong is "bad", what may be wrong is "caution", and what is only not
what our script does "differs"."""

import json
import textwrap
import traceback
from collections import Counter
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
    script: Path | None = None  # the algorithm's script; default: the one in algos/ that the run names
    out: Path | None = None  # folder of the page; default: figures/ inside the first run
    seed: int = 0  # of everything that is sampled here
    meant: tuple[str, ...] = ()  # checks whose alarms are meant, by the names that stand in front of them


SCRIPT, RUN = "Is the script right?", "Is this run all right?"


def find(args: Args, opened: list[list[lab.Checkpoint]]) -> list[dict[str, Any]]:
    """Returns what the checks found of each run, the worst first. Writes it as the page for people and, with the path
    of the run in each finding, for programs."""
    page, out = [], args.out
    for checkpoints in opened:
        folder, script = checkpoints[0].run, checkpoints[0].script
        run = run_checks.Run(checkpoints, args.seed)
        found = [dict(half=SCRIPT) | x for x in of_script(run, args.meant)]
        if run.progress:  # which may not have begun
            found += [dict(half=RUN) | x for x in checks.judge(run_checks.CHECKS, run, found, args.meant)]
        found = [dict(run=str(folder.resolve())) | x for status in checks.ORDER for x in found if x["status"] == status]
        flags = " ".join(rewards.flag(*x) for x in run_checks.given(run.config, script).items())
        title = f"{run.args['env_id']}, {script.name} {flags}".strip() + f", seed {run.args['seed']}: {folder}"
        sums = ", ".join(f"{n} {status}" for status, n in Counter(x["status"] for x in found).items())
        at = f"The script was checked at iteration {run.iteration}. Nothing else was tested."
        if run.iteration == 0 and len(checkpoints) > 1:
            at += " Only the untrained policy can be measured: train with a smaller --checkpoint-every for more."
        page.append(dict(title=title, at=at, sums=f"{len(found)} checks: {sums}", found=found))
    (out / "verdicts.json").write_text(json.dumps([x for run in page for x in run["found"]], indent=1))
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    template = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True).get_template("report.html.jinja")
    (out / "report.html").write_text(template.render(runs=page, halves=(SCRIPT, RUN), alarms=checks.ALARMS))
    return page


def of_script(run: run_checks.Run, meant: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns what is found of the script. Where it cannot be sampled at all, that is what is found."""
    try:
        return checks.judge(script_checks.CHECKS, run.script, meant=meant)
    except Exception as error:
        if isinstance(error, OSError) or type(error).__name__ == "BadInput":
            raise  # which is about the environment, and one line for the user
        frame, name = traceback.extract_tb(error.__traceback__)[-1], f"{type(error).__name__}: {error}"
        text = f"Fresh segments of it could not be sampled: {frame.name} stopped in line {frame.lineno} with {name}."
        about = dict(check="sampled", tested="it can be sampled", where="", rule="rollout and estimate_advantages run.")
        return [about | checks.Verdict(checks.BAD, text)._asdict()]


def sentence(x: dict[str, Any]) -> str:
    """Writes a finding. An alarm has the check's name in front, and names the script's functions to look at."""
    alarm = x["status"] in checks.ALARMS
    look = f" Look at {x['where']}." if alarm and x["where"] else ""
    name = f"{x['check']}: " if alarm or x["status"] == checks.MEANT else ""
    number = f" ({x['number']})" if x["number"] else ""
    return f"[{x['status']}] {name}{x['text'] + look if x['text'] else x['tested']}{number}"


def main(argv: list[str] | None = None) -> None:
    args = lab.read_options(Args, argv, __doc__)
    torch.set_num_threads(1)  # with two, the updates that check the script take ten times as long
    names = [x.find.__name__ for x in [*script_checks.CHECKS, *run_checks.CHECKS]]
    if unknown := [x for x in args.meant if x not in names]:
        lab.refuse(f"--meant {unknown[0]}: no check has this name; there are {' '.join(names)}")
    opened = lab.open_runs(args, with_step=False)
    args.out.mkdir(parents=True, exist_ok=True)
    for run in find(args, opened):
        alarms = [x for x in run["found"] if x["status"] in checks.ALARMS]
        lines = [run["title"], f"  {run['sums']}. {run['at']}", *(f"    {sentence(x)}" for x in alarms)]
        for half in (SCRIPT, RUN):
            lines += [f"  {half}"]
            lines += [f"    {sentence(x)}" for x in run["found"] if x["half"] == half and x not in alarms]
        for line in lines:
            print(textwrap.fill(line, 112, subsequent_indent=" " * 6))
    print(f"\n{args.out / 'report.html'}")
