"""The three parts side by side; `build` is the only reader of their configuration."""

import torch
from torch import nn

from motes import kalman
from motes.config import RunConfig
from motes.core.axes import Bool, Float, Int, Tensor
from motes.data.colour import ColourAxis
from motes.kalman.dynamics import LinearDynamics
from motes.models.layers.renderer import Appearance, LayeredRenderer
from motes.models.layers.tracker import search_layers
from motes.models.paper.inference import GaussianPosterior, InferenceNetwork
from motes.models.paper.renderer import Renderer
from motes.models.sprites.forward_pass import scene_of
from motes.models.sprites.grid_posterior import GridPosterior, PosteriorBlocks, StreamedPosterior
from motes.models.sprites.likelihood_maps import PixelGaussian
from motes.models.sprites.marginal_frames import expected_frames
from motes.models.sprites.renderer import SpriteRenderer
from motes.models.sprites.tracker import Tracker

# q(a | v), as the one family has it or the other
Posterior = GaussianPosterior | GridPosterior | StreamedPosterior

SEARCHED_FOR = 16  # objects at most
AT_ONCE = 256  # frames that are drawn side by side, which bounds memory


class Model(nn.Module):
    """A generative model of videos and its inference network.

        for each object n:   z ~ Categorical(pi);  h_1 ~ Normal(mu_z, Sigma_z)
                             h_t = A h_{t-1} + u + Normal(0, Sigma_H)
                             a_t = B h_t + Normal(0, Sigma_A)
        for each frame t:    x = tanh(theta_x0);  for n: x = (1 - alpha_n) x + alpha_n xhat_n
                             v_t ~ Bernoulli(sigm(W x + b))
        inference:           q(a|v): s_t^n from (s_{t-1}^n, s_t^{n-1}, v_t), then a Gaussian

    `pixel_matrix` and `pixel_offset` map latent positions to pixels; see `motes.models.pixel_map`.
    `temper` is what answers multiply q's covariances by, for each number of objects; see
    `motes.evaluation.calibration`.
    """

    pixel_matrix: Float[Tensor, "2 2"]
    pixel_offset: Float[Tensor, " 2"]
    temper: Float[Tensor, " Nmax"]

    def __init__(
        self,
        dynamics: LinearDynamics,
        renderer: Renderer | SpriteRenderer | LayeredRenderer,
        inference: InferenceNetwork | Tracker,
        *,
        image_size: tuple[int, int],
        max_objects: int,
        channels: int = 1,
        colour_axis: ColourAxis | None = None,
    ) -> None:
        super().__init__()
        self.dynamics = dynamics
        self.renderer = renderer
        self.inference = inference
        self.image_size = image_size
        self.max_objects = max_objects
        self.channels = channels
        self.colour_axis = colour_axis
        self.register_buffer("pixel_matrix", torch.eye(2))
        self.register_buffer("pixel_offset", torch.zeros(2))
        self.register_buffer("temper", torch.ones(max_objects))

    @property
    def device(self) -> torch.device:
        """Where the model's numbers live."""
        return self.pixel_matrix.device

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Of one frame that the model sees: height, width and, in colour, channels."""
        return self.image_size if self.channels == 1 else (*self.image_size, self.channels)

    @property
    def in_colour(self) -> bool:
        """Whether it is asked about frames with a last axis of red, green and blue."""
        return self.colour_axis is not None or self.channels == 3

    @property
    def black_and_white(self) -> bool:
        """Whether it sees shapes on black, as the paper's clips are, and no camera's pictures."""
        return self.painter is None and not self.in_colour

    @property
    def painter(self) -> LayeredRenderer | None:
        """The renderer of levels of grey or colour; None where frames are black and white."""
        return self.renderer if isinstance(self.renderer, LayeredRenderer) else None

    @property
    def max_searchable_objects(self) -> int:
        """The most objects that a clip may be said to hold.

        The paper's networks know those that they were trained with; a search takes any number.
        """
        return SEARCHED_FOR if isinstance(self.inference, Tracker) else self.max_objects

    def present(self, num_objects: Int[Tensor, " B"]) -> Bool[Tensor, "B N"]:
        """Which of the model's objects stand in each clip: the first `num_objects`."""
        most = self.max_objects
        if isinstance(self.inference, Tracker):
            most = max(most, int(num_objects.max()))
        return torch.arange(most, device=num_objects.device) < num_objects[:, None]

    def search(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"] | None = None,
        *,
        hypotheses: int = 1,
        explore: float = 0.0,
    ) -> PosteriorBlocks | None:
        """What the structured family finds in the frames, a stretch of them at a time.

        None from the paper's, which reads them. Here and in `expected_frames` the families part;
        all else is the same for both.

        Args:
            frames: values in [0, 1].
            num_objects: objects in each clip.
            observed: which frames were seen; all, if None.
            hypotheses: searches to choose from, for answers.
            explore: share of q that is spread out, for learning; see `Tracker.search`.
        """
        match self.inference, self.renderer:
            case Tracker() as tracker, LayeredRenderer() as painter:
                pictures = painter.with_channels(frames)
                photos = scene_of(pictures, num_objects, self.dynamics, painter, observed)
                found = search_layers(photos, hypotheses, window=tracker.window)
            case Tracker() as tracker, SpriteRenderer() as renderer:
                scene = scene_of(frames, num_objects, self.dynamics, renderer, observed)
                found = tracker.search(scene, hypotheses, explore)
            case _:
                return None
        slots = self.present(num_objects).shape[1]
        return lambda: ((time, q.widened(slots)) for time, q in found())

    @torch.no_grad()
    def track(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"] | None = None,
        explore: float = 0.0,
    ) -> GridPosterior | None:
        """All at once what a single search finds, which is enough to learn from."""
        found = self.search(frames, num_objects, observed, explore=explore)
        return None if found is None else GridPosterior.joined(found)

    def encode(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        num_objects: Int[Tensor, " B"],
        found: GridPosterior | None = None,
    ) -> Posterior:
        """q(a|v) of clips that were seen whole; `motes.models.paper.gap_filling` knows of hidden frames.

        Args:
            frames: values in [0, 1].
            num_objects: objects in each clip.
            found: what `track` found in the frames, if that is known already.
        """
        found = self.track(frames, num_objects) if found is None else found
        if found is not None:
            return found
        encoding: GaussianPosterior = self.inference(frames, num_objects)
        return encoding

    def draw(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        appearance: Appearance | None = None,
    ) -> Float[Tensor, "B T height width *channels"]:
        """The mean of every pixel, objects being at known positions and of known looks."""
        known = () if appearance is None else (appearance,)
        drawn = (self.renderer(part, present, *known) for part in positions.split(AT_ONCE, 2))
        return torch.cat([logits.sigmoid() for logits in drawn], 1)

    def draw_appearance(
        self, shape: tuple[int, ...], generator: torch.Generator
    ) -> Appearance | None:
        """Appearance of objects that a model of pictures imagines, [B, N]; None from any other."""
        return None if self.painter is None else self.painter.draw_appearance(shape, generator)

    def log_prior_of(
        self, appearance: Appearance | None, present: Bool[Tensor, "B N"]
    ) -> Float[Tensor, " B"] | float:
        """The log of the probability of looks; nothing, where objects have none."""
        if appearance is None or self.painter is None:
            return 0.0
        return self.painter.log_prior(appearance, present)

    def explain(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        frames: Float[Tensor, "B T height width *channels"],
        appearance: Appearance | None = None,
        seen: Bool[Tensor, "B N T"] | None = None,
    ) -> Float[Tensor, "B T"]:
        """The log of p(v_t | a_t); where objects were seen matters to what is learned alone."""
        nats = []
        for start in range(0, frames.shape[1], AT_ONCE):
            time = slice(start, start + AT_ONCE)
            places, shown = positions[:, :, time], frames[:, time]
            match self.renderer:
                case LayeredRenderer() as renderer:
                    assert appearance is not None
                    nats.append(renderer.log_likelihood(places, present, shown, appearance))
                case SpriteRenderer() as renderer:
                    noticed = None if seen is None else seen[:, :, time]
                    nats.append(renderer.log_likelihood(places, present, shown, noticed))
                case _:
                    nats.append(self.renderer.log_likelihood(places, present, shown))
        return torch.cat(nats, 1)

    def set_occlusion_learning(self, allowed: bool) -> None:
        """Says whether the structured family may learn that something stands before objects.

        Not before it knows how they look: a place where nothing was found yet looks covered.
        """
        for part in self.hiding():
            part.requires_grad_(allowed)

    def hiding(self) -> list[nn.Parameter]:
        """What says where objects are hidden, if something does."""
        renderer = self.renderer
        return [renderer.visibility_logit] if isinstance(renderer, SpriteRenderer) else []

    def expected_frames(
        self,
        q: Posterior,
        num_objects: Int[Tensor, " B"],
        weights: Float[Tensor, "B N K"],
        predicted: kalman.Smoothed,
    ) -> Float[Tensor, "B T height width"] | None:
        """The frames expected with all positions averaged out, where a family can do that.

        Args:
            q: What was seen.
            num_objects: objects in each clip.
            weights: of each object's components.
            predicted: positions under each, [B N K T], for where an object was not seen.
        """
        match q, self.renderer:
            case GridPosterior() | StreamedPosterior(), SpriteRenderer() as renderer:
                place = PixelGaussian(predicted.means, predicted.covariances)
                return expected_frames(renderer, q, self.present(num_objects), weights, place)
        return None

    def to_pixels(self, positions: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Latent positions as pixel coordinates (x to the right, y down)."""
        return positions @ self.pixel_matrix.to(positions.dtype).T + self.pixel_offset


def build(config: RunConfig) -> Model:
    """A fresh model, its weights drawn from the run's seed."""
    generator = torch.Generator().manual_seed(config.seed)
    size, part = (config.data.height, config.data.width), config.model
    dynamics = LinearDynamics(
        num_components=part.num_components,
        sampling_period=part.sampling_period,
        state_noise=part.state_noise,
        position_noise=part.position_noise,
        initial_spread=part.initial_spread,
        linear=part.law == "linear",
        generator=generator,
    )
    renderer: Renderer | SpriteRenderer | LayeredRenderer
    inference: InferenceNetwork | Tracker
    if part.family == "structured":
        if part.pixels == "pictures":
            renderer = LayeredRenderer(
                size,
                channels=config.data.channels,
                num_classes=part.num_kinds,
                radius=part.glyph_reach,
                initial_width=part.glyph_width,
                pixels_per_unit=part.pixels_per_unit,
            )
        else:
            renderer = SpriteRenderer(
                size,
                radius=part.glyph_reach,
                initial_width=part.glyph_width,
                pixels_per_unit=part.pixels_per_unit,
                models_occlusion=part.hidden_teach == "hiding",
            )
        inference = Tracker(part.window)
    else:
        renderer = Renderer(size, part.renderer_state_size, generator)
        inference = InferenceNetwork(
            size,
            max_objects=config.data.max_objects,
            state_size=part.inference_state_size,
            scale_floor=part.scale_floor,
            initial_scale=part.initial_scale,
            generator=generator,
        )
    return Model(
        dynamics,
        renderer,
        inference,
        image_size=size,
        max_objects=config.data.max_objects,
        channels=config.data.channels,
        colour_axis=config.data.colour_axis,
    )
