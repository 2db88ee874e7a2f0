"""Environments whose behaviour is known, for --env-id environments:NAME-v0."""

import gymnasium as gym
import numpy as np


class Clock(gym.Env):
    """Observation: the steps since the reset. Reward: 1 + that. Ends never by itself."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (2,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1), {}

    def step(self, action):
        self.steps += 1
        return np.array([float(self.steps)]), float(self.steps), False, False, {}


class Nan(Clock):
    """A Clock whose 600th step is rewarded with nan."""

    total = 0

    def step(self, action):
        obs, reward, *rest = super().step(action)
        self.total += 1
        return obs, np.nan if self.total == 600 else reward, *rest


class Unbounded(Clock):
    action_space = gym.spaces.Box(-np.inf, np.inf, (2,))


class Image(Clock):
    observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)


class Dictionary(Clock):
    observation_space = gym.spaces.Dict({"clock": Clock.observation_space})


gym.register("Clock-v0", Clock, max_episode_steps=5)
gym.register("Nan-v0", Nan, max_episode_steps=5)
gym.register("Unbounded-v0", Unbounded, max_episode_steps=5)
gym.register("Image-v0", Image)
gym.register("Dictionary-v0", Dictionary)
