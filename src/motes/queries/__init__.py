"""Queries: infer, forecast, interpolate, sample.

The first three are one query with three masks. Frames and the flags `observed` give q(a|v)
(`Model.infer`); q's means at observed frames are the observations of one Kalman smoother; the
smoothed states give positions where nothing was observed, and paths, velocities and frames
everywhere (`motes.queries.tracks`).
"""

from collections.abc import Callable
from typing import Any

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.memory import require_memory
from motes.kalman.linalg import map_vector
from motes.kalman.mixture import Gaussian
from motes.models.model import Model
from motes.models.protocols import Search
from motes.queries.answer import Answer, blank
from motes.queries.counting import count_log_evidence
from motes.queries.tracks import (
    Tracks,
    marginal_frames,
    most_likely_tracks,
    observations,
    render,
    smooth,
)
from motes.queries.validation import check_counts, check_frames, check_observed, check_whole

__all__ = ["Answer", "forecast", "infer", "interpolate", "sample"]

MAX_FRAMES = 10_000
SEARCH = Search(hypotheses=3, stream_after=256)  # effort of a query
# Peak memory as measured, in bytes: to smooth a position beside inferring it, to sample one, and to
# render a pixel.
SMOOTHING_BYTES, SAMPLING_BYTES, RENDERING_BYTES = 12_000, 450, 22

RenderFrames = Callable[[], Float[Tensor, "B T height width *channels"]]


def infer(model: Model, frames: Any, num_objects: Any = None, *, seed: int = 0) -> Answer:
    """Return where every object is in every frame, all frames being observed.

    Args:
        model: From `motes.load`.
        frames: [B, T, height, width], values in [0, 1].
        num_objects: One number, one for each clip, or None to infer it.
        seed: Of the draws averaged in `answer.frames`.
    """
    checked = check_frames(model, frames)
    everything = torch.ones(checked.shape[:2], dtype=torch.bool, device=model.device)
    return _query(model, checked, everything, num_objects, seed)


def forecast(
    model: Model, frames: Any, num_objects: Any = None, horizon: int = 25, *, seed: int = 0
) -> Answer:
    """Return where every object is in the given frames and in the `horizon` frames after them.

    The paper's procedure: the filtered state after the last frame, for the most likely component,
    is propagated by the learned dynamics. The answer covers all frames, the observed ones first.
    """
    check_whole("horizon", horizon, 1, MAX_FRAMES)
    checked = check_frames(model, frames)
    observed = torch.arange(checked.shape[1] + horizon, device=model.device) < checked.shape[1]
    return _query(model, checked, observed.expand(len(checked), -1), num_objects, seed)


def interpolate(
    model: Model, frames: Any, observed: Any, num_objects: Any = None, *, seed: int = 0
) -> Answer:
    """Return where every object is in every frame, only some of which were observed.

    Args:
        model: From `motes.load`.
        frames: [B, T, height, width]; pixels of unobserved frames do not matter.
        observed: Booleans [T] or [B, T], True where the frame was observed.
        num_objects: One number, one for each clip, or None to infer it.
        seed: Of the draws averaged in `answer.frames`.
    """
    flags = check_observed(model, observed, frames)
    return _query(model, check_frames(model, frames, flags), flags, num_objects, seed)


@torch.no_grad()
def sample(
    model: Model, num_clips: int = 8, num_objects: Any = 2, num_frames: int = 30, *, seed: int = 0
) -> Answer:
    """Return clips drawn from the model: one draw of positions and appearance for each clip.

    Positions and paths are the drawn ones, so their covariances are zero.
    """
    check_whole("num_clips", num_clips, 1, 100_000)
    check_whole("num_frames", num_frames, 2, MAX_FRAMES)
    check_whole("seed", seed, 0, 2**63 - 1)
    counts = check_counts(model, num_objects, num_clips)
    generator = torch.Generator().manual_seed(seed)
    batch = tuple(model.present(counts).shape)
    none = torch.zeros(1, 1, dtype=torch.bool, device=model.device).expand(num_clips, num_frames)
    _require_memory(model, none, SAMPLING_BYTES * batch[1] * num_frames, "sampling")
    component, states, positions = model.dynamics.sample(batch, num_frames, generator)
    zeros = states.new_zeros(*states.shape, states.shape[-1])
    certain = torch.nn.functional.one_hot(component, model.dynamics.num_components)
    tracks = Tracks(
        component=component,
        component_probabilities=certain.double(),
        positions=positions,
        covariances=zeros[..., :2, :2],
        states=Gaussian(states, zeros),
        detected=torch.zeros(positions.shape[:3], dtype=torch.bool, device=model.device),
        appearance=model.renderer.sample_appearance(batch, generator),
    )
    return _answer(
        model, tracks, lambda: render(model, positions, counts, tracks.appearance), none, counts
    )


