"""rsl_rl (rsl-rl-lib): its PPO records the frozen rollout and updates from the frozen minibatch, with its defaults."""

from importlib.metadata import version
from types import SimpleNamespace

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.modules.distribution import GaussianDistribution
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from adapters import Network, loss_of, renamed

TITLE = f"rsl_rl {version('rsl-rl-lib')}"
TENSORS = True


def agent(policy, value, storage, **settings):
    """PPO with an actor and a critic that have what it asks of them."""

    def act(obs, **_):
        pi = policy(obs["obs"])
        actor.get_output_log_prob = pi.log_prob
        actor.output_entropy = GaussianDistribution.entropy.fget(SimpleNamespace(_distribution=pi.base_dist))

    asked = dict(is_recurrent=False, output_distribution_params=(), get_hidden_state=lambda: None)
    asked |= dict(reset=lambda *_, **__: None, update_normalization=lambda _: None)
    actor = Network(act, network=policy, **asked)
    critic = Network(lambda obs, **_: value(obs["obs"])[:, None], network=value, **asked)
    return PPO(actor, critic, storage, **settings)


def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    T, N = rewards.shape
    rewards, values, next_values = (torch.tensor(x).float() for x in (rewards, values, next_values))
    zeros = torch.zeros(N, 1)
    obs = TensorDict(dict(obs=zeros), [N])
    storage = RolloutStorage("rl", N, T, obs, [1])
    ppo = agent(None, lambda _: next_values[-1], storage, gamma=gamma, lam=gae_lambda)
    for t in range(T):
        step = ppo.transition
        step.observations, step.actions, step.distribution_params = obs, zeros, (zeros, zeros)
        step.actions_log_prob, step.values = zeros[:, 0], values[t][:, None]
        ends = torch.tensor(terminations[t] | truncations[t])
        ppo.process_env_step(obs, rewards[t], ends, dict(time_outs=torch.tensor(truncations[t])))
    ppo.compute_returns(obs)
    return ppo.storage.advantages[..., 0], ppo.storage.returns[..., 0]


def update(policy, value, minibatches, clip_eps, entropy_coef=0, **settings):
    batches = []
    for x in minibatches:
        columns = {name: y if name in ("obs", "actions") else y[:, None] for name, y in x.items()}
        columns["obs"] = TensorDict(dict(obs=x["obs"]), [len(x["obs"])])
        names = dict(obs="observations", old_values="values", value_targets="returns")
        batches.append(RolloutStorage.Batch(**renamed(columns, old_log_probs="old_actions_log_prob", **names)))
    storage = SimpleNamespace(mini_batch_generator=lambda *_: batches)
    storage.clear, storage.observations = lambda: None, torch.zeros(1, 1)
    ppo = agent(policy, value, storage, schedule="fixed", clip_param=clip_eps, entropy_coef=entropy_coef, **settings)
    ppo.update()


def policy_loss(clip_eps, entropy_coef, **given):
    return loss_of(update, given, clip_eps=clip_eps, entropy_coef=entropy_coef)


def value_loss(clip_eps, **given):
    return loss_of(update, given, clip_eps=clip_eps)


def normalize(observations):
    """As at the end of PPO's update, but in float64: beside its first variance, 1, float32 loses a tiny column's."""
    x, normalizer = torch.tensor(observations), EmpiricalNormalization(observations.shape[-1]).double()
    normalizer.update(x.flatten(0, 1))
    return normalizer(x)
