"""train.py: Stable-Baselines3's PPO at its defaults, with VecNormalize: python train.py Hopper-v5 1 FOLDER"""

import sys

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

env_id, seed, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
env = VecNormalize(make_vec_env(env_id, seed=seed, monitor_dir=folder))
model = PPO("MlpPolicy", env, seed=seed, device="cpu")
model.learn(1_000_000, callback=CheckpointCallback(50_000, folder, save_vecnormalize=True))
model.save(f"{folder}/final")
env.save(f"{folder}/vecnormalize.pkl")
