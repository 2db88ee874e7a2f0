"""Which PPO is this? The family of formulas against itself, against our scripts, against mutants and libraries."""

import dataclasses
import inspect
import itertools
import json
import shutil
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import ALGOS, ROOT, load, settings_of

ROOM = ROOT / "diagnostics" / "conformance"
sys.path.append(str(ROOM))

import comparison
import family

FUNCTIONS = list(family.DETAILS)
USUAL = {name: next(family.members(name)) for name in FUNCTIONS}


def found(adapter, name):
    return comparison.search(name, comparison.answers(adapter, name))


def way(adapter, name):
    """What the function does otherwise than ppo.py, by detail; it must be in the family."""
    entry = found(adapter, name)
    assert entry["verdict"] != "none", comparison.describe(entry)
    return {detail: option for detail, option in entry["way"].items() if option != USUAL[name][detail]}


def member(name, **odd):
    """A member as an adapter's function, in numpy."""
    formula, way = getattr(family, name), USUAL[name] | odd
    signature = comparison.SIGNATURES[name]

    def function(**x):
        numbers = formula(x, way)
        parts = list(numbers.values()) if isinstance(numbers, dict) else [numbers]
        return parts if len(parts) > 1 else parts[0]

    function.__signature__ = signature
    return function


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_member_is_told_from_every_other(name):
    numbers = np.array([np.concatenate([x.ravel() for x in parts.values()]) for _, parts in family.family(name)])
    nearest = min(
        (abs(x - others) / (1 + abs(others))).max(axis=1).min()
        for i, x in enumerate(numbers[1:], start=1)
        for others in [numbers[:i]]
    )
    assert len(numbers) > 20 and nearest > 100 * comparison.TOLERANCE


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_option_is_found(name):
    """By its own numbers, with the rounding of float32."""
    options = set()
    for expected, numbers in family.family(name):
        rounded = {part: x.astype(np.float32).astype(float) for part, x in numbers.items()}
        assert comparison.search(name, rounded)["way"] == expected
        options |= set(expected.items())
        if options >= (every := {(detail, x) for detail, xs in family.DETAILS[name].items() for x in xs}):
            return
    raise AssertionError(every - options)


# Our scripts ---------------------------------------------------------------------------------------------------------


