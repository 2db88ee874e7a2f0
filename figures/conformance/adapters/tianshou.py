"""tianshou: its PPO takes advantages of a replay buffer with the frozen rollout, and updates from the frozen minibatch,
with its defaults. How dimensions of the action add up is its user's choice; they are summed, as in its examples."""

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

from adapters import Network, loss_of, renamed

TITLE = f"tianshou {tianshou.__version__}"
TENSORS = True


def agent(policy, value, learning_rate=1e-3, **settings):
    box = gym.spaces.Box(-1, 1, (1,))
    actor = ProbabilisticActorPolicy(actor=policy, dist_fn=lambda _: None, action_space=box)
    actor.forward = lambda minibatch, *_: SimpleNamespace(dist=policy(minibatch.obs))
    return PPO(policy=actor, critic=value, optim=AdamOptimizerFactory(lr=learning_rate), **settings)


def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    T, N = rewards.shape
    buffer = VectorReplayBuffer(T * N, N)
    for t in range(T):
        names = dict(obs=values[t], obs_next=next_values[t], rew=rewards[t], terminated=terminations[t])
        names |= dict(truncated=truncations[t], done=terminations[t] | truncations[t], act=np.zeros((N, 1)))
        buffer.add(Batch(**names, info=Batch()), buffer_ids=np.arange(N))
    policy = Network(lambda _: SimpleNamespace(log_prob=lambda actions: actions[:, 0]))
    ppo = agent(policy, Network(torch.as_tensor), gamma=gamma, gae_lambda=gae_lambda)
    batch, indices = buffer.sample(0)
    batch = ppo._preprocess_batch(batch, buffer, indices)
    return [x.reshape(N, T).T for x in (batch.adv, batch.returns)]  # the buffer has one environment after another


def update(policy, value, minibatches, clip_eps, entropy_coef=0, **settings):
    np.random.seed(0)  # it shuffles a minibatch, which changes how sums are rounded
    ppo = agent(policy, value, eps_clip=clip_eps, ent_coef=entropy_coef, **settings)
    names = dict(actions="act", old_log_probs="logp_old", advantages="adv", old_values="v_s", value_targets="returns")
    for x in minibatches:
        ppo._update_with_batch(Batch(**renamed(x, **names)), batch_size=None, repeat=1)


def policy_loss(clip_eps, entropy_coef, **given):
    return loss_of(update, given, clip_eps=clip_eps, entropy_coef=entropy_coef, vf_coef=0)


def value_loss(clip_eps, **given):
    return loss_of(update, given, clip_eps=clip_eps, value_clip=True, vf_coef=1)


def normalize(observations):
    steps = iter(observations)
    venv = SimpleNamespace(is_async=False, reset=lambda *_: (next(steps), {}), step=lambda *_: (next(steps),))
    env = VectorEnvNormObs(venv)
    return np.array([env.reset()[0], *[env.step(None)[0] for _ in observations[1:]]])
