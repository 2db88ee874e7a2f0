"""Makes ten small trainings of Stable-Baselines3 (SB3), imports each with sb3.py, and compares that with what SB3 did.

python figures/sb3/trainings.py figures/sb3/trainings.json

Each call of SB3's train() is recorded: the parameters before and after it, its batch, its random numbers, and the
episodes that ended in its rollout. A checkpoint of iteration k must have the parameters from after k of these calls,
and one update more from there, on SB3's batch, must end at the parameters from after k + 1."""

import csv
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback, ConvertCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize
from torch.nn.utils import parameters_to_vector as flat

sys.path += [str(Path(__file__).parents[2] / "diagnostics" / x) for x in ("", "sb3")]
import sb3
import sb3_files
import sb3_ppo

LONG, SHORT, AGAIN, ON = dict(total=1024), dict(total=256), dict(total=768, every=128), dict(on=True)
FALLS = dict(learning_rate=LinearSchedule(1e-3, 0.0, 1.0))
NORMALIZED = FALLS | dict(env_id="Pendulum-v1", n_envs=4, clip_range_vf=0.2)
PLANS = {  # calls of learn(), of which the last saves its agent each so many steps; and settings of the training
    "one call, whose total divides": ([LONG | dict(every=128)], {}),
    "a second call, counted anew": ([LONG, AGAIN], {}),
    "a second call, counted on": ([LONG, AGAIN | ON], {}),
    "loaded into new environments, counted on": ([LONG, AGAIN | ON | dict(load=True)], {}),
    "four environments, normalized, a rate that falls": ([dict(total=5000, every=128)], NORMALIZED),
    "stopped within a rollout, counted on, a rate that falls": ([LONG | dict(stop=700), AGAIN | ON], FALLS),
    "a rollout a call, counted on": ([SHORT | ON] * 3 + [SHORT | ON | dict(every=256)], {}),
    "a rollout a call, counted anew": ([SHORT] * 3 + [SHORT | dict(every=256)], {}),
    "a target KL that stops updates, counted anew": ([LONG, AGAIN], dict(target_kl=1e-5)),
    "evaluated between two calls, counted anew": ([dict(total=700, evaluate=True), dict(total=1000, every=100)], {}),
}
BATCH = dict(obs="observations", actions="actions", advantages="advantages", value_targets="returns")
BATCH |= dict(old_values="values", old_log_probs="log_probs")
done = SimpleNamespace()  # by SB3: updates since its steps were counted from 0, episodes of the rollout, files, notes


def watch(local, _):
    done.episodes += [(x["episode"]["r"], x["episode"]["l"]) for x in local["infos"] if "episode" in x]
    return local["self"].num_timesteps != done.stop


class Watched(PPO):
    def train(self):
        arrays = {x: self.rollout_buffer.swap_and_flatten(getattr(self.rollout_buffer, y)) for x, y in BATCH.items()}
        batch = {x: torch.from_numpy(y).float() for x, y in arrays.items()}
        batch |= {x: batch[x].flatten() for x in [*BATCH][2:]}
        update = dict(before=flat(self.policy.parameters()).detach(), batch=batch, random=np.random.get_state())
        super().train()
        done.updates.append(update | dict(after=flat(self.policy.parameters()).detach(), episodes=done.episodes))
        done.episodes = []

    def save(self, path, *arguments, **more):
        done.files[Path(path).name] = len(done.updates)
        super().save(path, *arguments, **more)


def train(folder, calls, env_id="Hopper-v5", n_envs=1, **settings):
    """Trains, imports what the last call has saved, and goes on in SB3 for one update more."""
    make = lambda name: make_vec_env(env_id, n_envs, seed=1, monitor_dir=str(folder / name))
    env, monitors = make("first") if n_envs == 1 else VecNormalize(make("first")), "first"
    kwargs = dict(n_steps=256, n_epochs=4, policy_kwargs=dict(net_arch=[16]), seed=1, device="cpu") | settings
    model, done.updates, done.notes, done.files = Watched("MlpPolicy", env, **kwargs), [], [], {}
    for call in calls:
        if call.get("load"):
            model.save(folder / "loaded")
            model, monitors = Watched.load(folder / "loaded", env=make("second"), device="cpu"), "second"
        done.updates, done.episodes, done.files = done.updates if call.get("on") else [], [], {}
        callback, done.stop = ConvertCallback(watch), call.get("stop")
        every = CheckpointCallback(call.get("every", 10**9), str(folder / "agents"), save_vecnormalize=True)
        model.learn(call["total"], [callback, every], reset_num_timesteps=not call.get("on"))
        if call.get("evaluate"):
            evaluate_policy(model, env, 5)
    model.save(folder / "agents" / "final.zip")
    flags = ["--out", str(folder / "run"), "--monitor", *map(str, sorted((folder / monitors).glob("*.csv")))]
    if n_envs > 1:
        env.save(str(folder / "statistics.pkl"))
        flags += ["--vecnormalize", str(folder / "statistics.pkl")]
    with patch.object(sb3, "note", done.notes.append), patch.object(sb3_files, "note", done.notes.append):
        sb3.main([str(folder / "agents"), *flags])
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
    model.train()


def compare(run):
    """Returns what a run says beside what SB3 did: iterations, episodes, and differences of parameters."""
    starts, ends, found = [], [], sorted((run / "checkpoints").iterdir())
    for path in found:
        checkpoint = sb3_ppo.load_checkpoint(path)
        args = sb3_ppo.Args(**checkpoint["args"])
        state, update = sb3_ppo.State(args), done.updates[checkpoint["iteration"]]
        sb3_ppo.restore(state, checkpoint)
        starts.append(float((flat(sb3_ppo.in_order(state)).detach() - update["before"]).abs().max()))
        clips, like = {}, update["batch"]["advantages"]
        for name in [x for x in ("clip_range", "clip_range_vf") if getattr(args, x) is not None]:
            clips[name] = torch.full_like(like, sb3_ppo.value_now(args, state, getattr(args, name)))
        state.rng = np.random.RandomState()
        state.rng.set_state(update["random"])
        sb3_ppo.update(args, state, update["batch"] | clips)
        ends.append(float((flat(sb3_ppo.in_order(state)).detach() - update["after"]).abs().max()))
    wrong, rows = 0, list(csv.DictReader(open(run / "progress.csv")))
    known = [x for x in rows if x["episodes"]]
    for row in known:
        episodes = done.updates[int(row["iteration"])]["episodes"]
        means = [float(row[x]) for x in ("episodic_return", "episodic_length") if row[x]]
        true = np.mean(episodes, axis=0) if episodes else np.array([])
        wrong += int(row["episodes"]) != len(episodes) or not np.allclose(means, true, rtol=1e-12, atol=0)
    counts = dict(rows=len(rows), known_rows=len(known), wrong_rows=wrong)
    counts |= dict(episodes=sum(int(x["episodes"]) for x in known), iterations=[int(x.stem[5:]) for x in found])
    counts |= dict(of_sb3=sorted({*done.files.values()}), newest_of_sb3=done.files["final.zip"])
    return counts | dict(start_differs=max(starts), update_differs=max(ends))


def run(name, folder):
    calls, settings = PLANS[name]
    train(folder, calls, **settings)
    notes = sorted({x.replace(str(folder), "") for x in done.notes})
    return dict(training=name, files=len(done.files)) | compare(folder / "run") | dict(notes=notes)


if __name__ == "__main__":
    rows = []
    for name in PLANS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(run(name, Path(folder)))
    Path(sys.argv[1]).write_text("[" + ",\n".join(map(json.dumps, rows)) + "]\n")
