"""Who is who: centres found frame by frame, put into the order of objects for a whole clip."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from motes.core.axes import Bool, Float, Int
from motes.evaluation.baselines.disks import Centres, ordered
from motes.evaluation.baselines.true_physics import TruePhysics

Seen = Float[np.ndarray, "seen N 2"]
Times = Int[np.ndarray, " past"]
Expect = Callable[[Float[np.ndarray, "past N 2"], Times, int], Float[np.ndarray, "N 2"]]


def follow(explanations: Sequence[Centres], times: Times, expect: Expect) -> Seen:
    """Centres in the order that comes nearest, frame after frame, to where objects are expected.

    Args:
        explanations: of the seen frames.
        times: of the seen frames.
        expect: from the centres so far, their times and a new time to expected centres.
    """
    chosen = [explanations[0][0].astype(np.float64)]
    for step in range(1, len(times)):
        options = ordered(explanations[step])
        expected = expect(np.stack(chosen), times[:step], int(times[step]))
        distance = np.linalg.norm(options - expected, axis=-1).sum(-1)
        chosen.append(options[distance.argmin()])
    return np.stack(chosen)


class Gain(NamedTuple):
    """What the Kalman filter does with a position seen at one frame, for each kind of start."""

    gain: Float[np.ndarray, "K 4 2"]
    precision: Float[np.ndarray, "K 2 2"]  # of the expected position
    log_scale: Float[np.ndarray, " K"]  # log of the density at the expected position


def gains(physics: TruePhysics, observed: Bool[np.ndarray, " T"]) -> list[Gain]:
    """The filter's gains at every frame; they depend on which frames are seen, not on what is."""
    A, _, B, Q, R, _, P = (part.numpy() for part in physics.model)
    found = []
    for seen in observed:
        S = B @ P @ B.T + R
        G = P @ B.T @ np.linalg.inv(S)
        found.append(Gain(G, np.linalg.inv(S), -0.5 * np.linalg.slogdet(2 * np.pi * S)[1]))
        P = A @ (P - G @ B @ P if seen else P) @ A.T + Q
    return found


def associate(
    explanations: Sequence[Centres],
    observed: Bool[np.ndarray, " T"],
    physics: TruePhysics,
    beam: int,
) -> Seen:
    """Centres in the order that is likeliest under the true physics.

    A search over whole clips that keeps the `beam` likeliest histories; a beam of one decides
    frame by frame, as a tracker does that has to answer at once.

    Law: a wide beam finds the likeliest order of all (test_a_wide_beam_is_the_exhaustive_search).
    """
    A, u, _, _, _, mu, _ = (part.numpy() for part in physics.model)
    num_objects = explanations[0].shape[1]
    means = np.broadcast_to(mu, (1, num_objects, *mu.shape))  # W N K 4
    log_weights = np.broadcast_to(physics.log_weights.numpy(), means.shape[:-1])
    histories = np.zeros((1, 0, num_objects, 2))
    remaining = iter(explanations)
    for seen, gain in zip(observed, gains(physics, observed), strict=True):
        if seen:
            first = histories.shape[1] == 0
            here = next(remaining)
            options = here.astype(np.float64) if first else ordered(here)
            surprise = options[:, :, None] - means[:, None, ..., :2]  # W P N K 2
            distance = np.einsum("wpnki,kij,wpnkj->wpnk", surprise, gain.precision, surprise)
            scores = log_weights[:, None] + gain.log_scale - 0.5 * distance
            total = np.logaddexp.reduce(scores, axis=-1).sum(-1)
            best = np.argsort(-total, axis=None, kind="stable")[:beam]
            who, what = np.unravel_index(best, total.shape)
            log_weights = scores[who, what]
            means = means[who] + np.einsum("kij,wnkj->wnki", gain.gain, surprise[who, what])
            histories = np.concatenate([histories[who], options[what][:, None]], axis=1)
        means = means @ A.T + u
    best_history: Seen = histories[0]
    return best_history
