"""Clips: simulated with known physics, held in memory, stored on disk."""

from motes.data.clips import Clips, PackedFrames, pack, video_of
from motes.data.gif import write_gif
from motes.data.npz import load_clips, save_clips
from motes.data.worlds.cannonballs import cannonballs, draw_clips
from motes.data.worlds.optical_trap import OpticalTrap
from motes.data.worlds.physics import World

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
