"""Is my script right? This is one half of the report, for those who edit a copied script; run_checks.py is the other.

What the script samples and computes is compared with what the environments say, and with sums, gradients and an Adam
that are computed here without the script. The checkpoint may be untrained."""

import copy
import math
from dataclasses import replace
from typing import Any

import checks
import lab
import numpy as np
import torch
from checks import BAD, Verdict, of_rows, percent, unlike, verdict
from recorded import Script, copied, has_step, kls, moved, recorder_of, values_that_follow
from rewards import planned_steps, short
from scipy.signal import lfilter
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.utils._pytree import tree_leaves

CHECKS: list[checks.Check] = []
check = checks.into(CHECKS)


@check("equal states give equal rollouts", "rollout")
def equal_rollouts(s: Script) -> Verdict | None:
    """From an equal state a rollout is the same bit for bit, also when the script has made others since. Otherwise
    something outside the State is kept: a buffer, a counter, a generator."""
    (one, true), (two, again) = s.first, s.again
    same = ~unlike(true["given"][: len(again["given"])], again["given"][: len(true["given"])], 0)
    rows = len(same) if same.all() else same.argmin()  # before the first action that differs
    answers = [np.column_stack([x["next_obs"], x["reward"]])[:rows] for x in (true, again)]
    if not np.array_equal(true["starts"][0], again["starts"][0]) or not np.array_equal(*answers):
        return None  # reset(seed=...) does not determine this environment
    names = [x for x in one if x != "episodes" and not np.array_equal(one[x], two[x])]
    text = f"From an equal state a rollout has other {', '.join(names)}: something outside the State is kept."
    return verdict(names, text, f"{len(one['obs']):,} rows, bit for bit")


@check("the actions' noise is the policy's", "rollout")
def noise(s: Script) -> Verdict:
    """Actions minus the policy's means, in units of its standard deviations, are standard normal within 6 standard
    errors, in a first rollout and in a second one, before which the policy changed by 1 nat or more. No two rollouts,
    segments or dimensions of the action have the same noise (a correlation above 0.5)."""
    found = []
    for policy, data in ((s.before.policy, s.first[0]), (s.state.policy, s.data)):
        pi = policy(torch.from_numpy(data["obs"]))
        found.append(((torch.from_numpy(data["actions"]) - pi.mean) / pi.stddev).detach().double().numpy())
    (x, y), n, rows = found, s.steps, min(map(len, found))
    if (again := max((y[n:] * y[:-n]).mean(), (x[:rows] * y[:rows]).mean())) > 0.5:
        text = "The same noise comes again in every rollout or segment: draw it from the state's generator."
        return Verdict(BAD, text, f"correlation {again:.2f}")
    if (alike := np.abs(np.corrcoef(y.T) - np.eye(y.shape[1])).max()) > 0.5:
        return Verdict(BAD, "Dimensions of the action have the same noise.", f"correlation {alike:.2f}")
    off = [max(abs(z.mean()), abs(z.std() - 1) * 2**0.5) / (6 * z.size**-0.5) for z in found]
    told = [f"mean {z.mean():.2f}, standard deviation {z.std():.2f}" for z in found]
    number = f"{', and with a changed policy '.join(told)}; {6 * y.size**-0.5:.2f} more or less would be named"
    when = " once it has changed" * bool(off[0] <= 1)
    return verdict(not max(off) <= 1, f"The noise of the actions is not the policy's{when}.", number)


@check("the environment gets the actions", "make_env, rollout")
def actions(s: Script) -> Verdict:
    """What the environment gets is the action as drawn or, with --bound-action, clipped to its range or squashed into
    it, in the numbers of its space. A script without this argument may clip."""
    drawn, how = s.data["actions"].astype(float), s.option("bound_action", None)
    low, high = s.space.low.astype(float), s.space.high.astype(float)
    ways = dict(no=drawn, clip=drawn.clip(low, high), tanh=low + (high - low) * (np.tanh(drawn) + 1) / 2)
    if s.space.dtype.kind in "iu":  # Then it gets whole numbers, and rounding decides where one is cut off.
        ways |= {x: np.where(abs(s.true["given"] - ways[x]) <= 1, s.true["given"], ways[x]) for x in ("clip", "tanh")}
    wrong = [unlike(s.true["given"], ways[x]) for x in ([how] if how in ways else ["no", "clip"])]
    return of_rows(min(wrong, key=np.sum), "The environment does not get the actions as the arguments say.")


