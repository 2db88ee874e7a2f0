"""Is my PPO PPO? This compares the functions of another implementation with a family of formulas that the flags of
algos/ppo.py span, and says which member of the family each of them is.

    python figures/conformance --template > my_ppo.py    # an adapter to fill in
    python figures/conformance my_ppo.py                 # which PPO is this?
    python figures/conformance stable-baselines3         # or one of those in adapters/

An adapter is a Python file with any of the functions in TEMPLATE, below. They are called with named arguments, twice,
on frozen inputs that a seed makes, of ordinary, extreme and small size. Each answer is compared with every member of
the function's family (family.py), to 1e-6 of 1 + |the member's number|, and a loss term by term, with its gradient,
since many wrong losses have the right value at the right point.

Where no member has the same numbers, the nearest is named, which has most of them, with the numbers that differ most:
"yours 1.234, the nearest member's 0.987". It is the nearest and no more; where half of the numbers differ, something
else may have happened. If one number explains a part whole (a value weight, an eps, the range of a clip, a gamma that
is written into the code), or one factor, it says so.

Only numpy must be installed (and torch, where the adapter asks for tensors or has an update), so this runs in the other
implementation's environment. The folder --out gets the answers, an entry for each adapter, as JSON and as a table.
"""

import argparse
import copy
import functools
import itertools
import json
import math
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import family
import numpy as np
from family import DETAILS, FREE, FROZEN, TERMS, rows_of

TOLERANCE = 1e-6
near = lambda x, y, times=1: abs(x - y) <= times * TOLERANCE * (1 + abs(y))
AGAIN = "answers differently when it is called again with the same arguments"
ADAPTERS = Path(__file__).parent / "adapters"

