"""Adapters of conformance for libraries. Each calls the library's own functions, with its defaults where it has a
choice. CleanRL is a script and not a library, so its adapter is a transcription. Here is what several of them need.

An adapter's `update` also takes the library's own settings, so that `loss_of` can call it and take the loss before the
library's backward(). There, observations are numbers of rows, for which the networks answer with what is given."""

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


def loss_of(update, given, **settings):
    """The loss on which the library calls backward(), before it does; its step then has no gradient. What is not given
    of a policy's or a value loss is zero."""
    rows, losses = torch.arange(len(next(iter(given.values())))), []
    zeros = torch.zeros(len(rows), dtype=torch.float64)
    columns = dict.fromkeys(("old_log_probs", "advantages", "old_values"), zeros)
    x = columns | dict(log_probs=zeros, entropies=zeros[:, None], values=zeros, targets=zeros) | given

    def policy(rows):
        log_probs, entropies = x["log_probs"][rows], x["entropies"][rows]
        each = SimpleNamespace(entropy=lambda: entropies)
        return SimpleNamespace(log_prob=lambda _: log_probs, entropy=lambda: entropies.sum(1), base_dist=each)

    minibatch = {name: x[name] for name in columns} | dict(obs=rows, actions=rows, value_targets=x["targets"])
    with patch.object(torch.Tensor, "backward", lambda loss, *_, **__: losses.append(loss)):
        update(Network(policy), Network(lambda rows: x["values"][rows]), [minibatch], **settings)
    [loss] = losses
    return loss
