"""The formulas against independent references."""

import copy

import numpy as np
import pytest
import torch
from conftest import ALGOS, copied, flat, iterate, load, start
from torch import nn
from torch.distributions import Normal

CLOCK = dict(env_id="environments:Clock-v0")  # observations 0 to 5, rewards 1 to 5, then a time limit


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_acting_in_numpy_is_the_network(activation):  # with tanh, too, as micro_ppo.py shows
    script = load("ppo")
    args = script.Args(tanh=False, activation_without_tanh=activation)
    network = script.mlp(args, (5, 16, 8, 2), 1.0, torch.Generator())
    assert type(network[1]) is dict(relu=nn.ReLU, silu=nn.SiLU)[activation]
    for obs in torch.randn(3, 5):
        acted = script.numpy_forward(network)(obs.numpy())
        np.testing.assert_allclose(acted, network(obs).detach().numpy(), atol=1e-6)


def test_rewards_are_scaled_by_the_rewards_so_far():
    """Around their mean, with statistics that are computed anew at every step. (By returns: micro_ppo.py's are.)"""
    settings = dict(num_steps=12, reward_clip_range=1.2, reward_scale_by="rewards")
    script, args, state = start("ppo_noclip", **CLOCK, **settings)
    rewards, expected = ([1, 2, 3, 4, 5] * 3)[:12], [1]  # a single reward has no deviation, and stays as it is
    for i in range(1, 12):
        mean, std = np.mean(rewards[: i + 1]), np.std(rewards[: i + 1], ddof=1)
        expected.append(np.clip((rewards[i] - mean) / std + mean, -1.2, 1.2))
    np.testing.assert_allclose(script.rollout(args, state)[0]["rewards"], expected, rtol=1e-6)
    assert np.min(expected) < 1.2 == np.max(expected)


@pytest.mark.parametrize("algo", [algo for algo in ALGOS if "reward_scale" in vars(load(algo).Args)])
def test_rewards_are_scaled_by_returns_that_are_discounted_by_gamma(algo):
    """With a gamma that is not the default one. The sum begins again with each episode."""
    script, args, state = start(algo, **CLOCK, num_steps=12, gamma=0.5, reward_scale=True, reward_clip=False)
    rewards, sums, expected = ([1, 2, 3, 4, 5] * 3)[:12], [], []
    for i, reward in enumerate(rewards):
        sums.append(reward + (0.5 * sums[-1] if i % 5 else 0))
        expected.append(reward / (np.std(sums, ddof=1) if i else 1))
    np.testing.assert_allclose(script.rollout(args, state)[0]["rewards"][:12], expected, rtol=1e-5)


@pytest.mark.parametrize("bootstrap", [True, False])
def test_time_limits_bootstrap_and_episodes_go_on_in_the_next_rollout(bootstrap):
    raw = dict(obs_norm=False, obs_clip=False, reward_scale=False)
    script, args, state = start("ppo", num_envs=2, num_steps=8, bootstrap_truncation=bootstrap, **CLOCK, **raw)
    for clock in ([0, 1, 2, 3, 4, 0, 1, 2], [3, 4, 0, 1, 2, 3, 4, 0]):
        steps, episodes = script.rollout(args, state)
        clock, is_last = np.array(clock * 2), np.arange(16) % 8 == 7
        assert np.array_equal(steps["obs"].ravel(), clock)
        assert np.array_equal(steps["next_obs"].ravel(), clock + 1)
        assert np.array_equal(steps["rewards"], clock + 1)
        assert np.array_equal(steps["ends"], (clock == 4) | is_last)
        assert np.array_equal(steps["terminations"], (clock == 4) & (not bootstrap))
        assert episodes == [(15.0, 5)] * (clock == 4).sum()


def test_an_environment_may_end_its_episodes_with_a_number():
    """terminated = 1 is a mask, not a row: V of what follows is left out there, and nowhere else."""
    returns = dict(gamma=0.5, gae_lambda=1.0, reward_scale=False)
    script, args, state = start("ppo", env_id="environments:Numbers-v0", num_steps=6, **returns)
    batch = script.estimate_advantages(args, state, script.rollout(args, state)[0])
    expected = [1 + 0.5 * (2 + 0.5 * 3), 2 + 0.5 * 3, 3] * 2
    np.testing.assert_allclose(batch["value_targets"], expected, rtol=1e-5)


def assert_same_step(after, reference, before):
    moved = (flat(reference) - flat(before)).abs().max()
    assert moved > 1e-5
    assert (flat(after) - flat(reference)).abs().max() < 1e-3 * moved


