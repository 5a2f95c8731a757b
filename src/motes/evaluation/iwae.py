"""Bounds of the evidence on held-out clips: ELBO and importance-weighted bound."""

import math
from typing import Any

import torch

from motes.core.axes import Float, Tensor
from motes.data import Clips
from motes.data.clips import clips_to_grey
from motes.evaluation.evaluate import (
    NUM_DETAILED,
    Progress,
    by_count,
    no_progress,
    require_truth,
    with_errors,
)
from motes.evaluation.metrics import clip_statistics
from motes.evaluation.predictor import Frames
from motes.models.elbo import BoundTerms, terms_of
from motes.models.model import Model
from motes.queries import SEARCH, infer

NUM_DRAWS = 32  # of the importance-weighted bound


def score_bounds(model: Model, clips: Clips, progress: Progress = no_progress) -> dict[str, Any]:
    """Return lower bounds of the log-likelihood and the accuracy of counts, for the first clips."""
    require_truth(clips)
    record: dict[str, Any] = {}
    done = 0
    for count, indices in by_count(clips[:NUM_DETAILED]).items():
        some = clips[indices]
        frames = clips_to_grey(some, model.colour_axis).frames.float().to(model.device)
        bound, weighted = bound_and_weighted(model, frames, count)
        right = infer(model, some.frames).num_objects == count
        values = {"bound": bound, "weighted_bound": weighted, "count_right": right.double()}
        statistics = {name: clip_statistics(value.cpu()) for name, value in values.items()}
        record[str(count)] = with_errors(len(indices), statistics)
        done += len(indices)
        progress(done)
    return record


@torch.no_grad()
def bound_and_weighted(
    model: Model, frames: Frames, num_objects: int
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Return the ELBO and the importance-weighted bound of each clip, in nats.

        log 1/S sum_s p(v, a_s) / q(a_s | v),  a_s ~ q

    lies above the ELBO and approaches log p(v) from below as S grows.

    Law: for one draw the two have the same mean, and more draws raise the second
    (test_more_draws_tighten_the_bound).
    """
    everything = torch.ones(frames.shape[:2], dtype=torch.bool, device=model.device)
    counts = torch.full((len(frames),), num_objects, device=model.device)
    encoding = model.infer(frames, counts, everything, SEARCH)
    generator = torch.Generator().manual_seed(0)
    bounds, log_ratios = [], []
    for _ in range(NUM_DRAWS):
        noise = torch.randn(encoding.means.shape, generator=generator).to(model.device)
        terms = BoundTerms(*(x.double() for x in terms_of(model, encoding, frames, counts, noise)))
        # The ELBO uses q's entropy; a ratio needs the density of the draw itself.
        each = encoding.log_density(noise).double().sum(-1)
        density = torch.where(model.present(counts), each, 0.0).sum(1)
        bounds.append(terms.weighted(1.0))
        log_ratios.append(terms.reconstruction + terms.log_prior - density)
    weighted = torch.stack(log_ratios).logsumexp(0) - math.log(NUM_DRAWS)
    return torch.stack(bounds).mean(0), weighted
