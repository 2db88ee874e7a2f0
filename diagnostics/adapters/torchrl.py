"""torchrl: its GAE module and its ClipPPOLoss, with their defaults. It has no update of its own."""

import math

import torch
import torchrl
from tensordict import TensorDict
from torchrl.modules import IndependentNormal
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

TITLE = f"torchrl {torchrl.__version__}"
TENSORS = True


class Actor(torch.nn.Module):
    """A policy that returns given log-probabilities, and IndependentNormal's entropy where that of the action's
    dimensions is given."""

    in_keys, out_keys = [], []

    def __init__(self, log_probs, entropies):
        super().__init__()
        self.log_probs, self.entropies = log_probs, entropies

    def get_dist(self, _):
        stds = torch.exp(self.entropies - 0.5 * math.log(2 * math.pi * math.e))
        distribution = IndependentNormal(torch.zeros_like(stds), stds)
        distribution.log_prob = lambda _: self.log_probs
        return distribution


class Critic(torch.nn.Module):
    in_keys, out_keys = [], ["state_value"]

    def __init__(self, values):
        super().__init__()
        self.values = values

    def forward(self, tensordict):
        return tensordict.clone(False).set("state_value", self.values[:, None])


def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    x = dict(reward=rewards, state_value=values, next_value=next_values, terminated=terminations)
    x = {name: torch.tensor(y).T[..., None] for name, y in (x | dict(done=terminations | truncations)).items()}
    following = {name: x[name] for name in ("reward", "terminated", "done")} | dict(state_value=x["next_value"])
    shape = rewards.T.shape
    rollout = TensorDict(dict(state_value=x["state_value"], next=TensorDict(following, shape)), shape)
    GAE(gamma=gamma, lmbda=gae_lambda, value_network=None)(rollout)
    return [rollout[name][..., 0].T for name in ("advantage", "value_target")]


def loss_of(actor, critic, old_log_probs, columns, **settings):
    x = {name: y[:, None] for name, y in columns.items()}
    x |= dict(action=torch.zeros_like(x["advantage"]), action_log_prob=old_log_probs)
    found = ClipPPOLoss(actor, critic, functional=False, **settings)(TensorDict(x, [len(old_log_probs)]))
    return sum(x for name, x in found.items() if name.startswith("loss_"))


def policy_loss(log_probs, old_log_probs, advantages, entropies, clip_eps, entropy_coef):
    settings = dict(clip_epsilon=clip_eps, entropy_coeff=entropy_coef)
    return loss_of(Actor(log_probs, entropies), None, old_log_probs, dict(advantage=advantages), **settings)


def value_loss(values, old_values, targets, clip_eps):
    zero = torch.zeros_like(targets)
    columns = dict(advantage=zero, value_target=targets, state_value=old_values)
    return loss_of(Actor(zero, zero[:, None]), Critic(values), zero, columns, clip_value=clip_eps, entropy_bonus=False)
