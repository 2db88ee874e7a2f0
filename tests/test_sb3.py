"""Agents of Stable-Baselines3 against Stable-Baselines3 itself: the networks, a rollout, an update, and bad files."""

import base64
import copy
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import gymnasium as gym
import measuring.runs
import measuring.sampling
import numpy as np
import pytest
import torch
from conftest import ROOT, load, progress
from gymnasium.wrappers import RescaleAction
from scipy.stats import ttest_ind
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
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
    state = module.State(args)
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
    source = measuring.runs.Source(ROOT / "diagnostics" / "sb3.py", trained / f"run_{name}", 4)
    parameters = measuring.sampling.flat_parameters(load("evaluate").acting_policy(source, True)).numpy()
    played, single = measuring.sampling.play_seeds(source, (0,), 0, 5, parameters), gym.make(args.env_id)
    for i, (total, length) in enumerate(played):
        obs, _ = single.reset(seed=int(measuring.sampling.generator(source, 0, i).integers(2**31)))
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
    source = measuring.runs.Source(ROOT / "diagnostics" / "sb3.py", trained / "run_hopper", 4)
    played = measuring.sampling.play_seeds(source, (0,), 0, 40)
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
        means = self.module.numpy_forward(self.state.policy.mean)(np.array([x.obs for x in self.state.workers]))
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
    envs = [Recorded(env, steps, i) for i in range(args.num_envs)]
    state.workers = [module.Worker(x, last[i], past_rewards=sums[i]) for i, x in enumerate(envs)]
    for stats, theirs in zip((state.obs_stats, state.reward_stats), statistics):
        stats.mean, stats.var, stats.count = theirs.mean, theirs.var, theirs.count
    state.rng = Noise(module, state, buffer.actions.copy())
    experience, _ = module.rollout(args, state)
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


def test_gradient_of_the_policy_loss_is_that_of_sb3(both):
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
    loss = module.policy_loss(both.args, state.policy(batch["obs"]), batch)
    for x, y in zip(theirs, torch.autograd.grad(loss, list(state.policy.parameters()))):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


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
    source = measuring.runs.Source(ROOT / "diagnostics" / "sb3.py", trained / "run_hopper", 4)
    config = measuring.runs.read_config(source.run)
    assert (
        measuring.runs.planned_steps(config) == 2048
    )  # the iteration that it is given is not missing from its training
    assert not measuring.runs.can_step(source)  # its learning rate has come down to 0
    assert measuring.runs.can_step(source._replace(run=trained / "run_pendulum"))


def test_folder_of_the_zoo(trained, tmp_path, capsys):
    """RL Baselines3 Zoo has one file of statistics, in a folder beside the agents."""
    (tmp_path / "Hopper-v5").mkdir()
    shutil.copy(trained / "hopper" / "vecnormalize.pkl", tmp_path / "Hopper-v5")
    for name in ("rl_model_1280_steps.zip", "final.zip", "0.monitor.csv"):
        shutil.copy(trained / "hopper" / name, tmp_path)
    monitor, out = str(tmp_path / "0.monitor.csv"), tmp_path / "run"
    load("sb3").main([str(tmp_path), "--monitor", monitor, "--out", str(out)])
    shared = tmp_path / "Hopper-v5" / "vecnormalize.pkl"
    assert capsys.readouterr().out.count(f"normalized by {shared}\n") == 2
    module, paths = load("sb3"), sorted((out / "checkpoints").iterdir())
    found = [module.load_checkpoint(path)["obs_stats"]["count"] for path in paths]
    assert len(found) == 2 and found[0] == found[1]
    assert measuring.runs.read_config(out)["args"]["env_id"] == "Hopper-v5"  # which the monitor says


# Agents that must not become another agent, one for each way in which that has happened ------------------------------