@torch.no_grad()
def _query(
    model: Model,
    frames: Float[Tensor, "B T_given height width *channels"],
    observed: Bool[Tensor, "B T"],
    num_objects: Any,
    seed: int,
) -> Answer:
    """Return the answer of a query; frames may end with the last observed one."""
    check_whole("seed", seed, 0, 2**63 - 1)
    counts = None if num_objects is None else check_counts(model, num_objects, len(frames))
    N = model.max_objects if counts is None else model.present(counts).shape[1]
    # Frames after the last observed one carry no information, and there may be many.
    used = observed[:, : int(observed.any(0).nonzero().max()) + 1]
    given, num_frames = frames[:, : used.shape[1]], observed.shape[1]
    per_clip = model.inference.bytes_per_clip(N, used.shape[1], model.dynamics.num_components)
    per_clip += N * SMOOTHING_BYTES * num_frames
    _require_memory(model, observed, per_clip, f"a query about {N} objects in")
    probabilities = None
    if counts is None:
        evidence = count_log_evidence(model, given, used, SEARCH)
        probabilities = evidence.softmax(1)
        counts = evidence.argmax(1) + 1
    q = model.infer(given, counts, used, SEARCH)
    seen = observations(model, q, used, counts, num_frames)
    tracks = most_likely_tracks(model, seen, smooth(model, seen), q.appearance)

    def render_marginal() -> Float[Tensor, "B T height width *channels"]:
        generator = torch.Generator().manual_seed(seed)
        # Smoothed again: the states of all components of a long clip would take much memory.
        return marginal_frames(model, q, observed, counts, smooth(model, seen), generator)

    return _answer(model, tracks, render_marginal, observed, counts, probabilities)


def _require_memory(
    model: Model, clips: Bool[Tensor, "B T"], bytes_per_clip: int, what: str
) -> None:
    """Refuse what does not fit into memory; a GPU raises its own error at once."""
    if model.device.type == "cpu":
        num_clips, num_frames = clips.shape
        what = f"{what} {num_clips} clips of {num_frames} frames"
        require_memory(num_clips * bytes_per_clip, what)


def _answer(
    model: Model,
    tracks: Tracks,
    render_marginal: RenderFrames,
    observed: Bool[Tensor, "B T"],
    num_objects: Int[Tensor, " B"],
    count_probabilities: Float[Tensor, "B Nmax"] | None = None,
) -> Answer:
    """Return the tracks in latent units and in pixels; fields of absent objects are NaN."""
    N = int(num_objects.max())
    present = model.present(num_objects)[:, :N]
    M = model.pixel_matrix.double()
    path = model.dynamics.path(tracks.states)
    velocities = model.dynamics.velocities(tracks.states.mean)
    positions, appearance = tracks.positions, tracks.appearance  # kept for rendering

    def shown(values: Tensor) -> Tensor:
        return blank(values[:, :N].float(), present)

    def checked(frames: RenderFrames) -> RenderFrames:
        def render_if_it_fits() -> Float[Tensor, "B T height width *channels"]:
            height, width = model.image_size
            per_clip = RENDERING_BYTES * observed.shape[1] * height * width
            _require_memory(model, observed, per_clip, "rendering")
            return frames()

        return render_if_it_fits

    return Answer(
        positions=shown(tracks.positions),
        covariances=shown(tracks.covariances),
        velocities=shown(velocities),
        pixels=shown(model.to_pixels(tracks.positions)),
        pixel_covariances=shown(M @ tracks.covariances @ M.mT),
        pixel_velocities=shown(map_vector(M, velocities)),
        path_pixels=shown(model.to_pixels(path.mean)),
        path_pixel_covariances=shown(M @ path.covariance @ M.mT),
        component=torch.where(present, tracks.component[:, :N], -1),
        component_probabilities=shown(tracks.component_probabilities),
        observed=observed,
        found=tracks.detected[:, :N] & present[..., None],
        num_objects=num_objects,
        count_probabilities=count_probabilities,
        draw_frames=checked(render_marginal),
        draw_mean_frames=checked(lambda: render(model, positions, num_objects, appearance)),
    )
