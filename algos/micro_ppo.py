"""PPO (Schulman et al. 2017) on one page, with the nine code-level optimizations of "Implementation Matters in Deep
Policy Gradients" (Engstrom, Ilyas et al. 2020; "IM" below) as ordinary lines, marked (1) to (9). With the same seed it
draws the same random numbers as ppo.py and computes the same updates, up to rounding. Everything else in ppo.py is
flags, bookkeeping and speed.

    python algos/micro_ppo.py    # a return of 2,710 [2,080, 3,330] on Hopper-v5 after 1M steps, in 8 minutes (3 seeds)
"""

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Independent, Normal

ENV_ID = "Hopper-v5"  # any environment with flat Box observations and actions
SEED = 1
NUM_STEPS = 2048  # environment steps per iteration; together they are the batch
NUM_ITERATIONS = 488  # 1M steps
NUM_MINIBATCHES = 32  # must divide NUM_STEPS
EPOCHS = 10  # passes over the batch in an iteration
POLICY_LR, VALUE_LR = 3e-4, 2.5e-4  # IM's for Hopper
GAMMA = 0.99  # discount factor; the larger, the further ahead rewards count: about 1 / (1 - GAMMA) steps
GAE_LAMBDA = 0.95  # the larger, the more advantages trust sampled rewards (noise) and the less V (bias)
CLIP_EPS = 0.2  # how far a ratio may move from 1 before moving it further stops paying
VALUE_CLIP_EPS = 0.2  # in units of the scaled rewards
MAX_GRAD_NORM = 0.5

torch.set_num_threads(1)  # the networks are too small for more
env = gym.make(ENV_ID)
obs_size, action_size = env.observation_space.shape[0], env.action_space.shape[0]
rng = np.random.default_rng(SEED)  # for the noise, the seeds of episodes and the minibatches
generator = torch.Generator().manual_seed(SEED)  # for the initial weights


class RunningStats:
    """Mean and standard deviation of a stream of samples (Welford's algorithm)."""

    def __init__(self):
        self.count, self.mean, self.sum_sq = 0, 0.0, 0.0

    def push(self, x):
        self.count += 1
        old_deviation = x - self.mean
        self.mean = self.mean + old_deviation / self.count
        self.sum_sq = self.sum_sq + old_deviation * (x - self.mean)
        # A single sample has no deviation; |mean| keeps the first scaled reward from being enormous.
        self.std = (self.sum_sq / (self.count - 1)) ** 0.5 if self.count > 1 else abs(self.mean)


def make_network(out_size, out_gain):
    # (8) tanh between the layers.
    layers = [nn.Linear(obs_size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out_size)]
    for layer, gain in zip(layers[::2], (2**0.5, 2**0.5, out_gain)):
        nn.init.orthogonal_(layer.weight, gain, generator=generator)  # (3) orthogonal initialization
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


policy_mean = make_network(action_size, 0.01)  # The small gain makes the first actions almost pure noise, around 0.
log_std = nn.Parameter(torch.zeros(action_size))  # The standard deviation does not depend on the state.
value = make_network(1, 1.0)
policy_adam = torch.optim.Adam([*policy_mean.parameters(), log_std], eps=1e-5)  # eps as in IM's code
value_adam = torch.optim.Adam(value.parameters(), eps=1e-5)
obs_stats, return_stats = RunningStats(), RunningStats()


def policy(obs):  # Independent: log_prob sums over the action's dimensions.
    return Independent(Normal(policy_mean(obs), log_std.exp()), 1)


def observe(raw_obs):
    raw_obs = raw_obs.astype(np.float64)  # so that the millionth sample still counts in the statistics
    obs_stats.push(raw_obs)
    obs = (raw_obs - obs_stats.mean) / (obs_stats.std + 1e-8)  # (6) standardized observations
    return torch.from_numpy(obs.clip(-10, 10)).float()  # (7) clipped observations


