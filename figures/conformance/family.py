"""The family of formulas with which comparison.py compares those of another implementation, and the frozen rollout.

The formulas are repeated here, in numpy and float64, and are not imported from algos/, because what judges the
scripts must not be the scripts. TABLE has, for each function, what can be done in more than one way, and the ways by
name. The first is what ppo.py does by default, and the words say where another is from. A member of the family is one
way for each detail. The functions from `advantages` to `update` compute members, and FROZEN is what they compute from.
What acts only beyond the frozen numbers cannot be seen, so they come in an ordinary, an extreme and a small size.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

# Details -------------------------------------------------------------------------------------------------------------

TABLE = """
advantages: time limit
    bootstrapped: V of the true final observation follows a time limit
    terminal: a time limit is treated as a terminal state (our --no-bootstrap-truncation)
    last state: V of the last state itself stands for what follows a time limit
    overlooked: a time limit is overlooked, so that the sum runs on into the next episode
    masked: the step at a time limit has advantage 0, with V as its target (ikostrikov's bad_masks)
advantages: end of the batch
    bootstrapped: V of the next observation follows the end of the batch
    last state: V of the last state itself follows the end of the batch (IM's released code)
    terminal: the end of the batch is treated as a terminal state
advantages: estimator
    GAE: advantages are those of GAE
    no lambda: lambda is missing from GAE, as if it were 1
advantages: normalized over the batch
    no: advantages are not normalized over the batch
    yes: advantages are normalized over the whole batch
    biased: advantages are normalized over the whole batch, by a std without Bessel's correction
    eps 1e-5: advantages are normalized over the whole batch, with an eps of 1e-5 instead of 1e-8 (ikostrikov)
advantages: targets
    A + V: the value targets are A + V
    returns: the value targets are discounted returns (A with lambda 1, + V)
    one step: the value targets are r + gamma V(s')
policy_loss: surrogate
    clipped: the surrogate is the smaller of the clipped and the unclipped
    unclipped: the ratio is not clipped (ppo_noclip.py, trpo.py)
    only clipped: the surrogate is the clipped ratio's alone, without the smaller of the two
    log-likelihood: the surrogate is log pi times the advantage, without a ratio (a2c.py)
policy_loss: normalized over the minibatch
    yes: advantages are normalized over the minibatch
    biased: advantages are normalized over the minibatch, by a std without Bessel's correction
    no: advantages are not normalized over the minibatch
policy_loss: entropy
    bonus: the action's entropy is a bonus
    unused: the entropy is not used
value_loss: clipping
    larger: the larger of the clipped and the unclipped loss counts
    unclipped: the value loss is not clipped (our --no-value-clip)
    smaller: the smaller of the clipped and the unclipped loss counts (IM's formula)
    only clipped: only the clipped prediction's loss counts, so that beyond the clip there is no gradient
    means: the larger of the two means counts, that of the clipped or that of the unclipped loss
    signed: the larger of the two signed errors is squared (implementation-matters/code-for-paper)
value_loss: error
    squared: the value loss is the mean squared error
    halved: the value loss is half the mean squared error
    smooth_l1: the value loss is the smooth L1 loss
scale_rewards: divided by
    returns: rewards are divided by the running std of discounted returns
    rewards: rewards are scaled around their running mean (our --reward-scale-by rewards)
    nothing: rewards are not scaled (our --no-reward-scale)
scale_rewards: restart
    after: the discounted return restarts with each episode
    never: the discounted return never restarts (IM's Algorithm 1)
    early: the discounted return restarts one step too early, at an episode's last reward
normalize: standardized
    yes: observations are standardized
    no: observations are not standardized (our --no-obs-norm)
samples: statistics over
    in turn: the statistics take in one environment's steps after another's
    sample by sample: the statistics take in one environment's sample after another's, within each step
    step by step: the statistics take in each step of all environments
    each its own: each environment has statistics of its own
    batch: the statistics take in a whole batch at once
samples: taken in
    before: the statistics take in a sample before it is standardized
    after: the statistics take in a sample after it is standardized
samples: first std
    |mean|: the variance is Bessel-corrected, and a single sample's std is its size
    1e-4: the variance begins as 1, with the weight of 1e-4 samples
    biased: the variance is not Bessel-corrected
    1: the variance begins as 1, with the weight of one sample
    1, corrected: the variance begins as 1, with the weight of one sample, and the batch's is Bessel-corrected
samples: eps
    1e-8: eps, 1e-8, is added to the std
    1e-8 in the root: eps, 1e-8, is added to the variance, inside the root
    1e-2: eps, 1e-2, is added to the std
    float32's in the root: eps, that of float32 (1.2e-7), is added to the variance, inside the root
samples: clipped at
    10: the result is clipped at 10
    5: the result is clipped at 5
    unclipped: the result is not clipped (our --no-reward-clip, --no-obs-clip)
update: gradient norm
    own: each network's gradient norm is clipped
    joint: both networks' joint gradient norm is clipped
    policy: only the policy's gradient norm is clipped (our --no-value-grad-clip)
    unclipped: no gradient norm is clipped (our --no-grad-clip --no-value-grad-clip)
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
    unclipped: the value loss is not clipped
    only clipped: only the clipped prediction's loss counts
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
SOME = {"statistics over": 4, "taken in": 2, "first std": 3, "eps": 2, "clipped at": 3}  # of these, rewards have
DETAILS["scale_rewards"] |= {detail: dict(list(texts.items())[: SOME[detail]]) for detail, texts in SAMPLES.items()}
# Numbers that a member may have otherwise: what a function is given, which may be written into the code instead, and
# details that are numbers.
FREE = dict(
    advantages=["gamma", "gae_lambda"],
    policy_loss=["clip_eps"],
    value_loss=["clip_eps"],
    scale_rewards=["gamma", "eps", "clipped at"],
    normalize=["eps", "clipped at"],
    update=["value weight", "Adam's eps", "learning_rate", "clip_eps", "max_grad_norm"],
)


def number(text: str) -> float:
    """Returns the number with which the name of a way begins."""
    return float(np.finfo(np.float32).eps if text.startswith("float32") else Fraction(text.split()[0]))


# Members -------------------------------------------------------------------------------------------------------------


def normalized(x: np.ndarray, way: str) -> np.ndarray:
    if way == "no":
        return x
    return (x - x.mean()) / (x.std(ddof=way != "biased") + (1e-5 if way == "eps 1e-5" else 1e-8))


def advantages(x: dict[str, Any], way: dict[str, str]) -> dict[str, np.ndarray]:
    """Returns advantages and value targets [T, N]."""
    V, truncations = x["values"], x["truncations"]
    ends = x["terminations"] | (truncations if way["time limit"] != "overlooked" else False)
    following = x["next_values"].copy()  # V of what follows each step
    if way["end of the batch"] != "bootstrapped":
        following[-1][~ends[-1]] = V[-1][~ends[-1]] if way["end of the batch"] == "last state" else 0
    # What stands for V after a time limit. Where it is overlooked, the next row belongs to the next episode.
    instead = {"terminal": 0 * V, "last state": V, "overlooked": np.vstack([V[1:], following[-1:]])}
    following = np.where(truncations, instead.get(way["time limit"], following), following)
    following[x["terminations"]] = 0

    def gae(gae_lambda: float) -> np.ndarray:  # Schulman et al. 2016, eq. 16
        deltas = x["rewards"] + x["gamma"] * following - V
        if way["time limit"] == "masked":
            deltas[truncations] = 0
        for t in reversed(range(len(deltas) - 1)):
            deltas[t] += x["gamma"] * gae_lambda * ~ends[t] * deltas[t + 1]
        return deltas

    A = gae(x["gae_lambda"] if way["estimator"] == "GAE" else 1)
    targets = {"A + V": A + V, "returns": gae(1) + V, "one step": gae(0) + V}
    return dict(advantages=normalized(A, way["normalized over the batch"]), targets=targets[way["targets"]])


def policy_loss(x: dict[str, Any], way: dict[str, str]) -> float:
    A = normalized(x["advantages"], way["normalized over the minibatch"])
    ratios = np.exp(x["log_probs"] - x["old_log_probs"])
    clipped = ratios.clip(1 - x["clip_eps"], 1 + x["clip_eps"]) * A
    surrogate = {
        "clipped": np.minimum(ratios * A, clipped).mean(),  # Schulman et al. 2017, eq. 7
        "unclipped": (ratios * A).mean(),
        "only clipped": clipped.mean(),
        "log-likelihood": (x["log_probs"] * A).mean(),
    }
    entropy = x["entropies"].sum(1).mean() if way["entropy"] == "bonus" else 0
    return -surrogate[way["surrogate"]] - x["entropy_coef"] * entropy


def value_loss(x: dict[str, Any], way: dict[str, str]) -> float:
    clipped_values = x["old_values"] + (x["values"] - x["old_values"]).clip(-x["clip_eps"], x["clip_eps"])
    errors, clipped_errors = x["values"] - x["targets"], clipped_values - x["targets"]
    loss = dict(
        squared=np.square,
        halved=lambda e: e**2 / 2,
        smooth_l1=lambda e: np.where(abs(e) < 1, e**2 / 2, e * np.sign(e.real) - 0.5),
    )[way["error"]]
    clipped, unclipped = loss(clipped_errors), loss(errors)
    losses = {
        "larger": np.maximum(unclipped, clipped).mean(),
        "unclipped": unclipped.mean(),
        "smaller": np.minimum(unclipped, clipped).mean(),
        "only clipped": clipped.mean(),
        "means": np.maximum(unclipped.mean(), clipped.mean()),
        "signed": loss(np.maximum(errors, clipped_errors)).mean(),
    }
    return losses[way["clipping"]]


def running(samples: np.ndarray, way: dict[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and divisor with which each sample [T, N, ...] is standardized."""
    (T, N, *shape), over = samples.shape, way["statistics over"]
    # The stream of samples [n, ...] that the statistics take in; where each environment has its own, [n, N, ...].
    stream = samples.swapaxes(0, 1) if over == "in turn" else samples
    stream = stream if over == "each its own" else stream.reshape(T * N, *shape)
    n = np.arange(1, len(stream) + 1).reshape(-1, *[1] * (stream.ndim - 1))
    sums, squares = stream.cumsum(0), (stream**2).cumsum(0)
    # Before all others comes a sample of some weight, with mean 0 and variance 1.
    weight = {"1e-4": 1e-4, "1": 1, "1, corrected": 1}.get(way["first std"], 0)
    mean = sums / (weight + n)
    if way["first std"] in ("|mean|", "1, corrected"):
        squares = (squares - sums**2 / n) * n / np.maximum(n - 1, 1) + sums**2 / n
    variance = ((weight + squares) / (weight + n) - mean**2).clip(0)
    if way["first std"] == "|mean|":
        variance[0] = mean[0] ** 2

    def of_each(x: np.ndarray, first: float) -> np.ndarray:
        if over == "step by step":
            x = x[N - 1 :: N, None]  # all environments see the statistics after the last of them
        if over == "batch":
            x = x[-1:]
        if way["taken in"] == "after":  # then a sample sees what there was before it
            x = np.concatenate([np.full_like(x[:1], first), x[:-1]])
        if over == "in turn":
            return x.reshape(N, T, *shape).swapaxes(0, 1)
        if over == "sample by sample":
            return x.reshape(samples.shape)
        return np.broadcast_to(x, samples.shape)

    mean, variance = of_each(mean, 0), of_each(variance, 1)
    eps = number(way["eps"])
    return mean, np.sqrt(variance + eps) if "root" in way["eps"] else np.sqrt(variance) + eps


def bounded(x: np.ndarray, way: dict[str, str]) -> np.ndarray:
    return x if way["clipped at"] == "unclipped" else x.clip(-number(way["clipped at"]), number(way["clipped at"]))


def scale_rewards(x: dict[str, Any], way: dict[str, str]) -> dict[str, np.ndarray]:
    """Returns scaled rewards [T, N]."""
    rewards, ends, by = x["rewards"], x["ends"], way["divided by"]
    R, returns = np.zeros(rewards.shape[1]), []
    for reward, end in zip(rewards, ends):
        R = x["gamma"] * R * (~end if way["restart"] == "early" else 1) + reward
        returns.append(R)
        R = R * ~end if way["restart"] == "after" else R
    if by != "nothing":
        mean, divisor = running(rewards if by == "rewards" else np.array(returns), way)
        rewards = (rewards - mean) / divisor + mean if by == "rewards" else rewards / divisor
    return dict(rewards=bounded(rewards, way))


def normalize(x: dict[str, Any], way: dict[str, str]) -> dict[str, np.ndarray]:
    """Returns normalized observations [T, N, obs]."""
    obs = x["observations"]
    if way["standardized"] == "yes":
        mean, divisor = running(obs, way)
        obs = (obs - mean) / divisor
    return dict(observations=bounded(obs, way))


# The parameters of the two linear networks of `update`, in torch's order, and their names.
BEFORE = dict(policy=np.r_[-0.3, 0.2, 0.5, -0.4, 0.3, 0.2, 0.6, -0.5, 0.1, -0.1], value=np.r_[0.4, -0.6, 0.2, 0.1])
WEIGHTS = [f"weight[{i}, {j}]" for i in range(2) for j in range(3)]
NAMES = dict(policy=["log_std[0]", "log_std[1]", *WEIGHTS, "bias[0]", "bias[1]"], value=[*WEIGHTS[:3], "bias[0]"])


def gaussian_log_probs(parameters: np.ndarray, x: dict[str, np.ndarray]) -> np.ndarray:
    log_std, weight, bias = np.split(parameters, [2, 8])
    z = (x["actions"] - x["obs"] @ weight.reshape(2, 3).T - bias) / np.exp(log_std)
    return (-(z**2) / 2 - log_std - np.log(2 * np.pi) / 2).sum(1)


def update(x: dict[str, Any], way: dict[str, str]) -> dict[str, np.ndarray]:
    """Returns the networks' changes after each minibatch, by a step of Adam each (Kingma & Ba 2015, Algorithm 1)."""
    ways = dict(policy=next(members("policy_loss")), value=dict(error="squared", clipping=way["value clipping"]))
    weight = number(way["value weight"])
    after, changes = dict(BEFORE), {}
    moments = {name: np.zeros((2, len(parameters))) for name, parameters in BEFORE.items()}
    losses = dict(
        policy=lambda x: policy_loss(batch | dict(log_probs=gaussian_log_probs(x, batch)), ways["policy"]),
        value=lambda x: weight * value_loss(batch | dict(values=batch["obs"] @ x[:3] + x[3]), ways["value"]),
    )
    for t, minibatch in enumerate(x["minibatches"], start=1):
        batch = minibatch | dict(targets=minibatch["value_targets"], clip_eps=x["clip_eps"])
        batch |= dict(entropies=np.zeros((1, 1)), entropy_coef=0)
        gradients = {name: slopes(loss, after[name]) for name, loss in losses.items()}
        norms = {name: np.linalg.norm(gradient) for name, gradient in gradients.items()}
        if way["gradient norm"] == "joint":
            norms = dict.fromkeys(norms, np.hypot(*norms.values()))
        free = dict(policy=["value"], unclipped=["policy", "value"]).get(way["gradient norm"], [])
        for name, gradient in gradients.items():
            g = gradient * (1 if name in free else min(1, x["max_grad_norm"] / (norms[name] + 1e-6)))
            m, v = moments[name] = moments[name] * [[0.9], [0.999]] + np.array([0.1 * g, 0.001 * g**2])
            step = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + number(way["Adam's eps"]))
            after[name] = after[name] - x["learning_rate"] * step
            changes[f"{name} after minibatch {t}"] = after[name] - BEFORE[name]
    return changes


def slopes(function: Callable[[np.ndarray], complex], x: np.ndarray) -> np.ndarray:
    """Returns the gradient of the function at x, of x's shape, by a complex step, which is exact up to rounding. (numpy
    orders complex numbers by their real parts, so that minimum, maximum and clip do what they should.)"""
    units = np.eye(x.size).reshape(-1, *x.shape)
    return np.reshape([function(x + 1e-30j * unit).imag / 1e-30 for unit in units], x.shape)


def members(name: str) -> Iterator[dict[str, str]]:
    """Yields the ways of all members of a function's family, ppo.py's defaults first."""
    usual = {detail: next(iter(options)) for detail, options in DETAILS[name].items()}
    for options in itertools.product(*DETAILS[name].values()):
        way, unseen = dict(zip(usual, options)), []
        if way.get("statistics over") == "batch":
            unseen = ["taken in"]  # which is up to whoever calls it
        elif way.get("first std") == "1, corrected":
            continue
        if "nothing" in way.values() or way.get("standardized") == "no":
            unseen = [detail for detail in way if detail not in ("divided by", "standardized", "clipped at")]
        elif way.get("divided by") == "rewards":
            unseen = ["restart"]
        if all(way[detail] == usual[detail] for detail in unseen):
            yield way | dict.fromkeys(unseen, "not seen")


@functools.cache
def family(name: str) -> tuple[list[dict[str, str]], dict[str, np.ndarray]]:
    """Returns the ways of all members, and their numbers [members, rows] by part. Members with the same numbers are
    one, and the details in which they differ are "not seen" (the statistics of what is not standardized, say)."""
    ways, kept = [], []
    for way in members(name):
        numbers = numbers_of(name, way)
        x = np.concatenate(list(numbers.values()))
        same = [known for known, (_, y) in zip(ways, kept) if (abs(x - y) <= 1e-5 * (1 + abs(y))).all()]
        if same:
            same[0].update({detail: "not seen" for detail in way if way[detail] != same[0][detail]})
        else:
            ways.append(way)
            kept.append((numbers, x))
    return ways, {part: np.array([numbers[part] for numbers, _ in kept]) for part in kept[0][0]}


# The frozen rollout --------------------------------------------------------------------------------------------------


def frozen_inputs() -> dict[str, list[dict[str, Any]]]:
    """Returns what each function is called with. Whatever is usual is chosen otherwise (gamma, ranges, the gradient's
    largest norm), so that a constant in its place is seen. The rollouts of four environments have terminal states, time
    limits, episodes that are cut by the end of the batch, and one of each that ends with it. Ratios and values are on
    both sides of the clip's edges, for advantages and errors of both signs. In the extreme minibatches, ratios go from
    0.02 to 50, advantages to 8 std, and value errors from 0.012 to 1000. Some rewards and a column of observations are
    tiny, so that eps counts, and some are beyond any clip."""
    rng = np.random.default_rng(0)
    T, N, B, clip_eps = 16, 4, 96, 0.3
    terminations, truncations = np.zeros((2, T, N), bool)
    terminations[[5, 15, 10], [0, 1, 2]] = True
    truncations[[7, 15, 3, 9], [1, 2, 3, 3]] = True
    goes_on = ~(terminations | truncations)[:-1]
    edges = np.tile([-2.2, -0.6, 0.7, 2.4, -1.15, -0.85, 0.85, 1.15], B // 8)  # in units of the clip's range
    rollouts, policies, values = [], [], []
    for extreme, scale in ((False, 1), (True, 1), (False, 0.003)):
        # Large rewards are of one sign in an environment, or what is left of their sums would be rounding in float32.
        rewards = 10 ** rng.uniform(-2, 3, (T, N)) * [1, -1, 1, -1] if extreme else rng.normal(0.5, 1, (T, N)) * scale
        V, following = rng.normal(1, 2, (2, T, N)) * (5 if extreme else scale)
        following[:-1][goes_on] = V[1:][goes_on]
        rollout = dict(rewards=rewards, values=V, next_values=following, gamma=0.97, gae_lambda=0.9)
        rollouts.append(rollout | dict(terminations=terminations, truncations=truncations))

        # Both signs are at every edge, but not as often, so that now the one mean is the smaller and now the other.
        signs = np.tile(np.repeat([1, -1], 8), B // 16)
        more = np.where((edges > 1) & (np.arange(B) < B // 2), 1 if scale == 1 else -1, signs)
        moved = scale * clip_eps * edges * rng.uniform(0.9, 1.1, B)
        ratios, A = 1 + moved, scale * (0.4 + more * rng.uniform(1, 3, B))
        errors, entropies = moved - scale * signs * rng.uniform(0.1, 2.4, B), rng.normal(1, 0.5, (B, 3))
        old_log_probs, old_values = rng.normal(-1, 0.5, B), rng.normal(1, 2, B)
        if extreme:  # the clip takes the gradient from some large advantages, and the clipped value loss is the larger
            ratios, A = np.exp(rng.permutation(np.linspace(-250, 250, B).round()) / 64), rng.normal(0, 1, B)
            A[np.argsort(ratios)[[2, B // 2, -8, -2]]] = 45, -10, 8, -25
            errors, entropies = rng.choice([-1, 1], B) * np.geomspace(0.012, 1000, B), rng.normal(-1, 3, (B, 3))
            moved = errors * rng.uniform(0.1, 0.5, B) * np.tile([1, -1, -1], B // 3)  # away from the target, or to it
            old_log_probs = rng.normal(-640, 1280, B).round() / 64  # like the ratios', so that float32 has differences
        policy = dict(log_probs=old_log_probs + np.log(ratios), old_log_probs=old_log_probs, advantages=A)
        policies.append(policy | dict(entropies=entropies, clip_eps=clip_eps, entropy_coef=0.3))
        value = dict(values=old_values + moved, old_values=old_values, targets=old_values + moved - errors)
        values.append(value | dict(clip_eps=clip_eps))

    def minibatch(scale: float, extreme: bool) -> dict[str, np.ndarray]:
        x = dict(obs=rng.normal(0, [1, 1, 1e-4], (B, 3)), actions=rng.normal(0, 1, (B, 2)))
        old_values = x["obs"] @ BEFORE["value"][:3] + BEFORE["value"][3] + rng.normal(0, 0.1 * scale, B)
        apart = rng.uniform(-3.9, 3.9, B) if extreme else rng.normal(0, 0.1 * scale, B)
        A, errors = rng.normal(0, 1, B), rng.normal(0, scale, B)
        if extreme:
            A[:2], errors = (30, -15), errors * 10 ** rng.uniform(-2, 2.5, B)
        x |= dict(old_values=old_values, value_targets=old_values + errors, advantages=normalized(A, "yes"))
        return x | dict(old_log_probs=gaussian_log_probs(BEFORE["policy"], x) + apart)

    settings = dict(learning_rate=0.1, clip_eps=clip_eps, max_grad_norm=0.6)
    updates = [  # with errors of two sizes, so that some gradients are clipped and some are not
        dict(minibatches=[minibatch(scale, extreme) for scale in (0.1, 3)], **settings) for extreme in (False, True)
    ]
    T, N = 160, 3
    rewards, ends = rng.normal(0.5, 1, (T, N)), rng.uniform(size=(T, N)) < 0.05
    rewards[: T // 2] *= 1e-3
    observations = rng.normal(0.5, 1, (T, N, 3)) * [1, 1, 1e-4]
    rewards[-1] = observations[-1, :, 0] = 3000, -4000, 5000
    found = dict(advantages=rollouts, policy_loss=policies, value_loss=values, update=updates)
    rewards = dict(rewards=rewards, ends=ends, gamma=0.97)
    return found | dict(scale_rewards=[rewards], normalize=[dict(observations=observations)])


FROZEN = frozen_inputs()
# The terms of which a loss is the sum, by name, and the input that each of them depends on.
TERMS = dict(policy_loss=dict(surrogate="log_probs", entropy="entropies"), value_loss=dict(errors="values"))


def terms_of(name: str, x: dict[str, Any], loss: Callable, gradient: Callable) -> dict[str, np.ndarray]:
    """Returns each term of a loss and its gradient [1 + the gradient's size]. The gradient is multiplied by B, which
    makes it as large as the loss. loss(x) is a number, and gradient(x, key) that of the loss by x[key]."""
    whole = loss(x)
    surrogate = loss(x | dict(entropy_coef=0.0)) if name == "policy_loss" else whole
    numbers = dict(surrogate=surrogate, entropy=whole - surrogate, errors=whole)
    return {part: np.r_[numbers[part], len(x[key]) * gradient(x, key).ravel()] for part, key in TERMS[name].items()}


def joined(each: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the parts of the answers to all sizes, one behind another."""
    return {part: np.concatenate([np.ravel(x[part]) for x in each]) for part in each[0]}


def numbers_of(name: str, way: dict[str, str], with_slopes: bool = True, **given: float) -> dict[str, np.ndarray]:
    """Returns a member's numbers on the frozen inputs, of which some may be replaced, by part. A loss's slopes, which
    take long, can be left out."""
    formula, inputs = globals()[name], [x | given for x in FROZEN[name]]
    if name not in TERMS:
        return joined([formula(x, way) for x in inputs])
    slope = lambda x, key: slopes(lambda moved: formula(x | {key: moved}, way), x[key])
    none = lambda x, key: np.empty(0)
    terms = [terms_of(name, x, lambda x: formula(x, way), slope if with_slopes else none) for x in inputs]
    return joined(terms)


def numbers_with(name: str, way: dict[str, str], free: str, x: float, with_slopes: bool = True) -> dict:
    """Returns a member's numbers, by part, where its free number is x. What is not seen is as in ppo.py."""
    way = {detail: next(iter(DETAILS[name][detail])) if y == "not seen" else y for detail, y in way.items()}
    if free not in way:
        return numbers_of(name, way, with_slopes, **{free: x})
    return numbers_of(name, way | {free: f"{x!r}{' in the root' * ('root' in way[free])}"}, with_slopes)


@functools.cache
def rows_of(name: str) -> dict[str, list[str]]:
    """Returns the name of each number, by part."""
    each = [rows_of_one(name, x) for x in FROZEN[name]]
    sizes = ("", "extreme: ", "small: ")
    return {part: [size + row for size, rows in zip(sizes, each) for row in rows[part]] for part in each[0]}


def rows_of_one(name: str, x: dict[str, Any]) -> dict[str, list[str]]:
    if name == "update":
        return {f"{name} after minibatch {t}": names for t in (1, 2) for name, names in NAMES.items()}
    if name == "policy_loss":
        ratios, A = np.exp(x["log_probs"] - x["old_log_probs"]), normalized(x["advantages"], "yes")
        texts = [f"ratio {ratio:.2f}, A of {a:.1f} std" for ratio, a in zip(ratios, A)]
    if name == "value_loss":
        moved, errors = x["values"] - x["old_values"], x["values"] - x["targets"]
        texts = [f"V moved by {y:.2f}, error {error:.2f}" for y, error in zip(moved, errors)]
    if name in TERMS:
        slopes_by = lambda key: [f"its slope by {key}{list(i)} ({texts[i[0]]})" for i in np.ndindex(x[key].shape)]
        return {part: ["its number", *slopes_by(key)] for part, key in TERMS[name].items()}
    T, N, *_ = next(iter(x.values())).shape
    steps = np.array([[f"step {t} of environment {n}" for n in range(N)] for t in range(T)], object)
    if name == "scale_rewards":
        return dict(rewards=[*steps.flat])
    if name == "normalize":
        return dict(observations=[f"{step}, column {i}" for step in steps.flat for i in range(3)])
    steps[-1, ~(x["terminations"] | x["truncations"])[-1]] += " (end of the batch)"
    steps[x["truncations"]] += " (time limit)"
    steps[x["terminations"]] += " (terminal state)"
    return dict(advantages=[*steps.flat], targets=[*steps.flat])
