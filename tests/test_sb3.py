"""Agents of Stable-Baselines3 against Stable-Baselines3 itself: the networks, a rollout, an update, and bad files."""

import base64
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import gymnasium as gym
import lab
import numpy as np
import pytest
import torch
from conftest import ROOT, load, progress
from environments import Clock
from gymnasium.wrappers import RescaleAction
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

pytestmark = pytest.mark.xdist_group("sb3")
SCRIPT = ROOT / "diagnostics" / "sb3" / "sb3_ppo.py"
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


class Replayed:
    """Random numbers with which our rollout begins the episodes that SB3 began, and draws the actions that it drew."""

    def __init__(self, state, actions):
        self.state, self.actions, self.seeds = state, iter(actions), iter(range(1, 9))

    def integers(self, _):
        return next(self.seeds)

    def standard_normal(self, *_, **__):
        means = self.state.policy.mean(torch.from_numpy(np.array([x.obs for x in self.state.workers]))).numpy()
        return (next(self.actions) - means) / self.state.policy.log_std.exp().numpy()


@pytest.mark.parametrize("name", PLANS)
def test_rollout_and_advantages_are_those_of_sb3(name, tmp_path, capsys):
    """The first rollout of a training, from the same seeds, whose actions ours repeats."""
    env_id, n, settings = PLANS[name]
    env = VecNormalize(make_vec_env(env_id, n_envs=n))
    model = PPO("MlpPolicy", env, seed=1, device="cpu", **settings | dict(n_steps=1024 // n))
    agent, statistics = tmp_path / "agent.zip", tmp_path / "statistics.pkl"
    env.save(str(statistics))
    save = lambda local, _: local["self"].num_timesteps != n or model.save(agent) is None
    model.learn(1024, callback=save)  # the buffer then has its rows environment after environment
    bring_in(capsys, tmp_path / "run", agent, "--env-id", env_id, "--vecnormalize", statistics)
    module, theirs = load("sb3_ppo"), model.rollout_buffer
    checkpoint = module.load_checkpoint(tmp_path / "run" / "checkpoints" / "iter_000000.pt")
    args = module.Args(**checkpoint["args"])
    state = module.State(args)
    module.restore(state, checkpoint)
    state.rng = Replayed(state, theirs.actions.reshape(n, 1024 // n, -1).swapaxes(0, 1))
    ours, episodes = module.rollout(args, state)
    batch = module.estimate_advantages(args, state, ours)
    assert [x[1] for x in episodes] == [x["l"] for x in model.ep_info_buffer]
    np.testing.assert_allclose(ours["obs"], theirs.observations, atol=1e-5)
    for stats, of_env in ((state.obs_stats, env.obs_rms), (state.reward_stats, env.ret_rms)):
        np.testing.assert_allclose(stats.mean, of_env.mean, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(stats.var, of_env.var, rtol=1e-5)
    for name, x in (("advantages", "advantages"), ("value_targets", "returns"), ("old_log_probs", "log_probs")):
        torch.testing.assert_close(batch[name], torch.from_numpy(getattr(theirs, x)).flatten(), rtol=1e-4, atol=1e-4)
    assert ours["terminations"].any() == (env_id == "Hopper-v5")  # the Pendulum's end by a time limit alone


KNOWN = {"loaded into": 3, "stopped within": 3}  # rows with episodes; new monitors have not seen the iterations before
HARD = "loaded into", "four environments", "stopped within", "a rollout a call, counted on", "evaluated between"


@pytest.mark.parametrize("name", HARD)
def test_trainings_are_what_sb3_did(name, tmp_path):
    """Iterations, episodes, and one more update to the bit, of some of the ten trainings that the page has."""
    trainings = SimpleNamespace(**runpy.run_path(ROOT / "figures" / "sb3" / "trainings.py"))
    [full] = [x for x in trainings.PLANS if x.startswith(name)]
    row = trainings.run(full, tmp_path)
    assert row["iterations"] == row["of_sb3"] and row["rows"] == row["newest_of_sb3"] == row["iterations"][-1] > 0
    assert row["start_differs"] == row["update_differs"] == row["wrong_rows"] == 0
    assert row["episodes"] > 10 and row["known_rows"] == KNOWN.get(name, row["rows"])
    assert bool(row["notes"]) == (name == "evaluated between")  # its steps were counted anew


def test_the_schedule_and_the_end_are_those_of_the_training(trained):
    module, state = load("sb3_ppo"), SimpleNamespace(global_step=1024)
    args = module.Args(**module.load_checkpoint(trained / "run_hopper/checkpoints/iter_000002.pt")["args"])
    for other in (args, replace(args, num_envs=3, num_steps=100)):  # diagnostics' own rollouts do not move the schedule
        assert module.value_now(other, state, args.learning_rate) == pytest.approx(3e-4 / 4)
    checkpoint = lab.Checkpoint(SCRIPT, trained / "run_hopper", 4)
    # The iteration that it is given is not missing from its training.
    assert load("rewards").planned_steps(lab.read_config(checkpoint.run)) == 2048
    has_step = load("recorded").has_step
    assert not has_step(checkpoint)  # its learning rate has come down to 0
    assert has_step(checkpoint._replace(run=trained / "run_pendulum"))


def test_the_rooms_file_is_put_together(trained, tmp_path):
    """A diagnostic's numbers, the norms of both gradients, and how far Adam's eps shortens the critic's step."""
    run, script = trained / "run_hopper", runpy.run_path(ROOT / "figures" / "sb3" / "collect.py")
    load("trust_region").main([str(run), "--heldout-pairs", "300", "--jobs", "1", "--out", str(tmp_path)])
    row, *_, log = script["collect"](run, tmp_path)
    [measured] = [json.loads(x) for x in (tmp_path / "trust_region.jsonl").read_text().splitlines()][:1]
    assert row["iteration"] == measured["iteration"] and row["heldout"]["max_kl"] == measured["heldout"]["max_kl"][0]
    joint = np.hypot(row["policy_grad_norm"], row["value_grad_norm"])
    assert row["grad_norm"] == pytest.approx(joint, rel=0.05) and row["grad_norm"] > 0.5 and row["grads_clipped"] > 0
    assert 0.3 < row["critic_step"] < 1 and all(np.isfinite(y) for _, y in log["returns"])


def test_folder_of_the_zoo(trained, tmp_path, capsys):
    """RL Baselines3 Zoo has one file of statistics, in a folder beside the agents. It is of the end of the training."""
    shared = tmp_path / "Hopper-v5" / "vecnormalize.pkl"
    shared.parent.mkdir()
    for name in ("rl_model_1280_steps.zip", "final.zip", "0.monitor.csv"):
        shutil.copy(trained / "hopper" / name, tmp_path)
    shutil.copy(trained / "hopper" / "vecnormalize.pkl", shared)
    flags = ["--monitor", str(tmp_path / "0.monitor.csv"), "--out", str(tmp_path / "run")]
    load("sb3").main([str(tmp_path), *flags])
    captured = capsys.readouterr()
    assert captured.out.count(f"normalized by {shared}\n") == 2
    [note] = captured.err.splitlines()
    assert "1280_steps.zip has made 1,280 steps, and its statistics have taken in 2,048; unless" in note
    assert "(so for 1 of 2 agents)" in note
    assert lab.read_config(tmp_path / "run")["args"]["env_id"] == "Hopper-v5"  # which the monitor says


def test_an_environment_made_of_another_is_recorded_once():
    """The inner one's observations may be dictionaries."""
    recorded = load("recorded")
    with recorded.recorded():
        env = gym.make("environments:Timed-v0")
    found = []
    while isinstance(env, gym.Wrapper):
        found.append(isinstance(env, recorded.Recorder))
        env = env.env
    assert found[0] and sum(found) == 1


# Agents that must not become another agent, one for each way in which that has happened ------------------------------


def train(path, policy_kwargs=None, env="Pendulum-v1", change=lambda model: None, cls=PPO, total=64, **settings):
    """A small agent of two updates, saved."""
    settings = dict(n_steps=32, batch_size=16, seed=1, device="cpu") | settings
    model = cls("MlpPolicy", env, **settings, policy_kwargs=dict(net_arch=[8]) | (policy_kwargs or {}))
    change(model)
    model.learn(total).save(path)
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
    return SimpleNamespace(**lab.read_config(out)["args"]), capsys.readouterr().err.splitlines()


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
    plain, normalized = (shutil.copy(small / f"{x}.zip", tmp_path / "agents") for x in ("plain", "normalized"))
    shutil.copy(small / "statistics.pkl", other)
    assert not bring_in(capsys, tmp_path / "a", plain)[0].obs_norm
    assert "trained without VecNormalize" in bring_in(capsys, tmp_path / "b", plain, "--vecnormalize", other)[0]
    assert "trained behind VecNormalize" in bring_in(capsys, tmp_path / "c", normalized)[0]
    other.parent.rename(other.parent.with_name("normalized"))  # now it bears the agent's name
    args, _ = bring_in(capsys, tmp_path / "e", normalized)
    assert args.obs_norm and not args.norm_training and args.norm_gamma == np.float32(0.97)
    state = load("sb3_ppo").State(load("sb3_ppo").Args(norm_training=False))
    for stats in (state.obs_stats, state.reward_stats):
        stats.push(np.ones((1, *stats.mean.shape)))
        assert not stats.mean.any()


# They are refused by their names.
Extractor = type("Extractor", (FlattenExtractor,), {})
Buffer = type("Buffer", (RolloutBuffer,), {})


def replaced(make):
    """Puts another optimizer in the place of an agent's Adam, of which its settings then say nothing."""
    return lambda model: setattr(model.policy, "optimizer", make(list(model.policy.parameters())))


class Counting(PPO):
    def train(self):
        self._n_updates += self.n_epochs


PARTS = {  # of an agent, which it must not lose, and what the line says
    "extractor": (dict(policy_kwargs=dict(features_extractor_class=Extractor)), "features_extractor_class"),
    "buffer": (dict(rollout_buffer_class=Buffer), "rollout_buffer_class is not SB3's own"),
    "sde": (dict(use_sde=True), "gSDE and squashed actions cannot"),
    "rescaled": (dict(env=lambda: RescaleAction(gym.make("Pendulum-v1"), -1, 1)), "its actions had other bounds than"),
    "adamw": (dict(policy_kwargs=dict(optimizer_class=torch.optim.AdamW)), "optimizer_class"),
    "amsgrad": (dict(policy_kwargs=dict(optimizer_kwargs=dict(amsgrad=True))), "Adam with amsgrad"),
    "counting": (dict(cls=Counting), "its Adam has made no step in 20 epochs, so its train() was not PPO's"),
    "sgd": (dict(change=replaced(lambda x: torch.optim.SGD(x, lr=0.1, momentum=0.9))), "is not one Adam of all"),
    "frozen": (dict(change=lambda model: model.policy.log_std.requires_grad_(False)), "were frozen"),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_cannot_be_imported_are_named(name, tmp_path, capsys):
    settings, text = PARTS[name]
    train(tmp_path / "agent.zip", **settings | (dict(env=settings["env"]()) if "env" in settings else {}))
    assert text in bring_in(capsys, tmp_path / "run", tmp_path / "agent.zip")[0]


def test_two_trainings_are_not_one_run(small, tmp_path, capsys):
    train(tmp_path / "again.zip")
    both = small / "plain.zip", tmp_path / "again.zip"
    assert "not of one call of learn(), since they differ in start_time" in bring_in(capsys, tmp_path / "run", *both)[0]


def test_a_monitor_must_be_the_agents_own(trained, tmp_path, capsys):
    """All environments' files, with the agent's last episode; later ones and a line that was torn are left out."""
    monitors = [Path(shutil.copy(x, tmp_path)) for x in sorted((trained / "pendulum").glob("*.monitor.csv"))]
    flags = "--vecnormalize", trained / "pendulum" / "vecnormalize.pkl", "--monitor"
    agent, text = (trained / "pendulum" / "final.zip", *flags), monitors[0].read_text()
    monitors[0].write_text(text + "-5.0,1,99999.0\n-12.5,20")
    bring_in(capsys, tmp_path / "later", *agent, *monitors)
    assert progress(tmp_path / "later") == progress(trained / "run_pendulum")
    assert "names 3 files" in bring_in(capsys, tmp_path / "run", *agent, *monitors[1:])[0]
    header = "\n".join(text.splitlines()[:2]) + "\n"
    for line, content in {
        "is in none of these files": header + "-1000.0,200,0.5\n",
        "another monitor went on with it in line": text + "-900.0,200,0.01\n",
        "line 1 is not as": "-1000.0,200,0.5\n",
    }.items():
        for monitor in monitors:
            monitor.write_text(content)
        assert line in bring_in(capsys, tmp_path / "run", *agent, *monitors)[0]


def test_spaces_of_integers_are_refused(tmp_path, capsys):
    """SB3's buffer cuts actions, and what VecNormalize makes of observations, to the type of the space."""
    for name in ("action_space", "observation_space"):
        space = gym.spaces.Box(-9, 9, (1,), int)
        gym.register(f"{name}-v0", Clock, max_episode_steps=5, kwargs={name: space})
        env = VecNormalize(make_vec_env(f"{name}-v0"))
        train(tmp_path / "agent.zip", env=env)
        env.save(str(tmp_path / "vecnormalize.pkl"))
        flags = "--vecnormalize", tmp_path / "vecnormalize.pkl", "--env-id", f"{name}-v0"
        line, _ = bring_in(capsys, tmp_path / "run", tmp_path / "agent.zip", *flags)
        assert f"cuts its {name.replace('_space', 's')} to int64" in line


def test_honest_agents_with_odd_settings(tmp_path, capsys):
    """Scalars of numpy, a schedule that is only in code, what was not saved, no training, and one that diverged."""
    agent, schedule = tmp_path / "agent.zip", dict(learning_rate=lambda left: 5e-4 + 2e-4 * left)
    scalars = dict(n_steps=np.int64(32), gamma=np.float32(0.9), target_kl=np.float32(0.5), ent_coef=np.float64(0.1))
    model = train(agent, **scalars, **schedule)
    args, notes = bring_in(capsys, tmp_path / "a", agent, "--clip-range", "0.3")
    assert (args.num_steps, args.gamma, args.target_kl, args.entropy_coef) == (32, np.float32(0.9), 0.5, 0.1)
    assert args.learning_rate == model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(5e-4)
    assert "it does not spell out its learning_rate" in notes[0] and args.clip_range == 0.3
    assert "--clip-range 0.3 replaces the clip_range that the file says, 0.2" in notes[-1]
    model.save(agent, exclude=["gamma", "learning_rate", "lr_schedule", "clip_range", "clip_range_vf"])
    assert "did not save gamma, clip_range_vf" in bring_in(capsys, tmp_path / "b", agent, "--clip-range", "0.3")[0]
    model.save(agent, exclude=["learning_rate", "lr_schedule", "clip_range", "clip_range_vf"])
    assert "say it with --clip-range" in bring_in(capsys, tmp_path / "b", agent, "--clip-range-vf", "0.3")[0]
    given = "--learning-rate", "1e-3", "--clip-range", "0.3", "--clip-range-vf", "0.4"
    args, _ = bring_in(capsys, tmp_path / "b", agent, *given)
    assert (args.learning_rate, args.clip_range, args.clip_range_vf) == (1e-3, 0.3, 0.4)
    train(agent, total=70, learning_rate=lambda left: 1e-3 * left)  # its third rollout ends beyond the total
    args, _ = bring_in(capsys, tmp_path / "c", agent)
    assert args.learning_rate == 0 and args.planned_steps == args.total_timesteps == 96
    other = train(agent, learning_rate=1e-4)
    other.learning_rate = 0.5  # too late to have an effect on its training
    other.save(agent)
    assert bring_in(capsys, tmp_path / "e", agent)[0].learning_rate == 1e-4
    PPO("MlpPolicy", "Pendulum-v1", n_steps=32, batch_size=16, device="cpu").save(agent)
    assert "not been trained yet" in bring_in(capsys, tmp_path / "f", agent)[0]
    with torch.no_grad():
        model.policy.action_net.weight.fill_(np.nan)
    model.save(agent)
    assert "its training diverged" in bring_in(capsys, tmp_path / "f", agent)[0]


def test_clip_in_force_is_that_of_the_checkpoint(tmp_path, capsys):
    train(tmp_path / "agent.zip", clip_range=LinearSchedule(0.3, 0.1, 0.8))
    bring_in(capsys, tmp_path / "run", tmp_path / "agent.zip")
    checkpoint = lab.Checkpoint(SCRIPT, tmp_path / "run", 2)
    numbers = load("trust_region").measure(checkpoint, map, 0, 32)
    assert numbers["max_ratio_allowed"] == 1.1  # the first was 1.3


# Damaged and harmful files -------------------------------------------------------------------------------------------


def group(**changes):
    return lambda saved: saved | dict(param_groups=[saved["param_groups"][0] | changes])


def moments(of):
    change = lambda state: state | {0: state[0] | dict(exp_avg_sq=of(state[0]["exp_avg_sq"]))}
    return lambda saved: saved | dict(state=change(saved["state"]))


# A selection of some 1,850 edits that were tried, of which none ended in a traceback: one of each kind.
EDITS = [dict(data=dict(n_steps=x)) for x in (None, "x", 2.5, 10**30)]
EDITS += [dict(data=dict(gamma=x)) for x in (2.5, np.nan, True, [], {":serialized:": "!!"}, 10**400)]
EDITS += [dict(data=x) for x in (dict(policy_kwargs=None), dict(ep_info_buffer=None), dict(seed=-1))]
EDITS += [dict(data=dict(_current_progress_remaining=-1e300)), dict(parts={"_stable_baselines3_version": b"\xff"})]
EDITS += [dict(parts={name: b"["}) for name in ("data", "policy.pth", "policy.optimizer.pth")]
EDITS += [dict(parts={"data": b"[" * 10**5}), dict(tensors={"policy.optimizer.pth": group(lr=np.inf)})]
STRANGE = (lambda x: None, lambda x: x.double(), lambda x: x * np.nan, lambda x: x[:0], lambda x: x + 1e30)
STRANGE += (lambda x: torch.zeros(1).expand(10**5, 10**6), lambda x: x.to("meta"))
EDITS += [dict(tensors={"policy.pth": lambda x, of=of: x | dict(log_std=of(x["log_std"]))}) for of in STRANGE]
EDITS += [dict(tensors={"policy.optimizer.pth": moments(x)}) for x in (*STRANGE, lambda x: x - 1)]


def test_edited_agents_are_refused(small, tmp_path, capsys):
    for i, edit in enumerate(EDITS):
        agent = edited(small / "plain.zip", tmp_path / "edited.zip", **edit)
        line, _ = bring_in(capsys, tmp_path / f"run{i}", agent)
        assert isinstance(line, str), edit


def harmful(path):
    """A pickle that makes a folder, if it is executed."""
    return f"cos\nmkdir\n(S'{path}'\ntR.".encode()


def test_what_a_file_names_is_not_imported(small, runs, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(runs))
    (runs / "harmful.py").write_text("open('imported', 'w')")
    monitor, agent = runs / "monitor.csv", small / "plain.zip"
    for env_id in ("harmful:Pendulum-v1", "Pendulum\n-v1", 3):
        monitor.write_text("#" + json.dumps(dict(t_start=0, env_id=env_id)) + "\nr,l,t\n")
        assert "--monitor" in bring_in(capsys, runs / "run", agent, "--monitor", monitor)[0], env_id
    pickled = base64.b64encode(harmful(runs / "imported")).decode()
    for name in ("gamma", "learning_rate", "clip_range", "ep_info_buffer"):
        other = edited(agent, runs / "other.zip", data={name: {":serialized:": pickled}})
        bring_in(capsys, runs / f"run_{name}", other)
    assert not (runs / "imported").exists()


def test_diagnostics_need_no_sb3(trained, tmp_path):
    """Import and report in a Python where stable_baselines3 cannot be imported. Nothing is written where it runs."""
    (tmp_path / "stable_baselines3.py").write_text("raise ImportError\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    agent, out = trained / "pendulum" / "final.zip", tmp_path / "run"
    flags = ["--vecnormalize", str(trained / "pendulum" / "vecnormalize.pkl"), "--env-id", "Pendulum-v1"]
    for script, *arguments in (
        ["sb3", str(agent), "--out", str(out), *flags],
        ["report", str(out)],
    ):
        command = [sys.executable, str(ROOT / "diagnostics" / script), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert result.returncode == 0 and "[bad]" not in result.stdout, result.stderr + result.stdout
        assert ("neither random numbers" in result.stdout) == (script == "sb3")


def test_bad_files_are_one_line_and_run_nothing(trained, tmp_path, capsys):
    hopper, created, run = trained / "hopper", tmp_path / "created", tmp_path / "run"
    agent, statistics = hopper / "final.zip", ("--vecnormalize", hopper / "vecnormalize.pkl")
    (tmp_path / "harmful.pkl").write_bytes(harmful(created))
    (tmp_path / "cut.zip").write_bytes(agent.read_bytes()[:5000])
    SAC("MlpPolicy", "Pendulum-v1", device="cpu", buffer_size=10).save(tmp_path / "sac.zip")
    PPO("MlpPolicy", "CartPole-v1", device="cpu", n_steps=64).learn(64).save(tmp_path / "discrete.zip")
    for arguments, text in {
        (tmp_path / "none.zip",): "No such file",
        (tmp_path / "cut.zip",): "damaged",
        (tmp_path / "sac.zip",): "not an agent of PPO",
        (tmp_path / "discrete.zip", "--env-id", "CartPole-v1"): "its actions are not vectors of numbers",
        (agent, *statistics, "--env-id", "Walker2d-v5"): "have shape (11,), those of Walker2d-v5 (17,)",
        (agent, "--env-id", "Hoper-v5"): "--env-id Hoper-v5: ",
        (agent, "--vecnormalize", tmp_path / "harmful.pkl"): "not the pickle that VecNormalize",
        (agent, *statistics, "--monitor", agent): "line 1 is not as SB3's Monitor",
    }.items():
        assert text in bring_in(capsys, run, *arguments)[0], arguments
    with patch("sys.argv", ["sb3.py"]), pytest.raises(SystemExit):
        load("sb3").main([str(agent), "--out", str(run)])
    assert "name it with --env-id" in capsys.readouterr().err and not created.exists() and not run.exists()
