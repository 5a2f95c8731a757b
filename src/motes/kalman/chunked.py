"""The likelihood of long videos as a chain of dense blocks.

Given the state h at its first frame, a block of L frames is one linear Gaussian map of h, which a
few D x D matrices summarise. Only these pass from block to block; all else is batched over blocks.

As in `motes.kalman.dense`, an estimate of the rounding error is returned beside the log density,
and unobserved positions must already be finite.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.linalg import (
    coordinate_mask,
    diagonal,
    identity,
    inverse_cholesky,
    largest,
    log_density,
    log_det_triangular,
    map_vector,
    mask_covariance,
    nan_unless_semidefinite,
    reduction,
)
from motes.kalman.model import (
    EPSILON,
    LGSSM,
    StateEstimate,
    add_to_diagonal_blocks,
    aligned,
    difference_matrix,
    emission_matrix,
    input_response,
    noise_gain,
    response,
)

CHUNK_BLOCKS = 32  # blocks of frames held in memory at once


class Block(NamedTuple):
    """L frames as one linear Gaussian map of the state h at the first of them.

    a = E h + d + v,  h_next = F h + c + w,  Cov(v) = C,  Cov(w) = G,  Cov(w, v) = X,
    where h_next is the state at the first frame after the block. `LP` runs over frame and axis.
    """

    emission: Float[Tensor, "... LP D"]
    """E"""
    offset: Float[Tensor, "... LP"]
    """d"""
    noise: Float[Tensor, "... LP LP"]
    """C"""
    transition: Float[Tensor, "... D D"]
    """F"""
    force: Float[Tensor, "... D"]
    """c"""
    next_noise: Float[Tensor, "... D D"]
    """G"""
    cross: Float[Tensor, "... D LP"]
    """X"""


def make_block(model: LGSSM, num_frames: int) -> Block:
    """Return the block of `num_frames` frames of an aligned model.

    Law: chained blocks are the model (test_all_routes_to_the_log_likelihood_agree).
    """
    P, D = model.emission.shape[-2:]
    now, T = slice(0, num_frames * P), num_frames + 1
    S = emission_matrix(model.emission, T)[..., now, :]
    last = torch.eye(T * D, dtype=S.dtype, device=S.device)[-D:].expand(*S.shape[:-2], D, T * D)
    R = response(torch.cat([S, last], -2), difference_matrix(model.transition, T))
    of_first, covariance = R[..., :D], noise_gain(model, R) @ R[..., D:].mT
    drift = input_response(model, R)
    return Block(
        emission=of_first[..., now, :],
        offset=drift[..., now],
        noise=add_to_diagonal_blocks(covariance[..., now, now], model.position_noise),
        transition=of_first[..., -D:, :],
        force=drift[..., -D:],
        next_noise=covariance[..., -D:, -D:],
        cross=covariance[..., -D:, now],
    )


def log_likelihood_chunked(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    num_frames: int,
) -> tuple[Float[Tensor, "..."], Float[Tensor, ""]]:
    """Return the log density of the observed positions; cost O(T), memory O(1).

    With r the whitened residual of a block at the predicted state m of covariance P, and
    J = E' C^-1 E, the covariance of that state given the block is M = (I + P J)^-1 P and
        log p(a) = -1/2 (r'r - (E'r)' M (E'r) + log |C| + log |I + P J| + n log 2 pi).
    No state covariance is inverted, so that singular ones are valid. `num_frames` is L.

    Law: equals the dense form for any block length
        (test_all_routes_to_the_log_likelihood_agree) and any number of blocks at once
        (test_chunks_of_blocks_do_not_change_the_log_likelihood).
    """
    with_block_axis = (
        field.unsqueeze(-2 if name in ("force", "initial_mean") else -3)
        for name, field in zip(model._fields, model, strict=True)
    )
    block, T = make_block(aligned(LGSSM(*with_block_axis)), num_frames), positions.shape[-2]
    initial = nan_unless_semidefinite(model.initial_covariance)
    predicted = StateEstimate(model.initial_mean, initial)
    total = torch.zeros((), dtype=positions.dtype, device=positions.device)
    worst = torch.zeros_like(total)
    for t in range(0, T, CHUNK_BLOCKS * num_frames):
        time = slice(t, t + CHUNK_BLOCKS * num_frames)
        mask = None if observed is None else observed[..., time]
        value, predicted, rounding = _filter_blocks(block, positions[..., time, :], mask, predicted)
        total, worst = total + value, worst.maximum(rounding)
    return total, worst


def _filter_blocks(
    block: Block,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    predicted: StateEstimate,
) -> tuple[Float[Tensor, "..."], StateEstimate, Float[Tensor, ""]]:
    """Return the log density of consecutive blocks, the state after them, and the rounding."""
    E, d, C, F, c, G, X = block
    axes = positions.shape[-1]
    masks, index = _block_masks(positions, observed, C.shape[-1] // axes)
    mask = coordinate_mask(masks, axes, C.dtype)
    C = mask_covariance(C, mask)
    W = inverse_cholesky(C)
    E, X = W @ (E * mask.unsqueeze(-1)), W @ (X.mT * mask.unsqueeze(-1))
    prior, F, G = G, F - X.mT @ E, G - X.mT @ X
    of_noise, of_block = reduction(prior, G), largest(diagonal(C) * W.detach().square().sum(-2))

    # From here on only `_propagate` is sequential over blocks.
    mask = mask.index_select(-2, index)
    W, E, X, F, G = (part.index_select(-3, index) for part in (W, E, X, F, G))
    a = pad(positions, (0, 0, 0, -positions.shape[-2] % masks.shape[-1])).flatten(-2)
    a = map_vector(W, (a.unflatten(-1, (len(index), -1)) - d) * mask)
    J = E.mT @ E
    m, P, M = _propagate(predicted, J, map_vector(E.mT, a), F, c + map_vector(X.mT, a), G)
    after = StateEstimate(m[..., -1, :], P[..., -1, :, :])
    m, P = m[..., :-1, :], P[..., :-1, :, :]
    r = a - map_vector(E, m)
    score = map_vector(E.mT, r)
    gain = map_vector(M, score).mul(score).sum(-1) - torch.logdet(identity(J.shape[-1], J) + P @ J)
    densities = log_density(log_det_triangular(W), r, r, mask.sum(-1)) + 0.5 * gain
    # A rounded covariance of the first state changes the density as much as J is larger than it.
    of_first = largest((diagonal(P) + diagonal(prior)) * diagonal(J))
    return densities.sum(-1), after, EPSILON * of_block * of_noise.maximum(of_first)


def _block_masks(
    positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"] | None, num_frames: int
) -> tuple[Bool[Tensor, "... masks L"], Int[Tensor, " blocks"]]:
    """Return masks of blocks, and the index of each block's mask among them.

    Frames that pad the last block are unobserved. If all others are observed, all blocks but the
    last have the same mask, and their matrices are formed once.
    """
    T, device = positions.shape[-2], positions.device
    num_blocks = -(-T // num_frames)
    if observed is None:
        frames = torch.arange(2 * num_frames, device=device) + num_frames * (num_blocks - 2)
        index = (torch.arange(num_blocks, device=device) == num_blocks - 1).long()
        return (frames < T).unflatten(-1, (2, num_frames)), index
    padded = pad(observed, (0, num_blocks * num_frames - T))
    masks = padded.unflatten(-1, (num_blocks, num_frames))
    return masks, torch.arange(num_blocks, device=device)


def _propagate(
    predicted: StateEstimate,
    J: Float[Tensor, "... blocks D D"],
    y: Float[Tensor, "... blocks D"],
    F: Float[Tensor, "... blocks D D"],
    c: Float[Tensor, "... blocks D"],
    G: Float[Tensor, "... blocks D D"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Filter the first states of all blocks; return predicted means, covariances, and updated ones.

    The predicted ones include the state after the last block. The likelihood of a block's first
    state h is exp(-1/2 h'J h + h'y), and h_next = F h + c + N(0, G).
    """
    eye = identity(J.shape[-1], J)
    mu, Sigma = predicted
    P, M = [Sigma.expand(torch.broadcast_shapes(J[..., 0, :, :].shape, Sigma.shape))], []
    for J_t, F_t, G_t in zip(J.unbind(-3), F.unbind(-3), G.unbind(-3), strict=True):
        updated, _ = torch.linalg.solve_ex(eye + P[-1] @ J_t, P[-1])
        M.append(0.5 * (updated + updated.mT))
        P.append(F_t @ M[-1] @ F_t.mT + G_t)
    covariances, updated = torch.stack(P, -3), torch.stack(M, -3)

    # m_next = F (m + M (y - J m)) + c, with all but the running m formed beforehand.
    step = F @ (eye - updated @ J)
    shift = map_vector(F, map_vector(updated, y)) + c
    m = [mu.expand(torch.broadcast_shapes(shift[..., 0, :].shape, mu.shape))]
    for step_t, shift_t in zip(step.unbind(-3), shift.unbind(-2), strict=True):
        m.append(map_vector(step_t, m[-1]) + shift_t)
    return torch.stack(m, -2), covariances, updated
