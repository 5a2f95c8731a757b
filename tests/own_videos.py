"""A recording: two balls that cross, a textured scene and a blinking logo."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from motes.video.source import write_mp4

HEIGHT, WIDTH, NUM_FRAMES, RADIUS = 180, 260, 70, 8


def places() -> np.ndarray:
    """The centres of the balls in pixels, [objects, frames, 2]."""
    t = np.arange(NUM_FRAMES)
    thrown = np.stack([15 + 3.3 * t, 150 - 6.2 * t + 0.085 * t**2], -1)
    rolling = np.stack([245 - 3.2 * t, 60 + 1.1 * t], -1)
    return np.stack([thrown, rolling])


def write_two_balls(path: Path) -> None:
    """Write an mp4 with camera noise at 25 frames a second."""
    random = np.random.default_rng(0)
    scene = random.integers(20, 60, (HEIGHT // 4, WIDTH // 4)).repeat(4, 0).repeat(4, 1)
    rows, columns = np.indices((HEIGHT, WIDTH))

    def pictures() -> Iterator[np.ndarray]:
        for t in range(NUM_FRAMES):
            picture = scene.astype(float)
            for x, y in places()[:, t]:
                picture[(columns - x) ** 2 + (rows - y) ** 2 <= RADIUS**2] = 210
            if t // 5 % 2:
                picture[8:22, 8:40] = 230
            noisy = picture + random.normal(0, 2, picture.shape)
            levels = noisy.round().clip(0, 255).astype(np.uint8)
            yield np.repeat(levels[..., None], 3, 2)

    write_mp4(path, pictures(), 25.0)
