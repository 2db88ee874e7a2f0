"""How often is report.py right? Trains copies of the scripts with one bug each (bugs.txt), and healthy scripts, has the
report judge them all, and counts what it finds, what it names, and whom it accuses wrongly.

    python figures/report/plant.py --out planted               # trains and judges what is missing, writes hit_rate.json
    python figures/report/plant.py --out planted --only ppo    # the runs whose names have this pattern alone
    python figures/report/plant.py --out planted --mutants 30  # so many mutants of each script; writes mutants.json

To judge trained runs again, delete planted/pages. A bug is *found* if any verdict is bad, caution or differs, and
*named* if one of them is of a check that bugs.txt gives for it. A healthy run or edit is *accused* if any is bad
or caution; that an edit differs is no accusation. The runs are short: 25 iterations, one seed each, of Hopper-v5 but
for one. How mutants are made and counted, mutants.py says."""

import contextlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tyro
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path += [str(ROOT / "diagnostics" / x) for x in ("", "report")]

import checks  # noqa: E402
import lab  # noqa: E402
import mutants  # noqa: E402
import recorded  # noqa: E402
import report  # noqa: E402
import script_checks  # noqa: E402

EDITS = "Healthy edits, which people mean"
RUN = "--env-id Hopper-v5 --total-timesteps 51_200 --checkpoint-every 5 --seed 5"
HEALTHY = dict(
    ppo=("ppo", ""),
    ppo_plain=("ppo", "--no-value-clip --no-anneal-lr --no-tanh"),
    ppo_lambda=("ppo", "--gae-lambda 0.9 --policy-epochs 5 --value-epochs 5"),
    ppo_entropy=("ppo", "--entropy-coef 0.01 --bound-action clip"),
    ppo_squashed=("ppo", "--bound-action tanh"),
    ppo_short=("ppo", "--num-steps 64 --num-minibatches 2 --total-timesteps 6_400 --checkpoint-every 25"),
    ppo_humanoid=("ppo", "--env-id Humanoid-v5"),
    trpo_im=("trpo_plus", "--no-reward-scale --no-orthogonal-init --no-reward-clip --no-obs-clip --no-grad-clip"),
    ppo_two=("ppo", "--num-envs 2 --num-steps 1024 --no-obs-norm --no-reward-scale --no-grad-clip"),
    **{name: (name, "") for name in ("ppo_m", "ppo_noclip", "trpo", "trpo_plus", "a2c", "vmpo", "reinforce")},
)


class Bug(NamedTuple):
    kind: str  # the heading that it stands under
    name: str
    what: str
    checks: list[str]  # any of them names it
    trained: bool  # whether it shows only when the script has trained
    script: str
    flags: str
    edits: list[tuple[str, str]]  # texts of the script that occur once, and what replaces them


def read_bugs() -> list[Bug]:
    """Reads bugs.txt, whose first lines say how it is written."""
    bugs, kind = [], ""
    for block in (HERE / "bugs.txt").read_text().strip().split("\n\n")[1:]:
        if block.startswith("=="):
            kind = block.removeprefix("== ")
            continue
        title, options, *lines = block.split("\n")
        name, what = title.split(": ", 1)
        option = dict(x.partition(": ")[::2] for x in options.split("; "))
        edits = re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", "\n".join(lines) + "\n", re.MULTILINE)
        plain = [tuple("\n".join(line[1:] for line in text.splitlines()) for text in edit) for edit in edits]
        options = option.get("script", "ppo"), option.get("flags", "")
        bugs.append(Bug(kind, name, what, option["checks"].split(), "trained" in option, *options, plain))
    return bugs


def plant(bug: Bug, out: Path) -> Path:
    """Writes a copy of the bug's script with its edits, and returns it."""
    source = ROOT / "algos" / f"{bug.script}.py"
    text = source.read_text()
    for old, new in bug.edits:
        if text.count(old) != 1:
            sys.exit(f"plant.py: {bug.name}: {text.count(old)} places in {source.name} read {old!r}")
        text = text.replace(old, new)
    path = out / "scripts" / bug.name / source.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def train(name: str, script: Path, flags: str, out: Path) -> None:
    """Trains the script in a process of its own, and stops with one line where that fails."""
    command = [sys.executable, str(script), *RUN.split(), *flags.split(), "--runs-dir", str(out), "--run-name", name]
    with (out / f"{name}.txt").open("a") as log:
        if subprocess.run(command, stdout=log, stderr=log).returncode:
            sys.exit(f"plant.py: {' '.join(command)} failed; see {log.name}")
    (out / f"{name}.trained").touch()


