"""Is my PPO PPO? This compares the functions of another implementation with a family of formulas that the flags of
algos/ppo.py span, and says which member of the family each of them is.

    python diagnostics/conformance --template > my_ppo.py    # an adapter to fill in, of some 20 lines
    python diagnostics/conformance my_ppo.py                 # which PPO is this?
    python diagnostics/conformance stable-baselines3         # or one of those in adapters/

An adapter is a Python file with any of the functions in TEMPLATE, below. They are called with named arguments, twice,
on frozen inputs that a seed makes, of ordinary, extreme and small size. Each answer is compared with every member of
the function's family (family.py), to 1e-6 of 1 + |the member's number|. Each term of a loss is compared together with
its gradient, row by row, since many wrong losses have the right value at the right point.

Where no member has the same numbers, a part of them that is everywhere a member's by a factor is named with the factor.
Of each detail it is said whether it is clear: it is if all members that have the numbers of whole blocks (of a size and,
where there are some, an environment or a column) do it in one way. Last come the numbers that are those of no member
that is left by what is clear. What no function asks for is not judged; TEMPLATE says what that is.

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
from family import BEFORE, DETAILS, FROZEN, TERMS, blocks_of, change_of, family, joined, rows_of, terms_of

TOLERANCE = 1e-6
ADAPTERS = Path(__file__).parent / "adapters"

TEMPLATE = '''"""An adapter for diagnostics/conformance. Delete the functions that you do not need.

Arrays are float64 (masks are bool) of shape [T, N], T steps of N environments, or [B], B pairs of a minibatch. Call
your own code here. If you copy it instead, the answer is about the copy.

No function covers the network and its initial weights, log-probabilities (squashed or not), bounds of the log std, how
minibatches are drawn, epochs, schedules, a KL estimator or a stop by it, and when in training statistics move. A policy
and a value network that share layers can be given to all but `update`, which judges two separate networks.
"""

TITLE = "my PPO"  # the column's title
TENSORS = False  # True: losses get torch tensors and are differentiated by autograd; else by finite differences


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
    actions, old_log_probs, advantages, old_values and value_targets. The entropy has no weight. It is called with one,
    two and three minibatches. Returns nothing."""
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
    adapter = SimpleNamespace(**runpy.run_path(str(path), run_name=f"adapter_{path.stem}"), path=str(path))
    if not functions_of(adapter):
        raise Refused(f"defines none of {', '.join(SIGNATURES)}")
    return adapter


def functions_of(adapter: SimpleNamespace) -> list[str]:
    return [name for name in SIGNATURES if callable(getattr(adapter, name, None))]


def answers(adapter: SimpleNamespace, name: str) -> dict[str, np.ndarray]:
    """Returns what the adapter's function answers for the frozen inputs, by part as in `numbers_of`. Raises Refused
    where that is no answer, or another one each time."""
    function = getattr(adapter, name)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables have none that Python could read
        signature = SIGNATURES[name]
    try:
        signature.bind(**SIGNATURES[name].parameters)
    except TypeError as error:
        raise Refused(f"is called with {SIGNATURES[name]}: {error}") from error
    tensors = getattr(adapter, "TENSORS", False)

    def answer(x: dict[str, Any]) -> dict[str, np.ndarray]:
        if name == "update":
            return updated(function, x)
        if name in TERMS:
            return (differentiated if tensors else differenced)(name, function, x)
        found, parts = function(**copy.deepcopy(x)), list(rows_of(name))
        if len(parts) == 1:
            found = [found]
        elif not isinstance(found, tuple | list) or len(found) != len(parts):
            raise Refused(f"must return {len(parts)} arrays, {' and '.join(parts)}")
        shape = next(iter(x.values())).shape
        given = [(part, numbers) for part, numbers in zip(parts, found) if part != "targets" or numbers is not None]
        return {part: checked(numbers, shape, part) for part, numbers in given}

    first, second = (joined([answer(x) for x in FROZEN[name]]) for _ in range(2))
    if first.keys() != second.keys() or not all(near(second[part], x).all() for part, x in first.items()):
        raise Refused("answers differently when it is called again with the same arguments")
    if name == "update" and not any(x.any() for x in first.values()):
        raise Refused("it changed no parameter")
    return first


