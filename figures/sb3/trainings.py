"""trainings.py: ten small trainings of Stable-Baselines3 (SB3), each imported by sb3.py and compared with what SB3 did:
python trainings.py trainings.json

Each call of SB3's train() is recorded: the parameters before and after it, its batch, its random numbers, and the
episodes that ended since the one before. A checkpoint of iteration k must have the parameters from after k of these
calls, and one update more from there, on SB3's batch, must end at the parameters from after k + 1."""

import contextlib
import csv
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

sys.path.append(str(Path(__file__).parents[2] / "diagnostics"))
import sb3

LONG, AGAIN, ON = dict(total=1024), dict(total=768, every=128), dict(total=768, every=128, on=True)
PLANS = {  # calls of learn(), of which the last saves its agent each so many steps; and settings of the training
    "one call, whose total divides": ([dict(total=1024, every=128)], {}),
    "a second call, counted anew": ([LONG, AGAIN], {}),
    "a second call, counted on": ([LONG, ON], {}),
    "loaded into new environments, counted on": ([LONG, ON | dict(load=True)], {}),
    "four environments, normalized, a rate that falls": (
        [dict(total=5000, every=128)],
        dict(env_id="Pendulum-v1", n_envs=4, learning_rate=LinearSchedule(1e-3, 0.0, 1.0), clip_range_vf=0.2),
    ),
    "stopped within a rollout, counted on": ([LONG | dict(stop=700), ON], {}),
    "a rollout a call, counted on": ([dict(total=256, on=True)] * 3 + [dict(total=256, every=256, on=True)], {}),
    "a rollout a call, counted anew": ([dict(total=256)] * 3 + [dict(total=256, every=256)], {}),
    "a target KL, counted anew": ([LONG, AGAIN], dict(target_kl=0.01)),
    "evaluated between two calls, counted anew": ([dict(total=700, evaluate=True), dict(total=1000, every=100)], {}),
}
SB3 = SimpleNamespace(updates=[], episodes=[], saved={})  # since its steps were counted from 0; and by a file's name


class Watched(PPO):
    def train(self):
        of = dict(obs="observations", actions="actions", advantages="advantages", value_targets="returns")
        of |= dict(old_values="values", old_log_probs="log_probs")
        arrays = {x: self.rollout_buffer.swap_and_flatten(getattr(self.rollout_buffer, y)) for x, y in of.items()}
        batch = {x: torch.tensor(y, dtype=torch.float32) for x, y in arrays.items()}
        batch = {x: y if x in ("obs", "actions") else y.flatten() for x, y in batch.items()}
        SB3.updates.append(dict(before=flat(self.policy.parameters()), batch=batch, random=np.random.get_state()))
        super().train()
        SB3.updates[-1]["after"] = flat(self.policy.parameters())

    def save(self, path, *arguments, **more):
        SB3.saved[Path(path).name] = len(SB3.updates)
        super().save(path, *arguments, **more)


class Episodes(BaseCallback):
    """Records the episodes, and stops a training at a step."""

    def __init__(self, stop):
        super().__init__()
        self.stop = stop

    def _on_step(self):
        ended = [x["episode"] for x in self.locals["infos"] if "episode" in x]
        SB3.episodes.extend((len(SB3.updates), x["r"], x["l"]) for x in ended)
        return self.num_timesteps != self.stop


def flat(parameters):
    return torch.cat([p.detach().flatten() for p in parameters])


def train(folder, calls, env_id="Hopper-v5", n_envs=1, **settings):
    """Trains, imports what the last call has saved, and goes on for one update more. Returns notes of the import."""
    make = lambda name: make_vec_env(env_id, n_envs, seed=1, monitor_dir=str(folder / name))
    env = make("first") if n_envs == 1 else VecNormalize(make("first"))
    kwargs = dict(n_steps=256, n_epochs=4, policy_kwargs=dict(net_arch=[16]), seed=1, device="cpu") | settings
    model, monitors = Watched("MlpPolicy", env, **kwargs), folder / "first"
    for call in calls:
        if call.get("load"):
            model.save(folder / "loaded")
            monitors = folder / "second"
            model = Watched.load(folder / "loaded", env=make("second"), device="cpu")
        if not call.get("on"):
            SB3.updates, SB3.episodes = [], []
        SB3.saved, watch = {}, Episodes(call.get("stop"))
        every = CheckpointCallback(call.get("every", 10**9), str(folder / "agents"), save_vecnormalize=True)
        model.learn(call["total"], [watch, every], reset_num_timesteps=not call.get("on"))
        if call.get("evaluate"):
            evaluate_policy(model, env, 5)
    model.save(folder / "agents" / "final.zip")
    statistics = ["--vecnormalize", str(folder / "statistics.pkl")] if n_envs > 1 else []
    if statistics:
        env.save(statistics[1])
    files = [str(folder / "agents"), "--monitor", *map(str, sorted(monitors.glob("*.csv")))]
    with contextlib.redirect_stderr(io.StringIO()) as notes, contextlib.redirect_stdout(io.StringIO()):
        sb3.main([*files, *statistics, "--out", str(folder / "run")])
    model.collect_rollouts(model.env, watch, model.rollout_buffer, model.n_steps)
    model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
    model.train()
    return sorted({re.sub(r".*note: .*?: ", "", x) for x in notes.getvalue().splitlines()})


def compare(run):
    """Returns what a run says beside what SB3 did: iterations, episodes, and differences of parameters."""
    starts, ends, found = [], [], sorted((run / "checkpoints").iterdir())
    for path in found:
        checkpoint = sb3.load_checkpoint(path)
        args = sb3.Args(**checkpoint["args"])
        state, update = sb3.State(args), SB3.updates[checkpoint["iteration"]]
        sb3.restore(state, checkpoint)
        starts.append(float((flat(sb3.in_order(state)) - update["before"]).abs().max()))
        batch = dict(update["batch"])
        for name in ("clip_range", "clip_range_vf"):
            if getattr(args, name) is not None:
                batch[name] = torch.full_like(batch["advantages"], sb3.value_now(args, state, getattr(args, name)))
        state.rng = np.random.RandomState()
        state.rng.set_state(update["random"])
        sb3.update(args, state, batch)
        ends.append(float((flat(sb3.in_order(state)) - update["after"]).abs().max()))
    wrong, rows = 0, [x for x in csv.DictReader(open(run / "progress.csv")) if x["episodes"]]
    for row in rows:
        of = [(total, length) for i, total, length in SB3.episodes if i == int(row["iteration"])]
        means = np.mean(of, axis=0) if of else []
        same = [float(row[x]) for x in ("episodic_return", "episodic_length") if row[x]] == list(means)
        wrong += not (same and int(row["episodes"]) == len(of))
    iterations = dict(files=len(SB3.saved), iterations=[int(x.stem[5:]) for x in found])
    iterations |= dict(of_sb3=sorted({*SB3.saved.values()}), newest=SB3.saved["final.zip"])
    episodes = dict(rows=len(rows), episodes=sum(int(x["episodes"]) for x in rows), wrong_rows=wrong)
    return iterations | episodes | dict(start_differs=max(starts), update_differs=max(ends))


def main():
    torch.set_num_threads(1)
    rows = []
    for name, (calls, settings) in PLANS.items():
        with tempfile.TemporaryDirectory() as folder:
            notes = train(Path(folder), calls, **settings)
            rows.append(dict(training=name) | compare(Path(folder) / "run") | dict(notes=notes))
            print(rows[-1])
    Path(sys.argv[1]).write_text("[" + ",\n".join(map(json.dumps, rows)) + "]\n")


if __name__ == "__main__":
    main()
