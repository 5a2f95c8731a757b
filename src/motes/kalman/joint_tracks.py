"""What laws of all objects of a clip together have in common: joint positions and drawn moments.

A clip obeys the joint law or, with probability `STRAY`, a law that stands for clips which the joint
law does not explain. A joint law yields draws of the states of the clips that obey it; the linear
law of each object answers for all others.
"""

from collections.abc import Iterable, Iterator

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.model import STATE_DIM, SmoothedTracks

STRAY = 0.01  # probability of each other law of a clip
NUM_DRAWS = 256  # for moments

# Clips, their objects that take part, and draws [S, b, n, T, D] of the states of these objects.
DrawnClips = tuple[Int[Tensor, " b"], Int[Tensor, "b n"], Float[Tensor, "S b n T D"]]


def groups(active: Bool[Tensor, "B N"]) -> Iterator[tuple[Int[Tensor, " b"], Int[Tensor, "b n"]]]:
    """Yield the clips with each number of active objects, and which objects those are."""
    counts, order = active.sum(1), (~active).to(torch.int8).argsort(dim=1, stable=True)
    for count in counts.unique().tolist():
        if count:
            clips = (counts == count).nonzero()[:, 0]
            yield clips, order[clips, :count]


def joint_positions(
    positions: Float[Tensor, "B N T 2"],
    observed: Bool[Tensor, "B N T"],
    clips: Int[Tensor, " b"],
    slots: Int[Tensor, "b n"],
) -> tuple[Float[Tensor, "b T P"], Bool[Tensor, "b T P"]]:
    """Return the positions of some objects side by side, and which coordinates are known."""
    known = observed[clips[:, None], slots].movedim(1, 2).repeat_interleave(2, -1)
    a = positions[clips[:, None], slots].movedim(1, 2).flatten(2).double()
    return torch.where(known, a, 0.0), known


def with_moments(plain: SmoothedTracks, drawn: Iterable[DrawnClips]) -> SmoothedTracks:
    """Return smoothed tracks with the moments of draws, the same under each component."""
    means, shape = plain.means.clone(), (*plain.means.shape, STATE_DIM)
    covariances = plain.covariances.expand(shape).clone()
    for clips, slots, states in drawn:
        mean = states.mean(0)  # clips, objects, frames, D
        away = states - mean
        spread = torch.einsum("sbnti,sbntj->bntij", away, away) / len(states)
        means[clips[:, None], slots] = mean[:, :, None]
        covariances[clips[:, None], slots] = spread[:, :, None]
    return SmoothedTracks(plain.log_weights, means, covariances)


def with_draws(
    plain: Float[Tensor, "S B N T D"], drawn: Iterable[DrawnClips]
) -> Float[Tensor, "S B N T D"]:
    """Return the draws of all tracks, those of the joint law in place of the plain ones."""
    states = plain.clone()
    for clips, slots, its in drawn:
        states[:, clips[:, None], slots] = its
    return states
