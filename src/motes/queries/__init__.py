"""Ask a model: infer, forecast, interpolate, sample.

The first three are one question with three masks. Frames and the flags `observed` become q(a|v)
(`motes.models.paper.gap_filling`); q's means at seen frames are the observations of one Kalman smoother; the
smoother's states give positions where nothing was seen, paths, velocities and frames everywhere.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad

from motes import kalman
from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.memory import require_memory
from motes.kalman import mixture
from motes.kalman.linalg import map_vector, square_root
from motes.kalman.model import POSITION_DIM
from motes.models.elbo import appearance_of, detected_mask
from motes.models.layers.renderer import Appearance
from motes.models.model import Model, Posterior
from motes.models.paper.gap_filling import bytes_of_a_clip, encode
from motes.models.paper.inference import GaussianPosterior
from motes.queries.answer import Answer, blank
from motes.queries.counting import count_log_evidence
from motes.queries.validation import check_counts, check_frames, check_observed, check_whole

NUM_DRAWS = 64  # pictures that a marginal frame averages
MAX_FRAMES = 10_000
# Bytes held at the peak of a question, as measured: to smooth a position beside what it took to
# encode it, to imagine one, and to draw a pixel. What cannot fit is refused before it begins.
TO_SMOOTH, TO_IMAGINE, TO_DRAW = 12_000, 450, 22

DrawFrames = Callable[[], Float[Tensor, "B T height width *channels"]]


def infer(model: Model, frames: Any, num_objects: Any = None, *, seed: int = 0) -> Answer:
    """Where every object is in every frame, all frames seen.

    Args:
        model: From `motes.load`.
        frames: [B, T, height, width], values in [0, 1].
        num_objects: One number, one for each clip, or None to infer it.
        seed: Of the draws that `answer.frames` averages.
    """
    seen = check_frames(model, frames)
    everything = torch.ones(seen.shape[:2], dtype=torch.bool, device=model.device)
    return _ask(model, seen, everything, num_objects, seed)


def forecast(
    model: Model, frames: Any, num_objects: Any = None, horizon: int = 25, *, seed: int = 0
) -> Answer:
    """Where every object was in the frames given and will be in the `horizon` frames after them.

    The paper's procedure: the filtered state after the last frame, for the most likely component,
    goes on by the learned dynamics. The answer covers all frames, the seen ones first.
    """
    check_whole("horizon", horizon, 1, MAX_FRAMES)
    seen = check_frames(model, frames)
    observed = torch.arange(seen.shape[1] + horizon, device=model.device) < seen.shape[1]
    return _ask(model, seen, observed.expand(len(seen), -1), num_objects, seed)


def interpolate(
    model: Model, frames: Any, observed: Any, num_objects: Any = None, *, seed: int = 0
) -> Answer:
    """Where every object is in every frame, though only some frames were seen.

    Args:
        model: From `motes.load`.
        frames: [B, T, height, width]; what hidden frames hold cannot matter.
        observed: Booleans [T] or [B, T], True where the frame was seen.
        num_objects: One number, one for each clip, or None to infer it.
        seed: Of the draws that `answer.frames` averages.
    """
    flags = check_observed(model, observed, frames)
    return _ask(model, check_frames(model, frames, flags), flags, num_objects, seed)


@torch.no_grad()
def sample(
    model: Model, num_clips: int = 8, num_objects: Any = 2, num_frames: int = 30, *, seed: int = 0
) -> Answer:
    """Clips that the model imagines: nothing seen, one draw of everything for each clip.

    Positions and paths are the drawn ones, so their covariances are zero.
    """
    check_whole("num_clips", num_clips, 1, 100_000)
    check_whole("num_frames", num_frames, 2, MAX_FRAMES)
    check_whole("seed", seed, 0, 2**63 - 1)
    counts = check_counts(model, num_objects, num_clips)
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(model.present(counts).shape)
    hidden = torch.zeros(1, 1, dtype=torch.bool, device=model.device).expand(num_clips, num_frames)
    _require_room(model, hidden, TO_IMAGINE * shape[1] * num_frames, "imagining")
    component, path = mixture.draw_prior(model.dynamics, shape, num_frames, generator)
    none = path.states.new_zeros(*path.states.shape, 4)
    certain = torch.nn.functional.one_hot(component, len(model.dynamics.logits))
    belief = Tracks(
        component,
        certain.double(),
        path.positions,
        none[..., :2, :2],
        kalman.Smoothed(path.states, none),
        torch.zeros(path.positions.shape[:3], dtype=torch.bool, device=model.device),
        model.draw_appearance(shape, generator),
    )

    def draw() -> Float[Tensor, "B T height width *channels"]:
        return _render(model, path.positions, counts, belief.appearance)

    return _answer(model, belief, draw, hidden, counts)


class Tracks(NamedTuple):
    """What is known of every object in every frame, in latent units, float64."""

    component: Int[Tensor, "B N"]
    component_probabilities: Float[Tensor, "B N K"]
    positions: Float[Tensor, "B N T 2"]  # of a_t
    covariances: Float[Tensor, "B N T 2 2"]
    states: kalman.Smoothed  # of h_t
    found: Bool[Tensor, "B N T"]  # where the object itself was seen
    appearance: Appearance | None  # of pictures


@torch.no_grad()
def _ask(
    model: Model,
    frames: Float[Tensor, "B T_seen height width *channels"],
    observed: Bool[Tensor, "B T"],
    num_objects: Any,
    seed: int,
) -> Answer:
    """The question behind infer, forecast and interpolate; frames may end with the seen ones."""
    check_whole("seed", seed, 0, 2**63 - 1)
    counts = None if num_objects is None else check_counts(model, num_objects, len(frames))
    N = model.max_objects if counts is None else model.present(counts).shape[1]
    # What comes after the last seen frame says nothing, and there may be much of it.
    detections_of = observed[:, : int(observed.any(0).nonzero().max()) + 1]
    shown = frames[:, : detections_of.shape[1]]
    of_a_clip = N * TO_SMOOTH * observed.shape[1] + bytes_of_a_clip(model, N, shown.shape[1])
    _require_room(model, observed, of_a_clip, f"a question about {N} objects in")
    probabilities = None
    if counts is None:
        evidence = count_log_evidence(model, shown, detections_of)
        probabilities = evidence.softmax(1)
        counts = evidence.argmax(1) + 1
    q = encode(model, shown, detections_of, counts)
    seen = sightings(model, q, detections_of, counts, observed.shape[1])
    log_weights, states = smooth_components(model, seen)
    tracks = most_likely_tracks(model, seen, log_weights, states, appearance_of(q))

    def draw_frames() -> Float[Tensor, "B T height width *channels"]:
        generator = torch.Generator().manual_seed(seed)
        # Smoothed again: of a long clip the states of all components would be much to keep.
        return marginal_frames(
            model, q, observed, counts, *smooth_components(model, seen), generator
        )

    return _answer(model, tracks, draw_frames, observed, counts, probabilities)


class Sightings(NamedTuple):
    """What q says where objects were seen, or are known to hide; elsewhere nothing of meaning."""

    positions: Float[Tensor, "B N T 2"]
    covariances: Float[Tensor, "B N T 2 2"]
    found: Bool[Tensor, "B N T"]
    known: Bool[Tensor, "B N T"]  # seen, or not to be seen in a seen frame [Choice 40]


def sightings(
    model: Model,
    q: Posterior,
    observed: Bool[Tensor, "B T_q"],
    num_objects: Int[Tensor, " B"],
    num_frames: int,
) -> Sightings:
    """The sightings of the frames that q knows, tempered, and none in those after them."""
    temper = model.temper[(num_objects - 1).clamp(max=len(model.temper) - 1)]
    covariances = temper[:, None, None, None, None] * q.covariances()
    seen = detected_mask(q, observed)
    found = (observed[:, None] if seen is None else seen).expand(q.means.shape[:3])
    known = found if isinstance(q, GaussianPosterior) else q.known
    after = num_frames - found.shape[2]
    return Sightings(
        positions=pad(q.means, (0, 0, 0, after)),
        covariances=pad(covariances, (0, 0, 0, 0, 0, after)),
        found=pad(found, (0, after)),
        known=pad(known, (0, after)),
    )


def smooth_components(
    model: Model, seen: Sightings
) -> tuple[Float[Tensor, "B N K"], kalman.Smoothed]:
    """The log of p(z = k | seen positions), and the smoothed states under each, [B N K T ...].

    The seen positions are q's means, as in the paper; q's variances widen the states. [Choice 9]
    """
    shared = bool((seen.found == seen.found[0, 0]).all())
    mask = seen.found[0, 0] if shared else seen.found  # a shared mask shares its covariances
    log_weights = mixture.component_log_posterior(model.dynamics, seen.positions, mask)
    states = kalman.smooth(
        model.dynamics.components(),
        seen.positions[:, :, None],
        mask if shared else mask[:, :, None],
        seen.covariances.diagonal(dim1=-2, dim2=-1)[:, :, None].double(),
    )
    return log_weights, states


def most_likely_tracks(
    model: Model,
    seen: Sightings,
    log_weights: Float[Tensor, "B N K"],
    states: kalman.Smoothed,
    appearance: Appearance | None = None,
) -> Tracks:
    """The tracks under each object's most likely component, as in the paper."""
    component = log_weights.argmax(-1)
    chosen = mixture.select_component(states, component)
    hidden = emitted(model, chosen)
    known = seen.known[..., None]
    return Tracks(
        component=component,
        component_probabilities=log_weights.exp(),
        positions=torch.where(known, seen.positions.double(), hidden.means),
        covariances=torch.where(known[..., None], seen.covariances.double(), hidden.covariances),
        states=chosen,
        found=seen.found,
        appearance=appearance,
    )


