"""torchrl: its GAE module and its ClipPPOLoss, with their defaults. It has no update of its own."""

import math

import torch
import torchrl
from tensordict import TensorDict
from torchrl.modules import IndependentNormal
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from adapters import Network, loss_of, renamed

TITLE = f"torchrl {torchrl.__version__}"
TENSORS = True


def advantages(rewards, values, next_values, terminations, truncations, gamma, gae_lambda):
    ends = dict(terminated=terminations, done=terminations | truncations)
    following = dict(reward=rewards, state_value=next_values, **ends)
    following = {name: torch.tensor(x).T[..., None] for name, x in following.items()}
    now, shape = torch.tensor(values).T[..., None], values.T.shape
    rollout = TensorDict(dict(state_value=now, next=TensorDict(following, shape)), shape)
    GAE(gamma=gamma, lmbda=gae_lambda, value_network=None)(rollout)
    return [rollout[name][..., 0].T for name in ("advantage", "value_target")]


def train(policy, value, minibatches, **settings):
    [x] = minibatches  # for the backward pass of a user's loop

    def distribution(_):
        pi = policy(x["obs"])  # torchrl's distribution gets its entropies and log-probabilities
        stds = torch.exp(pi.base_dist.entropy() - 0.5 * math.log(2 * math.pi * math.e))
        normal = IndependentNormal(torch.zeros_like(stds), stds)
        normal.log_prob = pi.log_prob
        return normal

    actor = Network(None, in_keys=[], out_keys=[], get_dist=distribution)
    critic = Network(lambda data: data.clone(False).set("state_value", value(x["obs"])[:, None]))
    critic.in_keys, critic.out_keys = [], ["state_value"]
    names = dict(actions="action", advantages="advantage", old_values="state_value", value_targets="value_target")
    columns = {name: y[:, None] for name, y in renamed(x, **names).items()}
    columns["action_log_prob"] = x["old_log_probs"]
    losses = ClipPPOLoss(actor, critic, functional=False, **settings)(TensorDict(columns, [len(x["obs"])]))
    sum(loss for name, loss in losses.items() if name.startswith("loss_")).backward()


def policy_loss(clip_eps, entropy_coef, **given):
    return loss_of(train, given, clip_epsilon=clip_eps, entropy_coeff=entropy_coef)


def value_loss(clip_eps, **given):
    return loss_of(train, given, clip_value=clip_eps, entropy_bonus=False)
