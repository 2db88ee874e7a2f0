"""The diagnostics, on problems whose gradient, value and reward are known."""

import ast
import re
import shutil
import subprocess
import sys

import imageio
import measuring.intervals
import measuring.runs
import measuring.sampling
import measuring.table
import numpy as np
import pytest
import torch
from conftest import CALLS, ROOT, TINY, flags_of, flat, load, output, progress
from environments import Bandit, Chain
from torch.func import grad, jacrev

pytestmark = [pytest.mark.usefixtures("figures"), pytest.mark.xdist_group("diagnostics")]  # one worker, so one pool

PROBLEMS = {"bandit": Bandit, "chain": Chain}


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


def rows(out, name):
    return measuring.table.read_rows(out / f"{name}.jsonl")


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
        sums = [module.segment_sums(source, (9, repeat, i), steps, [{}] * n, None) for i, (n, steps) in sizes]
        _, total = module.add_up(sum(sums, []), [])
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
    [cell] = rows(tmp_path, "gradient")
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


def plain(x):
    """Tensors and arrays as lists, and what has a state dictionary as that, at any depth, so that == compares them."""
    if hasattr(x, "state_dict"):
        x = x.state_dict()
    if isinstance(x, dict):
        return {name: plain(y) for name, y in x.items()}
    return [plain(y) for y in x] if isinstance(x, list | tuple) else x.tolist() if hasattr(x, "tolist") else x


@pytest.mark.parametrize("algo", ("ppo", "reinforce"))
@pytest.mark.parametrize("name, measure", [("steps", "take_update"), ("landscape", "take_step")])
def test_updates_leave_the_checkpoint_as_it_was(known, name, measure, algo):
    module = load(name)
    source = measuring.runs.Source(ROOT / "algos" / f"{algo}.py", known / algo, 1)
    _, _, state = measuring.sampling.read_checkpoint(source)
    arguments = 1, 256
    if measure == "take_step":
        arguments = 256, [(0, 0), (1, 2)]

    def parts():
        found = {name: plain(part) for name, part in vars(state).items() if name not in ("workers", "rng")}
        return found | dict(rng=plain(state.rng.bit_generator.state))

    before = parts()
    first, again = (getattr(module, measure)(source, (3,), *arguments) for _ in range(2))
    assert plain(first) == plain(again) and parts() == before


def test_statistics_are_frozen(known):
    def moments(state):
        return plain([[x.count, x.mean, x.std] for x in (state.obs_stats, state.reward_stats)])

    source = measuring.runs.Source(ROOT / "algos" / "ppo.py", known / "few_ppo", 2)
    script, args, state = measuring.sampling.checkpoint_state(source)
    found = moments(state)
    measuring.sampling.roll_out(script, args, state)
    assert moments(state) == found and min(found[0][2]) > 0 and found[1][2] > 0  # a copy, and frozen
    script, args, state = measuring.sampling.training_state(source)
    assert moments(state) == found
    measuring.sampling.roll_out(script, args, state)
    assert moments(state)[0][0] >= found[0][0] + 2 * 64


def test_an_episode_that_never_ends_is_refused(runs, capsys, monkeypatch):
    for name, most, sentence in (
        ("Endless", 500, "an episode has not ended after 500 steps"),
        ("Clock", 4, "its time limit is 5 steps, and episodes of up to 4 can be played"),
    ):
        load("ppo").main(flags_of("ppo", env_id=f"environments:{name}-v0", run_name=name, **TINY))
        monkeypatch.setattr(measuring.sampling, "ENDLESS", most)
        with pytest.raises(SystemExit) as ended:
            load("evaluate").main([f"runs/{name}", "--episodes", "2", "--jobs", "1"])
        assert ended.value.code == 2 and sentence in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", PROBLEMS)
