"""An honest PPO, written as most public ones are. deviations.py plants the deviations of planted.json into it."""

import numpy as np
import torch

TITLE, TENSORS = "an honest PPO", True


def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    ends, A, following = terminations | truncations, np.zeros_like(rewards), 0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * next_values[t] * ~terminations[t] - values[t]
        following = delta + gamma * gae_lambda * ~ends[t] * following
        A[t] = following
    targets = A + values
    return A, targets


def policy_loss(log_probs, old_log_probs, advantages, entropies, clip_eps, entropy_coef):
    A = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    log_ratios = log_probs - old_log_probs
    ratios = log_ratios.exp()
    clipped = ratios.clamp(1 - clip_eps, 1 + clip_eps)
    surrogate = torch.min(ratios * A, clipped * A).mean()
    entropy = entropies.sum(1).mean()
    return -surrogate - entropy_coef * entropy


def value_loss(values, old_values, targets, clip_eps):
    clipped_values = old_values + (values - old_values).clamp(-clip_eps, clip_eps)
    errors = (values - targets) ** 2
    clipped_errors = (clipped_values - targets) ** 2
    return 0.5 * torch.max(errors, clipped_errors).mean()


class RunningStats:
    def __init__(self, shape):
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), 1e-4

    def update(self, x):  # [N, ...], by the formula of Chan et al.
        mean, var, total = x.mean(0), x.var(0), self.count + len(x)
        both = self.var * self.count + var * len(x) + (mean - self.mean) ** 2 * self.count * len(x) / total
        self.mean = self.mean + (mean - self.mean) * len(x) / total
        self.var, self.count = both / total, total


def scale_rewards(rewards, ends, gamma):
    stats, R, scaled = RunningStats(()), np.zeros(rewards.shape[1]), []
    for t in range(len(rewards)):
        R = gamma * R + rewards[t]
        stats.update(R)
        scaled.append((rewards[t] / np.sqrt(stats.var + 1e-8)).clip(-10, 10))
        R[ends[t]] = 0
    return np.array(scaled)


def normalize(observations):
    stats, normalized = RunningStats(observations.shape[2:]), []
    for t in range(len(observations)):
        obs = observations[t]
        stats.update(obs)
        normalized.append(((obs - stats.mean) / np.sqrt(stats.var + 1e-8)).clip(-10, 10))
    return np.array(normalized)


def update(policy, value, minibatches, learning_rate, clip_eps, max_grad_norm):
    parameters = [*policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate, eps=1e-5)
    for i, batch in enumerate(minibatches):  # noqa: B007 (deviations use i)
        log_probs = policy(batch["obs"]).log_prob(batch["actions"])
        advantages = batch["advantages"]
        surrogate_loss = policy_loss(log_probs, batch["old_log_probs"], advantages, torch.zeros(1, 1), clip_eps, 0)
        loss = surrogate_loss + 0.5 * ((value(batch["obs"]) - batch["value_targets"]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
        optimizer.step()
