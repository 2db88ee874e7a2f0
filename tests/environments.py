"""Environments whose behaviour is known, for --env-id environments:NAME-v0."""

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TimeAwareObservation, TransformObservation, TransformReward


class Clock(gym.Env):
    """Observation: the steps since the reset. Reward: 1 + that. Ends never by itself. It may have other spaces."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (2,))

    def __init__(self, **given):  # spaces, or what a subclass needs
        vars(self).update(given)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1), {}

    def step(self, action):
        self.steps += 1
        return np.array([float(self.steps)]), float(self.steps), False, False, {}


class Strict(Clock):
    """A Clock that refuses actions outside its space, as many environments do."""

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is outside {self.action_space}"
        return super().step(action)


class Odd(Clock):
    """A Clock whose step returns something else than Gymnasium asks for."""

    def step(self, action):
        return self.change(*super().step(action))


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


class Single(Bandit):
    """A Bandit of which there is one, as behind a port."""

    opened = False

    def __init__(self):
        super().__init__()
        assert not Single.opened, "Address already in use"
        Single.opened = True

    def close(self):
        Single.opened = False


# A time limit that meets episodes in every iteration.
gym.register("BriefAnt-v0", "gymnasium.envs.mujoco.ant_v5:AntEnv", max_episode_steps=20)
gym.register("Chain-v0", Chain)
gym.register("Bandit-v0", Bandit)
gym.register("Single-v0", Single)
gym.register("Timed-v0", lambda: TimeAwareObservation(gym.make("Hopper-v5")))
gym.register("Endless-v0", Clock)
gym.register("Clock-v0", Clock, max_episode_steps=5)
# Bounds between which float32 has other numbers than float64.
narrow = lambda dtype: gym.spaces.Box(-0.1, 0.7, (2,), dtype)
gym.register("Strict-v0", Strict, max_episode_steps=5, kwargs=dict(action_space=narrow(np.float32)))
gym.register("Strict64-v0", Strict, max_episode_steps=5, kwargs=dict(action_space=narrow(np.float64)))
ODD = dict(
    TwoRewards=lambda obs, reward, *rest: (obs, np.array([reward, 1.0]), *rest),
    NoReward=lambda obs, reward, *rest: (obs, None, *rest),
    ListObs=lambda obs, *rest: (obs.tolist(), *rest),
    Numbers=lambda obs, steps, *_: (obs, steps, int(steps == 3), 0, {}),  # for True and False; ends after three steps
)
for name, change in ODD.items():
    gym.register(f"{name}-v0", Odd, kwargs=dict(change=change))
# The 600th step after a reset gives nan.
nan_at_600 = lambda x: x * np.nan if x == 600 else x
gym.register("NanObs-v0", lambda: TransformObservation(Clock(), nan_at_600, Clock.observation_space))
gym.register("NanReward-v0", lambda: TransformReward(Clock(), nan_at_600))
gym.register("Unrewarded-v0", lambda: TransformReward(Clock(), lambda _: 0.0), max_episode_steps=5)

# Clocks with other spaces, of actions and of observations.
ACTIONS = dict(
    Unbounded=gym.spaces.Box(-np.inf, np.inf, (2,)),
    Uneven=gym.spaces.Box(np.array([-0.4, 0.0], np.float32), np.array([0.4, 3.0], np.float32)),
    Int8=gym.spaces.Box(-100, 100, (2,), np.int8),
    Wide=gym.spaces.Box(-300, 300, (2,)),
)
for name, space in ACTIONS.items():
    gym.register(f"{name}-v0", Clock, max_episode_steps=5, kwargs=dict(action_space=space))
gym.register("Image-v0", Clock, kwargs=dict(observation_space=gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)))
gym.register("Dictionary-v0", Clock, kwargs=dict(observation_space=gym.spaces.Dict(clock=Clock.observation_space)))

# What cannot be used, or cannot even be made. Of two observed numbers one is there; numpy would broadcast it to two.
two = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
gym.register("Short-v0", lambda: TransformObservation(Clock(), lambda x: x, two))
gym.register("Shrinking-v0", lambda: TransformObservation(Clock(), lambda x: np.repeat(x, 1 if x >= 40 else 2), two))
gym.register("Failing-v0", lambda: open("model.xml"))
