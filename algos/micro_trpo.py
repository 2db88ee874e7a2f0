"""TRPO (Schulman et al. 2015) on one page, with none of the nine code-level optimizations of "Implementation Matters in
Deep Policy Gradients" (Engstrom, Ilyas et al. 2020; "IM" below). With the same seed it draws the same random numbers as
trpo.py and computes the same updates, up to rounding, which conjugate gradient enlarges. Everything else in trpo.py is
flags, bookkeeping and speed.

    python algos/micro_trpo.py
"""

import math

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ENV_ID = "Hopper-v5"  # any environment with flat Box observations and actions
SEED = 1
NUM_STEPS = 2048  # environment steps per iteration; together they are the batch
NUM_ITERATIONS = 488  # 1M steps
NUM_MINIBATCHES = 32  # for the value network; must divide NUM_STEPS
VALUE_EPOCHS = 10  # passes over the batch in an iteration, for the value network
VALUE_LR = 2e-4
GAMMA = 0.99  # discount factor; the larger, the further ahead rewards count: about 1 / (1 - GAMMA) steps
GAE_LAMBDA = 0.95  # the larger, the more advantages trust sampled rewards (noise) and the less V (bias)
MAX_KL = 0.13  # delta, the largest mean KL of a step, in nats; IM's for Hopper
FISHER_FRACTION = 0.1  # of the batch's states; Fisher-vector products are most of the cost, and a tenth is enough
CG_STEPS = 10  # steps of conjugate gradient
CG_DAMPING = 0.1  # added to the Fisher matrix's diagonal
BACKTRACK_STEPS = 10  # step sizes that the line search tries, each half of the one before

torch.set_num_threads(1)  # the networks are too small for more
env = gym.make(ENV_ID)
obs_size, action_size = env.observation_space.shape[0], env.action_space.shape[0]
rng = np.random.default_rng(SEED)  # for the noise, the seeds of episodes and the minibatches
generator = torch.Generator().manual_seed(SEED)  # for the initial weights


def make_network(out_size):
    layers = [nn.Linear(obs_size, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, out_size)]
    for layer in layers[::2]:
        nn.init.xavier_uniform_(layer.weight, generator=generator)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


policy_mean = make_network(action_size)
log_std = nn.Parameter(torch.zeros(action_size))  # The standard deviation does not depend on the state.
policy_parameters = [log_std, *policy_mean.parameters()]
value = make_network(1)
value_adam = torch.optim.Adam(value.parameters(), VALUE_LR, eps=1e-5)  # eps as in IM's code


def policy(obs):  # Independent: log_prob sums over the action's dimensions.
    return Independent(Normal(policy_mean(obs), log_std.exp()), 1)


def surrogate(obs, actions, advantages, old_log_probs):
    return (torch.exp(policy(obs).log_prob(actions) - old_log_probs) * advantages).mean()


def gradient(x, **options):  # of a number by the policy's parameters, as one vector
    return parameters_to_vector(torch.autograd.grad(x, policy_parameters, **options))


