"""Environments whose behaviour is known, for --env-id environments:NAME-v0."""

import gymnasium as gym
import numpy as np
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
from gymnasium.wrappers import TimeAwareObservation


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


class Numbers(Clock):
    """A Clock that ends after three steps, and says so with the numbers 0 and 1."""

    def step(self, action):
        obs, reward, *_ = super().step(action)
        return obs, reward, int(self.steps == 3), 0, {}


class Editor(Clock):
    """A Clock that changes the action that it gets."""

    def step(self, action):
        action[:] = 7.0
        return super().step(action)


class Image(Clock):
    observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)


class Dictionary(Clock):
    observation_space = gym.spaces.Dict({"clock": Clock.observation_space})


class Chain(gym.Env):
    """Walks through the places, whatever the action, and ends. Observation: the place, one-hot. Reward: that of the
    place, minus the squared distance of the action from TARGET."""

    TARGET = np.array([0.5, -1.0])
    rewards = 1.0, -2.0, 4.0, 3.0
    action_space = gym.spaces.Box(-1, 1, (2,))
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 1, (len(self.rewards),), np.float64)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self.observe(), {}

    def observe(self):
        return np.eye(len(self.rewards) + 1)[self.place, :-1]

    def step(self, action):
        reward = self.rewards[self.place] - ((action - self.TARGET) ** 2).sum()
        self.place += 1
        return self.observe(), reward, self.place == len(self.rewards), False, {}

    def render(self):
        return np.full((8, 8, 3), 60 * self.place, np.uint8)


class Bandit(Chain):
    """One step from a random place of two."""

    rewards = 21.0, 33.0

    def reset(self, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.place = int(self.np_random.integers(2))
        return self.observe(), {}

    def step(self, action):
        obs, reward, *_ = super().step(action)
        return obs, reward, True, False, {}


class Counter(HopperEnv):
    """A Hopper that counts its steps, and is rewarded by their number."""

    def reset(self, **options):
        self.steps = 0
        return super().reset(**options)

    def step(self, action):
        obs, _, *rest = super().step(action)
        self.steps += 1
        return obs, float(self.steps), *rest


# A time limit that meets episodes in every iteration.
gym.register("BriefAnt-v0", "gymnasium.envs.mujoco.ant_v5:AntEnv", max_episode_steps=20)
gym.register("Chain-v0", Chain)
gym.register("Bandit-v0", Bandit)
gym.register("Clock-v0", Clock, max_episode_steps=5)
gym.register("Counter-v0", Counter, max_episode_steps=500)
gym.register("Timed-v0", lambda: TimeAwareObservation(gym.make("Hopper-v5")))
gym.register("Nan-v0", Nan, max_episode_steps=5)
gym.register("Unbounded-v0", Unbounded, max_episode_steps=5)
gym.register("Numbers-v0", Numbers)
gym.register("Editor-v0", Editor, max_episode_steps=5)
gym.register("Endless-v0", Clock)
gym.register("Image-v0", Image)
gym.register("Dictionary-v0", Dictionary)
