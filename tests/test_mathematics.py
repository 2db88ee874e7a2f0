"""The formulas against independent references."""

import copy
import math

import numpy as np
import pytest
import torch
from conftest import iterate, load, start
from torch import nn


@pytest.fixture
def script():
    return load("ppo")  # the functions tested with it are the same in every script


def test_running_stats_are_numpys(script):
    samples = np.random.default_rng(0).normal(3, 2, (50, 4))
    stats, rewards = script.RunningStats((1, 4)), script.RunningStats()
    stats.push(samples[:1])
    assert np.array_equal(stats.std, np.abs(samples[:1]))
    for chunk in np.split(samples[1:], [1, 2, 10, 30]):
        deviations = stats.push(chunk)
    for reward in samples[:, 0].tolist():
        rewards.push(reward)
    np.testing.assert_allclose(stats.mean[0], samples.mean(0))
    np.testing.assert_allclose(stats.std[0], samples.std(0, ddof=1))
    np.testing.assert_allclose(deviations, samples[31:] - samples.mean(0), atol=1e-12)
    np.testing.assert_allclose((rewards.mean, rewards.std), (stats.mean[0, 0], stats.std[0, 0]))


def test_gaussian_is_torchs(script):
    torch.manual_seed(0)
    means, log_stds, actions, other_means, other_log_stds = torch.randn(5, 7, 3, dtype=torch.float64)
    old = torch.distributions.Normal(means, log_stds.exp())
    new = torch.distributions.Normal(other_means, other_log_stds.exp())
    torch.testing.assert_close(script.log_prob(means, log_stds, actions), old.log_prob(actions).sum(-1))
    torch.testing.assert_close(script.entropy(means, log_stds, None), old.entropy().sum(-1))
    kl = script.kl_divergence(means, log_stds, other_means, other_log_stds)
    torch.testing.assert_close(kl, torch.distributions.kl_divergence(old, new).sum(-1))


def test_squashed_entropy_is_the_tanh_gaussians(script):
    torch.manual_seed(0)
    means, log_stds, noise = torch.randn(2, 200_000), torch.tensor([[-0.5, 0.7]] * 200_000).T, torch.randn(2, 200_000)
    means = means[:, :1].expand_as(noise)
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(means, log_stds.exp()), torch.distributions.TanhTransform(cache_size=1)
    )
    reference = -squashed.log_prob(squashed.sample()).mean(1)
    ours = script.entropy(means[..., None], log_stds[..., None], noise[..., None]).mean(1)
    torch.testing.assert_close(ours, reference, atol=0.01, rtol=0)


def test_acting_in_numpy_is_the_network(script):
    for activation in (nn.Tanh, nn.ReLU, nn.SiLU):
        network = script.mlp((5, 16, 8, 2), activation)
        obs = torch.randn(3, 5)
        ours = script.numpy_forward(network)(obs.numpy())
        np.testing.assert_allclose(ours, network(obs).detach().numpy(), atol=1e-6)


