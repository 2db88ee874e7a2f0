"""Is my script right? This is one half of the report, for those who edit a copied script; run_checks.py is the other.

What the script samples and computes is compared with what the environments say, and with sums, gradients and an Adam
that are computed here without the script. The checkpoint may be untrained."""

import copy
import math
from typing import Any
from unittest import mock

import checks
import lab
import numpy as np
import torch
from checks import BAD, CANNOT_TELL, DIFFERS, GOOD, Verdict, of_rows, percent, unlike, verdict
from recorded import Script, changed, copied, has_step, kls, moved, recorder_of
from rewards import planned_steps, short
from scipy.signal import lfilter
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.utils._pytree import tree_leaves

CHECKS: list[checks.Check] = []
check = checks.into(CHECKS)


def given_to_environments(s: Script) -> list[np.ndarray]:
    """Returns what the environments may have got [B, action]. A script without --bound-action may clip actions."""
    drawn, how = s.data["actions"].astype(float), s.option("bound_action", None)
    low, high = s.space.low.astype(float), s.space.high.astype(float)
    ways = dict(no=drawn, clip=drawn.clip(low, high), tanh=low + (high - low) * (np.tanh(drawn) + 1) / 2)
    return [ways[x] for x in ([how] if how in ways else ["no", "clip"])]


@check("rows are those of one environment after another's", "rollout")
def order(s: Script) -> Verdict:
    """More than half of the actions that the environments got are in the rows where the rollout says that it drew them.
    It is bad if they would be, with rows sorted by time and then by environment."""
    near = 1e-4 if s.space.dtype.kind == "f" else 1
    share = lambda given: (np.abs(given - s.true["given"]).max(1) < near).mean()
    for given in given_to_environments(s):
        if share(given) > 0.5:
            return Verdict(GOOD, "", f"{percent(share(given))} of {len(given):,} rows")
        by_time = share(given.reshape(s.steps, -1, given.shape[1]).swapaxes(0, 1).reshape(given.shape))
        text = "Its rows are sorted by time and then by environment. All else takes one environment's after another's."
        if by_time > 0.5:
            return Verdict(BAD, text, f"{percent(by_time)} of the rows are so")
    return Verdict(CANNOT_TELL, "The order of rows cannot be told, since the actions are others.")


@check("there is one number for each row", "State, mlp, estimate_advantages", after="order")
def shapes(s: Script) -> Verdict:
    """For B rows the value network returns [B] values, and advantages, value_targets, old_values and old_log_probs are
    [B]. Values [B, 1] minus targets [B] would silently be [B, B]."""
    mine = {x: s.batch[x] for x in "advantages value_targets old_values old_log_probs".split() if x in s.batch}
    mine |= {"what the value network returns": s.critic(s.batch["obs"])} if s.critic else {}
    B = len(s.batch["obs"])
    wrong = [f"{name} has shape {list(x.shape)}" for name, x in mine.items() if x.shape != (B,)]
    return verdict(wrong, f"For {B:,} rows {', '.join(wrong)}: errors would be broadcast.", ", ".join(mine))


@check("equal states give equal rollouts", "rollout")
def equal_rollouts(s: Script) -> Verdict | None:
    """From an equal state a rollout is the same bit for bit, also when the script has made others since. Otherwise
    something outside the State is kept: a buffer, a counter, a generator."""
    (one, true), (two, again) = s.first, s.again
    same = ~unlike(true["given"][: len(again["given"])], again["given"][: len(true["given"])], 0)
    rows = len(same) if same.all() else same.argmin()  # before the first action that differs
    answers = [np.column_stack([x["next_obs"], x["reward"]])[:rows] for x in (true, again)]
    if not np.array_equal(true["starts"][0], again["starts"][0]) or not np.array_equal(*answers):
        return Verdict(CANNOT_TELL, "Equal rollouts cannot be asked for: reset(seed=...) does not determine them.")
    names = [x for x in one if x != "episodes" and not np.array_equal(one[x], two[x])]
    text = f"From an equal state a rollout has other {', '.join(names)}: something outside the State is kept."
    return verdict(names, text, f"{len(one['obs']):,} rows, bit for bit")


@check("the actions' noise is the policy's", "rollout, numpy_forward, Policy", after="order")
def noise(s: Script) -> Verdict:
    """Actions minus the policy's means, in units of its standard deviations, are standard normal in each dimension
    within 6 standard errors, in a first rollout and in a second one, before which the policy changed by 1 nat or more.
    No two rollouts, segments or dimensions of the action have the same noise (a correlation above 0.5)."""
    found = []
    for policy, data in ((s.before.policy, s.first[0]), (s.state.policy, s.data)):
        pi = policy(torch.from_numpy(data["obs"]))
        found.append(((torch.from_numpy(data["actions"]) - pi.mean) / pi.stddev).detach().double().numpy())
    (x, y), n, rows = found, s.steps, min(map(len, found))
    correlation = lambda x, y: np.corrcoef(x.ravel(), y.ravel())[0, 1]
    if (again := max(correlation(y[n:], y[:-n]), correlation(x[:rows], y[:rows]))) > 0.5:
        text = "The same noise comes again in every rollout or segment: draw it from the state's generator."
        return Verdict(BAD, text, f"correlation {again:.2f}")
    if (alike := np.abs(np.corrcoef(y.T) - np.eye(y.shape[1])).max()) > 0.5:  # a single dimension is like itself
        return Verdict(BAD, "Dimensions of the action have the same noise.", f"correlation {alike:.2f}")
    far = lambda z: np.maximum(abs(z.mean(0)), abs(z.std(0) - 1) * 2**0.5)
    off, worst = [far(z).max() / (6 * len(z) ** -0.5) for z in found], [z[:, far(z).argmax()] for z in found]
    told = [f"mean {z.mean():.2f}, standard deviation {z.std():.2f}" for z in worst]
    number = f"{', and with a changed policy '.join(told)}; {6 * len(y) ** -0.5:.2f} more or less would be named"
    when = " once it has changed" * bool(off[0] <= 1)
    return verdict(not max(off) <= 1, f"The noise of the actions is not the policy's{when}.", number)