def judge(name: str, bug: Bug | None, script: Path, flags: str, out: Path) -> dict[str, Any]:
    """Returns what the report says of a script's run. It trains and judges the run only where nobody has."""
    page = out / "pages" / name
    if not (out / f"{name}.trained").exists():
        train(name, script, flags, out)
    if not (page / "verdicts.json").exists():
        page.mkdir(parents=True, exist_ok=True)
        with (page / "report.txt").open("w") as text, contextlib.redirect_stdout(text):
            report.main([str(out / name), "--out", str(page), "--script", str(script)])
    keys = {status: ("check", "status", "text", "number") for status in checks.ALARMS}
    found = json.loads((page / "verdicts.json").read_text())
    found = [{key: x[key] for key in keys.get(x["status"], ("check", "status"))} for x in found]
    about = dict(kind="healthy", name=name.partition("__")[2], what=f"{script.name} {flags}".strip(), checks=[])
    about |= dict(kind=bug.kind, what=bug.what, checks=bug.checks) if bug else {}
    return about | dict(findings=found)


UNTRAINED = dict(env_id="Hopper-v5", num_steps=256, num_minibatches=4, total_timesteps=10_240, compile=False)
UNTRAINED |= dict(checkpoint_every=3, entropy_coef=0.01, bound_action="clip")


def judge_untrained(algo: str, script: Path, folder: Path, names: list[str] | None = None, **settings: Any) -> list:
    """Returns what the checks of a script, or those of these names, find at the first checkpoint of a run that has not
    trained. The run is the unedited script's."""
    module = lab.load_script(ROOT / "algos" / f"{algo}.py")
    known = {x: y for x, y in (UNTRAINED | settings).items() if x in module.Args.__dataclass_fields__}
    (folder / "checkpoints").mkdir(parents=True)
    module.write_config(module.Args(**known), folder)
    module.save_checkpoint(module.Args(**known), folder, module.State(module.Args(**known)))
    chosen = [x for x in script_checks.CHECKS if names is None or x.find.__name__ in names]
    return checks.judge(chosen, recorded.Script(lab.Checkpoint(script, folder, 0), 0))


def alarms(result: dict[str, Any]) -> list[str]:
    """Returns the checks whose verdict is bad or caution, or differs."""
    return [x["check"] for x in result["findings"] if x["status"] in checks.ALARMS]


def outcome(result: dict[str, Any]) -> str:
    found = alarms(result)
    if result["kind"] in ("healthy", EDITS):
        accused = any(x["status"] in ("bad", "caution") for x in result["findings"])
        return "accused" if accused else "differs" if found else "good"
    return "named" if set(found) & set(result["checks"]) else "found, not named" if found else "missed"


def rates(results: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the rows of a table with the rates of each kind of bug and of healthy runs, its header first."""
    rows = [["", "found", "named"]]
    for kind in dict.fromkeys(x["kind"] for x in results if x["kind"] not in ("healthy", EDITS)):
        found = [outcome(x) for x in results if x["kind"] == kind]
        counts = len(found) - found.count("missed"), found.count("named")
        rows.append([kind, *(mutants.exact(x, len(found)) for x in counts)])
    unedited = "healthy runs of unedited scripts that are accused"
    for kind, name in (("healthy", unedited), (EDITS, "healthy edits that are accused")):
        found = [outcome(x) for x in results if x["kind"] == kind]
        rows += [[name, mutants.exact(found.count("accused"), len(found)), "–"]] if found else []
    judged = [x["status"] for of_run in results if of_run["kind"] == "healthy" for x in of_run["findings"]]
    judged = [x for x in judged if x not in ("no verdict", "not measured")]
    wrong = sum(x in checks.ALARMS for x in judged)
    last = ["false alarms, of all verdicts on the unedited", mutants.exact(wrong, len(judged)), "–"]
    return rows + [last] * bool(judged)


@dataclass
class Args:
    out: Path
    """folder of the scripts, the runs and the reports"""
    only: str = ""
    """pattern of the names of bugs and runs or, for mutants, scripts; what is written then has these alone"""
    mutants: int = 0
    """mutants of each script; then nothing else is made"""
    seed: int = 1
    """of the sample of mutants"""


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if args.mutants:
        rows = mutants.measure(out, args.mutants, args.seed, args.only)
        (out / "mutants.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
        for row in mutants.by_script(rows):
            print("  ".join(row))
        return
    cases = [(f"bug__{x.name}", x, plant(x, out), x.flags) for x in read_bugs()]
    for name, (script, flags) in HEALTHY.items():
        cases.append((f"healthy__{name}", None, ROOT / "algos" / f"{script}.py", flags))
    cases = [x for x in cases if re.search(args.only, x[0])]
    found = [judge(*x, out) for x in tqdm(cases, mininterval=30)]
    (out / "hit_rate.json").write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n")
    for row in rates(found):
        print("  ".join(row))
    for x in found:
        if outcome(x) in ("missed", "found, not named", "accused", "differs"):
            print(f"{x['name']}: {outcome(x)} {' '.join(alarms(x))}")


if __name__ == "__main__":
    main()
