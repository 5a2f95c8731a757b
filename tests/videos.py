"""Simulated recordings: disks on a textured background."""

import numpy as np

from motes.video import Frame, Video

HEIGHT, WIDTH, FPS = 60, 90, 10


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
