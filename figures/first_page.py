"""What the sentences of the first page say without a number, as conditions on the rooms' numbers. pages.py stops where
one of them is not so."""

from claims import HOLDS, NOT, UNCLEAR, after_holm, claims_of, differs, room
from planned import holm

PLACES = "Hopper", "Walker2d"


def value_clip() -> bool:
    x, scaling = room("value_clip"), claims_of("nine")["the clip needs the rewards' units"]
    for place in PLACES:
        off = x.difference(place, "off", "0.2")
        if differs(off) != 1 or off.p() >= 1e-5 or not scaling[place].holm or not holm(x.primary())["7 − 0.2"][place]:
            return False
        in_deviations = [eps / x.spread(place).mean for eps in (0.2, 7)]
        if [round(y, 3 - i) for i, y in enumerate(in_deviations)] != [0.003, 0.1]:
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
    of = lambda contrast: [differs(room("nine").runs(place, contrast)) for place in PLACES]
    return of("PPO-scaled-clip - PPO-unscaled-clip") == [1, 1] and of("PPO-scaled - PPO-unscaled") == [1, 0]


def updates() -> bool:
    x = room("steps")
    from_many = x.from_many_over_runs()
    stand = after_holm(from_many) == [False, False, True, False, False, False]
    return stand and sum(y.p() < 0.05 and y.mean > 0 for y in from_many) == 2 and x.none_from_few_over_runs()


def critic() -> bool:
    """By CL's returns, which are cut, the value network is off by a half, and by the others not. It is on training
    pairs, too."""
    of = claims_of("critic")
    half, training = of["CL: V is off by half from true returns"], of["CL: V's error is small on training pairs"]
    off = all(half[place].verdict == HOLDS and half[place].depends for place in PLACES)
    return off and all(training[place].verdict == NOT for place in PLACES)


def landscape() -> bool:
    return all(room("jagged").smooth()[place].verdict == HOLDS for place in PLACES)


ALL = value_clip, ratio_clipping, pairs_of_optimizations, batches, nothing_seen, value_epochs
ALL += optimizations_and_step, scaling, updates, critic, landscape


def check() -> str:
    """Writes nothing, and stops where something is not as the first page says."""
    wrong = [x.__name__ for x in ALL if not x()]
    assert not wrong, f"the first page is not so: {', '.join(wrong)}"
    return ""