def emitted(model: Model, states: kalman.Smoothed) -> kalman.Smoothed:
    """The distribution of a_t = B h_t + noise where a_t itself was not seen."""
    dynamics = model.dynamics.components()
    B, Sigma_A = dynamics.emission, dynamics.position_noise
    return kalman.Smoothed(map_vector(B, states.means), B @ states.covariances @ B.mT + Sigma_A)


def marginal_frames(
    model: Model,
    q: Posterior,
    observed: Bool[Tensor, "B T"],
    num_objects: Int[Tensor, " B"],
    log_weights: Float[Tensor, "B N K"],
    states: kalman.Smoothed,
    generator: torch.Generator,
) -> Float[Tensor, "B T height width *channels"]:
    """The probability of white, averaged over each frame's positions.

    Exactly, if the family can, else over draws: from q where the frame was seen, from the mixture
    of the components' predictions where it was not.
    """
    hidden = emitted(model, states)
    exact = model.expected_frames(q, num_objects, log_weights.exp(), hidden)
    if exact is not None:
        return exact
    factors = square_root(hidden.covariances)
    borders = log_weights.exp().cumsum(-1)[..., :-1]
    draws = []
    for _ in range(NUM_DRAWS):
        noise = torch.randn(hidden.means[:, :, 0].shape, generator=generator).to(model.device)
        uniform = torch.rand(noise.shape[:3], generator=generator).to(model.device)
        component = (uniform[..., None] >= borders[:, :, None]).sum(-1)[:, :, None, :, None]
        mean = hidden.means.take_along_dim(component, 2)[:, :, 0]
        factor = factors.take_along_dim(component[..., None], 2)[:, :, 0]
        draws.append((noise, mean + map_vector(factor, noise.double())))
    total = torch.zeros(*observed.shape, *model.frame_shape, device=model.device)
    for time, part in [(slice(None), q)] if isinstance(q, GaussianPosterior) else q.pieces():
        known = part.means.shape[2]  # frames; none was seen after them
        for noise, imagined in draws:
            here, there = noise[:, :, time], imagined[:, :, time]
            seen = pad(part.draw(here[:, :, :known]), (0, 0, 0, here.shape[2] - known))
            positions = torch.where(observed[:, None, time, None], seen.double(), there)
            total[:, time] += _render(model, positions, num_objects, appearance_of(q))
    return total / NUM_DRAWS