def test_landscape_matches_the_known_reward(known, name, tmp_path):
    module, source, script, _, state = sourced("landscape", known / name)
    flags = "--checkpoints 0 --grid 3 --step-pairs 64 --reward-pairs 1000 --jobs 1".split()
    module.main([str(known / name), "--out", str(tmp_path), *flags])
    rewards = expected_reward(PROBLEMS[name], state)
    start = flat(state.policy)
    experience = measuring.sampling.collect_group(source, (0, 0, 1, 64, 0), 1, 64)
    points = [(0, 0), (1, 0), (3, 0), (0, 1), (0, 3)]
    step, surrogates = module.take_step(source, (0, 0), 64, points)
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
    [row] = rows(tmp_path, "landscape")
    found = row["points"]
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
        [cell] = rows(run / "figures", "value")
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
    [cell] = rows(tmp_path, "value")
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
    logged, found = progress(known / "ppo"), rows(tmp_path, "trust_region")
    assert len(found) == len(logged) == 3
    for cell, row in zip(found, logged):
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
        heldout = rows(tmp_path / "clock" / "figures", "trust_region")[-1]["heldout"]
        assert (heldout["mean_reward"], heldout["episodes"], heldout["pairs"]) == (15.0, episodes, pairs)


def test_the_contract_is_all_that_diagnostics_use_of_a_script(capsys):
    files = [ROOT / "diagnostics" / f"{name}.py" for name in (*CALLS, "replay", "report")]
    used = set()
    for path in [*files, *(ROOT / "diagnostics" / "measuring").glob("*.py")]:
        used |= set(re.findall(r"(?<![.\w])script\.([A-Za-z_]+)", path.read_text()))
    needed = set(measuring.runs.CONTRACT)
    assert needed <= used <= needed | {"name", "read_bytes", "value_loss"}
    described = (ROOT / "algos" / "README.md").read_text()
    assert all(f"- `{name}" in described for name in needed) and "value_loss(args, values, batch)" in described
    for path in files:
        fields = [x for x in ast.walk(ast.parse(path.read_text())) if isinstance(x, ast.ClassDef) and "Args" in x.name]
        texts = [x.value.value for x in fields[0].body if isinstance(x, ast.Expr)]
        assert texts and "\n" not in "".join(texts)  # --help would keep the break
        with pytest.raises(SystemExit) as ended:
            load(path.stem).main(["--help"])
        assert ended.value.code == 0
        assert "--seed" in capsys.readouterr().out


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
    assert len(rows(tmp_path / "here", "value")) == 3
    assert imageio.v3.imread(tmp_path / "here" / "value.png").std() > 10  # no blank page


def test_several_runs_and_a_script_of_ones_own(known, tmp_path, capsys):
    mine = tmp_path / "my_ppo.py"
    mine.write_text((ROOT / "algos" / "ppo.py").read_text() + "\n")
    for name in ("value", "trust_region"):
        flags = ["--script", str(mine), "--jobs", "1", "--out", str(tmp_path), "--heldout-pairs", "300"]
        measuring.runs.note.cache_clear()
        load(name).main([str(known / "chain"), *flags, "--checkpoints", "0", "1", "1"])
        assert len(rows(tmp_path, name)) == 2  # each once
        notes = capsys.readouterr().err
        assert "is not, or no longer, the script" in notes
    load("trust_region").main([str(known / x) for x in ("ppo", "reinforce")] + flags[2:])
    assert len(rows(tmp_path, "trust_region")) == 2 + 3 + 3


@pytest.mark.parametrize("name", CALLS)
def test_reinforce_is_measured_or_refused(known, name, tmp_path, capsys):
    flags = CALLS[name].replace("--baselines --value-pairs 500", "").split()
    arguments = [str(known / "reinforce"), "--out", str(tmp_path), "--jobs", "1", *flags]
    if name != "value":
        load(name).main(arguments)
        assert rows(tmp_path, name)
    for critic in [[]] if name == "value" else [["--baselines"]] if name == "gradient" else []:
        with pytest.raises(SystemExit) as ended:
            load(name).main(arguments + critic)
        assert ended.value.code == 2 and "no value network" in capsys.readouterr().err
