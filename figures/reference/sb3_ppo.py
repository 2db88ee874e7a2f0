"""Trains the PPO of Stable-Baselines3 at its defaults, with VecNormalize at its defaults, and logs the returns of each
iteration as our scripts do.

    python figures/reference/sb3_ppo.py --env-id Hopper-v5 --seed 1 --out runs/sb3

SB3's defaults are those of PPO("MlpPolicy"): one environment, iterations of 2,048 steps, ten epochs of minibatches of
64, a constant rate of 3e-4 for both networks, and a gradient norm of 0.5. VecNormalize is not among them, but without
it PPO sees raw observations and rewards; SB3's own tips recommend it. Nothing was tuned for this comparison. SB3 cannot
resume a run exactly, so that an interrupted one begins anew.
"""

import csv
import hashlib
import importlib.metadata
import json
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from tqdm import tqdm


@dataclass(frozen=True, kw_only=True)
class Args:
    env_id: str
    """environment"""
    seed: int
    """seed of the agent and of its environment"""
    out: Path
    """folder of the run, which is emptied before"""
    total_timesteps: int = 1_000_000
    """environment steps, of which whole iterations are taken"""


class Returns(BaseCallback):
    """Writes a row of progress.csv after each rollout, with the mean undiscounted, unscaled return of the episodes that
    ended in it, which is empty where none did."""

    def __init__(self, path: Path, bar: tqdm):
        super().__init__()
        self.path, self.bar, self.returns, self.iteration, self.time = path, bar, [], 0, time.perf_counter()
        self.write("iteration", "global_step", "sps", "episodes", "episodic_return")

    def write(self, *row) -> None:
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow(row)

    def _on_step(self) -> bool:
        # Monitor stands inside VecNormalize, so that its returns are those of the raw rewards.
        self.returns += [x["episode"]["r"] for x in self.locals["infos"] if "episode" in x]
        return True

    def _on_rollout_end(self) -> None:
        mean, now = float(np.mean(self.returns)) if self.returns else "", time.perf_counter()
        # From one rollout's end to the next there is one update, as in an iteration of ours.
        speed = (self.num_timesteps - self.bar.n) / (now - self.time)
        self.write(self.iteration, self.num_timesteps, round(speed, 1), len(self.returns), mean)
        self.bar.update(self.num_timesteps - self.bar.n)
        self.returns, self.iteration, self.time = [], self.iteration + 1, now


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, description=__doc__)
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    torch.set_num_threads(1)
    envs = VecNormalize(DummyVecEnv([lambda: Monitor(gym.make(args.env_id))]))
    agent = PPO("MlpPolicy", envs, seed=args.seed, device="cpu")
    planned_steps = args.total_timesteps - args.total_timesteps % agent.n_steps
    packages = "stable-baselines3", "torch", "gymnasium", "mujoco", "numpy"
    config = dict(algo="sb3_ppo", script=hashlib.sha256(Path(__file__).read_bytes()).hexdigest())
    config |= dict(args=dict(env_id=args.env_id, seed=args.seed, total_timesteps=args.total_timesteps))
    config["args"] |= dict(num_envs=1, num_steps=agent.n_steps)
    cpuinfo = Path("/proc/cpuinfo").read_text() if sys.platform == "linux" else ""  # as the scripts of algos/ do it
    processor = cpuinfo.partition("model name\t: ")[2].partition("\n")[0] or platform.processor()
    config |= dict(versions={x: importlib.metadata.version(x) for x in packages}, processor=processor)
    (args.out / "config.json").write_text(json.dumps(config, indent=4))
    with tqdm(total=planned_steps, unit=" steps", mininterval=30) as bar:
        agent.learn(planned_steps, callback=Returns(args.out / "progress.csv", bar))


if __name__ == "__main__":
    main()
