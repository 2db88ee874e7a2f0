"""Agents of Stable-Baselines3 against Stable-Baselines3 itself: the networks, a rollout, an update, and bad files."""

import copy
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import common.runs
import common.sampling
import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, load, progress
from scipy.stats import ttest_ind
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

pytestmark = pytest.mark.xdist_group("sb3")
PLANS = {  # environment, environments, settings; the Pendulum's actions are clipped, and so are its values
    "hopper": ("Hopper-v5", 1, dict(n_steps=512, learning_rate=LinearSchedule(3e-4, 0.0, 1.0))),
    "pendulum": ("Pendulum-v1", 4, dict(n_steps=128, clip_range_vf=0.02, ent_coef=0.01, target_kl=0.01)),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Agents that SB3 trained for four iterations, with a checkpoint in the middle of the third, and their runs."""
    folder = tmp_path_factory.mktemp("sb3")
    for name, (env_id, n, settings) in PLANS.items():
        env = VecNormalize(make_vec_env(env_id, n_envs=n, seed=1, monitor_dir=str(folder / name)))
        model = PPO("MlpPolicy", env, seed=1, device="cpu", **settings)
        model.learn(2048, callback=CheckpointCallback(1280 // n, str(folder / name), save_vecnormalize=True))
        model.save(folder / name / "final.zip")
        env.save(str(folder / name / "vecnormalize.pkl"))
        agents = [str(x) for x in sorted((folder / name).glob("*.zip"))]
        monitors = [str(x) for x in sorted((folder / name).glob("*.monitor.csv"))]
        flags = ["--vecnormalize", str(folder / name / "vecnormalize.pkl"), "--monitor", *monitors]
        load("sb3").main([*agents, "--env-id", env_id, "--out", str(folder / f"run_{name}"), *flags])
    return folder


def imported(folder, name, iteration):
    """The agent as this project has it, and as SB3 loads it with its environments."""
    module, (env_id, n, _) = load("sb3"), PLANS[name]
    checkpoint = module.load_checkpoint(folder / f"run_{name}" / "checkpoints" / f"iter_{iteration:06d}.pt")
    args = module.Args(**checkpoint["args"])
    state = module.initial_state(args, module.make_actors(args))
    module.restore(state, checkpoint)
    agent, statistics = {2: ("rl_model_1280_steps.zip", "rl_model_vecnormalize_1280_steps.pkl")}.get(
        iteration, ("final.zip", "vecnormalize.pkl")
    )
    env = VecNormalize.load(str(folder / name / statistics), make_vec_env(env_id, n_envs=n, seed=5))
    return module, args, state, PPO.load(folder / name / agent, env=env, device="cpu"), env


@pytest.mark.parametrize("iteration", (2, 4))
@pytest.mark.parametrize("name", PLANS)
def test_networks_and_normalizers_are_those_of_the_agent(trained, name, iteration):
    module, args, state, model, env = imported(trained, name, iteration)
    assert state.iteration == iteration and args.num_envs == model.n_envs
    noise = np.random.default_rng(0).standard_normal((1000, *env.observation_space.shape))
    raw = (env.obs_rms.mean + 3 * np.sqrt(env.obs_rms.var) * noise).astype(env.observation_space.dtype)
    obs = env.normalize_obs(raw)
    np.testing.assert_array_equal(module.normalize(args, state.obs_stats, raw), obs)
    obs = torch.from_numpy(obs)
    with torch.no_grad():
        theirs, ours = model.policy.get_distribution(obs).distribution, state.policy(obs)
        actions = theirs.sample()
        values, log_probs, entropy = model.policy.evaluate_actions(obs, actions)
        pairs = [(theirs.mean, ours.mean), (theirs.stddev, ours.stddev), (values.flatten(), state.value(obs))]
        pairs += [(log_probs, ours.log_prob(actions)), (entropy, ours.entropy())]
        for x, y in pairs:
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PLANS)
def test_episodes_are_those_of_the_agent(trained, name):
    """Played by this project's evaluation and by SB3's predict, from the same seeds, without noise."""
    module, args, _, model, env = imported(trained, name, 4)
    source = common.runs.Source(ROOT / "diagnostics" / "sb3.py", trained / f"run_{name}", 4)
    parameters = load("evaluate").acting_parameters(source, True)
    played, single = common.sampling.play_seeds(source, (0,), 0, 5, parameters), gym.make(args.env_id)
    for i, (total, length) in enumerate(played):
        obs, _ = single.reset(seed=int(common.sampling.generator(source, 0, i).integers(2**31)))
        rewards, ended = [], False
        while not ended:
            action, _ = model.predict(env.normalize_obs(obs), deterministic=True)
            obs, reward, terminated, truncated, _ = single.step(action)
            rewards.append(float(reward))
            ended = terminated or truncated
        assert length == len(rewards) and total == pytest.approx(sum(rewards), rel=1e-3)


def test_stochastic_episodes_have_the_mean_of_the_agents(trained):
    """Differing random numbers, so the means are compared: Welch's test passes in 999 of 1,000 cases."""
    module, args, _, model, env = imported(trained, "hopper", 4)
    source = common.runs.Source(ROOT / "diagnostics" / "sb3.py", trained / "run_hopper", 4)
    played = common.sampling.play_seeds(source, (0,), 0, 40, load("evaluate").acting_parameters(source, False))
    env.training, env.norm_reward = False, False
    theirs, _ = evaluate_policy(model, env, 40, deterministic=False, return_episode_rewards=True)
    assert ttest_ind([total for total, _ in played], theirs, equal_var=False).pvalue > 0.001


class Recorded(gym.Env):
    """Plays what SB3's environments did, one of them."""

    def __init__(self, env, steps, place):
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.steps, self.place, self.t, self.first = steps, place, 0, None

    def reset(self, **_):
        return self.first, {}

    def step(self, action):
        obs, reward, done, info, sent = (x[self.place] for x in self.steps[self.t])
        np.testing.assert_allclose(action, sent, atol=1e-5)
        self.t, self.first = self.t + 1, obs
        limit = info.get("TimeLimit.truncated", False)
        return (info["terminal_observation"] if done else obs), reward, bool(done and not limit), limit, {}


class Noise:
    """Random numbers with which our rollout draws the actions that SB3 drew, and permutations that are SB3's."""

    def __init__(self, module, state, actions):
        self.module, self.state, self.actions, self.legacy = module, state, iter(actions), np.random.RandomState(7)

    def standard_normal(self, *_, **__):
        means = self.module.numpy_forward(self.state.policy.mean)(np.array([x.obs for x in self.state.actors]))
        return (next(self.actions) - means) / self.state.policy.log_std.detach().exp().numpy()

    def permutation(self, n):
        return self.legacy.permutation(n)


@pytest.fixture(params=PLANS)
def both(trained, request):
    """A rollout that SB3 made, in its buffer, and ours of the same actions and environments, statistics going on."""
    module, args, state, model, env = imported(trained, request.param, 2)
    _, callback = model._setup_learn(1, None, False)
    model._total_timesteps = 2048
    steps, step_wait, statistics = [], env.venv.step_wait, copy.deepcopy((env.obs_rms, env.ret_rms))
    sums, last = env.returns.copy(), model._last_obs.copy()

    def record():
        obs, rewards, dones, infos = step_wait()
        steps.append((np.array(obs), np.array(rewards), np.array(dones), [dict(x) for x in infos], env.venv.actions))
        return obs, rewards, dones, infos

    env.venv.step_wait = record
    callback.on_training_start({}, {})
    torch.manual_seed(3)
    model.collect_rollouts(env, callback, model.rollout_buffer, model.n_steps)
    buffer = model.rollout_buffer
    state.actors = [module.Actor(Recorded(env, steps, i), last[i], past_rewards=sums[i]) for i in range(args.num_envs)]
    for stats, theirs in zip((state.obs_stats, state.reward_stats), statistics):
        stats.mean, stats.var, stats.count = theirs.mean, theirs.var, theirs.count
    state.rng = Noise(module, state, buffer.actions.copy())
    experience = module.rollout(args, state)
    return SimpleNamespace(module=module, args=args, state=state, model=model, env=env, ours=experience, theirs=buffer)


def flat(buffer, name):
    return torch.from_numpy(buffer.swap_and_flatten(getattr(buffer, name))).squeeze(-1)


def test_rollout_and_advantages_are_those_of_the_buffer(both):
    np.testing.assert_allclose(both.ours["obs"], flat(both.theirs, "observations"), atol=1e-6)
    for stats, theirs in ((both.state.obs_stats, both.env.obs_rms), (both.state.reward_stats, both.env.ret_rms)):
        np.testing.assert_allclose(stats.mean, theirs.mean, rtol=1e-12)
        np.testing.assert_allclose(stats.var, theirs.var, rtol=1e-12)
    batch = both.module.estimate_advantages(both.args, both.state, both.ours)
    for name, theirs in (("advantages", "advantages"), ("value_targets", "returns"), ("old_values", "values")):
        torch.testing.assert_close(batch[name], flat(both.theirs, theirs), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(batch["old_log_probs"], flat(both.theirs, "log_probs"), rtol=1e-4, atol=1e-4)
    if both.args.env_id == "Pendulum-v1":  # its episodes end by a time limit alone
        assert not both.ours["terminations"].any()


@pytest.mark.parametrize("same_batch", (True, False))
@pytest.mark.parametrize("target_kl", (None, 0.0005))
def test_update_is_the_training_of_sb3(both, same_batch, target_kl):
    """To the bit on SB3's own batch, nearly so on ours; with clips that act, and a target KL that ends it early."""
    module, model, state = both.module, both.model, both.state
    args, model.target_kl = replace(both.args, target_kl=target_kl), target_kl
    batch = module.estimate_advantages(args, state, both.ours)
    batch["actions"] = flat(both.theirs, "actions").reshape(batch["actions"].shape)
    if same_batch:
        batch |= dict(obs=flat(both.theirs, "observations").float(), advantages=flat(both.theirs, "advantages"))
        batch |= dict(value_targets=flat(both.theirs, "returns"), old_values=flat(both.theirs, "values"))
        batch |= dict(old_log_probs=flat(both.theirs, "log_probs"))
    model._update_current_progress_remaining((2 + 1) * 512, 2048)
    start, before = torch.cat([p.detach().flatten() for p in model.policy.parameters()]), state.adam["step"]
    assert torch.equal(start, torch.cat([p.detach().flatten() for p in module.in_order(state)]))
    np.random.seed(7)
    model.train()
    statistics = module.update(args, state, batch)
    theirs = torch.cat([p.detach().flatten() for p in model.policy.parameters()])
    ours = torch.cat([p.detach().flatten() for p in module.in_order(state)])
    saved = model.policy.optimizer.state_dict()["state"]
    moments = torch.cat([x["exp_avg"].flatten() for x in saved.values()])
    assert state.adam["step"] == float(saved[0]["step"]) > before and state.iteration == 3
    assert statistics["policy_lr"] == model.policy.optimizer.param_groups[0]["lr"]
    assert (statistics["minibatches"] == 10 * 512 / 64) == (target_kl is None)
    if same_batch:
        assert torch.equal(ours, theirs) and torch.equal(moments, state.adam["exp_avg"])
    else:
        assert (ours - theirs).norm() < 1e-4 * (theirs - start).norm()


def test_gradient_of_the_objective_is_that_of_sb3s_policy_loss(both):
    module, model, state = both.module, both.model, both.state
    batch = {k: x[:64] for k, x in module.estimate_advantages(both.args, state, both.ours).items()}
    with torch.no_grad():
        for mine, theirs in zip(module.in_order(state), model.policy.parameters()):
            mine += 0.05 * torch.randn(mine.shape, generator=torch.Generator().manual_seed(len(mine)))
            theirs.copy_(mine)
    _, log_probs, entropy = model.policy.evaluate_actions(batch["obs"], batch["actions"])
    A, eps = batch["advantages"], model.clip_range(1)
    A, ratio = (A - A.mean()) / (A.std() + 1e-8), torch.exp(log_probs - batch["old_log_probs"])
    assert ((ratio - 1).abs() > eps).any()
    loss = -torch.min(A * ratio, A * torch.clamp(ratio, 1 - eps, 1 + eps)).mean() - model.ent_coef * entropy.mean()
    names = [name for name, _ in model.policy.named_parameters() if "value" not in name]
    theirs = torch.autograd.grad(loss, [dict(model.policy.named_parameters())[name] for name in names])
    ours = torch.autograd.grad(module.objective(both.args, state.policy, batch), list(state.policy.parameters()))
    for x, y in zip(theirs, ours):
        torch.testing.assert_close(-x, y, rtol=1e-4, atol=1e-5)


def test_files_are_the_iterations_that_they_have_reached(trained, capsys):
    for name in PLANS:
        run = trained / f"run_{name}"
        assert [x.name for x in sorted((run / "checkpoints").iterdir())] == ["iter_000002.pt", "iter_000004.pt"]
        assert [row["global_step"] for row in progress(run)] == ["512", "1024", "1536", "2048"]
    first = progress(trained / "run_hopper")[0]
    lines = (trained / "hopper" / "0.monitor.csv").read_text().splitlines()[2:]
    lengths = np.cumsum([int(line.split(",")[1]) for line in lines])
    assert int(first["episodes"]) == sum(lengths <= 512) > 2
    returns = [float(line.split(",")[0]) for line in lines][: int(first["episodes"])]
    assert float(first["episodic_return"]) == pytest.approx(np.mean(returns))
    module, args, state, model, _ = imported(trained, "hopper", 2)
    for other in (args, replace(args, num_envs=3, num_steps=100)):  # diagnostics' own rollouts do not move the schedule
        assert module.value_now(other, state, args.learning_rate) == pytest.approx(3e-4 / 4)
    source = common.runs.Source(ROOT / "diagnostics" / "sb3.py", trained / "run_hopper", 4)
    config = common.runs.read_config(source.run)
    assert common.runs.planned_steps(config) == 2048  # the iteration that it is given is not missing from its training
    assert not common.runs.can_step(source)  # its learning rate has come down to 0
    assert common.runs.can_step(source._replace(run=trained / "run_pendulum"))


def test_folder_of_the_zoo(trained, tmp_path, capsys):
    """RL Baselines3 Zoo has one file of statistics, in a folder beside the agents."""
    (tmp_path / "Hopper-v5").mkdir()
    shutil.copy(trained / "hopper" / "vecnormalize.pkl", tmp_path / "Hopper-v5")
    for name in ("rl_model_1280_steps.zip", "final.zip", "0.monitor.csv"):
        shutil.copy(trained / "hopper" / name, tmp_path)
    monitor, out = str(tmp_path / "0.monitor.csv"), tmp_path / "run"
    load("sb3").main([str(tmp_path), "--monitor", monitor, "--out", str(out)])
    assert "statistics of their own get those of" in capsys.readouterr().err
    module, paths = load("sb3"), sorted((out / "checkpoints").iterdir())
    found = [module.load_checkpoint(path)["obs_stats"]["count"] for path in paths]
    assert len(found) == 2 and found[0] == found[1]
    assert common.runs.read_config(out)["args"]["env_id"] == "Hopper-v5"  # which the monitor says


def test_diagnostics_need_no_sb3(trained, tmp_path):
    """Import and report in a Python where stable_baselines3 cannot be imported."""
    (tmp_path / "stable_baselines3.py").write_text("raise ImportError\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    agent, out = trained / "pendulum" / "final.zip", tmp_path / "run"
    flags = ["--vecnormalize", str(trained / "pendulum" / "vecnormalize.pkl"), "--env-id", "Pendulum-v1"]
    for command in (
        ["sb3.py", str(agent), "--out", str(out), *flags],
        ["report.py", str(out), "--quick"],
        ["value.py", str(out), "--heldout-pairs", "300", "--jobs", "1"],
    ):
        command[0] = str(ROOT / "diagnostics" / command[0])
        result = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)
        assert result.returncode == 0, result.stderr
    assert "random numbers" in result.stderr


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_bad_files_are_one_line_and_run_nothing(trained, tmp_path, capsys):
    agent, statistics = str(trained / "hopper" / "final.zip"), str(trained / "hopper" / "vecnormalize.pkl")
    harmful, created = tmp_path / "harmful.pkl", tmp_path / "created"
    harmful.write_bytes(pickle.dumps(Harmful(created)))
    (tmp_path / "cut.zip").write_bytes((trained / "hopper" / "final.zip").read_bytes()[:5000])
    SAC("MlpPolicy", "Pendulum-v1", device="cpu", buffer_size=10).save(tmp_path / "sac.zip")
    PPO("MlpPolicy", "CartPole-v1", device="cpu").save(tmp_path / "discrete.zip")
    PPO("MlpPolicy", "Pendulum-v1", device="cpu", use_sde=True).save(tmp_path / "sde.zip")
    with zipfile.ZipFile(agent) as whole, zipfile.ZipFile(tmp_path / "odd.zip", "w") as odd:
        for name in whole.namelist():
            odd.writestr(name, whole.read(name).replace(b'"clip_range": {', b'"clip_range": {"x": 0}, "y": {'))
    out = str(tmp_path / "run")
    (tmp_path / "some").mkdir()  # one agent with statistics beside it and one without
    for name in ("rl_model_1280_steps.zip", "rl_model_vecnormalize_1280_steps.pkl", "final.zip"):
        shutil.copy(trained / "hopper" / name, tmp_path / "some")
    refused = {
        (str(tmp_path / "some"), "--env-id", "Hopper-v5"): "final.zip has no statistics of VecNormalize",
        (agent,): "name it with --env-id",
        (str(tmp_path / "none.zip"), "--env-id", "Hopper-v5"): "No such file",
        (str(tmp_path / "cut.zip"), "--env-id", "Hopper-v5"): "damaged",
        (str(tmp_path / "sac.zip"), "--env-id", "Pendulum-v1"): "not an agent of PPO",
        (str(tmp_path / "discrete.zip"), "--env-id", "CartPole-v1"): "its actions are not vectors of numbers",
        (str(tmp_path / "sde.zip"), "--env-id", "Pendulum-v1"): "gSDE and squashed actions cannot",
        (str(tmp_path / "odd.zip"), "--env-id", "Hopper-v5"): "say it with --clip-range NUMBER",
        (agent, "--env-id", "Walker2d-v5"): "but Walker2d-v5 has 17 and 6",
        (agent, "--env-id", "Hoper-v5"): "--env-id Hoper-v5: ",
        (agent, "--env-id", "Hopper-v5", "--vecnormalize", str(harmful)): "not the pickle that VecNormalize",
        (agent, "--vecnormalize", statistics, "--monitor", agent): "not a file that SB3's Monitor",
    }
    for arguments, text in refused.items():
        capsys.readouterr()
        with patch("sys.argv", ["sb3.py"]), pytest.raises(SystemExit) as ended:
            load("sb3").main([*arguments, "--out", out])
        message = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == 2 and text in message and message.startswith("sb3.py: "), (arguments, message)
    assert not created.exists() and not (tmp_path / "run").exists()
    with pytest.raises(SystemExit):
        load("replay").main([str(trained / "run_hopper"), "--from", "2", "--to", "3"])
    assert "SB3 saves neither" in capsys.readouterr().err
