"""Adapters of conformance.py for libraries. Each calls the library's own functions, with its defaults where it has a
choice, and is run in an environment in which the library is installed; figures/conformance says how each was made.
CleanRL is a script and not a library, so its adapter is a transcription. This module has what several of them need."""

from collections.abc import Callable
from unittest.mock import patch

import torch


def loss_of(train: Callable[[], None]) -> torch.Tensor:
    """The loss on which the library calls backward() while it trains, before it does. Its step then has no gradient."""
    losses = []
    with patch.object(torch.Tensor, "backward", lambda loss, *_, **__: losses.append(loss)):
        train()
    [loss] = losses
    return loss
