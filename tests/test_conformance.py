"""Which PPO is this? The family of formulas against itself, against our scripts, against deviations and libraries."""

import dataclasses
import itertools
import json
import shutil
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import ALGOS, ROOT, load, settings_of

ROOM, PAGE = ROOT / "figures" / "conformance", ROOT / "figures" / "conformance"
sys.path += [str(ROOM), str(PAGE)]

import comparison
import deviations
import family

FUNCTIONS, LISTS = list(family.DETAILS), ("planted", "fresh", "later", "last")  # of deviations
USUAL = {name: next(family.members(name)) for name in FUNCTIONS}


def found(adapter, name):
    return comparison.search(name, comparison.answers(adapter, name))


def way(adapter, name):
    """What the function does otherwise than ppo.py, by detail; it must be in the family."""
    entry = found(adapter, name)
    assert entry["verdict"] != "none", entry["says"]
    return {x: way for x, way in entry["way"].items() if way not in (USUAL[name][x], "not seen")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_member_is_told_from_every_other(name):
    """And those that are not are so alike that neither can be missed."""
    ways, numbers = family.family(name)
    numbers = np.concatenate(list(numbers.values()), axis=1)
    distances = [(abs(x - numbers) / (1 + abs(numbers))).max(axis=1) for x in numbers]
    assert len(numbers) >= 18 and min(np.sort(x)[1] for x in distances) > 100 * comparison.TOLERANCE
    for way in itertools.islice(family.members(name), 0, None, 7):
        x = np.concatenate(list(family.numbers_of(name, way).values()))
        nearest = np.argmin(abs(x - numbers).max(axis=1))
        assert (abs(x - numbers[nearest]) / (1 + abs(x))).max() < comparison.TOLERANCE / 2
        assert all(ways[nearest][detail] in (option, "not seen") for detail, option in way.items())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_option_is_found(name):
    """By its own numbers, with the rounding of float32."""
    options = set()
    for i, expected in enumerate(family.family(name)[0]):
        rounded = {part: x[i].astype(np.float32).astype(float) for part, x in family.family(name)[1].items()}
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
        return [batch[name].reshape(N, T).T for name in ("advantages", "value_targets")]

    def policy_loss(log_probs, old_log_probs, advantages, entropies, clip_eps, entropy_coef):
        ones = torch.ones_like(entropies)
        pi = dict(log_prob=lambda _: log_probs, entropy=lambda: entropies.sum(-1))
        batch = dict(obs=ones, actions=ones, old_log_probs=old_log_probs, advantages=advantages)
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


SURROGATES = dict(ppo="clipped", ppo_m="clipped", a2c="log-likelihood")  # and else unclipped


@pytest.mark.parametrize("algo", [algo for algo in ALGOS if algo not in ("reinforce", "vmpo")])  # which are no PPO
def test_our_scripts_are_recognized_with_their_flags(algo):
    names = {field.name for field in dataclasses.fields(load(algo).Args)}

    def combinations(**flags):
        """Adapters with all combinations of the flags that the script has, and these."""
        flags = {name: options for name, options in flags.items() if name in names}
        for options in itertools.product(*flags.values()):
            chosen = dict(zip(flags, options))
            yield ours(algo, **chosen), chosen

    surrogate = SURROGATES.get(algo, "unclipped")
    assert way(ours(algo), "policy_loss") == ({} if surrogate == "clipped" else {"surrogate": surrogate})

    for adapter, flags in combinations(bootstrap_truncation=(True, False)):
        expected = {} if flags["bootstrap_truncation"] else {"time limit": "terminal"}
        assert way(adapter, "advantages") == expected, flags

    for adapter, flags in combinations(value_clip=(True, False)):
        if hasattr(adapter, "value_loss"):
            assert way(adapter, "value_loss") == ({} if flags.get("value_clip") else {"clipping": "unclipped"}), flags

    scaling = dict(reward_scale=(True, False), reward_scale_by=("returns", "rewards"), reward_clip=(True, False))
    for adapter, flags in combinations(**scaling):
        by = flags.get("reward_scale_by", "returns") if flags.get("reward_scale") else "nothing"
        expected = {} if by == "returns" else {"divided by": by}
        expected |= {} if flags.get("reward_clip") else {"clipped at": "unclipped"}
        assert way(adapter, "scale_rewards") == expected, flags

    for adapter, flags in combinations(obs_norm=(True, False), obs_clip=(True, False)):
        if hasattr(adapter, "normalize"):
            expected = {} if flags["obs_norm"] else {"standardized": "no"}
            expected |= {} if flags["obs_clip"] else {"clipped at": "unclipped"}
            assert way(adapter, "normalize") == expected, flags


# Deviations ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LISTS)
def test_the_published_answers_are_those_that_are_given(name):
    listed, published = (json.loads((PAGE / f"{x}{name}.json").read_text()) for x in ("", "deviations-"))
    table = published["table"]
    assert [(x["function"], x["what"]) for x in listed] == [(x["function"], x["what"]) for x in table]
    assert published["counts"] == {x: sum(row["verdict"] == x for row in table) for x in published["counts"]}
    for deviation, row in zip(listed, table):
        asked = deviations.ask(deviation)
        assert (asked["verdict"], asked["said"][:2]) == (row["verdict"], row["said"][:2]), asked


def test_a_false_answer_is_judged_wrong():
    """The judge would see it if the program said what is not so."""
    entry = comparison.search("value_loss", deviations.honest("value_loss"))
    judge = lambda **said: deviations.judge(entry | said, entry["way"], but, dict(errors={"a", "b"}), 99)
    none, but = dict(verdict="none", way=dict(clipping="not clear", error="halved"), off={}, factored=False), {}
    assert judge() == "wrong" and judge(**none) == "none" and judge(**none | dict(factored=True)) == "exact"
    assert judge(**none | dict(off=dict(errors=["a"]))) == "pointed"
    assert judge(**none | dict(off=dict(errors=["c"]))) == "wrong"
    assert judge(**none | dict(way=dict(clipping="signed", error="halved"), off=dict(errors=["a", "b"]))) == "wrong"
    but = dict(error="another")
    assert judge(**none | dict(off=dict(errors=["a", "b"]))) == "pointed"
    assert judge(**none | dict(off=dict(errors=["a"]))) == "wrong"


TOLD = """
policy_loss => return -surrogate => return surrogate => everywhere -1 times the member's with normalized over the
policy_loss => ratios.clamp( => ratios.detach().clamp( => not clear: surrogate
policy_loss => log_ratios.exp() => log_ratios.exp().clamp(max=40) => but for the numbers below, as in ppo.py: surr
value_loss => return 0.5 * => return torch.rand(()) * => answers differently when it is called again
update => lr=learning_rate => lr=0.03 => policy after minibatch 1: everywhere 0.3 times
update => (minibatches) => (minibatches[:-1]) => policy after minibatch 1: 20 of 20 numbers fit no such member, 20 of
"""


@pytest.mark.parametrize("line", TOLD.strip().splitlines())
def test_what_is_said_of_an_edit(line):
    *edit, expected = line.split(" => ")
    said = deviations.ask(dict(zip(("function", "old", "new"), edit), what=""))["said"]
    assert [x for x in said if expected in x], said


@pytest.mark.parametrize("name", family.TERMS)
def test_a_loss_of_arrays_is_differentiated_as_one_of_tensors(name):
    """And no kink of a member is so near to a frozen number that its finite differences are off."""
    for way in itertools.islice(family.members(name), 0, None, 2):
        formula = lambda way=way, **x: getattr(family, name)(x, way)
        assert found(SimpleNamespace(**{name: formula}), name)["way"] == way


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
        update=JOINT | {"value weight": "1/2", "value clipping": "unclipped"},
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
    """Of the libraries that are installed here, the committed answers are those of the test above. Of all, three
    bootstrap time limits, and none does what the family does not know."""
    entries, page = json.loads((PAGE / "conformance.json").read_text()), (PAGE / "README.md").read_text()
    for library, expected in KNOWN.items():
        for name, entry in entries[library]["functions"].items():
            odd = {x: way for x, way in entry["way"].items() if way not in (USUAL[name][x], "not seen")}
            assert odd == expected[name]
    ways = {library: entry["functions"]["advantages"]["way"]["time limit"] for library, entry in entries.items()}
    bootstrapped = {library for library, way in ways.items() if way == "bootstrapped"}
    assert len(ways) == 6 and bootstrapped == {"stable-baselines3", "tianshou", "torchrl"}
    assert "none" not in [x["verdict"] for entry in entries.values() for x in entry["functions"].values()]
    assert comparison.table_of(entries) in page
    for name in LISTS:
        counts = json.loads((PAGE / f"deviations-{name}.json").read_text())["counts"]
        assert f"| {' | '.join(map(str, counts.values()))} |" in page


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
    entry = json.loads((runs / "here/conformance.json").read_text())["my_ppo.py"]
    verdicts = {name: x["verdict"] for name, x in entry["functions"].items()}
    assert verdicts == dict(advantages="as ppo.py", value_loss="variant", scale_rewards="none")
    assert "| value_loss | clipping | **unclipped** |" in (runs / "here/conformance.md").read_text()


def test_numpy_and_the_folder_are_enough(runs):
    """A copy of the folder runs anywhere, and imports nothing else unless an adapter needs it."""
    shutil.copytree(ROOM, runs / "copy")
    (runs / "my_ppo.py").write_text(FILLED)
    code = f"""if True:
        import runpy, sys
        sys.modules |= dict.fromkeys({["torch", "matplotlib", "tyro", "gymnasium", "lab"]})
        sys.argv = ["copy", "my_ppo.py"]
        runpy.run_path("copy", run_name="__main__")
    """
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stderr == "" and result.returncode == 0
    assert sorted(x.name for x in (runs / "results/conformance").iterdir()) == ["conformance.json", "conformance.md"]


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
    "def normalize(obs): return obs": "TypeError: normalize() got an unexpected keyword argument 'observations'",
    f"import torch\n{VALUE_LOSS} torch.square(values).mean()": "value_loss (with arrays, since TENSORS is False): Type",
    "def normalise(observations): return observations": "defines none of advantages, policy_loss, value_loss",
    "import nowhere": "bad.py: ModuleNotFoundError: No module named 'nowhere' (bad.py, line 1)",
    "def normalize(": "bad.py: SyntaxError: '(' was never closed",
    f"{VALUE_LOSS} values": "the loss has shape (96,), not ()",
    f"import numpy\n{VALUE_LOSS} float(numpy.float32((values**2).mean()))": "the loss is in single",
    f"TENSORS = True\n{VALUE_LOSS} 1.0": "value_loss: must return a tensor",
    "def advantages(rewards, **_): return rewards": "advantages: must return 2 arrays, advantages and targets",
    "def advantages(rewards, **_): return rewards, rewards[:3]": "advantages: targets has shape (3, 4), not (16, 4)",
    f"import random\n{VALUE_LOSS} (values**2).mean() + random.random()": comparison.AGAIN,
    "def update(**_): return": "update: it changed no parameter",
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
    assert [line.split(": ")[2].split()[0] for line in lines[:-2]] == FUNCTIONS
    assert all("no such adapter" in line for line in lines[-2:]) and "cleanrl" in lines[-1]
    assert [line for line in refused([], capsys) if "give one or more adapters" in line]
    (runs / "nothing").mkdir()
    (runs / "nothing/conformance.json").write_text("[1]")
    [line] = refused([str(ROOM / "adapters/cleanrl.py")], capsys)
    assert "conformance.json is not this program's" in line


def test_a_bad_function_hides_no_good_one_and_no_adapter_another(runs, capsys):
    for folder in ("one", "other"):
        (runs / folder).mkdir()
        (runs / folder / "my_ppo.py").write_text(FILLED.replace("2 * rewards", "1 / 0").replace("mine", folder))
    with pytest.raises(SystemExit):
        comparison.main(["one/my_ppo.py", "./other/my_ppo.py", "--out", "here"])
    captured = capsys.readouterr()
    assert captured.out.count("as ppo.py") == 2 and captured.err.count("ZeroDivisionError") == 2
    assert [*json.loads((runs / "here/conformance.json").read_text())] == ["one/my_ppo.py", "other/my_ppo.py"]
