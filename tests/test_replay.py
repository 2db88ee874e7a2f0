"""Replay: training's bits, known rewards, a planted fall, and what is said where a replay is not exact."""

import contextlib
import shutil
from unittest.mock import patch

import measuring.runs
import measuring.sampling
import measuring.table
import numpy as np
import pytest
import torch
from conftest import ALGOS, FEW, RAW, ROOT, flags_of, load, progress
from environments import Chain
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
    """The updates of a call; without its figure, which takes most of its time."""
    span = f"--from {first} --to {last} --episodes {episodes} --jobs 1".split()
    with contextlib.nullcontext() if draws else patch.object(load("replay"), "draw_updates"):
        load("replay").main([str(run), *span, *flags, "--out", str(out)])
    return measuring.table.read_rows(out / "replay.jsonl")[-1]["updates"]


def checkpoint(run, iteration):
    return torch.load(run / "checkpoints" / f"iter_{iteration:06d}.pt", weights_only=True)


def exact_reward(state):
    """Expected return of Chain's episode."""
    pi = state.policy(torch.eye(4))
    return sum(Chain.rewards) - ((pi.mean - torch.tensor(Chain.TARGET)) ** 2 + pi.variance).sum().item()


def test_planted_update_is_found_at_its_iteration_with_the_exact_rewards(planted, tmp_path, capsys, figures):
    script = ["--script", str(planted / "my_ppo.py")]
    updates = replay(planted / "chain", 0, 6, tmp_path, *script, episodes=40, draws=True)
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("update ")]
    assert len(lines) == 1 and lines[0].startswith(f"update {PLANTED}: promised "), out
    found = updates[PLANTED]
    place = f"in one state (pair {found['max_kl_pair']}, step {found['max_kl_step']} of its episode)"
    assert place in lines[0] and f"mean {found['mean_kl']:.2g}" in lines[0]
    assert found["statistics"]["policy_lr"] == pytest.approx(100 * 0.001 * 0.5)
    assert [update["unlike_checkpoint"] for update in updates] == [[]] * 6
    with torch.no_grad():
        sources = [measuring.runs.Source(planted / "my_ppo.py", planted / "chain", i) for i in range(7)]
        exact = [exact_reward(measuring.sampling.checkpoint_state(source)[2]) for source in sources]
    for i, update in enumerate(updates):
        before, after = load("replay").returns_of(update)
        for returns, expected in ((before, exact[i]), (after, exact[i + 1]), (after - before, exact[i + 1] - exact[i])):
            assert abs(returns.mean() - expected) < 4 * returns.std() / 40**0.5 + 1e-4
        assert update["before"]["lengths"] == update["after"]["lengths"] == [4] * 40
    _, _, promised, kl, explained = figures["replay.png"].axes
    for line, name in ((promised.lines[0], "promised"), (kl.lines[0], "max_kl"), (kl.lines[1], "mean_kl")):
        assert list(line.get_ydata()) == [update[name] for update in updates]
    assert list(explained.lines[1].get_ydata()) == [update["explained_variance"][1] for update in updates]


@pytest.mark.parametrize("algo", ALGOS)
def test_replay_is_training_to_the_bit(known, tmp_path, algo, capsys):
    updates = replay(known / f"few_{algo}", 1, 3, tmp_path)
    out = capsys.readouterr().out
    logged = progress(known / f"few_{algo}")
    for i, update in enumerate(updates, 1):
        assert (update["iteration"], update["next_checkpoint"], update["unlike_checkpoint"]) == (i, i + 1, [])
        assert update["unlike_progress"] == []
        for name in ("mean_kl", "max_kl"):
            assert str(update[name]) == logged[i][name]
        if "explained_variance" in logged[i]:
            assert update["explained_variance"][0] == pytest.approx(float(logged[i]["explained_variance"]))
        assert ("explained_variance" in update) == (algo != "reinforce")
        assert np.mean(update["training_episodes"], 0)[0] == pytest.approx(float(logged[i]["episodic_return"]))
    assert out.count("arrives at the same state, bit for bit") == 2 and "repeats it, to the last digit" in out


def test_quantities_by_hand(known, tmp_path):
    [update] = replay(known / "few_ppo", 1, 2, tmp_path)
    source = measuring.runs.Source(ROOT / "algos" / "ppo.py", known / "few_ppo", 1)
    script, settings, _ = measuring.sampling.checkpoint_state(source)
    before, after, _, _, batch = measuring.sampling.next_iteration(source)
    kls = kl_divergence(before.policy(batch["obs"]), after.policy(batch["obs"])).detach()
    assert update["max_kl_pair"] == kls.argmax() and update["max_kl"] == kls.max()
    losses = [script.policy_loss(settings, x.policy(batch["obs"]), batch).item() for x in (before, after)]
    assert update["promised"] == losses[0] - losses[1]
    targets = batch["value_targets"]
    left = ((targets - after.value(batch["obs"])).var() / targets.var()).item()
    assert update["explained_variance"][1] == pytest.approx(1 - left, abs=1e-6)


