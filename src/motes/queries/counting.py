"""The number of objects in a clip: a bound on the evidence of every count."""

import math

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.memory import chunk_size
from motes.models.elbo import terms_of
from motes.models.model import Model
from motes.models.protocols import Search
from motes.queries.fit import ENOUGH_EXPLAINED, measure_fit

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

    With a uniform prior over counts, its softmax is the probability of each count. Nmax is the
    largest learned count. A search goes on to larger counts in clips in which that many objects
    leave foreground unexplained, as long as the bound rises; other clips have minus infinity there.

    If objects are exchangeable, q is one of n! equally likely labelings. One more object may be
    present than was detected, occluded by another: the bound for n objects is that for n - 1 and
    another one anywhere, where that is higher; half of the n! labelings are then equal. [Choice 36]

    Law: for the paper's networks, the bound averaged over draws; for a search, near the evidence
    by drawing all objects from the prior (test_an_object_that_may_be_behind_another_leaves_doubt).
    """
    draws = _draws(model, 0, frames, model.max_objects)
    counts = torch.arange(1, model.max_objects + 1, device=model.device)
    chunk = chunk_size(CHUNK_PIXELS, frames.numel(), frames)
    parts = [_bounds(model, frames, observed, some, draws, search) for some in counts.split(chunk)]
    bounds, gains = (torch.cat([part[i] for part in parts]) for i in range(2))
    if not model.inference.exchangeable:
        return bounds.T
    columns, unseen = [bounds[0]], gains[0]
    for count, bound, gain in zip(range(2, len(bounds) + 1), bounds[1:], gains[1:], strict=True):
        found, fewer = bound + math.lgamma(count + 1), columns[-1] + math.log(count / 2) + unseen
        # The gain of one more is known beside the detected objects. Beside n - 1 detected ones and
        # one anywhere it is at most the gain beside those n - 1 alone.
        unseen = torch.where(found > fewer, gain, gain.minimum(unseen))
        columns.append(found.maximum(fewer))
    evidence = torch.stack(columns, 1)
    unexplained = parts[-1][2] < ENOUGH_EXPLAINED
    clips = (unexplained & (evidence.argmax(1) == len(counts) - 1)).nonzero()[:, 0]
    for count in range(len(counts) + 1, model.max_searchable_objects + 1):
        if not len(clips):
            break
        draws, one = _draws(model, count, frames[clips], count), counts.new_tensor([count])
        bound, *_ = _bounds(model, frames[clips], observed[clips], one, draws, search)
        column = torch.full_like(evidence[:, 0], -math.inf)
        column[clips] = (bound[0] + math.lgamma(count + 1)).to(column.dtype)
        clips = clips[column[clips] > evidence[clips, -1]]
        evidence = torch.cat([evidence, column[:, None]], 1)
    return evidence


def _draws(
    model: Model, seed: int, frames: Float[Tensor, "B T *pixels"], num_objects: int
) -> Float[Tensor, "draws B N T 2"]:
    """Return noise that is the same for every clip, so that counts do not depend on the batch."""
    shape = (NUM_DRAWS, 1, num_objects, frames.shape[1], 2)
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(shape, generator=generator, dtype=torch.float32)
    return draws.expand(-1, len(frames), -1, -1, -1).to(model.device)


def _bounds(
    model: Model,
    frames: Float[Tensor, "B T height width *channels"],
    observed: Bool[Tensor, "B T"],
    counts: Int[Tensor, " some"],
    draws: Float[Tensor, "draws B N T 2"],
    search: Search,
) -> tuple[Float[Tensor, "some B"], Float[Tensor, "some B"], Float[Tensor, " B"]]:
    """Return the bound for some counts, evaluated together, and the gain of one more object.

    Also the share of the foreground that the last of these counts explains.
    """
    some, B = len(counts), len(frames)

    def repeated(values: Tensor) -> Tensor:
        """Return the values once for every count; a single count makes no copy."""
        return values[None].expand(some, *values.shape).flatten(0, 1)

    clips, flags, numbers = repeated(frames), repeated(observed), counts.repeat_interleave(B)
    q = model.infer(clips, numbers, flags, search)
    terms = [terms_of(model, q, clips, numbers, repeated(noise), flags) for noise in draws]
    bounds = torch.stack([each.weighted(1.0) for each in terms]).mean(0).unflatten(0, (some, B))
    if not model.inference.exchangeable:
        return bounds, torch.full_like(bounds, -math.inf), torch.ones_like(bounds[0])
    # At the means: a draw that missed its object would leave room for one more.
    assert q.detected is not None
    there = q.detected.any(2) & model.present(numbers)
    gains = [
        log_unseen(model, q.means[rows, :count], there[rows, :count], frames, observed)
        for count, rows in zip(counts.tolist(), torch.arange(some * B).split(B), strict=True)
    ]
    last = torch.arange(some * B, device=model.device)[-B:]
    appearance = None if q.appearance is None else q.appearance.select(last)
    fit = measure_fit(
        model, frames, observed, q.means[last], q.detected[last], numbers[last], appearance
    )
    return bounds, torch.stack(gains), fit.explained


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
    tracks = model.dynamics.sample((number, 1), T, generator).positions[:, 0].to(positions)
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
