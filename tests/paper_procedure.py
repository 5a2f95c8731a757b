"""The paper's interpolation, one step after another, its Kalman part by dense Gaussians."""

import numpy as np
import torch

from motes.models.model import Model
from motes.models.protocols import GaussianPosterior
from oracles import log_density, one_model, posterior
from tiny import MAX_OBJECTS


def paper_posterior(
    model: Model, frames: torch.Tensor, before: int, after: int, count: int
) -> GaussianPosterior:
    """The section "Inference using past and future observations" for one clip, step by step.

    v_{1:5} give the first means and the most likely component k*; images in between are drawn at
    what k* expects given those means; the network, run on over them, reads the last images.
    """
    T = frames.shape[1]
    present = torch.arange(MAX_OBJECTS)[None] < count
    state = model.inference.initial_states(torch.tensor([count]))
    means, scales = [], []

    def read(frame: torch.Tensor) -> None:
        nonlocal state
        state = model.inference.step(state, frame)
        mean, scale = model.inference.read_out(state)
        means.append(mean[0])
        scales.append(scale[0])

    for t in range(before):
        read(frames[:, t])
    seen = np.arange(T) < before
    expected = torch.zeros(1, MAX_OBJECTS, T, 2, dtype=frames.dtype)
    for n in range(MAX_OBJECTS):
        track = np.zeros((T, 2))
        track[:before] = torch.stack(means)[:, n].numpy()
        expected[0, n] = torch.from_numpy(most_likely_path(model, track, seen)[0])
    pictures = model.renderer(expected, present).sigmoid()
    for t in range(before, T - after):
        read(pictures[:, t])
    for t in range(T - after, T):
        read(frames[:, t])
    return GaussianPosterior(torch.stack(means, 1)[None], torch.stack(scales, 1)[None])


def most_likely_path(
    model: Model, track: np.ndarray, seen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """Mean positions [T, 2] and covariances of all states under k*, by dense Gaussians; and k*."""
    K = len(model.dynamics.logits)
    parts = [one_model(model.dynamics.components(), (K,), (k,)) for k in range(K)]
    weights = model.dynamics.log_weights().detach().numpy()
    logs = [log_density(part, track, seen) for part in parts]
    k = int(np.argmax(weights + logs))
    mean, cov = posterior(parts[k], track, seen)
    return mean[:, :2], cov, k
