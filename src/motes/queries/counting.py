"""How many objects a clip holds: a bound on the evidence of every number of them."""

import math

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.memory import chunk_size
from motes.kalman.mixture import draw_prior
from motes.models.elbo import terms_of
from motes.models.model import Model
from motes.models.paper.gap_filling import encode
from motes.models.paper.inference import GaussianPosterior, InferenceNetwork
from motes.models.sprites.renderer import SpriteRenderer

NUM_DRAWS = 8
# Paths of one more object, over the cube of the number of frames: few stay behind others for long.
UNSEEN_DRAWS = 4096
AT_ONCE = 2**22  # pixels that are held side by side: bounds memory


def count_log_evidence(
    model: Model, frames: Float[Tensor, "B T height width *channels"], observed: Bool[Tensor, "B T"]
) -> Float[Tensor, "B Nmax"]:
    """A bound on log p(seen frames | n objects) for n = 1..Nmax, one column each, in nats.

    With every count equally likely beforehand, its softmax is the probability of each count.

    What a search finds has n! orders that are equally likely, of which q is one. And one more may
    be there than shows, behind another one: the bound for n objects is that for one fewer and
    another one anywhere, where that is higher; of n! orders half are then the same. [Choice 36]

    Law: for the paper's networks, the bound averaged over draws; for a search, near the evidence
    by drawing all objects from the prior (test_an_object_that_may_be_behind_another_leaves_doubt).
    """
    generator = torch.Generator().manual_seed(0)
    shape = (NUM_DRAWS, len(frames), model.max_objects, frames.shape[1], 2)
    draws = torch.randn(shape, generator=generator).to(model.device)
    numbers = torch.arange(1, model.max_objects + 1, device=model.device)
    room = chunk_size(AT_ONCE, frames.numel(), frames)
    parts = [_bounds(model, frames, observed, some, draws) for some in numbers.split(room)]
    bounds, gains = (torch.cat(part) for part in zip(*parts, strict=True))
    if isinstance(model.inference, InferenceNetwork):
        return bounds.T
    columns, unseen = [bounds[0]], gains[0]
    for count, bound, gain in zip(range(2, len(bounds) + 1), bounds[1:], gains[1:], strict=True):
        found, fewer = bound + math.lgamma(count + 1), columns[-1] + math.log(count / 2) + unseen
        # What another one gains is known beside objects that were found. Beside one fewer and one
        # anywhere it is less than beside those alone, and less than where one is missed that shows.
        unseen = torch.where(found > fewer, gain, gain.minimum(unseen))
        columns.append(found.maximum(fewer))
    return torch.stack(columns, 1)


def _bounds(
    model: Model,
    frames: Float[Tensor, "B T height width *channels"],
    observed: Bool[Tensor, "B T"],
    numbers: Int[Tensor, " some"],
    draws: Float[Tensor, "draws B N T 2"],
) -> tuple[Float[Tensor, "some B"], Float[Tensor, "some B"]]:
    """The bound for some numbers of objects, all at once, and what one more might gain."""
    some, B = len(numbers), len(frames)

    def again(values: Tensor) -> Tensor:
        """For every number; of a single one no copy is made."""
        return values[None].expand(some, *values.shape).flatten(0, 1)

    clips, seen, counts = again(frames), again(observed), numbers.repeat_interleave(B)
    q = encode(model, clips, seen, counts)
    terms = [terms_of(model, q, clips, counts, again(noise), seen) for noise in draws]
    bounds = torch.stack([each.weighted(1.0) for each in terms]).mean(0).unflatten(0, (some, B))
    if isinstance(q, GaussianPosterior):
        return bounds, torch.full_like(bounds, -math.inf)
    # At the means: of a draw that missed its object, one more would take the place.
    there = q.seen.any(2) & model.present(counts)
    gains = [
        log_unseen(model, q.means[rows, :count], there[rows, :count], frames, observed)
        for count, rows in zip(numbers.tolist(), torch.arange(some * B).split(B), strict=True)
    ]
    return bounds, torch.stack(gains)


def log_unseen(
    model: Model,
    positions: Float[Tensor, "B n T 2"],
    there: Bool[Tensor, "B n"],
    frames: Float[Tensor, "B T height width *channels"],
    observed: Bool[Tensor, "B T"],
) -> Float[Tensor, " B"]:
    """The log of how much likelier frames are, on average, with one more object of the prior.

    Of the others those count that are somewhere, which are those that were seen. Minus infinity
    where no path is drawn: of long clips, and of pictures.
    """
    B, n, T, _ = positions.shape
    renderer, number = model.renderer, UNSEEN_DRAWS // int(observed.sum(1).max()) ** 3
    if not isinstance(renderer, SpriteRenderer) or number == 0:
        return torch.full((B,), -math.inf, device=positions.device)

    generator = torch.Generator().manual_seed(1)
    paths = draw_prior(model.dynamics, (number,), T, generator)[1].positions.to(positions)
    step = chunk_size(AT_ONCE, frames.numel(), frames)
    before, gains = renderer.log_likelihood(positions, there, frames), []
    for some in paths.split(step):
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