def train(path, policy_kwargs=None, env="Pendulum-v1", **settings):
    """A small agent of two updates, saved."""
    kwargs = dict(net_arch=[8]) | (policy_kwargs or {})
    model = PPO(
        "MlpPolicy", env, **dict(n_steps=32, batch_size=16, seed=1, device="cpu") | settings, policy_kwargs=kwargs
    )
    model.learn(64).save(path)
    return model


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Small agents of the Pendulum: one as it is, and one behind VecNormalize, with its statistics."""
    folder = tmp_path_factory.mktemp("small")
    train(folder / "plain.zip")
    env = VecNormalize(make_vec_env("Pendulum-v1", seed=1), gamma=np.float32(0.97), training=False)
    train(folder / "normalized.zip", env=env)
    env.save(str(folder / "statistics.pkl"))
    return folder


def bring_in(capsys, out, *arguments):
    """Imports an agent of the Pendulum -> its arguments, or the line that refuses it; and the notes."""
    capsys.readouterr()
    flags = [*map(str, arguments), "--out", str(out)] + ["--env-id", "Pendulum-v1"] * ("--env-id" not in arguments)
    with patch("sys.argv", ["sb3.py"]):
        try:
            load("sb3").main(flags)
        except SystemExit as ended:
            [*notes, line] = capsys.readouterr().err.splitlines()
            assert ended.code == 2 and line.startswith("sb3.py: ") and not out.exists()
            return line, notes
    return SimpleNamespace(**measuring.runs.read_config(out)["args"]), capsys.readouterr().err.splitlines()


def edited(path, new, data=None, parts=None, tensors=None):
    """A copy of an agent's zip file with other settings, other parts or other tensors."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as file:
        for name in old.namelist():
            content = old.read(name)
            if name == "data" and data:
                content = json.dumps(json.loads(content) | data)
            if name in (tensors or {}):
                buffer = io.BytesIO()
                torch.save(tensors[name](torch.load(io.BytesIO(content), weights_only=True)), buffer)
                content = buffer.getvalue()
            file.writestr(name, (parts or {}).get(name, content))
    return new


def test_statistics_are_the_agents_own(small, tmp_path, capsys):
    other = tmp_path / "agents" / "cheetah" / "vecnormalize.pkl"
    other.parent.mkdir(parents=True)
    for name in ("plain.zip", "normalized.zip"):
        shutil.copy(small / name, tmp_path / "agents")
    shutil.copy(small / "statistics.pkl", other)
    plain, normalized = (tmp_path / "agents" / f"{name}.zip" for name in ("plain", "normalized"))
    assert not bring_in(capsys, tmp_path / "a", plain)[0].obs_norm
    assert "trained without VecNormalize" in bring_in(capsys, tmp_path / "b", plain, "--vecnormalize", other)[0]
    assert "trained behind VecNormalize" in bring_in(capsys, tmp_path / "c", normalized)[0]
    assert not bring_in(capsys, tmp_path / "d", normalized, "--without-vecnormalize")[0].obs_norm
    other.parent.rename(other.parent.with_name("normalized"))  # now it bears the agent's name
    args, _ = bring_in(capsys, tmp_path / "e", normalized)
    assert args.obs_norm and not args.norm_training and args.norm_gamma == np.float32(0.97)
    module = load("sb3")
    state = module.State(module.Args(norm_training=False))
    for stats in (state.obs_stats, state.reward_stats):
        stats.push(np.ones((1, *stats.mean.shape)))
        assert not stats.mean.any()


class Squashing(BaseFeaturesExtractor):
    def __init__(self, space):
        super().__init__(space, space.shape[0])

    def forward(self, obs):
        return 0.1 * torch.tanh(obs)


class Signs(RolloutBuffer):
    def compute_returns_and_advantage(self, **arguments):
        super().compute_returns_and_advantage(**arguments)
        self.advantages = np.sign(self.advantages)


class ReLU(torch.nn.ReLU):
    def forward(self, x):
        return -super().forward(x)


