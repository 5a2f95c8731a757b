"""Whether an object exists and shows: a chain of four states, solved exactly.

In every frame an object is not there yet, on (it exists and shows), off (it exists and does not
show, as between blinks) or gone. Forward and backward recursions over all tracks at once give the
probability of each state, and the log odds that the track is of an object at all.
"""

from dataclasses import dataclass, replace

import numpy as np

from motes.tracking.motion import Spans
from motes.tracking.sprite import Array

NOT_YET, ON, OFF, GONE = range(4)
FORGOTTEN = 400  # frames without detection after which more of them change nothing


@dataclass(frozen=True)
class Rates:
    """Probabilities per frame, learned from the recording.

    Attributes:
        birth: expected births per frame and pixel.
        density: objects that exist at a time, per pixel.
        death: probability that an object ends.
        off: probability that a shown object is not shown in the next frame.
        on: probability that an object that is not shown is shown in the next frame.
        missed: probability that the detector misses a shown object in the open.
    """

    birth: float = 1e-6
    density: float = 1e-5
    death: float = 0.02
    off: float = 0.02
    on: float = 0.3
    missed: float = 0.01

    @property
    def showing(self) -> float:
        """Share of existing objects that show."""
        return self.on / (self.on + self.off)

    def scaled(self, factor: float) -> "Rates":
        """Return the rates where lengths are multiplied by a factor."""
        return replace(self, birth=self.birth / factor**2, density=self.density / factor**2)


def transition(rates: Rates) -> Array:
    """Return the matrix of probabilities [from, to] of the states ON, OFF and GONE."""
    stay = 1 - rates.death
    return np.array(
        (
            (stay * (1 - rates.off), stay * rates.off, rates.death),
            (stay * rates.on, stay * (1 - rates.on), rates.death),
            (0.0, 0.0, 1.0),
        )
    )


@dataclass(frozen=True, eq=False)
class Existence:
    """What the chain says about the rows of `Spans`.

    Attributes:
        exists: probability of ON or OFF, [rows].
        shows: probability of ON, [rows].
        log_odds: of each track being an object rather than chance, [n].
        moves: expected numbers of transitions between ON, OFF and GONE, [3, 3].
        births: expected number of births after the first frame, those of `rebirth` in `moves`.
        deaths: expected number of ends inside the picture; leaving it is not one.
    """

    exists: Array
    shows: Array
    log_odds: Array
    moves: Array
    births: float
    deaths: float


def unseen_before(rates: Rates, frames: Array) -> Array:
    """Return weights of ON, OFF and GONE after frames 0 to frames - 1 without detection, [n, 3].

    Objects per pixel: those that exist in frame 0, and births in each later one.

    Law: the frames may as well be rows of the chain
    (test_frames_beyond_the_rows_equal_rows_without_detection).
    """
    steps, seen = transition(rates), np.array((rates.missed, 1.0, 1.0))
    start = np.array((rates.showing, 1 - rates.showing, 0.0))
    weights = np.zeros((min(int(frames.max(initial=0)), FORGOTTEN) + 1, 3))
    for t in range(1, len(weights)):
        arrival = rates.density if t == 1 else rates.birth
        weights[t] = (weights[t - 1] @ steps + arrival * start) * seen
    return weights[np.minimum(frames, FORGOTTEN)]


def unseen_after(rates: Rates, frames: Array) -> Array:
    """Return probabilities of no detection in that many further frames, given the state, [n, 3]."""
    steps, seen = transition(rates), np.array((rates.missed, 1.0, 1.0))
    weights = np.ones((min(int(frames.max(initial=0)), FORGOTTEN) + 1, 3))
    for t in range(1, len(weights)):
        weights[t] = steps @ (seen * weights[t - 1])
    return weights[np.minimum(frames, FORGOTTEN)]