def test_advantages_are_the_double_sum():
    script, args, state = start("ppo", gamma=0.9, gae_lambda=0.8)
    rng, B = np.random.default_rng(0), 12
    terminations, truncations = np.zeros(B, bool), np.zeros(B, bool)
    terminations[3], truncations[[7, 11]] = True, True  # a terminal state, a time limit, the cut end
    obs, final_obs = rng.normal(size=(B, 11)).astype(np.float32), rng.normal(size=(2, 11)).astype(np.float32)
    experience = dict(obs=obs, actions=rng.normal(size=(B, 3)).astype(np.float32), rewards=rng.normal(size=B))
    experience |= dict(terminations=terminations, truncations=truncations, final_obs=final_obs)
    batch = script.advantages(args, state, experience)

    value = lambda x: state.value(torch.from_numpy(x)[None]).item()  # noqa: E731
    successors = {3: 0.0, 7: value(final_obs[0]), 11: value(final_obs[1])}
    ends = [3] * 4 + [7] * 4 + [11] * 4  # last step of each step's episode
    deltas = [
        experience["rewards"][t] + 0.9 * successors.get(t, value(obs[min(t + 1, B - 1)])) - value(obs[t])
        for t in range(B)
    ]
    expected = [sum((0.9 * 0.8) ** (l - t) * deltas[l] for l in range(t, ends[t] + 1)) for t in range(B)]  # noqa: E741
    np.testing.assert_allclose(batch["advantages"], expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(batch["targets"], batch["advantages"] + batch["values"])
    policy = torch.distributions.Normal(batch["means"], batch["log_stds"].exp())
    torch.testing.assert_close(batch["log_probs"], policy.log_prob(batch["actions"]).sum(-1))


@pytest.mark.parametrize("by", ["returns", "rewards"])
def test_observations_and_rewards_are_normalized_step_by_step(by):
    """Against IM Algorithm 1 and a normalization that recomputes its statistics from all samples seen, every time."""
    script, args, state = start("ppo", reward_scale_by=by, reward_clip_range=1.2, obs_clip_range=1.2)
    env, seen, raw = state.envs[0].env, [], []
    step, reset = env.step, env.reset

    def spy_reset(**kwargs):
        seen.append(reset(**kwargs)[0])
        return seen[-1], {}

    def spy_step(action):
        raw.append(step(action))
        seen.append(raw[-1][0])
        return raw[-1]

    env.step, env.reset = spy_step, spy_reset
    experience = script.rollout(args, state)

    def std(samples):
        return np.std(samples, axis=0, ddof=1) if len(samples) > 1 else np.abs(samples[0])

    normalized = [
        np.clip((x - np.mean(seen[: i + 1], 0)) / (std(seen[: i + 1]) + 1e-8), -1.2, 1.2) for i, x in enumerate(seen)
    ]
    ends = [x[2] or x[3] for x in raw]
    is_observed = [True, *(x for end in ends for x in ([False, True] if end else [True]))]  # False: a final observation
    acted_on = [x for x, use in zip(normalized, is_observed) if use][: len(raw)]
    assert sum(ends) > 3
    np.testing.assert_allclose(experience["obs"], acted_on, rtol=1e-4, atol=1e-5)

    returns, discounted, scaled = [], 0.0, []
    rewards = [x[1] for x in raw]
    for i, (reward, end) in enumerate(zip(rewards, ends)):
        discounted = args.gamma * discounted + reward
        returns.append(discounted)
        if by == "returns":
            scaled.append(reward / (std(returns) + 1e-8))
        else:
            mean = np.mean(rewards[: i + 1])
            scaled.append((reward - mean) / (std(rewards[: i + 1]) + 1e-8) + mean)
        if end:
            discounted = 0.0
    np.testing.assert_allclose(experience["rewards"], np.clip(scaled, -1.2, 1.2), rtol=1e-6)
    assert np.max(np.abs(scaled)) > 1.2
    lengths = np.diff([-1, *np.flatnonzero(ends)])
    assert [length for _, length in experience["episodes"]] == lengths.tolist()
    np.testing.assert_allclose(experience["episodes"][0][0], sum(rewards[: lengths[0]]))


def test_time_limits_bootstrap_and_terminal_states_do_not():
    for bootstrap in (True, False):
        settings = dict(env_id="environments:Clock-v0", num_envs=2, num_steps=8, bootstrap_truncation=bootstrap)
        script, args, state = start("ppo", obs_norm=False, obs_clip=False, reward_scale=False, **settings)
        experience = script.rollout(args, state)
        limit = np.array([0, 0, 0, 0, 1, 0, 0, 0] * 2, bool)
        cut = np.array([0, 0, 0, 0, 0, 0, 0, 1] * 2, bool)
        assert experience["obs"].ravel().tolist() == [0, 1, 2, 3, 4, 0, 1, 2] * 2
        assert experience["rewards"].tolist() == [1, 2, 3, 4, 5, 1, 2, 3] * 2
        assert np.array_equal(experience["truncations"], limit | cut if bootstrap else cut)
        assert np.array_equal(experience["terminations"], np.zeros(16) if bootstrap else limit)
        assert experience["final_obs"].ravel().tolist() == ([5, 3] * 2 if bootstrap else [3] * 2)
        assert experience["episodes"] == [(15.0, 5)] * 2
    script, args, state = start("ppo", env_id="environments:Clock-v0", num_steps=5, bootstrap_truncation=False)
    experience = script.rollout(args, state)
    batch = script.advantages(args, state, experience)  # nothing to bootstrap from anywhere
    assert batch["targets"][-1].item() == pytest.approx(experience["rewards"][-1])


def test_clipped_objective_has_the_gradient_of_each_pair():
    """The unclipped gradient where the ratio is in the band or the unclipped term is smaller, and 0 elsewhere."""
    script, args, state = start("ppo", entropy_coef=0.0)
    torch.manual_seed(0)
    B = 200
    batch = dict(obs=torch.randn(B, 11), actions=torch.randn(B, 3), advantages=torch.randn(B))
    means, log_stds = state.policy(batch["obs"])
    log_probs = script.log_prob(means, log_stds, batch["actions"]).detach()
    log_ratios = 0.5 * torch.randn(B)

    def surrogate(log_ratios):
        theta = script.flat_parameters(state.policy)
        return script.objective(args, state.policy, theta, batch | dict(log_probs=log_probs - log_ratios))

    gradient = torch.func.grad(surrogate)(log_ratios)  # of ln ratio, pair by pair
    ratios, A = log_ratios.exp(), batch["advantages"]
    A = (A - A.mean()) / (A.std() + 1e-8)
    inside = (ratios >= 0.8) & (ratios <= 1.2)
    smaller = ratios * A < ratios.clamp(0.8, 1.2) * A
    assert 20 < inside.sum() < 180 and smaller.sum() > 20 and (~inside & ~smaller).sum() > 20
    torch.testing.assert_close(gradient, torch.where(inside | smaller, ratios * A, 0.0) / B, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("compiled", [False, True])
def test_update_is_torchs_adam_with_autograd(compiled):
    torch.compiler.reset()
    narrow = dict(value_clip_eps=0.005, max_grad_norm=0.3)  # so that both act
    script, args, state = start("ppo", compile=compiled, entropy_coef=0.01, squash_action=True, **narrow)
    _, _, state, _ = iterate(script, args, state)  # so that the optimizers have moments and the lr is annealed
    batch = script.advantages(args, state, script.rollout(args, state))
    policy, value, rng = copy.deepcopy(state.policy), copy.deepcopy(state.value), copy.deepcopy(state.rng)

    def value_loss(network, minibatch):
        values, old, targets = network(minibatch["obs"]), minibatch["values"], minibatch["targets"]
        clipped = torch.maximum(torch.minimum(values, old + 0.005), old - 0.005)
        return torch.maximum((values - targets) ** 2, (clipped - targets) ** 2).mean()

    def policy_loss(network, minibatch):
        means, log_stds = network(minibatch["obs"])
        gaussian = torch.distributions.Normal(means, log_stds.exp())
        ratios = torch.exp(gaussian.log_prob(minibatch["actions"]).sum(-1) - minibatch["log_probs"])
        A = (minibatch["advantages"] - minibatch["advantages"].mean()) / minibatch["advantages"].std()
        surrogate = torch.where(A > 0, A * ratios.clamp(max=1.2), A * ratios.clamp(min=0.8)).mean()
        u = means + log_stds.exp() * minibatch["noise"]
        entropy = gaussian.entropy().sum(-1) + torch.log(1 - torch.tanh(u) ** 2 + 1e-7).sum(-1)
        return -surrogate - 0.01 * entropy.mean()

    jobs = (value, value_loss, args.value_lr, 2, "value"), (policy, policy_loss, args.policy_lr, 2, "policy")
    for network, loss, lr, epochs, name in jobs:
        adam = torch.optim.Adam(network.parameters(), lr * (1 - 1 / 3), eps=1e-5)
        saved, sizes = vars(state)[f"{name}_optimizer"], [p.numel() for p in network.parameters()]
        steps = round(math.log(1 - saved["weight"].item()) / math.log(0.9))
        for p, *moments in zip(network.parameters(), *(saved[k].split(sizes) for k in ("exp_avg", "exp_avg_sq"))):
            exp_avg, exp_avg_sq = (x.view_as(p).clone() for x in moments)
            adam.state[p] = dict(step=torch.tensor(float(steps)), exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
        for _ in range(epochs):
            for rows in rng.permutation(256).reshape(4, 64):
                adam.zero_grad()
                loss(network, {k: x[rows] for k, x in batch.items()}).backward()
                nn.utils.clip_grad_norm_(network.parameters(), 0.3)
                adam.step()

    after, _ = script.update(args, state, batch)
    for ours, reference, before in ((after.value, value, state.value), (after.policy, policy, state.policy)):
        moved = (script.flat_parameters(reference) - script.flat_parameters(before)).abs().max()
        error = (script.flat_parameters(ours) - script.flat_parameters(reference)).abs().max()
        assert error < 1e-3 * moved


def test_orthogonal_and_xavier_initialization():
    for on in (True, False):
        _, args, state = start("ppo", orthogonal_init=on)
        for network, output_gain in ((state.policy.mean, 0.01), (state.value.value, 1.0)):
            for layer in network[::2]:
                gain = output_gain if layer is network[-1] else math.sqrt(2)
                rows, columns = layer.weight.shape
                assert not layer.bias.any()
                if args.orthogonal_init:
                    W = layer.weight if rows <= columns else layer.weight.T
                    torch.testing.assert_close(W @ W.T, gain**2 * torch.eye(len(W)), atol=1e-4, rtol=1e-4)
                else:
                    bound = math.sqrt(6 / (rows + columns))
                    assert 0.9 * bound < layer.weight.abs().max() <= bound
        assert not state.policy.log_std.any()
