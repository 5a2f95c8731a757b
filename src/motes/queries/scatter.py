"""Error bars of models whose objects do not keep their looks.

The posterior of a position is right if pixels are independent given the positions. Where objects
grow, blur or deform they are not: whole rings of pixels err together, and the posterior is too
narrow. The clips of a run show both: by how much the log likelihood of frames varies more than the
model says, and how far detections scatter about what the law of motion predicts. The error bars of
such a model are at least that scatter.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import max_pool2d

from motes.core.axes import Bool, Float, Tensor
from motes.models.model import Model
from motes.queries.answer import Answer

LIMITS = (
    4.0,
    8.0,
)  # of the overdispersion: below the first nothing is widened, above the second all
MIN_PROBABILITY = 1e-3  # of a pixel being black or white
MIN_LIT = 0.05  # by an object, for a pixel to count


class Scatter(NamedTuple):
    """Sums over the clips of a run."""

    overdispersion: float  # mean square of standardised log likelihoods of frames; 1 if they fit
    covariance: Float[
        Tensor, "2 2"
    ]  # of detections about the predictions from other frames, latent

    @property
    def floor(self) -> Float[Tensor, "2 2"] | None:
        """The covariance that error bars are widened to; None if frames fit."""
        low, high = LIMITS
        share = min((self.overdispersion - low) / (high - low), 1.0)
        return share * self.covariance if share > 0 else None


class ScatterSums(NamedTuple):
    """Sums over some clips, to be added up."""

    frames: float
    squared_scores: float  # of frames, see `frame_scores`
    detections: float
    products: Float[Tensor, "2 2"]  # of what leave-one-out predictions are off

    @staticmethod
    @torch.no_grad()
    def of(
        model: Model, frames: Float[Tensor, "B T height width"], answer: Answer
    ) -> "ScatterSums":
        """Return the sums of clips that a query was asked about."""
        N = model.present(answer.num_objects).shape[1]
        found, positions = answer.found, answer.positions.double().nan_to_num()
        missing = N - found.shape[1]
        if missing:
            found = torch.cat([found, found.new_zeros(len(found), missing, found.shape[2])], 1)
            empty = positions.new_zeros(len(positions), missing, *positions.shape[2:])
            positions = torch.cat([positions, empty], 1)
        scores = frame_scores(model, frames, positions, found & answer.observed[:, None])
        used = scores.isfinite()
        predicted = model.dynamics.leave_one_out(positions, found).mean
        away = (positions - predicted)[found]
        return ScatterSums(
            float(used.sum()),
            float(scores[used].square().sum()),
            float(found.sum()),
            (away.mT @ away).cpu(),
        )

    @staticmethod
    def joined(parts: "list[ScatterSums]") -> Scatter | None:
        """Return the scatter of all clips; None without detections."""
        frames, scores, detections = (
            sum(getattr(part, name) for part in parts) for name in ScatterSums._fields[:3]
        )
        if not frames or not detections:
            return None
        products: Tensor = torch.stack([part.products for part in parts]).sum(0)
        return Scatter(scores / frames, products / detections)


@torch.no_grad()
def frame_scores(
    model: Model,
    frames: Float[Tensor, "B T height width"],
    positions: Float[Tensor, "B N T 2"],
    detected: Bool[Tensor, "B N T"],
) -> Float[Tensor, "B T"]:
    """Return the standardised log loss of each frame near detected objects; NaN without any.

    With p the probability of white in a pixel, the log loss has mean H(p) and variance
    p (1 - p) logit(p)^2; the score is the sum of deviations from the mean over the root of the sum
    of variances. It has variance 1 if pixels are independent with these probabilities.

    Law: that of simulated frames (test_scores_of_drawn_frames_have_unit_variance).
    """
    present = detected.any(-1)
    off = torch.full_like(positions, 1e4)
    drawn = torch.where(detected[..., None], positions, off).to(model.pixel_matrix.dtype)
    p = model.render(drawn, present).double()
    background = model.render(torch.zeros_like(drawn[:1, :, :1]), torch.zeros_like(present[:1]))
    lit = ((p - background.double()).abs() > MIN_LIT).double()
    near = max_pool2d(lit, 3, 1, 1) > 0
    p = p.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    # -log p(v) - H(p) is (p - v) logit(p), for v of 0 or 1.
    logit = p.logit()
    deviation = torch.where(near, (p - frames.double()) * logit, 0.0).sum((2, 3))
    variance = torch.where(near, p * (1 - p) * logit.square(), 0.0).sum((2, 3))
    scores: Tensor = deviation / variance.sqrt()
    return scores


def at_least(
    covariances: Float[Tensor, "*batch 2 2"], floor: Float[Tensor, "2 2"]
) -> Float[Tensor, "*batch 2 2"]:
    """Return the covariances, widened to the floor in each direction in which they are narrower.

    That is C plus the positive part of floor - C.

    Law: contains both (test_a_widened_covariance_contains_both).
    """
    values, vectors = torch.linalg.eigh(floor.to(covariances) - covariances)
    extra: Tensor = vectors @ torch.diag_embed(values.clamp(min=0)) @ vectors.mT
    return covariances + extra
