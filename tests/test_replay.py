"""Replay: training's bits, known rewards, a planted fall, and what is said where a replay is not exact."""

import contextlib
import shutil
from unittest.mock import patch

import measuring.intervals
import measuring.kept
import measuring.runs
import measuring.sampling
import numpy as np
import pytest
import torch
from conftest import ALGOS, FEW, RAW, ROOT, flags_of, iterate, load, progress, start
from environments import Chain
from test_diagnostics import older
from torch.distributions import kl_divergence

RATE = "policy_lr, policy_norm = args.policy_lr * lr_fraction"
PLANTED = 3


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A run on Chain of a script whose policy learns a hundred times as fast in one iteration, and the script."""
    folder = tmp_path_factory.mktemp("runs")
    source = (ROOT / "algos" / "ppo.py").read_text()
    assert source.count(RATE) == 1
    mine = folder / "my_ppo.py"
    mine.write_text(source.replace(RATE, f"{RATE} * (100 if state.iteration == {PLANTED} else 1)"))
    chain = RAW | dict(env_id="environments:Chain-v0", total_timesteps=768, num_steps=128, policy_lr=0.001)
    flags = flags_of("ppo", run_name="chain", runs_dir=str(folder), checkpoint_every=1, **chain)
    measuring.runs.load_script(mine).main(flags)
    return folder


def replay(run, first, last, out, *flags, episodes=3, draws=False):
    """Cells of a call; without its figure, which takes most of its time."""
    span = f"--from {first} --to {last} --episodes {episodes} --jobs 1".split()
    with contextlib.nullcontext() if draws else patch.object(load("replay"), "draw_updates"):
        load("replay").main([str(run), *span, *flags, "--out", str(out)])
    return measuring.kept.read_cells(out / "replay.jsonl")


def checkpoint(run, iteration):
    return torch.load(run / "checkpoints" / f"iter_{iteration:06d}.pt", weights_only=True)


def exact_reward(state):
    """Expected return of Chain's episode."""
    pi = state.policy(torch.eye(4))
    return sum(Chain.rewards) - ((pi.mean - torch.tensor(Chain.TARGET)) ** 2 + pi.variance).sum().item()


def test_planted_update_is_found_at_its_iteration_with_the_exact_rewards(planted, tmp_path, capsys):
    script = ["--script", str(planted / "my_ppo.py")]
    cells = replay(planted / "chain", 0, 6, tmp_path, *script, episodes=40, draws=True)
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("update ")]
    assert len(lines) == 1 and lines[0].startswith(f"update {PLANTED}: promised "), out
    found = cells[PLANTED]
    place = f"in one state (pair {found['max_kl_pair']}, step {found['max_kl_step']} of its episode)"
    assert place in lines[0] and f"mean {found['mean_kl']:.2g}" in lines[0]
    assert found["statistics"]["policy_lr"] == pytest.approx(100 * 0.001 * 0.5)
    assert [cell["unlike_checkpoint"] for cell in cells] == [[]] * 6
    with torch.no_grad():
        sources = [measuring.runs.Source(planted / "my_ppo.py", planted / "chain", i) for i in range(7)]
        exact = [exact_reward(measuring.sampling.checkpoint_state(source)[2]) for source in sources]
    for i, cell in enumerate(cells):
        before, after = load("replay").returns_of(cell)
        for returns, expected in ((before, exact[i]), (after, exact[i + 1]), (after - before, exact[i + 1] - exact[i])):
            assert abs(returns.mean() - expected) < 4 * returns.std() / 40**0.5 + 1e-4
        assert cell["before"]["lengths"] == cell["after"]["lengths"] == [4.0] * 40
    for suffix in ("png", "pdf"):
        assert (tmp_path / f"replay.{suffix}").stat().st_size > 5000


