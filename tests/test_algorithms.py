"""What makes each algorithm the one it is, and what the eight scripts share."""

import ast
import dataclasses
import inspect
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import (
    ALGOS,
    ROOT,
    assert_same,
    checkpoints,
    copied,
    flags_of,
    flat,
    iterate,
    load,
    output,
    parameters,
    progress,
    start,
)
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.func import grad, hessian

CONTRACT = "State rollout estimate_advantages value_loss policy_loss update load_checkpoint restore".split()
# What may differ, in how many versions: PPO-M and TRPO lack the nine, REINFORCE a critic and unfinished episodes.
VERSIONS = dict(Args=8, State=6, Worker=3, value_loss=2, policy_loss=8, rollout=4, estimate_advantages=3, update=7)
VERSIONS |= dict(restore=2)
COMMON = "env_id total_timesteps seed num_envs num_steps num_minibatches gamma entropy_coef policy_hidden".split()
COMMON += "compile runs_dir run_name checkpoint_every".split()
# The reading order. Networks and statistics precede the rollout that uses them.
PREPARED = "mlp relu_mlp Policy RunningStats normalize_obs scale_reward scale_reward_by_rewards make_env "
PREPARED += "make_unsquashed_env numpy_forward relu_forward"
ORDER = f"Args train value_loss policy_loss State Worker {PREPARED} rollout estimate_advantages update shuffle fit "
ORDER += "ALGO check_arguments run_folder open_run save_checkpoint load_checkpoint restore record main"
BANNER = "# Bookkeeping: everything below can be skipped "
NINE_OFF = dict.fromkeys("value_clip reward_scale orthogonal_init anneal_lr reward_clip".split(), False)
NINE_OFF |= dict.fromkeys("obs_norm obs_clip tanh grad_clip".split(), False)


def definitions(path):
    """Source text of each top-level function, class and constant, decorators included."""
    source = path.read_text()
    lines = source.splitlines()
    found = {}
    for x in ast.parse(source).body:
        if isinstance(x, ast.FunctionDef | ast.ClassDef):
            first = min([x.lineno, *(d.lineno for d in x.decorator_list)])
            found[x.name] = "\n".join(lines[first - 1 : x.end_lineno])
        elif isinstance(x, ast.Assign):
            found[ast.unparse(x.targets[0])] = "\n".join(lines[x.lineno - 1 : x.end_lineno])
    return found


def test_same_name_same_source():
    scripts = [definitions(ROOT / "algos" / f"{algo}.py") for algo in ALGOS]
    versions = {name: {x[name] for x in scripts if name in x} for names in scripts for name in names}
    assert {name: len(sources) for name, sources in versions.items() if len(sources) > 1} == VERSIONS


def test_what_the_diagnostics_share_is_written_once():
    scripts = {path.stem: definitions(path) for path in (ROOT / "diagnostics").glob("*.py")}
    shared = [definitions(path) for path in (ROOT / "diagnostics" / "measuring").glob("*.py")]
    found = [x for of_file in [*scripts.values(), *shared] for x in of_file.items() if x[0] not in ("Args", "check")]
    sources = [source for name, source in found if name != "main"]
    assert [x for x in sources if sources.count(x) > 1] == []
    names = {name for of_module in shared for name in of_module}
    assert [name for x in scripts.values() for name in x.keys() & names] == []


def test_contract_has_the_same_signatures_and_order_everywhere():
    for algo in ALGOS:
        script, names = load(algo), list(definitions(ROOT / "algos" / f"{algo}.py"))
        for name in CONTRACT:
            if name == "value_loss" and algo == "reinforce":
                continue
            ours, ppos = (inspect.signature(vars(x)[name]).parameters for x in (script, load("ppo")))
            assert list(ours) == list(ppos)
        assert [x for x in names if x in ORDER.split()] == [x for x in ORDER.split() if x in names]
        banners = [line.rstrip("-") for line in inspect.getsource(script).splitlines() if line.endswith("--------")]
        assert banners == [BANNER]
        assert {field.name for field in dataclasses.fields(script.Args)}.issuperset(COMMON)


