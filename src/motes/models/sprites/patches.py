"""Square windows of pixels around objects, and the crops of images that they select."""

from typing import NamedTuple

import torch
from torch.nn.functional import pad

from motes.core.axes import Bool, Float, Int, Tensor


class Window(NamedTuple):
    """A square window of pixels for each object; parts of it may lie outside the frame."""

    centre: Int[Tensor, "B N 2"]
    x: Int[Tensor, "B N side"]
    y: Int[Tensor, "B N side"]
    image_size: tuple[int, int]

    @staticmethod
    def around(mean: Float[Tensor, "B N 2"], radius: int, image_size: tuple[int, int]) -> "Window":
        """Return the window centred on the pixel nearest to each mean."""
        return Window.at(nearest_pixel(mean, image_size), radius, image_size)

    @staticmethod
    def at(centre: Int[Tensor, "B N 2"], radius: int, image_size: tuple[int, int]) -> "Window":
        """Return the window of side 2 radius + 1 centred on each given pixel."""
        near = torch.arange(-radius, radius + 1, device=centre.device)
        return Window(centre, centre[..., 0, None] + near, centre[..., 1, None] + near, image_size)

    @property
    def inside(self) -> Bool[Tensor, "B N side side"]:
        """Return which pixels of the window lie in the frame."""
        (height, width), x, y = self.image_size, self.x, self.y
        return ((y >= 0) & (y < height))[..., :, None] & ((x >= 0) & (x < width))[..., None, :]

    @property
    def flat(self) -> Int[Tensor, "B N side side"]:
        """Return row-major pixel indices, clamped to the border for pixels outside the frame."""
        height, width = self.image_size
        rows, columns = self.y.clamp(0, height - 1), self.x.clamp(0, width - 1)
        return rows[..., :, None] * width + columns[..., None, :]

    def crop(
        self, crops: Float[Tensor, "images height width side side"], which: Int[Tensor, " B"]
    ) -> Float[Tensor, "B N side side"]:
        """Return the windows of image `which[b]` for each clip b, from its `sliding_crops`."""
        x, y = self.centre.unbind(-1)
        return crops[which[:, None], y, x]

    def crop_shared(
        self, crops: Float[Tensor, "*images height width side side"]
    ) -> Float[Tensor, "*images B N side side"]:
        """Return the windows of images that are shared by all clips, from `sliding_crops`."""
        x, y = self.centre.unbind(-1)
        return crops[..., y, x, :, :]


class FrameBatch(NamedTuple):
    """References to M frames of clips, by clip and time; pixels are copied only when cropped."""

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
        """Return the frames of a block of time, one clip after the other."""
        times = torch.arange(frames.shape[1], device=clips.device)[time]
        clip, each = torch.meshgrid(clips, times, indexing="ij")
        return FrameBatch(frames, clip.flatten(), each.flatten(), observed[:, time].flatten())

    def crop(self, window: Window) -> Float[Tensor, "M N side side C"]:
        """Return each frame's windows: zero for unobserved frames, arbitrary outside the frame."""
        height, width = window.image_size
        rows, columns = window.y.clamp(0, height - 1), window.x.clamp(0, width - 1)
        clip, time = (part[:, None, None, None] for part in (self.clip, self.time))
        crops = self.frames[clip, time, rows[..., :, None], columns[..., None, :]]
        return crops.masked_fill_(~self.observed[:, None, None, None, None], 0.0)


def sliding_crops(
    images: Float[Tensor, "*B height width"], radius: int
) -> Float[Tensor, "*B height width side side"]:
    """Return the crop around every pixel, zero outside the image, as a view of one padded copy."""
    side = 2 * radius + 1
    padded: Tensor = pad(images, (radius, radius, radius, radius))
    return padded.unfold(-2, side, 1).unfold(-2, side, 1)


def nearest_pixel(mean: Float[Tensor, "*B 2"], image_size: tuple[int, int]) -> Int[Tensor, "*B 2"]:
    """Return the pixel of the frame nearest to each position."""
    height, width = image_size
    x, y = mean.round().long().unbind(-1)
    return torch.stack([x.clamp(0, width - 1), y.clamp(0, height - 1)], -1)


def pixel_grid(image_size: tuple[int, int], like: Tensor) -> Float[Tensor, "pixels 2"]:
    """Return (x, y) of all pixels in row-major order, with the dtype and device of `like`."""
    sizes = (torch.arange(size).to(like) for size in image_size)
    y, x = torch.meshgrid(*sizes, indexing="ij")
    return torch.stack([x, y], -1).flatten(0, 1)


def window_offsets(phases: int, window: int) -> Float[Tensor, "cells 2"]:
    """Return the (x, y) offsets of a window's cells, in the order of the scores of `conv2d`."""
    cells = (torch.arange(phases) + 0.5) / phases - 0.5
    near = torch.arange(-window, window + 1)
    y = cells[:, None, None, None] + near[:, None]
    x = cells[:, None, None] + near
    return torch.stack(torch.broadcast_tensors(x, y), -1).flatten(0, -2)
