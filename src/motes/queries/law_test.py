"""A likelihood-ratio test of the learned law of motion against steady forces and drag."""

from collections.abc import Callable
from itertools import combinations

import torch

from motes.core.axes import Bool, Float, Tensor

MAX_FRAMES = 128  # of a clip that are tested
STEP = 0.3  # pixels: of the finite differences, and least curvature that counts
LogDensity = Callable[[Tensor, Tensor, Tensor], Tensor]


def departure_from_law(
    log_density: LogDensity,
    positions: Float[Tensor, "B N T 2"],
    present: Bool[Tensor, "B N"],
    detected: Bool[Tensor, "B N T"],
    unit: float,
) -> Float[Tensor, " B"]:
    """Return the root of twice the log-likelihood ratio of a law with force and drag.

    The alternatives add to all paths of a clip a displacement c . phi(t): that of a steady force
    along x or y, t^2 / 2, and to first order that of drag, in proportion to an object's velocity.
    The log density is nearly quadratic in c, so one Newton step from finite differences maximises
    it. If the law holds, the square has a chi-squared distribution with three degrees of freedom,
    of two for one object, whose drag is a force.

    Law: has that distribution for draws from the law, and grows with a force
    (test_the_law_test_has_its_distribution, test_a_steady_force_is_found).

    Args:
        log_density: Of positions under the law, given which are present and detected; nats.
        positions: Of objects, latent.
        present: Which objects there are.
        detected: Which positions count.
        unit: Latent length of a pixel.
    """
    positions, detected = positions[:, :, :MAX_FRAMES], detected[:, :, :MAX_FRAMES]
    clips = len(positions)
    paths = _displacements(positions, detected)
    size = (paths**2 * detected[..., None]).sum((2, 3, 4)) / detected.sum((1, 2)).clamp(min=1)
    paths = paths * (STEP * unit / size.clamp(min=1e-30).sqrt())[..., None, None, None]

    def evaluate(coefficients: Float[Tensor, "V B 3"]) -> Float[Tensor, "V B"]:
        variants = len(coefficients)
        moved = positions + torch.einsum("vbi,ibntp->vbntp", coefficients, paths)
        there = present.repeat(variants, 1), detected.repeat(variants, 1, 1)
        nats: Tensor = log_density(moved.flatten(0, 1), *there)
        return nats.reshape(variants, clips)

    axes = torch.eye(3, dtype=positions.dtype, device=positions.device)
    pairs = list(combinations(range(3), 2))
    probes = torch.stack((0 * axes[0], *axes, *-axes, *(axes[i] + axes[j] for i, j in pairs)))
    f = evaluate(probes[:, None].expand(-1, clips, -1))
    gradient = (f[1:4] - f[4:7]).mT / 2
    curvature = torch.diag_embed((f[1:4] + f[4:7] - 2 * f[0]).mT)
    for (i, j), both in zip(pairs, f[7:], strict=True):
        curvature[:, i, j] = curvature[:, j, i] = both - f[1 + i] - f[1 + j] + f[0]
    values, vectors = torch.linalg.eigh(-curvature.nan_to_num())
    inverse = torch.where(values > 1e-6 * values.amax(1, keepdim=True), 1 / values, 0.0)
    best = torch.einsum("bij,bj,bkj,bk->bi", vectors, inverse, vectors, gradient.nan_to_num())
    gain = evaluate(best[None])[0] - f[0]
    return (2 * gain.nan_to_num().clamp(min=0)).sqrt()


def _displacements(
    positions: Float[Tensor, "B N T 2"], detected: Bool[Tensor, "B N T"]
) -> Float[Tensor, "3 B N T 2"]:
    """Return the displacements by unit forces along x and y, and by drag.

    Drag slows each object by its own mean velocity, the slope of a straight line through its
    positions: its error is independent of how the path bends, which the test measures.
    """
    time = torch.arange(positions.shape[2], dtype=positions.dtype, device=positions.device)
    fall = (time**2 / 2)[:, None].expand(positions.shape)
    across = torch.tensor((1.0, 0.0), dtype=positions.dtype, device=positions.device)
    weights = detected.to(positions.dtype)
    middle = (weights * time).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True).clamp(min=1)
    lever = (weights * (time - middle))[..., None]
    slope = (lever * positions.nan_to_num()).sum(2, keepdim=True)
    slope = slope / (lever**2).sum(2, keepdim=True).clamp(min=1e-30)
    return torch.stack((fall * across, fall * (1 - across), fall * slope))
