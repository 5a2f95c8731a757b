"""Frames to positions: look where the dynamics predict, and tell the dynamics what was seen."""

import torch
from torch import nn

from motes import mixture
from motes.lgssm import Dynamics
from motes.shapes import Bool, Float, Int, Tensor
from motes.structured.glyph import GlyphRenderer
from motes.structured.places import Glyph, chosen
from motes.structured.posterior import PlacePosterior
from motes.structured.search import Scene, expect, follow, revisit

FINE_WINDOW = 2  # pixels around the place found in which cells are told apart
REVISITS = 2  # rounds in which one object after the other is looked for with the others held
LATER_START = 1 / 6  # of the clip: where the second hypothesis begins; the third at twice that


class Tracker(nn.Module):
    """q(a|v) by a filter that meets every frame with a prediction for every object.

        for each frame t, for each object n:
            predict    a_t^n ~ sum_k w_k N(B m_k, B P_k B' + Sigma_A), from the frames before
            look       weigh the places near the prediction by how well the frame is explained
            update     m_k, P_k and w_k by the place found; nothing, where nothing was seen
        then for all frames at once:
            look again where the other frames, earlier and later, say that the object is
            q          the weights of places in the end, a quarter of a pixel apart

    While an object is hidden it coasts on its dynamics with growing uncertainty, and identity is
    held by motion. Nothing is learned here: the search uses the renderer and the dynamics, and
    gets better as they do.

    Law: pixels of hidden frames cannot matter, and in a hidden frame an object is where the Kalman
    prediction is; tests/unit/test_tracker.py.
    """

    def __init__(self, max_objects: int, window: int) -> None:
        """Build a tracker.

        Args:
            max_objects: objects that a clip may hold, unless it is said to hold more.
            window: pixels that an object may be away from its prediction, along each axis.
        """
        super().__init__()
        self.max_objects, self.window = max_objects, window

    @torch.no_grad()
    def track(
        self,
        frames: Float[Tensor, "B T height width"],
        num_objects: Int[Tensor, " B"],
        dynamics: Dynamics,
        renderer: GlyphRenderer,
        observed: Bool[Tensor, "B T"] | None = None,
        hypotheses: int = 1,
        explore: float = 0.0,
    ) -> PlacePosterior:
        """Return q(a | v); no gradient passes through the search.

        Args:
            frames: values in [0, 1].
            num_objects: objects in each clip; the slots of later ones hold nothing of meaning.
            dynamics: say where to look.
            renderer: says how an object looks.
            observed: which frames were seen (all, if None).
            hypotheses: searches to choose from by the bound. All but the first begin later in
                the clip, where objects that hide one another at first may have parted, and go
                back from there. [Choice 26]
            explore: share of q that is spread evenly over the cells of a pixel, for learning: a
                cell that looks bad by mistake would else never be drawn, and never mended.
        """
        if observed is None:
            observed = torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
        present = self._present(num_objects)
        scene = Scene(frames, observed, num_objects, present, dynamics, renderer)
        if hypotheses == 1 or int(num_objects.max()) == 1:
            return self._search(scene, observed, explore)
        # At once: a search of one clip is many small steps, and three of them cost little more.
        time = torch.arange(frames.shape[1], device=frames.device)
        trusted = [observed]
        for number in range(1, hypotheses):
            late = observed & (time >= number * LATER_START * len(time))
            trusted.append(torch.where(late.any(1, keepdim=True), late, observed))
        many = scene.repeated(hypotheses)
        found = self._search(many, torch.cat(trusted), explore)
        best = _bound(many, found).unflatten(0, (hypotheses, -1)).argmax(0)
        return found.taken(best * len(frames) + torch.arange(len(frames), device=frames.device))

    def _present(self, num_objects: Int[Tensor, " B"]) -> Bool[Tensor, "B N"]:
        slots = max(self.max_objects, int(num_objects.max()))
        return torch.arange(slots, device=num_objects.device) < num_objects[:, None]

    def _search(self, scene: Scene, trusted: Bool[Tensor, "B T"], explore: float) -> PlacePosterior:
        """One hypothesis: follow the objects through the trusted frames, then look everywhere."""
        coarse, fine = Glyph.coarse(scene.renderer), Glyph.fine(scene.renderer)
        found = follow(scene, coarse, trusted, self.window)
        expected = expect(scene, found)
        place = chosen(trusted[:, None].expand_as(found.seen), found.place, expected)
        for _ in range(REVISITS):
            _, found = revisit(scene, coarse, place, expected, self.window)
            place, expected = found.place, expect(scene, found)
        cells, _ = revisit(scene, fine, found.place, expected, FINE_WINDOW)
        return PlacePosterior.of(cells.blended(explore), found.seen, expected, scene.renderer)


def _bound(scene: Scene, q: PlacePosterior) -> Float[Tensor, " B"]:
    """The bound at the means of q, which is enough to compare one search with another."""
    frames, observed, _, present, dynamics, renderer = scene
    nats = renderer.log_likelihood(q.means, present, frames)
    explained = torch.where(observed, nats, 0.0).sum(1)
    prior = mixture.log_prior(dynamics, q.means, q.seen).float()
    return explained + torch.where(present, q.entropy().sum(-1) + prior, 0.0).sum(1)
