"""Settings and construction of the sprite family."""

from dataclasses import dataclass

import torch

from motes.config import DataConfig, require, require_positive
from motes.models.protocols import Family
from motes.models.sprites.renderer import SpriteRenderer
from motes.models.sprites.tracker import Tracker


@dataclass(frozen=True)
class SpriteSettings:
    """Initial size of the sprite, scale of latent units, and the search window."""

    sprite_radius: int = 5  # pixels from the sprite's centre to its border
    sprite_width: float = 3.0  # standard deviation of the sprite before training, pixels
    pixels_per_unit: float = 3.0  # scale of latent positions
    window: int = 7  # pixels around its prediction in which an object is searched for
    # Whether undetected objects are inferred to be occluded, and train the occluder only.
    # [Choice 38]
    models_occlusion: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "sprite_width", "pixels_per_unit")
        require(
            1 <= self.sprite_radius <= 64 and 1 <= self.window <= 64,
            f"sprite_radius is {self.sprite_radius!r:.40}, window {self.window!r:.40}; "
            "give 1 to 64",
        )


def build(
    settings: SpriteSettings, data: DataConfig, generator: torch.Generator
) -> tuple[SpriteRenderer, Tracker]:
    """Return the renderer with a wide, soft sprite, and the tracker."""
    renderer = SpriteRenderer(
        (data.height, data.width),
        radius=settings.sprite_radius,
        initial_width=settings.sprite_width,
        pixels_per_unit=settings.pixels_per_unit,
        models_occlusion=settings.models_occlusion,
    )
    return renderer, Tracker(settings.window)


FAMILY = Family("sprites", SpriteSettings, build, restarts=True)