def ours(algo, **settings):
    """The script as an adapter, through the contract, with environments that replay the frozen rollout."""
    from adapters._replay import replays

    script = load(algo)
    names = {field.name for field in dataclasses.fields(script.Args)}

    def arguments(**others):
        return script.Args(**{k: v for k, v in (settings_of(algo) | settings | others).items() if k in names})

    def state_of(args, *arrays):
        if algo == "reinforce":  # it plays episodes to their end
            arrays = (*arrays[:3], *[np.zeros(arrays[1].shape, bool) if x is None else x for x in arrays[3:5]])
            arrays[4][-1] = ~arrays[3][-1]
        makers, make_env = iter(replays(*arrays)), "make_env" if hasattr(script, "make_env") else "make_unsquashed_env"
        with patch.object(script, make_env, lambda _: next(makers)()):
            return script.State(args)

    def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
        T, N = rewards.shape
        raw = dict(reward_scale=False, reward_clip=False, obs_norm=False, obs_clip=False)
        args = arguments(num_steps=T, num_envs=N, gamma=gamma, gae_lambda=gae_lambda, **raw)
        state = state_of(args, values[..., None], rewards, next_values[..., None], terminations, truncations)
        state.value = lambda obs: obs[:, 0]
        batch = script.estimate_advantages(args, state, script.rollout(args, state)[0])
        columns = [batch["advantages"], batch.get("value_targets")]
        return [x if x is None else x.reshape(N, T).T for x in columns]

    def policy_loss(log_probs, old_log_probs, advantages, entropies, clip_eps, entropy_coef):
        ones = torch.ones_like(entropies)
        pi = dict(mean=ones, stddev=ones, log_prob=lambda _: log_probs, entropy=lambda: entropies.sum(-1))
        batch = dict(obs=ones, actions=ones, old_means=ones, old_stds=ones, multipliers=torch.ones(3))
        batch |= dict(old_log_probs=old_log_probs, advantages=advantages)
        args = arguments(clip_eps=clip_eps, entropy_coef=entropy_coef)
        return script.policy_loss(args, SimpleNamespace(**pi), batch)

    def value_loss(values, old_values, targets, clip_eps):
        batch = dict(old_values=old_values, value_targets=targets)
        return script.value_loss(arguments(value_clip_eps=clip_eps), values, batch)

    def scale_rewards(rewards, ends, gamma):
        T, N = rewards.shape
        args = arguments(num_steps=T, num_envs=N, gamma=gamma)
        state = state_of(args, np.zeros((T, N, 1)), rewards, None, ends, None)
        return script.rollout(args, state)[0]["rewards"].reshape(N, T).T

    def normalize(observations):
        args, stats = arguments(), script.RunningStats(np.zeros(observations.shape[2:]))
        turns = observations.swapaxes(0, 1)
        return np.array([[script.normalize_obs(args, stats, obs) for obs in turn] for turn in turns]).swapaxes(0, 1)

    functions = dict(advantages=advantages, policy_loss=policy_loss, scale_rewards=scale_rewards)
    functions |= dict(value_loss=value_loss) if hasattr(script, "value_loss") else {}
    functions |= dict(normalize=normalize) if hasattr(script, "normalize_obs") else {}
    return SimpleNamespace(TENSORS=True, **functions)


SURROGATES = dict(ppo="clipped", ppo_m="clipped", a2c="log-likelihood", reinforce="log-likelihood", vmpo="better half")


@pytest.mark.parametrize("algo", ALGOS)
def test_our_scripts_are_recognized_with_their_flags(algo):
    names = {field.name for field in dataclasses.fields(load(algo).Args)}

    def combinations(**flags):
        """Adapters with all combinations of the flags that the script has, and these."""
        flags = {name: options for name, options in flags.items() if name in names}
        for options in itertools.product(*flags.values()):
            chosen = dict(zip(flags, options))
            yield ours(algo, **chosen), chosen

    adapter = ours(algo)
    surrogate = SURROGATES.get(algo, "unclipped")
    expected = {} if surrogate == "clipped" else {"surrogate": surrogate}
    expected |= {"normalized over the minibatch": "no"} if algo in ("reinforce", "vmpo") else {}
    assert way(adapter, "policy_loss") == expected

    for adapter, flags in combinations(bootstrap_truncation=(True, False), baseline=("mean", "none")):
        if algo == "reinforce":
            expected = {"time limit": "terminal", "end of the batch": "terminal", "estimator": "no critic"}
            expected |= {"targets": "not given", "normalized over the batch": "centred"}
            if flags["baseline"] == "none":
                del expected["normalized over the batch"]
        else:
            expected = {} if flags["bootstrap_truncation"] else {"time limit": "terminal"}
        assert way(adapter, "advantages") == expected, flags

    for adapter, flags in combinations(value_clip=(True, False)):
        if hasattr(adapter, "value_loss"):
            assert way(adapter, "value_loss") == ({} if flags.get("value_clip") else {"clipping": "no"}), flags

    scaling = dict(reward_scale=(True, False), reward_scale_by=("returns", "rewards"), reward_clip=(True, False))
    for adapter, flags in combinations(**scaling):
        by = flags.get("reward_scale_by", "returns") if flags.get("reward_scale") else "nothing"
        expected = {} if by == "returns" else {"divided by": by}
        expected |= {} if flags.get("reward_clip") else {"clipped at": "nothing"}
        assert way(adapter, "scale_rewards") == expected, flags

    for adapter, flags in combinations(obs_norm=(True, False), obs_clip=(True, False)):
        if hasattr(adapter, "normalize"):
            expected = {} if flags["obs_norm"] else {"standardized": "no"}
            expected |= {} if flags["obs_clip"] else {"clipped at": "nothing"}
            assert way(adapter, "normalize") == expected, flags