obs = None  # a new episode is due
for iteration in range(NUM_ITERATIONS):
    # Act with the current policy. Its noise is drawn at once, as in trpo.py, so that both draw the same numbers.
    steps, returns = [], []
    noise = torch.from_numpy(rng.standard_normal((NUM_STEPS, action_size), dtype=np.float32))
    for t in range(NUM_STEPS):
        if obs is None:  # A seed per episode, from our own generator, makes runs repeatable.
            obs = torch.from_numpy(env.reset(seed=int(rng.integers(2**31)))[0]).float()
            episode_return = 0.0
        with torch.no_grad():
            action = policy_mean(obs) + log_std.exp() * noise[t]
        # The action is not clipped to its bounds: MuJoCo limits its controls itself, and log_prob is that of the sample
        # as drawn. The environment gets a copy, because it may change the array.
        next_obs, reward, terminated, truncated, _ = env.step(action.numpy().copy())
        next_obs = torch.from_numpy(next_obs).float()
        episode_return += reward
        # A time limit is no terminal state, so V(s') still counts there. Like the batch's end, it only ends GAE's sum.
        steps.append((obs, action, float(reward), next_obs, terminated, terminated or truncated))
        obs = next_obs
        if terminated or truncated:
            returns.append(episode_return)
            obs = None
    batch_obs, actions, rewards, batch_next_obs, terminations, ends = zip(*steps)
    batch_obs, actions, batch_next_obs = map(torch.stack, (batch_obs, actions, batch_next_obs))

    # Estimate advantages with GAE (Schulman et al. 2016, eq. 16), in float64, because the recursion adds up errors.
    with torch.no_grad():
        old_values = value(batch_obs).squeeze(-1)
        next_values = value(batch_next_obs).squeeze(-1) * (1 - torch.tensor(terminations).float())
    advantages = torch.tensor(rewards, dtype=torch.float64) + GAMMA * next_values.double() - old_values.double()
    for t in reversed(range(NUM_STEPS - 1)):  # So far, each advantage is only the first term of its sum.
        if not ends[t]:
            advantages[t] += GAMMA * GAE_LAMBDA * advantages[t + 1]
    advantages = advantages.float()
    targets = advantages + old_values
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)  # as in OpenAI's baselines

    # Fit the value network. The advantages are fixed by now, so the policy's step does not see what this does.
    for _ in range(VALUE_EPOCHS):
        for rows in torch.from_numpy(rng.permutation(NUM_STEPS)).chunk(NUM_MINIBATCHES):
            loss = ((value(batch_obs[rows]).squeeze(-1) - targets[rows]) ** 2).mean()
            value_adam.zero_grad()
            loss.backward()
            value_adam.step()

    # To first order in the surrogate L and second order in the mean KL(old || new), the best step of a given KL goes
    # along x = F^-1 g. Here g is the gradient of L, and F, the Fisher matrix, is the Hessian of the KL at the old
    # policy (Schulman et al. 2015, appendix C).
    with torch.no_grad():
        old_policy, old_parameters = policy(batch_obs), parameters_to_vector(policy_parameters)
        batch = batch_obs, actions, advantages, old_policy.log_prob(actions)
    g = gradient(surrogate(*batch))
    rows = torch.from_numpy(rng.permutation(NUM_STEPS)[: math.ceil(FISHER_FRACTION * NUM_STEPS)])
    pi = policy(batch_obs[rows])
    kl = kl_divergence(Independent(Normal(pi.mean.detach(), pi.stddev.detach()), 1), pi).mean()
    kl_gradient = gradient(kl, create_graph=True)  # It is 0, but its derivative is not.

    # Conjugate gradient solves (F + damping) x = g by products alone. F v is the gradient of kl_gradient . v.
    x, residual, direction = torch.zeros_like(g), g, g
    for _ in range(CG_STEPS):
        product = gradient(kl_gradient @ direction, retain_graph=True) + CG_DAMPING * direction
        squared = residual @ residual
        alpha = squared / (direction @ product)
        x = x + alpha * direction
        residual = residual - alpha * product
        direction = residual + (residual @ residual) / squared * direction
    # Since (F + damping) x = g - residual, full_step^T F full_step / 2, the KL to second order, is at most MAX_KL.
    full_step = (2 * MAX_KL / (x @ (g - residual))).sqrt() * x

    # The line search takes the first of smaller and smaller steps that keeps the mean KL itself within MAX_KL and
    # improves L by more than a tenth of the linear prediction. If there is none, the policy stays.
    with torch.no_grad():
        old_surrogate = surrogate(*batch)
        for fraction in [0.5**k for k in range(BACKTRACK_STEPS)] + [0.0]:
            vector_to_parameters(old_parameters + fraction * full_step, policy_parameters)
            kl = kl_divergence(old_policy, policy(batch_obs)).mean()
            if surrogate(*batch) - old_surrogate > 0.1 * fraction * (g @ full_step) and kl <= MAX_KL:
                break

    mean_return = sum(returns) / len(returns) if returns else float("nan")
    print(f"step {(iteration + 1) * NUM_STEPS}: {len(returns)} episodes ended, with a mean return of {mean_return:.1f}")

# The policy, in the format of trpo.py's checkpoints. recipes.md shows how to load it; there is no normalizer here.
mean = {f"mean.{name}": x for name, x in policy_mean.state_dict().items()}
torch.save(dict(policy=mean | dict(log_std=log_std.detach())), "micro_trpo.pt")
