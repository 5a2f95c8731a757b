"""Squares of pixels around objects: what is seen of pictures through them."""

from typing import NamedTuple

import torch
from torch.nn.functional import pad

from motes.core.axes import Bool, Float, Int, Tensor


class Window(NamedTuple):
    """The pixels around each object: a square, larger by the glyph's reach than what is weighed."""

    centre: Int[Tensor, "B N 2"]
    x: Int[Tensor, "B N side"]
    y: Int[Tensor, "B N side"]
    image_size: tuple[int, int]

    @staticmethod
    def around(
        mean: Float[Tensor, "B N 2"], crop_radius: int, image_size: tuple[int, int]
    ) -> "Window":
        """The window of pixels up to `crop_radius` from the pixel that an object is in."""
        return Window.at(nearest_pixel(mean, image_size), crop_radius, image_size)

    @staticmethod
    def at(centre: Int[Tensor, "B N 2"], crop_radius: int, image_size: tuple[int, int]) -> "Window":
        """The window of pixels up to `crop_radius` from a pixel of the frame."""
        near = torch.arange(-crop_radius, crop_radius + 1, device=centre.device)
        return Window(centre, centre[..., 0, None] + near, centre[..., 1, None] + near, image_size)

    @property
    def inside(self) -> Bool[Tensor, "B N side side"]:
        """Which pixels lie in the frame."""
        (height, width), x, y = self.image_size, self.x, self.y
        return ((y >= 0) & (y < height))[..., :, None] & ((x >= 0) & (x < width))[..., None, :]

    @property
    def flat(self) -> Int[Tensor, "B N side side"]:
        """The row-major place in the frame of each pixel; of no meaning beside the frame."""
        height, width = self.image_size
        rows, columns = self.y.clamp(0, height - 1), self.x.clamp(0, width - 1)
        return rows[..., :, None] * width + columns[..., None, :]

    def crop(
        self,
        sliding_crops: Float[Tensor, "pictures height width side side"],
        which: Int[Tensor, " B"],
    ) -> Float[Tensor, "B N side side"]:
        """What is seen of a picture for each clip, given by their `sliding_crops`."""
        x, y = self.centre.unbind(-1)
        return sliding_crops[which[:, None], y, x]

    def crop_shared(
        self, sliding_crops: Float[Tensor, "*kinds height width side side"]
    ) -> Float[Tensor, "*kinds B N side side"]:
        """What is seen of pictures that are those of all clips."""
        x, y = self.centre.unbind(-1)
        return sliding_crops[..., y, x, :, :]


class FrameBatch(NamedTuple):
    """Some frames of clips, in whatever order; no copies of them."""

    frames: Float[Tensor, "clips T height width C"]
    clip: Int[Tensor, " M"]
    time: Int[Tensor, " M"]
    observed: Bool[Tensor, " M"]

    @staticmethod
    def during(
        frames: Float[Tensor, "clips T height width C"],
        clips: Int[Tensor, " B"],
        observed: Bool[Tensor, "B T"],
        time: slice,
    ) -> "FrameBatch":
        """The frames of a stretch of some clips, one clip after the other."""
        times = torch.arange(frames.shape[1], device=clips.device)[time]
        clip, each = torch.meshgrid(clips, times, indexing="ij")
        return FrameBatch(frames, clip.flatten(), each.flatten(), observed[:, time].flatten())

    def through(self, window: Window) -> Float[Tensor, "M N side side C"]:
        """What is seen of each frame through its windows; of no meaning beside the frame.

        Hidden frames show nothing.
        """
        height, width = window.image_size
        rows, columns = window.y.clamp(0, height - 1), window.x.clamp(0, width - 1)
        clip, time = (part[:, None, None, None] for part in (self.clip, self.time))
        seen = self.frames[clip, time, rows[..., :, None], columns[..., None, :]]
        return seen.masked_fill_(~self.observed[:, None, None, None, None], 0.0)


def sliding_crops(
    pictures: Float[Tensor, "*B height width"], crop_radius: int
) -> Float[Tensor, "*B height width side side"]:
    """What is seen through a window around each pixel; zeros beyond the frame.

    A view of the picture with a border: squares share its memory.
    """
    side = 2 * crop_radius + 1
    bordered: Tensor = pad(pictures, (crop_radius, crop_radius, crop_radius, crop_radius))
    return bordered.unfold(-2, side, 1).unfold(-2, side, 1)


def nearest_pixel(mean: Float[Tensor, "*B 2"], image_size: tuple[int, int]) -> Int[Tensor, "*B 2"]:
    """The pixel of the frame that a place is in, or is nearest to."""
    height, width = image_size
    x, y = mean.round().long().unbind(-1)
    return torch.stack([x.clamp(0, width - 1), y.clamp(0, height - 1)], -1)


def window_offsets(phases: int, window: int) -> Float[Tensor, "places 2"]:
    """(x, y) of the cells of a window, in the order in which `conv2d` gives their scores."""
    cells = (torch.arange(phases) + 0.5) / phases - 0.5
    near = torch.arange(-window, window + 1)
    y = cells[:, None, None, None] + near[:, None]
    x = cells[:, None, None] + near
    return torch.stack(torch.broadcast_tensors(x, y), -1).flatten(0, -2)