@check("the environment gets the actions", "make_env, rollout", after="order")
def actions(s: Script) -> Verdict:
    """The environment gets the action as drawn or, with --bound-action, clipped to its range or squashed into it. A
    script without this argument may clip."""
    ways, given = given_to_environments(s), s.true["given"]
    if s.space.dtype.kind in "iu":  # Then it gets whole numbers, and rounding decides where one is cut off.
        ways = [np.where(abs(given - x) <= 1, given, x) for x in ways]
    wrong = [unlike(given, x) for x in ways]
    return of_rows(min(wrong, key=np.sum), "The environment does not get the actions as the arguments say.")


@check("observations are the environment's, as the statistics say", "rollout, normalize_obs", after="order")
def observations(s: Script) -> Verdict:
    """With frozen statistics obs and next_obs are the environment's own minus the statistics' mean, divided by their
    standard deviation, and clipped, row by row within 1 %. So they are with the run's own --obs-clip-range, and in a
    second rollout with one of 1, so that the clip acts."""
    known = s.statistics(1)
    mean, std = (known.mean, known.std + 1e-8) if known else (0.0, 1.0)
    for data, true, args in s.rollouts:
        limit, own = (x.obs_clip_range if s.option("obs_clip") else np.inf for x in (args, s.wide))
        names = [x for x in ("obs", "next_obs") if x in data]
        off = lambda x, y, limit: unlike(x, y.clip(-limit, limit), 0.01)
        wrong = {x: off(data[x], (true[x] - mean) / std, limit) for x in names}
        # What a segment begins with may have been seen, and clipped, in the rollout before.
        carried = np.append(True, true["last"][:-1])
        wrong["obs"] &= ~carried | off(data["obs"], (true["obs"] - mean) / std, own)
        name = max(names, key=lambda x: wrong[x].sum())
        if wrong[name].any():
            break
    text = f"Its {name} are not the environment's, standardized by the statistics"
    return of_rows(wrong[name], text + f" and clipped to {limit:g} either way." * bool(np.isfinite(limit)))


@check("rewards are the environment's, as the statistics say", "rollout, scale_reward", after="order")
def rewards(s: Script) -> Verdict:
    """With frozen statistics rewards are the environment's divided by the statistics' standard deviation, and clipped
    (row by row within 1 %); scaled by the rewards' own statistics, minus and plus their mean. So they are with the
    run's own --reward-clip-range, and in a second rollout with one that half of the rewards exceed."""
    known = s.statistics(0)
    mean = known.mean if known and s.option("reward_scale_by") == "rewards" else 0.0
    for data, true, args in s.rollouts:
        limit = args.reward_clip_range if s.option("reward_clip") else np.inf
        expected = (true["reward"] - mean) / (known.std + 1e-8 if known else 1.0) + mean
        expected, found = expected.clip(-limit, limit), data["rewards"]
        wrong = unlike(found, expected, 0.01)
        if wrong.any():
            break
    slope, shift = np.polyfit(expected, found, 1) if np.ptp(expected) else (0.0, found.mean())
    text = f"The scaled rewards are about {slope:.3g} times what the statistics say, plus {shift:.3g}"
    return of_rows(wrong, text + f", where {limit:.3g} is the most." * bool(np.isfinite(limit)))


@check("networks begin as the arguments say", "State, mlp")
def initialization(s: Script) -> Verdict | None:
    """In a new run biases are 0. With --orthogonal-init weights are orthogonal, with a gain of sqrt(2), and of 0.01 in
    the policy's last layer and 1 in the value network's; without, they are Xavier's uniform ones. A script without this
    argument may do either."""
    if hasattr(s.args, "schedule_steps"):
        return None  # how an agent of Stable-Baselines3 began is not known
    flag, wrong = s.option("orthogonal_init", None), []
    for name, gain in dict(policy=0.01, value=1.0).items():
        layers = [x for x in getattr(s.new[1], name, nn.Module()).modules() if isinstance(x, nn.Linear)]
        for k, layer in enumerate(layers):
            W = layer.weight.detach().double()
            product = (W @ W.T if len(W) <= W.shape[1] else W.T @ W) / (gain if layer is layers[-1] else 2**0.5) ** 2
            orthogonal = (product - torch.eye(len(product))).abs().max() < 0.01
            bound = (6 / sum(W.shape)) ** 0.5
            scatter = 2.5 * W.numel() ** -0.5  # five standard errors of a uniform sample's standard deviation
            xavier = W.abs().max() <= 1.001 * bound and abs(W.std() / bound * 3**0.5 - 1) < scatter
            right = {True: orthogonal, False: xavier, None: orthogonal or xavier}[flag]
            if not right or layer.bias.any():
                wrong.append(f"layer {k} of the {name}")
    how = {True: "orthogonal", False: "Xavier's", None: "orthogonal or Xavier's"}[flag]
    text = f"Not {how}, or with other gains or biases: {', '.join(wrong)}."
    return verdict(wrong, text, how, DIFFERS)


@check("running statistics are those of what a new run saw", "RunningStats, normalize_obs, scale_reward")
def running_statistics(s: Script) -> Verdict | None:
    """After the first rollout of a new run, mean and standard deviation of the observations' statistics are those of
    the environment's, and the standard deviation of the rewards' statistics is that of the discounted sums of rewards,
    begun anew with each episode or not, or of the rewards (within 10 % of a standard deviation), where these are not
    all 0. In the first 16 steps no observation is further from the mean than one of n samples can be, (n - 1) / sqrt(n)
    standard deviations. Statistics that are frozen are not judged."""
    (args, state, data, true), off = s.new, {}
    if not s.option("norm_training", True):
        return None
    over = true["terminated"] | true["truncated"]
    if known := s.statistics(1, state):
        apart = lambda x: np.max([abs(known.mean - x.mean(0)), abs(known.std - x.std(0))] / (x.std(0) + 1e-8))
        some = true["next_obs"], true["next_obs"][~over]  # some libraries leave out an episode's last observation
        off["statistics of observations"] = min(apart(np.concatenate([true["starts"], x])) for x in some)
        # Of n - 1 or more, with some of resets on the way, and one of each environment where these step together.
        most = (args.num_envs * (np.arange(len(data["obs"][:16])) + 1) + 3) ** 0.5
        off["first observations"] = max(0.0, (np.abs(data["obs"][:16]).max(1) / most).max() - 1)
    if known := s.statistics(0, state):
        gamma, parts = s.option("norm_gamma", s.option("gamma", 1.0)), lambda x: np.flatnonzero(x)[:-1] + 1
        sums = lambda ends: [lfilter([1], [1, -gamma], x) for x in np.split(true["reward"], parts(ends))]
        stds = [np.concatenate(sums(x)).std() for x in (over | true["last"], true["last"])] + [true["reward"].std()]
        if max(stds) > 1e-12:
            off["statistics of rewards"] = min(abs(known.std - x) / max(x, 1e-12) for x in stds)
    if not off:
        asked = s.option("obs_norm") or s.option("reward_scale")
        why = "No running statistics can be judged: no part of the State has push, mean and std, or all rewards are 0."
        return Verdict(CANNOT_TELL, why) if asked else None
    wrong, number = [x for x in off if not off[x] <= 0.1], ", ".join(f"{x} {percent(y)} off" for x, y in off.items())
    return verdict(wrong, f"In a new run the {' and '.join(wrong)} are not what was seen.", number)


