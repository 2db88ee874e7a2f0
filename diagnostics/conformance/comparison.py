"""Is my PPO PPO? This compares the functions of another implementation with a family of formulas that the flags of
algos/ppo.py span, and says which member of the family each of them is.

    python diagnostics/conformance --template > my_ppo.py    # an adapter to fill in, of some 20 lines
    python diagnostics/conformance my_ppo.py                 # which PPO is this?
    python diagnostics/conformance stable-baselines3         # or one of those in adapters/

An adapter is a Python file with any of the functions in TEMPLATE, below. They are called with named arguments, on a
frozen rollout that a seed makes. Each answer is compared with every member of the function's family (family.py), to
1e-6 of 1 + |the member's number|. A loss is compared together with its gradient, row by row, since many wrong losses
have the right value at the right point. Where no member has the same numbers, the nearest is named, with the rows on
which it is off, and the factor if one explains the difference.

Only numpy must be installed (and torch, where the adapter asks for tensors or has an update, and matplotlib for the
picture), so this runs in the other implementation's environment. The numbers go to conformance.json in the folder
--out, with an entry for each adapter. The picture shows all entries.
"""

import argparse
import copy
import inspect
import json
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from family import DETAILS, FROZEN, NETWORKS, OF, family, rows_of, slopes, with_gradients

TOLERANCE = 1e-6
ADAPTERS = Path(__file__).parent / "adapters"

TEMPLATE = '''"""An adapter for diagnostics/conformance. Delete the functions that you do not need.

Arrays are float64 (masks are bool) of shape [T, N], T steps of N environments, or [B], B pairs of a minibatch.
"""

TITLE = "my PPO"  # the column's title
TENSORS = False  # True: the losses get torch tensors and are differentiated by autograd; else by finite differences


def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    """All [T, N]. next_values has V of the observation that truly followed, also where the episode ended there; the
    next row of values may belong to another episode. Returns advantages and value targets [T, N]; targets may be
    None."""


def policy_loss(log_probs, old_log_probs, advantages, entropies, clip_eps, entropy_coef):
    """All [B], but entropies [B, actions] has one entropy for each dimension of the action. Returns the loss that is
    minimized, a scalar."""


def value_loss(values, old_values, targets, clip_eps):
    """All [B]; clips as it does where value clipping is on. Returns the loss that is minimized, a scalar."""


def scale_rewards(rewards, ends, gamma):
    """Raw rewards [T, N], from the first step of training on, and whether a terminal state followed. Returns what is
    learned from [T, N]."""


def normalize(observations):
    """Raw observations [T, N, obs], from the first step of training on. Returns what the networks see [T, N, obs]."""


def update(policy, value, minibatches, learning_rate, clip_eps, max_grad_norm):
    """Changes two torch modules in place, by one step for each minibatch, with a new optimizer. policy maps obs
    [B, obs] to a distribution with log_prob [B] and entropy [B], value to [B]. A minibatch is a dictionary of obs,
    actions, old_log_probs, advantages, old_values and value_targets. The entropy has no weight. Returns nothing."""
'''

exec(TEMPLATE, scope := {})
SIGNATURES = {name: inspect.signature(scope[name]) for name in DETAILS}

# Adapters ------------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """Says what is wrong with an adapter."""


def load_adapter(word: str) -> SimpleNamespace:
    """Returns the adapter at this path, or that of this name in adapters/."""
    path = Path(word) if word.endswith(".py") else ADAPTERS / f"{word.replace('-', '_')}.py"
    if not path.is_file():
        known = ", ".join(sorted(path.stem.replace("_", "-") for path in ADAPTERS.glob("[!_]*.py")))
        raise Refused(f"no such adapter; give a Python file, or one of {known}")
    adapter = SimpleNamespace(**runpy.run_path(str(path), run_name=f"adapter_{path.stem}"))
    if not functions_of(adapter):
        raise Refused(f"defines none of {', '.join(SIGNATURES)}")
    return adapter


def functions_of(adapter: SimpleNamespace) -> list[str]:
    return [name for name in SIGNATURES if callable(getattr(adapter, name, None))]


