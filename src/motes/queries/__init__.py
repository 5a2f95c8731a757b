"""Queries: infer, forecast, interpolate, sample.

The first three are one query with three masks. Frames and the flags `observed` give q(a|v)
(`Model.infer`); q's means at observed frames are the observations of one Kalman smoother; the
smoothed states give positions where nothing was observed, and paths, velocities and frames
everywhere.
"""

from collections.abc import Callable
from typing import Any, SupportsIndex

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.device import limited_threads
from motes.core.errors import InputError
from motes.core.memory import require_memory
from motes.kalman.linalg import map_vector
from motes.kalman.model import Gaussian
from motes.models.model import Model
from motes.models.protocols import DrawsTracks, Pins, Posterior, Search, SearchesAgain
from motes.queries.answer import Answer, nan_where_absent
from motes.queries.corrections import (
    Observations,
    apply_corrections,
    as_corrections,
    check_corrections,
    without_forbidden,
)
from motes.queries.counting import count_log_evidence
from motes.queries.fit import FitStatistics, judge_fit, measure_fit
from motes.queries.tracks import (
    Tracks,
    marginal_frames,
    most_likely_tracks,
    render_at,
    smooth_tracks,
    track_observations,
)
from motes.queries.validation import check_counts, check_frames, check_observed, check_whole

__all__ = ["Answer", "forecast", "infer", "interpolate", "sample"]
MAX_FRAMES = 10_000
SEARCH = Search(hypotheses=3, stream_after=256)  # effort of a query
# Peak memory as measured, in bytes: to smooth a position beside inferring it, to sample one, and to
# render a pixel.
SMOOTHING_BYTES, SAMPLING_BYTES, RENDERING_BYTES = 12_000, 450, 22
DRAWING_BYTES = 20_000  # of a position, for NUM_PATHS draws
NUM_PATHS = 64  # of `answer.draws`
RenderFrames = Callable[[], Float[Tensor, "B T height width *channels"]]


def infer(
    model: Model,
    frames: Any,
    num_objects: Any = None,
    *,
    seed: SupportsIndex = 0,
    corrections: Any = None,
) -> Answer:
    """Return where every object is in every frame, all frames being observed.

    Args:
        model: From `motes.load`.
        frames: [B, T, height, width], values in [0, 1].
        num_objects: One number, one for each clip, or None to infer it.
        seed: Of the draws averaged in `answer.frames`.
        corrections: `Pin`, `Forbid` and `Swap` of `motes.queries.corrections`, or mappings.
    """
    checked = check_frames(model, frames)
    everything = torch.ones(checked.shape[:2], dtype=torch.bool, device=model.device)
    return _query(model, checked, everything, num_objects, seed, corrections)


def forecast(
    model: Model,
    frames: Any,
    num_objects: Any = None,
    horizon: SupportsIndex = 25,
    *,
    seed: SupportsIndex = 0,
    corrections: Any = None,
) -> Answer:
    """Return where every object is in the given frames and in the `horizon` frames after them.

    The paper's procedure: the filtered state after the last frame, for the most likely component,
    is propagated by the learned dynamics. The answer covers all frames, the observed ones first.
    """
    horizon = check_whole("horizon", horizon, 1, MAX_FRAMES)
    checked = check_frames(model, frames)
    observed = torch.arange(checked.shape[1] + horizon, device=model.device) < checked.shape[1]
    flags = observed.expand(len(checked), -1)
    return _query(model, checked, flags, num_objects, seed, corrections)


def interpolate(
    model: Model,
    frames: Any,
    observed: Any,
    num_objects: Any = None,
    *,
    seed: SupportsIndex = 0,
    corrections: Any = None,
) -> Answer:
    """Return where every object is in every frame, only some of which were observed.

    Args:
        model: From `motes.load`.
        frames: [B, T, height, width]; pixels of unobserved frames do not matter.
        observed: Booleans [T] or [B, T], True where the frame was observed.
        num_objects: One number, one for each clip, or None to infer it.
        seed: Of the draws averaged in `answer.frames`.
        corrections: `Pin`, `Forbid` and `Swap` of `motes.queries.corrections`, or mappings.
    """
    flags = check_observed(model, observed, frames)
    checked = check_frames(model, frames, flags)
    return _query(model, checked, flags, num_objects, seed, corrections)


