"""The diagnostics, on problems whose gradient, value and reward are known."""

import ast
import contextlib
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from unittest.mock import patch

import imageio
import measuring.intervals
import measuring.kept
import measuring.runs
import measuring.sampling
import numpy as np
import pytest
import torch
from conftest import ROOT, TINY, checkpoints, flags_of, flat, load, output, progress
from environments import Bandit, Chain
from torch.func import grad, jacrev

pytestmark = [pytest.mark.usefixtures("figures"), pytest.mark.xdist_group("diagnostics")]  # one worker, so one pool

PROBLEMS = {"bandit": Bandit, "chain": Chain}
# Calls small enough for a test, of all that each diagnostic measures.
CALLS = {
    "gradient": "--pairs 32 200 --repeats 4 --true-pairs 1200 --baselines --value-pairs 500",
    "steps": "--repeats 3",
    "value": "--heldout-pairs 700",
    "landscape": "--grid 2 --step-pairs 64 200 --reward-pairs 100",
    "trust_region": "--heldout-pairs 700",
    "evaluate": "--episodes 11",
}


def sourced(diagnostic, folder, iteration=0):
    """The diagnostic as a module, a checkpoint as it names one, and the script, arguments and state behind it."""
    source = measuring.runs.Source(ROOT / "algos" / "ppo.py", folder, iteration)
    return load(diagnostic), source, *measuring.sampling.checkpoint_state(source)


def with_values(run, copy, values):
    """A copy of a run on a known problem whose untrained value network says these values; its path, its checkpoint."""
    shutil.copytree(run, copy)
    path = copy / "checkpoints" / "iter_000000.pt"
    checkpoint = torch.load(path, weights_only=True)
    value = checkpoint["value"]
    for name in value:
        value[name].zero_()
    value["0.weight"].fill_diagonal_(1)
    value["2.weight"][0, : len(values)] = torch.tensor(values) / np.tanh(1)
    torch.save(checkpoint, path)
    return path, checkpoint


def older(run, copy, **args):
    """A copy of a run as older scripts would have left it: with more arguments, and with less in its checkpoints."""
    shutil.copytree(run, copy)
    args = dict(reward_scale_by="returns", overwrite=False) | args
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | dict(args=config["args"] | args)))
    for path in checkpoints(copy):
        checkpoint = torch.load(path, weights_only=True)
        del checkpoint["workers"], checkpoint["obs_stats"]["std"], checkpoint["reward_stats"]["std"]
        torch.save(checkpoint | dict(args=checkpoint["args"] | args), path)
    return copy


def cells(out, name):
    return measuring.kept.read_cells(out / f"{name}.jsonl")


def expected_reward(env, state):
    """Parameters [P] -> expected reward [places] at each place of a known problem, differentiable."""

    def rewards(parameters):
        pi = output(state.policy, parameters, torch.eye(len(env.rewards)))
        distances = (pi.mean - torch.tensor(env.TARGET)) ** 2 + pi.variance
        return torch.tensor(env.rewards) - distances.sum(1)

    return rewards