def _render(
    model: Model,
    positions: Float[Tensor, "B N T 2"],
    num_objects: Int[Tensor, " B"],
    appearance: Appearance | None,
) -> Float[Tensor, "B T height width *channels"]:
    """Probabilities of white, or the mean of pixels, for known positions."""
    with torch.no_grad():
        drawn = positions.to(model.pixel_matrix.dtype)
        return model.draw(drawn, model.present(num_objects), appearance)


def _require_room(
    model: Model, clips: Bool[Tensor, "B T"], bytes_of_a_clip: int, what: str
) -> None:
    """Refuses what cannot fit; a GPU says so itself, at once."""
    if model.device.type == "cpu":
        num_clips, num_frames = clips.shape
        what = f"{what} {num_clips} clips of {num_frames} frames"
        require_memory(num_clips * bytes_of_a_clip, what)


def _answer(
    model: Model,
    tracks: Tracks,
    draw_frames: DrawFrames,
    observed: Bool[Tensor, "B T"],
    num_objects: Int[Tensor, " B"],
    count_probabilities: Float[Tensor, "B Nmax"] | None = None,
) -> Answer:
    """Tracks in latent units and in pixels, absent objects blanked."""
    N = int(num_objects.max())
    present = model.present(num_objects)[:, :N]
    M, delta = model.pixel_matrix.double(), model.dynamics.log_delta.exp()
    path = tracks.states.means[..., :POSITION_DIM]
    path_covariances = tracks.states.covariances[..., :POSITION_DIM, :POSITION_DIM]
    velocities = delta * tracks.states.means[..., POSITION_DIM:]

    positions, appearance = tracks.positions, tracks.appearance  # what drawing keeps

    def shown(values: Tensor) -> Tensor:
        return blank(values[:, :N].float(), present)

    def drawn(draw: DrawFrames) -> DrawFrames:
        def draw_if_there_is_room() -> Float[Tensor, "B T height width *channels"]:
            height, width = model.image_size
            of_a_clip = TO_DRAW * observed.shape[1] * height * width
            _require_room(model, observed, of_a_clip, "drawing")
            return draw()

        return draw_if_there_is_room

    return Answer(
        positions=shown(tracks.positions),
        covariances=shown(tracks.covariances),
        velocities=shown(velocities),
        pixels=shown(model.to_pixels(tracks.positions)),
        pixel_covariances=shown(M @ tracks.covariances @ M.mT),
        pixel_velocities=shown(map_vector(M, velocities)),
        path_pixels=shown(model.to_pixels(path)),
        path_pixel_covariances=shown(M @ path_covariances @ M.mT),
        component=torch.where(present, tracks.component[:, :N], -1),
        component_probabilities=shown(tracks.component_probabilities),
        observed=observed,
        found=tracks.found[:, :N] & present[..., None],
        num_objects=num_objects,
        count_probabilities=count_probabilities,
        draw_frames=drawn(draw_frames),
        draw_mean_frames=drawn(lambda: _render(model, positions, num_objects, appearance)),
    )