def solve_chain(
    table: Spans,
    rates: Rates,
    evidence_on: Array,
    arrival: Array,
    survival: Array,
    before: Array | None = None,
    after: Array | None = None,
    rebirth: Array | None = None,
) -> Existence:
    """Return state probabilities of many tracks, by forward and backward recursions.

    The chain of a track has the weight
        prod_t  P(state_t | state_{t-1})  exp(evidence_on_t [state_t = ON]),
    where the step from NOT_YET to ON or OFF has the probability `arrival` instead. A chance track
    is in NOT_YET throughout, with weight 1.

    Law: equals the sum over all sequences of states
    (test_the_chain_equals_the_sum_over_all_sequences).

    Args:
        table: rows; the first one of a track is where it may begin.
        rates: probabilities of transitions.
        evidence_on: log likelihood ratio of the frame if the object shows, [rows].
        arrival: weight of beginning in a row, [rows].
        survival: further factor of not ending when the row is entered, e.g. the probability of
            still being inside the picture, [rows].
        before: weights of ON, OFF and GONE in the frame before the first row of each track, [n, 3].
        after: likelihood of what follows the last row, given ON, OFF or GONE in it, [n, 3].
        rebirth: weight of a step from GONE to ON: the detection in this row is of another object,
            born in it, [rows].
    """
    # Scaled so that no factor exceeds 1: the largest evidence of a row is taken out.
    top = np.maximum(evidence_on, 0.0)
    chance = np.exp(-top)
    factors = np.stack((np.exp(evidence_on - top), chance, chance), 1)
    start = np.array((rates.showing, 1 - rates.showing, 0.0))
    matrices = _step_matrices(transition(rates), survival)
    if rebirth is not None:
        matrices[:, 2, 0] = rebirth
    first = np.zeros((len(table.order), 4))
    first[:, 0] = 1.0
    if before is not None:
        first[:, 1:] = before[table.order]
    alpha, norm = _forward(table, first, arrival[:, None] * start, matrices, factors, chance)
    last = np.zeros(len(table.order), int)
    last[table.track] = np.arange(len(top))  # rows are ordered by age: the last one stays
    end = np.ones((len(last), 4))
    if after is not None:
        end[:, 1:] = after
    end /= (alpha[last] * end).sum(1, keepdims=True)
    beta, bounds = np.ones((len(top), 4)), table.bounds
    beta[last] = end
    for age in range(len(bounds) - 2, 0, -1):
        here, past = slice(bounds[age], bounds[age + 1]), _previous(bounds, age)
        ahead = beta[here, 1:] * (factors[here] / norm[here, None])
        begin = arrival[here] * (ahead @ start)
        beta[past, 1:] = (matrices[here] @ ahead[..., None])[..., 0]
        beta[past, 0] = beta[here, 0] * chance[here] / norm[here] + begin
    posterior = alpha * beta
    posterior /= np.maximum(posterior.sum(1, keepdims=True), 1e-300)
    never = alpha[last, 0] * end[:, 0]  # chance: NOT_YET in the last row of the track
    log_odds = np.log(np.maximum(1 - never, 1e-300)) - np.log(np.maximum(never, 1e-300))
    here = slice(bounds[1] if len(bounds) > 1 else 0, None)
    ages = np.repeat(np.arange(1, len(bounds) - 1), np.diff(bounds)[1:])
    earlier = np.arange(len(top))[here] - bounds[ages] + bounds[ages - 1]
    ahead = beta[here, 1:] * (factors[here] / norm[here, None])
    joint = alpha[earlier, 1:, None] * matrices[here] * ahead[:, None]
    births = float((alpha[earlier, 0] * arrival[here]) @ (ahead @ start))
    # Of the ends in a row, these are deaths; the others left the picture.
    inside = survival * rates.death / (1 - survival * (1 - rates.death))
    deaths = float(joint[:, :2, 2].sum(1) @ inside[here])
    exists = posterior[:, ON] + posterior[:, OFF]
    return Existence(exists, posterior[:, ON], log_odds, joint.sum(0), births, deaths)


def _previous(bounds: Array, age: int) -> slice:
    """Return the rows of the tracks of an age, one frame earlier."""
    return slice(bounds[age - 1], bounds[age - 1] + bounds[age + 1] - bounds[age])


def _forward(
    table: Spans, first: Array, arrivals: Array, matrices: Array, factors: Array, chance: Array
) -> tuple[Array, Array]:
    """Return the filtered probabilities of the four states [rows, 4], and their norms [rows]."""
    alpha, norm = np.zeros((len(chance), 4)), np.zeros(len(chance))
    for age in range(len(table.bounds) - 1):
        here = slice(table.bounds[age], table.bounds[age + 1])
        past = alpha[_previous(table.bounds, age)] if age else first
        now = np.empty((len(past), 4))
        now[:, 0] = past[:, 0] * chance[here]
        now[:, 1:] = past[:, :1] * arrivals[here] + (past[:, None, 1:] @ matrices[here])[:, 0]
        now[:, 1:] *= factors[here]
        norm[here] = np.maximum(now.sum(1), 1e-300)
        alpha[here] = now / norm[here, None]
    return alpha, norm


def _step_matrices(steps: Array, survival: Array) -> Array:
    """Return transitions [rows, 3, 3] where leaving the picture is a further death."""
    matrices = np.broadcast_to(steps, (len(survival), 3, 3)).copy()
    matrices[:, :2, :2] *= survival[:, None, None]
    matrices[:, :2, 2] = 1 - matrices[:, :2, :2].sum(2)
    return matrices
