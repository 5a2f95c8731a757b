"""Settings and construction of the paper's networks."""

from dataclasses import dataclass

import torch

from motes.config import DataConfig, require
from motes.models.paper.inference import InferenceNetwork
from motes.models.paper.renderer import PaperRenderer
from motes.models.protocols import Family


@dataclass(frozen=True)
class PaperSettings:
    """Sizes of the networks; the defaults are the paper's."""

    inference_state_size: int = 1024  # S, the paper's dimension of s_t^n
    renderer_state_size: int = 1024  # X, of x^n; the paper does not say, [Choice 3]
    scale_floor: float = 0.01  # smallest standard deviation of q, in latent units, [Choice 4]
    initial_scale: float = 0.5  # standard deviation of q before training, [Choice 4]

    def __post_init__(self) -> None:
        sizes = self.inference_state_size, self.renderer_state_size
        require(
            all(1 <= size <= 8192 for size in sizes),
            f"state sizes are {sizes[0]!r:.40} and {sizes[1]!r:.40}; give 1..8192",
        )
        require(
            0 < self.scale_floor < self.initial_scale < 1e6,
            f"scale_floor is {self.scale_floor} and initial_scale {self.initial_scale}; "
            "give 0 < scale_floor < initial_scale",
        )


def build(
    settings: PaperSettings, data: DataConfig, generator: torch.Generator
) -> tuple[PaperRenderer, InferenceNetwork]:
    """Return the two networks with random weights."""
    size = data.height, data.width
    renderer = PaperRenderer(size, settings.renderer_state_size, generator)
    inference = InferenceNetwork(
        size,
        max_objects=data.max_objects,
        state_size=settings.inference_state_size,
        scale_floor=settings.scale_floor,
        initial_scale=settings.initial_scale,
        generator=generator,
    )
    return renderer, inference


FAMILY = Family("paper", PaperSettings, build, networks=True)
