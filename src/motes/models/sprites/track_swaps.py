"""Identity swaps between tracks: candidates scored by the dynamics, and the best ones to apply.

Tracks that cross, in view or behind an occluder, may swap identities, from some frame on or in
single frames. Refinement does not undo that, because every position is explained. So swaps of two
objects are scored: from frame t on by `Dynamics.swap_gains`, in one frame by `frame_swap_gains`.
"""

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.swap_evidence import pair_gains
from motes.models.sprites.forward_pass import Detections
from motes.models.sprites.likelihood_maps import PixelGaussian, determinant, mahalanobis

MIN_SEPARATION = 64  # frames between two swaps that are applied together


def frame_swap_gains(found: Detections, expected: PixelGaussian) -> Float[Tensor, "B N N T"]:
    """Return the gain in log p(a) if two objects swap positions in frame t alone.

    Positions are scored under the leave-one-out predictions of both objects. That of an undetected
    object is the prediction itself and scores nothing.
    """
    away = (
        found.place.mean[:, None] - expected.mean[:, :, None]
    )  # prediction of, position of, frame
    spread = expected.covariance[:, :, None]
    fit = -0.5 * (mahalanobis(away[..., None, :], spread)[..., 0] + determinant(spread).log())
    return pair_gains(torch.where(found.detected[:, None], fit, 0.0))


def best_swaps(
    gains: Float[Tensor, "B N N T"], present: Bool[Tensor, "B N"], persistent: bool
) -> tuple[Float[Tensor, " B"], Int[Tensor, "B N T"]]:
    """Return the total gain of each clip's best swaps, and the source of every object's position.

    The best swap of a short clip. In a long one further swaps are taken as long as they gain and
    are MIN_SEPARATION frames or more from those taken: crossings that far apart are independent,
    and their gains add up.

    Law: of a short clip it is the best pair and frame
    (test_the_best_swap_undoes_one_and_leaves_absent_objects_alone).
    """
    N, T = gains.shape[2:]
    slots, time = (torch.arange(size, device=gains.device) for size in (N, T))
    pairs = present[:, :, None] & present[:, None]
    left = gains.masked_fill(~pairs[..., None], -torch.inf)
    total, picks = torch.zeros_like(gains[:, 0, 0, 0]), []
    while bool((left > 0).any()):
        gain, index = left.flatten(1).max(1)
        total = total + gain.clamp(min=0)
        # Clips without further gain swap an object with itself.
        one, frame = index // (N * T), index % T
        picks.append(torch.stack([frame, one, torch.where(gain > 0, index // T % N, one)]))
        near = (time - frame[:, None]).abs() < MIN_SEPARATION
        left = left.masked_fill(near[:, None, None], -torch.inf)
    source = slots[:, None].expand(len(gains), N, T)
    # In temporal order: each swap acts on the result of earlier ones.
    for pick in _in_time(picks):
        frame, one, other = (part[:, None, None] for part in pick)
        swapped = torch.where(source == one, other, torch.where(source == other, one, source))
        source = torch.where(time >= frame if persistent else time == frame, swapped, source)
    return total, source


def _in_time(picks: list[Int[Tensor, "3 B"]]) -> list[Int[Tensor, "3 B"]]:
    """Return swaps (frame, one, other) of each clip, the earliest first."""
    if len(picks) < 2:
        return picks
    stacked = torch.stack(picks)
    order = stacked[:, 0].argsort(0)
    return list(stacked.take_along_dim(order[:, None], 0))
