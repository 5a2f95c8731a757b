"""Simulated recordings: disks on a textured background."""

import numpy as np
from scipy import ndimage

from motes.video import Frame, Video

HEIGHT, WIDTH, FPS = 60, 90, 10.0


def disk(x, y, radius, shape=(HEIGHT, WIDTH)):
    rows, columns = np.indices(shape)
    return (columns - x) ** 2 + (rows - y) ** 2 <= radius**2


def video_of_disks(centres, radius=4, level=200, noise=2.0, fps=FPS):
    """Disks on a textured background, with camera noise; `centres` is [T, N, 2]."""
    random = np.random.default_rng(0)
    scene = random.integers(20, 60, (HEIGHT, WIDTH))
    pictures = []
    for frame in centres:
        lit = np.any([disk(x, y, radius) for x, y in frame], axis=0) if len(frame) else False
        clean = np.where(lit, level, scene)
        noisy = clean + random.normal(0, noise, clean.shape)
        pictures.append(noisy.round().clip(0, 255).astype(np.uint8)[..., None])

    def frames():
        return (Frame(t / (fps or 1), picture) for t, picture in enumerate(pictures))

    return Video("disks", HEIGHT, WIDTH, len(pictures), fps, frames)


def crossing(num_frames=40):
    t = np.linspace(0, 1, num_frames)[:, None]
    return np.stack(
        [np.concatenate([8 + 70 * t, 15 + 0 * t], 1), np.concatenate([80 - 70 * t, 45 - 5 * t], 1)],
        1,
    )


def video_of(pictures, fps=FPS):
    """A recording of these frames of one channel, clipped to 8 bits."""
    levels = [np.asarray(p).round().clip(0, 255).astype(np.uint8)[..., None] for p in pictures]

    def frames():
        return (Frame(t / (fps or 1), picture) for t, picture in enumerate(levels))

    return Video("pictures", *levels[0].shape[:2], len(levels), fps, frames)


def camera_pictures(shifts, centres, zooms=None, radius=6.0, shape=(96, 128)):
    """Disks in front of a smooth texture, seen by a camera that displaces each frame by a shift.

    `centres` [T, N, 2] are places in the scene, so a disk is drawn at its centre plus the shift.
    """
    random = np.random.default_rng(1)
    texture = ndimage.gaussian_filter(random.normal(size=(400, 500)), 2.0)
    texture = 80 + 25 * texture / texture.std()
    rows, columns = np.indices(shape).astype(float)
    for t, ((x, y), disks) in enumerate(zip(shifts, centres, strict=True)):
        zoom = 1.0 if zooms is None else zooms[t]
        place = (200 + zoom * (rows - y - shape[0] / 2), 250 + zoom * (columns - x - shape[1] / 2))
        picture = ndimage.map_coordinates(texture, place, order=3)
        for disk_x, disk_y in disks:
            distance = np.hypot(columns - disk_x - x, rows - disk_y - y)
            covered = (radius + 0.5 - distance).clip(0, 1)  # soft edge
            picture += covered * (230 - picture)
        yield picture + random.normal(0, 1.5, shape)