@pytest.mark.parametrize("algo", ALGOS)
def test_replay_is_training_to_the_bit(known, tmp_path, algo, capsys):
    cells = replay(known / f"few_{algo}", 1, 3, tmp_path)
    out = capsys.readouterr().out
    rows = progress(known / f"few_{algo}")
    for i, cell in enumerate(cells, 1):
        assert (cell["iteration"], cell["next_checkpoint"], cell["unlike_checkpoint"]) == (i, i + 1, [])
        assert cell["unlike_progress"] == []
        for name in ("mean_kl", "max_kl", "max_ratio"):
            assert str(cell[name]) == rows[i][name]
        if "explained_variance" in rows[i]:
            assert cell["explained_variance"][0] == pytest.approx(float(rows[i]["explained_variance"]))
        assert ("explained_variance" in cell) == ("value_gradient" in cell) == (algo != "reinforce")
        assert np.mean(cell["training_episodes"], 0)[0] == pytest.approx(float(rows[i]["episodic_return"]))
    assert out.count("arrives at the same state, bit for bit") == 2 and "repeats it, to the last digit" in out


def test_an_older_run_began_episodes_after_its_checkpoints_and_so_does_its_replay(tmp_path, capsys):
    """Those of the Pendulum have 200 steps, so iterations of 64 leave them unfinished."""
    settings = FEW | dict(env_id="Pendulum-v1", checkpoint_every=2, runs_dir=str(tmp_path), run_name="new")
    script, args, state = start("ppo", **settings | dict(total_timesteps=5 * 128))
    (tmp_path / "new" / "checkpoints").mkdir(parents=True)
    script.write_config(args, tmp_path / "new")
    for i in range(5):
        if i % 2 == 0:
            script.save_checkpoint(args, tmp_path / "new", state)
            state.workers = script.State(args).workers
        iterate(script, args, state)
    assert all(len(worker.actions) == 64 for worker in state.workers)
    script.save_checkpoint(args, tmp_path / "new", state)
    cells = replay(older(tmp_path / "new", tmp_path / "old"), 1, 5, tmp_path / "out")
    assert [cell["unlike_checkpoint"] for cell in cells] == [[]] * 4
    assert [cell["next_checkpoint"] for cell in cells] == [2, 4, 4, 5]
    replay(tmp_path / "new", 1, 5, tmp_path / "out")  # as if its episodes had gone on
    assert "iter_000004.pt: the replay differs from it" in capsys.readouterr().out


def test_quantities_by_hand(known, tmp_path):
    [cell] = replay(known / "few_ppo", 1, 2, tmp_path)
    source = measuring.runs.Source(ROOT / "algos" / "ppo.py", known / "few_ppo", 1)
    script, settings, _ = measuring.sampling.checkpoint_state(source)
    before, after, _, experience, batch = measuring.sampling.next_iteration(source)
    kls = kl_divergence(before.policy(batch["obs"]), after.policy(batch["obs"])).detach()
    assert cell["max_kl_pair"] == kls.argmax() and cell["max_kl"] == kls.max()
    assert cell["stds"] == pytest.approx(after.policy.log_std.exp().tolist())
    losses = [script.policy_loss(settings, x.policy(batch["obs"]), batch) for x in (before, after)]
    assert cell["promised"] == losses[0].item() - losses[1].item()
    losses[0].backward()
    norm = sum((p.grad**2).sum() for p in before.policy.parameters()) ** 0.5
    assert cell["policy_gradient"] == pytest.approx(norm.item(), rel=1e-5)
    targets = batch["value_targets"]
    left = ((targets - after.value(batch["obs"])).var() / targets.var()).item()
    assert cell["explained_variance"][1] == pytest.approx(1 - left, abs=1e-6)
    (old, new), found = (checkpoint(known / "few_ppo", i)["obs_stats"] for i in (1, 2)), cell["drift"]["obs_stats"]
    std_old, std_new = ((np.array(x["sum_sq"]) / (x["count"] - 1)) ** 0.5 for x in (old, new))
    drift = (np.array(new["mean"]) - old["mean"]) / std_old
    assert found["mean"] == pytest.approx(np.abs(drift).max(), rel=1e-6)
    assert found["std"] == pytest.approx(np.abs(std_new / std_old - 1).max(), rel=1e-6)


def test_step_of_the_episode_continues_from_the_last_rollout_of_each_worker():
    ends = np.zeros(10, bool)
    ends[[1, 4, 9]] = True  # two workers of 5 steps; the first one's episode ends within
    experience = dict(obs=np.zeros((10, 1)), terminations=ends & (np.arange(10) == 1), ends=ends)
    assert load("replay").episode_steps(experience, 5, [7, 2]) == [8, 9, 1, 2, 3, 3, 4, 5, 6, 7]


