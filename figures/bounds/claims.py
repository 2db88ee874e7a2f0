"""How bounded actions should be bounded, by protocol.md."""

from collections.abc import Iterable

import numpy as np
from estimates import Estimate, Runs, measured, two_digits
from planned import Tests, by_run, column, controls, draw_finals, share_above, with_every_control

MARGIN, PLACES, WAYS = 200, ("Hopper", "Walker2d", "HalfCheetah"), ("no", "clip", "tanh")
AGAIN = "Walker2d", "HalfCheetah"  # where the second protocol asks for new seeds
runs, new_runs, both = Runs("bounds/finals"), Runs("bounds/again"), Runs("bounds/finals", "bounds/again")


def tests(*asked: str) -> Tests:
    return {x.replace(" - ", " − "): {place: runs(place, x) for place in PLACES} for x in asked}


def primary() -> Tests:
    return tests("clip - no", "tanh - clip")


def again() -> Tests:
    """Returns the tests of the second protocol, which are computed from its own runs alone."""
    return {"tanh − no, new seeds": {place: new_runs(place, "tanh - no") for place in AGAIN}}


def pooled() -> Tests:
    """Returns tanh − no over the seeds of both experiments."""
    return {"tanh − no, both experiments": {place: both(place, "tanh - no") for place in AGAIN}}


def of_every_run() -> Tests:
    """Returns the differences from actions as drawn over all runs that exist."""
    found = {"clip − no": {place: with_every_control(runs, place, "clip - no", "no") for place in PLACES}}
    tanh = {place: with_every_control(both if place in AGAIN else runs, place, "tanh - no", "no") for place in PLACES}
    return found | {"tanh − no": tanh}


def with_new_seeds() -> Iterable[list[str]]:
    """Yields the final rewards of both experiments, and the shares of runs above 2,500 on HalfCheetah."""
    yield ["", "no", "tanh"]
    for place in AGAIN:
        yield [f"{place}, final reward, both experiments", *(str(both(place, way)) for way in ("no", "tanh"))]
    for name, of in (("new seeds", new_runs), ("both experiments", both)):
        shares = (share_above(of.of("HalfCheetah")[way]) for way in ("no", "tanh"))
        yield [f"HalfCheetah, above 2,500, {name}", *shares]
    drawn = share_above([*controls("HalfCheetah").values()])
    yield ["HalfCheetah, above 2,500, every run", drawn, share_above(both.of("HalfCheetah")["tanh"])]


def accounting() -> dict[str, Estimate]:
    """Returns what clipping is worth without any learning: by how much the last policy of each run of "no" earns more
    through a clip, in the mean of its 20 pairs of episodes."""
    paired = lambda x: np.mean(np.subtract(x["clip"]["returns"], x["no"]["returns"]))
    return {place: Estimate([[*of.values()]]) for place, of in by_run(measured("bounds/played"), paired).items()}


def learning(place: str) -> Estimate:
    """Returns what clipping is worth to learning: clip − no without what is accounting."""
    of, [paired] = runs.of(place), accounting()[place].samples
    return Estimate([of["clip"], of["no"], paired], (1, -1, -1))


def table_of_accounting() -> Iterable[list[str]]:
    yield ["", "clip − no", "without any learning", "what is left for learning", "clip − no is"]
    for place, x in accounting().items():
        left = learning(place)
        name = "more than accounting" if left.interval()[0] > 0 else "called accounting"
        yield [place, str(runs(place, "clip - no")), str(x), str(left), name]


def descriptions() -> Iterable[list[str]]:
    """Yields the entropy of the last iteration and the mean KL of an iteration, and the share of runs above 2,500."""
    yield ["", "final reward", "entropy at the end (nats)", "mean KL (nats)", "above 2,500"]
    for place in PLACES:
        for way in WAYS:
            logged = (two_digits(column(runs, place, way, x).mean()) for x in ("entropy", "mean_kl"))
            share = share_above(runs.of(place)[way]) if place == "HalfCheetah" else ""
            yield [f"{place}, {way}", str(runs(place, way)), *logged, share]


PICTURES = dict(bounds=lambda: draw_finals(runs, WAYS, PLACES))
