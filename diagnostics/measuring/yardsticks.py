"""Checks what any script of the contract must compute, with code that is not the script's: a script that is under test
cannot be its own yardstick. Each function returns a text that says what is wrong, an empty one where nothing is, or
None where it cannot be told."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from measuring import sampling
from measuring.runs import Source
from measuring.sampling import values_that_follow

ROUNDING = 1e-4  # share of the largest number; a recursion in float32 stays far below it
ALIKE = 0.5  # correlation of the noise of two segments; that of independent ones is below 0.05 in 8,000 pairs
FAR_OFF = 6  # standard errors
SAME_DIRECTION = 0.99  # cosine
UNLIKE = 1e-3  # share of the largest reward
OUTSIDE = 0.2  # share of the ratios that a moved policy has outside the band
FAR_APART = 1  # nats, mean KL
STEPS = 8  # of a new run
APART = 0.01  # share of the length; a healthy script is 0.00002 apart, and a second moment's decay of 0.9 makes 0.02
LONGEST = 2048  # steps of a segment
SEGMENTS = 4  # at least
LIMIT = 5  # steps of a segment before a time limit is set


def check(source: Source, seed: int) -> dict[str, str]:
    """Returns what is wrong with the script of a checkpoint, judged by some fresh segments with frozen statistics, by
    two updates from one of them, and by the first steps of a new run: a text for each thing that was checked, empty
    where it is right."""
    script, args, state = sampling.checkpoint_state(source)
    steps = min(args.num_steps, LONGEST)
    data = collect_group(source, (seed, source.iteration, 6), max(SEGMENTS, LONGEST // steps), steps)
    batch = script.estimate_advantages(args, state, data)
    noise = wrong_noise(state, data, steps) or acts_with_old_policy(source, seed, steps, batch)
    found = {"noise": noise, "scaled rewards": wrong_rewards(args, data)}
    found |= {"ends of episodes": wrong_ends(args, data), "first states": same_start(data)}
    if hasattr(state, "value"):
        found["next observations"] = wrong_next_obs(data)
        counts = wrong_targets(script, args, state, data)
        unseen = " or ".join(kind for kind, (_, of) in counts.items() if not of)
        name = "value targets" + f" (there were no {unseen} rows)" * bool(unseen)
        found[name] = explain_wrong_targets(counts)
        found["advantages"] = wrong_advantages(args, state, batch, data)
        found["value loss"] = wrong_value_loss(script, args, state, batch)
    found["objective"] = wrong_objective(script, args, state, batch)
    found["clip of the ratio"] = wrong_clip(script, args, state, batch)
    found |= judge_updates(source, seed)
    found["Adam"] = wrong_adam(script, args)
    return {name: text for name, text in found.items() if text is not None}  # None where it cannot be checked


# Rollouts ------------------------------------------------------------------------------------------------------------


class Recorder(gym.Wrapper):
    """Keeps the environment's own rewards, the first observations of its episodes, and how these ended. In each segment
    a time limit ends one episode early, since otherwise few segments would show what a script does at a time limit."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.rewards, self.first, self.ends = [], [], []

    def reset(self, **options: Any) -> tuple:
        result = self.env.reset(**options)
        self.first.append(np.array(result[0]))
        return result

    def step(self, action: np.ndarray) -> tuple:
        obs, reward, terminated, truncated, info = self.env.step(action)
        truncated = truncated or len(self.ends) == LIMIT
        self.rewards.append(float(reward))
        self.ends.append([bool(terminated), bool(truncated)])
        return obs, reward, terminated, truncated, info


