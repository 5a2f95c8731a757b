"""From q(a|v) to tracks: observations, smoothed states, most likely paths and their frames."""

from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.linalg import map_vector, square_root
from motes.kalman.model import Gaussian, SmoothedTracks
from motes.models.model import Model
from motes.models.protocols import Posterior
from motes.queries.corrections import (
    Observations,
)
from motes.queries.fit import FitReference
from motes.queries.scatter import at_least

NUM_DRAWS = 64  # rendered draws that a marginal frame averages


class Tracks(NamedTuple):
    """The posterior of every object in every frame, in latent units, float64."""

    component: Int[Tensor, "B N"]
    component_probabilities: Float[Tensor, "B N K"]
    positions: Float[Tensor, "B N T 2"]  # of a_t
    covariances: Float[Tensor, "B N T 2 2"]
    states: Gaussian  # of h_t
    detected: Bool[Tensor, "B N T"]
    appearance: Any


def track_observations(
    model: Model,
    q: Posterior,
    observed: Bool[Tensor, "B T_q"],
    num_objects: Int[Tensor, " B"],
    num_frames: int,
) -> Observations:
    """Return the calibrated moments of q in its frames, and no detections in those after them.

    A model whose objects do not keep their looks has wider ones, see `motes.queries.scatter`.
    """
    scale = model.calibration_scale[(num_objects - 1).clamp(max=len(model.calibration_scale) - 1)]
    covariances = scale[:, None, None, None, None] * q.covariances()
    reference = None if model.folder is None else FitReference.load(model.folder)
    scatter = None if reference is None else reference.scatter
    if scatter is not None and scatter.floor is not None:
        covariances = at_least(covariances, scatter.floor)

    def flags(mask: Bool[Tensor, "B _ T"] | None) -> Bool[Tensor, "B N T"]:
        return (observed[:, None] if mask is None else mask).expand(q.means.shape[:3])

    detected = flags(q.detected)
    after = num_frames - detected.shape[2]
    return Observations(
        positions=pad(q.means, (0, 0, 0, after)),
        covariances=pad(covariances, (0, 0, 0, 0, 0, after)),
        detected=pad(detected, (0, after)),
        localized=pad(flags(q.localized), (0, after)),
    )


def smooth_tracks(model: Model, seen: Observations) -> SmoothedTracks:
    """Return the states of all frames under each component, given the detections."""
    variances = seen.covariances.diagonal(dim1=-2, dim2=-1).double()
    smoothed: SmoothedTracks = model.dynamics.smooth(seen.positions, seen.detected, variances)
    return smoothed


def most_likely_tracks(
    model: Model, seen: Observations, smoothed: SmoothedTracks, appearance: Any = None
) -> Tracks:
    """Return the tracks under each object's most likely component, as in the paper."""
    component = smoothed.log_weights.argmax(-1)
    states = smoothed.select(component)
    predicted = model.dynamics.emit(states)
    localized = seen.localized[..., None]
    return Tracks(
        component=component,
        component_probabilities=smoothed.log_weights.exp(),
        positions=torch.where(localized, seen.positions.double(), predicted.mean),
        covariances=torch.where(
            localized[..., None], seen.covariances.double(), predicted.covariance
        ),
        states=states,
        detected=seen.detected,
        appearance=appearance,
    )


def marginal_frames(
    model: Model,
    q: Posterior,
    observed: Bool[Tensor, "B T"],
    num_objects: Int[Tensor, " B"],
    smoothed: SmoothedTracks,
    generator: torch.Generator,
) -> Float[Tensor, "B T height width *channels"]:
    """Return the mean of each pixel with all positions marginalised.

    Exactly if the renderer can, else over draws: from q where the frame was observed, from the
    mixture of the components' predictions where it was not.
    """
    weights = smoothed.log_weights.exp()
    predicted = model.dynamics.emit(Gaussian(smoothed.means, smoothed.covariances))
    present = model.present(num_objects)
    exact: Tensor | None = model.renderer.expected_frames(q, present, weights, predicted)
    if exact is not None:
        return exact
    factors = square_root(predicted.covariance)
    borders = weights.cumsum(-1)[..., :-1]
    draws = []
    for _ in range(NUM_DRAWS):
        shape = predicted.mean[:, :, 0].shape
        noise = torch.randn(shape, generator=generator, dtype=torch.float32).to(model.device)
        uniform = torch.rand(shape[:3], generator=generator, dtype=torch.float32).to(model.device)
        component = (uniform[..., None] >= borders[:, :, None]).sum(-1)[:, :, None, :, None]
        mean = predicted.mean.take_along_dim(component, 2)[:, :, 0]
        factor = factors.take_along_dim(component[..., None], 2)[:, :, 0]
        draws.append((noise, mean + map_vector(factor, noise.double())))
    total = torch.zeros(*observed.shape, *model.frame_shape).to(model.pixel_matrix)
    for time, part in q.pieces():
        known = part.means.shape[2]  # frames; none was observed after them
        for noise, imagined in draws:
            here, there = noise[:, :, time], imagined[:, :, time]
            drawn = pad(part.draw(here[:, :, :known]), (0, 0, 0, here.shape[2] - known))
            positions = torch.where(observed[:, None, time, None], drawn.double(), there)
            total[:, time] += render_at(model, positions, num_objects, q.appearance)
    return total / NUM_DRAWS


@torch.no_grad()
def render_at(
    model: Model,
    positions: Float[Tensor, "B N T 2"],
    num_objects: Int[Tensor, " B"],
    appearance: Any,
) -> Float[Tensor, "B T height width *channels"]:
    """Return the mean of each pixel for known positions."""
    known = positions.to(model.pixel_matrix.dtype)
    return model.render(known, model.present(num_objects), appearance)