@torch.no_grad()
def sample(
    model: Model,
    num_clips: SupportsIndex = 8,
    num_objects: Any = 2,
    num_frames: SupportsIndex = 30,
    *,
    seed: SupportsIndex = 0,
) -> Answer:
    """Return clips drawn from the model: one draw of positions and appearance for each clip.

    Positions and paths are the drawn ones, so their covariances are zero.
    """
    num_clips = check_whole("num_clips", num_clips, 1, 100_000)
    num_frames = check_whole("num_frames", num_frames, 2, MAX_FRAMES)
    seed = check_whole("seed", seed, 0, 2**63 - 1)
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
        model,
        tracks,
        lambda: render_at(model, positions, counts, tracks.appearance),
        lambda: states[None, ..., :2],
        none,
        counts,
    )


@torch.no_grad()
def _query(
    model: Model,
    frames: Float[Tensor, "B T_given height width *channels"],
    observed: Bool[Tensor, "B T"],
    num_objects: Any,
    seed: SupportsIndex,
    corrections: Any = None,
) -> Answer:
    """Return the answer of a query; frames may end with the last observed one."""
    seed = check_whole("seed", seed, 0, 2**63 - 1)
    counts = None if num_objects is None else check_counts(model, num_objects, len(frames))
    corrected = as_corrections(corrections)
    check_corrections(corrected, len(frames), observed.shape[1], counts)
    frames = without_forbidden(model, frames, corrected)
    N = model.max_objects if counts is None else model.present(counts).shape[1]
    # Frames after the last observed one carry no information, and there may be many.
    used = observed[:, : int(observed.any(0).nonzero().max()) + 1]
    given, num_frames = frames[:, : used.shape[1]], observed.shape[1]
    per_clip = model.inference.bytes_per_clip(
        N, used.shape[1], model.dynamics.num_components, SEARCH
    )
    per_clip += N * SMOOTHING_BYTES * num_frames
    _require_memory(model, observed, per_clip, f"a query about {N} objects in")
    probabilities = None
    with limited_threads(len(frames), model.inference.clips_per_thread):
        if counts is None:
            evidence = count_log_evidence(model, given, used, SEARCH)
            probabilities = evidence.softmax(1)
            counts = evidence.argmax(1) + 1
        q = model.infer(given, counts, used, SEARCH)
        seen = track_observations(model, q, used, counts, num_frames)
        if corrected:
            check_corrections(corrected, len(frames), num_frames, counts)
            searcher = _Searcher(model, given, used, counts, q)
            seen = apply_corrections(model, seen, corrected, counts, searcher.search_again)
            q = searcher.q
        tracks = most_likely_tracks(model, seen, smooth_tracks(model, seen), q.appearance)

    def render_marginal() -> Float[Tensor, "B T height width *channels"]:
        generator = torch.Generator().manual_seed(seed)
        # Smoothed again: the states of all components of a long clip would take much memory.
        return marginal_frames(model, q, observed, counts, smooth_tracks(model, seen), generator)

    def draw_paths() -> Float[Tensor, "S B N T 2"]:
        _require_memory(model, observed, N * DRAWING_BYTES * num_frames, "drawing paths of")
        variances = seen.covariances.diagonal(dim1=-2, dim2=-1).double()
        dynamics = model.dynamics
        if not isinstance(dynamics, DrawsTracks):
            law = type(dynamics).__name__
            raise InputError(f"the law of motion is {law}, which has no draws; use the moments")
        given = (seen.positions.double(), seen.detected, variances)
        return dynamics.draw_tracks(*given, NUM_PATHS, seed)[..., :2]

    return _answer(
        model, tracks, render_marginal, draw_paths, observed, counts, probabilities, given
    )


class _Searcher:
    """Searches the frames of a query again with pins; holds the latest posterior."""

    def __init__(
        self,
        model: Model,
        frames: Float[Tensor, "B T height width *channels"],
        observed: Bool[Tensor, "B T"],
        num_objects: Int[Tensor, " B"],
        q: Posterior,
    ) -> None:
        self.model, self.frames, self.observed = model, frames, observed
        self.num_objects, self.q = num_objects, q

    def search_again(
        self, seen: Observations, pins: Pins, released: Bool[Tensor, "B N"]
    ) -> Observations:
        """Return new detections, or those given where the inference cannot search again."""
        model, T = self.model, self.observed.shape[1]
        if not isinstance(model.inference, SearchesAgain):
            return seen
        known = Gaussian(seen.positions[:, :, :T].double(), seen.covariances[:, :, :T].double())
        where = pins.place
        near = Gaussian(where.mean[:, :, :T], where.covariance[:, :, :T])
        given = pins.given[:, :, :T]
        self.q = model.inference.search_again(
            self.frames,
            self.num_objects,
            self.observed,
            dynamics=model.dynamics,
            renderer=model.renderer,
            slots=seen.detected.shape[1],
            search=SEARCH,
            start=Pins(known, seen.detected[:, :, :T]),
            pins=Pins(near, given),
            released=released & given.any(-1),
            appearance=self.q.appearance,
        )
        num_frames = seen.detected.shape[2]
        return track_observations(model, self.q, self.observed, self.num_objects, num_frames)


