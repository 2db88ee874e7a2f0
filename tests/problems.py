"""Bandit and Chain, whose expected rewards are a formula, and what the tests of diagnostics read of runs on them."""

import json

import lab
import torch
from conftest import ROOT, flat, output
from environments import Bandit


def checkpoint_of(run, iteration=0, algo="ppo"):
    """A checkpoint as the diagnostics name one."""
    return lab.Checkpoint(ROOT / "algos" / f"{algo}.py", run, iteration)


def policy_of(checkpoint):
    return lab.frozen_state(checkpoint)[2].policy


def rows(out, name):
    return [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]


def expected_rewards(env, policy, parameters=None):
    """The expected reward [places] at each place of the environment, of the policy with its own or with these
    parameters [P], by which it is differentiable."""
    pi = output(policy, flat(policy) if parameters is None else parameters, torch.eye(len(env.rewards)))
    return torch.tensor(env.rewards) - ((pi.mean - torch.tensor(env.TARGET)) ** 2 + pi.variance).sum(1)


def expected_return(env, policy, parameters=None):
    """An episode of Bandit has one of the places, one of Chain has all of them."""
    rewards = expected_rewards(env, policy, parameters).double()
    return (rewards.mean() if env is Bandit else rewards.sum()).item()
