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
        births: expected number of births after the first frame.
        deaths: expected number of ends inside the picture; leaving it is not one.
    """

    exists: Array
    shows: Array
    log_odds: Array
    moves: Array
    births: float
    deaths: float


def solve_chain(
    table: Spans, rates: Rates, evidence_on: Array, arrival: Array, survival: Array
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
    """
    rows = len(table.track)
    bounds = table.bounds
    steps = transition(rates)
    start = np.array((rates.showing, 1 - rates.showing, 0.0))
    # Scaled so that no factor exceeds 1: the largest evidence of a row is taken out.
    top = np.maximum(evidence_on, 0.0)
    factors = np.stack((np.exp(evidence_on - top), np.exp(-top), np.exp(-top)), 1)
    alpha = np.zeros((rows, 4))
    scale = np.zeros(rows)
    matrices = _step_matrices(steps, survival)
    previous = np.zeros((0, 4))
    for age in range(len(bounds) - 1):
        low, high = bounds[age], bounds[age + 1]
        size = high - low
        here = np.zeros((size, 4))
        here[:, 1:] = arrival[low:high, None] * start
        if age:
            before = previous[:size]
            here[:, 1:] *= before[:, :1]
            here[:, 1:] += np.einsum("ni,nij->nj", before[:, 1:], matrices[low:high])
            here[:, 0] = before[:, 0]
        else:
            here[:, 0] = 1.0
        here[:, 1:] *= factors[low:high]
        here[:, 0] *= np.exp(-top[low:high])
        total = np.maximum(here.sum(1), 1e-300)
        scale[low:high] = np.log(total) + top[low:high]
        previous = here / total[:, None]
        alpha[low:high] = previous
    beta = np.ones((rows, 4))
    moves, births, deaths = np.zeros((3, 3)), 0.0, 0.0
    # Of the ends in a row, these are deaths; the others left the picture.
    inside = survival * rates.death / (1 - survival * (1 - rates.death))
    for age in range(len(bounds) - 2, 0, -1):
        low, high = bounds[age], bounds[age + 1]
        past = slice(bounds[age - 1], bounds[age - 1] + high - low)
        norm = np.exp(scale[low:high] - top[low:high])[:, None]
        ahead = beta[low:high, 1:] * factors[low:high]
        alone = beta[low:high, 0] * np.exp(-top[low:high])
        back = np.einsum("nij,nj->ni", matrices[low:high], ahead)
        begin = arrival[low:high] * (ahead @ start)
        joint = alpha[past, 1:, None] * matrices[low:high] * ahead[:, None] / norm[..., None]
        moves += joint.sum(0)
        deaths += float(joint[:, :2, 2].sum(1) @ inside[low:high])
        births += float((alpha[past, 0] * begin / norm[:, 0]).sum())
        beta[past, 1:] = back / norm
        beta[past, 0] = (alone + begin) / norm[:, 0]
    posterior = alpha * beta
    posterior /= np.maximum(posterior.sum(1, keepdims=True), 1e-300)
    # Chance: NOT_YET in the last row of the track.
    last = np.zeros(len(table.order), int)
    last[table.track] = np.arange(rows)  # rows are ordered by age: the last one stays
    never = alpha[last, 0]
    log_odds = np.log(np.maximum(1 - never, 1e-300)) - np.log(np.maximum(never, 1e-300))
    return Existence(
        posterior[:, ON] + posterior[:, OFF], posterior[:, ON], log_odds, moves, births, deaths
    )


def _step_matrices(steps: Array, survival: Array) -> Array:
    """Return transitions [rows, 3, 3] where leaving the picture is a further death."""
    matrices = np.broadcast_to(steps, (len(survival), 3, 3)).copy()
    matrices[:, :2, :2] *= survival[:, None, None]
    matrices[:, :2, 2] = 1 - matrices[:, :2, :2].sum(2)
    return matrices
