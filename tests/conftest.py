"""What the tests share: the scripts as modules, a training state in memory, a run on disk."""

import copy
import csv
import dataclasses
import importlib.util
import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.distributions import Distribution
from torch.func import functional_call

ROOT = Path(__file__).parent.parent
MICRO = ["micro_ppo", "micro_trpo"]  # on one page, without arguments
ALGOS = sorted({path.stem for path in (ROOT / "algos").glob("*.py")} - {*MICRO})
sys.path.append(str(Path(__file__).parent))  # for --env-id environments:...
for folder in ("", "report", "sb3"):
    sys.path.append(str(ROOT / "diagnostics" / folder))  # where they find the modules beside them
sys.path.insert(0, str(ROOT / "figures"))  # before figures/report, which has a claims.py, too

import lab


def load(name):
    """algos/<name>.py, or <name>.py of diagnostics/ or of a folder there, as a module."""
    if name not in sys.modules:
        [path] = [*ROOT.glob(f"algos/{name}.py"), *ROOT.glob(f"diagnostics/**/{name}.py")]
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    torch.set_num_threads(1)  # as main does
    Distribution.set_default_validate_args(False)
    return sys.modules[name]


SMALL = dict(total_timesteps=800, num_envs=1, num_steps=256, num_minibatches=4, policy_epochs=2, value_epochs=2)


def settings_of(algo, **settings):
    """The settings, small and uncompiled unless told otherwise, as far as the script has them."""
    names = {field.name for field in dataclasses.fields(load(algo).Args)}
    assert settings.keys() <= names
    return {k: v for k, v in (SMALL | dict(compile=False) | settings).items() if k in names}


def flags_of(algo, **settings):
    """The same as a list of command line flags."""
    flags = []
    for k, v in settings_of(algo, **settings).items():
        name = k.replace("_", "-")
        flags += [f"--{name}" if v else f"--no-{name}"] if isinstance(v, bool) else [f"--{name}", str(v)]
    return flags


def start(algo, **settings):
    """Script, arguments and initial training state."""
    script = load(algo)
    args = script.Args(**settings_of(algo, **settings))
    return script, args, script.State(args)


def iterate(script, args, state):
    """One training iteration of the state through the contract -> the rollout's steps, batch, statistics."""
    steps, _ = script.rollout(args, state)
    batch = script.estimate_advantages(args, state, steps)
    return steps, batch, script.update(args, state, batch)


def copied(state):
    """A copy of a training state but for its environments."""
    copied = copy.copy(state)
    vars(copied).update({name: copy.deepcopy(part) for name, part in vars(state).items() if name != "workers"})
    return copied


def flat(network):
    """The network's parameters as one vector."""
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def output(network, vector, obs):
    """What the network says of the observations, with its parameters taken from one vector."""
    parts = vector.split([p.numel() for p in network.parameters()])
    named = {name: x.view_as(p) for (name, p), x in zip(network.named_parameters(), parts)}
    return functional_call(network, named, obs)


def checkpoints(folder):
    return sorted(folder.glob("checkpoints/iter_*.pt"))


def contents(path):
    """All that a checkpoint holds but its run's arguments, by name."""
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["args"]
    return leaves(checkpoint)


def leaves(x, name=""):
    """What nested dictionaries and lists hold, by path."""
    if not isinstance(x, dict | list | tuple):
        return {name: x}
    parts = x.items() if isinstance(x, dict) else enumerate(x)
    return {k: leaf for key, part in parts for k, leaf in leaves(part, f"{name}.{key}".lstrip(".")).items()}


def assert_same(a, b):
    """Two dictionaries of tensors and plain values are equal, bit for bit."""
    assert a.keys() == b.keys()
    pairs = {name: (a[name], b[name]) for name in a}
    assert [name for name, (x, y) in pairs.items() if not (torch.equal(x, y) if torch.is_tensor(x) else x == y)] == []


def progress(folder):
    """Rows of progress.csv without their sps."""
    with open(folder / "progress.csv", newline="") as file:
        return [{k: v for k, v in row.items() if k != "sps"} for row in csv.DictReader(file)]


RAW = dict(reward_scale=False, reward_clip=False, obs_norm=False, obs_clip=False)
TINY = RAW | dict(num_steps=64, policy_epochs=1, value_epochs=1, policy_hidden="8", value_hidden="8")
ON_BANDIT = TINY | dict(env_id="environments:Bandit-v0", total_timesteps=128)
ON_CHAIN = TINY | dict(env_id="environments:Chain-v0", total_timesteps=384)
ON_PENDULUM = dict(env_id="InvertedPendulum-v5")
FEW = ON_PENDULUM | dict(total_timesteps=384, num_steps=64, num_envs=2, num_minibatches=2)
KNOWN = dict(bandit=ON_BANDIT, chain=ON_CHAIN, chain2=ON_CHAIN | dict(seed=2))
KNOWN |= dict(chain_rate=ON_CHAIN | dict(policy_lr=1e-3), ppo=ON_PENDULUM, raw=ON_PENDULUM | RAW)
KNOWN |= dict(reinforce=ON_PENDULUM | dict(algo="reinforce"))
KNOWN |= {f"few_{algo}": FEW | dict(algo=algo) for algo in ALGOS}


# Calls small enough for a test, of all that each diagnostic measures.
CALLS = {
    "gradient": "--pairs 32 200 --repeats 4 --true-pairs 1200",
    "baselines": "--pairs 32 200 --repeats 4 --true-pairs 1200 --value-pairs 500",
    "steps": "--repeats 3",
    "value": "--heldout-pairs 700",
    "landscape": "--grid 2 --step-pairs 64 200 --reward-pairs 100 --surfaces --concentration 50 100",
    "trust_region": "--heldout-pairs 700",
    "evaluate": "--episodes 11",
}


class Trained:
    """Short runs with a checkpoint each iteration, trained when a test first asks for one: trained / "chain"."""

    def __init__(self, folder):
        self.folder = folder

    def __truediv__(self, name):
        if not (self.folder / name).exists():
            settings = dict(KNOWN[name], run_name=name, runs_dir=str(self.folder), checkpoint_every=1)
            algo = settings.pop("algo", "ppo")
            names = {field.name for field in dataclasses.fields(load(algo).Args)}
            load(algo).main(flags_of(algo, **{k: v for k, v in settings.items() if k in names}))
        return self.folder / name


@pytest.fixture(scope="session")
def known(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("known"))


@pytest.fixture(autouse=True)
def nothing_of_another_test(monkeypatch):
    """A process remembers what it read of a folder, and imports from its working directory. Tests share processes."""
    for function in vars(lab).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """An empty folder, which is also the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def figures(monkeypatch):
    """The figures that a test draws, by file name; drawn, but not written, which takes a second each."""
    found = {}
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: found.update({Path(path).name: figure}))
    return found


def last_line(capsys, status, call, *arguments):
    """The last line on standard error of a call that must exit with this status."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        call(*arguments)
    assert ended.value.code == status
    return capsys.readouterr().err.splitlines()[-1]


@pytest.fixture(scope="session")
def compiler():
    """Skips a test where torch.compile does not work."""
    try:
        torch.compile(torch.neg, options={"cpp_wrapper": True})(torch.zeros(2))
    except Exception:
        pytest.skip("torch.compile does not work here")