def answers(adapter: SimpleNamespace, name: str) -> dict[str, np.ndarray]:
    """Returns what the adapter's function answers for the frozen rollout, by part as in `numbers_of`. Raises Refused
    where that is no answer."""
    function, x = getattr(adapter, name), copy.deepcopy(FROZEN[name])
    try:
        inspect.signature(function).bind(**SIGNATURES[name].parameters)
    except (TypeError, ValueError) as error:
        raise Refused(f"is called with {SIGNATURES[name]}: {error}") from error
    if name == "update":
        return updated(function, x)
    if name in OF:
        return (differentiated if getattr(adapter, "TENSORS", False) else differenced)(function, x, OF[name])
    found, parts = function(**x), list(rows_of(name))
    if len(parts) == 1:
        found = [found]
    elif not isinstance(found, tuple | list) or len(found) != len(parts):
        raise Refused(f"must return {len(parts)} arrays, {' and '.join(parts)}")
    shape = next(iter(FROZEN[name].values())).shape
    given = [(part, numbers) for part, numbers in zip(parts, found) if part != "targets" or numbers is not None]
    return {part: checked(numbers, shape, part) for part, numbers in given}


def checked(numbers: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Returns the numbers in float64. Raises Refused if they have another shape, are not real or are not finite."""
    if numbers is None:
        raise Refused(f"{what} is missing: it returns None")
    numbers = numbers.detach().cpu().numpy() if hasattr(numbers, "detach") else np.asarray(numbers)
    if numbers.shape != shape:
        raise Refused(f"{what} has shape {numbers.shape}, not {shape}")
    if numbers.dtype.kind != "f":
        raise Refused(f"{what} is of type {numbers.dtype}, not float")
    if bad := np.count_nonzero(~np.isfinite(numbers)):
        raise Refused(f"{what}: {bad} of {numbers.size} numbers are not finite")
    return numbers.astype(np.float64)


def differenced(function: Callable, x: dict[str, Any], names: list[str]) -> dict[str, np.ndarray]:
    """Returns a loss of arrays and its gradient by finite differences. Raises Refused if the loss is too coarse for
    them."""
    loss = lambda **moved: checked(function(**copy.deepcopy(x | moved)), (), "the loss")  # noqa: E731
    near, far = ([slopes(lambda y: loss(**{key: y}), x[key], h) for key in names] for h in (1e-5, 3e-5))  # noqa: B023
    if any(abs(len(a) * (a - b)).max() > 1e-3 for a, b in zip(near, far)):
        raise Refused("the loss is in single precision; finite differences need double (or set TENSORS = True)")
    return with_gradients(loss(), near)


def differentiated(function: Callable, x: dict[str, Any], names: list[str]) -> dict[str, np.ndarray]:
    """Returns a loss of tensors and its gradient by autograd."""
    import torch

    tensors = {key: torch.tensor(value) if isinstance(value, np.ndarray) else value for key, value in x.items()}
    leaves = [tensors[key].requires_grad_() for key in names]
    loss = function(**tensors)
    if not (torch.is_tensor(loss) and loss.requires_grad):
        raise Refused("must return a tensor that can be differentiated, or set TENSORS = False")
    number = checked(loss, (), "the loss")
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return with_gradients(number, [checked(g, tuple(g.shape), "the gradient") for g in gradients])


def updated(function: Callable, x: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns the parameters of two linear networks after the adapter's update."""
    import torch
    from torch import nn

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_std, self.mean = nn.Parameter(torch.zeros(2)), nn.Linear(3, 2)

        def forward(self, obs: torch.Tensor) -> torch.distributions.Independent:
            normal = torch.distributions.Normal(self.mean(obs), self.log_std.exp().expand(len(obs), 2))
            return torch.distributions.Independent(normal, 1)

    networks = dict(policy=Policy().double(), value=nn.Sequential(nn.Linear(3, 1), nn.Flatten(-2)).double())
    for name, network in networks.items():
        nn.utils.vector_to_parameters(torch.tensor(NETWORKS[name]), network.parameters())
    minibatches = [{key: torch.tensor(y) for key, y in minibatch.items()} for minibatch in x["minibatches"]]
    function(**x | networks | dict(minibatches=minibatches))
    after = {name: nn.utils.parameters_to_vector(network.parameters()) for name, network in networks.items()}
    return {name: checked(parameters, NETWORKS[name].shape, name) for name, parameters in after.items()}


# Search --------------------------------------------------------------------------------------------------------------


def errors_of(found: dict[str, np.ndarray], member: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns how far the numbers are from the member's, part by part, relative to 1 + |the member's|."""
    return {part: (abs(x - member[part]) / (1 + abs(member[part]))).ravel() for part, x in found.items()}


def search(name: str, found: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns which member of the family has these numbers, or which is nearest."""
    errors = [errors_of(found, numbers) for _, numbers in family(name)]
    furthest = [max(x.max() for x in parts.values()) for parts in errors]
    nearest = int(np.argmin(furthest))
    if furthest[nearest] <= TOLERANCE:
        missing = rows_of(name).keys() - found.keys()  # targets, which may be None
        way = family(name)[nearest][0] | dict.fromkeys(missing, "not given")
        others = differences(name, way)
        return dict(verdict="variant" if others else "as ppo.py", way=way, differences=others, error=furthest[nearest])

    # Does a factor explain the difference? Members that it explains in fewer parts, or with a number nearer to 1, win.
    explained = []
    for i, (_, numbers) in enumerate(family(name)):
        off = {part: numbers[part] for part in found if errors[i][part].max() > TOLERANCE}
        factors = {part: float(np.vdot(x, found[part]) / (np.vdot(x, x) or 1)) for part, x in off.items()}
        scaled = {part: factors.get(part, 1) * numbers[part] for part in found}
        if all(factors.values()) and max(x.max() for x in errors_of(found, scaled).values()) <= TOLERANCE:
            explained.append((len(factors), sum(abs(np.log(abs(c))) for c in factors.values()), i, factors))
    if explained:
        *_, nearest, factors = min(explained, key=lambda x: x[:3])
    else:  # the one from which the numbers are off least in the mean, and no more than by all of their size
        nearest = int(np.argmin([sum(np.minimum(x, 1).mean() for x in parts.values()) for parts in errors]))
        factors = {}
    worst = {part: [i for i in np.argsort(-x) if x[i] > TOLERANCE] for part, x in errors[nearest].items()}
    return dict(
        verdict="none",
        way=family(name)[nearest][0],
        differences=differences(name, family(name)[nearest][0]),
        error=furthest[nearest],
        members=len(family(name)),
        factors=factors,
        off={part: [rows_of(name)[part][i] for i in rows] for part, rows in worst.items() if rows},  # furthest first
        of={part: x.size for part, x in errors[nearest].items()},
    )


def differences(name: str, way: dict[str, str]) -> list[str]:
    """Says what is done otherwise than in ppo.py."""
    found = [(texts, way[detail]) for detail, texts in DETAILS[name].items()]
    return [texts[option] for texts, option in found if option not in (next(iter(texts)), "not given")]


def describe(entry: dict[str, Any]) -> list[str]:
    """Returns the lines about a function."""
    if entry["verdict"] != "none":
        return entry["differences"] or ["as ppo.py"]
    lines = [f"none of the {entry['members']} members of the family; the nearest:"]
    lines += entry["differences"] or ["as ppo.py"]
    for part, rows in entry["off"].items():
        some = ", ".join(rows[:3]) + ", ..." * (len(rows) > 3)
        text = f"{part}: off on {len(rows)} of {entry['of'][part]} rows, most on {some}"
        factor = entry["factors"].get(part)
        lines.append(f"{text}; everywhere by the factor {factor:.6g}" if factor else text)
    return [*lines, f"by up to {entry['error']:.2g} of 1 + |the member's number|"]


# Output --------------------------------------------------------------------------------------------------------------

LETTERS = "ABCDEFGHIJ"
GREEN, YELLOW, RED = "#7fc8a9", "#f6d186", "#d9534f"


def draw(entries: dict[str, dict[str, Any]], path: Path) -> None:
    """Draws a row for each detail that can be done in more than one way, and a column for each adapter."""
    from matplotlib.figure import Figure

    columns = [entry["functions"] for entry in entries.values()]
    rows = [(name, detail) for name in DETAILS if any(name in column for column in columns) for detail in DETAILS[name]]
    figure = Figure(figsize=(4.4 + 0.62 * len(columns), 1.4 + 0.25 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for y, (name, detail) in enumerate(rows):
        texts, seen = list(DETAILS[name][detail]), {0}
        for x, column in enumerate(columns):
            entry = column.get(name)
            if entry is None or entry["way"][detail] == "not given":
                continue
            option, known = texts.index(entry["way"][detail]), entry["verdict"] != "none"
            colour = (GREEN if option == 0 else YELLOW) if known else RED
            axis.barh(y, 1, left=x, height=1, color=colour, edgecolor="white", linewidth=1)
            axis.text(x + 0.5, y, LETTERS[option] if known else "×", ha="center", va="center", fontsize=8)
            seen |= {option} if known else set()
        key = ";  ".join(f"{LETTERS[i]}: {texts[i]}" for i in sorted(seen))
        axis.text(len(columns) + 0.15, y, key, va="center", fontsize=7.5)
    heads = [y for y in range(1, len(rows)) if rows[y][0] != rows[y - 1][0]]
    axis.hlines([y - 0.5 for y in heads], 0, len(columns), color="0.3", linewidth=0.8)
    labels = [detail for _, detail in rows]
    for y in (0, *heads):
        labels[y] = f"{rows[y][0].replace('_', ' ')}:  {labels[y]}"
    axis.set_yticks(range(len(rows)), labels, fontsize=8)
    titles = [entry["title"].rsplit(" ", 1) for entry in entries.values()]
    axis.set_xticks(np.arange(len(columns)) + 0.5, ["\n".join(title) for title in titles], fontsize=7.5, rotation=35)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.set(xlim=(0, len(columns)), ylim=(len(rows) - 0.5, -0.5))
    axis.spines[:].set_visible(False)
    figure.savefig(path, dpi=150)
    print(path)


def understood(entry: dict[str, Any]) -> bool:
    """Tells whether an entry that was read is of this family, and not of an older one."""
    return all(
        found["way"].keys() == DETAILS[name].keys()
        and all(option in {*DETAILS[name][detail], "not given"} for detail, option in found["way"].items())
        for name, found in entry["functions"].items()
    )


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapters", nargs="*", help="a Python file, or the name of a file in adapters/")
    parser.add_argument("--template", action="store_true", help="print an adapter to fill in, and do nothing else")
    parser.add_argument("--out", type=Path, default="results/conformance", help="folder for the numbers and picture")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = read_arguments(argv)
    if args.template:
        print(TEMPLATE, end="")
        return
    sys.path.append(str(Path.cwd()))  # for modules of the adapter's own
    refused, measured = [] if args.adapters else ["give one or more adapters (--template prints one)"], {}

    def attempt(what: str, function: Callable, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Refused as error:
            refused.append(f"{what}: {error}")
        except (Exception, SystemExit) as error:  # of the adapter's, so anything
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}, line {frame.lineno}"
            refused.append(f"{what}: {' '.join(f'{type(error).__name__}: {error}'.split())} ({where})")

    for word in args.adapters:
        if adapter := attempt(word, load_adapter, word):
            found = {name: attempt(f"{word}: {name}", answers, adapter, name) for name in functions_of(adapter)}
            measured[Path(word).stem.replace("_", "-")] = str(getattr(adapter, "TITLE", Path(word).stem)), found
    path = args.out / "conformance.json"
    try:
        old = json.loads(path.read_text()) if path.exists() else {}
        entries = {name: entry for name, entry in old.items() if understood(entry)}
        if not refused:
            args.out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        refused.append(f"{path} is not this program's, or its folder cannot be made ({error})")
    if refused:
        print(*[f"conformance: {line}" for line in refused], sep="\n", file=sys.stderr)
        raise SystemExit(2)
    for adapter, (title, found) in measured.items():
        functions = {name: search(name, numbers) for name, numbers in found.items()}
        entries[adapter] = dict(title=title, functions=functions)
        print(title)
        for name, entry in functions.items():
            print(f"  {name:<14}", f"\n{'':<17}".join(describe(entry)))
    path.write_text(json.dumps(entries, indent=1) + "\n")
    print(path)
    try:
        draw(entries, args.out / "conformance.png")
    except ImportError:
        print("conformance: no picture, because matplotlib is not installed", file=sys.stderr)
