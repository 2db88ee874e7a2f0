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
from conftest import ROOT, load, settings_of

ROOM = ROOT / "figures" / "conformance"
sys.path.append(str(ROOM))

import comparison
import deviations
import family

FUNCTIONS = list(family.DETAILS)
USUAL = {name: next(family.members(name)) for name in FUNCTIONS}
ENTRIES = json.loads((ROOM / "conformance.json").read_text())


def way(adapter, name):
    """What the function does otherwise than ppo.py, by detail; it must be in the family."""
    entry = comparison.search(name, comparison.answers(adapter, name))
    assert entry["verdict"] != "none", entry["says"]
    return {x: way for x, way in entry["way"].items() if way not in (USUAL[name][x], "not seen")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_members_are_told_from_one_another(name):
    """No two have nearly the same numbers, and each option is found by its own, with the rounding of float32."""
    ways, numbers = family.family(name)
    joined = np.concatenate([*numbers.values()], axis=1)
    distances = [(abs(x - joined) / (1 + abs(joined))).max(axis=1) for x in joined]
    assert len(ways) >= 18 and min(np.sort(x)[1] for x in distances) > 100 * comparison.TOLERANCE
    missing = {(detail, x) for detail, options in family.DETAILS[name].items() for x in options}
    for i, expected in enumerate(ways):
        if missing & set(expected.items()):
            rounded = {part: x[i].astype(np.float32).astype(float) for part, x in numbers.items()}
            assert comparison.search(name, rounded)["way"] == expected
            missing -= set(expected.items())
    assert not missing


def ours(algo, **settings):
    """The script as an adapter, through the contract, with environments that replay the frozen rollout."""
    from adapters._replay import replays

    script = load(algo)

    def arguments(**others):
        names = {field.name for field in dataclasses.fields(script.Args)}
        return script.Args(**{k: v for k, v in (settings_of(algo) | settings | others).items() if k in names})

    def rolled_out(args, *arrays):
        makers = iter(replays(*arrays))
        with patch.object(script, "make_env", lambda _: next(makers)()):
            state = script.State(args)
        return state, script.rollout(args, state)[0]

    def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
        T, N = rewards.shape
        raw = dict(reward_scale=False, reward_clip=False, obs_norm=False, obs_clip=False)
        args = arguments(num_steps=T, num_envs=N, gamma=gamma, gae_lambda=gae_lambda, **raw)
        columns = values[..., None], rewards, next_values[..., None], terminations, truncations
        state, steps = rolled_out(args, *columns)
        state.value = lambda obs: obs[:, 0]
        batch = script.estimate_advantages(args, state, steps)
        return [batch[name].reshape(N, T).T for name in ("advantages", "value_targets")]

    def policy_loss(log_probs, old_log_probs, advantages, entropies, clip_eps, entropy_coef):
        pi = SimpleNamespace(log_prob=lambda _: log_probs, entropy=lambda: entropies.sum(-1))
        batch = dict(obs=entropies, actions=entropies, old_log_probs=old_log_probs, advantages=advantages)
        return script.policy_loss(arguments(clip_eps=clip_eps, entropy_coef=entropy_coef), pi, batch)

    def value_loss(values, old_values, targets, clip_eps):
        batch = dict(old_values=old_values, value_targets=targets)
        return script.value_loss(arguments(value_clip_eps=clip_eps), values, batch)

    def scale_rewards(rewards, ends, gamma):
        T, N = rewards.shape
        args = arguments(num_steps=T, num_envs=N, gamma=gamma)
        return rolled_out(args, np.zeros((T, N, 1)), rewards, None, ends)[1]["rewards"].reshape(N, T).T

    def normalize(observations):
        args, stats = arguments(), script.RunningStats(np.zeros(observations.shape[2:]))
        turns = observations.swapaxes(0, 1)
        return np.array([[script.normalize_obs(args, stats, obs) for obs in turn] for turn in turns]).swapaxes(0, 1)

    functions = dict(advantages=advantages, policy_loss=policy_loss, scale_rewards=scale_rewards)
    return SimpleNamespace(TENSORS=True, **functions, value_loss=value_loss, normalize=normalize)


FLAGS = {  # what each makes of a function
    "bootstrap_truncation": ("advantages", {"time limit": "terminal"}),
    "value_clip": ("value_loss", {"clipping": "unclipped"}),
    "reward_scale": ("scale_rewards", {"divided by": "nothing"}),
    "reward_clip": ("scale_rewards", {"clipped at": "unclipped"}),
    "obs_norm": ("normalize", {"standardized": "no"}),
    "obs_clip": ("normalize", {"clipped at": "unclipped"}),
}


def test_ppo_is_recognized_with_its_flags():
    """And the others where they differ: in the surrogate."""
    for name in FUNCTIONS[:-1]:
        assert way(ours("ppo"), name) == {}
    for flag, (name, expected) in FLAGS.items():
        assert way(ours("ppo", **{flag: False}), name) == expected, flag
    assert way(ours("ppo_noclip", reward_scale_by="rewards"), "scale_rewards") == {"divided by": "rewards"}
    for algo, surrogate in dict(ppo_noclip="unclipped", trpo_plus="unclipped", a2c="log-likelihood").items():
        assert way(ours(algo), "policy_loss") == {"surrogate": surrogate}
        assert way(ours(algo), "advantages") == {}


@pytest.mark.parametrize("right", deviations.WRITTEN["right"][2::4], ids=lambda x: x["what"])
def test_another_style_is_no_other_ppo(right):
    row = deviations.ask(right)
    assert row["verdict"] == "right", row["says"]


def test_an_answer_is_judged_by_what_the_edit_changed():
    usual, edit = dict(clipping="larger", error="halved"), dict(free=dict(clip_eps=0.2))
    none = dict(verdict="none", way=usual, off={}, free={})
    judge = lambda entry, **more: deviations.judge(entry, edit | more, usual, dict(errors={"a", "b"}), 9)
    assert judge(dict(verdict="variant", way=usual)) == "wrong"
    assert judge(none | dict(free=dict(clip_eps=0.2))) == "exact"
    assert judge(none | dict(free=dict(clip_eps=0.3))) == judge(none | dict(free=dict(gamma=0.2))) == "wrong"
    assert judge(none | dict(off=dict(errors=["a"]))) == "pointed"
    assert judge(none | dict(off=dict(errors=["a", "c"]))) == "misled"
    assert judge(none) == "exact" and judge(none | dict(way=usual | dict(error="squared"))) == "misled"


TOLD = """
policy_loss => return -surrogate => return surrogate => surrogate: everywhere -1 times the nearest member's
policy_loss => 1 + clip_eps => 1 + 1.4 * clip_eps =>     its slope by log_probs[39] (ratio 1.32
policy_loss => 1 - clip_eps, 1 + clip_eps => 0.85, 1.15 => if clip_eps is 0.15, not 0.3 as asked: as ppo.py
scale_rewards => gamma * R => 0.9 * R => if gamma is 0.9, not 0.97 as asked
normalize => stats.var + 1e-8 => stats.var + 1e-3 => if eps is 0.001: the
update => + 0.5 * => + 3 * => if value weight is 3: both
update => (minibatches) => (minibatches[:-1]) => numbers after later minibatches
"""


@pytest.mark.parametrize("line", TOLD.strip().splitlines())
def test_what_is_said_of_an_edit(line):
    *edit, expected = line.split(" => ")
    says = deviations.ask(dict(zip(("function", "old", "new"), edit), what=""))["says"]
    assert [x for x in says if expected in x], says


@pytest.mark.parametrize("name", family.TERMS)
def test_a_loss_of_arrays_is_differentiated_as_one_of_tensors(name):
    """And no kink of a member is so near to a frozen number that its finite differences are off."""
    for expected in itertools.islice(family.members(name), 1, None, 7):
        formula = lambda expected=expected, **x: getattr(family, name)(x, expected)
        odd = {detail: x for detail, x in expected.items() if x != USUAL[name][detail]}
        assert way(SimpleNamespace(**{name: formula}), name) == odd


@pytest.mark.parametrize("library", ["stable-baselines3", "cleanrl"])
def test_libraries_that_are_installed_are_what_the_page_says(library):
    adapter = comparison.load_adapter(library)
    for name, entry in ENTRIES[library]["functions"].items():
        assert way(adapter, name) == {x: y for x, y in entry["way"].items() if y not in (USUAL[name][x], "not seen")}
    assert way(adapter, "update")["gradient norm"] == "joint"  # as their sources say


def test_the_page_has_what_was_measured():
    assert len(ENTRIES) == 6 and comparison.table_of(ENTRIES) in (ROOM / "README.md").read_text()


FILLED = """
TITLE = "mine"

def value_loss(values, old_values, targets, clip_eps):
    return ((values - targets) ** 2).mean()

def scale_rewards(rewards, ends, gamma):
    return 2 * rewards

def normalize(observations):
    return 1 / 0
"""


def test_a_run(runs):
    """A copy of the folder runs anywhere, imports only numpy, and a function that fails hides none of the others."""
    shutil.copytree(ROOM, runs / "copy")
    (runs / "my_ppo.py").write_text(FILLED)
    code = f"""if True:
        import runpy, sys
        sys.modules |= dict.fromkeys({["torch", "matplotlib", "tyro", "gymnasium", "lab"]})
        sys.argv = ["copy", "my_ppo.py"]
        runpy.run_path("copy", run_name="__main__")
    """
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stderr.endswith("normalize: ZeroDivisionError: division by zero (my_ppo.py, line 11)\n")
    lines = result.stdout.splitlines()
    assert lines[0] == "mine" and result.returncode == 2
    assert "value_loss     the value loss is not clipped (our --no-value-clip)" in lines[1]
    assert "scale_rewards  none of the" in lines[2] and "everywhere 2 times the nearest member's" in lines[4]
    entry = json.loads((runs / "results/conformance/conformance.json").read_text())["my_ppo.py"]
    assert [x["verdict"] for x in entry["functions"].values()] == ["variant", "none"]
    table = (runs / "results/conformance/conformance.md").read_text()
    assert "| value_loss | clipping | **unclipped** |" in table and "scale_rewards" not in table


def refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        comparison.main([*words, "--out", "nothing"])
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()


VALUE_LOSS = "def value_loss(values, old_values, targets, clip_eps): return"
BAD = {
    "def normalize(observations): return observations[0]": "normalize: observations has shape (3, 3), not (160, 3, 3)",
    f"import torch\n{VALUE_LOSS} torch.square(values).mean()": "value_loss (with arrays, since TENSORS is False): Type",
    "import nowhere": "bad.py: ModuleNotFoundError: No module named 'nowhere' (bad.py, line 1)",
    f"import numpy\n{VALUE_LOSS} float(numpy.float32((values**2).mean()))": "(jax_enable_x64 in JAX",
    f"import itertools\nn = itertools.count()\n{VALUE_LOSS} (values**2).mean() + 0.5 ** next(n)": comparison.AGAIN,
    f"TENSORS = True\n{VALUE_LOSS} 1.0": "value_loss: must return a tensor",
    "def advantages(rewards, **_): return rewards": "advantages: must return 2 arrays, advantages and targets",
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
