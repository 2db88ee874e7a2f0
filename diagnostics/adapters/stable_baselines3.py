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

from adapters import loss_of
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


def trained(minibatches, evaluate, networks=(), **settings):
    """Lets PPO.train take its steps, where evaluate(minibatch) are values, log-probabilities and entropies."""
    model = agent(DummyVecEnv(replays(np.zeros((2, 1, 1)), np.zeros((2, 1)))), 2, **settings)
    parameters = [p for network in networks for p in network.parameters()] or list(model.policy.parameters())
    model.policy.optimizer = model.policy.optimizer_class(parameters, 1.0, **model.policy.optimizer_kwargs)
    model.policy.parameters = lambda: iter(parameters)
    model.policy.evaluate_actions = lambda minibatch, _: evaluate(minibatch)
    samples = [SimpleNamespace(observations=x, **dict(actions=None) | x) for x in minibatches]
    model.rollout_buffer = SimpleNamespace(get=lambda _: samples, values=np.zeros(1), returns=np.zeros(1))
    model.train()


def policy_loss(log_probs, old_log_probs, advantages, entropies, clip_eps, entropy_coef):
    minibatch = dict(old_log_prob=old_log_probs, advantages=advantages, returns=0 * advantages)
    outputs = 0 * log_probs, log_probs, sum_independent_dims(entropies)
    settings = dict(clip_range=clip_eps, ent_coef=entropy_coef, vf_coef=0)
    return loss_of(lambda: trained([minibatch], lambda _: outputs, **settings))


def value_loss(values, old_values, targets, clip_eps):
    minibatch = dict(old_log_prob=0 * targets, advantages=0 * targets, returns=targets, old_values=old_values)
    outputs = values, 0 * targets, 0 * targets
    return loss_of(lambda: trained([minibatch], lambda _: outputs, clip_range_vf=clip_eps, ent_coef=0, vf_coef=1))


def scale_rewards(rewards, ends, gamma):
    env = VecNormalize(
        DummyVecEnv(replays(np.zeros((*rewards.shape, 1)), rewards, None, ends)), norm_obs=False, gamma=gamma
    )
    env.reset()
    return np.array([env.step(np.zeros((rewards.shape[1], 1)))[1] for _ in rewards])


def normalize(observations):
    env = VecNormalize(DummyVecEnv(replays(observations, np.zeros(observations.shape[:2]))), norm_reward=False)
    actions = np.zeros((observations.shape[1], 1))
    return np.array([env.reset(), *[env.step(actions)[0] for _ in observations[1:]]])


def update(policy, value, minibatches, learning_rate, clip_eps, max_grad_norm):
    def evaluate(x):
        pi = policy(x["obs"])
        return value(x["obs"]), pi.log_prob(x["acts"]), pi.entropy()

    names = dict(actions="acts", old_log_probs="old_log_prob", value_targets="returns")
    minibatches = [{names.get(name, name): y for name, y in x.items()} for x in minibatches]
    settings = dict(learning_rate=learning_rate, clip_range=clip_eps, max_grad_norm=max_grad_norm)
    trained(minibatches, evaluate, (policy, value), **settings)
