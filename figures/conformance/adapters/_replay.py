"""An environment that replays arrays, for the adapters of libraries that step environments themselves."""

import gymnasium as gym
import numpy as np


class Replay(gym.Env):
    """Shows observations [T, obs] and what follows each step [T, obs], gives rewards [T], and ends where it is told."""

    def __init__(self, observations, rewards, following=None, terminations=None, truncations=None):
        T, size = observations.shape
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.action_space, self.t, never = gym.spaces.Box(-1, 1, (1,)), 0, np.zeros(T, bool)
        self.observations, self.rewards = np.vstack([observations, observations[-1:]]), rewards
        self.following = self.observations[1:] if following is None else following
        self.terminations = never if terminations is None else terminations
        self.truncations = never if truncations is None else truncations

    def reset(self, **_):
        return self.observations[self.t], {}

    def step(self, _):
        t, self.t = self.t, self.t + 1
        return self.following[t], float(self.rewards[t]), bool(self.terminations[t]), bool(self.truncations[t]), {}


def replays(*arrays):
    """A function that makes it, for each column of the arrays [T, N, ...]."""
    columns = [[None if x is None else x[:, n] for x in arrays] for n in range(arrays[0].shape[1])]
    return [lambda column=column: Replay(*column) for column in columns]