# Mutants -------------------------------------------------------------------------------------------------------------


def mutant(name, change, **odd):
    """A member whose inputs or answer are changed."""
    function = member(name, **odd)
    wrapped = lambda **x: change(function, x)  # noqa: E731
    wrapped.__signature__ = comparison.SIGNATURES[name]
    return SimpleNamespace(**{name: wrapped})


def test_a_sign_is_a_factor():
    entry = found(mutant("policy_loss", lambda f, x: -f(**x), surrogate="unclipped"), "policy_loss")
    assert entry["verdict"] == "none" and entry["way"] == USUAL["policy_loss"] | dict(surrogate="unclipped")
    assert entry["factors"] == dict(loss=pytest.approx(-1))
    assert "everywhere by the factor -1" in " ".join(comparison.describe(entry))


def test_advantages_of_another_scale():
    entry = found(mutant("advantages", lambda f, x: [3 * f(**x)[0], f(**x)[1]]), "advantages")
    assert entry["verdict"] == "none" and entry["way"] == USUAL["advantages"]
    assert entry["factors"] == dict(advantages=pytest.approx(3)) and entry["off"].keys() == {"advantages"}


def test_next_values_off_by_one_at_time_limits():
    """V of the state after the next is taken at the time limits only, so those steps and the ones before are off."""

    def change(f, x):
        shifted = x["next_values"].copy()
        shifted[x["truncations"]] = np.roll(x["next_values"], -1, 0)[x["truncations"]]
        return f(**x | dict(next_values=shifted))

    entry = found(mutant("advantages", change, targets="one step"), "advantages")
    assert entry["verdict"] == "none" and entry["factors"] == {} and entry["error"] > 0.01
    assert entry["way"] == USUAL["advantages"] | {"targets": "one step", "time limit": entry["way"]["time limit"]}
    limits = [row for row in family.rows_of("advantages")["targets"] if "time limit" in row]
    assert len(limits) == 4 and sorted(entry["off"]["targets"]) == sorted(limits)
    assert {*limits} < {*entry["off"]["advantages"]} and "environment 0" not in str(entry["off"])


def test_next_values_off_by_one():
    change = lambda f, x: f(**x | dict(next_values=np.roll(x["next_values"], -1, 0)))  # noqa: E731
    entry = found(mutant("advantages", change), "advantages")
    assert entry["verdict"] == "none" and entry["factors"] == {}


def test_a_forgotten_square():
    change = lambda f, x: abs(x["values"] - x["targets"]).mean()  # noqa: E731
    entry = found(mutant("value_loss", change), "value_loss")
    assert entry["verdict"] == "none" and entry["factors"] == {}
    assert entry["way"]["error"] == "smooth_l1" and "the loss" in entry["off"]["loss"]  # it has the same large slopes


def test_a_mean_over_the_wrong_axis():
    """Advantages are normalized for each environment on its own."""

    def change(f, x):
        A, targets = f(**x)
        return (A - A.mean(0)) / A.std(0, ddof=1), targets

    entry = found(mutant("advantages", change), "advantages")
    assert entry["verdict"] == "none" and entry["way"]["normalized over the batch"] in ("yes", "biased")
    assert entry["off"].keys() == {"advantages"}