def test_a_function_comes_after_the_one_that_first_calls_it():
    for algo in ALGOS:
        algorithm = {}  # without the bookkeeping, where names are looked up
        for name, source in definitions(ROOT / "algos" / f"{algo}.py").items():
            if name == "ALGO":
                break
            algorithm[name] = set(re.findall(r"\w+", re.sub(r'""".*?"""', "", source, flags=re.DOTALL)))
        first = {"Args", "train", *PREPARED.split()} | {x for x in algorithm if x.endswith("_loss")}  # for a reader
        for name in [x for x in algorithm if callable(getattr(load(algo), x)) and x not in first]:
            before = [x for x in algorithm if list(algorithm).index(x) < list(algorithm).index(name)]
            assert any(name in algorithm[x] for x in before), f"{algo}: {name} is called by nothing above it"


def run(algo, name, **settings):
    load(algo).main([*flags_of(algo, **settings), "--run-name", name])


def assert_same_run(folder, a, b):
    """The two finished runs have the same parameters, and the same values in the columns that both have."""
    assert_same(*(parameters(checkpoints(folder / "runs" / name)[-1]) for name in (a, b)))
    for row_a, row_b in zip(progress(folder / "runs" / a), progress(folder / "runs" / b), strict=True):
        common = [k for k in row_a if row_a[k] and row_b[k]]
        assert len(common) > 10 and [row_a[k] for k in common] == [row_b[k] for k in common]


def test_ppo_without_the_nine_is_ppo_m(runs):
    run("ppo_m", "a")
    run("ppo", "b", **NINE_OFF, value_grad_clip=False, policy_lr=1.7e-4, value_lr=4e-4)
    assert_same_run(runs, "a", "b")


def test_trpo_plus_without_the_nine_is_trpo(runs):
    run("trpo", "a")
    run("trpo_plus", "b", **NINE_OFF, max_kl=0.13, max_kl_final=0.13, value_lr=2e-4)
    assert_same_run(runs, "a", "b")


def test_ppo_with_a_huge_band_is_ppo_noclip(runs):
    settings = dict(policy_lr=3e-4, value_lr=2e-4, gae_lambda=0.9, entropy_coef=0.01, value_clip=True)
    settings |= dict(reward_clip_range=5.0, obs_clip_range=5.0, max_grad_norm=1.0)
    run("ppo_noclip", "a", **settings)
    run("ppo", "b", **settings, clip_eps=1e32)
    assert_same_run(runs, "a", "b")


# What a reader changes in micro_ppo.py to switch off an optimization, by its flag.
LINES = {
    "value_clip": ("(clipped - targets[rows]) ** 2)", "(values - targets[rows]) ** 2)"),
    "reward_scale": ("reward / (return_stats.std + 1e-8)", "reward"),
    "anneal_lr": (" * (1 - iteration / NUM_ITERATIONS)", ""),
    "reward_clip": ("min(max(reward, -10.0), 10.0)", "reward"),
    "obs_norm": ("(raw_obs - obs_stats.mean) / (obs_stats.std + 1e-8)", "raw_obs"),
    "obs_clip": ("obs.clip(-10, 10)", "obs"),
    "grad_clip": ("nn.utils.clip_grad_norm_([*policy_mean.parameters(), log_std], MAX_GRAD_NORM)", ""),
    "value_grad_clip": ("nn.utils.clip_grad_norm_(value.parameters(), MAX_GRAD_NORM)", ""),
}


