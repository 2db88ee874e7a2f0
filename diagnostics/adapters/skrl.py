"""skrl: its PPO records the frozen rollout and updates from the frozen minibatch, with its defaults."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import skrl
import torch
from skrl.agents.torch.ppo import PPO
from skrl.memories.torch import RandomMemory
from skrl.models.torch import GaussianMixin
from skrl.resources.preprocessors.torch import RunningStandardScaler

from adapters import loss_of

TITLE = f"skrl {skrl.__version__}"
TENSORS = True
SETTINGS = {}  # other than the defaults
BOX = gym.spaces.Box(-np.inf, np.inf, (1,))


class Model(torch.nn.Module):
    """What PPO asks of a policy or a value network; `answer` maps inputs to log-probabilities or values."""

    device = "cpu"

    def __init__(self, answer, network=None, entropies=None):
        super().__init__()
        self.network = network or torch.nn.Linear(1, 1)
        self.answer, self._g_distribution = answer, SimpleNamespace(entropy=lambda: entropies)

    def act(self, inputs, role):
        answer = self.answer(inputs).unsqueeze(-1)
        return answer, dict(log_prob=answer)

    def get_entropy(self, role):
        return GaussianMixin.get_entropy(self, role=role)

    def distribution(self, role):
        return SimpleNamespace(stddev=torch.ones(1))

    def enable_training_mode(self, _):
        pass


def agent(policy, value, memory, **settings):
    settings = dict(learning_epochs=1, mini_batches=1, experiment=dict(write_interval=0)) | SETTINGS | settings
    models = dict(policy=policy, value=value)
    return PPO(models=models, memory=memory, observation_space=BOX, action_space=BOX, device="cpu", cfg=settings)


def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    T, N = rewards.shape
    columns = [torch.tensor(x)[..., None] for x in (rewards, values, next_values, terminations, truncations)]
    value = Model(lambda inputs: inputs["observations"][:, 0])
    policy = Model(lambda inputs: policy.network(inputs["observations"])[:, 0])
    memory = RandomMemory(memory_size=T, num_envs=N, device="cpu")
    ppo = agent(policy, value, memory, discount_factor=gamma, gae_lambda=gae_lambda)
    ppo.init()
    ppo.training = True
    for reward, now, following, terminated, truncated in zip(*columns):
        ppo._current_log_prob, ppo._current_values = torch.zeros(N, 1), now
        step = dict(observations=now, actions=now, rewards=reward, next_observations=following)
        ends = dict(terminated=terminated, truncated=truncated)
        ppo.record_transition(**step, **ends, states=None, next_states=None, infos={}, timestep=0, timesteps=1)
    loss_of(lambda: ppo.update(timestep=0, timesteps=1))
    return [memory.get_tensor_by_name(name)[..., 0] for name in ("advantages", "returns")]


class Minibatches(SimpleNamespace):
    """A memory that hands out given minibatches."""

    def get_tensor_by_name(self, name):
        B = len(self.minibatches[0]["advantages"])
        return torch.zeros(2, B, 1, dtype=torch.bool if name in ("terminated", "truncated") else torch.float64)

    def set_tensor_by_name(self, *_):
        pass

    def sample(self, **_):
        names = ("obs", "states", "actions", "old_log_probs", "old_values", "value_targets", "advantages")
        columns = ("old_log_probs", "old_values", "value_targets", "advantages")
        for x in self.minibatches:
            yield [x[name][:, None] if name in columns else x.get(name) for name in names]

    def __len__(self):
        return 1


def trained(policy, value, minibatches, **settings):
    ppo = agent(policy, value, Minibatches(minibatches=minibatches), **settings)
    ppo._tensors_names, ppo._current_next_states = [], None
    ppo._current_next_observations = minibatches[0].get("obs")
    ppo.update(timestep=0, timesteps=1)


def policy_loss(log_probs, old_log_probs, advantages, entropies, clip_eps, entropy_coef):
    nothing = torch.zeros_like(advantages)
    minibatch = dict(old_log_probs=old_log_probs, advantages=advantages, old_values=nothing, value_targets=nothing)
    models = Model(lambda _: log_probs, entropies=entropies), Model(lambda inputs: nothing)
    settings = dict(ratio_clip=clip_eps, entropy_loss_scale=entropy_coef, value_loss_scale=0)
    return loss_of(lambda: trained(*models, [minibatch], **settings))


def value_loss(values, old_values, targets, clip_eps):
    nothing = torch.zeros_like(targets)
    minibatch = dict(old_log_probs=nothing, advantages=nothing, old_values=old_values, value_targets=targets)
    models = Model(lambda _: nothing), Model(lambda _: values)
    return loss_of(lambda: trained(*models, [minibatch], value_clip=clip_eps, value_loss_scale=1))


def normalize(observations):
    return RunningStandardScaler(observations.shape[-1], device="cpu")(torch.tensor(observations), train=True)


def update(policy, value, minibatches, learning_rate, clip_eps, max_grad_norm):
    actor = Model(lambda inputs: policy(inputs["observations"]).log_prob(inputs["taken_actions"]), policy)
    critic = Model(lambda inputs: value(inputs["observations"]), value)
    settings = dict(learning_rate=learning_rate, ratio_clip=clip_eps, value_clip=clip_eps, grad_norm_clip=max_grad_norm)
    trained(actor, critic, minibatches, **settings)