def test_a_gradient_that_is_stopped():
    """The loss has the right value, but autograd sees no ratio."""

    def policy_loss(log_probs, old_log_probs, advantages, entropies, clip_eps, entropy_coef):
        ratios = (log_probs - old_log_probs).exp().detach()
        A = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        surrogate = torch.min(ratios * A, ratios.clamp(1 - clip_eps, 1 + clip_eps) * A).mean()
        return -surrogate - entropy_coef * entropies.sum(1).mean()

    adapter = SimpleNamespace(TENSORS=True, policy_loss=policy_loss)
    assert found(adapter, "policy_loss")["verdict"] == "none"
    numbers, (_, usual) = comparison.answers(adapter, "policy_loss"), family.family("policy_loss")[0]
    errors = comparison.errors_of(numbers, usual)["loss"]
    assert errors[0] < 1e-9 and 0 < np.count_nonzero(errors > 1e-9) <= 16
    source = inspect.getsource(policy_loss).replace(".detach()", "")
    scope = dict(torch=torch)
    exec(textwrap.dedent(source), scope)
    assert way(SimpleNamespace(TENSORS=True, policy_loss=scope["policy_loss"]), "policy_loss") == {}


# Libraries -----------------------------------------------------------------------------------------------------------

BASELINES = {"first std": "1e-4", "eps": "1e-8 in the root"}
JOINT = {"gradient norm": "joint"}
KNOWN = {
    "stable-baselines3": dict(
        advantages={},
        policy_loss={},
        value_loss={"clipping": "only clipped"},
        scale_rewards=BASELINES | {"statistics over": "step by step"},
        normalize=BASELINES | {"statistics over": "step by step"},
        update=JOINT | {"value weight": "1/2", "value clipping": "no"},
    ),
    "cleanrl": dict(
        advantages={"time limit": "terminal"},
        policy_loss={},
        value_loss={"error": "halved"},
        scale_rewards=BASELINES | {"statistics over": "each its own", "restart": "early"},
        normalize=BASELINES | {"statistics over": "each its own"},
        update=JOINT | {"value weight": "1/4"},
    ),
}


@pytest.mark.parametrize("library", KNOWN)
def test_libraries(library):
    adapter = comparison.load_adapter(library)
    assert {name: way(adapter, name) for name in FUNCTIONS} == KNOWN[library]


def test_the_page_has_what_is_measured():
    """Of the libraries that are installed here, the committed numbers are those of the test above. Of all, three
    bootstrap time limits, and none does what the family does not know."""
    entries = json.loads((ROOT / "figures/conformance/conformance.json").read_text())
    for library, expected in KNOWN.items():
        ways = {name: found["way"] for name, found in entries[library]["functions"].items()}
        assert ways == {name: USUAL[name] | odd for name, odd in expected.items()}
    assert all(comparison.understood(entry) for entry in entries.values())
    ways = {library: entry["functions"]["advantages"]["way"]["time limit"] for library, entry in entries.items()}
    bootstrapped = {library for library, way in ways.items() if way == "bootstrapped"}
    assert len(ways) == 6 and bootstrapped == {"stable-baselines3", "tianshou", "torchrl"}
    assert "none" not in [x["verdict"] for entry in entries.values() for x in entry["functions"].values()]


# The program ---------------------------------------------------------------------------------------------------------


FILLED = """
import numpy as np
TITLE = "mine"

def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    A, ends = rewards + gamma * next_values * ~terminations - values, terminations | truncations
    for t in range(len(A) - 2, -1, -1):
        A[t] += gamma * gae_lambda * ~ends[t] * A[t + 1]
    return A, A + values

def value_loss(values, old_values, targets, clip_eps):
    return ((values - targets) ** 2).mean()

def scale_rewards(rewards, ends, gamma):
    return 2 * rewards
"""