def collect_group(source: Source, seed: tuple[int, ...], num_envs: int, num_steps: int) -> dict[str, Any]:
    """Collects fresh segments as sampling.collect_group does, with the environment's `raw_rewards` [B], whether it
    `ended` [B, 2] an episode, by a terminal state or by a time limit, and the `first` observation of each episode
    [n, obs]. `others` are the first observations of two more, whose seeds differ."""
    script, args, state = sampling.fresh_state(source, seed, num_envs, num_steps)
    for worker in state.workers:
        worker.env = Recorder(worker.env)
    data, envs = sampling.roll_out(script, args, state), [worker.env for worker in state.workers]
    kept = dict(raw_rewards="rewards", ended="ends", first="first")
    data |= {name: np.concatenate([getattr(env, attribute) for env in envs]) for name, attribute in kept.items()}
    return data | dict(others=[envs[0].reset(seed=seed)[0] for seed in (1, 2)])


@torch.no_grad()
def wrong_noise(state: Any, data: dict[str, Any], num_steps: int) -> str:
    """Judges the noise of the actions [B, action] of fresh segments, in units of the policy's standard deviation. It
    must be standard normal, or the actions are not those of this policy; and every segment must have its own."""
    pi = state.policy(torch.from_numpy(data["obs"]))
    noise = ((torch.from_numpy(data["actions"]) - pi.mean) / pi.stddev).double().numpy()
    mean, std, errors = noise.mean(), noise.std(), noise.size**-0.5
    if abs(mean) > FAR_OFF * errors or abs(std - 1) > FAR_OFF * errors / 2**0.5:
        return f"The actions are not the policy's: their noise has mean {mean:.2f} and standard deviation {std:.2f}."
    if len(noise) > 1.5 * num_steps and (noise[num_steps:] * noise[:-num_steps]).mean() > ALIKE:
        return "The same noise comes in every rollout: it must come from the state's generator, which goes on."
    return ""


def acts_with_old_policy(source: Source, seed: int, num_steps: int, batch: dict[str, Tensor]) -> str:
    """Judges whether the second of two rollouts acts with another policy if the policy has changed between them."""
    script, args, state = sampling.fresh_state(source, (seed, source.iteration, 8), 1, num_steps)
    sampling.roll_out(script, args, state)
    policy = moved(state.policy, lambda x: sampling.compare_policies(x, batch)[1].mean() > FAR_APART)
    if policy is None:
        return ""
    later = sampling.changed(state, policy=policy, iteration=state.iteration + 1)
    if wrong_noise(later, sampling.roll_out(script, args, later), num_steps):
        return "After the policy has changed, a rollout still acted with the old one."
    return ""


def wrong_rewards(args: Any, data: dict[str, Any]) -> str | None:
    """Judges whether the rewards to learn from are the environment's times one factor, as frozen statistics must make
    them, but for those that are clipped. Scaling by the rewards' own statistics adds a constant on purpose."""
    if getattr(args, "reward_scale_by", "returns") != "returns":
        return None
    # A positive factor keeps the order, so the order of the rows, which is the script's own, does not matter.
    scaled, raw = np.sort(data["rewards"]), np.sort(data["raw_rewards"])
    limit = args.reward_clip_range if getattr(args, "reward_clip", False) else np.inf
    scaled, raw = (x[np.abs(scaled) < limit] for x in (scaled, raw))
    if not raw.any():
        return None
    factor = scaled @ raw / (raw @ raw)
    if np.abs(scaled - factor * raw).max() <= UNLIKE * np.abs(scaled).max():
        return ""
    slope, shift = np.polyfit(raw, scaled, 1) if np.ptp(raw) else (factor, 0.0)
    text = f"they are about {slope:.3g} times the environment's, plus {shift:.3g}"
    return f"The scaled rewards are not the environment's rewards times one factor: {text}."


def wrong_ends(args: Any, data: dict[str, Any]) -> str | None:
    """Judges whether as many rows are terminal as the environment ended episodes by a terminal state. A time limit is
    none, unless the arguments say so."""
    if "terminations" not in data:
        return None
    terminated, truncated = data["ended"].T
    limits = (truncated & ~terminated).sum()
    expected = terminated.sum() + limits * (not getattr(args, "bootstrap_truncation", True))
    if (found := np.sum(data["terminations"])) == expected:
        return "" if data["ended"].any() else None
    text = f"It has {found:,} terminal rows, where {terminated.sum():,} episodes ended in a terminal state"
    return f"{text} and {limits:,} at a time limit. Is a time limit taken for a terminal state, or the other way round?"