def errors(algo, changes, float64=False, **settings):
    """Trains with algo.py and with micro_<algo>.py, whose source is changed. Returns the final state of the one, the
    names of the other, and, for the policy and for the value network, the largest difference of a parameter between
    the two as a fraction of the largest change of a parameter."""
    iterations = settings["total_timesteps"] // 68
    changes = [*changes, ('"Hopper-v5"', f'"{settings["env_id"]}"'), ("NUM_STEPS = 2048", "NUM_STEPS = 68")]
    changes += [
        ("NUM_MINIBATCHES = 32", "NUM_MINIBATCHES = 4"),
        ("NUM_ITERATIONS = 488", f"NUM_ITERATIONS = {iterations}"),
    ]
    changes += [("EPOCHS = 10", f"EPOCHS = {settings['value_epochs']}")]
    sources = [(ROOT / "algos" / f"{name}.py").read_text() for name in (algo, f"micro_{algo}")]
    for old, new in changes:
        assert old in sources[1]
        sources[1] = sources[1].replace(old, new)
    ours, micro = dict(__name__=algo, __file__=load(algo).__file__), {}
    if float64:
        sources = [x.replace("float32", "float64").replace(".float()", ".double()") for x in sources]
        torch.set_default_dtype(torch.float64)
    try:
        exec(compile(sources[0], algo, "exec"), ours)
        ours["main"]([*flags_of(algo, num_steps=68, **settings), "--run-name", str(float64)])
        exec(compile(sources[1], f"micro_{algo}", "exec"), micro)
        first, last = (ours["load_checkpoint"](checkpoints(Path("runs", str(float64)))[i]) for i in (0, -1))
        state = ours["State"](ours["Args"](**last["args"]))
        ours["restore"](state, last)
    finally:
        torch.set_default_dtype(torch.float32)
    found = dict(policy=[micro["log_std"], *micro["policy_mean"].parameters()], value=micro["value"].parameters())
    fractions = []
    for name, their_parameters in found.items():
        before, after = (torch.cat([p.ravel() for p in x[name].values()]) for x in (first, last))
        theirs = nn.utils.parameters_to_vector(their_parameters)
        fractions.append(((after - theirs).abs().max() / (after - before).abs().max()).item())
    return state, micro, fractions


OFF = ["", "value_clip anneal_lr obs_clip grad_clip", "reward_scale reward_clip obs_norm value_grad_clip"]


@pytest.mark.parametrize("off", OFF)
@pytest.mark.parametrize("env_id", ["Hopper-v5", "Pendulum-v1"])
def test_micro_ppo_is_ppo(env_id, off, runs):
    """After 3 iterations, within 1e-5 of the largest change of a parameter; 4e-6 was measured."""
    settings = dict(
        env_id=env_id, total_timesteps=3 * 68, policy_epochs=4, value_epochs=4, policy_lr=3e-3, value_lr=2.5e-3
    )
    changes = [LINES[flag] for flag in off.split()] + [("= 3e-4, 2.5e-4", "= 3e-3, 2.5e-3")]
    state, micro, fractions = errors("ppo", changes, **settings, **dict.fromkeys(off.split(), False))
    assert max(fractions) < 1e-5
    for ours, found in ((state.obs_stats, micro["obs_stats"]), (state.reward_stats, micro["return_stats"])):
        if ours.count:
            assert ours.count == found.count and np.asarray(found.mean).dtype == np.float64
            np.testing.assert_allclose((ours.mean, ours.std), (found.mean, found.std), rtol=1e-5)


def test_micro_ppo_is_ppo_beyond_a_checkpoint(runs):
    """In float64, since rounding may grow with the iterations; 3e-14 was measured after these 28. An episode has 200
    steps, so that one is unfinished at the checkpoint, after 25 * 68."""
    settings = dict(env_id="Pendulum-v1", total_timesteps=28 * 68, policy_epochs=2, value_epochs=2)
    assert max(errors("ppo", [], float64=True, **settings)[2]) < 1e-6
    assert checkpoints(runs / "runs" / "True")[1].name == "iter_000025.pt"


@pytest.mark.parametrize(("env_id", "bound"), [("InvertedPendulum-v5", 1e-6), ("environments:Clock-v0", 1e-2)])
def test_micro_trpo_is_trpo(env_id, bound, runs):
    """After one iteration in float32 and three in float64, where episodes end and where they meet a limit. Conjugate
    gradient enlarges rounding: of seeds 1 to 20, the largest errors were 1e-4 in float32, 6e-10 and 2e-4 in float64."""
    settings = dict(env_id=env_id, value_epochs=4, value_lr=2e-3)
    changes = [("VALUE_LR = 2e-4", "VALUE_LR = 2e-3")]
    assert max(errors("trpo", changes, total_timesteps=68, **settings)[2]) < 1e-2
    assert max(errors("trpo", changes, total_timesteps=3 * 68, float64=True, **settings)[2]) < bound


