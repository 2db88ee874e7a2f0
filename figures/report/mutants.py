"""Changes the functions of the scripts mechanically, one place at a time, and asks what the report says.

A mutant differs from its script in one operator, comparison, constant, condition, pair of arguments or statement. A
sample of them, drawn with a seed, trains for a few iterations, interrupted once. What stops by itself needs no report.
What then has the same bits as the script, in all checkpoints and all of progress.csv but its speed, is set aside as
equivalent. All others are judged. A mutant is found if any verdict is bad, caution or differs, and named if the text of
such a verdict has the name of the function that was changed, or that of a field of the batch, or of a statistic, which
the changed statement sets."""

import ast
import contextlib
import copy
import csv
import json
import os
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch.utils._pytree import tree_leaves
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path += [str(ROOT / "diagnostics" / x) for x in ("", "report")]

import checks  # noqa: E402
import lab  # noqa: E402
import report  # noqa: E402

SCRIPTS = "ppo ppo_m ppo_noclip a2c reinforce trpo trpo_plus vmpo".split()
# What reads arguments, names folders and writes for people is not what the report judges.
LEFT_OUT = "main check_arguments run_folder open_run write_config record Args".split()
SETTINGS = dict(env_id="Hopper-v5", total_timesteps=1024, num_envs=2, num_steps=128, num_minibatches=4)
SETTINGS |= dict(
    policy_epochs=2, value_epochs=2, policy_lr=3e-4, entropy_coef=0.01, bound_action="clip", checkpoint_every=1
)
FIELDS = (
    "obs next_obs actions rewards terminations ends episodes advantages value_targets old_means old_stds old_values"
)
FIELDS += " old_log_probs multipliers entropy mean_kl max_kl max_ratio effective_sample_size clip_fraction policy_lr"
FIELDS += " explained_variance value_lr cg_residual line_search_step iteration global_step temperature nu_mean nu_std"
CPU_SECONDS = 90  # of a mutant; then it counts as one that stops

OTHER = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
PAIRS = dict(min="max", max="min", minimum="maximum", maximum="minimum", any="all", all="any")


class Mutant(NamedTuple):
    script: str
    function: str  # a top-level function or class
    line: int
    what: str  # the changed statement's first line, before and after
    words: list[str]  # of which one in an alarm names it
    source: str


class Site(NamedTuple):
    """A place in a script: its function's number, the node's in the function, and which of its changes is meant."""

    function: int
    node: int
    change: int


def nodes(function: ast.AST) -> list[ast.AST]:
    """Returns the nodes of a function without its annotations and decorators, in a fixed order."""
    found, left = [], [function]
    while left:
        node = left.pop(0)
        found.append(node)
        for name, child in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                left += [x for x in (child if isinstance(child, list) else [child]) if isinstance(x, ast.AST)]
    return found