def same_start(data: dict[str, Any]) -> str | None:
    """Judges whether all episodes begin in the same state, although the environment has others to begin in."""
    first, (one, other) = data["first"], data["others"]
    if len(first) == 1 or not np.any(one != other):
        return None
    if np.ptp(first, axis=0).any():
        return ""
    return f"All of {len(first):,} episodes begin in the same state: each needs a seed of its own in reset(seed=...)."


def wrong_next_obs(data: dict[str, Any]) -> str | None:
    """Judges whether the observation after a step is that of the next row, unless another episode begins there."""
    if "next_obs" not in data:
        return None
    rows, size = ~data["ends"][:-1], np.abs(data["obs"]).max()
    wrong = (np.abs(data["next_obs"][:-1] - data["obs"][1:]).max(1) > ROUNDING * size) & rows
    if not wrong.any():
        return ""
    text = f"In {wrong.sum():,} of {rows.sum():,} rows inside an episode next_obs is not the obs of the next row"
    return f"{text}: both must be what the networks see."


# Advantages ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def wrong_targets(script: ModuleType, args: Any, state: Any, data: dict[str, Any]) -> dict[str, list[int]]:
    """Counts the rows of a rollout in which the script's value targets at lambda 1 are not the discounted returns, and
    all rows, for three kinds of rows: terminal, cut (another episode follows, but no terminal state) and other. A row
    is compared with its reward plus the discounted target of the next row, so a wrong row does not make those before
    it wrong."""
    targets = script.estimate_advantages(replace(args, gae_lambda=1.0), state, data)["value_targets"].double().numpy()
    values = state.value(torch.from_numpy(data["obs"])).double().numpy()
    after = np.where(data["ends"], values_that_follow(state.value, data), np.append(targets[1:], 0.0))
    wrong = np.abs(data["rewards"] + args.gamma * after - targets) > ROUNDING * np.abs([targets, values]).max()
    return count_by_kind(wrong, data)


def count_by_kind(wrong: np.ndarray, data: dict[str, Any]) -> dict[str, list[int]]:
    """Returns for each kind of rows how many of them are wrong, and how many there are."""
    kinds = dict(terminal=data["terminations"], cut=data["ends"] & ~data["terminations"], other=~data["ends"])
    return {name: [(wrong & rows).sum().item(), rows.sum().item()] for name, rows in kinds.items()}


def rows_text(counts: dict[str, list[int]]) -> str:
    return ", ".join(f"{n:,} of {of:,} {name} rows" for name, (n, of) in counts.items() if n)


# What is right in each kind of rows; a fault in the sum itself comes first, because it is in the other two as well.
RIGHT = dict(
    other="the target is A + V, and delta is r + gamma V(next_obs) - V(obs)",
    terminal="after a terminal state V counts as 0",
    cut="where an episode is cut off, gamma V(next_obs) continues its sum",
)


def explain_wrong_targets(wrong: dict[str, list[int]]) -> str:
    """Says in which rows a script's value targets are not the returns, or returns an empty text."""
    if not (rows := rows_text(wrong)):
        return ""
    right = next(text for name, text in RIGHT.items() if wrong.get(name, [0])[0])
    return f"Its value targets at lambda 1 are not the discounted returns in {rows}. In estimate_advantages: {right}."


