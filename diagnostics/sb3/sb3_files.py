"""This module reads what Stable-Baselines3 (SB3) saves: the zip file of an agent, the pickle of VecNormalize, and
monitor.csv. sb3.py makes runs of them.

Nothing in the files is executed. Tensors are loaded with weights_only, settings are read as JSON, and pickles by an
Unpickler that calls nothing. What a file says is checked here before anyone uses it.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import json
import math
import pickle
import pickletools
import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from lab import note, refuse
from sb3_ppo import Schedule
from torch import Tensor

# What the files may say: the type of a number, its smallest and its largest value. The limits are far beyond what any
# training can use, but near enough for sums and products to stay finite and for loops to end.
LIMITS = {
    "n_steps batch_size shape": (int, 1, 10**7),
    "n_envs n_epochs": (int, 1, 10**4),
    "num_timesteps _total_timesteps _num_timesteps_at_start _n_updates": (int, 0, 10**12),
    "seed": (int, 0, 2**32 - 1),
    "gamma gae_lambda end_fraction": (float, 0, 1),
    "betas": (float, 0, 0.999_999_9),
    "learning_rate": (float, 0, 10),
    "lr": (float, -10, 10),
    "clip_range clip_range_vf target_kl vf_coef eps weight_decay epsilon": (float, 0, 1e3),
    "ent_coef": (float, -1e3, 1e3),
    "max_grad_norm clip_obs clip_reward": (float, 0, math.inf),
    "_current_progress_remaining": (float, -1e6, 1),
    "start_time t_start": (float, 0, 1e20),
    "step": (float, 0, 1e12),
    "count": (float, 1e-4, 1e15),
    "normalize_advantage norm_obs norm_reward training": (bool, 0, 1),
}
LIMITS = {name: limits for names, limits in LIMITS.items() for name in names.split()}
OF_PPO = "n_epochs batch_size target_kl".split()  # which no other algorithm's files have together
SETTINGS = """
    n_envs n_steps gamma gae_lambda ent_coef vf_coef max_grad_norm normalize_advantage seed start_time num_timesteps
    _total_timesteps _num_timesteps_at_start _current_progress_remaining _n_updates
""".split()
SCHEDULES = "learning_rate clip_range clip_range_vf".split()
OTHERS = "policy_class policy_kwargs observation_space action_space ep_info_buffer _last_original_obs".split()
# What files of older versions lack, or have as null. A start_time of 0 is one that no file says.
IF_ABSENT = dict(normalize_advantage=True, seed=0, start_time=0.0, _num_timesteps_at_start=0, target_kl=None)
ADAM = {*torch.optim.Adam([torch.zeros(1)]).param_groups[0], "initial_lr"}  # its settings; the last is a scheduler's
VECNORMALIZE = "norm_obs norm_reward training clip_obs clip_reward gamma epsilon".split()

# The classes that a policy may name, SB3's default first. These activations have neither weights nor random numbers.
CLASSES = dict(
    activation_fn="Tanh ReLU ELU SELU GELU SiLU Mish LeakyReLU ReLU6 Sigmoid Softplus Softsign Hardtanh".split(),
    optimizer_class=["<class 'torch.optim.adam.Adam'>"],
    features_extractor_class=["<class 'stable_baselines3.common.torch_layers.FlattenExtractor'>"],
)
CLASSES["activation_fn"] = [f"<class 'torch.nn.modules.activation.{x}'>" for x in CLASSES["activation_fn"]]


def check_number(x: Any, name: str) -> Any:
    """Returns a number of Python's own. Raises ValueError where it is of another type or beyond its limits."""
    x, (kind, low, high) = as_number(x), LIMITS[name]
    if isinstance(x, bool) != (kind is bool) or not low <= x <= high or (kind is int and x % 1):
        raise ValueError(f"its {name} is not {kind.__name__} from {low:g} to {high:g}")
    return kind(x)