@check("rows end and terminate where the environment's do", "rollout", after="order")
def ends(s: Script) -> Verdict:
    """A row ends where the environment ended its episode or the segment is over, and is terminal where the environment
    says so. A time limit is no terminal state, unless the arguments say so. Each segment, of the second of two
    rollouts, has episodes that end in either way, and one that ends in both."""
    terminated, truncated = s.true["terminated"], s.true["truncated"] & ~s.true["terminated"]
    terminal = terminated | (truncated & (not s.option("bootstrap_truncation", True)))
    off = s.data.get("terminations", terminal) != terminal  # REINFORCE has no use for them
    wrong = s.data["ends"] != (terminated | truncated | s.true["last"])
    number = f"{len(off):,} rows, {terminated.sum():,} terminal and {truncated.sum():,} at time limits, some made here"
    text = f"{wrong.sum():,} rows end where no episode or segment ends, or the other way round."
    if off.any():
        text = f"{(off & terminal).sum():,} of {terminal.sum():,} terminal states are not taken for terminal, and "
        text += f"{(off & ~terminal).sum():,} other rows are: perhaps `terminated` and `truncated` are mixed up."
    return verdict((off | wrong).any(), text, number)


@check("episodes have the environment's returns and lengths", "rollout")
def episodes(s: Script) -> Verdict:
    """The return and length of each episode that ended are the sum of the environment's rewards and its steps."""
    mine, true = (np.array(sorted(x["episodes"]), float).reshape(-1, 2) for x in (s.data, s.true))
    show = lambda x: f"{len(x):,} with mean return {short(x[:, 0].mean())}" if len(x) else "none"
    wrong = len(mine) != len(true) or unlike(mine, true, 1e-3).any()
    text = f"The episodes that it logs are not the environment's: {show(mine)}, where the environment had {show(true)}."
    return verdict(wrong, text, f"{len(true):,} episodes")


@check("episodes begin in different states", "rollout")
def first_states(s: Script) -> Verdict | None:
    """The last episodes, at most 64, begin in half as many different states or more as with so many different seeds."""
    env = recorder_of(s.fresh(9, 1)[1].workers[0].env).env
    count = min(len(s.true["starts"]), 64)
    distinct = lambda starts: len(np.unique(np.round(np.array(starts, float), 12), axis=0))
    most, found = distinct([env.reset(seed=seed)[0] for seed in range(count)]), distinct(s.true["starts"][-count:])
    if most == 1:
        return Verdict(CANNOT_TELL, "Whether episodes have seeds of their own cannot be seen: all begin alike.")
    text = f"{count:,} episodes begin in {found:,} different states, where as many seeds give {most:,}:"
    text += " each needs a seed of its own in reset(seed=...)."
    return verdict(found < most / 2, text, f"{found:,} of {count:,}")


def of_kinds(s: Script, found: np.ndarray, expected: np.ndarray, text: str) -> Verdict:
    """Judges by the rows that differ by more than 1e-4 of the largest number, and tells of which kinds they are."""
    most, end = max(np.abs(found).max(), s.batch["old_values"].abs().max().item()), s.data["ends"]
    assert found.shape == expected.shape == end.shape, f"shapes {found.shape} and {expected.shape}"
    wrong = ~(np.abs(found - expected) <= 1e-4 * most)
    kinds = dict(inner=~end, terminal=s.data["terminations"], cut=end & ~s.data["terminations"])
    told = [f"{(wrong & rows).sum():,} of {rows.sum():,} {name} rows" for name, rows in kinds.items()]
    return verdict(wrong.any(), text, f"wrong in {', '.join(told)}")


@check("value targets at lambda 1 are the discounted returns", "estimate_advantages", after="order shapes ends")
def value_targets(s: Script) -> Verdict | None:
    """Each row's target at lambda 1 is its reward plus the discounted target of the next row, or gamma V(next_obs)
    where an episode is cut off, or nothing where it terminates. The target is A + V."""
    if not s.critic:
        return None
    batch = s.module.estimate_advantages(s.with_options(gae_lambda=1.0), s.state, s.data)
    targets = batch["value_targets"].double().numpy()
    following = np.where(s.data["ends"], s.following(s.data), np.append(targets[1:], 0.0))
    expected = s.data["rewards"] + s.args.gamma * following
    return of_kinds(s, targets, expected, "Its value targets at lambda 1 are not the discounted returns.")


def summed(x: np.ndarray, decay: float, ends: np.ndarray) -> np.ndarray:
    """Returns each row's x [B] plus decay times the sum of the next row, within an episode."""
    sums = x.astype(float)
    for i in np.flatnonzero(~ends)[::-1]:
        sums[i] += decay * sums[i + 1]
    return sums