def test_a_run(runs, capsys):
    (runs / "my_ppo.py").write_text(FILLED)
    comparison.main(["my_ppo.py", "--out", "here"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine" and lines[1].split() == ["advantages", "as", "ppo.py"]
    assert "value_loss     the value loss is not clipped (our --no-value-clip)" in lines[2]
    assert "scale_rewards  none of the" in lines[3]
    entry = json.loads((runs / "here/conformance.json").read_text())["my-ppo"]
    verdicts = {name: x["verdict"] for name, x in entry["functions"].items()}
    assert verdicts == dict(advantages="as ppo.py", value_loss="variant", scale_rewards="none")
    assert (runs / "here/conformance.png").read_bytes()[:4] == b"\x89PNG"


def test_numpy_and_the_folder_are_enough(runs):
    """A copy of the folder runs anywhere, and imports nothing else unless an adapter or the picture needs it."""
    shutil.copytree(ROOM, runs / "copy")
    (runs / "my_ppo.py").write_text(FILLED)
    code = f"""if True:
        import runpy, sys
        sys.modules |= dict.fromkeys({["torch", "matplotlib", "tyro", "gymnasium", "measuring"]})
        sys.argv = ["copy", "my_ppo.py"]
        runpy.run_path("copy", run_name="__main__")
    """
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stderr == "conformance: no picture, because matplotlib is not installed\n"
    assert result.returncode == 0
    assert [path.name for path in (runs / "results/conformance").iterdir()] == ["conformance.json"]


def refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        comparison.main([*words, "--out", "nothing"])
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()


VALUE_LOSS = "def value_loss(values, old_values, targets, clip_eps): return"
BAD = {
    "def normalize(observations): return observations[0]": "normalize: observations has shape (3, 3), not (160, 3, 3)",
    "def normalize(observations): return observations > 0": "normalize: observations is of type bool, not float",
    "def normalize(observations): return observations + float('nan')": "normalize: observations: 1440 of 1440 numbers",
    "def normalize(observations): return 1 / 0": "normalize: ZeroDivisionError: division by zero (bad.py, line 1)",
    "def normalize(obs): return obs": "normalize: is called with (observations): missing a required argument: 'obs'",
    "def normalise(observations): return observations": "defines none of advantages, policy_loss, value_loss",
    "import nowhere": "bad.py: ModuleNotFoundError: No module named 'nowhere' (bad.py, line 1)",
    "def normalize(": "bad.py: SyntaxError: '(' was never closed",
    f"{VALUE_LOSS} values": "value_loss: the loss has shape (16,), not ()",
    f"import numpy\n{VALUE_LOSS} float(numpy.float32((values**2).mean()))": "value_loss: the loss is in single",
    f"TENSORS = True\n{VALUE_LOSS} 1.0": "value_loss: must return a tensor",
    "def advantages(rewards, **_): return rewards": "advantages: must return 2 arrays, advantages and targets",
    "def advantages(rewards, **_): return rewards, rewards[:3]": "advantages: targets has shape (3, 4), not (16, 4)",
    "def update(policy, **_): policy.mean.weight.data += float('inf')": "update: policy: 6 of 10 numbers are not",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_adapters(text, runs, capsys):
    (runs / "bad.py").write_text(text)
    [line] = refused(["bad.py"], capsys)
    assert line.startswith("conformance: bad.py: ") and BAD[text] in line
    assert [path.name for path in runs.iterdir() if path.name != "__pycache__"] == ["bad.py"]


def test_every_bad_function_has_a_line(runs, capsys):
    comparison.main(["--template"])
    (runs / "empty.py").write_text(capsys.readouterr().out)  # as printed, its functions return nothing
    lines = refused(["empty.py", "nothing.py", "no-such-library"], capsys)
    assert [line.split(": ")[2].split(":")[0] for line in lines[:-2]] == FUNCTIONS[:-1]  # update may do nothing
    assert all("no such adapter" in line for line in lines[-2:]) and "cleanrl" in lines[-1]
    assert [line for line in refused([], capsys) if "give one or more adapters" in line]
    (runs / "nothing").mkdir()
    (runs / "nothing/conformance.json").write_text("[1]")
    [line] = refused([str(ROOM / "adapters/cleanrl.py")], capsys)
    assert "conformance.json is not this program's" in line