def near(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return abs(x - y) <= TOLERANCE * (1 + abs(y))


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


def differenced(name: str, function: Callable, x: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns the terms of a loss of arrays, with finite differences that are exact to the fourth order. Raises Refused
    if the loss is too coarse for them."""
    loss = lambda x: float(checked(function(**copy.deepcopy(x)), (), "the loss"))

    def gradient(x: dict[str, Any], key: str) -> np.ndarray:
        found = np.empty((3, *x[key].shape))
        for i in np.ndindex(x[key].shape):
            for at, h in zip(found, (1e-6, 1e-3, 3e-3)):
                ends = [copy.copy(x[key]) for _ in range(2)]
                ends[0][i] += h
                ends[1][i] -= h
                at[i] = (loss(x | {key: ends[0]}) - loss(x | {key: ends[1]})) / (2 * h)
        coarse, middle, wide = found * len(x[key])
        best = (9 * middle - wide) / 8
        if (abs(coarse - best) > 0.01 * (1 + abs(best))).mean() > 0.1:  # and not only at a kink
            raise Refused("the loss is in single precision; finite differences need double (or set TENSORS = True)")
        return best / len(x[key])

    return terms_of(name, x, loss, gradient)


def differentiated(name: str, function: Callable, x: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns the terms of a loss of tensors, with their gradients by autograd."""
    import torch

    def loss_of(x: dict[str, Any], *keys: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
        tensors = {key: torch.tensor(value) if isinstance(value, np.ndarray) else value for key, value in x.items()}
        for key in TERMS[name].values():
            tensors[key].requires_grad_()
        loss = function(**tensors)
        if not (torch.is_tensor(loss) and loss.requires_grad):
            raise Refused("must return a tensor that can be differentiated, or set TENSORS = False")
        return loss, [tensors[key] for key in keys]

    def gradient(x: dict[str, Any], key: str) -> np.ndarray:
        loss, leaves = loss_of(x, key)
        [found] = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        return checked(found, x[key].shape, "the gradient")

    return terms_of(name, x, lambda x: float(checked(loss_of(x)[0], (), "the loss")), gradient)


def updated(function: Callable, x: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns how the parameters of two linear networks change in the adapter's update."""
    import torch
    from torch import nn

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_std, self.mean = nn.Parameter(torch.zeros(2)), nn.Linear(3, 2)

        def forward(self, obs: torch.Tensor) -> torch.distributions.Independent:
            normal = torch.distributions.Normal(self.mean(obs), self.log_std.exp().expand(len(obs), 2))
            return torch.distributions.Independent(normal, 1)

    changes = {}
    for n in range(1, len(x["minibatches"]) + 1):
        networks = dict(policy=Policy().double(), value=nn.Sequential(nn.Linear(3, 1), nn.Flatten(-2)).double())
        for name, network in networks.items():
            nn.utils.vector_to_parameters(torch.tensor(BEFORE[name]), network.parameters())
        some = [{key: torch.tensor(y) for key, y in minibatch.items()} for minibatch in x["minibatches"][:n]]
        function(**x | networks | dict(minibatches=some))
        for name, network in networks.items():
            after = checked(nn.utils.parameters_to_vector(network.parameters()), BEFORE[name].shape, name)
            changes[change_of(name, n)] = after - BEFORE[name]
    return changes


# Search --------------------------------------------------------------------------------------------------------------


def search(name: str, found: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns which member of the family has these numbers or, if none has, what is clear all the same."""
    ways, numbers = family(name)
    options = np.array([[list(texts).index(way[x]) for x, texts in DETAILS[name].items()] for way in ways])
    agrees, factors = (
        {},
        {},
    )  # whether members agree, row by row, where the factor of a part is allowed that explains it
    for part, x in found.items():
        exact, squares = near(x, numbers[part]), (numbers[part] ** 2).sum(1)
        c = np.divide(numbers[part] @ x, squares, where=squares > 0, out=np.zeros(len(ways)))
        c[(c == 0) | exact.all(1)] = 1
        scaled = near(x, c[:, None] * numbers[part]) & near(x / c[:, None], numbers[part])
        factors[part] = np.where(scaled.all(1), c, 1)
        agrees[part] = exact | scaled.all(1)[:, None]
    factored = sum(x != 1 for x in factors.values())
    merits = sum(x.mean(1) for x in agrees.values()) - 0.01 * factored - 1e-6 * (options > 0).sum(1)
    best = int(np.argmax(merits))
    way = ways[best] | dict.fromkeys(rows_of(name).keys() - found.keys(), "not given")  # targets, which may be None
    if not factored[best] and all(x[best].all() for x in agrees.values()):
        errors = [(abs(x - numbers[part][best]) / (1 + abs(numbers[part][best]))).max() for part, x in found.items()]
        return dict(verdict="variant" if differences(name, way) else "as ppo.py", way=way, error=max(errors))

    # Which members have all numbers of a block? Where the best has a part as it is, a factor does not count.
    blocks, left = [], np.ones(len(ways), bool)
    for part, x in found.items():
        if factors[part][best] == 1:
            agrees[part] = near(x, numbers[part])
        blocks += [agrees[part][:, blocks_of(name, part) == block].all(1) for block in {*blocks_of(name, part)}]
    fit = np.all([x for x in blocks if x[best]], axis=0) | (np.arange(len(ways)) == best)
    for i, detail in enumerate(DETAILS[name]):
        same = options[:, i] == options[best, i]
        if way[detail] == "not given":
            continue
        if (fit <= same).all() and any(x[best] for x in blocks) and all((x & same).any() for x in blocks if x.any()):
            left &= same
        else:
            way[detail] = "not clear"
    entry = dict(verdict="none", way=way, members=len(ways), factors={}, off={}, zeros={}, of={})
    for part, x in found.items():
        far = abs(x - numbers[part][best]) / (1 + abs(numbers[part][best]))
        off = [i for i in np.argsort(-far) if not agrees[part][left, i].any()]  # furthest first
        if factors[part][best] != 1:
            member = [f"{detail}: {ways[best][detail]}" for detail in way if way[detail] == "not clear"]
            entry["factors"][part] = [float(factors[part][best]), ", ".join(member)]
        if off:
            entry["off"][part] = [rows_of(name)[part][i] for i in off]
            entry["zeros"][part] = int(np.sum(x[off] == 0))
        entry["of"][part] = x.size
    return entry


def differences(name: str, way: dict[str, str]) -> list[str]:
    """Says what is done otherwise than in ppo.py."""
    found = [(texts, way[detail]) for detail, texts in DETAILS[name].items()]
    return [texts[option] for texts, option in found if option in list(texts)[1:]]


def describe(name: str, entry: dict[str, Any]) -> list[str]:
    """Returns the lines about a function."""
    others, way = differences(name, entry["way"]), entry["way"]
    if entry["verdict"] != "none":
        return others or ["as ppo.py"]
    usual = [detail for detail, texts in DETAILS[name].items() if way[detail] == next(iter(texts))]
    unclear = [detail for detail in way if way[detail] == "not clear"]
    lines = [f"none of the {entry['members']} members of the family"]
    lines += [f"clear: {text}" for text in others]
    lines += [f"clear, as in ppo.py: {', '.join(usual)}"] if usual else []
    lines += [f"not clear: {', '.join(unclear)}"] if unclear else []
    for part, (factor, member) in entry["factors"].items():
        lines.append(f"{part}: everywhere {factor:.6g} times the member's" + f" with {member}" * bool(member))
    for part, rows in entry["off"].items():
        some = "; ".join(rows[:2]) + "; ..." * (len(rows) > 2)
        zeros = f", {entry['zeros'][part]} of them 0" if entry["zeros"][part] else ""
        lines.append(f"{part}: {len(rows)} of {entry['of'][part]} numbers are no such member's{zeros} ({some})")
    return lines


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
            known = entry["way"][detail] != "not clear"
            option = texts.index(entry["way"][detail]) if known else 0
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
        and all(option in {*DETAILS[name][detail], "not given", "not clear"} for detail, option in found["way"].items())
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

    def attempt(what: str, function: Callable, adapter: SimpleNamespace | None, *arguments: Any) -> Any:
        try:
            return function(*[adapter] * bool(adapter), *arguments)
        except Refused as error:
            refused.append(f"{what}: {error}")
        except (Exception, SystemExit) as error:  # of the adapter's, so anything
            frames = traceback.extract_tb(error.__traceback__)
            frame = [x for x in frames if Path(x.filename) == Path(getattr(adapter, "path", what))] or frames
            hint = "" if getattr(adapter, "TENSORS", True) else "; the arrays are numpy's, unless TENSORS = True"
            where = f"{Path(frame[-1].filename).name}, line {frame[-1].lineno}{hint}"
            refused.append(f"{what}: {' '.join(f'{type(error).__name__}: {error}'.split())} ({where})")

    path = args.out / "conformance.json"
    try:
        old = json.loads(path.read_text()) if path.exists() else {}
        entries = {name: entry for name, entry in old.items() if understood(entry)}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        refused.append(f"{path} is not this program's ({error})")
        args.adapters = []
    for word in args.adapters:
        if adapter := attempt(word, load_adapter, None, word):
            title, functions = str(getattr(adapter, "TITLE", Path(word).stem)), {}
            print(title)
            for name in functions_of(adapter):
                if found := attempt(f"{word}: {name}", answers, adapter, name):
                    functions[name] = search(name, found)
                    print(f"  {name:<14}", f"\n{'':<17}".join(describe(name, functions[name])))
            if functions:
                measured[Path(word).as_posix()] = dict(title=title, functions=functions)
    try:
        if measured:
            args.out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(entries | measured, indent=1) + "\n")
            print(path)
            draw(entries | measured, args.out / "conformance.png")
    except ImportError:
        print("conformance: no picture, because matplotlib is not installed", file=sys.stderr)
    except OSError as error:
        refused.append(f"cannot write to {args.out} ({error})")
    if refused:
        print(*[f"conformance: {line}" for line in refused], sep="\n", file=sys.stderr)
        raise SystemExit(2)