def as_number(x: Any) -> Any:
    """Returns a number that may be one of numpy's, and then is pickled in JSON."""
    x = to_numpy(unpickle(base64.b64decode(x[":serialized:"])) if isinstance(x, dict) else x)
    return x.item() if isinstance(x, np.ndarray | np.generic) else x


# Pickles -------------------------------------------------------------------------------------------------------------


class Inert:
    """What every global of a pickle becomes: it keeps what it is called with and does nothing."""

    name = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:
        inert = object.__new__(cls)
        inert.args, inert.state, inert.items = args, None, []
        inert.append, inert.extend = inert.items.append, inert.items.extend
        return inert

    def __call__(self, *args: Any, **kwargs: Any) -> Inert:
        return Inert(*args)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def ignore(self, *_: Any) -> None:
        pass

    __setitem__ = add = ignore


class InertUnpickler(pickle.Unpickler):
    """Reads a pickle without importing or calling anything that it names."""

    def find_class(self, module: str, name: str) -> type[Inert]:
        return type("Inert", (Inert,), dict(name=f"{module}.{name}"))

    def persistent_load(self, _: Any) -> NoReturn:
        raise pickle.UnpicklingError("persistent id")


def unpickle(data: bytes) -> Any:
    # The Unpickler makes room for as many objects as the largest number says under which one is to be remembered.
    if any("PUT" in code.name and x > len(data) for code, x, _ in pickletools.genops(data)):
        raise pickle.UnpicklingError("more objects than bytes")
    return InertUnpickler(io.BytesIO(data)).load()


def to_numpy(x: Any) -> Any:
    """Returns recorded arrays and scalars of numpy, which versions 1 and 2 pickle differently, and plain values."""
    kind = x.name.rpartition(".")[2] if isinstance(x, Inert) else ""
    if kind == "_reconstruct":
        _, shape, dtype, fortran, data = x.state
        flat = np.frombuffer(data, to_dtype(dtype))
        return (flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)).copy()
    if kind == "_frombuffer":
        data, dtype, shape, order = x.args
        return np.frombuffer(data, to_dtype(dtype)).reshape(shape, order=order).copy()
    if kind == "scalar":
        return np.frombuffer(x.args[1], to_dtype(x.args[0]))[0]
    if not isinstance(x, bool | int | float):
        raise ValueError(x)
    return x


def to_dtype(x: Inert) -> np.dtype:
    if x.name != "numpy.dtype" or not re.fullmatch(r"b1|[fiu][1248]", x.args[0]):
        raise ValueError(x.name)
    order = x.state[1] if x.state else "|"
    return np.dtype(order.replace("|", "") + x.args[0])


def read_vecnormalize(path: Path) -> dict[str, Any]:
    """Reads a file of VecNormalize: its settings, and obs_rms and ret_rms as mean, var and count."""
    try:
        found = unpickle(path.read_bytes())
        if found.name != "stable_baselines3.common.vec_env.vec_normalize.VecNormalize":
            raise ValueError(found.name)
        values = {name: check_number(found.state[name], name) for name in VECNORMALIZE}
        for name in ("obs_rms", "ret_rms") if values["norm_obs"] else ("ret_rms",):
            recorded = found.state[name]
            if recorded.name != "stable_baselines3.common.running_mean_std.RunningMeanStd":
                raise ValueError(recorded.name)
            mean, var = (np.asarray(to_numpy(recorded.state[x]), float) for x in ("mean", "var"))
            count = check_number(recorded.state["count"], "count")
            small = np.abs(mean).max() < 1e30 and 0 <= var.min() <= var.max() < 1e30
            if not small or mean.shape != var.shape or (var.min() == values["epsilon"] == 0):
                raise ValueError(recorded.state)
            values[name] = dict(mean=mean, var=var, count=count)
        return values
    except OSError as error:
        refuse(f"{path}: {error.strerror}")
    except Exception:  # corrupt bytes raise almost anything
        refuse(f"{path} is not the pickle that VecNormalize.save writes, or it is damaged")


