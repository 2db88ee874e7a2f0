"""The page of PPO's details is what its template, ppo.py and the numbers give, and README's numbers are so."""

import inspect
import itertools
import re
import runpy
from types import SimpleNamespace

import numpy as np
import pytest
import stable_baselines3
from claims import room
from conftest import ROOT
from estimates import Estimate, by_seed
from pages import table
from stable_baselines3.common.policies import ActorCriticPolicy

details = SimpleNamespace(**runpy.run_path(ROOT / "figures" / "details" / "write.py"))
PAGE = details.PAGE.read_text()


def test_the_page_is_what_its_template_the_script_and_the_numbers_give():
    assert details.render() == PAGE and "{{" not in PAGE  # else: python figures/details/write.py


def test_the_flags_of_the_nine_have_the_numbers_of_their_sections_in_ppo():
    sections = re.split(r"^### \d+\. .*$", PAGE, flags=re.MULTILINE)[1:]
    source = details.SCRIPT.read_text()
    for number, section in enumerate(sections[:9], 1):
        for flag in re.match(r"\s*((?:`--[\w-]+`, )+)", section)[1].replace("`", "").strip(" ,").split(", "):
            assert re.search(rf"^    {flag[2:].replace('-', '_')}: bool = True  # \({number}\)", source, re.MULTILINE)


def test_the_formula_of_what_a_clipped_action_costs():
    actions = np.random.default_rng(0).normal(size=1_000_000)
    expected = (actions**2).mean() / (actions.clip(-0.4, 0.4) ** 2).mean()
    assert details.saved_by_a_clip(0.4) == pytest.approx(expected, rel=0.01)


def test_the_column_of_stable_baselines3_is_what_is_installed():
    rows = dict(re.findall(r"^\| (?:\*?\[)?(\w+)[^|]*\|[^|]*\|[^|]*\| ([^|]*) \|", PAGE, re.MULTILINE))
    ppo, policy = (inspect.signature(x).parameters for x in (stable_baselines3.PPO, ActorCriticPolicy))
    default = lambda of, name: of[name].default
    assert f"Stable-Baselines3 {stable_baselines3.__version__} " in PAGE
    assert (default(ppo, "clip_range_vf"), rows["1"]) == (None, "off (only clipped)")
    assert (default(policy, "ortho_init"), rows["3"]) == (True, "orthogonal")
    assert (type(default(ppo, "learning_rate")), rows["4"]) == (float, "constant")
    assert (default(policy, "activation_fn").__name__.lower(), rows["8"]) == ("tanh", "tanh")
    assert (default(ppo, "normalize_advantage"), rows["10"]) == (True, "yes")
    assert (default(policy, "log_std_init"), rows["13"]) == (0.0, "1, free")
    minibatches = default(ppo, "n_steps") // default(ppo, "batch_size")
    assert rows["17"] == f"{default(ppo, 'n_epochs')} × {minibatches}"


def test_the_three_returns_that_readme_gives_cannot_be_told_apart():
    of = [details.measured("algorithms/micro")["finals"]]
    for path, label in (("algorithms/now", "ppo"), ("sb3/rewards", "sb3")):
        settings = details.measured(path)["settings"]
        of += [x["finals"] for x in settings if (x["label"], x["env_id"]) == (label, "Hopper-v5")]
    said = re.findall(r"\[(\S+\s\[\S+\s\S+\])\]\(figures\S+ \((\d+) seeds\)", (ROOT / "README.md").read_text())
    expected = [(str(Estimate([x])), str(len(x))) for x in (of[1], of[0], of[2])]
    assert [(" ".join(x.split()), seeds) for x, seeds in said] == expected
    intervals = [Estimate([a, b], (1, -1)).interval() for a, b in itertools.combinations(of, 2)]
    assert len(intervals) == 3 and all(low < 0 < high for low, high in intervals)


def test_readmes_table_of_the_reference_has_the_means_of_its_runs():
    assert table(room("reference").means_table()) in (ROOT / "README.md").read_text()


def test_readmes_hit_rate_is_that_of_the_reports_page():
    pattern = re.compile(r"called (\d+) of (\d+) .*?\((\d+) %, 95 % interval (\d+) to (\d+) %", re.DOTALL)
    found, of, share, *ends = pattern.search((ROOT / "README.md").read_text()).groups()
    assert f"{found} of {of} [{ends[0]} %, {ends[1]} %]" in (ROOT / "figures/report/README.md").read_text()
    assert round(100 * int(found) / int(of)) == int(share)


def test_the_share_of_the_noise_scale_that_readme_says():
    agents = by_seed("gradients/noise_hopper", {200, 300, 400, 450})[0]  # of seed 1
    noise = [x["noise_scale"]["value network"] for rows in agents.values() for x in rows]
    shares = [2048 * x["grad_sq"] / x["trace"] for x in noise]
    text = " ".join((ROOT / "README.md").read_text().split())
    assert max(shares) < 1 / 5 and "200 on, the batch is at most a fifth of the noise scale" in text
    assert f"in {sum(x < 1 / 20 for x in shares)} of {len(shares)} cases less than a twentieth" in text
