"""What makes each algorithm the one it is, and what the eight scripts share."""

import ast
import dataclasses
import inspect
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ALGOS, ROOT, assert_same, checkpoints, contents, flags_of, flat, iterate, load, progress, start
from torch import nn
from torch.distributions import Independent, Normal
from torch.func import grad

CONTRACT = "State rollout estimate_advantages value_loss policy_loss update load_checkpoint restore".split()
# What may differ, in how many versions: PPO-M and TRPO lack the nine, REINFORCE a critic and unfinished episodes.
VERSIONS = dict(Args=8, State=6, Worker=3, value_loss=2, policy_loss=6, rollout=4, estimate_advantages=3, update=6)
VERSIONS |= dict(measure_update=3, restore=2, compiled_scan=2)
COMMON = "env_id total_timesteps seed num_envs num_steps num_minibatches gamma entropy_coef policy_hidden".split()
COMMON += "compile runs_dir run_name checkpoint_every".split()
# The reading order, of which each script has a part: everything stands where it is first called, down to the banner.
ORDER = """
Args train State Worker Policy mlp relu_mlp rollout normalize_obs scale_reward scale_reward_by_rewards RunningStats
estimate_advantages update fit_policy natural_gradient_step conjugate_gradient fisher_vector_product pi_with
mean_kl_from_old line_search value_loss policy_loss multiplier_loss best_rows decoupled_kl action_entropy shuffle fit
compiled_scan compiled_fisher_vector_product measure_update numpy_forward make_env ALGO MAY_DIFFER BadInput
check_arguments run_folder open_run write_config save_checkpoint load_checkpoint restore record main
""".split()
BANNER = "# Speed, statistics and bookkeeping: everything below can be skipped "


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
    found = [x for of_file in scripts.values() for x in of_file.items() if x[0] != "main"]
    sources = [source for _, source in found]
    assert [x for x in sources if sources.count(x) > 1] == []
    shared = scripts.pop("lab")
    assert [name for x in scripts.values() for name in x.keys() & shared.keys()] == []


@pytest.mark.parametrize("algo", ALGOS)
def test_contract_has_the_same_signatures_and_order_everywhere(algo):
    script, names = load(algo), list(definitions(ROOT / "algos" / f"{algo}.py"))
    for name in CONTRACT:
        if (algo, name) != ("reinforce", "value_loss"):
            ours, ppos = (inspect.signature(vars(x)[name]).parameters for x in (script, load("ppo")))
            assert list(ours) == list(ppos)
    assert names == [x for x in ORDER if x in names]
    banners = [line.rstrip("-") for line in inspect.getsource(script).splitlines() if line.endswith("--------")]
    assert banners == [BANNER]
    assert {field.name for field in dataclasses.fields(script.Args)}.issuperset(COMMON)


@pytest.mark.parametrize("algo", ALGOS)
def test_a_reader_never_has_to_look_up(algo):
    """Above the banner, a function's body names nothing that was defined before it, except for Worker."""
    source = (ROOT / "algos" / f"{algo}.py").read_text()
    parts = [x for x in ast.parse(source).body if isinstance(x, ast.FunctionDef | ast.ClassDef)]
    banner = source[: source.index(BANNER)].count("\n") + 1
    defined = {x.name: x.lineno for x in parts}
    for part in parts:
        bodies = [y for x in ast.walk(part) if isinstance(x, ast.FunctionDef) for y in x.body]  # without annotations
        names = {x.id for body in bodies for x in ast.walk(body) if isinstance(x, ast.Name)}
        upward = {x for x in names & defined.keys() if defined[x] < part.lineno < banner}
        assert upward <= {"Worker"}, (part.name, upward)


NINE_OFF = dict.fromkeys("value_clip reward_scale orthogonal_init anneal_lr reward_clip".split(), False)
NINE_OFF |= dict.fromkeys("obs_norm obs_clip tanh grad_clip".split(), False)
NOCLIP = dict(policy_lr=3e-4, value_lr=2e-4, gae_lambda=0.9, entropy_coef=0.01, value_clip=True)
NOCLIP |= dict(reward_clip_range=5.0, obs_clip_range=5.0, max_grad_norm=1.0)
# Two scripts, each with the settings in which they are the same.
TWINS = [
    ("ppo_m", {}, "ppo", NINE_OFF | dict(value_grad_clip=False, policy_lr=1.7e-4, value_lr=4e-4)),
    ("trpo", {}, "trpo_plus", NINE_OFF | dict(max_kl=0.13, max_kl_final=0.13, value_lr=2e-4)),
    ("ppo_noclip", NOCLIP, "ppo", NOCLIP | dict(clip_eps=1e32)),
]


