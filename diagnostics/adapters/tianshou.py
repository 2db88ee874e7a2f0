"""tianshou: its PPO takes advantages of a replay buffer with the frozen rollout, and updates from the frozen minibatch,
with its defaults. Its user chooses the distribution, and with it how dimensions of the action add up; here they are
summed, as its examples do."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import tianshou
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, VectorReplayBuffer
from tianshou.env import VectorEnvNormObs

from adapters import loss_of

TITLE = f"tianshou {tianshou.__version__}"
TENSORS = True


def agent(distribution, critic, network=None, learning_rate=1e-3, **settings):
    """distribution maps a minibatch to log_prob and entropy."""
    box = gym.spaces.Box(-1, 1, (1,))
    actor = network or torch.nn.Linear(1, 1)
    policy = ProbabilisticActorPolicy(actor=actor, dist_fn=lambda _: None, action_space=box)
    policy.forward = lambda minibatch, *_: SimpleNamespace(dist=distribution(minibatch))
    return PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=learning_rate), **settings)


class Critic(torch.nn.Module):
    def __init__(self, answer, network=None):
        super().__init__()
        self.answer, self.network = answer, network or torch.nn.Linear(1, 1)

    def forward(self, obs):
        return self.answer(torch.as_tensor(obs))


def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    T, N = rewards.shape
    buffer = VectorReplayBuffer(T * N, N)
    for t in range(T):
        names = dict(obs=values[t], obs_next=next_values[t], rew=rewards[t], terminated=terminations[t])
        names |= dict(truncated=truncations[t], done=terminations[t] | truncations[t], act=np.zeros((N, 1)))
        buffer.add(Batch(**names, info=Batch()), buffer_ids=np.arange(N))
    nothing = SimpleNamespace(log_prob=lambda actions: actions[:, 0], entropy=lambda: torch.zeros(1))
    ppo = agent(lambda _: nothing, Critic(lambda obs: obs), gamma=gamma, gae_lambda=gae_lambda)
    batch, indices = buffer.sample(0)
    batch = ppo._preprocess_batch(batch, buffer, indices)
    return [x.reshape(N, T).T for x in (batch.adv, batch.returns)]  # the buffer has one environment after another


def minibatch_of(actions, old_log_probs, advantages, old_values, value_targets, obs):
    x = dict(logp_old=old_log_probs, adv=advantages, v_s=old_values, returns=value_targets, act=actions, obs=obs)
    return Batch(**x, rows=np.arange(len(advantages)))


def trained(ppo, minibatches):
    for x in minibatches:
        ppo._update_with_batch(x, batch_size=None, repeat=1)


def policy_loss(log_probs, old_log_probs, advantages, entropies, clip_eps, entropy_coef):
    zero = torch.zeros_like(advantages)
    outputs = lambda x: SimpleNamespace(log_prob=lambda _: log_probs[x.rows], entropy=lambda: entropies.sum(1))  # noqa: E731
    ppo = agent(outputs, Critic(lambda _: zero), eps_clip=clip_eps, ent_coef=entropy_coef, vf_coef=0)
    return loss_of(lambda: trained(ppo, [minibatch_of(zero, old_log_probs, advantages, zero, zero, zero)]))


def value_loss(values, old_values, targets, clip_eps):
    zero = torch.zeros_like(targets)
    outputs = SimpleNamespace(log_prob=lambda _: zero, entropy=lambda: zero)
    rows = torch.arange(len(values))
    ppo = agent(lambda _: outputs, Critic(lambda obs: values[obs]), eps_clip=clip_eps, value_clip=True, vf_coef=1)
    return loss_of(lambda: trained(ppo, [minibatch_of(zero, zero, zero, old_values, targets, rows)]))


def normalize(observations):
    steps = iter(observations)
    venv = SimpleNamespace(is_async=False, reset=lambda *_: (next(steps), {}), step=lambda *_: (next(steps),))
    env = VectorEnvNormObs(venv)
    return np.array([env.reset()[0], *[env.step(None)[0] for _ in observations[1:]]])


def update(policy, value, minibatches, learning_rate, clip_eps, max_grad_norm):
    settings = dict(eps_clip=clip_eps, max_grad_norm=max_grad_norm, ent_coef=0)
    ppo = agent(lambda x: policy(x.obs), Critic(value, value), policy, learning_rate, **settings)
    trained(ppo, [minibatch_of(**x) for x in minibatches])
