"""Settings and construction of the layered sprite family."""

from dataclasses import dataclass

import torch

from motes.config import DataConfig, require
from motes.models.layers.renderer import LayeredRenderer
from motes.models.layers.tracker import LayeredTracker
from motes.models.protocols import Family
from motes.models.sprites.family import SpriteSettings


@dataclass(frozen=True)
class LayerSettings:
    """Initial sizes of the sprites, their number of classes, and the search window."""

    sprite_radius: int = 5  # pixels from a sprite's centre to its border
    sprite_width: float = 3.0  # standard deviation of a sprite before training, pixels
    pixels_per_unit: float = 3.0  # scale of latent positions
    window: int = 7  # pixels around its prediction in which an object is searched for
    num_sprite_classes: int = 6

    def __post_init__(self) -> None:
        classes = self.num_sprite_classes
        require(1 <= classes <= 64, f"num_sprite_classes is {classes!r:.40}; give 1 to 64")
        SpriteSettings(
            self.sprite_radius, self.sprite_width, self.pixels_per_unit, self.window
        )  # the same limits


def build(
    settings: LayerSettings, data: DataConfig, generator: torch.Generator
) -> tuple[LayeredRenderer, LayeredTracker]:
    """Return the renderer with sprites that differ in brightness only, and the tracker."""
    renderer = LayeredRenderer(
        (data.height, data.width),
        channels=data.channels,
        num_classes=settings.num_sprite_classes,
        radius=settings.sprite_radius,
        initial_width=settings.sprite_width,
        pixels_per_unit=settings.pixels_per_unit,
    )
    return renderer, LayeredTracker(settings.window)


FAMILY = Family("layers", LayerSettings, build, restarts=True, keeps_colour=True)
