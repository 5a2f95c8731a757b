"""Clips: simulated with known physics, held in memory, stored on disk."""

from motes.data.clips import Clips, PackedFrames, load_clips, pack, save_clips, video_of
from motes.data.gif import write_gif
from motes.data.worlds.physics import OpticalTrap, World
from motes.data.worlds.registry import cannonballs, draw_clips

__all__ = [
    "Clips",
    "OpticalTrap",
    "PackedFrames",
    "World",
    "cannonballs",
    "draw_clips",
    "load_clips",
    "pack",
    "save_clips",
    "video_of",
    "write_gif",
]