def test_both_policies_act_with_the_normalizers_of_the_next_iteration(known, tmp_path):
    [cell] = replay(known / "few_ppo", 1, 2, tmp_path)
    next_one = measuring.runs.Source(ROOT / "algos" / "ppo.py", known / "few_ppo", 2)
    for when, i in (("before", 1), ("after", 2)):
        policy = measuring.sampling.checkpoint_state(next_one._replace(iteration=i))[2].policy
        episodes = measuring.sampling.play_seeds(next_one, (0,), 0, 3, measuring.sampling.flat_parameters(policy))
        assert cell[when]["returns"] == [x for x, _ in episodes]


def test_interval_is_corrected_for_the_number_of_updates():
    before, after = np.array([0.0, 10.0, 20.0, 30.0]), np.array([-1.0, 7.0, 19.0, 27.0])
    error = (4 / 3) ** 0.5 / 2  # differences -1 -3 -1 -3
    for updates, t in ((1, 3.1824463), (5, 5.8409093), (25, 10.2145)):  # Student's, 3 degrees of freedom, 1 - 0.025 / n
        found = measuring.intervals.paired_change(before, after, updates)
        ends = found["mean"], *found["interval"]
        assert ends == pytest.approx((-2, -2 - t * error, -2 + t * error), rel=1e-4)
        assert found["visible"] == pytest.approx((t + 0.9784723) * error, rel=1e-4)


def test_a_wider_range_keeps_what_is_measured_and_equals_a_new_one(known, tmp_path):
    narrow = replay(known / "few_ppo", 1, 2, tmp_path / "kept")
    wide = replay(known / "few_ppo", 0, 3, tmp_path / "kept")
    assert wide[0] == narrow[0] and [cell["iteration"] for cell in wide] == [1, 0, 2]
    assert replay(known / "few_ppo", 0, 3, tmp_path / "new") == sorted(wide, key=lambda cell: cell["iteration"])


def test_what_is_not_as_it_was_is_said(known, tmp_path, capsys):
    run = tmp_path / "ppo"
    shutil.copytree(known / "few_ppo", run)
    changed = checkpoint(run, 2)
    changed["value_adam"][0][5] += 1e-6
    torch.save(changed, run / "checkpoints" / "iter_000002.pt")
    text = (run / "progress.csv").read_text()
    kl = progress(run)[1]["mean_kl"]
    (run / "progress.csv").write_text(text.replace(kl, kl[:-1] + ("1" if kl[-1] == "2" else "2")))
    cells = replay(run, 1, 3, tmp_path / "out")
    out = capsys.readouterr().out
    assert "iter_000002.pt: the replay differs from it in value_adam\n" in out
    assert [cell["unlike_progress"] for cell in cells][0] == ["mean_kl"] and "mean_kl of iteration 1" in out
    # It continued from the changed checkpoint, so the one after is not what follows from it.
    assert cells[1]["unlike_checkpoint"] and cells[1]["checkpoint_iteration"] == 2


def test_no_fall_says_how_large_a_one_would_have_been_seen(capsys):
    rng, cells = np.random.default_rng(0), []
    for i in range(4):
        before = rng.normal(100, 10, 30)
        after = before + rng.normal(0, 1, 30)
        lengths = dict(lengths=[1] * 30)
        cell = dict(iteration=i, promised=0.1, max_kl=1.0, max_kl_pair=2, max_kl_step=3, mean_kl=0.1, drift={})
        cells.append(cell | {k: dict(returns=x.tolist()) | lengths for k, x in (("before", before), ("after", after))})
    module = load("replay")
    changes, moves = module.find_changes(cells)
    first, second, _ = module.verdicts(cells, changes, moves)
    assert first.startswith("no update lowered the reward significantly and by more than 5 %; with 30 episodes, ")
    visible = np.median([change["visible"] for change in changes])
    assert f"a fall of {visible:.3g} would be detected with probability 0.8" in first and 0.5 < visible < 0.9
    # Falls of that size are seen in four of five repeats.
    x = rng.normal(-visible, 1, (4000, 30))
    seen = [measuring.intervals.paired_change(np.zeros(30), y, 7)["interval"][1] < 0 for y in x[:1500]]
    assert np.mean(seen) == pytest.approx(0.8, abs=0.1)
    assert second.startswith("the lowest change: update ")