def test_step_of_the_episode_continues_from_the_last_rollout_of_each_worker():
    ends = np.isin(np.arange(10), [1, 4, 9])  # two workers of 5 steps; the first one's episode ends within
    experience = dict(obs=np.zeros((10, 1)), ends=ends)
    assert load("replay").episode_steps(experience, 5, [7, 2]) == [8, 9, 1, 2, 3, 3, 4, 5, 6, 7]


def test_both_policies_act_with_the_normalizers_of_the_next_iteration(tmp_path):
    """On the Pendulum, whose returns show every bit of them."""
    settings = FEW | dict(env_id="Pendulum-v1", checkpoint_every=1, runs_dir=str(tmp_path), run_name="run")
    load("ppo").main(flags_of("ppo", **settings))
    for i, update in enumerate(replay(tmp_path / "run", 1, 3, tmp_path), 1):
        next_one = measuring.runs.Source(ROOT / "algos" / "ppo.py", tmp_path / "run", i + 1)
        for when, k in (("before", i), ("after", i + 1)):
            policy = measuring.sampling.checkpoint_state(next_one._replace(iteration=k))[2].policy
            episodes = measuring.sampling.play_seeds(next_one, (0,), 0, 3, measuring.sampling.flat_parameters(policy))
            assert update[when]["returns"] == [x for x, _ in episodes]


def test_jobs_and_a_wider_range_change_no_bit(known, tmp_path, capsys):
    narrow = replay(known / "few_ppo", 1, 2, tmp_path)
    assert replay(known / "few_ppo", 0, 3, tmp_path)[1] == narrow[0]
    assert replay(known / "few_ppo", 1, 2, tmp_path / "2", "--jobs", "2") == narrow
    assert len(measuring.table.read_rows(tmp_path / "replay.jsonl")) == 2


def test_what_is_not_as_it_was_is_said(known, tmp_path, capsys):
    run = tmp_path / "ppo"
    shutil.copytree(known / "few_ppo", run)
    changed = checkpoint(run, 2)
    changed["value_adam"][0][5] += 1e-6
    torch.save(changed, run / "checkpoints" / "iter_000002.pt")
    text = (run / "progress.csv").read_text()
    kl = progress(run)[1]["mean_kl"]
    (run / "progress.csv").write_text(text.replace(kl, kl[:-1] + ("1" if kl[-1] == "2" else "2")))
    updates = replay(run, 1, 3, tmp_path / "out")
    out = capsys.readouterr().out
    assert "iter_000002.pt: the replay differs from it in value_adam\n" in out
    assert updates[0]["unlike_progress"] == ["mean_kl"] and "mean_kl of iteration 1" in out
    # It continued from the changed checkpoint, so the one after is not what follows from it.
    assert updates[1]["unlike_checkpoint"] and updates[1]["checkpoint_iteration"] == 2


def verdicts(levels, scatter=1.0):
    """The changes, the moves and the lines of updates whose returns before and after lie around these levels."""
    module, noise = load("replay"), np.random.default_rng(0).normal(0, scatter, (len(levels), 2, 30))
    updates = []
    for i, (both, noises) in enumerate(zip(levels, noise)):
        update = dict(iteration=i, promised=0.1, max_kl=1.0, max_kl_pair=2, max_kl_step=3, mean_kl=0.1)
        returns = [dict(returns=(level + x).tolist()) for level, x in zip(both, noises)]
        updates.append(update | dict(zip(module.WHEN, returns)))
    changes, moves = module.find_changes(updates)
    return updates, changes, moves, module.verdicts(updates, changes, moves)


def test_no_fall_says_how_large_a_one_would_have_been_seen():
    _, changes, _, (first, last) = verdicts([(100, 100)] * 4)
    visible = np.median([change["visible"] for change in changes])
    assert first == (
        "no update lowered the reward significantly and by more than 5 %; with 30 episodes, "
        f"a fall of {visible:.3g} would be detected with probability 0.8"
    )
    assert last.startswith("all 4, and the normalizers between them, at 95 %: reward 99.9 -> 99.8, by ")


def test_what_happens_between_two_updates_gets_its_line():
    """Before the third update, the normalizers spoil the policy."""
    updates, _, moves, (first, last) = verdicts([(100, 101), (101, 102), (40, 41)])
    x = np.array(updates[2]["before"]["returns"]) - updates[1]["after"]["returns"]
    half = 2.7564 * x.std(ddof=1) / 30**0.5  # Student's t, 29 degrees of freedom, 1 - 0.025 / 5: of five looks
    assert moves[1]["interval"] == pytest.approx([x.mean() - half, x.mean() + half], rel=1e-4)
    assert first.startswith("before update 2 the normalizers moved: reward 102 -> 40")
    assert last.startswith("all 3, ")


@pytest.mark.parametrize("level", (100, -1000))
def test_a_significant_trifle_gets_no_line(level):
    """Three updates lower the reward by 4, 6 and 0 %, each far beyond its noise; the normalizers do nothing."""
    at = [level - share * abs(level) for share in (0, 0.04, 0.1, 0.1)]
    _, changes, _, lines = verdicts(list(zip(at, at[1:])), scatter=0.1)
    assert changes[0]["interval"][1] < 0
    assert [line.split(":")[0] for line in lines[:-1]] == ["update 1"]