@check("observations are the environment's, as the statistics say", "rollout, normalize_obs")
def observations(s: Script) -> Verdict:
    """With frozen statistics obs and next_obs are the environment's own minus the statistics' mean, divided by their
    standard deviation, and clipped, row by row within 1 %."""
    known, limit = s.statistics(1), s.args.obs_clip_range if s.option("obs_clip") else np.inf
    mean, std = (known.mean, known.std + 1e-8) if known else (0.0, 1.0)
    names = [x for x in ("obs", "next_obs") if x in s.data]
    wrong = {x: unlike(s.data[x], ((s.true[x] - mean) / std).clip(-limit, limit), 0.01) for x in names}
    name = max(names, key=lambda x: wrong[x].sum())
    return of_rows(wrong[name], f"Its {name} are not the environment's, standardized by the statistics.")


@check("rewards are the environment's, as the statistics say", "rollout, scale_reward")
def rewards(s: Script) -> Verdict:
    """With frozen statistics rewards are the environment's divided by the statistics' standard deviation, and clipped
    (row by row within 1 %); scaled by the rewards' own statistics, minus and plus their mean."""
    known, limit = s.statistics(0), s.args.reward_clip_range if s.option("reward_clip") else np.inf
    mean = known.mean if known and s.option("reward_scale_by") == "rewards" else 0.0
    expected = (s.true["reward"] - mean) / (known.std + 1e-8 if known else 1.0) + mean
    expected, found = expected.clip(-limit, limit), s.data["rewards"]
    slope, shift = np.polyfit(expected, found, 1) if np.ptp(expected) else (0.0, found.mean())
    text = f"The scaled rewards are about {slope:.3g} times what the statistics say, plus {shift:.3g}."
    return of_rows(unlike(found, expected, 0.01), text)


@check("running statistics are those of what a new run saw", "RunningStats, normalize_obs, scale_reward")
def running_statistics(s: Script) -> Verdict | None:
    """After the first rollout of a new run, mean and standard deviation of the observations' statistics are those of
    the environment's, and the standard deviation of the rewards' statistics is that of the discounted sums of rewards,
    begun anew with each episode or not, or of the rewards (within 10 % of a standard deviation). In the first 16 steps
    no observation is further from the mean than one of n samples can be, (n - 1) / sqrt(n) standard deviations."""
    (_, state, data, true), off = s.new, {}
    over = true["terminated"] | true["truncated"]
    if known := s.statistics(1, state):
        apart = lambda x: np.max([abs(known.mean - x.mean(0)), abs(known.std - x.std(0))] / (x.std(0) + 1e-8))
        some = true["next_obs"], true["next_obs"][~over]  # some libraries leave out an episode's last observation
        off["statistics of observations"] = min(apart(np.concatenate([true["starts"], x])) for x in some)
        most = (np.arange(len(data["obs"][:16])) + 4) ** 0.5  # of n - 1 or more, with some of resets on the way
        off["first observations"] = max(0.0, (np.abs(data["obs"][:16]).max(1) / most).max() - 1)
    if known := s.statistics(0, state):
        gamma, parts = s.option("norm_gamma", s.option("gamma", 1.0)), lambda x: np.flatnonzero(x)[:-1] + 1
        sums = lambda ends: [lfilter([1], [1, -gamma], x) for x in np.split(true["reward"], parts(ends))]
        stds = [np.concatenate(sums(x)).std() for x in (over | true["last"], true["last"])] + [true["reward"].std()]
        off["statistics of rewards"] = min(abs(known.std / max(x, 1e-30) - 1) for x in stds)
    wrong, number = [x for x in off if not off[x] <= 0.1], ", ".join(f"{x} {percent(y)} off" for x, y in off.items())
    return verdict(wrong, f"In a new run the {' and '.join(wrong)} are not what was seen.", number) if off else None