def negate(node: ast.AST) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def changes(node: ast.AST) -> list[Any]:
    """Returns functions that each change a node in place in one way."""
    found = []
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in OTHER:
        found.append(lambda x: setattr(x, "op", OTHER[type(x.op)]()))
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
        found.append(lambda x: x.ops.__setitem__(0, OTHER[type(x.ops[0])]()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found.append(lambda x: setattr(x, "op", ast.UAdd()))
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        other = dict(bool=lambda y: not y, int=lambda y: y + 1, float=lambda y: 2 * y or 1.0)[type(node.value).__name__]
        found.append(lambda x: setattr(x, "value", other(x.value)))
    elif isinstance(node, ast.If | ast.IfExp) and isinstance(node.test, ast.Name | ast.Attribute):
        found.append(negate)
    elif isinstance(node, ast.Name) and node.id in PAIRS:
        found.append(lambda x: setattr(x, "id", PAIRS[x.id]))
    elif isinstance(node, ast.Attribute) and node.attr in PAIRS:
        found.append(lambda x: setattr(x, "attr", PAIRS[x.attr]))
    elif isinstance(node, ast.Call) and len(node.args) >= 2:
        found.append(lambda x: x.args.__setitem__(slice(0, 2), x.args[1::-1]))
    dropped = ast.Expr | ast.Assign | ast.AugAssign | ast.If | ast.For | ast.While
    for name in ("body", "orelse"):
        statements = getattr(node, name, [])
        for k, x in enumerate(statements if isinstance(statements, list) else []):
            is_docstring = isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant)
            if isinstance(x, dropped) and not is_docstring:
                found.append(lambda x, name=name, k=k: getattr(x, name).__setitem__(k, ast.Pass()))
    return found


def functions(tree: ast.Module) -> list[ast.AST]:
    known = ast.FunctionDef | ast.ClassDef
    return [x for x in tree.body if isinstance(x, known) and x.name not in LEFT_OUT]


def sites(source: str) -> list[Site]:
    """Returns all the places where a script can be changed."""
    found = []
    for i, function in enumerate(functions(ast.parse(source))):
        for j, node in enumerate(nodes(function)):
            found += [Site(i, j, k) for k in range(len(changes(node)))]
    return found


def make(script: str, source: str, site: Site) -> Mutant:
    """Changes a script at one place."""
    tree = ast.parse(source)
    function = functions(tree)[site.function]
    node = nodes(function)[site.node]
    before = copy.deepcopy(function)
    changes(node)[site.change](node)
    old, new = (ast.unparse(x).splitlines() for x in (before, function))
    at = next((i for i, (x, y) in enumerate(zip(old, new)) if x != y), len(new) - 1)
    changed = [x for x in old if x not in new] or [old[at]]
    sets = re.findall(r"\b(\w+)\s?[-+*/|]?=(?!=)", "\n".join(changed))  # an assignment's or a keyword's name
    words = sorted({function.name, *set(sets) & set(FIELDS.split())})
    what = f"{old[at].strip()[:100]} -> {new[at].strip()[:100]}"
    return Mutant(
        script, function.name, getattr(node, "lineno", function.lineno), what, words, ast.unparse(tree) + "\n"
    )


def draw(script: str, count: int, seed: int) -> Iterator[Mutant]:
    """Yields a sample of a script's mutants. All that compile are equally likely."""
    source = (ROOT / "algos" / f"{script}.py").read_text()
    every = sites(source)
    for i in np.random.default_rng([seed, SCRIPTS.index(script)]).permutation(len(every))[:count]:
        yield make(script, source, every[i])


def run_bits(script: Path, folder: Path) -> list[Any]:
    """Trains a script in `folder`, interrupted after half of its iterations, and returns what it saved and logged."""
    module, argv = lab.load_script(script), ["--no-compile", "--runs-dir", str(folder), "--run-name", "run"]
    for name, x in SETTINGS.items():
        if name in module.Args.__dataclass_fields__:
            argv += [f"--{name.replace('_', '-')}", str(x)]
    for part in range(2):
        module.main(argv)
        saved = sorted((folder / "run" / "checkpoints").glob("iter_*.pt"))
        for path in saved[len(saved) // 2 + 1 :] if part == 0 else []:
            path.unlink()
    bits = []
    for path in saved:
        checkpoint = torch.load(path, weights_only=True)
        del checkpoint["args"]
        bits += [x.numpy().tobytes().hex() if torch.is_tensor(x) else repr(x) for x in tree_leaves(checkpoint)]
    rows = list(csv.DictReader((folder / "run" / "progress.csv").read_text().splitlines()))
    return bits + [repr(y) for row in rows for name, y in row.items() if name != "sps"]


def judged(script: Path, folder: Path) -> list[dict[str, Any]]:
    """Returns the alarms of the report about the run in `folder`."""
    options = report.Args(runs=(folder / "run",), script=script, out=folder)
    [page] = report.find(options, lab.open_runs(options, with_step=False))
    return [x | dict(said=report.sentence(x)) for x in page["found"] if x["status"] in checks.ALARMS]


def outcome(mutant: Mutant, original: list[Any] | None, folder: Path) -> dict[str, Any]:
    """Trains and judges a mutant in a process of its own, so that nothing of it stays."""
    folder.mkdir(parents=True, exist_ok=True)
    script, result = folder / f"{mutant.script}.py", folder / "result.json"
    script.write_text(mutant.source)
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        with open(os.devnull, "w") as nowhere, contextlib.suppress(BaseException):
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            bits = run_bits(script, folder)
            told = dict(bits=bits) if original is None else dict(outcome="same bits")
            if bits != original:
                result.write_text(json.dumps(dict(outcome="report stops", alarms=[])))
                alarms = judged(script, folder)
                said = " ".join(x["said"] for x in alarms)
                named = any(re.search(rf"\b{x}\b", said) for x in mutant.words)
                told |= dict(outcome="named" if named else "found" if alarms else "missed")
                told |= dict(alarms=[f"{x['check']} {x['status']}" for x in alarms])
            result.write_text(json.dumps(told))
        os._exit(0)
    os.waitpid(child, 0)
    return json.loads(result.read_text()) if result.exists() else dict(outcome="stops")


def measure(out: Path, count: int, seed: int, only: str = "") -> list[dict[str, Any]]:
    """Returns a row for each of `count` mutants of every script. Those that are in `out` already are not made again."""
    path = out / f"mutants-{seed}.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []
    torch.set_num_threads(1)
    scripts = [x for x in SCRIPTS if re.search(only, x)]
    for script in scripts:
        lab.load_script(ROOT / "algos" / f"{script}.py")  # what it imports, no child has to
    sources = {x: (ROOT / "algos" / f"{x}.py").read_text() for x in scripts}
    itself = {x: Mutant(x, "", 0, "", [], source) for x, source in sources.items()}
    controls = {x: outcome(mutant, None, out / x / "itself") for x, mutant in itself.items()}
    if accused := [x for x, told in controls.items() if told["alarms"]]:
        sys.exit(f"{accused[0]}.py itself is accused: {controls[accused[0]]['alarms']}")
    drawn = {x: list(draw(x, count, seed)) for x in scripts}
    # All scripts' first mutants, then all second ones: what an interruption leaves is as fair a sample.
    work = [(k, x, drawn[x][k]) for k in range(count) for x in scripts]
    work = [y for y in work if not any((x["script"], x["k"]) == (y[1], y[0]) for x in rows)]
    for k, script, mutant in tqdm(work, mininterval=30):
        about = dict(script=script, k=k, function=mutant.function, line=mutant.line, what=mutant.what)
        folder = out / script / str(k)
        rows.append(about | outcome(mutant, controls[script]["bits"], folder))
        shutil.rmtree(folder)
        with path.open("a") as file:
            print(json.dumps(rows[-1]), file=file)
    return rows


def exact(k: int, n: int) -> str:
    """Returns k of n with the exact 95 % interval of the share (Clopper and Pearson), in percent."""
    low = stats.beta.ppf(0.025, k, n - k + 1) if k else 0
    high = stats.beta.ppf(0.975, k + 1, n - k) if k < n else 1
    return f"{k} of {n} [{100 * low:.0f} %, {100 * high:.0f} %]" if n else "–"


def by_script(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the rows of a table with each script's rates, its header first."""
    table = [["script", "drawn", "stop by themselves", "same bits", "found, of the rest", "named, of the rest"]]
    for script in [*SCRIPTS, ""]:
        told = [x["outcome"] for x in rows if script in (x["script"], "")]
        stop, same, named = (told.count(x) for x in ("stops", "same bits", "named"))
        rest = len(told) - stop - same
        counts = [exact(x, rest) for x in (named + told.count("found"), named)]
        table.append([f"`{script}.py`" if script else "**all**", *map(str, (len(told), stop, same)), *counts])
    return table


def by_function(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the rows of a table with the rates of each function, over all scripts that have it."""
    table = [["function", "scripts", "mutants judged", "found", "named", "missed"]]
    judged = [x for x in rows if x["outcome"] not in ("stops", "same bits")]
    for name in sorted({x["function"] for x in judged}):
        own = [x for x in judged if x["function"] == name]
        told = [x["outcome"] for x in own]
        missed = len(told) - told.count("named") - told.count("found")
        counts = len({x["script"] for x in own}), len(told), len(told) - missed, told.count("named"), missed
        table.append([f"`{name}`", *map(str, counts)])
    return table
