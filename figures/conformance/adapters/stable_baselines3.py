"""Stable-Baselines3: its PPO steps environments that replay the frozen rollout, and trains on the frozen minibatch. The
environments' only observation is V of the state, and the value network is the identity."""

from types import SimpleNamespace

import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.distributions import sum_independent_dims
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from adapters import loss_of, renamed
from adapters._replay import replays

TITLE = f"Stable-Baselines3 {stable_baselines3.__version__}"
TENSORS = True


def agent(env, steps, **settings):
    model = PPO("MlpPolicy", env, n_steps=steps, batch_size=env.num_envs * steps, n_epochs=1, device="cpu", **settings)
    model.set_logger(Logger(None, []))
    return model


def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    env = DummyVecEnv(replays(values[..., None], rewards, next_values[..., None], terminations, truncations))
    model = agent(env, len(rewards), gamma=gamma, gae_lambda=gae_lambda, policy_kwargs=dict(net_arch=[]))
    torch.nn.init.ones_(model.policy.value_net.weight)
    _, callback = model._setup_learn(rewards.size)
    model.collect_rollouts(env, callback, model.rollout_buffer, len(rewards))
    return model.rollout_buffer.advantages, model.rollout_buffer.returns


def update(policy, value, minibatches, clip_eps, **settings):
    def evaluate(obs, actions):
        pi = policy(obs)
        return value(obs), pi.log_prob(actions), sum_independent_dims(pi.base_dist.entropy())

    model = agent(DummyVecEnv(replays(np.zeros((2, 1, 1)), np.zeros((2, 1)))), 2, clip_range=clip_eps, **settings)
    parameters = [*policy.parameters(), *value.parameters()]
    model.policy.optimizer = model.policy.optimizer_class(parameters, 1.0, **model.policy.optimizer_kwargs)
    model.policy.parameters = lambda: iter(parameters)
    model.policy.evaluate_actions = evaluate
    names = dict(obs="observations", old_log_probs="old_log_prob", value_targets="returns")
    samples = [SimpleNamespace(**renamed(x, **names)) for x in minibatches]
    model.rollout_buffer = SimpleNamespace(get=lambda _: samples, values=np.zeros(1), returns=np.zeros(1))
    model.train()


def policy_loss(clip_eps, entropy_coef, **given):
    return loss_of(update, given, clip_eps=clip_eps, ent_coef=entropy_coef, vf_coef=0)


def value_loss(clip_eps, **given):
    return loss_of(update, given, clip_eps=clip_eps, clip_range_vf=clip_eps, ent_coef=0, vf_coef=1)


def scale_rewards(rewards, ends, gamma):
    env = DummyVecEnv(replays(np.zeros((*rewards.shape, 1)), rewards, None, ends))
    env = VecNormalize(env, norm_obs=False, gamma=gamma)
    env.reset()
    return np.array([env.step(np.zeros((rewards.shape[1], 1)))[1] for _ in rewards])


def normalize(observations):
    env = VecNormalize(DummyVecEnv(replays(observations, np.zeros(observations.shape[:2]))), norm_reward=False)
    actions = np.zeros((observations.shape[1], 1))
    return np.array([env.reset(), *[env.step(actions)[0] for _ in observations[1:]]])