@pytest.mark.parametrize(("a", "of_a", "b", "of_b"), TWINS, ids=lambda x: x if isinstance(x, str) else "")
def test_twins_have_the_same_parameters_and_progress(a, of_a, b, of_b, runs):
    for algo, settings in ((a, of_a), (b, of_b)):
        load(algo).main([*flags_of(algo, **settings), "--run-name", algo])
    last_a, last_b = (contents(checkpoints(runs / "runs" / algo)[-1]) for algo in (a, b))
    learned = [name for name in last_a if name.startswith(("policy", "value"))]  # networks and their Adams
    assert_same(*({name: last[name] for name in learned} for last in (last_a, last_b)))
    for row_a, row_b in zip(*(progress(runs / "runs" / algo) for algo in (a, b)), strict=True):
        common = [k for k in row_a if row_a[k] and row_b[k]]
        assert len(common) > 10 and [row_a[k] for k in common] == [row_b[k] for k in common]


# Algorithm, environment, iterations of 68 steps, largest error. An episode of Pendulum has 200 steps, so that one is
# unfinished at the checkpoint after 25 iterations. TRPO's conjugate gradient enlarges rounding: of seeds 1 to 20, the
# largest errors were 6e-10 on InvertedPendulum and 2e-4 on the clock.
MICRO = [
    ("ppo", "Hopper-v5", 3, 1e-6),
    ("ppo", "Pendulum-v1", 28, 1e-6),
    ("trpo", "InvertedPendulum-v5", 3, 1e-6),
    ("trpo", "environments:Clock-v0", 3, 1e-2),
]


@pytest.fixture
def in_float64():
    """What a script's source computes in float64, where rounding cannot grow to a difference."""
    torch.set_default_dtype(torch.float64)
    yield lambda source: source.replace("float32", "float64").replace(".float()", ".double()")
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("algo", "env_id", "iterations", "largest"), MICRO)
def test_micro_computes_the_same(algo, env_id, iterations, largest, in_float64, runs):
    """The largest difference of a parameter is small beside the largest change of one."""
    settings = dict(env_id=env_id, num_steps=68, total_timesteps=iterations * 68, value_lr=2.5e-3)
    settings |= dict(policy_lr=3e-3) if algo == "ppo" else {}
    ours = dict(__name__=algo, __file__=load(algo).__file__)
    exec(compile(in_float64((ROOT / "algos" / f"{algo}.py").read_text()), algo, "exec"), ours)
    ours["main"]([*flags_of(algo, **settings), "--run-name", "a"])
    first, last = (ours["load_checkpoint"](checkpoints(Path("runs/a"))[i]) for i in (0, -1))

    source = (ROOT / "algos" / f"micro_{algo}.py").read_text()
    changes = [("NUM_STEPS = 2048", "NUM_STEPS = 68"), ("NUM_MINIBATCHES = 32", "NUM_MINIBATCHES = 4")]
    changes += [("NUM_ITERATIONS = 488", f"NUM_ITERATIONS = {iterations}"), ("EPOCHS = 10", "EPOCHS = 2")]
    rates = ("= 3e-4, 2.5e-4", "= 3e-3, 2.5e-3") if algo == "ppo" else ("VALUE_LR = 2e-4", "VALUE_LR = 2.5e-3")
    for old, new in [("Hopper-v5", env_id), *changes, rates]:
        assert old in source
        source = source.replace(old, new)
    micro = {}
    exec(compile(in_float64(source), f"micro_{algo}", "exec"), micro)
    found = dict(policy=[micro["log_std"], *micro["policy_mean"].parameters()], value=micro["value"].parameters())
    for name, theirs in found.items():
        before, after = (torch.cat([p.ravel() for p in x[name].values()]) for x in (first, last))
        error = (after - nn.utils.parameters_to_vector(theirs)).abs().max()
        assert error < largest * (after - before).abs().max()


# TRPO


def test_rejected_line_search_leaves_the_policy_untouched():
    script, args, state = start("trpo")
    batch = script.estimate_advantages(args, state, script.rollout(args, state)[0])
    batch["advantages"].zero_()  # nothing to gain anywhere
    before = flat(state.policy)
    statistics = script.update(args, state, batch)
    assert statistics["line_search_step"] == statistics["cg_residual"] == 0.0
    assert torch.equal(flat(state.policy), before)


def test_line_search_takes_the_first_acceptable_fraction():
    script, start_at, step = load("trpo"), torch.zeros(1), torch.ones(1)
    cases = [  # surrogate, mean KL, expected fraction; slope 1, max_kl 1
        (lambda x: x.sum(), lambda x: 0.5 * x.sum(), 1.0),
        (lambda x: x.sum(), lambda x: 16 * x.sum(), 0.0625),
        (lambda x: x.sum() * (x < 0.6).all() - 1, lambda x: x.sum(), 0.5),
        (lambda x: 0.09 * x.sum(), lambda x: x.sum(), 0.0),
        (lambda x: -x.sum(), lambda x: x.sum(), 0.0),
    ]
    for surrogate, mean_kl, expected in cases:
        fractions = [0.5**k for k in range(10)]
        new, fraction = script.line_search(surrogate, mean_kl, 1.0, start_at, step, torch.tensor(1.0), fractions)
        assert fraction == expected and new.item() == expected


