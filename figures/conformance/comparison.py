"""Is my PPO PPO? This compares the functions of another implementation with a family of formulas that the flags of
algos/ppo.py span, and says which member of the family each of them is.

    python figures/conformance --template > my_ppo.py    # an adapter to fill in, of some 20 lines
    python figures/conformance my_ppo.py                 # which PPO is this?
    python figures/conformance stable-baselines3         # or one of those in adapters/

An adapter is a Python file with any of the functions in TEMPLATE, below. They are called with named arguments, twice,
on frozen inputs that a seed makes, of ordinary, extreme and small size. Each answer is compared with every member of
the function's family (family.py), to 1e-6 of 1 + |the member's number|, and a loss term by term, with its gradient,
since many wrong losses have the right value at the right point.

Where no member has the same numbers, a detail is clear if all members that have the numbers of whole blocks (a part, of
a size and, where there are some, of an environment or a column) do it in one way, and no block denies it. It is
clear "but for the numbers below", which no member has of those that are left by what is clear.

Only numpy must be installed (and torch, where the adapter asks for tensors or has an update), so this runs in the other
implementation's environment. The folder --out gets the answers, an entry for each adapter, as JSON and as a table.
"""

import argparse
import copy
import json
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from family import BEFORE, DETAILS, FROZEN, TERMS, blocks_of, family, joined, rows_of, terms_of

TOLERANCE = 1e-6
near = lambda x, y: abs(x - y) <= TOLERANCE * (1 + abs(y))
AGAIN = "answers differently when it is called again with the same arguments"
ADAPTERS = Path(__file__).parent / "adapters"

TEMPLATE = '''"""An adapter for figures/conformance. Call your own code in it, and delete what you do not need.

Arrays are float64 (masks are bool) of shape [T, N], T steps of N environments, or [B], B pairs of a minibatch.

No function covers the network and its initial weights, log-probabilities (squashed or not), bounds of the log std, how
minibatches are drawn, epochs, schedules, a KL estimator or a stop by it, and when in training statistics move. A policy
and a value network that share layers can be given to all but `update`, which judges two separate networks.
"""

TITLE = "my PPO"  # the column's title
TENSORS = False  # True: losses get torch tensors and are differentiated by autograd; else by finite differences


def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    """All [T, N]. next_values has V of the observation that truly followed, also where the episode ended there (and the
    next row of values belongs to another). Returns advantages and value targets [T, N]; targets may be None."""


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
    actions, old_log_probs, advantages, old_values and value_targets. The entropy has no weight. Advantages are
    normalized already. It is called with one, two and three minibatches. Returns nothing."""
'''

# Adapters ------------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """Says what is wrong with an adapter."""


def load_adapter(word: str) -> SimpleNamespace:
    """Returns the adapter at this path, or that of this name in adapters/."""
    path = Path(word) if word.endswith(".py") else ADAPTERS / f"{word.replace('-', '_')}.py"
    if not path.is_file():
        known = ", ".join(sorted(path.stem.replace("_", "-") for path in ADAPTERS.glob("[!_]*.py")))
        raise Refused(f"no such adapter; give a Python file, or one of {known}")
    scope = runpy.run_path(str(path), run_name=f"adapter_{path.stem}")
    adapter = SimpleNamespace(**dict(TITLE=path.stem) | scope | dict(path=str(path)))
    adapter.functions = [name for name in DETAILS if callable(scope.get(name))]
    if not adapter.functions:
        raise Refused(f"defines none of {', '.join(DETAILS)}")
    return adapter


def answers(adapter: SimpleNamespace, name: str) -> dict[str, np.ndarray]:
    """Returns what the adapter's function answers for the frozen inputs, by part as in `numbers_of`. Raises Refused
    where that is no answer, or another one each time."""
    function, tensors = getattr(adapter, name), getattr(adapter, "TENSORS", False)

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
        raise Refused(AGAIN)
    if name == "update" and not any(x.any() for x in first.values()):
        raise Refused("it changed no parameter")
    return first


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
    """Returns the terms of a loss of arrays by finite differences. Raises Refused if it is too coarse for them."""
    loss = lambda x: float(checked(function(**copy.deepcopy(x)), (), "the loss"))

    def gradient(x: dict[str, Any], key: str) -> np.ndarray:
        moved = [h * unit for h in (1e-6, 1e-3, 3e-3) for unit in np.eye(x[key].size).reshape(-1, *x[key].shape)]
        found = [(loss(x | {key: x[key] + y}) - loss(x | {key: x[key] - y})) / (2 * y.max()) for y in moved]
        coarse, middle, wide = np.reshape(found, (3, *x[key].shape)) * len(x[key])
        best = (9 * middle - wide) / 8
        if (abs(coarse - best) > 0.01 * (1 + abs(best))).mean() > 0.1:  # and not only at a kink
            coarse = "the loss is in single precision; finite differences need double (or set TENSORS = True)"
            raise Refused(coarse if loss(x) == loss(x) else AGAIN)
        return best / len(x[key])

    return terms_of(name, x, loss, gradient)


