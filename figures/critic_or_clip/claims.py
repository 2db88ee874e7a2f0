"""Is it the trust region or the critic? Whether more value steps make a plain policy gradient end where PPO does
(arXiv 2505.19247), by protocol.md."""

from collections.abc import Iterable

import numpy as np
from estimates import Runs, bootstrap, in_percent, measured, plain
from planned import Tests, controls, draw_finals, holm, judged, share_above, with_every_control

PLACES = "Hopper", "Walker2d", "HalfCheetah"
REACHED = dict(Hopper=2600, Walker2d=3300, HalfCheetah=2200)  # PPO's final rewards before this experiment
PPO = "ppo.py"  # at its defaults, which are not those of IM's agent PPO
AGENTS = PPO, *(f"{x}-{epochs}" for x in ("A2C", "NoClip") for epochs in (1, 10, 50))
RATES = dict(a2c=(1e-4, 3e-4, 7e-4), ppo_noclip=(3e-5, 6e-5, 1.5e-4))
runs = Runs("critic_or_clip/finals")
at_one_rate = Runs("critic_or_clip/at_one_rate")  # NoClip-1 with the rate of NoClip-50, in two environments


def grid() -> dict[tuple[str, int], dict[float, dict[str, float]]]:
    """Returns the final reward of the one run of each script with 1 and with 50 value epochs, by rate and place."""
    found = {}
    for x in measured("critic_or_clip/rates")["settings"]:
        key, rate = (x["algo"], x["settings"]["value_epochs"]), x["settings"]["policy_lr"]
        of = found.setdefault(key, {y: {} for y in RATES[x["algo"]]})
        [of[rate][x["env_id"].partition("-")[0]]] = x["finals"]
    assert len(found) == 4 and all(len(y) == 3 for of in found.values() for y in of.values()), "a run is missing"
    return found


def score(finals: dict[str, float]) -> float:
    """Returns the sum of the final rewards, each divided by what PPO reached before."""
    return sum(x / REACHED[place] for place, x in finals.items())


def chosen_rates() -> dict[tuple[str, int], float]:
    """Returns the rate with the largest score of each script with 1 and with 50 value epochs."""
    return {key: max(of, key=lambda rate, of=of: score(of[rate])) for key, of in grid().items()}


def table_of_rates() -> Iterable[list[str]]:
    """Yields the runs that chose the rates, with the scores of the chosen ones in bold type."""
    yield ["", "rate", *PLACES, "sum of the shares"]
    for (algo, epochs), of in sorted(grid().items()):
        for rate, finals in of.items():
            bold = "**" * (rate == chosen_rates()[algo, epochs])
            says = f"`{algo}.py`, {epochs} value epoch{'s' * (epochs > 1)}"
            yield [says, f"{rate:g}", *(plain(finals[x]) for x in PLACES), f"{bold}{score(finals):.2f}{bold}"]


def tests(name: str, epochs: int = 50) -> Tests:
    """Returns what more value steps add, and what PPO has beyond them."""
    asked = f"{name}-{epochs} - {name}-1", f"{PPO} - {name}-{epochs}"
    return {x.replace(" - ", " − "): {place: runs(place, x) for place in PLACES} for x in asked}


def of_every_run(name: str, epochs: int = 50) -> Tests:
    """Returns PPO's lead with all runs of PPO that exist, of whatever room."""
    contrast = f"{PPO} - {name}-{epochs}"
    found = {place: with_every_control(runs, place, contrast, PPO) for place in PLACES}
    return {contrast.replace(" - ", " − "): found}


def would_stand(name: str, place: str) -> bool:
    """Answers whether PPO's lead with all runs of PPO would stand among the six tests of its script."""
    return holm(tests(name) | of_every_run(name))[f"{PPO} − {name}-50"][place]


def stands(test: str, place: str) -> bool:
    """Answers whether a planned test holds after the correction of its script's six."""
    return holm(tests("NoClip" if "NoClip" in test else "A2C"))[test][place]


def compared(name: str) -> Iterable[list[str]]:
    """Yields for each environment whether 50 value epochs end where PPO does, and which share of PPO's lead over one
    value epoch they close."""
    yield ["", "with 50 value epochs", "share of PPO's lead that they close", "with every run of PPO, uncorrected"]
    beyond = f"{PPO} − {name}-50"
    for place in PLACES:
        x = tests(name)[beyond][place]
        comparable, lower = x.interval(0.9)[1] < REACHED[place] / 4, stands(beyond, place) and x.mean > 0
        verdict = {(True, False): "comparable to or better than PPO", (True, True): "a little lower than PPO"}
        verdict |= {(False, True): "below PPO", (False, False): "cannot tell"}
        yield [place, verdict[comparable, bool(lower)], *(share_closed(name, place, every=x) for x in (False, True))]


def closed(name: str, place: str, runs: Runs = runs, every: bool = False) -> dict:
    """Returns the share of PPO − (K = 1) that K = 50 closes, with a BCa interval, from the room's runs of PPO or from
    every run of these settings."""
    share = lambda more, one, ppo: (more.mean(-1) - one.mean(-1)) / (ppo.mean(-1) - one.mean(-1))
    of = runs.of(place) | ({PPO: [*controls(place).values()]} if every else {})
    return bootstrap(share, *(np.array(of[x]) for x in (f"{name}-50", f"{name}-1", PPO)))


def share_closed(name: str, place: str, runs: Runs = runs, every: bool = False) -> str:
    """Writes this share, or where PPO is not known to lead, its lead."""
    contrast = f"{PPO} - {name}-1"
    lead = with_every_control(runs, place, contrast, PPO) if every else runs(place, contrast)
    return in_percent(closed(name, place, runs, every)) if lead.interval()[0] > 0 else f"PPO's lead is {lead}"


def same_rate() -> Tests:
    """Returns what more value steps add to NoClip where the policy has the same rate, by the protocol's addition."""
    return {"NoClip-50 − NoClip-1": {x: at_one_rate(x, "NoClip-50 - NoClip-1") for x in PLACES[:2]}}


def table_at_one_rate() -> list[list[str]]:
    """Returns the two tests at one rate, the shares of PPO's lead, and where the new runs end."""
    shares = [share_closed("NoClip", x, at_one_rate) for x in PLACES[:2]]
    levels = [str(at_one_rate(x, "NoClip-1")) for x in PLACES[:2]]
    return [*judged(same_rate()), ["share of PPO's lead that they close", *shares], ["NoClip-1 at 6e-5", *levels]]


def levels() -> Iterable[list[str]]:
    """Yields each agent's mean final reward, and the share of its runs on HalfCheetah that end above 2,500."""
    yield ["", *PLACES, "above 2,500 on HalfCheetah"]
    for name in AGENTS:
        means = [str(runs(place, name)) if name in runs.of(place) else "" for place in PLACES]
        yield [name, *means, share_above(runs.of("HalfCheetah")[name]) if means[-1] else ""]


PICTURES = dict(critic=lambda: draw_finals(runs, [x for x in AGENTS if x in runs.of("Hopper")], PLACES))