def test_kl_schedule_moves_linearly(monkeypatch):
    settings = dict(max_kl=0.02, max_kl_final=0.08, backtrack_ratio=0.8, backtrack_steps=3)
    script, args, state = start("trpo_plus", **settings)
    search, calls = script.line_search, []
    monkeypatch.setattr(script, "line_search", lambda *x: calls.append(x) or search(*x))
    for _ in range(3):
        *_, statistics = iterate(script, args, state)
        assert statistics["mean_kl"] <= calls[-1][2]
    assert [x[2] for x in calls] == pytest.approx([0.02, 0.04, 0.06])
    assert [*calls[0][-1]] == pytest.approx([1, 0.8, 0.64])


def test_the_kl_of_the_line_search_is_from_old_to_new():
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    found = load("trpo").mean_kl_from_old(Independent(Normal(zero, 2 * one), 1), dict(old_means=zero, old_stds=one))
    assert found.item() == pytest.approx(math.log(2) + 1 / 8 - 1 / 2)  # the other way round: 0.81


# V-MPO


@pytest.mark.parametrize("top_half", [True, False])
def test_vmpo_weights_and_temperature_solve_the_dual(top_half):
    """At the temperature that minimizes GUIDE's eq. 21, the weights are eps_temperature from uniform."""
    script, args, _ = start("vmpo", eps_temperature=0.1, top_half=top_half)
    torch.manual_seed(0)
    A = torch.randn(200, dtype=torch.float64)
    top = A.sort(descending=True).values[: 100 if top_half else 200].numpy()
    dual = lambda eta: eta * 0.1 + eta * math.log(np.mean(np.exp(top / eta)))
    best = min(np.geomspace(0.1, 10, 20_001), key=dual)

    zeros, ones = torch.zeros(200, 1), torch.ones(200, 1)
    batch = dict(advantages=A, old_means=zeros, old_stds=ones)
    loss = lambda m: script.multiplier_loss(args, m, Independent(Normal(zeros, ones), 1), batch)
    m = torch.tensor([best, 0.0, 0.0], dtype=torch.float64)
    assert loss(m).item() == pytest.approx(dual(best))
    assert abs(grad(loss)(m)[0]) < 1e-3 and grad(loss)(m * 0.8)[0] < 0 < grad(loss)(m * 1.2)[0]
    psi = torch.softmax(A[script.best_rows(args, A)] / best, 0)
    divergence = (psi * torch.log(psi * len(psi))).sum().item()  # KL(psi || uniform over these rows)
    assert divergence == pytest.approx(0.1, rel=1e-2)


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
    """Beyond eps the multiplier of the KL rises from where it starts; none falls below its bound."""
    script, args, state = start("vmpo", policy_lr=0.05, anneal_lr=False, init_multipliers=(1.0, 5.0, 1.0))
    assert state.multipliers.tolist() == [1.0, 5.0, 1.0]
    *_, statistics = iterate(script, args, state)
    assert statistics["mean_kl"] > args.eps_mean and statistics["nu_mean"] > 5.0
    assert torch.equal(state.multipliers, torch.tensor([statistics[k] for k in ("temperature", "nu_mean", "nu_std")]))
    fall = dict(policy_lr=0.9, eps_temperature=1e3, eps_mean=1e3, eps_std=1e3)
    for bound in (1e-8, 1e-3):
        script, args, state = start("vmpo", min_multiplier=bound, **fall)
        iterate(script, args, state)
        assert state.multipliers.min().item() == pytest.approx(bound)


# REINFORCE; A2C's gradient, beside REINFORCE's and PPO's, is in test_mathematics.py


@pytest.mark.parametrize("baseline", ["none", "mean"])
def test_reinforce_has_the_returns_of_whole_episodes(baseline):
    """Each rollout goes on to the end of the episode. That end is a time limit, which counts as an end."""
    settings = dict(num_envs=2, num_steps=13, gamma=0.5, baseline=baseline, reward_scale=False)
    script, args, state = start("reinforce", env_id="environments:Clock-v0", **settings)
    returns = np.array([3.5625, 5.125, 6.25, 6.5, 5.0])  # of rewards 1 to 5: 6.5 = 4 + 5 / 2, 6.25 = 3 + 6.5 / 2, ...
    for _ in range(2):
        steps, episodes = script.rollout(args, state)
        assert steps["ends"].tolist() == [False, False, False, False, True] * 6
        assert episodes == [(15.0, 5)] * 6
        noise = steps["actions"] - state.policy.mean(torch.from_numpy(steps["obs"])).detach().numpy()
        assert len(np.unique(noise.round(5), axis=0)) == 30  # also beyond num_steps
        batch = script.estimate_advantages(args, state, steps)
        center = returns.mean() if baseline == "mean" else 0.0
        np.testing.assert_allclose(batch["advantages"], [*(returns - center)] * 6, rtol=1e-5)