@check("advantages are GAE's or, without a value network, returns", "estimate_advantages", after="order shapes ends")
def advantages(s: Script) -> Verdict:
    """Each row's advantage is delta + gamma lambda times the next row's, within an episode (Schulman et al. 2016);
    delta is r + gamma V(next_obs) - V(obs), where V counts as 0 after a terminal state, and only there.
    Without a value network it is the discounted return minus the same baseline in each row. GAE times a positive
    number, plus a constant, is as good where neither changes the direction of policy_loss's gradient; else it
    differs."""
    found, end = s.batch["advantages"].double().numpy(), s.data["ends"]
    if not s.critic:
        returns = summed(s.data["rewards"], s.args.gamma, end)
        off = unlike(found - found.mean(), returns - returns.mean(), 1e-3)
        return of_rows(off, "Its advantages are not the discounted returns minus a baseline.")
    values, decay = s.values(s.batch["obs"]).detach().double().numpy(), s.args.gamma * s.args.gae_lambda
    deltas = s.data["rewards"] + s.args.gamma * s.following(s.data) - values
    expected = deltas + decay * np.where(end, 0.0, np.append(found[1:], 0.0))
    judged = of_kinds(s, found, expected, "Its advantages are not delta + gamma lambda A'.")
    gae = summed(deltas, decay, end)
    times, plus = np.polyfit(gae, found, 1)
    if judged.status == GOOD or not times > 0 or unlike(found, times * gae + plus, 1e-3).any():
        return judged
    other = dict(advantages=torch.tensor(gae, dtype=torch.float32))
    like = cosine(*(policy_gradient(s, s.state.policy, s.args, **x) for x in ({}, other)))
    text = "Its advantages are GAE's but for a factor and a constant, which change the policy's gradient."
    return verdict(like < LIKE, text, f"{times:.3g} times GAE's, {plus:+.3g}; cosine {like:.5f}", DIFFERS)


@check("the batch holds what the networks said", "estimate_advantages", after="order shapes")
@torch.no_grad()
def batch_fields(s: Script) -> Verdict:
    """Each row's obs and actions are the rollout's, and its old_means, old_stds, old_log_probs and old_values those of
    the networks there, within 0.01 %."""
    obs, acted = torch.from_numpy(s.data["obs"]), torch.from_numpy(s.data["actions"])
    pi = s.state.policy(obs)
    expected = dict(obs=obs, actions=acted, old_means=pi.mean, old_stds=pi.stddev, old_log_probs=pi.log_prob(acted))
    expected |= dict(old_values=s.values(obs)) if s.critic else {}
    wrong = {name: unlike(s.batch[name], x) for name, x in expected.items() if name in s.batch}
    names = ", ".join(name for name, rows in wrong.items() if rows.any())
    return of_rows(np.any(list(wrong.values()), axis=0), f"Its {names} are not what the networks say of the rollout.")


def gradient(loss: Tensor, network: nn.Module) -> Tensor:
    """Returns the gradient of the loss as one vector [P], 0 where a parameter does not matter."""
    ps = list(network.parameters())
    parts = torch.autograd.grad(loss, ps, allow_unused=True)
    return torch.cat([torch.zeros_like(p).flatten() if x is None else x.flatten() for x, p in zip(parts, ps)])


def cosine(x: Tensor, y: Tensor) -> float:
    return (x @ y / (x.norm() * y.norm()).clamp(min=1e-30)).item()


LIKE = 0.9999  # cosine of gradients that are the same; a clip of the log ratio in place of the ratio has 0.9993


def one_of(mine: Tensor, expected: list[Tensor], text: str, number: str = "", as_long: bool = False) -> Verdict:
    """Judges whether a gradient [P] has the direction of one of those that are expected, and where that is asked its
    length within 1 %. From 0.9 on it differs: what people mean (a Huber loss, another clip) has kept most of the
    direction, and what turns it around has not."""
    found, like = max(((cosine(mine, x), x) for x in expected), key=lambda x: (x[0] >= LIKE, abs(x[0])))
    times = (mine.norm() / like.norm().clamp(min=1e-30)).item() if as_long else 1.0
    length, asked = (f" and {times:.3g} times as long", " and 1 within 1 %") if as_long else ("", "")
    told = f"cosine {found:.5f}{length}{number}; {LIKE}{asked} is asked"
    wrong = not found >= LIKE or not abs(times - 1) <= 0.01
    return verdict(wrong and expected[0].any(), text, told, DIFFERS if found >= 0.9 else BAD)


def policy_gradient(s: Script, policy: nn.Module, args: Any = None, **parts: Tensor) -> Tensor:
    """Returns the gradient of the script's -policy_loss, by default without its bonus, on a batch with other parts."""
    args = args or s.with_options(entropy_coef=0.0)
    return gradient(-s.module.policy_loss(args, policy(s.batch["obs"]), s.batch | parts), policy)


@check("the bonus is the entropy times its coefficient", "policy_loss, action_entropy")
def bonus(s: Script) -> Verdict | None:
    """What --entropy-coef 0.01 adds to the gradient of -policy_loss is 0.01 times the gradient of the policy's entropy,
    within 1 %. With --bound-action tanh the entropy has the term E[ln(1 - tanh(u)^2)], estimated with the batch's own
    noise."""
    if not hasattr(s.args, "entropy_coef"):
        return None
    policy, pi = s.state.policy, s.state.policy(s.batch["obs"])
    added = policy_gradient(s, policy, s.with_options(entropy_coef=0.01)) - policy_gradient(s, policy)
    expected = pi.entropy()
    if s.option("bound_action") == "tanh":
        u = pi.mean + pi.stddev * (s.batch["actions"] - s.batch["old_means"]) / s.batch["old_stds"]
        expected = expected - 2 * torch.log(torch.cosh(u.double())).sum(-1)  # ln(1 - tanh^2) = -2 ln cosh
    entropy = 0.01 * gradient(expected.mean(), policy)
    off, times = ((added - entropy).norm() / entropy.norm()).item(), (added @ entropy / (entropy @ entropy)).item()
    return verdict(not off < 0.01, f"The bonus is {times:.2g} times what it should be.", f"{percent(off)} off")


@check("the policy loss is minus the surrogate, with its clip", "policy_loss", after="shapes")
def surrogate(s: Script) -> Verdict | None:
    """The gradient of -policy_loss without its bonus has a cosine of 0.9999 or more with that of the clipped surrogate
    (Schulman et al. 2017, eq. 7) or, without clip_eps, with that of ratio A or A ln pi. With --adv-norm, A are the
    normalized advantages, with --no-adv-norm the raw ones, and the gradient has this length, too; a script without the
    argument may do either. So it is at the policy that acted, and where a fifth of the ratios or more are outside the
    band (0.2 without clip_eps)."""
    if "multipliers" in s.batch:
        return None  # V-MPO's has a check of its own
    A, eps, norm = s.batch["advantages"], s.option("clip_eps", None), s.option("adv_norm", None)
    normalized = (A - A.mean()) / A.std()
    eps = s.batch["clip_range"][0].item() if "clip_range" in s.batch else eps
    log_prob = lambda policy: policy(s.batch["obs"]).log_prob(s.batch["actions"])
    ratio = lambda policy: torch.exp(log_prob(policy) - s.batch["old_log_probs"])
    share = lambda policy: ((ratio(policy) - 1).abs() > (eps or 0.2)).float().mean().item()
    far = moved(s.state.policy, lambda x: share(x) > 0.2)
    for policy in [s.state.policy, *([far] if share(far) > 0.2 else [])]:
        where = f"with {percent(share(policy))} of the ratios outside the band"
        expected = []
        for x in {True: [normalized], False: [A], None: [A, normalized]}[norm]:
            if eps is None:
                terms = [ratio(policy) * x, log_prob(policy) * x]
            else:
                terms = [torch.minimum(ratio(policy) * x, ratio(policy).clamp(1 - eps, 1 + eps) * x)]
            expected += [gradient(term.mean(), policy) for term in terms]
        text = f"The gradient of -policy_loss is not that of the surrogate {where}."
        found = one_of(policy_gradient(s, policy), expected, text, f" {where}", as_long=norm is not None)
        if found.status != GOOD:
            break
    return found