def pairs_by_quadrature(env, state):
    """All that a pair of a known problem can be, on a grid with weights [n]: places, rewards [n], grad ln pi [n, P]."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    noise = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    weights = np.outer(weights, weights).ravel() / weights.sum() ** 2
    parameters = flat(state.policy)
    places, rewards, scores = [], [], []
    for place, bonus in enumerate(env.rewards):
        obs = torch.eye(len(env.rewards))[place : place + 1]
        pi = output(state.policy, parameters, obs)
        actions = pi.mean + pi.stddev * torch.from_numpy(noise).float()
        score = jacrev(lambda x, o=obs, a=actions: output(state.policy, x, o).log_prob(a))(parameters)
        rewards.append(bonus - ((actions.double().numpy() - env.TARGET) ** 2).sum(1))
        scores.append(score.double().numpy())
        places += [place] * len(noise)
    weights = np.tile(weights, len(env.rewards)) / len(env.rewards)
    return np.array(places), np.concatenate(rewards), np.concatenate(scores), weights


def estimates(module, source, K, repeats):
    """Gradient estimates [repeats, P] from K pairs each."""
    num_steps, found = 64, []
    for repeat in range(repeats):
        sizes = enumerate(measuring.sampling.groups(K, num_steps))
        sums = [module.segment_sums(source, (9, repeat, i), *size, [{}] * size[0], None) for i, size in sizes]
        _, total = module.make_estimates((segment for group in sums for segment in group), [])
        found.append(module.gradient(total)[0])
    return np.array(found)


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradient_converges_to_the_exact_one(known, name):
    module, source, _, _, state = sourced("gradient", known / name)
    exact = grad(lambda x: expected_reward(PROBLEMS[name], state)(x).mean())(flat(state.policy))
    exact = exact.double().numpy() / exact.norm().item()
    few, many = (estimates(module, source, K, 60) for K in (256, 256 * 16))
    squares = [((x / np.linalg.norm(x, axis=1, keepdims=True) - exact) ** 2).sum(1).mean() for x in (few, many)]
    assert squares[1] < 0.05
    assert 10 < squares[0] / squares[1] < 24  # 16: the error falls with the square root of the number of pairs


def test_normalized_gradient_has_the_exact_length(known):
    module, source, _, _, state = sourced("gradient", known / "bandit")
    places, rewards, scores, weights = pairs_by_quadrature(Bandit, state)
    values = state.value(torch.eye(2)).detach().double().numpy()
    A = rewards - values[places]
    exact = (weights * (A - weights @ A)) @ scores / np.sqrt(weights @ (A - weights @ A) ** 2)
    found = estimates(module, source, 64 * 64, 25)
    error = found.std(0, ddof=1) / 5
    assert (np.abs(found.mean(0) - exact) < 4.5 * error + 1e-6).all()


def test_cosines_match_those_of_exact_draws_with_each_baseline(known, tmp_path):
    with_values(known / "bandit", tmp_path / "run", [40.0, 10.0])
    module, source, _, _, state = sourced("gradient", tmp_path / "run")
    K, repeats = 128, 100
    flags = f"--checkpoints 0 --pairs {K} --repeats {repeats} --true-pairs 64 --baselines --value-pairs 40000 --jobs 1"
    module.main([str(tmp_path / "run"), "--out", str(tmp_path), *flags.split()])
    [cell] = cells(tmp_path, "gradient")
    assert cell["true_pairs_used"] == (repeats - 1) * K  # an estimate is no part of what it is compared with
    places, rewards, scores, weights = pairs_by_quadrature(Bandit, state)
    true = expected_reward(Bandit, state)(flat(state.policy)).detach().double().numpy()
    values = state.value(torch.eye(2)).detach().double().numpy()
    means = {}
    drawn_pairs = np.random.default_rng(0).multinomial(K, weights / weights.sum(), 400)  # [estimate, place and action]
    for baseline, V in zip(module.BASELINES, (values, true, np.zeros(2))):
        A = rewards - V[places]
        mean = drawn_pairs @ A / K  # advantages are normalized over the K pairs of each estimate
        std = np.sqrt((drawn_pairs @ A**2 / K - mean**2) * K / (K - 1))
        drawn = drawn_pairs * (A - mean[:, None]) / std[:, None] @ scores / K
        means[baseline] = measuring.intervals.pairwise(measuring.intervals.cosines(drawn, drawn), 2)["mean"]
        found = cell["variance"][baseline][cell["pairs"].index(K)]
        low, high = found["interval"]
        assert abs(found["mean"] - means[baseline]) < high - low, baseline
        assert high - low < 0.15
    network, true_value, none = means.values()
    assert true_value > none + 0.05 > network + 0.1  # or it shows nothing


def test_groups_are_whole_segments_and_a_shorter_one(known):
    module, source, *_ = sourced("gradient", known / "ppo", 2)
    short, long = (measuring.sampling.collect_group(source, (3,), 1, K) for K in (100, 256))
    for group, K in ((short, 100), (long, 256)):  # from a reset to a cut that is no terminal state
        assert len(group["obs"]) == K and group["ends"][-1] and not group["terminations"][-1]
        assert np.abs(group["actions"][0]).max() > 0 and group["episodes"][0][1] == np.flatnonzero(group["ends"])[0] + 1
    assert measuring.sampling.groups(1100, 256) == [(4, 256), (1, 76)]
    assert measuring.sampling.groups(10 * 256, 256) == [(8, 256), (2, 256)]


def test_step_of_a_rejected_line_search_has_cosine_0():
    steps = np.array([[3.0, 0.0], [0.0, 0.0], [2.0, 2.0]])
    assert measuring.intervals.cosines(steps, steps)[[0, 0, 1], [1, 2, 2]] == pytest.approx([0, 0.5**0.5, 0])


def test_pairwise_mean_leaves_out_an_item_with_itself():
    matrix = np.array([[1.0, 0.2, 0.6], [0.2, 1.0, 0.1], [0.6, 0.1, 1.0]])
    numbers = measuring.intervals.pairwise(matrix)
    assert numbers["mean"] == pytest.approx(0.3) and numbers["all"] == [0.2, 0.6, 0.1]
    assert numbers["interval"][1] <= 0.6 + 1e-12  # an item drawn twice is not compared with itself


def plain(x):
    """Tensors and arrays as lists, and what has a state dictionary as that, at any depth, so that == compares them."""
    if hasattr(x, "state_dict"):
        x = x.state_dict()
    if isinstance(x, dict):
        return {name: plain(y) for name, y in x.items()}
    return [plain(y) for y in x] if isinstance(x, list | tuple) else x.tolist() if hasattr(x, "tolist") else x


@pytest.mark.parametrize("algo", ("ppo", "reinforce"))
@pytest.mark.parametrize("name, measure", [("steps", "training_step"), ("landscape", "take_step")])
def test_updates_leave_the_checkpoint_as_it_was(known, name, measure, algo):
    module = load(name)
    source = measuring.runs.Source(ROOT / "algos" / f"{algo}.py", known / algo, 1)
    _, _, state = measuring.sampling.read_checkpoint(source)
    arguments = 1, 256
    if measure == "take_step":
        arguments = measuring.sampling.collect_group(source, (3,), 1, 256), [(0, 0), (1, 2)]

    def parts():
        found = {name: plain(part) for name, part in vars(state).items() if name not in ("workers", "rng")}
        return found | dict(rng=plain(state.rng.bit_generator.state))

    before = parts()
    first, again = (getattr(module, measure)(source, (3,), *arguments) for _ in range(2))
    assert plain(first) == plain(again) and parts() == before


def test_statistics_are_frozen_and_an_older_run_has_the_same(known, tmp_path):
    def moments(state):
        return plain([[x.count, x.mean, x.std] for x in (state.obs_stats, state.reward_stats)])

    found = []
    for run in (known / "few_ppo", older(known / "few_ppo", tmp_path / "old")):
        source = measuring.runs.Source(ROOT / "algos" / "ppo.py", run, 2)
        script, args, state = measuring.sampling.checkpoint_state(source)
        found.append(moments(state))
        measuring.sampling.roll_out(script, args, state)
        assert moments(state) == found[-1]  # a copy, and frozen
        script, args, state = measuring.sampling.training_state(source)
        assert moments(state) == found[-1]
        measuring.sampling.roll_out(script, args, state)
        assert moments(state)[0][0] >= found[-1][0][0] + 2 * 64
    assert found[0] == found[1] and min(found[0][0][2]) > 0 and found[0][1][2] > 0


def test_settings_of_an_older_run_are_those_of_a_new_one(known, tmp_path, capsys):
    folders = [known / "few_ppo", older(known / "few_ppo", tmp_path / "old")]
    folders.append(older(known / "few_ppo", tmp_path / "by_rewards", reward_scale_by="rewards"))
    settings = {x: measuring.runs.setting(measuring.runs.read_config(x)) for x in folders}
    assert settings[folders[0]] == settings[folders[1]] != settings[folders[2]]
    labels = measuring.runs.label_runs(settings, ())
    assert list(labels.values()) == ["ppo", "ppo", "ppo reward-scale-by=rewards"]
    assert "reward-scale-by" not in measuring.runs.spell(measuring.runs.read_config(folders[1]))
    measuring.runs.open_runs((folders[1],), None)
    with pytest.raises(SystemExit):  # which ppo.py no longer does
        measuring.runs.open_runs((folders[2],), None)
    assert "does not fit" in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(ValueError, match="it has no bound_action tanh"):
        measuring.runs.read_args(load("ppo_m"), dict(bound_action="tanh"))


def test_an_episode_that_never_ends_is_refused(runs, capsys, monkeypatch):
    load("ppo").main(flags_of("ppo", env_id="environments:Endless-v0", run_name="endless", **TINY))
    monkeypatch.setattr(measuring.sampling, "ENDLESS", 500)
    with pytest.raises(SystemExit) as ended:
        load("evaluate").main(["runs/endless", "--episodes", "2", "--jobs", "1"])
    assert ended.value.code == 2
    assert "an episode has not ended after 500 steps" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", PROBLEMS)
def test_landscape_matches_the_known_reward(known, name, tmp_path):
    module, source, script, _, state = sourced("landscape", known / name)
    flags = "--checkpoints 0 --grid 3 --step-pairs 64 --reward-pairs 1000 --jobs 1".split()
    module.main([str(known / name), "--out", str(tmp_path), *flags])
    rewards = expected_reward(PROBLEMS[name], state)
    start = flat(state.policy)
    experience, points = (
        measuring.sampling.collect_group(source, (0, 0, 1, 64, 0), 1, 64),
        [(0, 0), (1, 0), (3, 0), (0, 1), (0, 3)],
    )
    step, surrogates = module.take_step(source, (0, 0), experience, points)
    rng = measuring.sampling.generator(source, 0, 0, 0)
    random = module.random_direction(source, rng)
    assert random.norm().item() == pytest.approx(2)
    args, after = measuring.sampling.checkpoint_state(source)[1:]
    after.rng = rng  # which deals the minibatches
    batch = script.estimate_advantages(args, after, experience)
    script.update(args, after, batch)
    assert torch.equal(step, flat(after.policy) - start)
    places = [output(state.policy, start + a * step + b * random, batch["obs"]) for a, b in points]
    assert surrogates == pytest.approx([-script.policy_loss(args, pi, batch).item() for pi in places], abs=1e-6)
    found = cells(tmp_path, "landscape")
    assert [(cell["step"], cell["random"]) for cell in found] == points
    for cell, surrogate in zip(found, surrogates):
        at = start + cell["step"] * step + cell["random"] * random
        exact = rewards(at).mean() if name == "bandit" else rewards(at).sum()
        assert abs(cell["mean"] - exact.item()) < 4 * cell["std"] / cell["episodes"] ** 0.5
        low, high = cell["interval"]
        assert low < cell["mean"] < high < low + 6 * cell["std"] / cell["episodes"] ** 0.5
        assert cell["surrogate"] == surrogate
    assert surrogates[0] == pytest.approx(0, abs=1e-6) and np.ptp(surrogates) > 0.01  # advantages have mean 0


def test_exact_value_function_has_no_error(known, tmp_path):
    """A policy without noise makes returns certain; then the network that holds them has error 0, and twice it 1."""
    values = [sum(0.99**k * r for k, r in enumerate(Chain.rewards[place:])) for place in range(4)]
    for factor, expected in ((1.0, 0.0), (2.0, 1.0)):
        run = tmp_path / f"run{factor}"
        path, checkpoint = with_values(known / "chain", run, [factor * V for V in values])
        policy = checkpoint["policy"]
        policy["log_std"].fill_(-12)
        policy["mean.2.weight"].zero_()
        policy["mean.2.bias"].copy_(torch.tensor(Chain.TARGET))
        checkpoint["args"]["value_lr"] = 1e-12
        torch.save(checkpoint, path)
        load("value").main([str(run), "--checkpoints", "0", "--jobs", "1", "--heldout-pairs", "600"])
        [cell] = cells(run / "figures", "value")
        for where in ("train", "heldout"):
            assert cell[f"{where}_returns"]["mean"] == pytest.approx(expected, abs=1e-3)
            assert cell[f"{where}_returns"]["median"] == pytest.approx(expected, abs=1e-3)
        assert cell["train_gae"]["mean"] == pytest.approx(0, abs=1e-3) or factor == 2


def test_value_error_is_that_after_the_fit(known, tmp_path):
    module, source, script, args, _ = sourced("value", known / "chain")
    module.main([str(known / "chain"), "--checkpoints", "0", "--jobs", "1", "--out", str(tmp_path)])
    state = script.State(args)
    experience, _ = script.rollout(args, state)
    batch = script.estimate_advantages(args, state, experience)
    script.update(args, state, batch)
    errors = ((state.value(batch["obs"]) - batch["value_targets"]) / batch["value_targets"]).abs().detach()
    [cell] = cells(tmp_path, "value")
    exact = np.median(errors[~experience["terminations"]].double().numpy())
    assert cell["train_gae"]["median"] == pytest.approx(exact, rel=1e-5)


def test_relative_error_leaves_out_terminal_steps_and_targets_near_zero():
    values, targets = torch.tensor([1.0, 3.0, 5.0, 1.0, 9.0]), torch.tensor([2.0, 2.0, 4.0, 0.001, 1.0])
    ends = dict(terminations=np.array([0, 0, 0, 0, 1], bool), ends=np.array([0, 0, 1, 0, 1], bool))
    numbers = load("value").relative_errors(values, targets, ends)
    assert numbers["mean"] == pytest.approx((0.5 + 0.5 + 0.25) / 3)
    assert numbers["median"] == pytest.approx(0.5) and numbers["near_zero"] == pytest.approx(0.25)
    assert numbers["pairs"] == 5 and numbers["episodes"] == 2


def test_trust_region_repeats_what_training_logged(known, tmp_path):
    load("trust_region").main([str(known / "ppo"), "--jobs", "1", "--heldout-pairs", "700", "--out", str(tmp_path)])
    rows = progress(known / "ppo")
    found = cells(tmp_path, "trust_region")
    assert len(found) == len(rows) == 3
    for cell, row in zip(found, rows):
        assert {name: float(row[name]) for name in ("max_ratio", "mean_kl", "max_kl")}.items() <= cell["train"].items()
        assert cell["train"]["mean_reward"] == pytest.approx(float(row["episodic_return"]))
        assert cell["train"] != cell["heldout"] and cell["heldout"]["pairs"] == 700
        heldout = cell["heldout"]
        raw = {name: heldout[f"{name}_parts"] for name in ("max_ratio", "mean_kl", "max_kl")}
        for name, x in (raw | dict(mean_reward=heldout["returns"])).items():
            again = measuring.intervals.t_interval(np.array(x))
            assert again == pytest.approx(heldout[f"{name}_interval"], rel=1e-4), name
        assert cell["max_ratio_allowed"] == 1.2


def test_episodes_of_a_trust_region_are_complete(tmp_path):
    flags = flags_of("ppo", env_id="environments:Clock-v0", run_name="clock", runs_dir=str(tmp_path), **TINY)
    load("ppo").main(flags)
    for pairs, episodes in ((7, 8), (62, 12)):  # of 5 steps each; eight, by which the length is known, always
        load("trust_region").main([str(tmp_path / "clock"), "--jobs", "1", "--heldout-pairs", str(pairs)])
        heldout = cells(tmp_path / "clock" / "figures", "trust_region")[-1]["heldout"]
        assert (heldout["mean_reward"], heldout["episodes"], heldout["pairs"]) == (15.0, episodes, pairs)


def test_evaluation_and_video(known, tmp_path, capsys):
    module, _, script, _, state = sourced("evaluate", known / "chain", 6)
    flags = ["--out", str(tmp_path), "--jobs", "1", "--episodes", "50"]
    video = tmp_path / "chain.gif"
    module.main([str(known / "chain"), *flags, "--deterministic", "--video", str(video)])
    module.main([str(known / "chain"), *flags])
    certain, noisy = cells(tmp_path, "evaluate")
    pi = state.policy(torch.eye(4))
    exact = sum(Chain.rewards) - ((pi.mean.detach().double() - torch.tensor(Chain.TARGET)) ** 2).sum()
    assert certain["returns"]["all"] == pytest.approx([exact.item()] * 50, abs=1e-5)
    noisy_exact = exact - pi.variance.detach().double().sum()
    assert abs(noisy["returns"]["mean"] - noisy_exact.item()) < np.std(noisy["returns"]["all"]) * 4 / 50**0.5
    assert noisy["lengths"]["all"] == [4.0] * 50
    again = measuring.intervals.t_interval(np.array(noisy["returns"]["all"]))
    assert again == pytest.approx(noisy["returns"]["interval"])
    assert [frame[0, 0, 0] for frame in imageio.v3.imread(video)] == [60, 180]  # 15 of 30 frames a second


OWN_CLASSES = """
class Policy(Policy):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("action_scale", torch.full((3,), 7.0))