# Agents --------------------------------------------------------------------------------------------------------------


@dataclass
class Agent:
    """What a zip file of SB3 holds, and the statistics of VecNormalize that belong to it."""

    path: Path
    version: str
    settings: dict[str, Any]  # by SB3's names
    batch: int  # pairs of a rollout
    extra: int  # pairs of earlier rollouts that were cut short, beyond whole ones
    iteration: int  # whose rollout it was saved in, or which comes next
    normalized: bool  # whether it was trained behind VecNormalize
    spaces: dict[str, np.ndarray]  # observation_space, action_space: lowest and highest values [2, n], nan: unknown
    activation: str
    hidden: dict[str, tuple[int, ...]]  # sizes of hidden layers, policy and value
    networks: dict[str, Tensor]  # by SB3's names, in its order
    group: dict[str, Any]  # Adam's constants, and its last learning rate
    moments: dict[int, dict[str, Tensor]]  # of each tensor of the networks; empty before the first update
    last_episodes: list[tuple[int, float]]  # of the training, as Episode.mark; the newest is the last
    statistics: dict[str, Any] = field(default_factory=dict)


def read_agent(path: Path, given: dict[str, float | None]) -> Agent:
    """Reads a zip file, with schedules that the user gives. Stops at what sb3.py does not know how to continue."""
    try:
        with zipfile.ZipFile(path) as file:
            data = json.loads(unpack(file, "data", 2**26))
            version = unpack(file, "_stable_baselines3_version", 100).decode().split()[0]
            if not {*OF_PPO} <= data.keys():
                refuse(f"{path} is not an agent of PPO, the only one of SB3 that can be imported")
            needed = [*SETTINGS, *OTHERS, *["clip_range_vf"] * (given["clip_range_vf"] is None)]
            if missing := [name for name in needed if name not in data.keys() | IF_ABSENT]:
                refuse(f"{path}: SB3 {version}, which wrote it, did not save {', '.join(missing)}")
            check_parts(path, data)
            settings = {x: IF_ABSENT[x] for x in IF_ABSENT if data.get(x) is None}
            settings |= {x: check_number(data[x], x) for x in SETTINGS + OF_PPO if x not in settings}
            if not settings["_total_timesteps"]:
                refuse(f"{path}: it has not been trained yet")
            spaces = {name: read_space(path, data, name) for name in ("observation_space", "action_space")}
            hidden, networks = read_networks(path, file, *(x.shape[1] for x in spaces.values()))
            group, moments = read_optimizer(path, file, list(networks.values()))
            for name in SCHEDULES:
                settings[name] = read_schedule(path, data, name, given[name], group["lr"])
            episodes = unpickle(base64.b64decode(data["ep_info_buffer"][":serialized:"])).items
            last_episodes = [(int(to_numpy(x["l"])), float(to_numpy(x["t"]))) for x in episodes]
    except OSError as error:
        refuse(f"{path}: {error.strerror or error}")
    except Exception as error:  # damaged files raise almost anything
        text = " ".join(str(error).split())[:100]
        refuse(f"{path} is damaged, or has something that is unknown here ({type(error).__name__}: {text})")
    activation = re.findall(r"\w+", data["policy_kwargs"].get("activation_fn", "Tanh"))[-1]
    normalized = data["_last_original_obs"] is not None
    batch = settings["n_steps"] * settings["n_envs"]
    counts = batch, settings["_num_timesteps_at_start"] % batch, count_iterations(path, settings, batch, group["step"])
    parts = normalized, spaces, activation, hidden, networks, group, moments, last_episodes
    return Agent(path, version, settings, *counts, *parts)