def test_what_happens_between_two_updates_gets_its_line():
    """The returns of seeds before and after three updates; before the third, the normalizers spoil all of them."""
    module, noise = load("replay"), np.random.default_rng(0).normal(0, 1, (6, 30))
    levels = [100, 101, 101, 102, 40, 41]
    cells = []
    for i, kl in enumerate((0.01, 0.2, 0.012)):
        returns = [(levels[2 * i + k] + noise[2 * i + k]).tolist() for k in (0, 1)]
        cell = dict(iteration=i, promised=0.1, max_kl=1.0, max_kl_pair=2, max_kl_step=3, mean_kl=kl)
        cell |= dict(zip(("before", "after"), (dict(returns=x, lengths=[1] * 30) for x in returns)))
        cells.append(cell | dict(drift=dict(obs_stats=dict(mean=3.21, std=0.1))))
    changes, moves = module.find_changes(cells)
    x = np.array(cells[2]["before"]["returns"]) - cells[1]["after"]["returns"]
    half = 2.7564 * x.std(ddof=1) / 30**0.5  # Student's t, 29 degrees of freedom, 1 - 0.025 / 5: of five looks
    assert moves[1]["interval"] == pytest.approx([x.mean() - half, x.mean() + half], rel=1e-4)
    first, second, last = module.verdicts(cells, changes, moves)
    assert first.startswith(
        "before update 2 the normalizers moved (the mean of an observation by 3.2 standard deviations)"
    )
    assert "reward 102 -> 40" in first
    harmless = "update 1 went far, but did not lower the reward significantly and by more than 5 %"
    assert second == f"{harmless}: mean KL 0.2, 17 times the median"
    assert last.startswith("all 3, ")


@pytest.mark.parametrize("level", (100, -1000))
def test_a_significant_trifle_gets_no_line(level):
    """Three updates lower the reward by 4, 6 and 0 %, each far beyond its noise; the normalizers do nothing."""
    module, noise = load("replay"), np.random.default_rng(0).normal(0, 0.1, (6, 30))
    before = [level, level - 0.04 * abs(level), level - 0.1 * abs(level)]
    after = [*before[1:], before[2]]
    cells = []
    for i in range(3):
        cell = dict(iteration=i, promised=0.1, max_kl=1.0, max_kl_pair=2, max_kl_step=3, mean_kl=0.1, drift={})
        returns = before[i] + noise[2 * i], after[i] + noise[2 * i + 1]
        cells.append(cell | {when: dict(returns=x.tolist()) for when, x in zip(("before", "after"), returns)})
    changes, moves = module.find_changes(cells)
    assert changes[0]["interval"][1] < 0
    lines = module.verdicts(cells, changes, moves)
    assert [line.split(":")[0] for line in lines[:-1]] == ["update 1"]


def test_bad_input(known, tmp_path, capsys):
    run, late = str(known / "few_ppo"), tmp_path / "late"
    shutil.copytree(known / "few_ppo", late)
    (late / "checkpoints" / "iter_000000.pt").unlink()
    refused = {
        (run, "--from", "2", "--to", "2"): "no update between",
        (run, "--from", "2", "--to", "1"): "no update between",
        (run, "--from", "2", "--to", "4"): "--to 4: training has reached iteration 3",
        (run, "--from", "-1", "--to", "2"): "--from -1: must be 0 or more",
        (str(late), "--from", "0", "--to", "2"): "--from 0: no checkpoint at or before it; there are 1 2 3",
        (
            run,
            "--from",
            "0",
            "--to",
            "2",
            "--episodes",
            "1",
        ): "--episodes 1: must be 2 or more, or there is no interval",
        (run, "--from", "0", "--to", "2", "--episodes", "0"): "--episodes 0: must be 2 or more",
        (run, run, "--from", "0", "--to", "2"): "name one run",
        (str(tmp_path / "none"), "--from", "0", "--to", "2"): "no such run",
        (run, "--from", "0", "--to", "2", "--script", str(ROOT / "algos" / "ppo_m.py")): "does not fit",
    }
    for arguments, part in refused.items():
        capsys.readouterr()
        with patch("sys.argv", ["replay.py"]), pytest.raises(SystemExit) as ended:
            load("replay").main(list(arguments))
        message = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == 2 and part in message and message.startswith("replay.py: "), arguments
    assert not (known / "few_ppo" / "figures").exists()