@check("rows end and terminate where the environment's do", "rollout")
def ends(s: Script) -> Verdict:
    """Row by row, in the second of two rollouts: a row ends where the environment ended its episode or the segment is
    over, and is terminal where the environment says so. A time limit is no terminal state, unless the arguments say
    so. Each segment has episodes that end in either way, and one that ends in both."""
    terminated, truncated = s.true["terminated"], s.true["truncated"] & ~s.true["terminated"]
    terminal = terminated | (truncated & (not s.option("bootstrap_truncation", True)))
    off = s.data.get("terminations", terminal) != terminal  # REINFORCE has no use for them
    wrong = s.data["ends"] != (terminated | truncated | s.true["last"])
    number = f"{len(off):,} rows, {terminated.sum():,} terminal and {truncated.sum():,} at time limits, some made here"
    text = f"{wrong.sum():,} rows end where no episode or segment ends, or the other way round."
    text = f"{off.sum():,} rows are wrongly terminal or not: is it taken for a time limit?" if off.any() else text
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
    """Not all episodes begin in the same state, if those of two seeds of the environment do not."""
    env = recorder_of(s.fresh(9, 1)[1].workers[0].env).env
    one, other = (np.asarray(env.reset(seed=seed)[0]) for seed in (1, 2))
    if not (one != other).any():
        return None
    text = "All episodes begin in the same state: each needs a seed of its own in reset(seed=...)."
    return verdict(not np.ptp(s.true["starts"], axis=0).any(), text, f"{len(s.true['starts']):,} episodes")


def of_kinds(s: Script, found: np.ndarray, expected: np.ndarray, text: str) -> Verdict:
    """Judges by the rows that differ by more than 1e-4 of the largest number, and tells of which kinds they are."""
    most, end = max(np.abs(found).max(), s.batch["old_values"].abs().max().item()), s.data["ends"]
    wrong = ~(np.abs(found - expected) <= 1e-4 * most)
    kinds = dict(inner=~end, terminal=s.data["terminations"], cut=end & ~s.data["terminations"])
    told = [f"{(wrong & rows).sum():,} of {rows.sum():,} {name} rows" for name, rows in kinds.items()]
    return verdict(wrong.any(), text, f"wrong in {', '.join(told)}")


@check("value targets at lambda 1 are the discounted returns", "estimate_advantages")
def value_targets(s: Script) -> Verdict | None:
    """Each row's target at lambda 1 is its reward plus the discounted target of the next row, or gamma V(next_obs)
    where an episode is cut off, or nothing where it terminates. The target is A + V."""
    if not s.critic:
        return None
    batch = s.module.estimate_advantages(s.with_options(gae_lambda=1.0), s.state, s.data)
    targets, follow = batch["value_targets"].double().numpy(), values_that_follow(s.critic, s.data)
    expected = s.data["rewards"] + s.args.gamma * np.where(s.data["ends"], follow, np.append(targets[1:], 0.0))
    return of_kinds(s, targets, expected, "Its value targets at lambda 1 are not the discounted returns.")


@check("advantages are GAE's or, without a value network, returns", "estimate_advantages")
def advantages(s: Script) -> Verdict:
    """Each row's advantage is delta + gamma lambda times the next row's, within an episode (Schulman et al. 2016);
    delta is r + gamma V(next_obs) - V(obs), where V counts as 0 after a terminal state, and only there.
    Without a value network it is the discounted return minus the same baseline in each row."""
    found, end = s.batch["advantages"].double().numpy(), s.data["ends"]
    if not s.critic:
        returns = np.zeros(len(found) + 1)
        for i in reversed(range(len(found))):
            returns[i] = s.data["rewards"][i] + s.args.gamma * (0 if end[i] else returns[i + 1])
        off = unlike(found - found.mean(), returns[:-1] - returns[:-1].mean(), 1e-3)
        return of_rows(off, "Its advantages are not the discounted returns minus a baseline.")
    values = s.critic(s.batch["obs"]).detach().double().numpy()
    deltas = s.data["rewards"] + s.args.gamma * values_that_follow(s.critic, s.data) - values
    expected = deltas + s.args.gamma * s.args.gae_lambda * np.where(end, 0.0, np.append(found[1:], 0.0))
    return of_kinds(s, found, expected, "Its advantages are not delta + gamma lambda A'.")