def count_iterations(path: Path, settings: dict[str, Any], batch: int, steps: float) -> int:
    """Returns the updates that an agent has made since num_timesteps was 0. Says so where they cannot be known, and
    where its Adam has not made the steps of PPO's own train(); a subclass may have another. A file of the last step of
    a rollout is of before the update or of after it. SB3 notes its progress between the two, but in its first rollout,
    from _num_timesteps_at_start on, a learn() has that of the one before, which may happen to be the same."""
    begun, now, made = (settings[x] for x in "_num_timesteps_at_start num_timesteps _n_updates".split())
    epochs, fixed = settings["n_epochs"], settings["target_kl"] is None
    updated = round((1 - settings["_current_progress_remaining"]) * settings["_total_timesteps"]) == now
    if updated and now - begun == batch:
        updated = not (begun and fixed and made == begun // batch * epochs)
        if updated and not (begun and fixed and made == now // batch * epochs):
            note(f"{path}: it may be of before the update after step {now:,}, or of after it; here it is of after it")
    iteration = begun // batch + max(0, (now - begun - (not updated)) // batch)
    if max(iteration, batch) > 10**7:
        refuse(f"{path}: its numbers of steps are beyond what can be imported")
    if not (epochs if fixed else 1) * iteration <= made <= epochs * iteration:
        why = "because they were counted anew, a rollout was cut short or a setting was changed"
        note(f"the agent has made more or fewer updates than its steps tell, {why}; iterations are counted by steps")
        return iteration
    minibatches = math.ceil(batch / settings["batch_size"])
    if made and not steps:
        refuse(f"{path}: its Adam has made no step in {made:,} epochs, so its train() was not PPO's")
    if steps > made * minibatches or (fixed and steps < made * minibatches):
        unlike = f"{steps:,.0f} steps in {made:,} epochs of {minibatches:,} minibatches"
        note(f"{path}: its Adam has made {unlike}; if its train() was not PPO's, updates here are not what it did")
    return iteration


def unpack(file: zipfile.ZipFile, name: str, most: int = 2**30) -> bytes:
    """Reads a part of a zip file, unless it would fill the memory. What it says of its size is not believed, and only
    deflate can be read up to a limit."""
    part = file.getinfo(name)
    if part.file_size > most or part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"its {name} would take {part.file_size:,} bytes or another method to decompress than SB3's")
    with file.open(name) as opened:
        return opened.read(most + 1)


def load_tensors(file: zipfile.ZipFile, name: str) -> Any:
    """Reads one of torch's files within the zip file, which is a zip file again, but not compressed."""
    data = unpack(file, name)
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            if sum(x.file_size for x in inner.infolist()) > len(data):
                raise ValueError(name)
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def check_parts(path: Path, data: dict[str, Any]) -> None:
    """Stops at parts that are not SB3's own or that this project lacks. The file names them as text."""
    kwargs = data["policy_kwargs"]
    if data.get("use_sde") or kwargs.get("squash_output"):
        refuse(f"{path}: gSDE and squashed actions cannot be imported")
    for name, module in (("policy_class", "policies"), ("rollout_buffer_class", "buffers")):
        own = dict(__module__=f"stable_baselines3.common.{module}")  # older files have no class of buffers
        if (data.get(name) or own)["__module__"] != own["__module__"]:
            refuse(f"{path}: its {name} is not SB3's own, and its code would have to run")
    for name, known in CLASSES.items():
        found = kwargs.get(name, known[0])
        if found not in known:
            refuse(f"{path}: its {name} is {' '.join(str(found).split())}, which cannot be imported")


def read_space(path: Path, data: dict[str, Any], name: str) -> np.ndarray:
    """Returns the lowest and the highest values of a space [2, n]. They are nan where numpy left out some."""
    entry, kind = data[name], "actions" if name == "action_space" else "observations"
    shape = entry.get("_shape", entry.get("shape"))
    if "Box" not in entry.get(":type:", "") or not isinstance(shape, list) or len(shape) != 1:
        refuse(f"{path}: its {kind} are not vectors of numbers, and only those can be imported")
    size = check_number(shape[0], "shape")
    texts = [entry.get(bound, "...").strip("[]").split() for bound in ("low", "high")]
    return np.array([np.full(size, np.nan) if "..." in x else np.array(x, float).reshape(size) for x in texts])


def read_networks(path: Path, file: zipfile.ZipFile, sees: int, acts: int) -> tuple[dict[str, tuple[int, ...]], dict]:
    """Returns the sizes of the hidden layers of both networks, and the tensors, by SB3's names and in its order."""
    found = load_tensors(file, "policy.pth")
    known = r"log_std|(mlp_extractor\.(policy|value)_net|action_net|value_net)\..*"
    if not all(re.fullmatch(known, name) for name in found):
        refuse(f"{path}: recurrent and shared layers, and feature extractors with weights, cannot be imported")
    hidden, shapes, heads = {}, {"log_std": (acts,)}, {}
    for net, head, out in (("policy", "action_net", acts), ("value", "value_net", 1)):
        layer = f"mlp_extractor.{net}_net"
        count = sum(name.startswith(layer) for name in found) // 2
        hidden[net] = tuple(len(found[f"{layer}.{2 * i}.weight"]) for i in range(count))
        sizes = [sees, *hidden[net]]
        for i, (size_in, size_out) in enumerate(zip(sizes, sizes[1:])):
            shapes |= {f"{layer}.{2 * i}.weight": (size_out, size_in), f"{layer}.{2 * i}.bias": (size_out,)}
        heads |= {f"{head}.weight": (out, sizes[-1]), f"{head}.bias": (out,)}
    shapes |= heads
    if {name: tuple(x.shape) for name, x in found.items()} != shapes:
        raise ValueError(shapes)
    return hidden, {name: check_tensor(path, found[name]) for name in shapes}


def read_optimizer(path: Path, file: zipfile.ZipFile, networks: list[Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns Adam's constants with its last learning rate, and what it knows of each tensor."""
    found = load_tensors(file, "policy.optimizer.pth")
    [group, *more], state = found["param_groups"], found["state"]
    if more or len(group["params"]) != len(networks) or group.keys() - ADAM or "amsgrad" not in group:
        refuse(f"{path}: its optimizer is not one Adam of all parameters alike, and cannot be imported")
    if variants := [x for x in ("amsgrad", "maximize", "decoupled_weight_decay") if group.get(x)]:
        refuse(f"{path}: its optimizer is Adam with {variants[0]}, which cannot be imported")
    constants = {name: check_number(group[name], name) for name in ("lr", "eps", "weight_decay")}
    constants["lr"] = max(0.0, constants["lr"])  # A rate of what is left of a training falls below 0 beyond its end.
    first, second = (check_number(beta, "betas") for beta in group["betas"])
    steps = [check_number(float(x["step"]), "step") for x in state.values()] or [0.0]
    if state and len(state) < len(networks) or len({*steps}) > 1:
        refuse(f"{path}: some of its parameters were frozen, for a time or for good, and it cannot be imported")
    moments = {}
    for i, network in enumerate(networks[: len(state)]):
        moments[i] = {name: check_tensor(path, state[i][name]) for name in ("exp_avg", "exp_avg_sq")}
        if any(x.shape != network.shape for x in moments[i].values()) or moments[i]["exp_avg_sq"].min() < 0:
            raise ValueError("moments")
        moments[i]["step"] = torch.tensor(steps[0])
    return constants | dict(betas=(first, second), step=steps[0]), moments


def check_tensor(path: Path, x: Tensor) -> Tensor:
    if x.dtype != torch.float32 or x.numel() * 4 > x.untyped_storage().nbytes():  # a view may repeat a few numbers
        raise ValueError(x.dtype)
    if not x.abs().max() <= 1e6:
        refuse(f"{path}: its weights or its optimizer's moments are not finite or far too large: its training diverged")
    return x.detach().contiguous()


def read_schedule(path: Path, data: dict[str, Any], name: str, given: float | None, last: float) -> Schedule | None:
    """Reads a schedule from a number, a text, or the bytes of a pickle, but never by running it. The user may give a
    constant instead. Where neither is there, a learning rate is what it was last, and a clip_range_vf none."""
    found, none = find_schedule(data.get(name)), name == "clip_range_vf" and data.get(name) is None
    if name == "learning_rate":  # setting it does not change what a training goes by
        found = find_schedule(data.get("lr_schedule")) or found
    if given is not None:
        if found not in (None, given) or none and name in data:
            note(f"{path}: --{name.replace('_', '-')} {given:g} replaces the {name} that the file says, {found}")
        found = given
    elif none:
        return None
    elif found is None:
        if name != "learning_rate":
            refuse(f"{path}: it does not spell out its {name}; say it with --{name.replace('_', '-')} NUMBER")
        note(f"{path}: it does not spell out its learning_rate; here it stays at that of its last update, {last:g}")
        found = last
    first, end, fraction = found if isinstance(found, tuple) else (found, found, 1.0)
    for x, limits in ((first, name), (end, name), (fraction, "end_fraction")):
        check_number(x, limits)
    return found


def find_schedule(entry: Any) -> Schedule | None:
    """Returns a schedule that the file spells out, or None."""
    number = r"([-+.\deE]+)"
    with contextlib.suppress(Exception):  # it is a function
        return float(as_number(entry))
    try:
        text = str(entry.get("value_schedule", ""))
        if found := re.fullmatch(rf"ConstantSchedule\(val={number}\)", text):
            return float(found[1])
        if found := re.fullmatch(rf"LinearSchedule\(start={number}, end={number}, end_fraction={number}\)", text):
            return tuple(map(float, found.groups()))
        # before 2.7.0, the number is only in the pickle of the function that returns it
        codes = list(pickletools.genops(base64.b64decode(entry[":serialized:"])))
        numbers = [x for code, x, _ in codes if code.name == "BINFLOAT"]
        names = {x for code, x, _ in codes if "UNICODE" in code.name}
        if "constant_fn.<locals>.func" in names and len(numbers) == 1:
            return numbers[0]
        if "SimpleLinearSchedule" in names and len(numbers) == 1:  # RL Baselines3 Zoo has this one
            return numbers[0], 0.0, 1.0
    except Exception:  # a damaged pickle raises almost anything
        return None


# Episodes ------------------------------------------------------------------------------------------------------------


class Episode(NamedTuple):
    total: float  # its return
    length: int
    end: float  # seconds since 1970
    mark: tuple[int, float]  # length and end as both the line of monitor.csv and the agent's file have them


def read_monitor(path: Path) -> tuple[str, list[Episode]]:
    """Returns the environment's id, if any, and the episodes, without a line that was torn by the end of a process."""
    episodes, number = [], 1
    try:
        header, *lines = path.read_text().split("\n")[:-1]
        header = json.loads(header.removeprefix("#"))
        env_id, start = header.get("env_id") or "None", check_number(header["t_start"], "t_start")
        # Monitor never writes a colon. gym.make would import the module before it, whatever that is.
        if not re.fullmatch(r"[\w./-]+", env_id):
            refuse(f"--monitor {path} names no environment that Gymnasium knows; only --env-id may name a module")
        for number, row in enumerate(csv.DictReader(lines), 3):
            seconds, total, length = float(row["t"]), float(row["r"]), int(float(row["l"]))
            if None in row or not (math.isfinite(total + seconds) and 1 <= length <= 10**9):
                raise ValueError(row)
            if episodes and seconds < episodes[-1].mark[1]:
                refuse(f"--monitor {path}: another monitor went on with it in line {number}, and did not say when")
            episodes.append(Episode(total, length, start + seconds, (length, seconds)))
    except Exception:
        refuse(f"--monitor {path}: line {number} is not as SB3's Monitor writes it")
    return "" if env_id == "None" else env_id, episodes  # "None": the environment had no id
