"""What the sentences of the first page say without a number, as conditions on the rooms' numbers. pages.py stops where
one of them is not so."""

from claims import HOLDS, UNCLEAR, after_holm, claims_of, differs, room
from planned import holm

PLACES = "Hopper", "Walker2d"


def value_clip() -> bool:
    x, scaling = room("value_clip"), claims_of("nine")["the clip needs the rewards' units"]
    for place in PLACES:
        off = x.difference(place, "off", "0.2")
        if differs(off) != 1 or off.p() >= 1e-5 or not scaling[place].holm or not holm(x.primary())["7 − 0.2"][place]:
            return False
        if not 0.09 < x.widths(place)["7"] / x.spread(place).mean < 0.11:  # about a tenth
            return False
    return x.no_harm_that_matters("Hopper", "7") and not x.no_harm_that_matters("Walker2d", "7")


def ratio_clipping() -> bool:
    x, planned = room("clipping"), claims_of("clipping")["clipping is insurance against a high rate"]
    rates = "6e-5", "3e-4", "6e-4", "1.2e-3"
    for place in PLACES:
        best = max(rates, key=lambda rate: x.runs(place, f"PPO-unclipped-{rate}").mean)
        if best != "6e-5" or differs(x.runs(place, "PPO-3e-4 - PPO-unclipped-6e-5")) != 1:
            return False
    stand = x.holm_of_eight() == [False, False] + [True] * 6
    return bool(stand and planned["Hopper"].holm and not planned["Walker2d"].holm)


def pairs_of_optimizations() -> bool:
    of = lambda place, contrast: differs(room("reward").runs(place, contrast))
    alone = "PPO-rates-obs-norm - PPO-rates", "PPO-rates-tanh - PPO-rates", "NORM_TANH"
    together = all(of(place, "PPO-rates-obs-norm-tanh - PPO-rates") == 1 for place in PLACES)
    return together and not any(of(place, x) for place in PLACES for x in alone)


def batches() -> bool:
    x = room("gains_add_up")
    planned, few = x.primary()["many − few"]["both"], x.effect("few - many")
    return (
        bool(holm(x.primary())["many − few"]["both"]) and planned.mean < 0 and all(differs(few[y]) == 1 for y in PLACES)
    )


def nothing_seen() -> bool:
    clip, tanh = (holm(room("bounds").primary())[x].values() for x in ("clip − no", "tanh − clip"))
    return True not in [*clip, *tanh, *holm(room("time_limits").primary())["on − off"].values()]


def value_epochs() -> bool:
    stands = room("critic_or_clip").stands
    found = [[bool(stands(x, y)) for y in (*PLACES, "HalfCheetah")] for x in ("A2C-50 − A2C-1", "ppo.py − A2C-50")]
    return found == [[True, False, False], [True, True, False]]


def optimizations_and_step() -> bool:
    raised, step = (
        claims_of("reward")[f"IM: {x}"] for x in ("optimizations raise the reward", "the step makes no difference")
    )
    walker = (
        raised["Walker2d"].verdict == UNCLEAR and raised["Walker2d"].depends and step["Walker2d"].verdict == UNCLEAR
    )
    hopper = raised["Hopper"].holm and step["Hopper"].verdict == HOLDS and not step["Hopper"].holm
    return bool(walker and hopper and step["Humanoid"].unlike)


def scaling() -> bool:
    of = [differs(room("nine").runs(place, "PPO-scaled - PPO-unscaled")) for place in PLACES]
    return of == [1, 0]


def updates() -> bool:
    x = room("steps")
    return (
        after_holm(x.from_many_over_runs()) == [False, False, True, False, False, False] and x.none_from_few_over_runs()
    )


def landscape() -> bool:
    return all(room("jagged").smooth()[place].verdict == HOLDS for place in PLACES)


ALL = value_clip, ratio_clipping, pairs_of_optimizations, batches, nothing_seen, value_epochs
ALL += optimizations_and_step, scaling, updates, landscape


def not_so() -> list[str]:
    """Names what is not as the first page says."""
    return [x.__name__ for x in ALL if not x()]