@torch.no_grad()
def wrong_advantages(args: Any, state: Any, batch: dict[str, Tensor], data: dict[str, Any]) -> str:
    """Judges whether advantages [B] are GAE's, row by row from the script's own next one, as wrong_targets does."""
    advantages, values = (x.double().numpy() for x in (batch["advantages"], state.value(batch["obs"])))
    deltas = data["rewards"] + args.gamma * values_that_follow(state.value, data) - values
    after = np.where(data["ends"], 0.0, np.append(advantages[1:], 0.0))
    errors = np.abs(deltas + args.gamma * args.gae_lambda * after - advantages)
    wrong = errors > ROUNDING * np.abs([advantages, values]).max()
    rows = rows_text(count_by_kind(wrong, data))
    return f"Its advantages are not delta + gamma lambda A' in {rows}." if rows else ""


# Losses and updates --------------------------------------------------------------------------------------------------


def loss_gradient(loss: Tensor, network: nn.Module) -> Tensor:
    """Returns the gradient of the loss as one vector [P], 0 where a parameter does not matter."""
    parameters = list(network.parameters())
    parts = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat([torch.zeros_like(p).flatten() if x is None else x.flatten() for x, p in zip(parts, parameters)])


def cosine(x: Tensor, y: Tensor) -> float:
    return (x @ y / (x.norm() * y.norm()).clamp(min=1e-30)).item()


def wrong_objective(script: ModuleType, args: Any, state: Any, batch: dict[str, Tensor]) -> str | None:
    """Judges whether at the policy that acted, the gradient of the objective is the policy gradient of its advantages,
    normalized or not, and whether the entropy bonus raises the entropy. V-MPO's objective weights its pairs, so it is
    left out."""
    if "multipliers" in batch:
        return None
    coef = getattr(args, "entropy_coef", 0.0)
    mine = loss_gradient(sampling.objective(script, without_bonus(args), state.policy, batch), state.policy)
    surrogate = lambda A: (state.policy(batch["obs"]).log_prob(batch["actions"]) * A).mean()
    A = batch["advantages"]
    expected = [loss_gradient(surrogate(x), state.policy) for x in (A, A - A.mean())]
    nearest = max((cosine(mine, x) for x in expected), key=abs)
    if nearest < SAME_DIRECTION and expected[0].any():
        text = "The gradient of its objective is not the policy gradient of its advantages: their cosine is"
        return f"{text} {nearest:.2f}."
    if coef and getattr(args, "bound_action", "no") != "tanh":
        bonus = loss_gradient(sampling.objective(script, args, state.policy, batch), state.policy) - mine
        entropy = loss_gradient(coef * state.policy(batch["obs"]).entropy().mean(), state.policy)
        if cosine(bonus, entropy) < SAME_DIRECTION:
            return f"The entropy bonus of its objective is not {coef} times the entropy, or has the wrong sign."
    return ""


def wrong_value_loss(script: ModuleType, args: Any, state: Any, batch: dict[str, Tensor]) -> str:
    """Judges whether at the values before the fit, where no clip acts, the gradient of the value loss is that of the
    mean squared error."""
    expected = loss_gradient(((state.value(batch["obs"]) - batch["value_targets"]) ** 2).mean(), state.value)
    loss = script.value_loss(args, state.value(batch["obs"]), batch)
    nearest = cosine(loss_gradient(loss, state.value), expected)
    if nearest < SAME_DIRECTION and expected.any():
        return f"The gradient of its value loss is not that of the mean squared error: their cosine is {nearest:.2f}."
    return ""