def _require_memory(
    model: Model, clips: Bool[Tensor, "B T"], bytes_per_clip: int, what: str
) -> None:
    """Refuse what does not fit into memory; a GPU raises its own error at once."""
    if model.device.type == "cpu":
        num_clips, num_frames = clips.shape
        what = f"{what} {num_clips} clips of {num_frames} frames"
        require_memory(num_clips * bytes_per_clip, what)


def _is_inside(
    pixels: Float[Tensor, "*batch 2"], height: int, width: int
) -> Bool[Tensor, "*batch"]:
    """Return which positions lie in the picture; pixel centres are whole numbers."""
    corner = pixels.new_tensor([width - 0.5, height - 0.5])
    return ((pixels >= -0.5) & (pixels <= corner)).all(-1)


def _answer(
    model: Model,
    tracks: Tracks,
    render_marginal: RenderFrames,
    draw_paths: Callable[[], Float[Tensor, "S B N T 2"]],
    observed: Bool[Tensor, "B T"],
    num_objects: Int[Tensor, " B"],
    count_probabilities: Float[Tensor, "B Nmax"] | None = None,
    frames: Float[Tensor, "B T_given height width *channels"] | None = None,
) -> Answer:
    """Return the tracks in latent units and in pixels; fields of absent objects are NaN.

    `frames` are those that the query was asked about; a sample has none.
    """
    N = int(num_objects.max())
    present = model.present(num_objects)[:, :N]
    pixels, (height, width) = model.to_pixels(tracks.positions), model.image_size
    detected = tracks.detected & _is_inside(pixels, height, width)
    M, path = model.pixel_matrix.double(), model.dynamics.path(tracks.states)
    velocities = model.dynamics.velocities(tracks.states.mean)
    positions, appearance = tracks.positions, tracks.appearance  # kept for rendering

    def shown(values: Tensor) -> Tensor:
        return nan_where_absent(values[:, :N].float(), present)

    def checked(frames: RenderFrames) -> RenderFrames:
        def render_if_it_fits() -> Float[Tensor, "B T height width *channels"]:
            per_clip = RENDERING_BYTES * observed.shape[1] * height * width
            _require_memory(model, observed, per_clip, "rendering")
            with limited_threads(len(observed), model.inference.clips_per_thread):
                return frames()

        return render_if_it_fits

    def measure() -> FitStatistics | None:
        if frames is None:
            return None
        T = frames.shape[1]
        seen, places, found = observed[:, :T], positions[:, :, :T], detected[:, :, :T]
        with limited_threads(len(observed), model.inference.clips_per_thread):
            return measure_fit(model, frames, seen, places, found, num_objects, appearance)

    return Answer(
        positions=shown(tracks.positions),
        covariances=shown(tracks.covariances),
        velocities=shown(velocities),
        pixels=shown(pixels),
        pixel_covariances=shown(M @ tracks.covariances @ M.mT),
        pixel_velocities=shown(map_vector(M, velocities)),
        path_pixels=shown(model.to_pixels(path.mean)),
        path_pixel_covariances=shown(M @ path.covariance @ M.mT),
        component=torch.where(present, tracks.component[:, :N], -1),
        component_probabilities=shown(tracks.component_probabilities),
        observed=observed,
        found=detected[:, :N] & present[..., None],
        num_objects=num_objects,
        count_probabilities=count_probabilities,
        draw_frames=checked(render_marginal),
        draw_mean_frames=checked(lambda: render_at(model, positions, num_objects, appearance)),
        draw_paths=lambda: shown(model.to_pixels(draw_paths()).movedim(0, 2)).movedim(2, 0),
        measure=measure,
        forks=bool(getattr(model.dynamics, "forks", False)),
        judge=lambda: (fit := measure()) and judge_fit(model, fit, num_objects, observed.sum(1)),
    )