def surrogate_gradient(script, args, state, batch):
    """Gradient of what the policy maximizes, as one vector."""
    loss = lambda theta: script.policy_loss(args, output(state.policy, theta, batch["obs"]), batch)
    return -grad(loss)(flat(state.policy))


# TRPO


@pytest.fixture
def fisher():
    """A tiny TRPO state with its batch, and its explicit Fisher matrix: E[J^T M J], J the Jacobian of the Gaussian's
    means and standard deviations by the parameters, M = diag(1 / std^2, 2 / std^2) its Fisher matrix by those."""
    script, args, state = start("trpo", policy_hidden=(4,), num_steps=64)
    iterate(script, args, state)  # away from the symmetric start
    batch = script.estimate_advantages(args, state, script.rollout(args, state)[0])
    theta = flat(state.policy)

    def outputs(theta):
        pi = output(state.policy, theta, batch["obs"])
        return torch.stack([pi.mean, pi.stddev], -1)

    J = torch.func.jacrev(outputs)(theta)  # [B, action, 2, P]
    M = torch.stack([batch["old_stds"] ** -2, 2 * batch["old_stds"] ** -2], -1)
    return script, args, state, batch, theta, torch.einsum("baip,bai,baiq->pq", J, M, J) / len(J)


def test_fisher_vector_product_is_the_fisher_matrix_and_the_hessian_of_the_kl(fisher):
    script, _, state, batch, theta, F = fisher
    vector = torch.randn(len(theta), generator=torch.Generator().manual_seed(0))
    product = script.fisher_vector_product(state.policy, theta, vector, batch)
    mean_kl = lambda theta: script.mean_kl_from_old(output(state.policy, theta, batch["obs"]), batch)
    torch.testing.assert_close(product, F @ vector, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(product, hessian(mean_kl)(theta) @ vector, rtol=1e-3, atol=1e-4)


def test_conjugate_gradient_solves_the_explicit_system(fisher):
    script, args, state, batch, theta, F = fisher
    b = surrogate_gradient(script, args, state, batch)
    product = lambda v: script.fisher_vector_product(state.policy, theta, v, batch) + 0.1 * v
    x, residual = script.conjugate_gradient(product, b, 60)
    exact = torch.linalg.solve(F + 0.1 * torch.eye(len(b)), b)
    assert (x - exact).norm() < 1e-3 * exact.norm()
    assert residual.norm() < 1e-4 * b.norm()


def test_full_step_has_the_length_of_the_trust_region(fisher, monkeypatch):
    """sqrt(2 delta / x^T (F + damping) x) x, with x = (F + damping)^-1 g, the matrix explicit; F of a tenth."""
    script, args, state, batch, theta, F = fisher
    steps, sizes, product = [], [], script.fisher_vector_product

    def line_search(surrogate, mean_kl, max_kl, start_at, step, *_):
        steps.append(step)
        return start_at, 0.0

    def watched(policy, parameters, vector, batch):
        sizes.append(len(batch["obs"]))
        return product(policy, parameters, vector, batch)

    monkeypatch.setattr(script, "line_search", line_search)
    monkeypatch.setattr(script, "fisher_vector_product", watched)
    g = surrogate_gradient(script, args, state, batch)
    x = torch.linalg.solve(F + 0.1 * torch.eye(len(g)), g)
    exact = dataclasses.replace(args, fisher_fraction=1.0, cg_steps=60)
    script.natural_gradient_step(exact, state.rng, state.policy, batch, 0.02)
    torch.testing.assert_close(steps[0], math.sqrt(2 * 0.02 / (g @ x)) * x, rtol=1e-2, atol=1e-4)
    script.natural_gradient_step(args, state.rng, state.policy, batch, 0.02)
    assert set(sizes) == {64, 7}  # rounded up


@pytest.mark.parametrize("algo", ["trpo", "trpo_plus"])
def test_accepted_steps_keep_the_trust_region_and_raise_the_surrogate(algo):
    script, args, state = start(algo, num_steps=512, total_timesteps=8 * 512)
    accepted = 0
    for _ in range(8):
        old = copied(state).policy
        _, batch, statistics = iterate(script, args, state)
        before, now = (script.policy_loss(args, policy(batch["obs"]), batch) for policy in (old, state.policy))
        if statistics["line_search_step"]:
            accepted += 1
            assert 0 < statistics["mean_kl"] <= args.max_kl and now < before
            assert statistics["mean_kl"] > 0.1 * args.max_kl * statistics["line_search_step"] ** 2  # and uses it
        else:
            assert torch.equal(flat(old), flat(state.policy))
    assert accepted >= 6


def test_rejected_line_search_leaves_the_policy_untouched():
    script, args, state = start("trpo")
    batch = script.estimate_advantages(args, state, script.rollout(args, state)[0])
    batch["advantages"].zero_()  # nothing to gain anywhere
    before = copied(state)
    statistics = script.update(args, state, batch)
    assert statistics["line_search_step"] == statistics["cg_residual"] == 0.0
    assert torch.equal(flat(state.policy), flat(before.policy))
    assert not torch.equal(flat(state.value), flat(before.value))


def test_line_search_takes_the_first_acceptable_fraction():
    script, start_at, step = load("trpo"), torch.zeros(1), torch.ones(1)
    cases = [  # surrogate, mean KL, expected fraction; slope 1, max_kl 1
        (lambda x: x.sum(), lambda x: 0.5 * x.sum(), 1.0),
        (lambda x: x.sum(), lambda x: 3 * x.sum(), 0.25),
        (lambda x: x.sum() * (x < 0.6).all() - 1, lambda x: x.sum(), 0.5),
        (lambda x: 0.09 * x.sum(), lambda x: x.sum(), 0.0),
        (lambda x: -x.sum(), lambda x: x.sum(), 0.0),
    ]
    for surrogate, mean_kl, expected in cases:
        fractions = [0.5**k for k in range(10)]
        new, fraction = script.line_search(surrogate, mean_kl, 1.0, start_at, step, torch.tensor(1.0), fractions)
        assert fraction == expected and new.item() == expected


def test_kl_schedule_moves_linearly(monkeypatch):
    script, args, state = start("trpo_plus", max_kl=0.02, max_kl_final=0.08, num_steps=256, total_timesteps=3 * 256)
    line_search, bounds, lengths = script.line_search, [], []

    def watched(surrogate, mean_kl, max_kl, start_at, step, *rest):
        bounds.append(max_kl)
        lengths.append(mean_kl(start_at + step).item())  # of the full step, to second order max_kl
        return line_search(surrogate, mean_kl, max_kl, start_at, step, *rest)

    monkeypatch.setattr(script, "line_search", watched)
    for _ in range(3):
        iterate(script, args, state)
    assert bounds == pytest.approx([0.02, 0.04, 0.06])
    assert lengths[0] < lengths[1] < lengths[2]


# V-MPO


def test_vmpo_weights_and_temperature_solve_the_dual():
    script, args, _ = start("vmpo", eps_temperature=0.1)
    torch.manual_seed(0)
    A = torch.randn(200, dtype=torch.float64)
    top = A.sort(descending=True).values[:100].numpy()

    def dual(eta):
        return eta * 0.1 + eta * math.log(np.mean(np.exp(top / eta)))

    grid = np.geomspace(0.01, 100, 200_001)
    best = grid[np.argmin([dual(eta) for eta in grid])]
    zeros, ones = torch.zeros(200, 1), torch.ones(200, 1)
    batch = dict(advantages=A, old_means=zeros, old_stds=ones)
    loss = lambda m: script.multiplier_loss(args, m, Independent(Normal(zeros, ones), 1), batch)
    m = torch.tensor([best, 0.0, 0.0], dtype=torch.float64)
    assert loss(m).item() == pytest.approx(dual(best))
    assert abs(grad(loss)(m)[0]) < 1e-4 and grad(loss)(m * 0.8)[0] < 0 < grad(loss)(m * 1.2)[0]

    rows = script.best_half(A)
    assert sorted(rows.tolist()) == (A >= top[-1]).nonzero().flatten().tolist()
    psi = torch.softmax(A[rows] / best, 0)
    divergence = (psi * torch.log(psi * 100)).sum().item()  # KL(psi || uniform over the half)
    assert divergence == pytest.approx(0.1, rel=1e-3)


def test_decoupled_kl_adds_up_where_one_part_is_zero():
    script = load("vmpo")
    torch.manual_seed(0)
    means, stds, other_means, other_stds = torch.randn(4, 9, 3)
    stds, other_stds = stds.exp(), other_stds.exp()
    batch = dict(old_means=means, old_stds=stds)
    gaussian = lambda means, stds: Independent(Normal(means, stds), 1)
    for new in (gaussian(other_means, stds), gaussian(means, other_stds)):
        torch.testing.assert_close(
            sum(script.decoupled_kl(new, batch)), kl_divergence(gaussian(means, stds), new).mean()
        )
    mean_part, std_part = script.decoupled_kl(gaussian(other_means, other_stds), batch)
    torch.testing.assert_close(mean_part, 0.5 * ((other_means - means) ** 2 / stds**2).sum(-1).mean())
    expected = 0.5 * (stds**2 / other_stds**2 - 1 + 2 * torch.log(other_stds / stds)).sum(-1)
    torch.testing.assert_close(std_part, expected.mean())


def test_vmpo_loss_is_that_of_algorithm_8():
    """Weighted likelihood of the better half, the prices of both KLs; the multipliers' gradients are eps - KL."""
    script, args, state = start("vmpo", policy_lr=0.05)
    _, batch, _ = iterate(script, args, state)  # which moves the policy away from the batch's
    temperature, nu_mean, nu_std = multipliers = torch.tensor([0.7, 2.0, 30.0])
    new, old_means, old_stds = state.policy(batch["obs"]), batch["old_means"], batch["old_stds"]
    kl_mean = ((new.mean - old_means) ** 2 / (2 * old_stds**2)).sum(1).mean()
    kl_std = (torch.log(new.stddev / old_stds) + old_stds**2 / (2 * new.stddev**2) - 0.5).sum(1).mean()
    top = batch["advantages"].argsort(descending=True)[: len(batch["advantages"]) // 2]
    weights = torch.softmax(batch["advantages"][top] / temperature, 0)
    likelihood = (weights * new.log_prob(batch["actions"])[top]).sum()
    found = script.policy_loss(args, new, batch | dict(multipliers=multipliers))
    torch.testing.assert_close(found, nu_mean * kl_mean + nu_std * kl_std - likelihood)
    assert nu_mean * kl_mean > 0.01 and nu_std * kl_std > 0.01 and (kl_mean / kl_std - 1).abs() > 0.1

    gradient = grad(lambda multipliers: script.multiplier_loss(args, multipliers, new, batch))(multipliers)
    torch.testing.assert_close(gradient[1:], torch.stack([args.eps_mean - kl_mean, args.eps_std - kl_std]))


def test_vmpo_is_held_to_the_policy_that_collected_the_batch():
    """After a first step the KL term has a gradient, and its multipliers answer to it; none falls below 1e-8."""
    script, args, state = start("vmpo", policy_lr=0.05, anneal_lr=False)
    _, batch, statistics = iterate(script, args, state)
    priced, free = (batch | dict(multipliers=torch.tensor([1.0, nu, nu])) for nu in (1.0, 0.0))
    gradients = [surrogate_gradient(script, args, state, x) for x in (priced, free)]
    assert (gradients[0] - gradients[1]).norm() > 1e-3
    assert statistics["mean_kl"] > args.eps_mean and statistics["nu_mean"] > 1.0  # beyond eps the multiplier rises
    assert torch.equal(state.multipliers, torch.tensor([statistics[k] for k in ("temperature", "nu_mean", "nu_std")]))
    script, args, state = start("vmpo", policy_lr=0.9, eps_temperature=1e3, eps_mean=1e3, eps_std=1e3)
    iterate(script, args, state)
    assert (state.multipliers == 1e-8).any() and (state.multipliers >= 1e-8).all()


# REINFORCE and A2C


@pytest.mark.parametrize("baseline", ["none", "mean"])
def test_reinforce_has_the_score_function_gradient(baseline):
    """Two episodes by hand: 2 steps and 3 steps; the second ends by its time limit, which counts as an end."""
    script, args, state = start("reinforce", gamma=0.5, baseline=baseline)
    rng = np.random.default_rng(0)
    obs, actions = rng.normal(size=(5, 11)).astype(np.float32), rng.normal(size=(5, 3)).astype(np.float32)
    steps = dict(obs=obs, actions=actions, rewards=np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    batch = script.estimate_advantages(args, state, steps | dict(ends=np.array([0, 1, 0, 0, 1], bool)))
    returns = torch.tensor([1 + 0.5 * 2, 2, 3 + 0.5 * 4 + 0.25 * 5, 4 + 0.5 * 5, 5.0])
    weights = returns - returns.mean() if baseline == "mean" else returns
    ours = surrogate_gradient(script, args, state, batch)

    reference = torch.zeros_like(ours)
    for i in range(5):
        means, stds = state.policy.mean(torch.from_numpy(obs[i])), state.policy.log_std.exp()
        score = Normal(means, stds).log_prob(torch.from_numpy(actions[i])).sum()
        parts = torch.autograd.grad(score, list(state.policy.parameters()))
        reference += weights[i] * torch.cat([x.ravel() for x in parts]) / 5
    torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


def test_reinforce_collects_whole_episodes():
    script, args, state = start("reinforce", num_envs=2, num_steps=13, env_id="environments:Clock-v0")
    for _ in range(2):
        steps, episodes = script.rollout(args, state)
        assert steps["ends"].tolist() == [False, False, False, False, True] * 6
        assert episodes == [(15.0, 5)] * 6
        assert [worker.obs for worker in state.workers] == [None, None]


def test_a2c_with_lambda_1_has_the_n_step_estimate():
    """GUIDE eq. 14: the rewards up to the end of the episode or of the rollout, plus the value there, minus V(s)."""
    script, args, state = start("a2c", gae_lambda=1.0, gamma=0.9, num_steps=64, num_envs=2)
    steps, _ = script.rollout(args, state)
    batch = script.estimate_advantages(args, state, steps)
    ends = np.flatnonzero(steps["ends"])
    bootstrap = {t: steps["next_obs"][t] for t in ends if not steps["terminations"][t]}
    assert steps["terminations"].any() and len(bootstrap) >= 2
    for t in range(128):
        end = ends[ends >= t][0]
        estimate = sum(0.9 ** (k - t) * steps["rewards"][k] for k in range(t, end + 1))
        if end in bootstrap:
            estimate += 0.9 ** (end + 1 - t) * state.value(torch.from_numpy(bootstrap[end])[None]).item()
        assert batch["value_targets"][t].item() == pytest.approx(estimate, abs=1e-4)
        assert batch["advantages"][t].item() == pytest.approx(estimate - batch["old_values"][t].item(), abs=1e-4)


def test_a2c_has_the_score_function_gradient_of_normalized_advantages():
    script, args, state = start("a2c", entropy_coef=0.02)
    batch = script.estimate_advantages(args, state, script.rollout(args, state)[0])
    ours = surrogate_gradient(script, args, state, batch)
    A = batch["advantages"]
    gaussian = Normal(state.policy.mean(batch["obs"]), state.policy.log_std.exp())
    surrogate = (gaussian.log_prob(batch["actions"]).sum(-1) * (A - A.mean()) / A.std()).mean()
    parts = torch.autograd.grad(surrogate + 0.02 * gaussian.entropy().sum(-1).mean(), list(state.policy.parameters()))
    torch.testing.assert_close(ours, torch.cat([x.ravel() for x in parts]), rtol=1e-4, atol=1e-6)
