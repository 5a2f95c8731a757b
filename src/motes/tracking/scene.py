"""How a recording fits the tracker: the scale of its objects, its camera, what is not explained.

Frames are shrunk where objects are large, so that the work of a frame depends on its objects and
not on its pixels. `Fit` collects what was measured on the way and puts into words what does not
fit, with a remedy.
"""

from dataclasses import dataclass

import numpy as np

from motes.tracking.background import Scene, look, object_diameter
from motes.tracking.sprite import Array

LARGE, SHRUNK = 16.0, 8.0  # pixels: larger objects are shrunk to this diameter, about
MIN_SIDE = 24  # pixels of a shrunk frame
MOST_PIXELS = 2_500_000  # of a frame that is searched; larger ones are shrunk
SHORT = 5  # detections of a track that counts as followed
MIN_EXPLAINED, MIN_FOLLOWED, MAX_CROWDED, MAX_FOREGROUND = 0.5, 0.6, 0.1, 0.25
ENOUGH = 20  # detections from which shares are judged


def shrink(frames: Array, factor: int) -> Array:
    """Return means over factor x factor pixels; the rest at the right and lower border is cut."""
    if factor == 1:
        return frames
    count, height, width = frames.shape
    rows, columns = height // factor, width // factor
    cut = frames[:, : rows * factor, : columns * factor]
    small: Array = cut.reshape(count, rows, factor, columns, factor).mean((2, 4), np.float32)
    return small.astype(frames.dtype, copy=False)


def scene_at_scale(frames: Array, following: Array) -> tuple[Scene, int]:
    """Return a scene shrunk so that its objects have a diameter of a few pixels, and by how much.

    Args:
        frames: spread over a recording, [S, height, width].
        following: the frame after each of them.
    """
    least = int(np.ceil(np.sqrt(frames[0].size / MOST_PIXELS)))
    scene = look(shrink(frames, least), shrink(following, least))
    diameter = object_diameter(scene)
    factor = least * (round(diameter / SHRUNK) if diameter > LARGE else 1)
    factor = max(1, min(factor, min(frames.shape[1:]) // MIN_SIDE))
    if factor > least:
        scene = look(shrink(frames, factor), shrink(following, factor))
    return scene, factor


@dataclass(frozen=True)
class Fit:
    """How well the tracker fits a recording.

    Attributes:
        factor: by which frames were shrunk.
        foreground: share of the pixels that differ from the background.
        explained: share of their squared differences that objects explain in a typical frame; NaN
            without any.
        followed: share of the detections that belong to tracks of at least SHORT detections.
        crowded: share of the frames with more candidates than are searched.
        camera: "still", "moving" or "lost", see `motes.video.camera`; "still" without bad signs.
        detections: number of them.
        drifts: whether most of many objects move alike.
    """

    factor: int = 1
    foreground: float = 0.0
    explained: float = float("nan")
    followed: float = 1.0
    crowded: float = 0.0
    camera: str = "still"
    detections: int = 0
    drifts: bool = False

    @property
    def _camera_moves(self) -> bool:
        """Whether the camera moves; one whose motion is not found changes much of the picture."""
        little = self.foreground <= MAX_FOREGROUND and self.crowded <= MAX_CROWDED
        explained_otherwise = self.detections > 0 and little and not self.drifts
        return self.camera == "moving" or (self.camera == "lost" and not explained_otherwise)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What does not fit, a line each with the likely cause and a remedy."""
        bad = self.detections == 0 or self.explained < MIN_EXPLAINED or self.crowded > MAX_CROWDED
        bad = bad or (self.detections >= ENOUGH and self.followed < MIN_FOLLOWED)
        bad = bad or self.foreground > MAX_FOREGROUND
        if (bad or self.drifts) and self._camera_moves:
            return (
                "the camera moves or zooms, so parts of the scene may pass for objects: steady "
                "the recording first, or use a part with a steady camera (--start, --end)",
            )
        if self.detections == 0:
            return (
                "no object was found: objects should be compact and differ from the background; "
                "choose a part where they move (--start, --end)",
            )
        found = []
        if self.foreground > MAX_FOREGROUND:
            found.append(
                f"{self.foreground:.0%} of the picture change all the time (light, water, leaves "
                "or a moving camera), and objects should be small: cut out a calm part first"
            )
        elif self.crowded > MAX_CROWDED:
            found.append(
                f"clutter: {self.crowded:.0%} of the frames have more spots than are searched, "
                "and only the strongest were kept: cut out a part, or smooth the frames first"
            )
        elif self.explained < MIN_EXPLAINED:
            found.append(
                f"objects of one shape explain {self.explained:.0%} of what moves: objects that "
                "are large, differ or deform are followed in pieces; motes prepare and motes train "
                "learn such objects, or shrink the recording"
            )
        if not found and bad:
            found.append(
                f"only {self.followed:.0%} of the detections belong to tracks of {SHORT} or more: "
                "they are noise, texture or objects that move too far between frames; use a higher "
                "frame rate or a part without clutter"
            )
        return tuple(found)