class Counted(gym.ActionWrapper):
    calls = 0

    def action(self, action):
        Counted.calls += 1
        return action

make_bare_env = make_env

def make_env(args):
    return Counted(make_bare_env(args))
"""


def test_a_policy_with_a_buffer_is_evaluated_as_it_is_and_filmed_behind_its_wrapper(tmp_path):
    mine = tmp_path / "my_ppo.py"
    mine.write_text((ROOT / "algos" / "ppo.py").read_text() + OWN_CLASSES)
    script = measuring.runs.load_script(mine)
    chain = TINY | dict(env_id="environments:Chain-v0", total_timesteps=64, run_name="chain", runs_dir=str(tmp_path))
    script.main(flags_of("ppo", **chain))
    flags = [str(tmp_path / "chain"), "--script", str(mine), *"--jobs 1 --episodes 2 --deterministic".split()]
    load("evaluate").main(flags)
    [cell] = cells(tmp_path / "chain" / "figures", "evaluate")
    pi = measuring.sampling.checkpoint_state(measuring.runs.Source(mine, tmp_path / "chain", 1))[2].policy(torch.eye(4))
    exact = sum(Chain.rewards) - ((pi.mean.detach().double() - torch.tensor(Chain.TARGET)) ** 2).sum().item()
    assert cell["returns"]["all"] == pytest.approx([exact] * 2, abs=1e-5)
    script.Counted.calls = 0
    load("evaluate").main([*flags, "--video", str(tmp_path / "chain.gif")])
    assert script.Counted.calls >= 4  # the episodes are kept, so these are the film's
    source = measuring.runs.Source(mine, tmp_path / "chain", 1)
    with pytest.raises(ValueError, match="1 numbers for the"):
        measuring.sampling.play_seeds(source, (0,), 0, 1, np.zeros(1))


def test_help_names_all_that_diagnostics_use_of_a_script(capsys):
    files = [ROOT / "diagnostics" / f"{name}.py" for name in (*CALLS, "replay", "report")]
    used = set()
    for path in [*files, *(ROOT / "diagnostics" / "measuring").glob("*.py")]:
        used |= set(re.findall(r"(?<![.\w])script\.([A-Za-z_]+)", path.read_text()))
    needed = set(measuring.runs.CONTRACT)
    assert needed <= used and used - needed - {"name", "read_bytes"} == {"value_loss"}
    for path in files:
        fields = [x for x in ast.walk(ast.parse(path.read_text())) if isinstance(x, ast.ClassDef) and "Args" in x.name]
        texts = [x.value.value for x in fields[0].body if isinstance(x, ast.Expr)]
        assert texts and "\n" not in "".join(texts)  # --help would keep the break
        with pytest.raises(SystemExit) as ended:
            load(path.stem).main(["--help"])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert all(f"    {name}" in shown for name in needed | set(measuring.runs.OPTIONAL)) and "push" in shown


def test_no_opengl_is_explained(known, tmp_path):
    command = [sys.executable, str(ROOT / "diagnostics" / "evaluate.py"), str(known / "ppo"), "--video", "x.gif"]
    flags = ["--episodes", "2", "--jobs", "1", "--out", str(tmp_path)]
    environment = {"PATH": "/usr/bin:/bin", "MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "osmesa"}
    result = subprocess.run(command + flags, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert result.returncode == 1 and "libegl1" in result.stderr.splitlines()[-1]


def call(name, folders, out, *flags):
    paths = [str(folder) for folder in folders]
    return [sys.executable, str(ROOT / "diagnostics" / f"{name}.py"), *paths, "--out", str(out), *flags]


@pytest.fixture(scope="module")
def pool():
    """Two worker processes as measuring.sampling.sampler starts them, once for all tests."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), measuring.sampling.start_worker) as executor:
        yield executor


