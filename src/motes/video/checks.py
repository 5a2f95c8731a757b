"""What may be wrong with a preparation, in one line each that names the option that helps."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from motes.config import MAX_OBJECTS
from motes.video.camera import CameraMotion
from motes.video.source import Video

MAX_SHARE = 0.25  # of the picture that may be foreground
MAX_FLICKER = 0.4  # of the threshold, by which the whole picture may change
MIN_KEPT = 0.75  # of the blobs, after dilation and shrinking
LARGE = 1.7  # of the median mass: two objects in one blob
MAX_TOUCHING = 0.25  # of the frames in which blobs may be large
MAX_CHANGING = 0.4  # of the frames in which the number may differ from that of the clip
MAX_EMPTY = 0.5  # of the clips


class ClipCounts(NamedTuple):
    """Blobs in the frames of a clip."""

    typical: int  # number of objects
    per_frame: list[int]
    touching: float  # share of frames with fewer blobs than others have, one of them large

    @classmethod
    def of(cls, masses: list[list[float]], typical: int, per_frame: list[int]) -> "ClipCounts":
        """Return the counts of a clip from the masses of the blobs in its frames."""
        large = LARGE * float(np.median([mass for frame in masses for mass in frame]))
        many = float(np.percentile(per_frame, 90))
        touching = [
            count < many and max(frame, default=0.0) > large
            for frame, count in zip(masses, per_frame, strict=True)
        ]
        return cls(typical, per_frame, float(np.mean(touching)))


def camera_warnings(motion: CameraMotion) -> list[str]:
    """Return whether the camera moves, and whether that was taken out."""
    if motion.kind == "moving":
        return [
            f"the camera moves by up to {motion.motion:.1f} pixels, which was taken out; "
            "--camera still leaves it in"
        ]
    if motion.kind == "lost":
        far = f" by up to {motion.motion:.0f} pixels" if motion.motion else ""
        return [
            f"the camera moves{far} or zooms, too much to take out: use a steady part of the "
            "recording (--start, --end) or steady it first"
        ]
    return []


def clock_warnings(video: Video) -> list[str]:
    """Return whether the video has no clock."""
    if video.fps is not None:
        return []
    return [f"{video.name} has no time stamps, so a frame counts as one second: give --source-fps"]


def foreground_warnings(share: float, flicker: float, threshold: float) -> list[str]:
    """Return whether too much of the picture is foreground, or all of it changes.

    Args:
        share: foreground pixels of a typical frame, as a fraction.
        flicker: change of the whole picture's brightness, as a fraction of the full scale.
        threshold: smallest difference of foreground, in the same unit.
    """
    found = []
    if flicker > MAX_FLICKER * threshold:
        found.append(
            f"the brightness of the whole picture changes by {flicker:.1%} of the full scale, and "
            f"the threshold is {threshold:.1%}: fix the exposure, or raise --threshold"
        )
    if share > MAX_SHARE:
        found.append(
            f"{share:.0%} of the picture count as moving, and objects should be small: raise "
            "--threshold, choose a --crop or --colour, or give --background"
        )
    return found


def growth_warnings(blobs: float, grown: float, prepared: float, grow: int) -> list[str]:
    """Return whether neighbours merge, given mean numbers of blobs in the masks of a frame.

    Args:
        blobs: at the resolution of the video.
        grown: after dilation.
        prepared: in the small frames.
        grow: pixels of dilation.
    """
    if blobs < 1.5 or prepared >= MIN_KEPT * blobs:
        return []
    merged = f"{blobs:.1f} blobs a frame become {prepared:.1f}"
    if grown < MIN_KEPT * blobs:
        return [
            f"dilation by {grow} pixels glues neighbours ({merged}): give a smaller --grow or a "
            "larger --size"
        ]
    return [f"neighbours merge in the small frames ({merged}): give a larger --size or a --crop"]


def count_warnings(clips: Sequence[ClipCounts], num_empty: int, given: bool) -> list[str]:
    """Return whether there are too many or too few objects, or their number is doubtful.

    Args:
        clips: blobs of every clip that holds something.
        num_empty: clips that hold nothing.
        given: whether the user gave the number of objects.
    """
    found = []
    if num_empty > MAX_EMPTY * (num_empty + len(clips)):
        found.append(
            f"{num_empty} of {num_empty + len(clips)} clips hold nothing: lower --threshold, or "
            "choose a part with --start and --end"
        )
    if given or not clips:
        return found
    crowded = [clip.typical for clip in clips if clip.typical > MAX_OBJECTS]
    if crowded:
        found.append(
            f"{len(crowded)} of {len(clips)} clips hold more than {MAX_OBJECTS} objects (up to "
            f"{max(crowded)}), which no model takes: choose a --crop, raise --threshold if they "
            "are noise, or give --num-objects"
        )
    touching = float(np.mean([clip.touching for clip in clips]))
    if touching > MAX_TOUCHING:
        found.append(
            f"objects touch in {touching:.0%} of the frames, so counts may be too low: give "
            "--num-objects, a larger --size or a --colour"
        )
    changing = [count != clip.typical for clip in clips for count in clip.per_frame]
    if np.mean(changing) > MAX_CHANGING:
        few, many = np.percentile([count for clip in clips for count in clip.per_frame], (5, 95))
        found.append(
            f"the number of blobs changes within clips ({few:.0f} to {many:.0f} a frame), and a "
            "clip has one number of objects: choose a --crop where all stay in view, fewer "
            "--frames, or another --threshold"
        )
    return found
