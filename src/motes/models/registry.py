"""The families and laws of motion by name; `register_family` and `register_law` add others."""

from collections.abc import Callable
from typing import Any

import torch

from motes.config import FAMILY_SETTINGS, DynamicsConfig, require
from motes.kalman.dynamics import LinearDynamics
from motes.models.layers import family as layers
from motes.models.paper import family as paper
from motes.models.protocols import Family
from motes.models.sprites import family as sprites

FAMILIES: dict[str, Family] = {}
BuildLaw = Callable[[DynamicsConfig, torch.Generator], Any]  # returns a Dynamics, an nn.Module
LAWS: dict[str, BuildLaw] = {}


def register_family(family: Family) -> None:
    """Make a family available to configurations, presets and files under its name."""
    FAMILIES[family.name] = family
    FAMILY_SETTINGS[family.name] = family.settings


def register_law(name: str, build: BuildLaw) -> None:
    """Make a law of motion available as `DynamicsConfig.law`."""
    LAWS[name] = build


def find_law(name: str) -> BuildLaw:
    """Return the constructor of a law by name."""
    require(name in LAWS, f"law is {name!r:.60}; expected one of {', '.join(LAWS)}")
    return LAWS[name]


def _linear(config: DynamicsConfig, generator: torch.Generator) -> LinearDynamics:
    return LinearDynamics(
        num_components=config.num_components,
        sampling_period=config.sampling_period,
        state_noise=config.state_noise,
        position_noise=config.position_noise,
        initial_spread=config.initial_spread,
        linear=config.law == "linear",
        generator=generator,
    )


for each in (paper.FAMILY, sprites.FAMILY, layers.FAMILY):
    register_family(each)
register_law("newton", _linear)  # a constant force
register_law("linear", _linear)  # and forces linear in position and velocity
