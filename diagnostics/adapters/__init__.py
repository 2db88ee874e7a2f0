"""Adapters of conformance.py for libraries. Each calls the library's own functions, with its defaults where it has a
choice, and is run in an environment in which the library is installed; figures/conformance says how each was made.
CleanRL is a script and not a library, so its adapter is a transcription. This module has what several of them need.

An adapter's `train(policy, value, minibatches, **settings)` has the library train these networks on these minibatches,
which are as in `update`. Its losses are those on which the library calls backward() in the meantime. For them, the
networks answer what is given, and the observations are the numbers of the rows to be answered."""

from types import SimpleNamespace
from unittest.mock import patch

import torch


class Network(torch.nn.Module):
    """Answers as the function `forward` does, and has the other attributes that a library asks a network for."""

    def __init__(self, forward, **attributes):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))  # optimizers insist on a parameter
        for name, attribute in dict(forward=forward, **attributes).items():
            setattr(self, name, attribute)


def renamed(x, **names):
    """The dictionary with other names for some of its keys."""
    return {names.get(name, name): y for name, y in x.items()}


def loss_of(train, log_probs, entropies, values, minibatch, **settings):
    """The loss on which the library calls backward(), before it does. Its step then has no gradient."""

    def policy(rows):
        each = SimpleNamespace(entropy=lambda: entropies[rows])
        total = lambda: entropies[rows].sum(1)  # noqa: E731
        return SimpleNamespace(log_prob=lambda _: log_probs[rows], entropy=total, base_dist=each)

    rows, losses = torch.arange(len(values)), []
    minibatch = dict(obs=rows, actions=rows) | minibatch
    with patch.object(torch.Tensor, "backward", lambda loss, *_, **__: losses.append(loss)):
        train(Network(policy), Network(lambda rows: values[rows]), [minibatch], **settings)
    [loss] = losses
    return loss


def policy_loss_of(train, log_probs, old_log_probs, advantages, entropies, **settings):
    """The loss where values and their targets are zero."""
    zeros = torch.zeros_like(advantages)
    minibatch = dict(old_log_probs=old_log_probs, advantages=advantages, old_values=zeros, value_targets=zeros)
    return loss_of(train, log_probs, entropies, zeros, minibatch, **settings)


def value_loss_of(train, values, old_values, targets, **settings):
    """The loss where advantages and entropies are zero."""
    zeros = torch.zeros_like(targets)
    minibatch = dict(old_log_probs=zeros, advantages=zeros, old_values=old_values, value_targets=targets)
    return loss_of(train, zeros, zeros[:, None], values, minibatch, **settings)
