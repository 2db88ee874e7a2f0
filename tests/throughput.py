"""Environment steps a second of a training script, beside raw environment stepping and Stable-Baselines3.

    python tests/throughput.py                                # ppo on Hopper-v5
    python tests/throughput.py --algo a2c --num-envs 8        # another script, with as many environments as it takes

Each of 3 rounds measures one after another, on one thread: env.step with Gaussian actions, resets included; the median
sps of our iterations but the first two, so without compilation; and, where stable-baselines3 (for TRPO: sb3-contrib) is
installed, its PPO or TRPO at its defaults. Its PPO takes the same steps as ours; its TRPO takes 15 steps of conjugate
gradient for our 10, over all states for our tenth. Machines drift: the ratios, taken round by round, are what to read.
"""

import csv
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1"}

import gymnasium as gym
import mujoco
import numpy as np
import torch
import tyro


def raw(env_id: str, steps: int = 8192) -> float:
    mujoco.set_mju_user_warning(lambda _: None)  # they would write MUJOCO_LOG.TXT into the working directory
    env = gym.make(env_id)
    env.reset(seed=0)
    actions = np.random.default_rng(0).standard_normal((steps, *env.action_space.shape)).astype(np.float32)
    start = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return steps / (time.perf_counter() - start)


def ours(algo: str, env_id: str, num_envs: int) -> float:
    script = Path(__file__).parent.parent / "algos" / f"{algo}.py"
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--env-id {env_id} --num-envs {num_envs} --total-timesteps {12 * 2048 * num_envs}"
        command = [sys.executable, script, *flags.split(), "--runs-dir", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        [progress] = Path(folder).glob("*/progress.csv")
        with open(progress, newline="") as file:
            return statistics.median(float(row["sps"]) for row in list(csv.DictReader(file))[2:])


def stable_baselines3(algo: str, env_id: str, steps: int = 8192) -> float:
    package, name = ("sb3_contrib", "TRPO") if algo.startswith("trpo") else ("stable_baselines3", "PPO")
    try:
        Theirs = getattr(importlib.import_module(package), name)
    except ImportError:
        return float("nan")
    torch.set_num_threads(1)
    model = Theirs("MlpPolicy", env_id, device="cpu", seed=0)
    model.learn(2048)
    start = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return steps / (time.perf_counter() - start)


def main(algo: str = "ppo", env_id: str = "Hopper-v5", num_envs: int = 1) -> None:
    rounds = []
    for _ in range(3):
        rates = raw(env_id), ours(algo, env_id, num_envs), stable_baselines3(algo, env_id)
        rounds.append([rates[1] / rates[0], rates[1] / rates[2]])
        print("raw {:,.0f}, ours {:,.0f}, sb3 {:,.0f}".format(*rates), flush=True)
    to_raw, to_sb3 = (statistics.median(column) for column in zip(*rounds))
    print(f"{algo} on {env_id}, medians of 3: {to_raw:.2f} of raw, {to_sb3:.1f} times sb3")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
