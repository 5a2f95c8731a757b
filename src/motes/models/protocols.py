"""Interfaces between the parts of a model.

A model is a law of motion (`Dynamics`), a `Renderer` and an `Inference`; inference returns a
`Posterior`. Any class with these methods can take the place of those in the package: no other
module asks which one it has. Renderers and dynamics with parameters are `nn.Module`s.

All tensors of positions have axes [B, N, T, 2] (clips, objects, frames, coordinates) and are in
latent units. `present` [B, N] flags the objects of a clip, `observed` [B, T] the observed frames,
`detected` [B, N, T] the frames in which an object was itself detected.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn

from motes.core.axes import Bool, Float, Int, Tensor
from motes.kalman.model import Gaussian, GaussianMixture, SampledTracks, SmoothedTracks

Reduce = Callable[[Tensor], None]  # replaces a tensor by its sum over all training processes


class Module(Protocol):
    """The part of `nn.Module` that training and checkpoints use."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters to train."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors to store."""

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> Any:
        """Restore stored tensors."""


@runtime_checkable
class Dynamics(Module, Protocol):
    """A law of motion: a distribution over the positions of all objects of a clip.

    Beliefs are opaque to callers, who read them through `observe`; they may be mixtures over any
    discrete history (initial-state components, event sequences). States have the position first.
    """

    independent_objects: bool  # log p(a) is a sum over objects, given by `track_log_density`

    @property
    def num_components(self) -> int:
        """The number of mixture components of a track."""

    def initial(self, batch: tuple[int, int]) -> Any:
        """Return the belief about the first frame of `batch` (clips, objects)."""

    def predict(self, belief: Any) -> Any:
        """Return the belief about the next frame."""

    def update(
        self, belief: Any, positions: Float[Tensor, "B N 2"], observed: Bool[Tensor, "B _"]
    ) -> Any:
        """Return the belief after observing positions; where unobserved it does not change."""

    def observe(self, belief: Any) -> GaussianMixture:
        """Return the predictive distribution of the positions of a belief."""

    def emit(self, states: Gaussian) -> Gaussian:
        """Return the distribution of positions a_t (observation noise included) of states."""

    def path(self, states: Gaussian) -> Gaussian:
        """Return the distribution of noise-free positions of states."""

    def velocities(self, states: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch 2"]:
        """Return the velocities of states, in latent units per frame."""

    def log_density(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        observed: Bool[Tensor, "B _ T"] | None = None,
    ) -> Float[Tensor, " B"]:
        """Return log p(a) of the observed positions of the present objects of each clip."""

    def track_log_density(
        self, positions: Float[Tensor, "... T 2"], observed: Bool[Tensor, "... T"] | None = None
    ) -> Float[Tensor, "..."]:
        """Return the log density of each track by itself."""

    def smooth(
        self,
        positions: Float[Tensor, "B N T 2"],
        observed: Bool[Tensor, "B N T"],
        variances: Float[Tensor, "B N T 2"],
    ) -> SmoothedTracks:
        """Return the states of all frames given observed positions with these variances."""

    def leave_one_out(
        self, positions: Float[Tensor, "B N T 2"], observed: Bool[Tensor, "B N T"]
    ) -> Gaussian:
        """Return each position's prediction from the observations of all other frames."""

    def swap_gains(
        self, positions: Float[Tensor, "B N T 2"], observed: Bool[Tensor, "B N T"]
    ) -> Float[Tensor, "B N N T"]:
        """Return the gain in log p(a) if two objects swap identities from frame t on."""

    def sample(
        self, batch: tuple[int, ...], num_frames: int, generator: torch.Generator
    ) -> SampledTracks:
        """Return draws from the prior; the last axis of `batch` counts objects."""

    def fit_initial_state(
        self, positions: Float[Tensor, "M T 2"], observed: Bool[Tensor, "M T"]
    ) -> None:
        """Fit the distribution of initial states to tracks; may do nothing."""

    def is_bounded(self, limit: float) -> bool:
        """Return whether all matrices of the law are finite and at most `limit` in magnitude."""


@runtime_checkable
class DrawsTracks(Protocol):
    """What a law of motion also offers if answers are to have `draws`."""

    def draw_tracks(
        self,
        positions: Float[Tensor, "B N T 2"],
        observed: Bool[Tensor, "B N T"],
        variances: Float[Tensor, "B N T 2"],
        num_draws: int,
        seed: int = 0,
    ) -> Float[Tensor, "S B N T D"]:
        """Return equally likely draws of the states of all frames."""


