"""Frames to positions: look where the dynamics predict, and tell the dynamics what was seen."""

import torch
from torch import nn

from motes import kalman
from motes.lgssm import LGSSM, POSITION_DIM, Dynamics
from motes.networks.inference import Encoding
from motes.shapes import Bool, Float, Int, Tensor
from motes.structured.glyph import GlyphRenderer
from motes.structured.places import Glyph, Place, detect, look

LOOKS = 2  # at each frame: the second shares lit pixels out by what the first one found


class Tracker(nn.Module):
    """q(a|v) by a filter that meets every frame with a prediction for every object.

        for each frame t, for each object n:
            predict    a_t^n ~ sum_k w_k N(B m_k, B P_k B' + Sigma_A), from the frames before
            look       weigh the places near the prediction by how well the frame is explained
            update     m_k, P_k and w_k by the place found; nothing, where the frame is hidden

    While frames are hidden an object coasts on its dynamics with growing uncertainty, and identity
    is held by motion. What is found is the mean of q; `log_gain` scales its width and is learned.

    Law: pixels of hidden frames cannot matter, and in a hidden frame an object is where the Kalman
    prediction is; tests/unit/test_tracker.py.
    """

    def __init__(self, max_objects: int, window: int) -> None:
        """Build a tracker.

        Args:
            max_objects: objects that a clip may hold.
            window: pixels that an object may be away from its prediction, along each axis.
        """
        super().__init__()
        self.max_objects, self.window = max_objects, window
        self.log_gain = nn.Parameter(torch.zeros(()))

    def forward(self, found: Encoding) -> Encoding:
        """Return what was found as q(a|v), its width scaled by what the bound has learned."""
        return found._replace(scales=self.log_gain.exp() * found.scales)

    @torch.no_grad()
    def track(
        self,
        frames: Float[Tensor, "B T height width"],
        num_objects: Int[Tensor, " B"],
        dynamics: Dynamics,
        renderer: GlyphRenderer,
        observed: Bool[Tensor, "B T"] | None = None,
    ) -> Encoding:
        """Return the places found in every frame; no gradient passes through the search.

        Args:
            frames: values in [0, 1].
            num_objects: objects in each clip; the slots of later ones hold nothing of meaning.
            dynamics: say where to look.
            renderer: says how an object looks.
            observed: which frames were seen (all, if None); the others hold the prediction.
        """
        if observed is None:
            observed = torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
        B, N = len(frames), self.max_objects
        present = torch.arange(N, device=frames.device) < num_objects[:, None]
        glyph = Glyph.of(renderer.kernel(), renderer.log_background.exp(), renderer.spread())
        components = dynamics.components()
        belief = kalman.Belief(components.initial_mean, components.initial_covariance)
        log_weights = dynamics.log_weights().expand(B, N, -1)
        first = observed.int().argmax(1)
        start = detect(glyph, frames[torch.arange(B, device=frames.device), first], num_objects, N)
        wide = (2 * glyph.spread * torch.eye(2, device=frames.device)).expand(B, N, 2, 2)
        means, variances = [], []
        for t in range(frames.shape[1]):
            prediction = predict_place(components, belief, log_weights, renderer)
            new = (first == t)[:, None]
            guess = Place(
                torch.where(new[..., None], start, prediction.mean),
                torch.where(new[..., None, None], wide, prediction.covariance),
            )
            prior = None if t == 0 else guess
            place = guess
            for _ in range(LOOKS):
                place = look(glyph, frames[:, t], place, prior, present, self.window)
            seen = observed[:, t, None]
            place = Place(
                torch.where(seen[..., None], place.mean, prediction.mean),
                torch.where(seen[..., None, None], place.covariance, prediction.covariance),
            )
            means.append(place.mean)
            variances.append(place.covariance.diagonal(dim1=-2, dim2=-1))
            position = renderer.from_pixels(place.mean)[:, :, None]
            belief, log_density = kalman.update(components, *belief, position, seen[..., None])
            log_weights = log_weights + log_density
            belief = kalman.predict(components, *belief)
        scales = torch.stack(variances, 2).sqrt() / renderer.pixels_per_unit
        return Encoding(renderer.from_pixels(torch.stack(means, 2)), scales)


def predict_place(
    components: LGSSM,
    belief: kalman.Belief,
    log_weights: Float[Tensor, "B N K"],
    renderer: GlyphRenderer,
) -> Place:
    """Mean and covariance of the mixture of the components' predictions, in pixels."""
    weights = log_weights.softmax(-1)[..., None]
    means = belief.mean[..., :POSITION_DIM]
    covariances = belief.covariance[..., :POSITION_DIM, :POSITION_DIM] + components.position_noise
    mean = (weights * means).sum(2)
    offsets = means - mean[:, :, None]
    scatter = covariances + offsets[..., :, None] * offsets[..., None, :]
    covariance = (weights[..., None] * scatter).sum(2) * renderer.pixels_per_unit**2
    return Place(renderer.to_pixels(mean).float(), covariance.float())