def differentiated(name: str, function: Callable, x: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns the terms of a loss of tensors, with their gradients by autograd."""
    import torch

    def loss_of(x: dict[str, Any], key: str | None = None) -> tuple[Any, Any]:
        tensors = {k: torch.tensor(y, requires_grad=k == key) if isinstance(y, np.ndarray) else y for k, y in x.items()}
        return function(**tensors), tensors.get(key)

    def gradient(x: dict[str, Any], key: str) -> np.ndarray:
        loss, leaf = loss_of(x, key)
        if not torch.is_tensor(loss):
            raise Refused("must return a tensor that can be differentiated, or set TENSORS = False")
        if not loss.requires_grad:  # it does not depend on this input
            return np.zeros(x[key].shape)
        [found] = torch.autograd.grad(loss, [leaf], allow_unused=True, materialize_grads=True)
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
            changes[f"{name} after minibatch {n}"] = after - BEFORE[name]
    return changes


# Search --------------------------------------------------------------------------------------------------------------


def search(name: str, found: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns which member of the family has these numbers or, if none has, what is clear all the same."""
    ways, numbers = family(name)
    others = lambda way: [texts[way[x]] for x, texts in DETAILS[name].items() if way[x] in list(texts)[1:]]
    options = np.array([[[*texts, "not seen"].index(way[x]) for x, texts in DETAILS[name].items()] for way in ways])
    # Whether members agree, row by row, and the factors that explain a part of theirs that is off.
    agrees, factors = {}, {}
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
    way = ways[best] | dict.fromkeys(rows_of(name).keys() - found.keys(), "not seen")  # targets, which may be None
    if not factored[best] and all(x[best].all() for x in agrees.values()):
        error = max((abs(x - numbers[part][best]) / (1 + abs(numbers[part][best]))).max() for part, x in found.items())
        verdict = "variant" if others(way) else "as ppo.py"
        return dict(verdict=verdict, way=way, says=others(way) or [verdict], error=error)

    # Where the best member has a part as it is, a factor of another's does not count.
    agrees = {part: near(x, numbers[part]) if factors[part][best] == 1 else agrees[part] for part, x in found.items()}
    # A block is a part (or both networks after a step, since they may share a gradient's norm), of a size and, if there
    # are any, of an environment or a column. These members have all of its numbers.
    blocks, left = {}, np.ones(len(ways), bool)
    for part in found:
        ids = blocks_of(name, part)
        for key in {(part[-1] if name == "update" else part, i) for i in ids}:
            blocks[key] = blocks.get(key, True) & agrees[part][:, ids == key[1]].all(1)
    fit = np.all([x for x in blocks.values() if x[best]], axis=0)
    for i, detail in enumerate(DETAILS[name]):
        same, option = options[:, i] == options[best, i], way[detail]
        denied = any(x.any() and not (x & same).any() for x in blocks.values())
        # A clip may be wider than all numbers of a block, so that these do not show that there is none.
        denied |= option == "unclipped" and not all(x[best].all() for x in agrees.values())
        if (fit <= same).all() and not denied:
            left &= same
        elif option != "not seen":
            way[detail] = "not clear"
    unclear, says, off = [detail for detail in way if way[detail] == "not clear"], [], {}
    of = ", ".join(f"{detail}: {ways[best][detail]}" for detail in unclear)
    for part, x in found.items():
        if factors[part][best] != 1:
            says.append(f"{part}: everywhere {factors[part][best]:.6g} times the member's" + f" with {of}" * bool(of))
        far = abs(x - numbers[part][best]) / (1 + abs(numbers[part][best]))
        rows = [i for i in np.argsort(-far) if not agrees[part][left, i].any()]  # furthest first
        if rows:
            off[part] = [rows_of(name)[part][i] for i in rows]
            zeros = f", {np.sum(x[rows] == 0)} of them are 0" if (x[rows] == 0).any() else ""
            some = "; ".join(off[part][:2]) + "; ..." * (len(rows) > 2)
            says.append(f"{part}: {len(rows)} of {x.size} numbers fit no such member{zeros} ({some})")
    if not says:
        says = ["every number is that of some such member, but none has them all"]
    lead = "but for the numbers below" if off else "clear"
    usual = [detail for detail in way if way[detail] == next(iter(DETAILS[name][detail]))]
    clear = [f"{lead}: {text}" for text in others(way)] + [f"{lead}, as in ppo.py: {', '.join(usual)}"] * bool(usual)
    says = [*clear, *[f"not clear: {', '.join(unclear)}"] * bool(unclear), *says]
    says = [f"none of the {len(ways)} members of the family", *says]
    return dict(verdict="none", way=way, says=says, off=off, factored=bool(factored[best]))


# Output --------------------------------------------------------------------------------------------------------------


def table_of(entries: dict[str, dict[str, Any]]) -> str:
    """Returns a Markdown table with a row for each detail that was seen, and a column for each adapter. What is done
    otherwise than in ppo.py is in bold."""
    rows = [["function", "detail", *[entry["title"] for entry in entries.values()]], ["---"] * (len(entries) + 2)]
    for name, detail in [(name, detail) for name, texts in DETAILS.items() for detail in texts]:
        usual = next(iter(DETAILS[name][detail]))
        asked = [entry["functions"].get(name, dict(verdict="", way={})) for entry in entries.values()]
        ways = [x["way"].get(detail, "not seen") for x in asked]
        if set(ways) != {"not seen"}:
            cells = [{"not seen": "", usual: usual}.get(way, f"**{way}**") for way in ways]
            mostly = [x["verdict"] == "none" and way not in ("not seen", "not clear") for x, way in zip(asked, ways)]
            rows.append([name, detail, *[cell + ", mostly" * x for cell, x in zip(cells, mostly)]])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapters", nargs="*", help="a Python file, or the name of a file in adapters/")
    parser.add_argument("--template", action="store_true", help="print an adapter to fill in, and do nothing else")
    parser.add_argument("--out", type=Path, default="results/conformance", help="folder for the two files")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = read_arguments(argv)
    if args.template:
        print(TEMPLATE, end="")
        return
    sys.path.append(str(Path.cwd()))  # for modules of the adapter's own
    refused, measured = [] if args.adapters else ["give one or more adapters (--template prints one)"], {}

    def attempt(what: str, path: str, function: Callable, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Refused as error:
            refused.append(f"{what}: {error}")
        except (Exception, SystemExit) as error:  # of the adapter's, so anything
            lines = [x.lineno for x in traceback.extract_tb(error.__traceback__) if Path(x.filename) == Path(path)]
            where = f" ({Path(path).name}, line {lines[-1]})" if lines else ""
            refused.append(f"{what}: {' '.join(f'{type(error).__name__}: {error}'.split())}{where}")

    path = args.out / "conformance.json"
    try:
        old = json.loads(path.read_text()) if path.exists() else {}
        table_of(old)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        refused.append(f"{path} is not this program's ({error})")
        args.adapters = []
    for word in args.adapters:
        if adapter := attempt(word, word, load_adapter, word):
            functions, tensors = {}, getattr(adapter, "TENSORS", False)
            print(adapter.TITLE)
            for name in adapter.functions:
                what = f"{word}: {name}" + " (with arrays, since TENSORS is False)" * (name in TERMS and not tensors)
                if found := attempt(what, adapter.path, answers, adapter, name):
                    functions[name] = search(name, found)
                    print(f"  {name:<14}", f"\n{'':<17}".join(functions[name]["says"]))
            if functions:
                measured[Path(word).as_posix()] = dict(title=str(adapter.TITLE), functions=functions)
    if measured:
        try:
            args.out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(old | measured, indent=1) + "\n")
            path.with_suffix(".md").write_text(table_of(old | measured))
            print(path, path.with_suffix(".md"), sep="\n")
        except OSError as error:
            refused.append(f"cannot write to {args.out} ({error})")
    if refused:
        print(*[f"conformance: {line}" for line in refused], sep="\n", file=sys.stderr)
        raise SystemExit(2)