@runtime_checkable
class Posterior(Protocol):
    """q(a | v): the positions of all objects in all frames."""

    # Of the objects, as the renderer takes it, with `select(clips)`; None where all look alike.
    appearance: Any

    @property
    def means(self) -> Float[Tensor, "B N T 2"]:
        """The mean of each position."""

    @property
    def detected(self) -> Bool[Tensor, "B _ T"] | None:
        """Where objects were detected; None: everywhere.

        Elsewhere q is the prior given the detections, and cancels it in the bound.
        """

    @property
    def localized(self) -> Bool[Tensor, "B _ T"] | None:
        """Where q is more informative than detections in other frames; None: everywhere."""

    def covariances(self) -> Float[Tensor, "B N T 2 2"]:
        """Return the covariance of each position."""

    def draw(self, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T 2"]:
        """Return a draw as a function of standard normal noise."""

    def entropy(self) -> Float[Tensor, "B N T"]:
        """Return the entropy of each position in nats; 0 where q cancels the prior."""

    def log_density(self, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T"]:
        """Return the log density of the draw that this noise makes; 0 where not detected."""

    def pieces(self) -> Iterator[tuple[slice, "Posterior"]]:
        """Yield the posterior in blocks of frames, the last one open-ended."""


@runtime_checkable
class Renderer(Module, Protocol):
    """p(v | a): the distribution of frames given the positions of objects.

    The methods with a body are optional; what they return suits objects that all look alike and
    are never occluded.
    """

    grey_levels: bool = False  # pixels are levels with noise; False: black or white

    def __call__(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        appearance: Any = None,
    ) -> Float[Tensor, "B T height width *channels"]:
        """Return the logit of the mean of each pixel."""

    def log_likelihood(
        self,
        positions: Float[Tensor, "B N T 2"],
        present: Bool[Tensor, "B N"],
        frames: Float[Tensor, "B T height width *channels"],
        *,
        appearance: Any = None,
        detected: Bool[Tensor, "B _ T"] | None = None,
    ) -> Float[Tensor, "B T"]:
        """Return log p(v_t | a_t) of each frame."""

    def sample_appearance(self, batch: tuple[int, ...], generator: torch.Generator) -> Any:
        """Return a draw of the objects' appearance; None where all look alike."""
        return None

    def appearance_log_prior(
        self, appearance: Any, present: Bool[Tensor, "B N"]
    ) -> Float[Tensor, " B"] | float:
        """Return the log prior of an appearance; 0 where all look alike."""
        return 0.0

    def expected_frames(
        self,
        q: Posterior,
        present: Bool[Tensor, "B N"],
        weights: Float[Tensor, "B N K"],
        predicted: Gaussian,
    ) -> Float[Tensor, "B T height width"] | None:
        """Return the frames with all positions marginalised exactly; None: not available."""
        return None

    def pixel_map(self) -> Float[Tensor, "3 2"] | None:
        """Return the exact affine map from latent units to pixels, if the renderer has one.

        Rows: the images of the two unit vectors, then that of the origin.
        """
        return None

    def occlusion_parameters(self) -> Sequence[nn.Parameter]:
        """Return the parameters that say where objects are occluded; may be empty."""
        return ()

    def coverage(self, positions: Float[Tensor, "M 2"]) -> Float[Tensor, "M height width"] | None:
        """Return how much of each pixel one object covers; None: as rendered frames show."""
        return None

    def initialize_from(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"] | None,
        generator: torch.Generator,
    ) -> None:
        """Set initial values from some clips; may do nothing."""
        return

    def initialize_background(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        observed: Bool[Tensor, "B T"] | None,
    ) -> None:
        """Set what belongs to the camera's view from some clips; may do nothing."""
        return

    def refit(self, batches: Callable[[], Iterator["InferredBatch"]], reduce: Reduce) -> None:
        """Fit parameters in closed form to inferred clips after training; may do nothing."""
        return


class PlainRenderer(nn.Module, Renderer):
    """A renderer that is an `nn.Module`, with the optional answers of `Renderer`."""


class InferredBatch(NamedTuple):
    """Clips with their posterior and noise for a draw of it."""

    frames: Float[Tensor, "B T height width *channels"]
    q: Posterior
    present: Bool[Tensor, "B N"]
    noise: Float[Tensor, "B N T 2"]


class Search(NamedTuple):
    """How much work inference by search may do; networks ignore it."""

    hypotheses: int = 1  # searches to choose from by the bound
    explore: float = 0.0  # share of q spread over neighbouring cells, for training
    stream_after: int | None = None  # frames beyond which q is kept in blocks; None: never


class Pins(NamedTuple):
    """Where objects are known to be, in latent units; without meaning where none is given."""

    place: Gaussian  # B N T
    given: Bool[Tensor, "B N T"]


@runtime_checkable
class SearchesAgain(Protocol):
    """What inference also offers if a pin of a person is to change what is followed."""

    def search_again(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"],
        *,
        dynamics: "Dynamics",
        renderer: Any,
        slots: int,
        search: Search,
        start: Pins,
        pins: Pins,
        released: Bool[Tensor, "B N"],
        appearance: Any = None,
    ) -> "Posterior":
        """Return q(a | v) of tracks that start from those known, `start`, and obey pins.

        Released objects are searched for anew from their pins; `appearance` is that of `start`.
        """


@runtime_checkable
class Inference(Module, Protocol):
    """q(a | v) from frames, some of which may be unobserved."""

    requires_zeroed_frames: bool  # unobserved frames must be zero, not merely flagged
    exchangeable: bool  # q is one of n! equally likely labelings of the objects
    clips_per_thread: int  # that keep one thread of a CPU busy

    def infer(
        self,
        frames: Float[Tensor, "B T height width *channels"],
        num_objects: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"] | None,
        *,
        dynamics: Dynamics,
        renderer: Any,
        slots: int,
        search: Search,
    ) -> Posterior:
        """Return q(a | v) for `slots` objects; pixels of unobserved frames do not matter."""

    def max_objects(self, trained: int) -> int:
        """Return the largest count that can be inferred, given that in the training clips."""

    def bytes_per_clip(
        self, num_objects: int, num_frames: int, num_components: int, search: Search
    ) -> int:
        """Return the peak memory of `infer` for each of many clips."""


@dataclass(frozen=True)
class Family:
    """A model family: how its renderer and inference are configured and built."""

    name: str
    settings: type[Any]  # a frozen dataclass, written to config.json
    build: Callable[[Any, Any, torch.Generator], tuple[Any, Any]]  # (settings, DataConfig, ...)
    networks: bool = False  # inference is a network with gradients, not a search
    restarts: bool = False  # training starts from the best of short runs with other sprite widths
    keeps_colour: bool = False  # frames keep three channels; else colour becomes one grey level


class GaussianPosterior(NamedTuple):
    """q(a | v): an independent Gaussian for each position, in latent units."""

    means: Float[Tensor, "B N T 2"]
    scales: Float[Tensor, "B N T 2"]
    observed: Bool[Tensor, "B T"] | None = None  # elsewhere q has no meaning; None: everywhere

    @property
    def appearance(self) -> None:
        """All objects look alike."""
        return None

    @property
    def detected(self) -> Bool[Tensor, "B 1 T"] | None:
        """Where objects were detected: in every observed frame; None: everywhere."""
        return None if self.observed is None else self.observed[:, None]

    @property
    def localized(self) -> Bool[Tensor, "B 1 T"] | None:
        """Where q is informative: in every observed frame; None: everywhere."""
        return self.detected

    def draw(self, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T 2"]:
        """Return a draw by reparametrisation. Paper: [Eq. reparam-monte-carlo] with M = 1."""
        return self.means + self.scales * noise

    def entropy(self) -> Float[Tensor, "B N T"]:
        """Return the entropy of each observed position in nats: log(scale sqrt(2 pi e)) summed."""
        nats = (self.scales.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
        return nats if self.detected is None else torch.where(self.detected, nats, 0.0)

    def log_density(self, noise: Float[Tensor, "B N T 2"]) -> Float[Tensor, "B N T"]:
        """Return the log density of the draw that this noise makes; 0 where unobserved."""
        nats = -0.5 * (noise.square() - 1).sum(-1)
        masked = nats if self.detected is None else torch.where(self.detected, nats, 0.0)
        return -self.entropy() + masked

    def covariances(self) -> Float[Tensor, "B N T 2 2"]:
        """Return the covariance of each position."""
        return self.scales.square().diag_embed()

    def pieces(self) -> Iterator[tuple[slice, "GaussianPosterior"]]:
        """Yield all of it, for all frames and those after them."""
        yield slice(None), self

    @staticmethod
    def matching(q: Posterior) -> "GaussianPosterior":
        """Return the Gaussian with the means and marginal variances of another posterior."""
        return GaussianPosterior(q.means, q.covariances().diagonal(dim1=-2, dim2=-1).sqrt())

    def select(self, clips: Int[Tensor, " b"]) -> "GaussianPosterior":
        """Return the posterior of some clips, all of whose frames are observed."""
        return GaussianPosterior(self.means[clips], self.scales[clips])
