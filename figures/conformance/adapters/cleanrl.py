"""CleanRL's ppo_continuous_action.py, commit fe8d8a03. It is a script that cannot be imported, so unlike the other
adapters this one does not call it: its formulas are transcribed here. The wrappers that it uses are Gymnasium's own."""

import numpy as np
import torch
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from adapters._replay import replays

TITLE = "CleanRL (transcribed)"
TENSORS = True


def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    dones, A = terminations | truncations, np.zeros((len(rewards) + 1, rewards.shape[1]))
    following = [*values[1:], next_values[-1]]
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * following[t] * ~dones[t] - values[t]
        A[t] = delta + gamma * gae_lambda * ~dones[t] * A[t + 1]
    return A[:-1], A[:-1] + values


def policy_loss(log_probs, old_log_probs, advantages, entropies, clip_eps, entropy_coef):
    ratio = (log_probs - old_log_probs).exp()
    A = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    loss = torch.max(-A * ratio, -A * ratio.clamp(1 - clip_eps, 1 + clip_eps)).mean()
    return loss - entropy_coef * entropies.sum(1).mean()


def value_loss(values, old_values, targets, clip_eps):
    clipped = old_values + (values - old_values).clamp(-clip_eps, clip_eps)
    return 0.5 * torch.max((values - targets) ** 2, (clipped - targets) ** 2).mean()


def update(policy, value, minibatches, learning_rate, clip_eps, max_grad_norm):
    parameters = [*policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate, eps=1e-5)
    for x in minibatches:
        pi = policy(x["obs"])
        log_probs, entropies = pi.log_prob(x["actions"]), pi.entropy()[:, None]
        loss = policy_loss(log_probs, x["old_log_probs"], x["advantages"], entropies, clip_eps, 0)
        loss = loss + 0.5 * value_loss(value(x["obs"]), x["old_values"], x["value_targets"], clip_eps)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
        optimizer.step()


def scale_rewards(rewards, ends, gamma):
    makers = replays(np.zeros((*rewards.shape, 1)), rewards, None, ends)
    envs = [NormalizeReward(make(), gamma=gamma) for make in makers]  # each environment has a wrapper of its own
    return np.array([[float(env.step(None)[1]) for env in envs] for _ in rewards]).clip(-10, 10)


def normalize(observations):
    envs = [NormalizeObservation(make()) for make in replays(observations, np.zeros(observations.shape[:2]))]
    first = [env.reset()[0] for env in envs]
    return np.array([first, *[[env.step(None)[0] for env in envs] for _ in observations[1:]]]).clip(-10, 10)