def wrong_clip(script: ModuleType, args: Any, state: Any, batch: dict[str, Tensor]) -> str | None:
    """Judges whether at a policy that has left the band, the gradient of the objective is still that of PPO's clipped
    surrogate (Schulman et al. 2017, eq. 7). At the policy that acted, no ratio is clipped yet."""
    if not hasattr(args, "clip_eps"):
        return None
    outside = lambda ratios: ((ratios - 1).abs() > args.clip_eps).float().mean().item()
    policy = moved(state.policy, lambda x: outside(sampling.compare_policies(x, batch)[0]) > OUTSIDE)
    if policy is None:
        return None
    mine, expected = loss_gradient(sampling.objective(script, without_bonus(args), policy, batch), policy), []
    A = batch["advantages"]
    for x in (A, (A - A.mean()) / A.std()):
        ratios = torch.exp(policy(batch["obs"]).log_prob(batch["actions"]) - batch["old_log_probs"])
        clipped = ratios.clamp(1 - args.clip_eps, 1 + args.clip_eps)
        expected.append(loss_gradient(torch.minimum(ratios * x, clipped * x).mean(), policy))
    nearest = max(cosine(mine, x) for x in expected)
    if nearest < SAME_DIRECTION:
        text = f"With {100 * outside(ratios):.0f} % of the ratios outside the band, the gradient of its objective is"
        return f"{text} not that of the clipped surrogate, the smaller of both terms: their cosine is {nearest:.2f}."
    return ""


def moved(policy: nn.Module, far_enough: Callable) -> nn.Module | None:
    """Returns a copy of the policy whose parameters walk at random until it is far enough, or None if it never is."""
    policy, noise = copy.deepcopy(policy), torch.Generator().manual_seed(0)
    for length in np.geomspace(0.01, 1, 20):
        with torch.no_grad():
            for p in policy.parameters():
                p += length * torch.randn(p.shape, generator=noise)
        if far_enough(policy):
            return policy
    return None


def without_bonus(args: Any) -> Any:
    """Returns the arguments without an entropy bonus."""
    return replace(args, entropy_coef=0.0) if getattr(args, "entropy_coef", 0.0) else args


def judge_updates(source: Source, seed: int) -> dict[str, str | None]:
    """Judges two updates from one batch that differ in the random generator alone. They must not be the same, if
    minibatches are shuffled, and both must do on this batch what they are made for."""
    script, args, _ = sampling.checkpoint_state(source)
    steps = min(args.num_steps, LONGEST)
    script, args, state = sampling.fresh_state(source, (seed, source.iteration, 7), args.num_envs, steps)
    batch, updated = script.estimate_advantages(args, state, sampling.roll_out(script, args, state)), []
    for rng in (1, 2):
        updated.append(sampling.changed(sampling.copied(state), rng=np.random.default_rng(rng)))
        script.update(args, updated[-1], batch)
    found = dict(shuffling=not_shuffled(args, state, updated))
    return found | {"update": wrong_update(script, args, batch, [state, *updated])}


def networks_of(state: Any) -> dict[str, nn.Module]:
    return {name: getattr(state, name) for name in ("policy", "value") if hasattr(state, name)}


def not_shuffled(args: Any, state: Any, updated: list[Any]) -> str | None:
    """Judges whether an update on minibatches depends on the random generator, as shuffling makes it."""
    if getattr(args, "num_minibatches", 1) < 2 or not isinstance(getattr(state, "rng", None), np.random.Generator):
        return None
    parameters = lambda x: torch.cat([sampling.flat_parameters(network) for network in networks_of(x).values()])
    before, first, second = (parameters(x) for x in (state, *updated))
    if torch.equal(first, second) and not torch.equal(before, first):  # an update may have a learning rate of 0
        return "Its minibatches are not shuffled: an update does not depend on the random generator."
    return ""


@torch.no_grad()
def wrong_update(script: ModuleType, args: Any, batch: dict[str, Tensor], states: list[Any]) -> str:
    """Judges whether updates raise the objective on the batch that they are made from, and lower the squared error of
    the value network. V-MPO's objective moves with its multipliers, so it is left out."""
    if "multipliers" not in batch:
        before, *after = (sampling.objective(script, args, x.policy, batch).item() for x in states)
        if max(after) < before:
            return f"An update lowered its objective on its own batch from {before:.3g} to {max(after):.3g}."
    if hasattr(states[0], "value"):
        before, *after = (((x.value(batch["obs"]) - batch["value_targets"]) ** 2).mean().item() for x in states)
        if min(after) > before:
            text = "An update raised the squared error of the value network on its own batch from"
            return f"{text} {before:.3g} to {min(after):.3g}."
    return ""