@check("the batch holds what the networks said", "estimate_advantages")
@torch.no_grad()
def batch_fields(s: Script) -> Verdict:
    """Each row's obs and actions are the rollout's, and its old_means, old_stds, old_log_probs and old_values those of
    the networks there, within 0.01 %."""
    obs, acted = torch.from_numpy(s.data["obs"]), torch.from_numpy(s.data["actions"])
    pi = s.state.policy(obs)
    expected = dict(obs=obs, actions=acted, old_means=pi.mean, old_stds=pi.stddev, old_log_probs=pi.log_prob(acted))
    expected |= dict(old_values=s.critic(obs)) if s.critic else {}
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


def one_of(mine: Tensor, expected: list[Tensor], text: str, number: str = "") -> Verdict:
    """Judges whether a gradient [P] has the direction of one of those that are expected."""
    found = max((cosine(mine, x) for x in expected), key=lambda x: (x >= LIKE, abs(x)))
    return verdict(not found >= LIKE and expected[0].any(), text, f"cosine {found:.5f}{number}; {LIKE} is asked")


def policy_gradient(s: Script, policy: nn.Module, **options: Any) -> Tensor:
    """Returns the gradient of the script's -policy_loss, by default without its entropy bonus."""
    args = s.with_options(**dict(entropy_coef=0.0) | options)
    return gradient(-s.module.policy_loss(args, policy(s.batch["obs"]), s.batch), policy)


@check("the bonus is the entropy times its coefficient", "policy_loss, action_entropy")
def bonus(s: Script) -> Verdict | None:
    """What --entropy-coef 0.01 adds to the gradient of -policy_loss is 0.01 times the gradient of the policy's entropy,
    within 1 %."""
    if not hasattr(s.args, "entropy_coef"):
        return None
    policy = s.state.policy
    added = policy_gradient(s, policy, entropy_coef=0.01, bound_action="no") - policy_gradient(s, policy)
    entropy = 0.01 * gradient(policy(s.batch["obs"]).entropy().mean(), policy)
    off, times = ((added - entropy).norm() / entropy.norm()).item(), (added @ entropy / (entropy @ entropy)).item()
    return verdict(not off < 0.01, f"The bonus is {times:.2g} times what it should be.", f"{percent(off)} off")


