"""Humanoid-v4 that observes no contact forces, as in versions of MuJoCo that left them at zero."""

import gymnasium as gym
from gymnasium.envs.mujoco.humanoid_v4 import HumanoidEnv


class NoForce(HumanoidEnv):
    def _get_obs(self):
        obs = super()._get_obs()
        obs[-84:] = 0
        return obs


gym.register("HumanoidNoForce-v4", NoForce, max_episode_steps=1000)
