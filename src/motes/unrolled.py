"""Whole stretches of frames as one Gaussian: exact inference without a loop over frames.

Given the state h at its first frame, L frames in a row are one linear-Gaussian map of h. A short
video is one stretch: one Cholesky factor for each model, one matrix product for the whole batch.
A long one is a chain of stretches, each summed up by a few D x D matrices. Covariances depend on
the model and the mask alone, so they are formed for those axes only and never for each clip.

In this module `observed` is always given and hidden positions are already finite numbers;
`motes.kalman` is the door that sees to both.
"""

import math
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from motes.lgssm import LGSSM, map_vector
from motes.shapes import Bool, Float, Int, Tensor


class Smoothed(NamedTuple):
    """Means and covariances of the state in every frame, given all that was seen."""

    means: Float[Tensor, "... T D"]
    covariances: Float[Tensor, "... T D D"]


class Stretch(NamedTuple):
    """L frames as one map of the state h at the first of them; `LP` runs over frame and axis.

    a = E h + d + v,  h_next = F h + c + w,  Cov(v) = C,  Cov(w) = G,  Cov(w, v) = X,
    where h_next is the state at the first frame after the stretch.
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


class _Orbit(NamedTuple):
    """The state j = 0..L frames on: Phi_j h + c_j + noise of covariance V_j."""

    powers: Float[Tensor, "... J D D"]
    drifts: Float[Tensor, "... J D"]
    covariances: Float[Tensor, "... J D D"]


def unroll(model: LGSSM, num_frames: int) -> Stretch:
    """The stretch of `num_frames` frames of the model.

    Law: prior moments of its positions are those of the joint Gaussian
        (test_dense_log_likelihood_matches_joint_gaussian).
    """
    Phi, c, V = _orbit(model, num_frames)
    B = model.emission.unsqueeze(-3)
    BPhi, VB = B @ Phi, V @ B.mT
    half = _lagged(BPhi[..., :-1, :, :], VB[..., :-1, :, :])
    C = half + half.mT + _repeat_diagonally(model.position_noise, num_frames)
    return Stretch(
        emission=BPhi[..., :-1, :, :].flatten(-3, -2),
        offset=map_vector(B, c[..., :-1, :]).flatten(-2),
        noise=C,
        transition=Phi[..., -1, :, :],
        force=c[..., -1, :],
        next_noise=V[..., -1, :, :],
        cross=(Phi[..., 1:, :, :].flip(-3) @ VB[..., :-1, :, :]).transpose(-3, -2).flatten(-2),
    )


def log_likelihood_dense(
    model: LGSSM, positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"]
) -> Float[Tensor, "..."]:
    """The log density of the seen positions, from their joint Gaussian; cost O(T^3).

    Law: equals the filter's (test_all_routes_to_the_log_likelihood_agree).
    """
    E, d, C, *_ = unroll(model, positions.shape[-2])
    mu, Sigma = model.initial_mean, model.initial_covariance
    seen = _per_axis(model, observed)
    residual = (positions.flatten(-2) - (map_vector(E, mu) + d)) * seen
    W = _whitener(_hide(E @ Sigma @ E.mT + C, seen))
    return _log_density(W, map_vector(W, residual), seen)


def log_likelihood_chunked(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"] | None,
    num_frames: int,
) -> Float[Tensor, "..."]:
    """The log density of the seen positions, `num_frames` at a time; cost O(T).

    With r the whitened residual of a stretch at the predicted state m of covariance P,
    and J = E' C^-1 E, the covariance of its state given its positions is M = (I + P J)^-1 P and
        log p(a) = -1/2 (r'r - (E'r)' M (E'r) + log |C| + log |I + P J| + n log 2 pi).
    No covariance of a state is ever inverted, so singular ones are welcome.

    Law: equals the dense form for any length of stretch
        (test_all_routes_to_the_log_likelihood_agree).
    """
    masks, kind = _stretch_masks(positions, observed, num_frames)
    E, d, C, F, c, G, X = unroll(_with_stretch_axis(model), num_frames)
    seen = _per_axis(model, masks)
    W = _whitener(_hide(C, seen))
    E, X = W @ (E * seen.unsqueeze(-1)), W @ (X.mT * seen.unsqueeze(-1))
    F, G = F - X.mT @ E, G - X.mT @ X

    # From here on all stretches side by side; only `_chain` goes through them one by one.
    seen = seen.index_select(-2, kind)
    W, E, X, F, G = (part.index_select(-3, kind) for part in (W, E, X, F, G))
    a = pad(positions, (0, 0, 0, -positions.shape[-2] % num_frames)).flatten(-2)
    a = map_vector(W, (a.unflatten(-1, (len(kind), -1)) - d) * seen)
    J = E.mT @ E
    m, P, M = _chain(model, J, map_vector(E.mT, a), F, c + map_vector(X.mT, a), G)
    residual = a - map_vector(E, m)
    pull = map_vector(E.mT, residual)
    gain = map_vector(M, pull).mul(pull).sum(-1) - torch.logdet(_identity(J.shape[-1], J) + P @ J)
    return (_log_density(W, residual, seen) + 0.5 * gain).sum(-1)


def _stretch_masks(
    positions: Float[Tensor, "... T P"], observed: Bool[Tensor, "... T"] | None, num_frames: int
) -> tuple[Bool[Tensor, "... kinds L"], Int[Tensor, " chunks"]]:
    """The masks that occur among the stretches, and which of them each stretch has.

    Frames that fill up the last stretch are hidden. If all others are seen, all stretches but
    the last are alike, and their matrices are formed once and not for each.
    """
    T, device = positions.shape[-2], positions.device
    chunks = -(-T // num_frames)
    if observed is None:
        frames = torch.arange(2 * num_frames, device=device) + num_frames * (chunks - 2)
        kind = (torch.arange(chunks, device=device) == chunks - 1).long()
        return (frames < T).unflatten(-1, (2, num_frames)), kind
    padded = pad(observed, (0, chunks * num_frames - T))
    return padded.unflatten(-1, (chunks, num_frames)), torch.arange(chunks, device=device)


def _chain(
    model: LGSSM,
    precision: Float[Tensor, "... chunks D D"],
    evidence: Float[Tensor, "... chunks D"],
    transition: Float[Tensor, "... chunks D D"],
    force: Float[Tensor, "... chunks D"],
    noise: Float[Tensor, "... chunks D D"],
) -> tuple[
    Float[Tensor, "... chunks D"],
    Float[Tensor, "... chunks D D"],
    Float[Tensor, "... chunks D D"],
]:
    """Mean and covariance of each stretch's first state before, and covariance after, seeing it.

    The stretch says exp(-1/2 h'J h + h'y) about its first state h, and h_next = F h + c + N(0, G).
    """
    J, y, F, c, G = precision, evidence, transition, force, noise
    eye = _identity(J.shape[-1], J)
    P_next = model.initial_covariance.expand(J.shape[:-3] + J.shape[-2:])
    P, M = [], []
    for J_t, F_t, G_t in zip(J.unbind(-3), F.unbind(-3), G.unbind(-3), strict=True):
        P.append(P_next)
        M.append(_symmetric(torch.linalg.solve_ex(eye + P_next @ J_t, P_next)[0]))
        P_next = F_t @ M[-1] @ F_t.mT + G_t
    covariance, covariance_seen = torch.stack(P, -3), torch.stack(M, -3)

    # m_next = F (m + M (y - J m)) + c, with everything but the running m formed beforehand.
    step = F @ (eye - covariance_seen @ J)
    shift = map_vector(F, map_vector(covariance_seen, y)) + c
    m = [model.initial_mean.expand(shift.shape[:-2] + shift.shape[-1:])]
    for step_t, shift_t in zip(step.unbind(-3)[:-1], shift.unbind(-2)[:-1], strict=True):
        m.append(map_vector(step_t, m[-1]) + shift_t)
    return torch.stack(m, -2), covariance, covariance_seen


def smooth_dense(
    model: LGSSM,
    positions: Float[Tensor, "... T P"],
    observed: Bool[Tensor, "... T"],
    position_variances: Float[Tensor, "... T P"] | None = None,
) -> Smoothed:
    """The smoothed states as one regression of all states on all seen positions; cost O(T^3).

    Law: equals the sequential smoother (test_dense_and_sequential_smoothers_agree).
    """
    T, D = positions.shape[-2], model.transition.shape[-1]
    Phi, c, V = _orbit(model, T - 1)
    B, mu, Sigma = model.emission.unsqueeze(-3), model.initial_mean, model.initial_covariance
    prior_means = map_vector(Phi, mu.unsqueeze(-2)) + c
    prior_covariances = Phi @ Sigma.unsqueeze(-3) @ Phi.mT + V
    E = (B @ Phi).flatten(-3, -2)
    cross = Phi.flatten(-3, -2) @ Sigma @ E.mT + _lagged(Phi, V @ B.mT) + _lagged(B @ Phi, V).mT

    seen = _per_axis(model, observed)
    emitted = (B @ cross.unflatten(-2, (T, D))).flatten(-3, -2)
    W = _whitener(_hide(emitted + _repeat_diagonally(model.position_noise, T), seen))
    whitened = (cross * seen.unsqueeze(-2)) @ W.mT
    gain = whitened @ W
    residual = (positions - map_vector(B, prior_means)).flatten(-2)
    means = prior_means + map_vector(gain, residual).unflatten(-1, (T, D))
    blocks = whitened.unflatten(-2, (T, D))
    covariances = prior_covariances - blocks @ blocks.mT
    if position_variances is not None:
        rows = gain.unflatten(-2, (T, D))
        squares = (rows.unsqueeze(-2) * rows.unsqueeze(-3)).flatten(-4, -2)
        spread = map_vector(squares, position_variances.flatten(-2))
        covariances = covariances + spread.unflatten(-1, (T, D, D))
    return Smoothed(means, covariances.expand(*means.shape, D))


def _orbit(model: LGSSM, num_frames: int) -> _Orbit:
    """Powers of A by doubling, then running sums of what they do to u and to Sigma_H."""
    A, u, _, Sigma_H, *_ = model
    Phi, Phi_n = _identity(A.shape[-1], A).expand(A.shape).unsqueeze(-3), A.unsqueeze(-3)
    while Phi.shape[-3] <= num_frames:
        Phi, Phi_n = torch.cat([Phi, Phi_n @ Phi], -3), Phi_n @ Phi_n
    Phi = Phi[..., : num_frames + 1, :, :]
    pushes = map_vector(Phi[..., :-1, :, :], u.unsqueeze(-2))
    kicks = Phi[..., :-1, :, :] @ Sigma_H.unsqueeze(-3) @ Phi[..., :-1, :, :].mT
    return _Orbit(
        powers=Phi,
        drifts=pad(pushes.cumsum(-2), (0, 0, 1, 0)),
        covariances=pad(kicks.cumsum(-3), (0, 0, 0, 0, 1, 0)),
    )


def _lagged(
    left: Float[Tensor, "... L P D"], right: Float[Tensor, "... L D Q"]
) -> Float[Tensor, "... LP LQ"]:
    """The block matrix left_{i-j} right_j for i >= j, with i = j at half weight, zero above.

    Half weight, because the sum of two such matrices, one of them transposed, is what is wanted.
    One product gives all lags by all frames. Shifting row j by j places then takes no indices:
    rows of 2L with L zeros behind, read again as rows of 2L - 1, have moved on by one place each.
    """
    L, P, Q = left.shape[-3], left.shape[-2], right.shape[-1]
    half = torch.ones(L, 1, 1, dtype=left.dtype, device=left.device)
    half[0] = 0.5
    table = (left * half).flatten(-3, -2) @ right.transpose(-3, -2).flatten(-2)
    by_frame = table.unflatten(-1, (L, Q)).unflatten(-3, (L, P)).movedim(-2, -4)
    rows = pad(by_frame, (0, 0, 0, 0, 0, L)).flatten(-4, -3)[..., : L * (2 * L - 1), :, :]
    shifted = rows.unflatten(-3, (L, 2 * L - 1))[..., :L, :, :]
    blocks: Tensor = shifted.movedim(-4, -2).flatten(-4, -3).flatten(-2)
    return blocks


def _with_stretch_axis(model: LGSSM) -> LGSSM:
    """The same model with an axis of length 1 for the stretches behind its leading axes."""
    A, u, B, Sigma_H, Sigma_A, mu, Sigma = model
    matrices = (field.unsqueeze(-3) for field in (A, B, Sigma_H, Sigma_A, Sigma))
    A, B, Sigma_H, Sigma_A, Sigma = matrices
    return LGSSM(A, u.unsqueeze(-2), B, Sigma_H, Sigma_A, mu.unsqueeze(-2), Sigma)


def _per_axis(model: LGSSM, observed: Bool[Tensor, "... T"]) -> Float[Tensor, "... TP"]:
    """1 for each coordinate that was seen and 0 for each that was not."""
    B = model.emission
    return observed.to(B.dtype).repeat_interleave(B.shape[-2], -1)


def _hide(
    covariance: Float[Tensor, "... TP TP"], seen: Float[Tensor, "... TP"]
) -> Float[Tensor, "... TP TP"]:
    """The covariance with rows and columns of unseen coordinates taken from the identity."""
    both = seen.unsqueeze(-1) * seen.unsqueeze(-2)
    return covariance * both + (1 - seen).diag_embed()


def _repeat_diagonally(
    block: Float[Tensor, "... P P"], num_frames: int
) -> Float[Tensor, "... TP TP"]:
    """The block-diagonal matrix with the same block in every frame."""
    return torch.kron(_identity(num_frames, block), block)


def _whitener(covariance: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """The inverse of the Cholesky factor; NaN, not a wrong number, where there is none.

    No error is raised: that would wait for the device, and forbid capture in a CUDA graph.
    """
    factor, failed = torch.linalg.cholesky_ex(covariance)
    factor = torch.where((failed > 0)[..., None, None], math.nan, factor)
    identity = _identity(covariance.shape[-1], covariance)
    inverse: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
    return inverse


def _log_density(
    whitener: Float[Tensor, "... n n"],
    whitened: Float[Tensor, "... n"],
    seen: Float[Tensor, "... n"],
) -> Float[Tensor, "..."]:
    """The log density of a Gaussian residual over its seen coordinates."""
    log_scale = whitener.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return log_scale - 0.5 * (whitened.square().sum(-1) + math.log(2 * math.pi) * seen.sum(-1))


def _identity(size: int, like: Tensor) -> Float[Tensor, "size size"]:
    return torch.eye(size, dtype=like.dtype, device=like.device)


def _symmetric(matrix: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    return 0.5 * (matrix + matrix.mT)