PARTS = {  # of an agent, which it must not lose, and what the line says
    "features": (dict(policy_kwargs=dict(features_extractor_class=Squashing)), "features_extractor_class"),
    "adamw": (dict(policy_kwargs=dict(optimizer_class=torch.optim.AdamW)), "optimizer_class"),
    "sgd": (dict(policy_kwargs=dict(optimizer_class=torch.optim.SGD, optimizer_kwargs={})), "optimizer_class"),
    "amsgrad": (dict(policy_kwargs=dict(optimizer_kwargs=dict(amsgrad=True))), "Adam with amsgrad"),
    "maximize": (dict(policy_kwargs=dict(optimizer_kwargs=dict(maximize=True))), "Adam with maximize"),
    "buffer": (dict(rollout_buffer_class=Signs), "rollout_buffer_class is not SB3's own"),
    "prelu": (dict(policy_kwargs=dict(activation_fn=torch.nn.PReLU)), "activation_fn is <class 'torch.nn"),
    "rrelu": (dict(policy_kwargs=dict(activation_fn=torch.nn.RReLU)), "activation_fn is <class 'torch.nn"),
    "own": (dict(policy_kwargs=dict(activation_fn=ReLU)), "activation_fn is <class 'test_sb3.ReLU'>"),
    "rescaled": (
        dict(env=lambda: RescaleAction(gym.make("Pendulum-v1"), -1, 1)),
        "its actions had other bounds than those of Pendulum-v1",
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_cannot_be_imported_are_named(name, tmp_path, capsys):
    settings, text = PARTS[name]
    settings = settings | (dict(env=settings["env"]()) if "env" in settings else {})
    train(tmp_path / "agent.zip", **settings)
    assert text in bring_in(capsys, tmp_path / "run", tmp_path / "agent.zip")[0]


def test_two_trainings_are_not_one_run(small, tmp_path, capsys):
    for seed in (1, 2):
        train(tmp_path / f"{seed}.zip", seed=seed)
    both = tmp_path / "1.zip", tmp_path / "2.zip"
    assert "not of one training, since they differ in seed" in bring_in(capsys, tmp_path / "run", *both)[0]
    train(tmp_path / "2.zip")
    assert "they differ in start_time" in bring_in(capsys, tmp_path / "run", *both)[0]


def test_honest_agents_with_odd_settings(tmp_path, capsys):
    """Scalars of numpy, a schedule that only its code knows, no training at all, and a training that diverged."""
    agent, schedule = tmp_path / "agent.zip", dict(learning_rate=lambda left: 5e-4 + 2e-4 * left)
    scalars = dict(n_steps=np.int64(32), gamma=np.float32(0.9), target_kl=np.float32(0.5), ent_coef=np.float64(0.1))
    model = train(agent, **scalars, **schedule)
    args, notes = bring_in(capsys, tmp_path / "a", agent)
    assert (args.num_steps, args.gamma, args.target_kl, args.entropy_coef) == (32, np.float32(0.9), 0.5, 0.1)
    assert args.learning_rate == model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(5e-4)
    assert "only its own code knows its learning_rate" in notes[0]
    args, _ = bring_in(capsys, tmp_path / "b", agent, "--learning-rate", "1e-3")
    assert args.learning_rate == 1e-3
    args, notes = bring_in(capsys, tmp_path / "c", agent, "--clip-range", "0.3")
    assert args.clip_range == 0.3 and "--clip-range 0.3 replaces the clip_range that the file says, 0.2" in notes[-1]
    PPO("MlpPolicy", "Pendulum-v1", n_steps=32, batch_size=16, device="cpu").save(agent)
    assert "not been trained yet" in bring_in(capsys, tmp_path / "d", agent)[0]
    with torch.no_grad():
        model.policy.action_net.weight.fill_(np.nan)
    model.save(agent)
    assert "its training diverged" in bring_in(capsys, tmp_path / "e", agent)[0]


def first(of):
    return lambda tensors: tensors | {next(iter(tensors)): of(next(iter(tensors.values())))}


def group(**changes):
    return lambda saved: saved | dict(param_groups=[saved["param_groups"][0] | changes])


def moments(name, of):
    return lambda saved: (
        saved | dict(state=saved["state"] | {0: saved["state"][0] | {name: of(saved["state"][0][name])}})
    )


# A selection of some 1,850 edits that were tried, of which none ended in a traceback.
EDITS = [dict(data={name: x}) for name in ("n_steps", "n_epochs", "_total_timesteps") for x in (None, "x", 2.5, 10**30)]
EDITS += [dict(data=dict(gamma=x)) for x in (None, 2.5, np.nan, True, [], {":serialized:": "!!"}, 10**400)]
EDITS += [dict(data={name: None}) for name in ("clip_range", "policy_kwargs", "observation_space", "action_space")]
EDITS += [dict(data=dict(seed=-1)), dict(data=dict(clip_range=-0.2)), dict(data=dict(max_grad_norm=-1))]
EDITS += [dict(data=dict(_current_progress_remaining=-1e300)), dict(data=dict(policy_kwargs=dict(activation_fn=3)))]
EDITS += [dict(parts={name: x}) for name in ("data", "policy.pth", "policy.optimizer.pth") for x in (b"", b"[]", b"{")]
EDITS += [dict(parts={"data": b"[" * 10**5}), dict(parts={"_stable_baselines3_version": b"\xff"})]
EDITS += [dict(tensors={name: lambda _: {}}) for name in ("policy.pth", "policy.optimizer.pth")]
STRANGE = (lambda x: None, lambda x: x.double(), lambda x: x * np.nan, lambda x: x[:0], lambda x: x + 1e30)
STRANGE += (lambda x: torch.zeros(1).expand(10**5, 10**6), lambda x: x.to("meta"))
EDITS += [dict(tensors={"policy.pth": first(x)}) for x in STRANGE]
EDITS += [dict(tensors={"policy.optimizer.pth": moments("exp_avg_sq", x)}) for x in (*STRANGE, lambda x: x - 1)]
EDITS += [dict(tensors={"policy.optimizer.pth": group(**x)}) for x in (dict(betas=()), dict(eps="x"), dict(lr=np.inf))]


def test_edited_agents_are_refused(small, tmp_path, capsys):
    for i, edit in enumerate(EDITS):
        agent = edited(small / "plain.zip", tmp_path / "edited.zip", **edit)
        line, _ = bring_in(capsys, tmp_path / f"run{i}", agent)
        assert isinstance(line, str), edit


def test_edited_statistics_are_refused(small, tmp_path, capsys):
    statistics, env = tmp_path / "statistics.pkl", VecNormalize(make_vec_env("Pendulum-v1"), clip_obs=5.0)
    flags = small / "normalized.zip", "--vecnormalize", statistics
    env.save(str(statistics))
    assert bring_in(capsys, tmp_path / "whole", *flags)[0].obs_clip_range == 5.0
    edits = [(env, dict(gamma=np.nan, clip_obs=-1.0, epsilon="x", norm_obs=None, ret_rms=3))]
    edits += [(env.obs_rms, dict(mean=np.full(3, np.nan), var=-np.ones(3), count=np.nan))]
    for of, changes in edits:
        for name, x in changes.items():
            with patch.object(of, name, x):
                env.save(str(statistics))
            assert "not the pickle that" in bring_in(capsys, tmp_path / "run", *flags)[0], name
    # The Unpickler allocates as much memory as the largest number under which it has to remember an object.
    env.save(str(statistics))
    whole = statistics.read_bytes()
    statistics.write_bytes(whole[:2] + b"Nr" + (2**22).to_bytes(4, "little") + b"0" + whole[2:])
    assert "not the pickle that" in bring_in(capsys, tmp_path / "run", *flags)[0]


def test_sizes_are_looked_at_before_anything_is_unpacked(small, tmp_path, capsys):
    agent = edited(small / "plain.zip", tmp_path / "large.zip", parts={"data": b" " * 70_000_000})
    tracemalloc.start()
    line, _ = bring_in(capsys, tmp_path / "run", agent)
    assert "its data would take 70,000,000 bytes" in line and tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data/0", bytes(10**7))
    agent = edited(small / "plain.zip", agent, parts={"policy.pth": buffer.getvalue()})
    with patch("torch.load", side_effect=AssertionError):
        assert "damaged" in bring_in(capsys, tmp_path / "run", agent)[0]


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_what_a_file_names_is_not_imported(small, runs, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(runs))
    code = "open('imported', 'w')"
    (runs / "harmful.py").write_text(code)
    monitor, agent = runs / "monitor.csv", small / "plain.zip"
    for env_id in ("harmful:Pendulum-v1", "Pendulum\n-v1", 3):
        monitor.write_text("#" + json.dumps(dict(t_start=0, env_id=env_id)) + "\nr,l,t\n")
        line, _ = bring_in(capsys, runs / "run", agent, "--monitor", monitor)
        assert "--monitor" in line, env_id
    pickled = base64.b64encode(pickle.dumps(Harmful(runs / "imported"))).decode()
    for name in ("gamma", "learning_rate", "clip_range"):
        harmful = edited(agent, runs / "harmful.zip", data={name: {":serialized:": pickled}})
        bring_in(capsys, runs / f"run_{name}", harmful)
    monitor.write_text('#{"t_start": 0, "env_id": "Hopper-v5"}\nr,l,t\n')
    _, notes = bring_in(capsys, runs / "run", agent, "--monitor", monitor)
    assert "--monitor says that the environment was Hopper-v5" in notes[-1]
    (runs / "harmful.py").rename(runs / "run" / "harmful.py")
    (runs / "run" / "__init__.py").write_text(code)
    config, checkpoint = json.loads((runs / "run" / "config.json").read_text()), runs / "run/checkpoints/iter_000002.pt"
    for module in ("run.harmful", "run", "this"):
        config["args"]["env_id"] = f"{module}:Pendulum-v1"
        (runs / "run" / "config.json").write_text(json.dumps(config))
        with pytest.raises(SystemExit) as ended:
            load("trust_region").main(["run", "--jobs", "1"])
        assert ended.value.code == 2 and "if you trust it" in capsys.readouterr().err
    (runs / "run" / "__init__.py").unlink()
    config["args"]["env_id"] = "mine:Mine-v0"  # a file of the reader's own
    (runs / "run" / "config.json").write_text(json.dumps(config))
    (runs / "mine.py").write_text(
        "import gymnasium\ngymnasium.register('Mine-v0', gymnasium.spec('Pendulum-v1').entry_point)"
    )
    assert measuring.runs.read_config(runs / "run")
    source = measuring.runs.Source(ROOT / "diagnostics" / "sb3.py", runs / "run", 2)
    with pytest.raises(SystemExit):  # the checkpoint says Pendulum-v1
        measuring.runs.checkpoint_of(source)
    torch.save(torch.load(checkpoint, weights_only=True) | dict(args=config["args"]), checkpoint)
    assert measuring.runs.can_step(source) and not (runs / "imported").exists()


def test_clip_in_force_is_that_of_the_checkpoint(tmp_path, capsys):
    train(tmp_path / "agent.zip", clip_range=LinearSchedule(0.3, 0.1, 0.8))
    bring_in(capsys, tmp_path / "run", tmp_path / "agent.zip")
    source = measuring.runs.Source(ROOT / "diagnostics" / "sb3.py", tmp_path / "run", 2)
    numbers = load("trust_region").measure(source, 0, 32)
    assert numbers["max_ratio_allowed"] == 1.1  # the first was 1.3


def test_environments_write_no_log(runs):
    code = "import sb3; sb3.State(sb3.Args(env_id='HalfCheetah-v5'))"
    beside = os.environ | {"PYTHONPATH": str(ROOT / "diagnostics")}
    result = subprocess.run([sys.executable, "-c", code], env=beside, capture_output=True, text=True, check=True)
    assert result.stderr == "" and list(runs.iterdir()) == []


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
        (str(tmp_path / "some"), "--env-id", "Hopper-v5"): "final.zip was trained behind VecNormalize",
        (agent,): "name it with --env-id",
        (str(tmp_path / "none.zip"), "--env-id", "Hopper-v5"): "No such file",
        (str(tmp_path / "cut.zip"), "--env-id", "Hopper-v5"): "damaged",
        (str(tmp_path / "sac.zip"), "--env-id", "Pendulum-v1"): "not an agent of PPO",
        (str(tmp_path / "discrete.zip"), "--env-id", "CartPole-v1"): "its actions are not vectors of numbers",
        (str(tmp_path / "sde.zip"), "--env-id", "Pendulum-v1"): "gSDE and squashed actions cannot",
        (str(tmp_path / "odd.zip"), "--env-id", "Hopper-v5"): "say it with --clip-range NUMBER",
        (agent, "--env-id", "Walker2d-v5"): "have shape (11,), those of Walker2d-v5 (17,)",
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
