"""The paper's equations as plain loops over frames, objects and mixture components.

Tests compare the package with these functions, values and gradients; `python -m benchmarks train`
compares the times. `x @ W` stands for the paper's W x.
"""

import math
from typing import NamedTuple

import torch
from torch.nn.functional import softplus

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.model import LGSSM
from motes.models.paper import InferenceNetwork, PaperRenderer
from motes.models.protocols import GaussianPosterior


class InferenceWeights(NamedTuple):
    """The inference network's parameters under the paper's letters, one matrix for each gate."""

    W_beta: Tensor
    b_beta: Tensor
    W_s: Tensor
    b_s: Tensor
    W_mu: Tensor
    b_mu: Tensor
    W_sigma: Tensor
    b_sigma: Tensor
    phi: Tensor


class RendererWeights(NamedTuple):
    """The renderer's parameters under the paper's letters."""

    theta: Tensor
    W_alpha: Tensor
    b_alpha: Tensor
    W_x: Tensor
    b_x: Tensor
    W_v: Tensor
    b_v: Tensor


def inference_weights(network: InferenceNetwork) -> InferenceWeights:
    """Rearrange a network's parameters, differentiably, into the paper's matrices."""
    W = torch.cat([network.from_past, network.from_below, network.from_image])
    pairs = (W, network.gate_bias, network.to_position, network.position_bias)
    (W_beta, W_s), (b_beta, b_s), (W_mu, W_sigma), (b_mu, b_sigma) = (
        pair.chunk(2, dim=-1) for pair in pairs
    )
    return InferenceWeights(W_beta, b_beta, W_s, b_s, W_mu, b_mu, W_sigma, b_sigma, network.initial)


def renderer_weights(renderer: PaperRenderer) -> RendererWeights:
    """Rearrange a renderer's parameters, differentiably, into the paper's matrices."""
    W_alpha, W_x = renderer.from_position.chunk(2, dim=-1)
    b_alpha, b_x = renderer.state_bias.chunk(2, dim=-1)
    return RendererWeights(
        renderer.empty_canvas, W_alpha, b_alpha, W_x, b_x, renderer.to_image, renderer.image_bias
    )


def encode(
    weights: InferenceWeights,
    frames: Float[Tensor, "B T height width"],
    num_objects: Int[Tensor, " B"],
    scale_floor: float,
) -> GaussianPosterior:
    """Return q(a | v), one frame and one object at a time."""
    W_beta, b_beta, W_s, b_s, W_mu, b_mu, W_sigma, b_sigma, phi = weights
    N, means, scales = phi.shape[1], [], []
    s = [torch.tanh(phi[num_objects - 1, n]) for n in range(N)]
    for v in frames.flatten(2).unbind(1):
        below = torch.zeros_like(s[0])
        for n in range(N):
            joined = torch.cat([s[n], below, v], dim=1)
            beta = torch.sigmoid(joined @ W_beta + b_beta)
            shat = torch.tanh(joined @ W_s + b_s)
            below = s[n] = (1 - beta) * below + beta * shat
            means.append(s[n] @ W_mu + b_mu)
            scales.append(scale_floor + softplus(s[n] @ W_sigma + b_sigma))
    grid = (frames.shape[1], N)  # the lists run over T, then N
    return GaussianPosterior(
        torch.stack(means, dim=1).unflatten(1, grid).transpose(1, 2),
        torch.stack(scales, dim=1).unflatten(1, grid).transpose(1, 2),
    )


def render(
    weights: RendererWeights,
    positions: Float[Tensor, "B N T 2"],
    present: Bool[Tensor, "B N"],
) -> Float[Tensor, "B T pixels"]:
    """Return the logits of all pixels, one frame and one object at a time."""
    theta, W_alpha, b_alpha, W_x, b_x, W_v, b_v = weights
    B, N, T, _ = positions.shape
    logits = []
    for t in range(T):
        x = torch.tanh(theta).expand(B, -1)
        for n in range(N):
            a = positions[:, n, t]
            alpha = torch.sigmoid(a @ W_alpha + b_alpha)
            xhat = torch.tanh(a @ W_x + b_x)
            x = torch.where(present[:, n, None], (1 - alpha) * x + alpha * xhat, x)
        logits.append(x @ W_v + b_v)
    return torch.stack(logits, dim=1)


def log_prior(
    components: LGSSM,
    log_weights: Float[Tensor, " K"],
    positions: Float[Tensor, "*batch T 2"],
) -> Float[Tensor, "*batch"]:
    """Return log p(a) by a Kalman filter for each component, one frame at a time."""
    mu, Sigma = components.initial_mean, components.initial_covariance
    joint = []
    for k, log_weight in enumerate(log_weights):
        component = components._replace(initial_mean=mu[k], initial_covariance=Sigma[k])
        joint.append(log_weight + filter_log_likelihood(component, positions))
    return torch.stack(joint, dim=-1).logsumexp(-1)


def filter_log_likelihood(
    model: LGSSM, positions: Float[Tensor, "*batch T 2"]
) -> Float[Tensor, "*batch"]:
    """Return log p(a) under one linear-Gaussian model, by the textbook Kalman filter."""
    A, u, B, Sigma_H, Sigma_A, m, P = model
    total = positions.new_zeros(positions.shape[:-2], dtype=A.dtype)
    m = m.expand(*positions.shape[:-2], -1)
    for a in positions.to(A.dtype).unbind(-2):
        residual, S = a - m @ B.T, B @ P @ B.T + Sigma_A
        whitened = torch.linalg.solve(S, residual.unsqueeze(-1)).squeeze(-1)
        squares = (residual * whitened).sum(-1)
        total = total - 0.5 * (squares + torch.logdet(S) + len(S) * math.log(2 * math.pi))
        gain = P @ B.T
        m = (m + whitened @ gain.T) @ A.T + u
        P = A @ (P - gain @ torch.linalg.solve(S, gain.T)) @ A.T + Sigma_H
    return total