def wrong_adam(script: ModuleType, args: Any) -> str | None:
    """Judges the first steps of a new run against those that torch.optim.Adam takes along the same gradients, with the
    learning rates of the arguments. Gradients may be clipped, by their own norm or by that of both networks' together,
    with any usual weight of the value loss."""
    names = [x for x in ("policy", "value") if {f"{x}_lr", f"{x}_epochs", "num_minibatches"} <= vars(args).keys()]
    if not names:
        return None
    steps, most = first_steps(script, args, names), getattr(args, "max_grad_norm", math.inf)
    lengths = {name: torch.stack([x.norm() for x in gradients]) for name, (gradients, _) in steps.items()}
    together = [torch.hypot(lengths["policy"], c * lengths["value"]) for c in (0.25, 0.5, 1)] if len(names) > 1 else []
    for name, (gradients, change) in steps.items():
        lr, expected = getattr(args, f"{name}_lr"), []
        for norms in (torch.zeros(len(gradients)), lengths[name], *together):
            clipped = [x * min(1.0, most / max(norm, 1e-30)) for x, norm in zip(gradients, norms.tolist())]
            expected += [adam_steps(clipped, lr, eps) for eps in (1e-5, 1e-8)]
        nearest = max(expected, key=lambda x: abs(cosine(change, x)))
        size, apart = ((x.norm() / nearest.norm()).item() for x in (change, change - nearest))
        if apart > APART:
            text = f"The first {STEPS} steps of its {name} network are not Adam's with {name}_lr {lr:g}. They are"
            direction = f"with a cosine of {cosine(change, nearest):.2f}"
            return f"{text} {size:.3g} times as long, {direction}, and end {apart:.2g} of that length away."
    return ""


def first_steps(script: ModuleType, args: Any, names: list[str]) -> dict[str, tuple[list[Tensor], Tensor]]:
    """Takes the first steps of a new run, each of them an update on a minibatch of its own. Returns for each network
    the gradients of its loss before each step and the change of its parameters by all of them, each [P]."""
    one_step = dict(num_minibatches=1, num_steps=min(args.num_steps, LONGEST)) | {f"{x}_epochs": 1 for x in names}
    constant = dict(anneal_lr=False) if hasattr(args, "anneal_lr") else {}  # rates
    args = replace(args, **one_step, **constant)
    state = sampling.new_state(script, args)
    batch = script.estimate_advantages(args, state, sampling.roll_out(script, args, state))
    losses = dict(policy=script.policy_loss, value=getattr(script, "value_loss", None))
    before = {x: sampling.flat_parameters(network) for x, network in networks_of(state).items()}
    gradients = {x: [] for x in names}
    for rows in torch.arange(len(batch["obs"])).chunk(STEPS):
        minibatch = {name: x[rows] for name, x in batch.items() if name != "multipliers"}
        if "multipliers" in batch:  # those of V-MPO's objective, which its update moves, too
            minibatch["multipliers"] = state.multipliers.clone()
        for x in names:
            network = getattr(state, x)
            gradients[x].append(loss_gradient(losses[x](args, network(minibatch["obs"]), minibatch), network))
        script.update(args, state, minibatch)
    return {x: (gradients[x], sampling.flat_parameters(getattr(state, x)) - before[x]) for x in names}


def adam_steps(gradients: list[Tensor], lr: float, eps: float) -> Tensor:
    """Returns how far Adam's steps along the gradients [P] move the parameters, [P]."""
    parameters = torch.zeros_like(gradients[0], requires_grad=True)
    adam = torch.optim.Adam([parameters], lr, eps=eps)
    for parameters.grad in gradients:
        adam.step()
    return parameters.detach()
