"""rsl_rl (rsl-rl-lib): its PPO records the frozen rollout and updates from the frozen minibatch, with its defaults."""

from importlib.metadata import version
from types import SimpleNamespace

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.modules.distribution import GaussianDistribution
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from adapters import loss_of

TITLE = f"rsl_rl {version('rsl-rl-lib')}"
TENSORS = True


class Model(torch.nn.Module):
    """What PPO asks of an actor or a critic; `answer` maps observations to values, or to log-probabilities (given
    actions) and entropies of the action's dimensions."""

    is_recurrent = False
    output_distribution_params = ()

    def __init__(self, answer, network=None):
        super().__init__()
        self.answer, self.network = answer, network or torch.nn.Linear(1, 1)

    def forward(self, obs, stochastic_output=False, **_):
        self.answered = self.answer(obs)
        return self.answered

    def get_output_log_prob(self, actions):
        log_probs = self.answered[0]
        return log_probs(actions) if callable(log_probs) else log_probs

    @property
    def output_entropy(self):
        normal = SimpleNamespace(entropy=lambda: self.answered[1])
        return GaussianDistribution.entropy.fget(SimpleNamespace(_distribution=normal))

    def get_hidden_state(self):
        pass

    def reset(self, *_, **__):
        pass

    def update_normalization(self, _):
        pass


def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    (T, N), zeros = rewards.shape, torch.zeros(rewards.shape[1], 1)
    obs = TensorDict(dict(v=zeros), [N])
    critic = Model(lambda _: torch.tensor(next_values[-1], dtype=torch.float32)[:, None])
    ppo = PPO(Model(lambda _: zeros), critic, RolloutStorage("rl", N, T, obs, [1]), gamma=gamma, lam=gae_lambda)
    for t in range(T):
        step = ppo.transition
        step.observations, step.actions, step.distribution_params = obs, zeros, (zeros, zeros)
        step.actions_log_prob, step.values = zeros[:, 0], torch.tensor(values[t], dtype=torch.float32)[:, None]
        ends, time_outs = torch.tensor(terminations[t] | truncations[t]), torch.tensor(truncations[t])
        ppo.process_env_step(obs, torch.tensor(rewards[t], dtype=torch.float32), ends, dict(time_outs=time_outs))
    ppo.compute_returns(obs)
    return ppo.storage.advantages[..., 0], ppo.storage.returns[..., 0]


def trained(actor, critic, minibatches, **settings):
    batches = [RolloutStorage.Batch(**x) for x in minibatches]
    storage = SimpleNamespace(
        mini_batch_generator=lambda *_: batches, clear=lambda: None, observations=torch.zeros(1, 1)
    )
    PPO(actor, critic, storage, schedule="fixed", **settings).update()


def minibatch(obs, actions, old_log_probs, advantages, old_values, value_targets):
    columns = dict(old_actions_log_prob=old_log_probs, advantages=advantages, values=old_values, returns=value_targets)
    columns = {name: x[:, None] for name, x in columns.items()}
    return dict(observations=TensorDict(dict(obs=obs), [len(obs)]), actions=actions) | columns


def policy_loss(log_probs, old_log_probs, advantages, entropies, clip_eps, entropy_coef):
    nothing = torch.zeros_like(advantages)
    x = minibatch(nothing, nothing, old_log_probs, advantages, nothing, nothing)
    actor, critic = Model(lambda _: (log_probs, entropies)), Model(lambda _: nothing[:, None])
    return loss_of(lambda: trained(actor, critic, [x], clip_param=clip_eps, entropy_coef=entropy_coef))


def value_loss(values, old_values, targets, clip_eps):
    nothing = torch.zeros_like(targets)
    x = minibatch(nothing, nothing, nothing, nothing, old_values, targets)
    actor, critic = Model(lambda _: (nothing, nothing[:, None])), Model(lambda _: values[:, None])
    return loss_of(lambda: trained(actor, critic, [x], clip_param=clip_eps))


def normalize(observations):
    """PPO takes in a batch after it was used, so these statistics serve the next batch. They are float64 here, because
    the variance begins as 1, beside which float32 loses that of a tiny column."""
    x, normalizer = torch.tensor(observations), EmpiricalNormalization(observations.shape[-1]).double()
    normalizer.update(x.flatten(0, 1))
    return normalizer(x)


def update(policy, value, minibatches, learning_rate, clip_eps, max_grad_norm):
    def act(obs):
        pi = policy(obs["obs"])
        return pi.log_prob, pi.base_dist.entropy()

    actor, critic = Model(act, policy), Model(lambda obs: value(obs["obs"])[:, None], value)
    settings = dict(learning_rate=learning_rate, clip_param=clip_eps, max_grad_norm=max_grad_norm, entropy_coef=0)
    trained(actor, critic, [minibatch(**x) for x in minibatches], **settings)