obs = None  # a new episode is due
for iteration in range(NUM_ITERATIONS):
    # Act with the current policy. Its noise is drawn at once, as in ppo.py, so that both draw the same numbers.
    steps, returns = [], []
    noise = torch.from_numpy(rng.standard_normal((NUM_STEPS, action_size), dtype=np.float32))
    for t in range(NUM_STEPS):
        if obs is None:  # A seed per episode, from our own generator, makes runs repeatable.
            obs = observe(env.reset(seed=int(rng.integers(2**31)))[0])
            episode_return, discounted_sum = 0.0, 0.0
        with torch.no_grad():
            action = policy_mean(obs) + log_std.exp() * noise[t]
        # The action is not clipped to its bounds: MuJoCo limits its controls itself, and log_prob is that of the sample
        # as drawn. The environment gets a copy, because it may change the array.
        next_raw_obs, reward, terminated, truncated, _ = env.step(action.numpy().copy())
        next_obs = observe(next_raw_obs)
        episode_return += reward
        discounted_sum = GAMMA * discounted_sum + float(reward)
        return_stats.push(discounted_sum)
        # Subtracting a mean, too, would favor longer or shorter episodes.
        reward = reward / (return_stats.std + 1e-8)  # (2) scaled rewards
        reward = min(max(reward, -10.0), 10.0)  # (5) clipped rewards
        # A time limit is no terminal state, so V(s') still counts there. Like the batch's end, it only ends GAE's sum.
        steps.append((obs, action, reward, next_obs, terminated, terminated or truncated))
        obs = next_obs
        if terminated or truncated:
            returns.append(episode_return)
            obs = None
    batch_obs, actions, rewards, batch_next_obs, terminations, ends = zip(*steps)
    batch_obs, actions, batch_next_obs = map(torch.stack, (batch_obs, actions, batch_next_obs))

    # Estimate advantages with GAE (Schulman et al. 2016, eq. 16), in float64, because the recursion adds up errors.
    with torch.no_grad():
        old_log_probs = policy(batch_obs).log_prob(actions)
        old_values = value(batch_obs).squeeze(-1)
        next_values = value(batch_next_obs).squeeze(-1) * (1 - torch.tensor(terminations).float())
    advantages = torch.tensor(rewards, dtype=torch.float64) + GAMMA * next_values.double() - old_values.double()
    for t in reversed(range(NUM_STEPS - 1)):  # So far, each advantage is only the first term of its sum.
        if not ends[t]:
            advantages[t] += GAMMA * GAE_LAMBDA * advantages[t + 1]
    advantages = advantages.float()
    targets = advantages + old_values

    policy_adam.param_groups[0]["lr"] = POLICY_LR * (1 - iteration / NUM_ITERATIONS)  # (4) annealed learning rates
    value_adam.param_groups[0]["lr"] = VALUE_LR * (1 - iteration / NUM_ITERATIONS)

    # Fit the value network, with its own Adam and epochs, since it shares no layer with the policy. The advantages are
    # fixed by now, so it does not matter which of the two comes first.
    for _ in range(EPOCHS):
        for rows in torch.from_numpy(rng.permutation(NUM_STEPS)).chunk(NUM_MINIBATCHES):
            values = value(batch_obs[rows]).squeeze(-1)
            clipped = old_values[rows] + (values - old_values[rows]).clamp(-VALUE_CLIP_EPS, VALUE_CLIP_EPS)
            # (1) clipped value loss: the larger of the two, because clipping must not hide an error. IM prints min.
            loss = torch.maximum((values - targets[rows]) ** 2, (clipped - targets[rows]) ** 2).mean()
            value_adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(value.parameters(), MAX_GRAD_NORM)  # (9) clipped gradients
            value_adam.step()

    # Improve the policy by the clipped surrogate (Schulman et al. 2017, eq. 7), without an entropy bonus, as in the
    # paper's MuJoCo experiments.
    for _ in range(EPOCHS):
        for rows in torch.from_numpy(rng.permutation(NUM_STEPS)).chunk(NUM_MINIBATCHES):
            ratios = torch.exp(policy(batch_obs[rows]).log_prob(actions[rows]) - old_log_probs[rows])
            # As in OpenAI's baselines, A is normalized over the minibatch. IM does not count this as one of the nine.
            A = (advantages[rows] - advantages[rows].mean()) / (advantages[rows].std() + 1e-8)
            loss = -torch.minimum(ratios * A, ratios.clamp(1 - CLIP_EPS, 1 + CLIP_EPS) * A).mean()
            policy_adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*policy_mean.parameters(), log_std], MAX_GRAD_NORM)  # (9)
            policy_adam.step()

    mean_return = sum(returns) / len(returns) if returns else float("nan")
    print(f"step {(iteration + 1) * NUM_STEPS}: {len(returns)} episodes ended, with a mean return of {mean_return:.1f}")

# What acting needs, in the format of ppo.py's checkpoints. recipes.md shows how to load it.
mean = {f"mean.{name}": x for name, x in policy_mean.state_dict().items()}
stats = dict(mean=obs_stats.mean.tolist(), std=obs_stats.std.tolist())
torch.save(dict(policy=mean | dict(log_std=log_std.detach()), obs_stats=stats), "micro_ppo.pt")
