"""Data association: disk centres of each frame, assigned to objects for a whole clip."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from motes.core.axes import Bool, Float, Int
from motes.evaluation.baselines.disks import Centres, ordered
from motes.evaluation.baselines.true_physics import TruePhysics

Tracks = Float[np.ndarray, "observed N 2"]
Times = Int[np.ndarray, " past"]
Predict = Callable[[Float[np.ndarray, "past N 2"], Times, int], Float[np.ndarray, "N 2"]]


def nearest_neighbours(explanations: Sequence[Centres], times: Times, predict: Predict) -> Tracks:
    """Return the centres in the order that is nearest to predicted positions, frame by frame.

    Args:
        explanations: Possible sets of centres of each observed frame.
        times: Of the observed frames.
        predict: From the centres so far, their times and a new time to predicted centres.
    """
    chosen = [explanations[0][0].astype(np.float64)]
    for step in range(1, len(times)):
        options = ordered(explanations[step])
        predicted = predict(np.stack(chosen), times[:step], int(times[step]))
        distance = np.linalg.norm(options - predicted, axis=-1).sum(-1)
        chosen.append(options[distance.argmin()])
    return np.stack(chosen)


class Gain(NamedTuple):
    """Kalman gain of an observation at one frame, for each initial-state component."""

    gain: Float[np.ndarray, "K 4 2"]
    precision: Float[np.ndarray, "K 2 2"]  # of the predicted position
    log_scale: Float[np.ndarray, " K"]  # log density at the predicted position


def gains(physics: TruePhysics, observed: Bool[np.ndarray, " T"]) -> list[Gain]:
    """Return the gains at every frame; they depend on the mask of observed frames alone."""
    A, _, B, Q, R, _, P = (part.numpy() for part in physics.model)
    found = []
    for is_observed in observed:
        S = B @ P @ B.T + R
        G = P @ B.T @ np.linalg.inv(S)
        found.append(Gain(G, np.linalg.inv(S), -0.5 * np.linalg.slogdet(2 * np.pi * S)[1]))
        P = A @ (P - G @ B @ P if is_observed else P) @ A.T + Q
    return found


def associate(
    explanations: Sequence[Centres],
    observed: Bool[np.ndarray, " T"],
    physics: TruePhysics,
    beam: int,
) -> Tracks:
    """Return the centres in the most likely order under the true physics.

    A beam search over whole clips that keeps the `beam` most likely histories; a beam of one
    decides frame by frame, as an online tracker does.

    Law: a wide beam finds the most likely order of all (test_a_wide_beam_is_the_exhaustive_search).
    """
    A, u, _, _, _, mu, _ = (part.numpy() for part in physics.model)
    num_objects = explanations[0].shape[1]
    means = np.broadcast_to(mu, (1, num_objects, *mu.shape))  # W N K 4
    log_weights = np.broadcast_to(physics.log_weights.numpy(), means.shape[:-1])
    histories = np.zeros((1, 0, num_objects, 2))
    remaining = iter(explanations)
    for is_observed, gain in zip(observed, gains(physics, observed), strict=True):
        if is_observed:
            first = histories.shape[1] == 0
            here = next(remaining)
            options = here.astype(np.float64) if first else ordered(here)
            innovation = options[:, :, None] - means[:, None, ..., :2]  # W P N K 2
            distance = np.einsum("wpnki,kij,wpnkj->wpnk", innovation, gain.precision, innovation)
            scores = log_weights[:, None] + gain.log_scale - 0.5 * distance
            total = np.logaddexp.reduce(scores, axis=-1).sum(-1)
            best = np.argsort(-total, axis=None, kind="stable")[:beam]
            parent, option = np.unravel_index(best, total.shape)
            log_weights = scores[parent, option]
            means = means[parent] + np.einsum(
                "kij,wnkj->wnki", gain.gain, innovation[parent, option]
            )
            histories = np.concatenate([histories[parent], options[option][:, None]], axis=1)
        means = means @ A.T + u
    best_history: Tracks = histories[0]
    return best_history