def changes(cells):
    """For each checkpoint and number of pairs, what its two panels show along the step and along the random one."""
    found, lines = {}, []
    for cell in cells:
        found.setdefault(cell["iteration"], {}).setdefault(cell["step_pairs"], []).append(cell)
    for row, of_pairs in enumerate(found.values()):
        for column, of_step in enumerate(of_pairs.values()):
            place = 2 * row * len(of_pairs) + column
            for across in ("step", "random"):
                cut = [x for x in of_step if x[across] == 0]
                lines.append((place, [x["change"]["mean"] for x in cut]))
                lines.append((place + len(of_pairs), [x["surrogate"] - cut[0]["surrogate"] for x in cut]))
    return lines


# What the figure of each call is to show: in which of its axes the numbers of which line, and the axes' labels.
SHOWN = {
    "gradient": (
        lambda cells: [
            (row * len(cells) + column, [x["mean"] for x in cell[name]["value network"]])
            for row, name in enumerate(("variance", "convergence"))
            for column, cell in enumerate(cells)
        ],
        {"state-action pairs", "cosine between\nestimates", 'cosine with the\n"true" gradient'},
    ),
    "steps": (
        lambda cells: [(i, [cell[name]["mean"] for cell in cells]) for i, name in enumerate(("cosine", "kl"))],
        {"iteration", "cosine between update steps", "KL between policies (nats)"},
    ),
    "value": (
        lambda cells: [
            (3 * row + column, [cell[f"{of}_{x}"][statistic] for cell in cells])
            for column, x in enumerate(("gae", "returns", "released"))
            for row, (of, statistic) in enumerate((("heldout", "mean"), ("train", "mean"), ("heldout", "median")))
        ],
        {"iteration", "mean error,\nheld out", "mean error,\ntraining batch", "median error,\nheld out"},
    ),
    "landscape": (
        changes,
        {"iteration 0\nreward", "iteration 0\nsurrogate"},
    ),
    "trust_region": (
        lambda cells: [
            (2 * row + column, [x[of][name] for x in cells if x[of][name] is not None])
            for column, of in enumerate(("train", "heldout"))
            for row, name in enumerate(("mean_reward", "max_ratio", "mean_kl", "max_kl"))
        ],
        {"iteration", "mean episode return", "largest ratio", "mean KL (nats)", "largest KL (nats)"},
    ),
    "evaluate": (
        lambda cells: [(i, cell[name]["all"]) for cell in cells for i, name in enumerate(("returns", "lengths"))],
        {"episode return", "episode length (steps)"},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_jobs_do_not_change_a_bit_and_the_figure_shows_the_numbers(known, name, tmp_path, figures, pool, monkeypatch):
    flags = [str(known / "ppo"), *CALLS[name].split()]
    load(name).main([*flags, "--out", str(tmp_path / "1"), "--jobs", "1"])
    found = cells(tmp_path / "1", name)
    lines, labels = SHOWN[name]
    axes = figures[f"{name}.png"].axes
    drawn = [{tuple(x) for line in axis.lines for x in (line.get_xdata(), line.get_ydata())} for axis in axes]
    assert [(place, line) for place, line in lines(found) if tuple(line) not in drawn[place]] == []
    assert labels <= {text for axis in axes for text in (axis.get_xlabel(), axis.get_ylabel())}
    assert f"{name}.pdf" in figures

    monkeypatch.setattr(measuring.sampling, "ProcessPoolExecutor", lambda *_: contextlib.nullcontext(pool))
    load(name).main([*flags, "--out", str(tmp_path / "2"), "--jobs", "2"])
    assert cells(tmp_path / "2", name) == found


def test_a_script_and_what_it_imports_measure_in_an_empty_folder(known, tmp_path):
    """The user's modules may be called as diagnostics are."""
    shutil.copytree(ROOT / "diagnostics" / "measuring", tmp_path / "tools" / "measuring")
    for name in ("value", "steps"):
        shutil.copy(ROOT / "diagnostics" / f"{name}.py", tmp_path / "tools")
    (tmp_path / "steps.py").write_text("MINE = True\n")
    mine = tmp_path / "my_ppo.py"
    mine.write_text((ROOT / "algos" / "ppo.py").read_text() + "\nimport steps\n\nsteps.MINE\n")
    flags = ["--script", mine.name, "--jobs", "1", "--heldout-pairs", "300", "--out", "here"]
    subprocess.run([sys.executable, "tools/value.py", str(known / "ppo"), *flags], cwd=tmp_path, check=True)
    assert len(cells(tmp_path / "here", "value")) == 3
    assert imageio.v3.imread(tmp_path / "here" / "value.png").std() > 10  # no blank page
    assert (tmp_path / "here" / "value.pdf").read_bytes().startswith(b"%PDF")


def test_time_needed_is_told_of_a_run_that_is_being_written(tmp_path, capsys):
    (tmp_path / "progress.csv").write_text("iteration,global_step,sps\n0,2048,5000\n1,40")
    measuring.kept.print_time_needed(tmp_path, 1_200_000, 2)
    assert capsys.readouterr().out.startswith("sampling takes about 02:00 in 2 processes ")


def test_what_comes_before_the_first_result_does_not_slow_the_rest(capsys, monkeypatch):
    """An hour of something else, and then eight episodes in ten seconds: 704 more take 880 seconds."""
    sample, clock = measuring.sampling.Sampler(1, None, None), [0.0]
    monkeypatch.setattr(measuring.sampling.time, "perf_counter", lambda: clock[0])
    with sample.progress(720, "episodes"):
        for clock[0] in (3600.0, 3610.0):
            sample.advance(8)
    assert capsys.readouterr().out.splitlines()[1:] == ["16 of 720 episodes, 14:40 left"]


def test_a_worker_that_dies_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended, measuring.sampling.sampler(2) as sample:
        list(sample([measuring.sampling.Task(1, partial(os._exit, 3))]))
    assert ended.value.code == 1 and "a worker died (out of memory?); the same command" in capsys.readouterr().err


def test_what_is_drawn_ahead_comes_in_order_and_not_all_at_once():
    """With many steps each, one result is drawn ahead of the one that is used; with few, one for each worker."""
    for steps, ahead in ((10**6, 1), (1, 2)):
        begun = []
        with ThreadPoolExecutor(3) as threads:
            sample = measuring.sampling.Sampler(2, None, threads)
            for i, drawn in enumerate(sample.ahead([partial(begun.append, k) for k in range(9)], steps)):
                drawn()
                assert i in begun and len(begun) <= i + 1 + ahead
        assert sorted(begun) == list(range(9))


def test_numbers_say_what_measured_them(known, tmp_path, capsys, monkeypatch):
    mine, source = tmp_path / "my_ppo.py", (ROOT / "algos" / "ppo.py").read_text()
    flags = [str(known / "chain"), "--checkpoints", "0", "--script", str(mine), "--jobs", "1", "--out", str(tmp_path)]

    settings = {known / "chain": measuring.runs.setting(measuring.runs.read_config(known / "chain"))}

    def measure(*extra):
        measuring.runs.note.cache_clear()
        load("value").main([*flags, "--heldout-pairs", "300", *extra])
        *_, cell = cells(tmp_path, "value")  # if several have the same settings, the last one counts
        assert cell["versions"]["torch"] == torch.__version__
        assert measuring.runs.label_runs(settings, (f"CHAIN={cell['setting']}",)) == {known / "chain": "CHAIN"}
        return cell["measured_by"], re.findall(r"another version of (\S+);", capsys.readouterr().err)

    mine.write_text(source)
    first, notes = measure()
    assert (
        notes == []
        and first["value.py"] == load("value").VERSION
        and first["sampling.py"] == measuring.sampling.VERSION
    )
    assert measure() == (first, [])
    mine.write_text(source + "\nx = 1\n")
    assert measure() == (first, ["my_ppo.py"])  # kept, and said
    edited, notes = measure("--overwrite")
    assert edited["my_ppo.py"] != first["my_ppo.py"] and notes == []
    monkeypatch.setattr(load("value"), "VERSION", 99)
    monkeypatch.setattr(measuring.intervals, "VERSION", 98)
    monkeypatch.setattr(measuring.kept.mujoco, "__version__", "0")
    assert measure() == (edited, ["value.py", "intervals.py", "mujoco"])
    path = tmp_path / "value.jsonl"  # of a cell that does not say its version of a library, nothing is known
    path.write_text(path.read_text().replace('"mujoco"', '"no_mujoco"'))
    assert measure() == (edited, ["value.py", "intervals.py"])


def test_published_numbers_say_whose_they_are(known, tmp_path):
    """From each run's config.json: the name of a folder may lie."""
    shutil.copytree(known / "chain_rate", tmp_path / "Hopper-v5__trpo__seed9")
    out, published = tmp_path / "out", tmp_path / "evaluate.json"
    flags = [str(known / "chain2"), str(tmp_path / "Hopper-v5__trpo__seed9"), "--labels", "FAST=ppo policy-lr=0.001"]
    flags += ["--out", str(out), "--json", str(published), "--jobs", "1", "--episodes"]
    load("evaluate").main([*flags, "101", "--checkpoints", "1"])
    load("evaluate").main([*flags, "2", "--checkpoints", "1"])
    load("evaluate").main([*flags, "2", "--checkpoints", "1", "1", "--overwrite"])  # in place of the same, and once
    kept, found = cells(out, "evaluate"), json.loads(published.read_text())
    whose = [("ppo", "environments:Chain-v0", 2), ("FAST", "environments:Chain-v0", 1)]
    assert [(x["agent"], x["env_id"], x["run_seed"]) for x in found] == 2 * whose
    assert [x["episodes"] for x in found] == [101, 101, 2, 2] and len(kept) == 6
    for cell, whole in zip(found, [*kept[:2], *kept[4:]]):
        of_run = {name: cell[name] for name in ("agent", "env_id", "run_seed")}
        if cell["episodes"] == 101:  # more than a published file keeps
            assert len(whole["returns"].pop("all")) == len(whole["lengths"].pop("all")) == 101
        assert cell == of_run | whole
        assert cell["measured_by"]["ppo.py"] == hashlib.sha256((ROOT / "algos/ppo.py").read_bytes()).hexdigest()[:12]
    assert str(tmp_path) not in published.read_text()


def test_kill_and_continue_equals_uninterrupted(known, tmp_path):
    flags = "--checkpoints 0 1 --grid 8 --step-pairs 64 --reward-pairs 400".split()
    command, path = call("landscape", [known / "ppo"], tmp_path / "killed", *flags), tmp_path / "killed/landscape.jsonl"
    measured = 0
    for jobs, how, status, message in (
        ("2", signal.SIGTERM, 130, "resumes from what is kept"),
        ("1", signal.SIGKILL, -9, ""),
    ):
        process = subprocess.Popen([*command, "--jobs", jobs], stderr=subprocess.PIPE, text=True)
        while not path.exists() or len(cells(path.parent, "landscape")) <= measured:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(how)
        assert message in process.communicate()[1] and process.returncode == status
        assert measured < (measured := len(cells(path.parent, "landscape"))) < 30
    for out in ("killed", "whole"):
        load("landscape").main([str(known / "ppo"), "--out", str(tmp_path / out), "--jobs", "1", *flags])
    assert cells(tmp_path / "killed", "landscape") == cells(tmp_path / "whole", "landscape")


def test_several_runs_and_a_script_of_ones_own(known, tmp_path, capsys):
    mine = tmp_path / "my_ppo.py"
    mine.write_text((ROOT / "algos" / "ppo.py").read_text() + "\n")
    for name in ("value", "trust_region"):
        flags = ["--script", str(mine), "--jobs", "1", "--out", str(tmp_path), "--heldout-pairs", "300"]
        measuring.runs.note.cache_clear()
        load(name).main([str(known / "chain"), *flags, "--checkpoints", "0", "1", "1"])
        assert len(cells(tmp_path, name)) == 2  # each once
        notes = capsys.readouterr().err
        assert "is not, or no longer, the script" in notes
    load("trust_region").main([str(known / x) for x in ("ppo", "reinforce")] + flags[2:])
    assert len(cells(tmp_path, "trust_region")) == 2 + 3 + 3


@pytest.mark.parametrize("name", CALLS)
def test_reinforce_is_measured_or_refused(known, name, tmp_path, capsys):
    flags = CALLS[name].replace("--baselines --value-pairs 500", "").split()
    arguments = [str(known / "reinforce"), "--out", str(tmp_path), "--jobs", "1", *flags]
    if name != "value":
        load(name).main(arguments)
        assert cells(tmp_path, name)
    for critic in [[]] if name == "value" else [["--baselines"]] if name == "gradient" else []:
        with pytest.raises(SystemExit) as ended:
            load(name).main(arguments + critic)
        assert ended.value.code == 2 and "no value network" in capsys.readouterr().err


def test_kept_numbers_continue_after_a_torn_line(known, tmp_path, capsys):
    flags = [str(known / "ppo"), "--out", str(tmp_path), "--jobs", "1", "--heldout-pairs", "300", "--checkpoints"]
    path = tmp_path / "value.jsonl"
    load("value").main([*flags, "0", "1"])
    first, second = whole = path.read_text().splitlines(keepends=True)
    for torn in (second[:50], second[:-1]):
        path.write_text(first + torn)
        load("value").main([*flags, "0", "1"])
        assert path.read_text().splitlines(keepends=True) == whole  # the first is kept, the second measured again
    path.write_text("".join([json.dumps(json.loads(first) | dict(gamma=7)) + "\n", *whole]))  # the last one counts
    load("value").main([*flags, "0", "--overwrite"])
    assert path.read_text().splitlines(keepends=True)[1:] == [*whole, first]


def test_numbers_in_use_or_damaged_are_left_alone(known, tmp_path, capsys):
    path, arguments = tmp_path / "value.jsonl", [str(known / "ppo"), "--out", str(tmp_path), "--jobs", "1"]
    with measuring.kept.locked(path), pytest.raises(SystemExit) as ended:
        load("value").main(arguments)
    assert ended.value.code == 2 and "in use by another process" in capsys.readouterr().err
    for damaged in ("[\n", "1\n", "[1]\n"):
        path.write_text(damaged)
        with pytest.raises(SystemExit) as ended:
            load("value").main(arguments)
        assert ended.value.code == 2 and "is damaged" in capsys.readouterr().err
        assert path.read_text() == damaged and {x.suffix for x in tmp_path.iterdir()} == {".jsonl", ".lock"}


NO_PUSH = """
class Moments:
    mean, std = 0.0, 1.0

    def load_state_dict(self, saved):
        pass

class State(State):
    def __init__(self, args):
        super().__init__(args)
        self.obs_stats = Moments()

def normalize_obs(args, stats, obs):
    return obs.astype(np.float32)
"""


def test_bad_input(known, tmp_path, capsys):
    """What all diagnostics refuse alike is tried with one of them, and beside it what is each one's own."""
    (tmp_path / "empty").mkdir()
    shutil.copytree(known / "ppo", tmp_path / "bare")
    for path in checkpoints(tmp_path / "bare"):
        path.rename(path.with_name("iter_best.pt"))
    older(known / "ppo", tmp_path / "torn")
    checkpoints(tmp_path / "torn")[1].write_bytes(b"torn")
    older(known / "ppo", tmp_path / "nowhere", env_id="Nowhere-v0")
    foreign = json.dumps(dict(algo="../broken", script="", args=dict(env_id="x")))
    for folder, config in (("cut", "{"), ("void", "{}"), ("foreign", foreign)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(config)
    source = (ROOT / "algos" / "ppo.py").read_text()
    (tmp_path / "lacking.py").write_text(source.replace("def policy_loss(", "def policy_losses("))
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "exit.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "thawed.py").write_text(source + NO_PUSH)
    (tmp_path / "file").touch()
    (tmp_path / "unreadable").mkdir()
    (tmp_path / "unreadable" / "config.json").symlink_to("/proc/self/mem")
    (tmp_path / "link").symlink_to(known / "ppo")
    shutil.copytree(known / "ppo", tmp_path / "copy")
    ppo, raw, out, one_job = str(known / "ppo"), str(known / "raw"), ("--out", str(tmp_path)), ("--jobs", "1")
    refused = {
        (): "name one run folder or more",
        (str(tmp_path / "none"),): "no such run",
        (str(tmp_path / "empty"),): "not a run",
        (str(tmp_path / "bare"),): "no checkpoints",
        (str(tmp_path / "torn"), *out, *one_job): "iter_000001.pt is damaged",
        (str(tmp_path / "nowhere"), *out, *one_job): "--env-id Nowhere-v0: NameNotFound",
        (str(tmp_path / "cut"),): "config.json is damaged",
        (str(tmp_path / "void"),): "config.json is damaged",
        (str(tmp_path / "foreign"),): "config.json is damaged",  # it names code outside algos/
        (ppo, "--checkpoints", "7"): "no checkpoint 7; there are 0 1 2 3",
        (ppo, "--checkpoints", "-1"): "--checkpoints -1: must be 0 or more",
        (ppo, "--script", str(tmp_path / "lacking.py")): "has no policy_loss",
        (ppo, "--script", str(tmp_path / "broken.py")): "nothing_of_that_name",
        (ppo, "--script", str(tmp_path / "none.py")): "no such Python script",
        (ppo, "--script", str(tmp_path / "file")): "no such Python script",
        (ppo, "--script", str(ROOT / "algos" / "ppo_m.py")): "does not fit",
        (ppo, "--script", str(tmp_path / "exit.py")): "SystemExit: 3",
        (ppo, "--script", str(tmp_path / "thawed.py"), *out, *one_job): "obs_stats has no method `push`",
        (str(tmp_path / "unreadable"),): "config.json: Input/output error",
        (ppo, "--out", str(tmp_path / "file" / "x")): "--out",
        (ppo, "--out", "/proc"): "cannot write to /proc: ",
        (ppo, "--json", str(tmp_path / "none" / "x.json"), *out): "must be a .json file in a folder that exists",
        (ppo, "--json", str(tmp_path / "x.txt"), *out): "must be a .json file in a folder that exists",
        (ppo, "--labels", "PPO=ppo no-tanh"): "no run is ppo no-tanh",
        (ppo, "--jobs", "0"): "--jobs 0: must be 1 or more",
        (ppo, raw): "--out",
        (ppo, ppo, *out): f"{ppo} and {ppo} are the same run, twice",
        (ppo, str(tmp_path / "copy"), *out): "the same run, twice",
        (str(tmp_path / "link"), raw, ppo, *out): "the same run, twice",
        (ppo, str(known / "chain"), "--out", str(tmp_path)): "different environments",
    }
    refused = {("value", *arguments): part for arguments, part in refused.items()}
    for name, size in ((name, flags.split()[0]) for name, flags in CALLS.items()):
        refused[name, ppo, size, "-5"] = f"{size} -5: must be "
        refused[name, ppo, size, str(10**20)] = f"{size} {10**20}: must be 1,000"
    (tmp_path / "folder.gif").mkdir()
    refused["evaluate", ppo, "--video", str(tmp_path / "file" / "x.gif")] = "--video"
    refused["evaluate", ppo, "--video", str(tmp_path / "folder.gif")] = "is a folder"
    refused["evaluate", ppo, "--video", str(tmp_path / "x.mp4")] = "must end in .gif"
    minibatches = "--step-pairs 7: less than two for each of the 4 minibatches"
    refused["landscape", ppo, "--checkpoints", "0", "--step-pairs", "7"] = minibatches
    before = {path: path.stat().st_mtime_ns for path in known.folder.rglob("*")}
    for (name, *arguments), part in refused.items():
        capsys.readouterr()
        with patch("sys.argv", [f"{name}.py"]), pytest.raises(SystemExit) as ended:
            load(name).main(arguments)
        message = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == 2 and part in message and message.startswith(f"{name}.py: "), arguments
    assert {path: path.stat().st_mtime_ns for path in known.folder.rglob("*")} == before