@pytest.mark.parametrize("algo", ["ppo", "a2c", "reinforce"])
def test_update_is_torchs_adam_on_losses_written_again(algo):
    """With backward(), clip_grad_norm_ and torch.optim.Adam, in two iterations of three."""
    settings = dict(entropy_coef=0.1, bound_action="tanh", max_grad_norm=0.3)
    settings |= {} if algo == "reinforce" else dict(value_clip=True, value_clip_eps=0.005)  # so narrow that it acts
    script, args, state = start(algo, **settings)

    def value_loss(values, minibatch):
        old, targets = minibatch["old_values"], minibatch["value_targets"]
        clipped = torch.maximum(torch.minimum(values, old + 0.005), old - 0.005)
        return torch.maximum((values - targets) ** 2, (clipped - targets) ** 2).mean()

    def policy_loss(pi, minibatch):
        gaussian, A = Normal(pi.mean, pi.stddev), minibatch["advantages"]
        log_probs = gaussian.log_prob(minibatch["actions"]).sum(-1)
        A = A if algo == "reinforce" else (A - A.mean()) / A.std()
        surrogate = log_probs * A
        if algo == "ppo":
            ratios = torch.exp(log_probs - minibatch["old_log_probs"])
            surrogate = torch.where(A > 0, A * ratios.clamp(max=1.2), A * ratios.clamp(min=0.8))
        u = pi.mean + pi.stddev * (minibatch["actions"] - minibatch["old_means"]) / minibatch["old_stds"]
        entropy = gaussian.entropy().sum(-1) + torch.log(1 - torch.tanh(u) ** 2 + 1e-7).sum(-1)
        return -(surrogate + 0.1 * entropy).mean()

    losses = dict(value=value_loss, policy=policy_loss) if algo != "reinforce" else dict(policy=policy_loss)
    networks = {name: copy.deepcopy(vars(state)[name]) for name in losses}
    adams = {name: torch.optim.Adam(network.parameters(), eps=1e-5) for name, network in networks.items()}
    for _ in range(2):
        batch = script.estimate_advantages(args, state, script.rollout(args, state)[0])
        batch["advantages"] = 2 * batch["advantages"]  # They are no longer the targets minus V.
        before, rng, size = copied(state), copy.deepcopy(state.rng), len(batch["obs"]) // 4
        statistics = script.update(args, state, batch)
        if "value" in losses:
            explained = 1 - (batch["value_targets"] - batch["old_values"]).var() / batch["value_targets"].var()
            assert statistics["explained_variance"] == pytest.approx(explained.item(), rel=1e-3)
        for name, network in networks.items():
            adams[name].param_groups[0]["lr"] = vars(args)[f"{name}_lr"] * (1 - before.global_step / 768)
            norms = []
            for _ in range(2):
                for rows in rng.permutation(len(batch["obs"]))[: 4 * size].reshape(4, size):
                    losses[name](network(batch["obs"][rows]), {k: x[rows] for k, x in batch.items()}).backward()
                    norms.append(nn.utils.clip_grad_norm_(network.parameters(), 0.3))
                    adams[name].step()
                    adams[name].zero_grad()
            norms = torch.stack(norms)
            assert_same_step(vars(state)[name], network, vars(before)[name])
            assert statistics[f"{name}_grad_norm"] == pytest.approx(norms.mean().item(), rel=1e-3)
            assert statistics[f"{name}_grads_clipped"] == (norms > 0.3).float().mean()


BOUNDED = [(algo, bound, "Uneven") for algo in ("ppo", "reinforce", "ppo_m") for bound in ("no", "clip", "tanh")]
BOUNDED += [("ppo", "clip", "Unbounded"), ("ppo", "tanh", "Int8"), ("ppo", "tanh", "Wide")]
BOUNDED += [(algo, bound, name) for algo in ALGOS for bound in ("clip", "tanh") for name in ("Strict", "Strict64")]


@pytest.mark.parametrize(("algo", "bound", "name"), BOUNDED)
def test_environment_gets_the_bounded_action_and_the_batch_the_one_drawn(algo, bound, name, monkeypatch):
    """Clipped to the range, or squashed over all of it, whatever numbers the space has, and if the environment changes
    the array that it gets."""
    script, args, state = start(algo, env_id=f"environments:{name}-v0", bound_action=bound)
    env, taken = state.workers[0].env.unwrapped, []
    step = env.step

    def editing_step(action):
        taken.append(action.copy())
        result = step(action)
        action[:] = 7
        return result

    monkeypatch.setattr(env, "step", editing_step)
    state.policy.log_std.data += 1  # far into both ends of the range
    drawn = script.rollout(args, state)[0]["actions"]
    low, high = env.action_space.low.astype(float), env.action_space.high.astype(float)
    expected = dict(no=drawn, clip=np.clip(drawn, low, high))
    if bound == "tanh":
        expected["tanh"] = low + (high - low) * (np.tanh(drawn) + 1) / 2
    rounded = 1.0 if name == "Int8" else 1e-5
    np.testing.assert_allclose(taken, expected[bound], rtol=1e-5, atol=rounded)
    assert bound == "no" or all(env.action_space.contains(action) for action in taken)
    assert np.abs(drawn).max() > 5 and not (drawn == 7).any()


# What is compiled, each once: fit, the Fisher product, V-MPO's fit_policy, a batch of any size. The other scripts
# compile the same source with other losses. In one worker, which compiles the value network's fit once.
@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize("algo", ["ppo", "trpo", "vmpo", "reinforce"])
def test_compiled_update_is_the_eager_one(algo, compiler):
    """Within 1e-3 of the largest change of a parameter; 2e-5 was measured, for PPO and TRPO."""
    torch.compiler.reset()
    small = dict(policy_hidden=(4,), num_steps=64, total_timesteps=192)
    small |= {} if algo == "reinforce" else dict(value_hidden=(4,))
    states = []
    for compiled in (False, True):
        script, args, state = start(algo, compile=compiled, **small)
        before = copied(state)
        iterate(script, args, state)
        states.append(state)
    for name in ("policy", "value"):
        if hasattr(before, name):
            assert_same_step(*(vars(x)[name] for x in (*reversed(states), before)))
    multipliers = [getattr(state, "multipliers", torch.zeros(3)) for state in states]
    torch.testing.assert_close(*multipliers, rtol=1e-4, atol=1e-6)
