"""The number of objects in a clip: a bound on the evidence of every count."""

import math

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.memory import chunk_size
from motes.models.model import Model, terms_of
from motes.models.protocols import Search

NUM_DRAWS = 8
# Draws of one more object's track, divided by the cube of the number of frames: few tracks stay
# behind other objects for long.
UNSEEN_DRAWS = 4096
CHUNK_PIXELS = 2**22  # pixels held together, which bounds memory


def count_log_evidence(
    model: Model,
    frames: Float[Tensor, "B T height width *channels"],
    observed: Bool[Tensor, "B T"],
    search: Search,
) -> Float[Tensor, "B Nmax"]:
    """Return a bound on log p(observed frames | n objects) for n = 1..Nmax, in nats.

    With a uniform prior over counts, its softmax is the probability of each count.

    If objects are exchangeable, q is one of n! equally likely labelings. One more object may be
    present than was detected, occluded by another: the bound for n objects is that for n - 1 and
    another one anywhere, where that is higher; half of the n! labelings are then equal. [Choice 36]

    Law: for the paper's networks, the bound averaged over draws; for a search, near the evidence
    by drawing all objects from the prior (test_an_object_that_may_be_behind_another_leaves_doubt).
    """
    generator = torch.Generator().manual_seed(0)
    shape = (NUM_DRAWS, len(frames), model.max_objects, frames.shape[1], 2)
    draws = torch.randn(shape, generator=generator, dtype=torch.float32).to(model.device)
    counts = torch.arange(1, model.max_objects + 1, device=model.device)
    chunk = chunk_size(CHUNK_PIXELS, frames.numel(), frames)
    parts = [_bounds(model, frames, observed, some, draws, search) for some in counts.split(chunk)]
    bounds, gains = (torch.cat(part) for part in zip(*parts, strict=True))
    if not model.inference.exchangeable:
        return bounds.T
    columns, unseen = [bounds[0]], gains[0]
    for count, bound, gain in zip(range(2, len(bounds) + 1), bounds[1:], gains[1:], strict=True):
        found, fewer = bound + math.lgamma(count + 1), columns[-1] + math.log(count / 2) + unseen
        # The gain of one more is known beside the detected objects. Beside n - 1 detected ones and
        # one anywhere it is at most the gain beside those n - 1 alone.
        unseen = torch.where(found > fewer, gain, gain.minimum(unseen))
        columns.append(found.maximum(fewer))
    return torch.stack(columns, 1)


def _bounds(
    model: Model,
    frames: Float[Tensor, "B T height width *channels"],
    observed: Bool[Tensor, "B T"],
    counts: Int[Tensor, " some"],
    draws: Float[Tensor, "draws B N T 2"],
    search: Search,
) -> tuple[Float[Tensor, "some B"], Float[Tensor, "some B"]]:
    """Return the bound for some counts, evaluated together, and the gain of one more object."""
    some, B = len(counts), len(frames)

    def repeated(values: Tensor) -> Tensor:
        """Return the values once for every count; a single count makes no copy."""
        return values[None].expand(some, *values.shape).flatten(0, 1)

    clips, flags, numbers = repeated(frames), repeated(observed), counts.repeat_interleave(B)
    q = model.infer(clips, numbers, flags, search)
    terms = [terms_of(model, q, clips, numbers, repeated(noise), flags) for noise in draws]
    bounds = torch.stack([each.weighted(1.0) for each in terms]).mean(0).unflatten(0, (some, B))
    if not model.inference.exchangeable:
        return bounds, torch.full_like(bounds, -math.inf)
    # At the means: a draw that missed its object would leave room for one more.
    assert q.detected is not None
    there = q.detected.any(2) & model.present(numbers)
    gains = [
        log_unseen(model, q.means[rows, :count], there[rows, :count], frames, observed)
        for count, rows in zip(counts.tolist(), torch.arange(some * B).split(B), strict=True)
    ]
    return bounds, torch.stack(gains)


def log_unseen(
    model: Model,
    positions: Float[Tensor, "B n T 2"],
    there: Bool[Tensor, "B n"],
    frames: Float[Tensor, "B T height width *channels"],
    observed: Bool[Tensor, "B T"],
) -> Float[Tensor, " B"]:
    """Return log E p(frames | objects and one more) / p(frames | objects) over the prior of one.

    Only detected objects count. Minus infinity where no track is drawn: for long clips, and for
    frames of grey levels.
    """
    B, n, T, _ = positions.shape
    renderer, number = model.renderer, UNSEEN_DRAWS // int(observed.sum(1).max()) ** 3
    if renderer.grey_levels or number == 0:
        return torch.full((B,), -math.inf, device=positions.device)

    generator = torch.Generator().manual_seed(1)
    tracks = model.dynamics.sample((number,), T, generator).positions.to(positions)
    chunk = chunk_size(CHUNK_PIXELS, frames.numel(), frames)
    before, gains = renderer.log_likelihood(positions, there, frames), []
    for some in tracks.split(chunk):
        s = len(some)
        others = positions[:, None].expand(B, s, n, T, 2)
        one = some[None, :, None].expand(B, s, 1, T, 2)
        both = torch.cat([others, one], 2).flatten(0, 1)
        present = torch.nn.functional.pad(there, (0, 1), value=True).repeat_interleave(s, 0)
        clips = frames[:, None].expand(B, s, *frames.shape[1:]).flatten(0, 1)
        after = renderer.log_likelihood(both, present, clips)
        gain = after.unflatten(0, (B, s)) - before[:, None]
        gains.append(torch.where(observed[:, None], gain, 0.0).sum(2))
    return torch.cat(gains, 1).logsumexp(1) - math.log(number)