@check("the policy loss is minus the surrogate, with its clip", "policy_loss")
def surrogate(s: Script) -> Verdict:
    """The gradient of -policy_loss without its bonus has a cosine of 0.9999 or more with that of the clipped surrogate
    (Schulman et al. 2017, eq. 7) of the advantages, normalized or not, or, without clip_eps, with that of ratio A or
    A ln pi. So it has at the policy that acted, and where a fifth of the ratios or more are outside the band (0.2
    without clip_eps). Of V-MPO the first is tested, with weights softmax(A / temperature) of the better half."""
    A, of_vmpo, eps = s.batch["advantages"], "multipliers" in s.batch, s.option("clip_eps", None)
    eps = s.batch["clip_range"][0].item() if "clip_range" in s.batch else eps
    weights = [A, (A - A.mean()) / A.std()]
    if of_vmpo:
        better = A >= A.topk(len(A) // 2).values.min()  # torch's median would let in one row more
        weights = [torch.softmax(torch.where(better, A / s.batch["multipliers"][0], -math.inf), 0)]
    ratio = lambda log_probs: torch.exp(log_probs - s.batch["old_log_probs"])
    terms = [lambda x, A: ratio(x) * A, lambda x, A: x * A]
    if eps is not None:
        terms = [lambda x, A: torch.minimum(ratio(x) * A, ratio(x).clamp(1 - eps, 1 + eps) * A)]
    share = lambda policy: ((ratio(log_prob(policy)) - 1).abs() > (eps or 0.2)).float().mean().item()
    log_prob = lambda policy: policy(s.batch["obs"]).log_prob(s.batch["actions"])
    far = moved(s.state.policy, lambda x: share(x) > 0.2)
    for policy in [s.state.policy, *([far] if share(far) > 0.2 and not of_vmpo else [])]:
        where = f"with {percent(share(policy))} of the ratios outside the band"
        text = f"The gradient of -policy_loss is not that of the surrogate {where}."
        expected = [gradient(term(log_prob(policy), x).mean(), policy) for term in terms for x in weights]
        found = one_of(policy_gradient(s, policy), expected, text, f" {where}")
        if found.status == BAD:
            break
    return found


@check("the value loss is a squared error, clipped as the arguments say", "value_loss")
def value_loss(s: Script) -> Verdict | None:
    """At the values before the fit, the gradient of value_loss has a cosine of 0.9999 or more with that of the mean
    squared error. So it has where a fifth of the values have moved by more than value_clip_eps; with --value-clip this
    is the larger of the clipped and the unclipped error."""
    if not s.critic:
        return None
    old, targets, eps = s.batch["old_values"], s.batch["value_targets"], s.option("value_clip_eps", 0.2)
    far = moved(s.critic, lambda x: ((x(s.batch["obs"]) - old).abs() > eps).float().mean() > 0.2)
    for network in [s.critic, *([far] if "clip_range" not in s.batch else [])]:
        values = network(s.batch["obs"])
        errors = (values - targets) ** 2
        if s.option("value_clip"):
            errors = torch.maximum(errors, (old + (values - old).clamp(-eps, eps) - targets) ** 2)
        mine = gradient(s.module.value_loss(s.args, network(s.batch["obs"]), s.batch), network)
        where = "once values have moved" if network is far else "before the fit"
        text = f"The gradient of its value loss is not that of the squared error {where}."
        found = one_of(mine, [gradient(errors.mean(), network)], text, f" {where}")
        if found.status == BAD:
            break
    return found


def flat(state: Any, *names: str) -> Tensor:
    return torch.cat([lab.flat_parameters(getattr(state, x)) for x in names if hasattr(state, x)])


@check("equal states give equal updates, which move every parameter", "update")
def equal_updates(s: Script) -> Verdict:
    """From an equal state an update is the same bit for bit; otherwise something outside the State is kept. It moves
    every tensor of a network's parameters, unless a line search refuses the whole step of a policy, or training has
    ended and its learning rate is 0."""
    (one, _), (again, _), wrong = s.an_update, s.updated(), []
    if not torch.equal(flat(one, "policy", "value"), flat(again, "policy", "value")):
        wrong.append("from an equal state it is another one, so something outside the State is kept")
    for name in [x for x in ("policy", "value") if hasattr(one, x) and has_step(s.checkpoint)]:
        pairs = zip(*(getattr(x, name).named_parameters() for x in (s.state, one)))
        still = [x for (x, old), (_, new) in pairs if torch.equal(old, new)]
        if still and (name == "value" or not s.option("max_kl") or (flat(one, name) != flat(s.state, name)).any()):
            wrong.append(f"{', '.join(still)} of the {name} network did not move")
    return verdict(wrong, f"Of an update: {'; '.join(wrong)}.", "two epochs")


@check("restore gives back what a checkpoint holds", "restore, save_checkpoint")
def restored(s: Script) -> Verdict:
    """After restore, every part of the State that the checkpoint has is the checkpoint's, bit for bit, and it has every
    part that can be saved: networks, statistics, Adam's moments and the counters."""
    checkpoint, state = s.module.load_checkpoint(s.checkpoint.path), s.module.State(s.args)
    checkpoint.pop("workers", None)  # whose unfinished episodes would be played again
    s.module.restore(state, checkpoint)
    parts = {x: y.state_dict() if hasattr(y, "state_dict") else y for x, y in vars(state).items()}
    parts = {x: tree_leaves(y) for x, y in parts.items() if x not in ("workers", "rng")}
    lost = [x for x, y in parts.items() if y and x not in checkpoint and all(map(torch.is_tensor, y))]
    theirs = {x: tree_leaves(checkpoint[x]) for x in parts if x in checkpoint}
    same = lambda x, y: len(x) == len(y) and all(np.array_equal(a, b) for a, b in zip(x, y))
    wrong = lost + [x for x in theirs if not same(parts[x], theirs[x])]
    return verdict(wrong, f"Not given back: {', '.join(wrong)}.", ", ".join(theirs))


@check("every epoch takes each row once, shuffled, in as many minibatches as the arguments say", "update, shuffle, fit")
def minibatches(s: Script) -> Verdict | None:
    """An update of two epochs calls each loss with num_minibatches minibatches an epoch. In each epoch every row comes
    once, but for the remainder that may be left out, and in another order."""
    told, wrong, count = [], [], s.option("num_minibatches", None)
    for name in [x for x in ("policy", "value") if hasattr(s.args, f"{x}_epochs") and count]:
        calls, loss = [], getattr(s.module, f"{name}_loss")
        spy = lambda args, x, batch, calls=calls, loss=loss: calls.append(batch["row"].tolist()) or loss(args, x, batch)
        setattr(s.module, f"{name}_loss", spy)
        try:
            s.updated(row=torch.arange(len(s.batch["obs"])))
        finally:
            setattr(s.module, f"{name}_loss", loss)
        one, two = epochs = [sum(calls[i : i + count], []) for i in (0, count)]
        told.append(f"{len(calls):,} steps of the {name} in two epochs of {count:,}")
        if len(calls) != 2 * count:
            wrong.append(told[-1])
        elif any(len(x) != len(set(x)) or len(x) != len(s.batch["obs"]) // count * count for x in epochs):
            wrong.append(f"the epochs of the {name} do not take each row once")
        elif one == two or one == sorted(one):
            wrong.append(f"those of the {name} are not shuffled")
    text = f"Its minibatches are not as the arguments say: {'; '.join(wrong)}."
    return verdict(wrong, text, ", ".join(told)) if told else None


@check("an update counts its steps, and logs the KL that it made", "update")
def logged(s: Script) -> Verdict:
    """An update counts one iteration and the steps of the batch, and the mean_kl that it logs, if any, is that of the
    whole batch, from the policy that acted, within 1 %."""
    (state, mine), kl = s.an_update, kls(s.an_update[0].policy, s.batch).mean().item()
    pairs = dict(mean_kl=(mine.get("mean_kl", kl), kl), iteration=(state.iteration - s.state.iteration, 1))
    pairs |= dict(global_step=(state.global_step - s.state.global_step, len(s.batch["obs"])))
    off = {name: (x, y) for name, (x, y) in pairs.items() if not abs(x - y) <= 0.01 * y + 1e-6}
    wrong = [f"{name} {x:.4g} in place of {y:.4g}" for name, (x, y) in off.items()]
    return verdict(wrong, f"An update does not say what it did: {'; '.join(wrong)}.", f"mean KL {short(kl)}")


@check("no network's fit sees the other's targets", "update")
def independent(s: Script) -> Verdict | None:
    """Other value targets leave the policy's update the same bit for bit, and other advantages the value network's."""
    if not s.critic or not hasattr(s.args, "value_lr"):
        return None  # one optimizer for both clips their norm together
    draw, wrong = torch.randn(len(s.batch["obs"]), generator=torch.Generator().manual_seed(1)), []
    for name, network in dict(value_targets="policy", advantages="value").items():
        other, _ = s.updated(**{name: s.batch[name] + s.batch[name].std() * draw})
        apart = (flat(other, network) - flat(s.an_update[0], network)).norm()
        share = apart / (flat(other, network) - flat(s.state, network)).norm().clamp(min=1e-30)
        wrong += [f"that of the {network} on the {name} (by {percent(share.item())})"] * bool(apart)
    text = f"A fit depends on the other's targets: {' and '.join(wrong)}. Is the batch made before both fits?"
    return verdict(wrong, text, "bit for bit")


@check("the steps inside updates are Adam's", "update, fit")
def adam(s: Script) -> Verdict | None:
    """In a new run that counts as a quarter done, three updates of four epochs of one minibatch end within 1 % of the
    way from where torch.optim.Adam ends along the script's losses (a healthy script: 0.003 %), with the rates of the
    arguments, annealed where these say so, and each network's gradient clipped where they say so (to a norm of 0.01
    here, so that the clip acts)."""
    args, new, data, _ = s.new
    names = [x for x in ("policy", "value") if {f"{x}_lr", f"{x}_epochs", "num_minibatches"} <= vars(args).keys()]
    names = [x for x in names if x == "value" or not hasattr(new, "multipliers")]  # these move with every step
    args = replace(args, max_grad_norm=0.01) if hasattr(args, "max_grad_norm") else args
    state, batch = copied(new), s.module.estimate_advantages(args, new, data)
    planned, size = planned_steps(dict(args=vars(args))), args.num_envs * args.num_steps
    state.iteration, state.global_step = planned // (4 * size), planned // (4 * size) * size
    once, taken, rates, thirds = copied(state), [], [], []
    for rows in torch.arange(len(batch["obs"]) // 3 * 3).chunk(3):
        thirds.append({name: x if name == "multipliers" else x[rows] for name, x in batch.items()})
        rates.append(1 - state.global_step / planned if s.option("anneal_lr") else 1)
        s.module.update(args, state, thirds[-1])
        taken.append(copied(state))
    s.module.update(replace(args, **{f"{x}_epochs": 1 for x in names}), once, thirds[0])
    where = ["after several", "after the first: gradients add up, or moments, clip or batch change"]
    where += ["at the first: rate, moments, gradient or batch are others"]
    wrong, told = [], []
    for x in names:
        ways = [adam_way(s, args, x, getattr(new, x), thirds, rates, eps) for eps in (1e-5, 1e-8)]
        mine = [flat(y, x) - flat(new, x) for y in (taken[2], taken[0], once)]
        off = min([((a - b).norm() / b.norm()).nan_to_num(math.inf).item() for a, b in zip(mine, way)] for way in ways)
        far = (mine[0].norm() / ways[0][0].norm()).item()
        told.append(f"the {x} went {far:.3g} times as far as Adam, and ended {percent(off[0])} of the way off")
        if off[0] > 0.01:
            wrong.append(f"those of the {x} {[y for y, z in zip(where, off) if z > 0.01][-1]}")
    return verdict(wrong, f"Steps part from Adam's, {'; '.join(wrong)}.", "; ".join(told)) if told else None


def adam_way(s: Script, args: Any, name: str, start: nn.Module, batches: list, rates: list, eps: float) -> list[Tensor]:
    """Returns how far torch.optim.Adam takes a network in twelve steps, in four, and in one."""
    network, ways, loss = copy.deepcopy(start), [], getattr(s.module, f"{name}_loss")
    # A script with one clip alone (TRPO+: the value network's; REINFORCE: the policy's) calls it grad_clip.
    of_value = name == "value" and hasattr(args, "value_grad_clip")
    clips = getattr(args, "value_grad_clip" if of_value else "grad_clip", True)
    most = getattr(args, "max_grad_norm", math.inf) if clips else math.inf
    optimizer = torch.optim.Adam(network.parameters(), eps=eps)
    for batch, rate in [(x, rate) for x, rate in zip(batches, rates) for _ in range(4)]:
        optimizer.param_groups[0]["lr"] = rate * getattr(args, f"{name}_lr")
        optimizer.zero_grad()
        loss(args, network(batch["obs"]), batch).backward()
        nn.utils.clip_grad_norm_(network.parameters(), most)
        optimizer.step()
        ways.append(lab.flat_parameters(network) - lab.flat_parameters(start))
    return [ways[11], ways[3], ways[0]]


@check("the policy's step is a natural gradient's", "natural_gradient_step, line_search")
def natural_step(s: Script) -> Verdict | None:
    """With Fisher products over all states and 100 steps of conjugate gradient, the step x of an update solves
    (F + damping) x = g up to its length: the cosine of both sides is 0.95 or more."""
    if not s.option("max_kl") or not hasattr(s.args, "cg_damping"):
        return None
    args, policy = s.with_options(fisher_fraction=1.0, cg_steps=100), s.state.policy
    step = flat(s.updated(args)[0], "policy") - flat(s.state, "policy")
    if not step.any():
        return None  # the line search refused it
    new, ps = policy(s.batch["obs"]), list(policy.parameters())
    old = Independent(Normal(new.mean.detach(), new.stddev.detach()), 1)
    slope = torch.autograd.grad(kl_divergence(old, new).mean(), ps, create_graph=True)
    product = gradient(torch.cat([x.flatten() for x in slope]) @ step, policy) + args.cg_damping * step
    found = cosine(product, gradient(-s.module.policy_loss(args, policy(s.batch["obs"]), s.batch), policy))
    return verdict(not found >= 0.95, "The policy's step is not a natural gradient's.", f"cosine {found:.3f}")
