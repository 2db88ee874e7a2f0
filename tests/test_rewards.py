"""Rewards aggregated, from run folders whose numbers are known."""

import contextlib
import csv
import json
from dataclasses import asdict
from itertools import product
from unittest.mock import patch

import lab
import numpy as np
import pytest
from conftest import ALGOS, last_line, load
from scipy import stats

pytestmark = pytest.mark.usefixtures("figures")
NINE = "value_clip reward_scale orthogonal_init anneal_lr reward_clip obs_norm obs_clip tanh grad_clip".split()


@pytest.fixture
def write(tmp_path):
    """Writes a run of 2048 steps an iteration with these rewards (None: no episode ended) -> its folder."""

    def write_run(*rewards, name=None, algo="ppo", planned=None, kl=None, script="1a", **arguments):
        args = asdict(load(algo).Args(total_timesteps=2048 * (planned or len(rewards)), **arguments))
        folder = tmp_path / "runs" / (name or str(len(list(tmp_path.glob("runs/*")))))
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(dict(algo=algo, script=script, args=args)))
        with open(folder / "progress.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["iteration", "global_step", "episodic_return", "mean_kl", "policy_lr"])
            kls = kl or [""] * len(rewards)
            rows = zip(rewards, kls)
            table.writerows([i, 2048 * (i + 1), "" if x is None else x, y, 0.1] for i, (x, y) in enumerate(rows))
        return folder

    return write_run


@pytest.fixture
def aggregate(tmp_path):
    """Calls rewards.py on all runs written so far -> what it wrote to rewards.json."""

    def call(*flags, folders=None, lacking=False):
        out = tmp_path / "out"
        folders = [str(x) for x in folders or sorted(tmp_path.glob("runs/*"))]
        with pytest.raises(SystemExit) if lacking else contextlib.nullcontext() as ended:
            load("rewards").main(folders + ["--out", str(out), *flags])
        assert not lacking or ended.value.code == 1
        return json.loads((out / "rewards.json").read_text())

    return call


def refused(capsys, call, *flags, **named):
    with patch("sys.argv", ["rewards.py"]):
        line = last_line(capsys, 2, lambda: call(*flags, **named))
    assert line.startswith("rewards.py: ")
    return line


def test_final_reward_is_the_mean_of_the_last_five_iterations_with_an_episode(write, aggregate, figures, capsys):
    write(100, 1, 2, None, 3, 4, 5, None)
    write(50, *[None] * 5, 7, 9, seed=2)
    write(-3.14159, algo="trpo_plus")
    write(4, env_id="Walker2d-v5")
    ppo, one, elsewhere = aggregate("--format", "pdf")["settings"]
    assert ppo["finals"] == [3, 22] and ppo["seeds"] == [1, 2] and ppo["mean"]["mean"] == 12.5
    assert one["mean"] == dict(mean=pytest.approx(-3.14159), interval=None) and elsewhere["env_id"] == "Walker2d-v5"
    assert "| Hopper-v5 | trpo_plus | 1 | -3.14 | -3.14 to -3.14 |\n" in capsys.readouterr().out
    assert [axis.get_title() for axis in figures["rewards.pdf"].axes] == ["Hopper-v5", "Walker2d-v5"]


def test_curves_are_means_where_all_runs_have_been_and_of_kls_in_logarithms(write, aggregate, figures):
    write(*[3] * 30, kl=[1e-2] * 30)
    write(None, *[5] * 29, kl=[1e-4] * 30, seed=2)
    [found], t = aggregate("--kl")["settings"], 12.7062  # Student's t of two runs
    curve = found["curve"]
    assert (curve["steps"][0], curve["steps"][-1]) == (2 * 2048, 30 * 2048)
    for name, exact in (("mean", 4), ("low", 4 - t), ("high", 4 + t)):
        assert curve[name] == pytest.approx([exact] * 100, abs=1e-3)
    assert found["kl"]["mean"] == pytest.approx([1e-3] * 100) and found["kl"]["steps"][-1] == 30 * 2048
    assert np.log(found["kl"]["high"]) == pytest.approx([np.log(1e-3) + t * np.log(10)] * 100)
    assert figures["rewards_kl.png"].axes[0].get_yscale() == "log"
    write(1, algo="trpo")
    write(*[1] * 30, kl=[1e-3, 5e-3] * 15, seed=3, name="third")
    with_kl, without = aggregate("--kl", lacking=True)["settings"]
    assert [x for name, x in zip(with_kl["folders"], with_kl["largest_kl"]) if name.endswith("/third")] == [5e-3]
    assert "kl" not in without


def test_what_lacks_runs_comes_after_the_tables(write, aggregate, capsys, tmp_path, figures):
    write(1)
    write(2, value_clip=False, planned=2)
    assert aggregate(*"--paired --kl".split(), lacking=True)["settings"][0]["finals"] == [1]
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rewards.py")]
    assert [line.split(":")[1].strip() for line in lines] == ["--paired", "--kl"]
    assert "| Hopper-v5 | ppo" in (tmp_path / "out" / "rewards.md").read_text()
    assert list(figures) == ["rewards.png"]


def test_runs_whose_folders_have_the_same_name_are_told_apart(write, aggregate, capsys):
    on, off = write(5, 5, name="on/seed1"), write(3, 3, value_clip=False, name="off/seed1")
    found = aggregate("--paired", folders=[on, off])
    assert {x["label"]: x["folders"] for x in found["settings"]} == {"ppo": [str(on)], "ppo no-value-clip": [str(off)]}
    assert found["paired"][0]["differences"] == [2]
    copy = write(5, 5, name="copy/seed1", checkpoint_every=7)  # which changes nothing
    assert f"{on} and {copy} are the same run, twice" in refused(capsys, aggregate, folders=[on, copy])


def test_versions_of_a_script_behind_a_table_are_named(write, aggregate, capsys, tmp_path):
    a, b = write(1, script="aaaaaaaa" * 8), write(2, script="bbbbbbbb" * 8, seed=2)
    write(2, algo="trpo")
    found = aggregate()["scripts"]
    assert found[0] == dict(algo="ppo", versions=dict(aaaaaaaa=[str(a)], bbbbbbbb=[str(b)])) and len(found) == 2
    message = "runs by different versions of ppo.py: 1 by aaaaaaaa, 1 by bbbbbbbb\n"
    assert capsys.readouterr().err == message and message in (tmp_path / "out" / "rewards.md").read_text()


def test_incomplete_runs_are_named_and_left_out(write, aggregate, capsys, tmp_path):
    whole, torn = write(1, 2, 3, name="whole"), write(1, 2, 3, name="torn", seed=2)
    path = torn / "progress.csv"
    path.write_text(path.read_text()[: -len(",0.1\r\n")])  # the last row is not all there
    write(7, 8, name="half", planned=3, seed=3)
    write(name="unbegun", planned=3, seed=4)
    write(None, None, name="endless", seed=5)
    found = aggregate()
    assert [setting["seeds"] for setting in found["settings"]] == [[1]]
    err, text = capsys.readouterr().err, (tmp_path / "out" / "rewards.md").read_text()
    left_out = {"torn": "4,096 of 6,144 steps", "half": "4,096 of 6,144 steps", "unbegun": "0 of 6,144 steps"}
    left_out["endless"] = "no episode ended"
    folders = {str(whole.parent / name): missing for name, missing in left_out.items()}
    assert {x["run"]: x["missing"] for x in found["incomplete"]} == folders
    for name, missing in left_out.items():
        line = f"left out: {whole.parent / name}: {missing}\n"
        assert line in err and line in text
    assert "no run is complete" in refused(capsys, aggregate, folders=[torn])


def test_labels_say_what_differs(write, aggregate):
    for seed in (1, 2):
        write(1, seed=seed, run_name="any", checkpoint_every=7)
        write(2, seed=seed, value_clip=False, policy_lr=1e-4)
        write(3, seed=seed, policy_hidden=(8, 8))
        write(4, seed=seed, algo="trpo_plus", value_clip=True, max_kl=0.13)
        write(5, seed=seed, algo="trpo_plus", max_kl=0.13)
    old = write(1, seed=3) / "config.json"  # from before the script had this flag
    old.write_text(old.read_text().replace('"policy_hidden": [64, 64], ', ""))
    found = {x["label"]: x["finals"] for x in aggregate()["settings"]}
    ours = {"ppo": [1, 1, 1], "ppo policy-hidden=8x8": [3, 3], "ppo no-value-clip policy-lr=0.0001": [2, 2]}
    assert found == ours | {"trpo_plus": [5, 5], "trpo_plus value-clip": [4, 4]}
    assert list(found)[0] == "ppo"


@pytest.mark.parametrize("algo", ALGOS)
def test_defaults_are_those_of_the_script(algo):
    defaults = {load("rewards").flag(*x) for x in asdict(load(algo).Args()).items()}
    assert load("rewards").default_flags(algo) == defaults and load("rewards").default_flags("nothing") == set()


def test_labels_are_one_for_each_run(write, aggregate, capsys):
    for env_id, policy_lr in (("Hopper-v5", 1e-4), ("Walker2d-v5", 2e-4)):
        write(1, policy_lr=policy_lr, env_id=env_id)
        write(2, policy_lr=policy_lr, reward_scale=False, env_id=env_id)
    found = aggregate("--labels", *["PPO", "PPO-M"] * 2)["settings"]
    found = [(x["env_id"], x["label"], x["finals"]) for x in found]
    assert found == [(env_id, *x) for env_id in ("Hopper-v5", "Walker2d-v5") for x in (("PPO", [1]), ("PPO-M", [2]))]
    assert "PPO is ambiguous" in refused(capsys, aggregate, "--labels", *["PPO"] * 4)


def test_two_versions_of_a_setting_have_no_paired_difference(write, aggregate):
    write(1), write(2)
    assert aggregate("--paired", "--labels", "before", "after", lacking=True)["paired"] == []


def test_curves_are_smoothed_over_eleven_iterations():
    """One return of 11 among zeros is 1 in the eleven iterations around it, and 0 in the others."""
    steps, returns = np.arange(100.0), np.where(np.arange(100) == 50, 11.0, 0.0)
    curve = load("rewards").mean_curve([(steps, returns)])
    assert [curve["mean"][i] for i in (44, 45, 50, 55, 56)] == pytest.approx([0, 1, 1, 1, 0])


def test_paired_differences_are_by_seed(write, aggregate, tmp_path, figures):
    """The two arguments of gradient clipping are one optimization."""
    rng = np.random.default_rng(0)
    rewards = {}
    for on in [NINE, [], *([x] for x in NINE), *([y for y in NINE if y != x] for x in NINE)]:
        for seed in (3, 1, 2, 4) if on != ["tanh"] else (1, 2, 9):
            rewards[tuple(on), seed] = reward = 100 * seed + 10 * len(on) + rng.normal()
            write(reward, seed=seed, value_grad_clip="grad_clip" in on, **{name: name in on for name in NINE})
    found = aggregate("--paired")["paired"]
    assert [x["switched"][0] for x in found[:-1:2]] == [x["switched"][0] for x in found[1:-1:2]] == NINE
    for x in found:
        assert all(("grad_clip" in names) == ("value_grad_clip" in names) for names in (x["switched"], x["others_on"]))
        on = [name for name in NINE if name in x["switched"] + x["others_on"]]
        off = [name for name in on if name not in x["switched"]]
        seeds = [1, 2] if on == ["tanh"] else [1, 2, 3, 4]
        exact = [rewards[tuple(on), seed] - rewards[tuple(off), seed] for seed in seeds]
        assert x["seeds"] == seeds and x["differences"] == pytest.approx(exact)
        assert x["mean"] == lab.mean_of(x["differences"])
    assert len(found) == 2 * 9 + 1 and {*found[-1]["switched"]} == {*NINE, "value_grad_clip"}
    rows = [line.split("|")[3:6] for line in (tmp_path / "out" / "rewards.md").read_text().splitlines() if "|" in line]
    rows = [[cell.strip() for cell in row] for row in rows]
    assert all(x in rows for x in (["tanh", "on", "4"], ["tanh", "off", "2"], ["all together", "", "4"]))
    assert ["grad-clip (both)", "on", "4"] in rows
    [axis] = figures["rewards_paired.png"].axes
    drawn = [sorted(line.get_xdata()) for line in axis.lines]
    assert all(sorted(x["differences"]) in drawn and [x["mean"]["mean"]] in drawn for x in found)


def test_the_best_rate_of_each_setting_is_kept_and_drawn_in_histograms(write, aggregate, figures, tmp_path, capsys):
    """As in Fig. 1 of IM. The better rate is the large one with value clipping, and the small one without it."""
    for clip, scale, rate, seed in product((True, False), (True, False), (1e-4, 1e-3), (1, 2)):
        level = 1000 * scale + 10 * (clip == (rate == 1e-3)) + seed
        write(level, value_clip=clip, reward_scale=scale, policy_lr=rate, seed=seed)
    found, rate_of = aggregate("--best-of", "policy-lr", "--paired"), {True: 1e-3, False: 1e-4}
    rows = {(x["settings"]["value_clip"], x["settings"]["reward_scale"]): x for x in found["settings"]}
    for (clip, scale), x in rows.items():
        assert x["tuned"] == dict(policy_lr=rate_of[clip]) and "policy_lr" not in x["settings"]
        assert x["finals"] == [1000 * scale + 11, 1000 * scale + 12]
        worse = dict(policy_lr=rate_of[not clip], seeds=[1, 2], finals=[1000 * scale + 1, 1000 * scale + 2])
        assert worse in x["tried"] and len(x["tried"]) == 2
    assert len(rows) == len(found["settings"]) == 4 and len(found["paired"]) == 5
    table = (tmp_path / "out" / "rewards.md").read_text()
    assert "| environment | value-clip | reward-scale | best policy-lr | seeds |" in table
    assert "| Hopper-v5 | off | on | 0.0001 | 2 | 1,012 [1,005, 1,018] |" in table
    [clip, scale] = figures["rewards_histograms.png"].axes
    heights = [[sum(bar.get_height() for bar in side) for side in axis.containers] for axis in (clip, scale)]
    assert heights == [[4, 4], [4, 4]] and [clip.get_title(), scale.get_title()] == ["value-clip", "reward-scale"]
    on, off = scale.containers
    assert min(bar.get_x() for bar in on if bar.get_height()) > max(bar.get_x() for bar in off if bar.get_height())
    x = rows[True, True] | dict(settings=dict(value_epochs=1, policy_hidden=[8]))
    row = load("rewards").columns("settings", x, ["value_epochs", "policy_hidden"])
    assert row["value-epochs"] == 1 and row["policy-hidden"] == [8]  # and not "on"
    assert "--best-of policy_rate: no argument of these runs" in refused(capsys, aggregate, "--best-of", "policy_rate")


def test_aai_and_acli(write, aggregate, tmp_path):
    """Of IM's Table 2, and what they are where nothing differs, which is simulated."""
    levels, rng = {"PPO": 3292, "PPO-M": 2735, "TRPO": 2791, "TRPO+": 3050}, np.random.default_rng(0)
    finals = {name: level + np.array([-1, 0, 1]) * 10.0 * (i + 1) for i, (name, level) in enumerate(levels.items())}
    for name, of_agent in finals.items():
        for seed, x in enumerate(of_agent):
            write(x, seed=seed, algo="ppo" if "PPO" in name else "trpo_plus", gamma=0.9 + len(name) / 100)
    labels = [name for name in levels for _ in range(3)]
    folders = sorted(tmp_path.glob("runs/*"), key=lambda x: int(x.name))
    [found] = aggregate("--labels", *labels, folders=folders)["improvements"]
    assert (found["aai"], found["acli"]) == (pytest.approx(242), pytest.approx(557))
    a, b, c, d = (rng.normal(0, x.std(ddof=1) / 3**0.5, 100_000) for x in finals.values())
    simulated = np.maximum(abs(a - d), abs(b - c)).mean(), np.maximum(abs(a - b), abs(d - c)).mean()
    assert simulated == pytest.approx([found["by_chance"]] * 2, rel=0.01)
    assert "| Hopper-v5 | 242 | 557 | 25.2 |" in (tmp_path / "out" / "rewards.md").read_text()


def test_are_mine_as_good_as_the_reference(write, aggregate, tmp_path, capsys):
    """Of the same script, or of all; a shorter run is compared where it ends, and a longer one is not."""
    path, rng = tmp_path / "reference.jsonl", np.random.default_rng(0)
    lines = []
    for agent, level in (("ppo.py", 1000.0), ("a2c.py", 300.0)):
        for x in level + rng.normal(0, 10, 10):
            curve = [x * (i + 1) / 100 for i in range(100)]
            line = dict(agent=agent, algo=agent[:-3], env_id="Hopper-v5", steps=20_480, final=x)
            lines.append(line | dict(episodic_return=curve))
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    for seed, level in enumerate((990, 1000, 1010)):
        write(*[level] * 10, seed=seed)  # 20,480 steps
        write(*[level] * 4, seed=seed, gamma=0.9)  # ends where the reference has 400
    write(*[1000] * 10, algo="vmpo", seed=1)
    found = aggregate("--against", str(path))["against"]
    rows = {(x["label"], x["agent"]): (x["says"], x["difference"]) for x in found}
    says, shorter = {key: x for key, (x, _) in rows.items()}, "ppo total-timesteps=8192 gamma=0.9"
    assert says == {
        ("ppo total-timesteps=20480", "ppo.py"): "no difference seen",
        (shorter, "ppo.py"): "higher",
        ("vmpo", "ppo.py"): "no difference seen, by one run",
        ("vmpo", "a2c.py"): "higher, by one run",
    }
    theirs = np.array([x["final"] for x in lines[:10]])
    exact = theirs.std(ddof=1) * np.sqrt(1 + 1 / 10) * 2.2622  # where a new run is expected
    assert np.ptp(rows["vmpo", "ppo.py"][1]["interval"]) / 2 == pytest.approx(exact, rel=1e-4)
    assert rows[shorter, "ppo.py"][1]["mean"] == pytest.approx(1000 - 0.4 * theirs.mean())
    welch = stats.ttest_ind([990, 1000, 1010], theirs, equal_var=False).confidence_interval()
    assert rows["ppo total-timesteps=20480", "ppo.py"][1]["interval"] == pytest.approx([*welch])
    write(*[1000] * 20, seed=5, gamma=0.8)
    aggregate("--against", str(path), lacking=True)
    assert "no runs on Hopper-v5 of 40,960 steps or more" in capsys.readouterr().err
    path.write_text("{}\n")
    assert "not a file of runs" in refused(capsys, aggregate, "--against", str(path))