TEMPLATE = '''"""An adapter for figures/conformance. Call your own code in it, and delete what you do not need.

Arrays are float64 (masks are bool) of shape [T, N], T steps of N environments, or [B], B pairs of a minibatch. The
README of figures/conformance says what no function covers.
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
    normalized already. It is called with one minibatch and with two. Returns nothing."""
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

    first, second = (family.joined([answer(x) for x in FROZEN[name]]) for _ in range(2))
    if first.keys() != second.keys() or not all(near(second[part], x).all() for part, x in first.items()):
        raise Refused(AGAIN)
    if name == "update" and not any(x.any() for x in first.values()):
        raise Refused("it changed no parameter")
    return first


def checked(numbers: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Returns the numbers in float64. Raises Refused if they have another shape or type, or are not finite."""
    if numbers is None:
        raise Refused(f"{what} is missing: it returns None")
    numbers = numbers.detach().cpu().numpy() if hasattr(numbers, "detach") else np.asarray(numbers)
    if numbers.shape != shape:
        raise Refused(f"{what} has shape {numbers.shape}, not {shape}")
    if numbers.dtype.kind != "f" or numbers.itemsize < 4:  # Half precision agrees with nothing to 1e-6.
        raise Refused(f"{what} is of type {numbers.dtype}, not float32 or float64")
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
            needs = "finite differences need double (jax_enable_x64 in JAX; torch can set TENSORS = True instead)"
            raise Refused(f"the loss is in single precision; {needs}")
        return best / len(x[key])

    if not near(loss(x), loss(x)):  # asked first, because a state that moves with each call may settle
        raise Refused(AGAIN)
    return family.terms_of(name, x, loss, gradient)


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

    return family.terms_of(name, x, lambda x: float(checked(loss_of(x)[0], (), "the loss")), gradient)


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
            nn.utils.vector_to_parameters(torch.tensor(family.BEFORE[name]), network.parameters())
        some = [{key: torch.tensor(y) for key, y in minibatch.items()} for minibatch in x["minibatches"][:n]]
        function(**x | networks | dict(minibatches=some))
        for name, network in networks.items():
            after = checked(nn.utils.parameters_to_vector(network.parameters()), family.BEFORE[name].shape, name)
            changes[f"{name} after minibatch {n}"] = after - family.BEFORE[name]
    return changes


# Search --------------------------------------------------------------------------------------------------------------


def search(name: str, found: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns which member of the family has these numbers or, if none has, which is the nearest, a number or a factor
    that would explain the difference, and the rows that differ."""
    ways, numbers = family.family(name)
    others = lambda way: [texts[way[x]] for x, texts in DETAILS[name].items() if way[x] in list(texts)[1:]]
    # Which rows members have, the factors that explain a part of theirs that is off, and how far they are.
    fits, factors, far = {}, {}, np.zeros(len(ways))
    for part, x in found.items():
        y, squares = numbers[part], (numbers[part] ** 2).sum(1)
        exact = near(x, y)
        c = np.divide(y @ x, squares, where=squares > 0, out=np.zeros(len(ways)))
        c[(c == 0) | exact.all(1)] = 1
        scaled = (near(x, c[:, None] * y) & near(x / c[:, None], y)).all(1)
        factors[part], fits[part] = np.where(scaled, c, 1), exact | scaled[:, None]
        apart = abs(x - factors[part][:, None] * y) / (1 + abs(y))
        far += np.log10(apart.clip(TOLERANCE)).mean(1)  # which is least where most rows are the same
    far += 0.01 * sum(x != 1 for x in factors.values()) + 1e-6 * np.array([len(others(way)) for way in ways])
    order = np.argsort(far)
    best, factored = order[0], [part for part in found if factors[part][order[0]] != 1]
    way = ways[best] | dict.fromkeys(rows_of(name).keys() - found.keys(), "not seen")  # targets, which may be None
    fits = {part: x[best] for part, x in fits.items()}
    theirs = {part: factors[part][best] * numbers[part][best] for part in found}
    if not factored and all(x.all() for x in fits.values()):
        error = max((abs(x - theirs[part]) / (1 + abs(theirs[part]))).max() for part, x in found.items())
        verdict = "variant" if others(way) else "as ppo.py"
        return dict(verdict=verdict, way=way, says=others(way) or [verdict], error=error)

    free, says = {}, [f"none of the {len(ways)} members of the family"]
    if not all(x.all() for x in fits.values()) and (solved := solve(name, found, [ways[i] for i in order], fits)):
        (way, free, theirs, given), factored = solved, []
        fits = {part: near(x, theirs[part], 10) for part, x in found.items()}
    share = math.floor(100 * np.mean(np.concatenate([*fits.values()])))
    how = "".join(f" if {key} is {x:g}" + f", not {given:g} as asked" * (key not in way) for key, x in free.items())
    says.append(f"nearest, with {share}% of its numbers{how}: {'; '.join(others(way)) or 'as ppo.py'}")
    says += [f"{part}: everywhere {factors[part][best]:.6g} times the nearest member's" for part in factored]
    off = {part: np.flatnonzero(~fits[part]) for part in found if not fits[part].all()}
    for i, part in enumerate(off):
        x, y = found[part], theirs[part]
        off[part] = sorted(off[part], key=lambda row: -abs(x[row] - y[row]) / (1 + abs(y[row])))
        if name == "update" and part[-1] > next(iter(off))[-1]:
            says.append(f"and {sum(map(len, [*off.values()][i:]))} numbers after later minibatches")
            break
        says.append(f"{part}: {len(off[part])} of {x.size} numbers differ from the nearest member's")
        for row in off[part][:3]:
            digits = 4 if f"{x[row]:.4g}" != f"{y[row]:.4g}" else 9
            both = f"yours {x[row]:.{digits}g}, the nearest member's {y[row]:.{digits}g}"
            says.append(f"    {rows_of(name)[part][row]}: {both}")
    off = {part: [rows_of(name)[part][row] for row in rows] for part, rows in off.items()}
    return dict(verdict="none", way=way, says=says, off=off, free=free, factored=bool(factored))


def solve(name: str, found: dict[str, np.ndarray], ways: list[dict[str, str]], fits: dict[str, np.ndarray]) -> Any:
    """Looks for one number that explains all of a part that no member has. Returns the member's way with it, the number
    by name, the numbers that follow from it, and what it was, or None."""
    # A loss's slopes take long, and change in steps with a clip, so only its own numbers are asked first.
    first = {part: [row.endswith("its number") or name not in TERMS for row in rows_of(name)[part]] for part in found}
    # Parts are explained one by one, but an update's all together, since its steps follow from one another.
    groups = [[*found]] if name == "update" else [[part] for part in found if not fits[part].all()]
    near_ways = ways[:5] if name == "update" else ways[:20]  # an update's formula takes long
    for way, free, parts in itertools.product(near_ways, FREE[name], groups):
        if way.get(free) in ("unclipped", "not seen"):
            continue
        given = family.number(way[free]) if free in way else FROZEN[name][0][free]
        wanted = {part: found[part][first[part]] for part in parts}
        numbers = functools.partial(family.numbers_with, name, way, free)
        if x := fitted(functools.partial(numbers, with_slopes=False), wanted, given):
            theirs = numbers(x)
            if all(near(found[part], theirs[part], 10).all() for part in parts):
                return way | ({free: f"{x:g}"} if free in way else {}), {free: x}, theirs, given
    return None


def fitted(numbers: Callable[[float], dict], wanted: dict[str, np.ndarray], x: float) -> float | None:
    """Returns the number for which these parts of the numbers are the wanted ones, with as few digits as will do, or
    None. Gauss-Newton steps of its logarithm lead to it from x."""
    joined = lambda parts: np.concatenate([parts[part] for part in wanted])
    y, errors, step = joined(wanted), [], 1.0
    while abs(step) >= 1e-9 and len(errors) < 30 and 1e-12 < x < 1e4:
        misses = (joined(numbers(x)) - y) / (1 + abs(y))
        slope = ((joined(numbers(x * 1.0001)) - y) / (1 + abs(y)) - misses) / 1e-4
        errors.append(misses @ misses)
        if not slope.any() or len(errors) == 8 and errors[-1] > 0.01 * errors[0]:
            return None
        step = float(np.clip(-(slope @ misses) / (slope @ slope), -2, 2))
        x *= math.exp(step)
    rounded = [float(f"{x:.{digits}g}") for digits in range(1, 5)]  # as somebody writes it
    return next((x for x in rounded if near(y, joined(numbers(x)), 10).all()), None)


def table_of(entries: dict[str, dict[str, Any]]) -> str:
    """Returns a Markdown table with a row for each detail that was seen, and a column for each adapter. What is done
    otherwise than in ppo.py is in bold. Where a function is no member of the family, its cells are empty."""
    rows = [["function", "detail", *[entry["title"] for entry in entries.values()]], ["---"] * (len(entries) + 2)]
    for name, detail in [(name, detail) for name, texts in DETAILS.items() for detail in texts]:
        usual = next(iter(DETAILS[name][detail]))
        asked = [entry["functions"].get(name, dict(verdict="none")) for entry in entries.values()]
        ways = ["not seen" if x["verdict"] == "none" else x["way"][detail] for x in asked]
        if set(ways) != {"not seen"}:
            rows.append([name, detail, *[{"not seen": "", usual: usual}.get(way, f"**{way}**") for way in ways]])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapters", nargs="*", help="a Python file, or the name of a file in adapters/")
    parser.add_argument("--template", action="store_true", help="print an adapter to fill in, and do nothing else")
    parser.add_argument("--out", type=Path, default="results/conformance", help="folder for the two files")
    args = parser.parse_args(argv)
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
