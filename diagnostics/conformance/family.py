"""The family of formulas with which comparison.py compares those of another implementation, and the frozen rollout.

The formulas are repeated here, in numpy and float64, and are not imported from algos/, because what judges the
scripts must not be the scripts. TABLE has, for each function, what can be done in more than one way, and the ways by
name. The first is what ppo.py does by default, and the words say where another is from. A member of the family is one
way for each detail. The functions from `advantages` to `update` compute members, and FROZEN is what they compute from.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

# Details -------------------------------------------------------------------------------------------------------------

TABLE = """
advantages: time limit
    bootstrapped: V of the true final observation follows a time limit
    terminal: a time limit is treated as a terminal state (our --no-bootstrap-truncation)
    last state: V of the last state itself stands for what follows a time limit
    overlooked: a time limit is overlooked, so that the sum runs on into the next episode
advantages: end of the batch
    bootstrapped: V of the next observation follows the end of the batch
    last state: V of the last state itself follows the end of the batch (IM's released code)
    terminal: the end of the batch is treated as a terminal state
advantages: estimator
    GAE: advantages are those of GAE
    no lambda: lambda is missing from GAE, as if it were 1
    no critic: advantages are discounted returns, without a critic (reinforce.py)
advantages: normalized over the batch
    no: advantages are not normalized over the batch
    yes: advantages are normalized over the whole batch
    biased: advantages are normalized over the whole batch, by a std without Bessel's correction
    centred: the mean of the batch is subtracted from the advantages (reinforce.py's --baseline mean)
advantages: targets
    A + V: the value targets are A + V
    returns: the value targets are discounted returns (A with lambda 1, + V)
    one step: the value targets are r + gamma V(s')
policy_loss: surrogate
    clipped: the surrogate is the smaller of the clipped and the unclipped
    unclipped: the ratio is not clipped (ppo_noclip.py, trpo.py)
    only clipped: the surrogate is the clipped ratio's alone, without the smaller of the two
    log-likelihood: the surrogate is log pi times the advantage, without a ratio (a2c.py, reinforce.py)
    better half: the surrogate is the better half's weighted log-likelihood (vmpo.py, temperature 1)
policy_loss: normalized over the minibatch
    yes: advantages are normalized over the minibatch
    biased: advantages are normalized over the minibatch, by a std without Bessel's correction
    no: advantages are not normalized over the minibatch
policy_loss: entropy
    bonus: the action's entropy is a bonus
    mean bonus: the entropy bonus is averaged over the action's dimensions
    penalty: the action's entropy is a penalty, so its sign is reversed
    mean penalty: the entropy is a penalty, averaged over the action's dimensions
    unused: the entropy is not used
value_loss: clipping
    larger: the larger of the clipped and the unclipped loss counts
    no: the value loss is not clipped (our --no-value-clip)
    smaller: the smaller of the clipped and the unclipped loss counts (IM's formula)
    only clipped: only the clipped prediction's loss counts, so that beyond the clip there is no gradient
    signed: the larger of the two signed errors is squared (implementation-matters/code-for-paper)
value_loss: error
    squared: the value loss is the mean squared error
    halved: the value loss is half the mean squared error
    smooth_l1: the value loss is the smooth L1 loss
value_loss: range
    as given: values are clipped in the range given
    0.2: values are always clipped by 0.2
scale_rewards: divided by
    returns: rewards are divided by the running std of discounted returns
    rewards: rewards are scaled around their running mean (our --reward-scale-by rewards)
    centred: the running mean of discounted returns is subtracted from rewards
    rewards, centred: the running mean of rewards is subtracted from them and not put back
    rewards, as they are: rewards are divided by their own running std
    nothing: rewards are not scaled (our --no-reward-scale)
scale_rewards: restart
    after: the discounted return restarts with each episode
    never: the discounted return never restarts (IM's Algorithm 1)
    early: the discounted return restarts one step too early, at an episode's last reward
normalize: standardized
    yes: observations are standardized
    no: they are not (our --no-obs-norm)
samples: statistics over
    in turn: the statistics take in one environment's steps after another's
    step by step: the statistics take in each step of all environments
    each its own: each environment has statistics of its own
    batch: the statistics take in the whole batch before they are used
samples: first std
    |mean|: the variance is Bessel-corrected, and a single sample's std is its size
    1e-4: the variance begins as 1, with the weight of 1e-4 samples
    1: the variance begins as 1, with the weight of one sample
    1, corrected: the variance begins as 1, with the weight of one sample, and the batch's is Bessel-corrected
    biased: the variance is not Bessel-corrected
samples: eps
    1e-8: eps, 1e-8, is added to the std
    1e-8 in the root: eps, 1e-8, is added to the variance, inside the root
    1e-2: eps, 1e-2, is added to the std
    float32's in the root: eps, that of float32 (1.2e-7), is added to the variance, inside the root
samples: clipped at
    10: the result is clipped at 10
    5: the result is clipped at 5
    nothing: the result is not clipped (our --no-reward-clip, --no-obs-clip)
update: gradient norm
    own: each network's gradient norm is clipped
    joint: both networks' joint gradient norm is clipped
    policy: only the policy's gradient norm is clipped (our --no-value-grad-clip)
    no: no gradient norm is clipped (our --no-grad-clip --no-value-grad-clip)
update: Adam's eps
    1e-5: Adam's eps is 1e-5
    1e-8: Adam's eps is 1e-8
update: value weight
    1: the squared error has weight 1
    1/2: the squared error has weight 1/2
    1/4: the squared error has weight 1/4
    5/2: the squared error has weight 5/2
update: value clipping
    larger: the larger of the clipped and the unclipped value loss counts
    no: the value loss is not clipped
    only clipped: only the clipped prediction's loss counts
update: normalized over the minibatch
    yes: advantages are normalized over the minibatch
    no: advantages are not normalized over the minibatch
"""
DETAILS, texts = {}, {}
for line in TABLE.strip().splitlines():
    left, right = line.strip().split(": ", 1)
    if line.startswith(" "):
        texts[left] = right
    else:
        texts = DETAILS.setdefault(left, {}).setdefault(right, {})
SAMPLES = DETAILS.pop("samples")
DETAILS["normalize"] |= SAMPLES
SOME = {"statistics over": 3, "first std": 2, "eps": 2, "clipped at": 3}  # how many of these rewards have
DETAILS["scale_rewards"] |= {detail: dict(list(texts.items())[: SOME[detail]]) for detail, texts in SAMPLES.items()}


# Members -------------------------------------------------------------------------------------------------------------


def normalized(x: np.ndarray, way: str) -> np.ndarray:
    if way == "no":
        return x
    return x - x.mean() if way == "centred" else (x - x.mean()) / (x.std(ddof=way == "yes") + 1e-8)


def advantages(x: dict[str, Any], way: dict[str, str]) -> dict[str, np.ndarray]:
    """Returns advantages and value targets [T, N]."""
    V, truncations = x["values"].copy(), x["truncations"]
    ends = x["terminations"] | (truncations if way["time limit"] != "overlooked" else False)
    following = x["next_values"].copy()  # V of what follows each step
    if way["end of the batch"] != "bootstrapped":
        following[-1][~ends[-1]] = V[-1][~ends[-1]] if way["end of the batch"] == "last state" else 0
    if way["time limit"] == "terminal":
        following[truncations] = 0
    elif way["time limit"] == "last state":
        following[truncations] = V[truncations]
    elif way["time limit"] == "overlooked":
        following[:-1][truncations[:-1]] = V[1:][truncations[:-1]]  # the next row belongs to the next episode
    following[x["terminations"]] = 0
    if way["estimator"] == "no critic":
        V, following = 0 * V, 0 * V

    def gae(gae_lambda: float) -> np.ndarray:  # Schulman et al. 2016, eq. 16
        deltas = x["rewards"] + x["gamma"] * following - V
        for t in reversed(range(len(deltas) - 1)):
            deltas[t] += x["gamma"] * gae_lambda * ~ends[t] * deltas[t + 1]
        return deltas

    A = gae(x["gae_lambda"] if way["estimator"] == "GAE" else 1)
    targets = {"A + V": A + V, "returns": gae(1) + V, "one step": x["rewards"] + x["gamma"] * following}
    return dict(advantages=normalized(A, way["normalized over the batch"]), targets=targets[way["targets"]])


def policy_loss(x: dict[str, Any], way: dict[str, str]) -> float:
    A = normalized(x["advantages"], way["normalized over the minibatch"])
    ratios = np.exp(x["log_probs"] - x["old_log_probs"])
    clipped = ratios.clip(1 - x["clip_eps"], 1 + x["clip_eps"]) * A
    half = np.argsort(-A)[: len(A) // 2]
    weights = np.exp(A[half] - A.max())  # a softmax with temperature 1; the KL terms are left out
    surrogate = {
        "clipped": np.minimum(ratios * A, clipped).mean(),  # Schulman et al. 2017, eq. 7
        "unclipped": (ratios * A).mean(),
        "only clipped": clipped.mean(),
        "log-likelihood": (x["log_probs"] * A).mean(),
        "better half": (weights / weights.sum() * x["log_probs"][half]).sum(),  # GUIDE, Algorithm 8
    }
    entropy = x["entropies"].mean(0)
    entropy = entropy.mean() if "mean" in way["entropy"] else entropy.sum()
    sign = 0 if way["entropy"] == "unused" else 1 if "bonus" in way["entropy"] else -1
    return -surrogate[way["surrogate"]] - sign * x["entropy_coef"] * entropy


def value_loss(x: dict[str, Any], way: dict[str, str]) -> float:
    clip_eps = x["clip_eps"] if way["range"] == "as given" else 0.2
    clipped_values = x["old_values"] + (x["values"] - x["old_values"]).clip(-clip_eps, clip_eps)
    errors, clipped_errors = x["values"] - x["targets"], clipped_values - x["targets"]
    loss = dict(
        squared=np.square,
        halved=lambda e: e**2 / 2,
        smooth_l1=lambda e: np.where(abs(e) < 1, e**2 / 2, abs(e) - 0.5),
    )[way["error"]]
    losses = {
        "larger": np.maximum(loss(errors), loss(clipped_errors)),
        "no": loss(errors),
        "smaller": np.minimum(loss(errors), loss(clipped_errors)),
        "only clipped": loss(clipped_errors),
        "signed": loss(np.maximum(errors, clipped_errors)),
    }
    return losses[way["clipping"]].mean()


def running(samples: np.ndarray, way: dict[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and divisor with which each sample [T, N, ...] is standardized; the sample itself is in them."""
    T, N, *shape = samples.shape
    over = way["statistics over"]
    # The stream of samples [n, ...] that the statistics take in; where each environment has its own, [n, N, ...].
    stream = samples.swapaxes(0, 1) if over == "in turn" else samples
    stream = stream if over == "each its own" else stream.reshape(T * N, *shape)
    n = np.arange(1, len(stream) + 1).reshape(-1, *[1] * (stream.ndim - 1))
    sums, squares = stream.cumsum(0), (stream**2).cumsum(0)
    if way["first std"] in ("|mean|", "biased"):
        mean = sums / n
        corrected = way["first std"] == "|mean|"
        variance = (squares - n * mean**2).clip(0) / np.maximum(n - corrected, 1)
        if corrected:
            variance[0] = mean[0] ** 2
    else:
        weight = float(way["first std"].split(",")[0])  # of a sample before all others, with mean 0 and variance 1
        mean = sums / (weight + n)
        if "corrected" in way["first std"]:
            squares = (squares - sums**2 / n) * n / np.maximum(n - 1, 1) + sums**2 / n
        variance = (weight + squares) / (weight + n) - mean**2
    eps = {"1e-8": 1e-8, "1e-2": 1e-2, "float32's": np.finfo(np.float32).eps}[way["eps"].split()[0]]
    divisor = np.sqrt(variance + eps) if "root" in way["eps"] else np.sqrt(variance) + eps

    def of_each(x: np.ndarray) -> np.ndarray:
        if over == "in turn":
            return x.reshape(N, T, *shape).swapaxes(0, 1)
        if over == "step by step":
            x = x[N - 1 :: N, None]  # all environments see the statistics after the last of them
        return np.broadcast_to(x[-1] if over == "batch" else x, samples.shape)

    return of_each(mean), of_each(divisor)


def bounded(x: np.ndarray, way: dict[str, str]) -> np.ndarray:
    return x if way["clipped at"] == "nothing" else x.clip(-float(way["clipped at"]), float(way["clipped at"]))


def scale_rewards(x: dict[str, Any], way: dict[str, str]) -> dict[str, np.ndarray]:
    """Returns scaled rewards [T, N]."""
    rewards, ends, by = x["rewards"], x["ends"], way["divided by"]
    R, returns = np.zeros(rewards.shape[1]), []
    for reward, end in zip(rewards, ends):
        R = x["gamma"] * R * (~end if way["restart"] == "early" else 1) + reward
        returns.append(R)
        R = R * ~end if way["restart"] == "after" else R
    mean, divisor = running(rewards if "rewards" in by else np.array(returns), way)
    scaled = {"nothing": rewards, "rewards": (rewards - mean) / divisor + mean}
    shifted = rewards - mean if "centred" in by else rewards
    return dict(rewards=bounded(scaled.get(by, shifted / divisor), way))


def normalize(x: dict[str, Any], way: dict[str, str]) -> dict[str, np.ndarray]:
    """Returns normalized observations [T, N, obs]."""
    mean, divisor = running(x["observations"], way)
    standardized = (x["observations"] - mean) / divisor if way["standardized"] == "yes" else x["observations"]
    return dict(observations=bounded(standardized, way))


# The two networks of `update`, parameters in torch's order: the policy has log_std [2], weight [2, 3] and bias [2] of a
# linear mean; the value network has weight [1, 3] and bias [1].
NETWORKS = dict(policy=np.r_[-0.3, 0.2, 0.5, -0.4, 0.3, 0.2, 0.6, -0.5, 0.1, -0.1], value=np.r_[0.4, -0.6, 0.2, 0.1])


def gaussian_log_probs(parameters: np.ndarray, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
    log_std, weight, bias = np.split(parameters, [2, 8])
    z = (actions - obs @ weight.reshape(2, 3).T - bias) / np.exp(log_std)
    return (-(z**2) / 2 - log_std - np.log(2 * np.pi) / 2).sum(1)


def update(x: dict[str, Any], way: dict[str, str]) -> dict[str, np.ndarray]:
    """Returns both networks' parameters after a step of Adam (Kingma & Ba 2015, Algorithm 1) for each minibatch."""
    normalization = {"normalized over the minibatch": way["normalized over the minibatch"]}
    ways = dict(policy=next(members("policy_loss")) | normalization)
    ways["value"] = next(members("value_loss")) | dict(clipping=way["value clipping"])
    weight = {"1": 1, "1/2": 0.5, "1/4": 0.25, "5/2": 2.5}[way["value weight"]]
    after = {name: parameters.copy() for name, parameters in NETWORKS.items()}
    moments = {name: np.zeros((2, len(parameters))) for name, parameters in NETWORKS.items()}

    def loss_of_policy(parameters: np.ndarray) -> float:
        log_probs = gaussian_log_probs(parameters, batch["obs"], batch["actions"])
        return policy_loss(batch | dict(log_probs=log_probs), ways["policy"])

    def loss_of_value(parameters: np.ndarray) -> float:
        values = batch["obs"] @ parameters[:3] + parameters[3]
        return weight * value_loss(batch | dict(values=values), ways["value"])

    for t, minibatch in enumerate(x["minibatches"], start=1):
        batch = minibatch | dict(targets=minibatch["value_targets"], clip_eps=x["clip_eps"])
        batch |= dict(entropies=np.zeros((1, 1)), entropy_coef=0)
        gradients = dict(policy=slopes(loss_of_policy, after["policy"]), value=slopes(loss_of_value, after["value"]))
        norms = {name: np.linalg.norm(gradient) for name, gradient in gradients.items()}
        if way["gradient norm"] == "joint":
            norms = dict.fromkeys(norms, np.hypot(*norms.values()))
        free = dict(policy=["value"], no=["policy", "value"]).get(way["gradient norm"], [])
        for name, gradient in gradients.items():
            g = gradient * (1 if name in free else min(1, x["max_grad_norm"] / (norms[name] + 1e-6)))
            m, v = moments[name] = moments[name] * [[0.9], [0.999]] + np.array([0.1 * g, 0.001 * g**2])
            step = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + float(way["Adam's eps"]))
            after[name] = after[name] - x["learning_rate"] * step
    return after


def slopes(function: Callable[[np.ndarray], float], x: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """Returns the gradient of the function at x, of x's shape, by central differences."""
    found = np.empty(x.shape)
    for i in np.ndindex(x.shape):
        moved = np.zeros(x.shape)
        moved[i] = h
        found[i] = (function(x + moved) - function(x - moved)) / (2 * h)
    return found


def possible(name: str, way: dict[str, str]) -> bool:
    """Tells whether a member has this way of its own. The others would print another's numbers, or differ from them by
    less than can be seen."""
    odd = {detail for detail, option in way.items() if option != next(iter(DETAILS[name][detail]))}
    if name == "advantages":
        if way["estimator"] == "no critic":
            return way["time limit"] == way["end of the batch"] == "terminal" and "targets" not in odd
        return way["estimator"] == "GAE" or way["targets"] != "returns"
    if name == "value_loss":
        return way["clipping"] != "no" or "range" not in odd
    if way.get("divided by") == "nothing" or "standardized" in odd:  # then only the clip is left
        return odd <= {"divided by", "standardized", "clipped at"}
    if name == "scale_rewards":
        return "restart" not in odd or "rewards" not in way["divided by"]
    if name == "normalize" and way["first std"] in ("1", "1, corrected"):  # a variance beside which eps counts little
        return "root" not in way["eps"] and (way["statistics over"] == "batch" or way["first std"] == "1")
    return True


def members(name: str) -> Iterator[dict[str, str]]:
    """Yields the family of a function, ppo.py's defaults first."""
    for options in itertools.product(*DETAILS[name].values()):
        way = dict(zip(DETAILS[name], options))
        if possible(name, way):
            yield way


# The frozen rollout --------------------------------------------------------------------------------------------------


def frozen_inputs() -> dict[str, dict[str, Any]]:
    """Returns what each function is called with, chosen so that no two members have the same numbers. The rollout of
    four environments has terminal states, time limits, episodes that are cut by the end of the batch, and one of each
    that ends with it. Ratios and values are beyond the clip on both sides, for advantages of both signs and targets on
    both sides. Some rewards and a column of observations are tiny, so that eps counts, and some are beyond any clip."""
    rng = np.random.default_rng(0)
    T, N, B = 16, 4, 16
    terminations, truncations = np.zeros((2, T, N), bool)
    terminations[[5, 15, 10], [0, 1, 2]] = True
    truncations[[7, 15, 3, 9], [1, 2, 3, 3]] = True
    values, next_values = rng.normal(1, 2, (2, T, N))
    goes_on = ~(terminations | truncations)[:-1]
    next_values[:-1][goes_on] = values[1:][goes_on]
    rollout = dict(rewards=rng.normal(0.5, 1, (T, N)), values=values, next_values=next_values)
    rollout |= dict(terminations=terminations, truncations=truncations, gamma=0.97, gae_lambda=0.9)

    clip_eps = 0.3
    ratios = 1 + clip_eps * np.tile([-2.2, -0.6, 0.7, 2.4], 4) * rng.uniform(0.9, 1.1, B)
    signs = np.repeat([1, -1, 1, -1], 4)
    old_log_probs = rng.normal(-2, 1, B)
    policy = dict(log_probs=old_log_probs + np.log(ratios), old_log_probs=old_log_probs)
    policy |= dict(advantages=0.4 + signs * rng.uniform(1, 3, B), entropies=rng.normal(1, 0.5, (B, 3)))
    policy |= dict(clip_eps=clip_eps, entropy_coef=0.3)
    old_values = rng.normal(1, 2, B)
    value = dict(values=old_values + ratios - 1, old_values=old_values)
    value |= dict(targets=old_values + signs * rng.uniform(0.1, 2.5, B), clip_eps=clip_eps)

    T, N = 160, 3
    rewards, ends = rng.normal(0.5, 1, (T, N)), rng.uniform(size=(T, N)) < 0.05
    rewards[: T // 2] *= 1e-3
    rewards[-1] = 3000, -4000, 5000
    observations = rng.normal(0.5, 1, (T, N, 3)) * [1, 1, 1e-4]
    observations[-1, :, 0] = 3000, -4000, 5000

    minibatches = []
    for size in (0.1, 1, 3):  # of the advantages and the value errors, so that some gradients are clipped and some not
        obs, actions = rng.normal(0, [1, 1, 1e-4], (B, 3)), rng.normal(0, 1, (B, 2))
        old_values = obs @ NETWORKS["value"][:3] + NETWORKS["value"][3] + rng.normal(0, 0.1 * size, B)
        minibatch = dict(obs=obs, actions=actions, advantages=rng.normal(0, 1, B), old_values=old_values)
        minibatch["old_log_probs"] = gaussian_log_probs(NETWORKS["policy"], obs, actions) + rng.normal(0, 0.1 * size, B)
        minibatches.append(minibatch | dict(value_targets=minibatch["old_values"] + rng.normal(0, size, B)))
    return dict(
        advantages=rollout,
        policy_loss=policy,
        value_loss=value,
        scale_rewards=dict(rewards=rewards, ends=ends, gamma=0.97),
        normalize=dict(observations=observations),
        update=dict(minibatches=minibatches, learning_rate=0.1, clip_eps=clip_eps, max_grad_norm=0.5),
    )


FROZEN = frozen_inputs()
OF = dict(policy_loss=["log_probs", "entropies"], value_loss=["values"])  # with respect to which losses are compared


def numbers_of(name: str, way: dict[str, str]) -> dict[str, np.ndarray]:
    """Returns a member's numbers on the frozen rollout, by part. Those of a loss are one part [1 + the gradient's
    size]: the loss, and its gradient times B, which makes it as large."""
    x, formula = FROZEN[name], globals()[name]
    if name not in OF:
        return formula(x, way)
    gradients = [slopes(lambda moved: formula(x | {key: moved}, way), x[key]) for key in OF[name]]  # noqa: B023
    return with_gradients(formula(x, way), gradients)


@functools.cache
def family(name: str) -> list[tuple[dict[str, str], dict[str, np.ndarray]]]:
    """Returns all members and their numbers."""
    return [(way, numbers_of(name, way)) for way in members(name)]


def with_gradients(loss: float, gradients: list[np.ndarray]) -> dict[str, np.ndarray]:
    return dict(loss=np.r_[loss, *[len(x) * x.ravel() for x in gradients]])


def rows_of(name: str) -> dict[str, list[str]]:
    """Returns the name of each number, by part."""
    x = FROZEN[name]
    if name == "update":
        return {part: [f"{part} parameter {i}" for i in range(len(numbers))] for part, numbers in NETWORKS.items()}
    if name in OF:
        policy = name == "policy_loss"
        moved = np.exp(x["log_probs"] - x["old_log_probs"]) if policy else x["values"] - x["old_values"]
        texts = [f"{'ratio' if policy else 'V moved by'} {y:.2f}" for y in moved]
        slopes_of = [f"d loss / d {key}{list(i)} ({texts[i[0]]})" for key in OF[name] for i in np.ndindex(x[key].shape)]
        return dict(loss=["the loss", *slopes_of])
    T, N, *_ = next(iter(x.values())).shape
    steps = np.array([[f"step {t} of environment {n}" for n in range(N)] for t in range(T)], object)
    if name == "scale_rewards":
        return dict(rewards=[*steps.flat])
    if name == "normalize":
        columns = range(x["observations"].shape[2])
        return dict(observations=[f"{step}, column {i}" for step in steps.flat for i in columns])
    last = np.arange(T)[:, None] == T - 1
    steps[last & ~x["terminations"] & ~x["truncations"]] += " (end of the batch)"
    steps[x["truncations"]] += " (time limit)"
    steps[x["terminations"]] += " (terminal state)"
    return dict(advantages=[*steps.flat], targets=[*steps.flat])
