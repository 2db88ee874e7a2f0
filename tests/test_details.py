"""The page of PPO's details is what its template, ppo.py and the numbers give."""

import importlib.util
import inspect
import re

import pytest
import stable_baselines3
from conftest import ROOT, load
from stable_baselines3.common.policies import ActorCriticPolicy

spec = importlib.util.spec_from_file_location("details", ROOT / "figures" / "details" / "write.py")
details = importlib.util.module_from_spec(spec)
spec.loader.exec_module(details)
PAGE = details.PAGE.read_text()


def test_the_page_is_what_its_template_the_script_and_the_numbers_give():
    assert details.render() == PAGE and "{{" not in PAGE  # else: python figures/details/write.py


def test_a_line_is_found_in_its_function_and_nowhere_else():
    source = details.SCRIPT.read_text().splitlines()
    for name, text in (("value_loss", "torch.maximum(losses"), ("step", "m_hat / (v_hat.sqrt()")):
        number = int(re.fullmatch(r"\[line (\d+)\]\(ppo\.py#L\1\)", details.line(name, text))[1])
        assert text in source[number - 1]
    for name, text in (("policy_loss", "torch.maximum(losses"), ("value_loss", "losses")):  # in another, in several
        with pytest.raises(AssertionError, match="and not in one"):
            details.line(name, text)


def test_every_detail_has_its_row_its_worth_and_the_nine_have_the_numbers_of_ppo():
    titles = re.findall(r"^### (\d+)\. (.*)$", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in titles] == list(range(1, 19))
    assert [int(x) for x in re.findall(r"^\| \*?\[(\d+) [^]]*\]\(#", PAGE, re.MULTILINE)] == list(range(1, 19))
    sections = re.split(r"^### .*$", PAGE, flags=re.MULTILINE)[1:]
    assert all("Worth" in x and "ppo.py#L" in x for x in sections)
    source = details.SCRIPT.read_text()
    for number, section in enumerate(sections[:9], 1):
        for flag in re.match(r"\s*((?:`--[\w-]+`, )+)", section)[1].replace("`", "").strip(" ,").split(", "):
            assert re.search(rf"^    {flag[2:].replace('-', '_')}: bool = True  # \({number}\)", source, re.MULTILINE)


def test_the_formula_of_what_a_clipped_action_costs():
    actions = load("ppo").np.random.default_rng(0).normal(size=1_000_000)
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