@check("V-MPO's losses are its equations'", "policy_loss, multiplier_loss, best_rows, decoupled_kl")
def vmpo_losses(s: Script) -> Verdict | None:
    """At a policy that has moved by 0.05 nats or more, with the multipliers 0.7, 2 and 3, the gradient of policy_loss
    has a cosine of 0.9999 or more with that of eq. 20 of Lehmann 2024, and the derivatives of multiplier_loss are those
    of eq. 21 and 22 within 1 %, and 0 for the policy. KLs are computed here from the Gaussians' formulas."""
    multiplier_loss = getattr(s.module, "multiplier_loss", None)
    if "multipliers" not in s.batch or not multiplier_loss:
        return None
    A, m = s.batch["advantages"], torch.tensor([0.7, 2.0, 3.0]).requires_grad_()
    policy = moved(s.state.policy, lambda x: kls(x, s.batch).mean() > 0.05)
    pi, mean, std = policy(s.batch["obs"]), s.batch["old_means"], s.batch["old_stds"]
    kl_mean = (0.5 * ((pi.mean - mean) / std) ** 2).sum(-1).mean()
    kl_std = (torch.log(pi.stddev / std) + 0.5 * (std / pi.stddev) ** 2 - 0.5).sum(-1).mean()
    best = A.topk(len(A) // 2 if s.option("top_half", True) else len(A)).indices
    psi = torch.softmax(A[best] / 0.7, 0)
    loss = 2 * kl_mean + 3 * kl_std - (psi * pi.log_prob(s.batch["actions"])[best]).sum()
    mine = policy_gradient(s, policy, multipliers=m.detach())
    found = one_of(mine, [gradient(-loss, policy)], "The gradient of policy_loss is not eq. 20's.")
    dual = m[0] * s.args.eps_temperature + m[0] * (torch.logsumexp(A[best] / m[0], 0) - math.log(len(best)))
    dual = dual + m[1] * (s.args.eps_mean - kl_mean.detach()) + m[2] * (s.args.eps_std - kl_std.detach())
    [expected] = torch.autograd.grad(dual, m)
    mine = multiplier_loss(s.args, m, policy(s.batch["obs"]), s.batch)
    [slopes] = torch.autograd.grad(mine, m, retain_graph=True)
    off = ((slopes - expected).abs() / expected.abs().clamp(min=1e-8)).tolist()
    wrong = [x for x, y in zip(("the temperature", "nu_mean", "nu_std"), off) if not y <= 0.01]
    wrong += ["the policy, which should be 0"] * bool(gradient(mine, policy).any())
    if wrong and found.status != BAD:
        text = f"The derivative of multiplier_loss is not that of eq. 21 and 22 for {', '.join(wrong)}."
        return Verdict(BAD, text, f"off by {', '.join(map(percent, off))}")
    return found


@check("the value loss is a squared error, clipped as the arguments say", "value_loss", after="shapes")
def value_loss(s: Script) -> Verdict | None:
    """At the values before the fit, the gradient of value_loss has a cosine of 0.9999 or more with that of the mean
    squared error. So it has where a fifth of the values have moved by more than value_clip_eps; with --value-clip this
    is the larger of the clipped and the unclipped error."""
    if not s.critic:
        return None
    old, targets, eps = s.batch["old_values"], s.batch["value_targets"], s.option("value_clip_eps", 0.2)
    far = moved(s.critic, lambda x: ((x(s.batch["obs"]) - old).abs() > eps).float().mean() > 0.2)
    for network in [s.critic, *([far] if "clip_range" not in s.batch else [])]:
        values = network(s.batch["obs"]).flatten()
        errors = (values - targets) ** 2
        if s.option("value_clip"):
            errors = torch.maximum(errors, (old + (values - old).clamp(-eps, eps) - targets) ** 2)
        mine = gradient(s.module.value_loss(s.args, network(s.batch["obs"]), s.batch), network)
        where = "once values have moved" if network is far else "before the fit"
        text = f"The gradient of its value loss is not that of the squared error {where}."
        found = one_of(mine, [gradient(errors.mean(), network)], text, f" {where}")
        if found.status != GOOD:
            break
    return found


def flat(state: Any, *names: str) -> Tensor:
    parts = [getattr(state, x) for x in names if hasattr(state, x)]
    return torch.cat([x if torch.is_tensor(x) else lab.flat_parameters(x) for x in parts])


@check("equal states give equal updates, which move every parameter", "update")
def equal_updates(s: Script) -> Verdict:
    """From an equal state an update is the same bit for bit; otherwise something outside the State is kept. It moves
    every tensor of a network's parameters, unless a line search refuses the whole step of a policy, or training has
    ended and its learning rate is 0."""
    (one, _), (again, _), wrong = s.an_update, s.updated(), []
    if not torch.equal(flat(one, "policy", "value"), flat(again, "policy", "value")):
        wrong.append("from an equal state it is another one, so something outside the State is kept")
    for name in [x for x in ("policy", "value") if hasattr(one, x) and has_step(s.checkpoint)]:
        if name == "policy" and not s.batch["advantages"].any():
            continue  # Its gradient is 0, as in REINFORCE where no reward has come yet.
        pairs = zip(*(getattr(x, name).named_parameters() for x in (s.state, one)))
        still = [x for (x, old), (_, new) in pairs if torch.equal(old, new)]
        if still and (name == "value" or not s.option("max_kl") or (flat(one, name) != flat(s.state, name)).any()):
            wrong.append(f"{', '.join(still)} of the {name} network did not move")
    return verdict(wrong, f"Of an update: {'; '.join(wrong)}.", "two epochs")


@check("restore gives back what a checkpoint holds", "restore, save_checkpoint")
def restored(s: Script) -> Verdict:
    """The checkpoint has every part of the State that can be saved: networks, statistics, Adam's moments and the
    counters. After restore each is the checkpoint's, bit for bit, and so are unfinished episodes, where the environment
    repeats them."""
    checkpoint, state = s.module.load_checkpoint(s.checkpoint.path), s.module.State(s.wide)
    s.module.restore(state, checkpoint)
    if state.__dict__.get("inexact_resumes") != checkpoint.get("inexact_resumes"):
        del state.inexact_resumes, checkpoint["workers"]  # which the run's half judges
    episodes = [x for x in zip(state.workers, checkpoint.pop("workers", [])) if x[1]["obs"] is not None]
    lost_episodes = any(not np.array_equal(getattr(x, k), y[k]) for x, y in episodes for k in y)
    savable = {x for x, y in vars(state).items() if hasattr(y, "load_state_dict")}
    parts = {x: y.state_dict() if hasattr(y, "state_dict") else y for x, y in vars(state).items()}
    parts = {x: tree_leaves(y) for x, y in parts.items() if x not in ("workers", "rng")}
    lost = [x for x, y in parts.items() if y and (x in savable or all(map(torch.is_tensor, y))) and x not in checkpoint]
    theirs = {x: tree_leaves(checkpoint[x]) for x in parts if x in checkpoint}
    same = lambda x, y: len(x) == len(y) and all(np.array_equal(a, b) for a, b in zip(x, y))
    wrong = lost + [x for x in theirs if not same(parts[x], theirs[x])] + ["an unfinished episode"] * lost_episodes
    return verdict(wrong, f"Not given back: {', '.join(wrong)}.", ", ".join(theirs))


@check("every epoch takes each row once, shuffled, in as many minibatches as the arguments say", "update, shuffle, fit")
def minibatches(s: Script) -> Verdict | None:
    """An update of two epochs calls each loss with num_minibatches minibatches an epoch. In each epoch every row comes
    once, but for the remainder that may be left out, and in another order."""
    told, wrong, count = [], [], s.option("num_minibatches", None)
    for name in [x for x in ("policy", "value") if hasattr(s.args, f"{x}_epochs") and count]:
        calls, loss = [], getattr(s.module, f"{name}_loss")
        spy = lambda args, x, batch, calls=calls, loss=loss: calls.append(batch["row"].tolist()) or loss(args, x, batch)
        with mock.patch.object(s.module, f"{name}_loss", spy):
            s.updated(row=torch.arange(len(s.batch["obs"])))
        one, two = epochs = [sum(calls[i : i + count], []) for i in (0, count)]
        told.append(f"{len(calls):,} steps of the {name} in two epochs of {count:,}")
        if len(calls) != 2 * count:
            wrong.append(told[-1])
        elif any(len(x) != len(set(x)) or len(x) != len(s.batch["obs"]) // count * count for x in epochs):
            wrong.append(f"the epochs of the {name} do not take each row once")
        elif count > 1 and (one == two or one == sorted(one)):  # In a single minibatch no order matters.
            wrong.append(f"those of the {name} are not shuffled")
    text = f"Its minibatches are not as the arguments say: {'; '.join(wrong)}."
    return verdict(wrong, text, ", ".join(told)) if told else None


@check("an update counts its steps, and logs what it did", "update, measure_update, natural_gradient_step")
def logged(s: Script) -> Verdict:
    """An update counts one iteration and the steps of the batch. Of what it logs these are right within 1 %: over the
    whole batch mean_kl and max_kl (old || new), max_ratio, effective_sample_size (the ratios' mean squared by their
    mean square), clip_fraction, explained_variance (of the targets by the values before the fit) and, unless actions
    are squashed, entropy. Its policy has moved by 0.1 nats before, so that directions of the KL are told apart."""
    batch, start = s.batch, moved(s.state.policy, lambda x: kls(x, s.batch).mean() > 0.1)
    state, mine = s.updated(start=changed(s.state, policy=start))
    pi, kl = state.policy(batch["obs"]), kls(state.policy, batch)
    ratios = torch.exp(pi.log_prob(batch["actions"]) - batch["old_log_probs"]).detach()
    true = dict(mean_kl=kl.mean(), max_kl=kl.max(), max_ratio=ratios.max(), entropy=pi.entropy().mean())
    true["effective_sample_size"] = ratios.mean() ** 2 / (ratios**2).mean()
    true["clip_fraction"] = ((ratios - 1).abs() > s.option("clip_eps", 0.0)).float().mean()
    if s.critic:
        left = batch["value_targets"] - batch["old_values"]
        true["explained_variance"] = 1 - left.var() / batch["value_targets"].var()
    if s.option("bound_action") == "tanh":
        del true["entropy"]
    true = {x: y.item() for x, y in true.items() if x in mine} | dict(iteration=1, global_step=len(batch["obs"]))
    mine = mine | {x: getattr(state, x) - getattr(s.state, x) for x in ("iteration", "global_step")}
    off = [x for x, y in true.items() if not abs(mine[x] - y) <= 0.01 * abs(y) + 1e-6]
    wrong = [f"{x} {mine[x]:.4g} in place of {true[x]:.4g}" for x in off]
    return verdict(wrong, f"An update does not say what it did: {'; '.join(wrong)}.", ", ".join(true))


@check("no network's fit sees the other's targets", "update", after="equal_updates")
def independent(s: Script) -> Verdict | None:
    """Other value targets leave the policy's update the same bit for bit, and other advantages the value network's."""
    if not s.critic or not hasattr(s.args, "value_lr"):
        why = "One optimizer steps both networks, and clips their norm together, so their fits are not independent."
        return Verdict(CANNOT_TELL, why) if s.critic else None
    # Where training has ended, the rate may be 0, and nothing would move whatever the targets are.
    goes_on = has_step(s.checkpoint)
    start = s.state if goes_on else changed(s.state, iteration=0, global_step=0)
    mine, _ = s.an_update if goes_on else s.updated(start=start)
    draw, wrong = torch.randn(len(s.batch["obs"]), generator=torch.Generator().manual_seed(1)), []
    for name, network in dict(value_targets="policy", advantages="value").items():
        other, _ = s.updated(start=start, **{name: s.batch[name] + s.batch[name].std() * draw})
        apart = (flat(other, network) - flat(mine, network)).norm()
        share = apart / (flat(other, network) - flat(s.state, network)).norm().clamp(min=1e-30)
        wrong += [f"that of the {network} on the {name} (by {percent(share.item())})"] * bool(apart)
    text = f"A fit depends on the other's targets: {' and '.join(wrong)}. Is the batch made before both fits?"
    return verdict(wrong, text, "bit for bit")


@check("learning rates are what the arguments say", "update", after="logged")
def rates(s: Script) -> Verdict | None:
    """In the first iteration of a new run, after a quarter and three quarters of its training, and in the last, an
    update returns the rates of the arguments, with --anneal-lr times 1 - steps before / planned steps (within 1 % of
    the first). Another schedule differs; it is bad if the first rate is another, or one that should be a quarter is
    above 70 %."""
    args, new, data, _ = s.new
    names, told = [x for x in ("policy_lr", "value_lr") if hasattr(args, x)], []
    if not names:
        return None
    batch, size = s.module.estimate_advantages(args, new, data), args.num_envs * args.num_steps
    args = s.with_options(args, policy_epochs=1, value_epochs=1)
    n = planned_steps(dict(args=vars(args))) // size
    done = [0, n // 4, 3 * n // 4, n - 1]
    share = 1 - np.array(done) / n if s.option("anneal_lr") else np.ones(4)
    rows = [s.module.update(args, changed(copied(new), iteration=x, global_step=x * size), batch) for x in done]
    for name in [x for x in names if x in rows[0]]:
        found = np.array([row[name] for row in rows]) / getattr(args, name)
        off = np.abs(found - share)
        i, wrong = off.argmax(), ~(off <= 0.01)
        number = f"{name} {getattr(args, name) * found[i]:.3g} in iteration {done[i]}, where the arguments say "
        number += f"{getattr(args, name) * share[i]:.3g}"
        text = f"The learning rate is not what the arguments say in {wrong.sum()} of {len(off)} cases."
        bad = wrong[0] or ((found > 0.7) & (share <= 0.25)).any()
        told.append(verdict(wrong.any(), text, number, BAD if bad else DIFFERS))
    why = Verdict(CANNOT_TELL, "Learning rates are not judged: an update does not return them by their names.")
    return min(told, key=lambda x: checks.ORDER.index(x.status)) if told else why


FITTED = dict(policy=("policy", "multipliers"), value=("value",))  # what an Adam steps; V-MPO alone has multipliers


@check("the steps inside updates are Adam's", "update, fit, fit_policy", after="equal_updates minibatches logged")
def adam(s: Script) -> Verdict | None:
    """In a new run that counts as a quarter done, three updates of four epochs of one minibatch end where
    torch.optim.Adam ends along the script's losses, within 1 % of the way (a healthy script: 0.003 %), at the rates
    that the updates return. Gradients are clipped where the arguments say so: to a norm of 0.01, so that the clip acts,
    and to 1e6, so that it must not. V-MPO's multipliers move, too, unclipped, and stay above their least value. The
    mean loss and gradient norm that the first update logs are those of its steps."""
    args, new, data, _ = s.new
    names = [x for x in ("policy", "value") if {f"{x}_lr", f"{x}_epochs", "num_minibatches"} <= vars(args).keys()]
    if not names:
        return Verdict(CANNOT_TELL, "Adam's steps are not judged: networks have no rates and epochs of their own.")
    batch, told = s.module.estimate_advantages(args, new, data), []
    planned, size = planned_steps(dict(args=vars(args))), args.num_envs * args.num_steps
    for most in [0.01, 1e6] if hasattr(args, "max_grad_norm") else [math.inf]:
        args, start = s.with_options(args, max_grad_norm=most), copied(new)
        start.iteration, start.global_step = planned // (4 * size), planned // (4 * size) * size
        if hasattr(start, "multipliers"):
            start.multipliers[2] = 2 * args.min_multiplier  # the KL is small, so it falls to the least value
        state, ends, logs, thirds = copied(start), [], [], []
        for rows in torch.arange(len(batch["obs"]) // 3 * 3).chunk(3):
            thirds.append({name: x if name == "multipliers" else x[rows] for name, x in batch.items()})
            fraction = 1 - state.global_step / planned if s.option("anneal_lr") else 1
            by_arguments = {f"{x}_lr": fraction * getattr(args, f"{x}_lr") for x in names}
            logs.append(by_arguments | s.module.update(args, state, thirds[-1]))
            ends.append(copied(state))
        for x in names:
            mine = [flat(y, *FITTED[x]) - flat(start, *FITTED[x]) for y in (ends[0], ends[2])]
            for eps in (1e-5, 1e-8):
                way, log = adam_way(s, args, x, start, thirds, [row[f"{x}_lr"] for row in logs], eps)
                first, last = map(relative_distance, mine, way)
                if last <= 0.01:
                    break
            far, clip = (mine[1].norm() / way[1].norm()).item(), f" with a norm of {most:g}" * math.isfinite(most)
            told.append(f"the {x} went {far:.3g} times as far as Adam{clip}, and ended {percent(last)} of the way off")
            if last > 0.01:
                when = "within the first update: moments, gradient, clip or batch are others"
                when = when if first > 0.01 else "after it: Adam's state does not go on"
                return Verdict(BAD, f"Steps of the {x}{clip} part from Adam's {when}.", told[-1])
            off = [y for y in log if y in logs[0] and not abs(logs[0][y] - log[y]) <= 0.01 * abs(log[y]) + 1e-6]
            if off:
                number = ", ".join(f"{y} {logs[0][y]:.4g} in place of {log[y]:.4g}" for y in off)
                return Verdict(BAD, f"Steps of the {x}{clip} are Adam's, but what is logged of them is not so.", number)
    return Verdict(GOOD, "", "; ".join(told))


def relative_distance(x: Tensor, y: Tensor) -> float:
    """Returns |x - y| / |y|, which is 0 where both are 0, as the steps along a gradient of 0 are."""
    return 0.0 if torch.equal(x, y) else ((x - y).norm() / y.norm()).nan_to_num(math.inf).item()


def adam_way(s: Script, args: Any, name: str, start: Any, batches: list, rates: list, eps: float) -> tuple:
    """Returns how far torch.optim.Adam goes in four steps and in twelve, and what an update should log of the four: the
    mean loss and norm of the gradient, and the share that was clipped."""
    network, loss = copy.deepcopy(getattr(start, name)), getattr(s.module, f"{name}_loss")
    begun = flat(start, *FITTED[name])
    multipliers = begun[len(flat(start, name)) :].clone().requires_grad_()  # none but V-MPO's
    # A script with one clip alone (TRPO+: the value network's; REINFORCE: the policy's) calls it grad_clip.
    of_value = name == "value" and hasattr(args, "value_grad_clip")
    clips = getattr(args, "value_grad_clip" if of_value else "grad_clip", True)
    most = getattr(args, "max_grad_norm", math.inf) if clips else math.inf
    optimizer, ways, losses = torch.optim.Adam([*network.parameters(), multipliers], eps=eps), [], []
    for batch, rate in [(x, rate) for x, rate in zip(batches, rates) for _ in range(4)]:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        said = network(batch["obs"])
        if len(multipliers):
            multiplier_loss = getattr(s.module, "multiplier_loss")  # noqa: B009  # V-MPO's alone, so not of the contract
            multiplier_loss(args, multipliers, said, batch).backward(retain_graph=True)
            network.zero_grad()
            batch = batch | dict(multipliers=multipliers.detach().clone())
        value = loss(args, said, batch)
        value.backward()
        norm = nn.utils.clip_grad_norm_(network.parameters(), most)
        losses.append([value.item(), norm.item(), float(norm > most)])
        optimizer.step()
        multipliers.data.clamp_(min=getattr(args, "min_multiplier", 0.0))
        ways.append(torch.cat([lab.flat_parameters(network), multipliers.detach()]) - begun)
    means = np.mean(losses[:4], 0)
    return [ways[3], ways[11]], {f"{name}_{x}": y for x, y in zip(("loss", "grad_norm", "grads_clipped"), means)}


@check("the policy's step is a natural gradient's", "natural_gradient_step, conjugate_gradient, fisher_vector_product")
def natural_step(s: Script) -> Verdict | None:
    """With Fisher products over all states and 100 steps of conjugate gradient, the step x of an update solves
    (F + damping) x = g up to its length: the cosine of both sides is 0.95 or more. Before the line search,
    x (F + damping) x / 2 is the KL that is allowed, within 5 % (half-way through a schedule from 0.01 to 0.03, where
    there is one). An update without a step is bad."""
    if not s.option("max_kl") or not hasattr(s.args, "cg_damping"):
        return None
    args = s.with_options(fisher_fraction=1.0, cg_steps=100, max_kl=0.01, max_kl_final=0.03)
    policy, planned = s.state.policy, planned_steps(dict(args=vars(s.args)))
    after, log = s.updated(args, changed(s.state, global_step=planned // 2))
    step = flat(after, "policy") - flat(s.state, "policy")
    if not step.any():
        text = "With exact Fisher products and 100 steps of conjugate gradient, the line search accepts no step."
        return Verdict(BAD, text, f"its cg_residual is {log['cg_residual']:.3g}" * ("cg_residual" in log))
    new, ps = policy(s.batch["obs"]), list(policy.parameters())
    old = Independent(Normal(new.mean.detach(), new.stddev.detach()), 1)
    slope = torch.autograd.grad(kl_divergence(old, new).mean(), ps, create_graph=True)
    product = gradient(torch.cat([x.flatten() for x in slope]) @ step, policy) + args.cg_damping * step
    found = cosine(product, policy_gradient(s, policy, args))
    allowed = 0.01 + (planned // 2) / planned * 0.02 * hasattr(args, "max_kl_final")
    length = (product @ step / 2).item() / log.get("line_search_step", 1.0) ** 2 / allowed
    number = f"cosine {found:.3f}; {length:.3g} of the KL that is allowed"
    if not found >= 0.95:
        return Verdict(BAD, "The policy's step is not a natural gradient's.", number)
    wrong = "line_search_step" in log and not abs(length - 1) < 0.05
    return verdict(wrong, "The policy's step has the direction of a natural gradient's, and not the length.", number)


@check("a step keeps to the KL that it is allowed, and improves the surrogate", "line_search, natural_gradient_step")
def acceptance(s: Script) -> Verdict | None:
    """Steps that are too long are provoked by a Fisher matrix of one state with hardly any damping. What an update then
    accepts has a mean KL of at most max_kl and raises the surrogate by more than a tenth of what its slope promises. Of
    ten tries it takes the first that is so; where one is allowed and is not so, the policy stays."""
    if not s.option("max_kl") or not hasattr(s.args, "cg_damping"):
        return None
    start, told, wrong = flat(s.state, "policy"), [], []
    surrogate = lambda args, policy: -s.module.policy_loss(args, policy(s.batch["obs"]), s.batch)
    for most, tries in ((0.01, 1), (0.01, 10), (0.3, 10)):
        fisher = dict(fisher_fraction=1.0 / len(s.batch["obs"]), cg_damping=1e-3)
        args = s.with_options(**fisher, max_kl=most, max_kl_final=most, backtrack_steps=tries)
        before = surrogate(args, s.state.policy)
        slope, (after, log) = gradient(before, s.state.policy), s.updated(args)
        step, fraction = flat(after, "policy") - start, log.get("line_search_step", 1.0)
        fits, numbers = [], []
        for longer, slack in ((step, 0.01), (step / args.backtrack_ratio, -0.01)):  # in favour of what was decided
            policy = lab.with_parameters(s.state.policy, start + longer)
            gain, kl = (surrogate(args, policy) - before).item(), kls(policy, s.batch).mean().item()
            fits.append(gain > (0.1 - slack) * (slope @ longer).item() and kl <= (1 + slack) * most)
            numbers.append(f"KL {kl:.3g} of {most}, surrogate {gain:+.3g} of {slope @ longer:+.3g}")
        told.append(numbers[0] if step.any() else f"no step in {tries} tries with {most}")
        if step.any() and not fits[0]:
            wrong.append(f"it accepts a step with {numbers[0]}")
        elif step.any() and fits[1] and fraction < 1:
            wrong.append(f"it accepts a step with {numbers[0]} where a longer one had {numbers[1]}")
    return verdict(wrong, f"The line search is not as it should be: {'; '.join(wrong)}.", "; ".join(told))
