"""Bandit and Chain, whose expected rewards are a formula, and what the tests of diagnostics read of runs on them."""

import numpy as np
import torch
from conftest import ROOT, flat, output
from environments import Bandit
from measuring import sampling, table
from measuring.runs import Source


def source_of(run, iteration=0, algo="ppo"):
    """A checkpoint as the diagnostics name one."""
    return Source(ROOT / "algos" / f"{algo}.py", run, iteration)


def policy_of(source):
    return sampling.checkpoint_state(source)[2].policy


def rows(out, name):
    return table.read_rows(out / f"{name}.jsonl")


def expected_rewards(env, policy, parameters=None):
    """The expected reward [places] at each place of the environment, of the policy with its own or with these
    parameters [P], by which it is differentiable."""
    pi = output(policy, flat(policy) if parameters is None else parameters, torch.eye(len(env.rewards)))
    return torch.tensor(env.rewards) - ((pi.mean - torch.tensor(env.TARGET)) ** 2 + pi.variance).sum(1)


def expected_return(env, policy, parameters=None):
    """An episode of Bandit has one of the places, one of Chain has all of them."""
    rewards = expected_rewards(env, policy, parameters).double()
    return (rewards.mean() if env is Bandit else rewards.sum()).item()


def symmetric(values, n, first):
    """A matrix [n, n] from the values on and above its diagonal (first 0), or above it (first 1)."""
    matrix = np.zeros((n, n))
    matrix[np.triu_indices(n, first)] = values
    return np.triu(matrix) + np.triu(matrix, 1).T
