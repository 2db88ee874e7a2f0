"""skrl: its PPO records the frozen rollout and updates from the frozen minibatch, with its defaults."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import skrl
import torch
from skrl.agents.torch.ppo import PPO
from skrl.memories.torch import RandomMemory
from skrl.models.torch import GaussianMixin
from skrl.resources.preprocessors.torch import RunningStandardScaler

from adapters import Network, loss_of

TITLE = f"skrl {skrl.__version__}"
TENSORS = True


def agent(policy, value, T, N, **settings):
    """PPO with models that have what it asks of them, and a memory of N environments' T steps."""

    def act(inputs, role):
        pi = policy(inputs["observations"])
        actor._g_distribution = pi.base_dist
        return None, dict(log_prob=pi.log_prob(inputs["taken_actions"])[:, None])

    asked = dict(device="cpu", enable_training_mode=lambda _: None)
    asked["distribution"] = lambda role: SimpleNamespace(stddev=torch.ones(1))  # which is only logged
    actor = Network(None, act=act, network=policy, **asked)
    actor.get_entropy = lambda role: GaussianMixin.get_entropy(actor, role=role)
    critic = Network(None, act=lambda x, role: (value(x["observations"])[:, None], {}), network=value, **asked)
    memory, box = RandomMemory(memory_size=T, num_envs=N, device="cpu"), gym.spaces.Box(-np.inf, np.inf, (1,))
    settings |= dict(learning_epochs=1, mini_batches=1, experiment=dict(write_interval=0))
    spaces = dict(observation_space=box, action_space=box)
    ppo = PPO(models=dict(policy=actor, value=critic), memory=memory, device="cpu", cfg=settings, **spaces)
    ppo.init()
    ppo.training = True
    return ppo


def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    T, N = rewards.shape
    ppo = agent(None, lambda obs: obs[:, 0], T, N, discount_factor=gamma, gae_lambda=gae_lambda)
    columns = [torch.tensor(x)[..., None] for x in (rewards, values, next_values, terminations, truncations)]
    for reward, now, following, terminated, truncated in zip(*columns):
        ppo._current_log_prob, ppo._current_values = torch.zeros(N, 1), now
        step = dict(observations=now, actions=now, rewards=reward, next_observations=following)
        ends = dict(terminated=terminated, truncated=truncated)
        ppo.record_transition(**step, **ends, states=None, next_states=None, infos={}, timestep=0, timesteps=1)
    ppo.memory.sample = lambda **_: []  # the advantages are asked for, and no step
    ppo.update(timestep=0, timesteps=1)
    return [ppo.memory.get_tensor_by_name(name)[..., 0] for name in ("advantages", "returns")]


def update(policy, value, minibatches, clip_eps, max_grad_norm=0, **settings):
    settings |= dict(ratio_clip=clip_eps, value_clip=clip_eps, grad_norm_clip=max_grad_norm)
    ppo = agent(policy, value, 2, 1, **settings)  # its own rollout is not used
    ppo._current_next_observations, ppo._current_next_states = minibatches[0]["obs"][:1], None
    names = ("old_log_probs", "old_values", "value_targets", "advantages")
    samples = [[x["obs"], None, x["actions"], *[x[name][:, None] for name in names]] for x in minibatches]
    ppo.memory.sample = lambda **_: samples
    ppo.update(timestep=0, timesteps=1)


def policy_loss(clip_eps, entropy_coef, **given):
    return loss_of(update, given, clip_eps=clip_eps, entropy_loss_scale=entropy_coef, value_loss_scale=0)


def value_loss(clip_eps, **given):
    return loss_of(update, given, clip_eps=clip_eps, value_loss_scale=1)


def normalize(observations):
    x = torch.tensor(observations).flatten(0, 1)
    return RunningStandardScaler(x.shape[-1], device="cpu")(x, train=True).reshape(observations.shape)
