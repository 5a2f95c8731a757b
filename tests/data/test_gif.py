"""The GIF encoder; `tests/video/test_source.py` reads its files back."""

import io

import pytest
from PIL import Image

from motes.data.gif import encode_gif, gif_delay


def still(level: int) -> Image.Image:
    return Image.new("L", (4, 3), level).convert("P")


def test_repeated_images_are_kept_or_joined() -> None:
    images = [still(9), still(9), still(200)]
    with Image.open(io.BytesIO(encode_gif(images, 40, keep_repeats=True))) as kept:
        assert kept.n_frames == 3
    with Image.open(io.BytesIO(encode_gif(images, 40))) as joined:
        assert joined.n_frames == 2
        assert joined.info["duration"] == 80


def test_each_image_may_have_its_own_delay() -> None:
    with Image.open(io.BytesIO(encode_gif([still(1), still(90)], [120, 1500]))) as gif:
        assert gif.info["loop"] == 0
        assert gif.info["duration"] == 120
        gif.seek(1)
        assert gif.info["duration"] == 1500


@pytest.mark.parametrize(
    ("fps", "delay"), [(10.0, 100), (30.0, 30), (50.0, 20), (1e3, 20), (0.5, 2000)]
)
def test_delays_are_steps_of_a_hundredth_of_a_second(fps: float, delay: int) -> None:
    assert gif_delay(fps) == delay
