"""From frames, some of them hidden, to q(a|v): the paper's procedure of the warmed-in state.

The inference network reads every frame in order. Where a frame is hidden, it is shown the frame
that the model expects there: the rendered mean of the most likely component's Kalman prediction,
given the positions inferred so far. So the network arrives at the next seen frame with its
attention on the right objects, and no hidden pixel can matter. It is shown probabilities, not a
black-and-white draw of them. [Choice 8]
"""

import torch

from motes import kalman
from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.model import POSITION_DIM
from motes.models.model import Model, Posterior
from motes.models.paper.inference import GaussianPosterior, InferenceNetwork
from motes.models.sprites.grid_posterior import GridPosterior, StreamedPosterior

LONG = 256  # frames of a clip of which not all that was found is held
HYPOTHESES = 3  # that a search which answers a question chooses from
# Bytes held at the peak, as measured: to encode a position, and to search a short clip, for each
# kind of start, position and other frame, whose covariance is a matrix of its own.
TO_ENCODE, TO_SEARCH = 6_000, 150


def encode(
    model: Model,
    frames: Float[Tensor, "B T height width *channels"],
    observed: Bool[Tensor, "B T"],
    num_objects: Int[Tensor, " B"],
) -> Posterior:
    """q(a|v) for all frames; what it says where a frame is hidden means nothing.

    Law: hidden frames' pixels cannot matter, and with the mask of the paper's section on past and
    future observations it is that procedure; tests/unit/test_encoding.py.
    """
    found = model.search(frames, num_objects, observed, hypotheses=HYPOTHESES)
    if found is not None:
        return (
            StreamedPosterior.of(found) if frames.shape[1] > LONG else GridPosterior.joined(found)
        )
    assert isinstance(model.inference, InferenceNetwork)
    seen_later = observed.flip(1).cumsum(1).flip(1) > 0
    if not bool((~observed & seen_later).any()):
        return model.encode(frames, num_objects)
    return _encode_across_gaps(model, model.inference, frames, observed, num_objects)


def bytes_of_a_clip(model: Model, num_objects: int, num_frames: int) -> int:
    """What many clips take at the peak of `encode`, for each of them."""
    positions = num_objects * num_frames
    if isinstance(model.inference, InferenceNetwork) or num_frames > kalman.DENSE_FRAMES:
        return TO_ENCODE * positions
    searches = 1 if num_objects == 1 else HYPOTHESES
    starts = len(model.dynamics.logits)
    return (TO_ENCODE + TO_SEARCH * searches * starts * num_frames) * positions


def _encode_across_gaps(
    model: Model,
    network: InferenceNetwork,
    frames: Float[Tensor, "B T height width"],
    observed: Bool[Tensor, "B T"],
    num_objects: Int[Tensor, " B"],
) -> GaussianPosterior:
    """Frame by frame, imagining each hidden one before going on."""
    dynamics = model.dynamics.components()
    belief = kalman.StateEstimate(dynamics.initial_mean, dynamics.initial_covariance)
    log_weights = model.dynamics.log_weights().expand(len(frames), model.max_objects, -1)
    states = network.initial_states(num_objects)
    means, scales = [], []
    for frame, seen in zip(frames.unbind(1), observed.unbind(1), strict=True):
        if not bool(seen.all()):
            imagined = expected_frame(model, belief, log_weights, num_objects)
            frame = torch.where(seen[:, None, None], frame, imagined)
        states = network.step(states, frame)
        mean, scale = network.read_out(states)
        means.append(mean)
        scales.append(scale)
        belief, log_density = kalman.update(
            dynamics, *belief, mean[:, :, None], seen[:, None, None]
        )
        log_weights = log_weights + log_density
        belief = kalman.predict(dynamics, *belief)
    return GaussianPosterior(torch.stack(means, 2), torch.stack(scales, 2))


def expected_frame(
    model: Model,
    belief: kalman.StateEstimate,
    log_weights: Float[Tensor, "B N K"],
    num_objects: Int[Tensor, " B"],
) -> Float[Tensor, "B height width"]:
    """The picture of the mean positions of each object's most likely component."""
    likely = log_weights.argmax(-1, keepdim=True)
    mean = belief.mean[..., :POSITION_DIM].expand(*log_weights.shape, POSITION_DIM)
    expected = mean.take_along_dim(likely[..., None], 2).to(model.pixel_matrix.dtype)
    logits: Tensor = model.renderer(expected, model.present(num_objects))
    return logits.sigmoid()[:, 0]
