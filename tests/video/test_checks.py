"""What prepare says of recordings with a fault, and that it says nothing without one."""

import json

import numpy as np
import pytest
from PIL import Image

from motes.cli import main
from motes.config import DataConfig
from motes.core.errors import InputError
from motes.video import Preparation, open_video, plan
from motes.video.clips import cut_clips
from motes.video.prepare import flicker
from videos import HEIGHT, WIDTH, crossing, disk, video_of, video_of_disks

T = 60
RANDOM = np.random.default_rng(3)
SCENE = RANDOM.integers(20, 60, (HEIGHT, WIDTH))


def warnings_of(tmp_path, video, size=(30, 45), **settings):
    found = plan(video, Preparation(*size, **settings))
    return cut_clips(found, tmp_path / "clips.npz", 20, 20, None).warnings


def grid_of_disks(rows, columns, step):
    """Disks on a grid that moves by 0.4 pixels a frame to the right and down."""
    places = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), -1).reshape(1, -1, 2)
    return 8 + step * places + 0.4 * np.arange(T)[:, None, None]


def pictures(brightness):
    """Two crossing disks under a light whose brightness changes by levels."""
    for (first, second), added in zip(crossing(T), brightness, strict=True):
        lit = disk(*first, 4) | disk(*second, 4)
        yield np.where(lit, 200, SCENE) + added + RANDOM.normal(0, 2, SCENE.shape)


def count_varies(numbers):
    """Up to four disks that move in parallel, of which some are shown."""
    t = np.arange(T)
    paths = np.stack([np.stack((8 + 1.2 * t, 9 + 14.0 * n + 0 * t), 1) for n in range(4)], 1)
    return [path[:number] for path, number in zip(paths, numbers, strict=True)]


def touching(gap):
    """Two disks that move together with a gap between their edges in half of the frames."""
    t = np.arange(T)
    apart = np.where(t % 2, 9 + gap, 16)
    return np.stack((np.stack((5 + t, 20 + 0 * t), 1), np.stack((5 + t + apart, 20 + 0 * t), 1)), 1)


CASES = {
    "share": ("of the picture count as moving", "--threshold"),
    "flicker": ("brightness of the whole picture changes", "--threshold"),
    "glue": ("glues neighbours", "--grow"),
    "merge": ("merge in the small frames", "--size"),
    "touching": ("objects touch", "--num-objects"),
    "crowd": ("more than 16 objects (up to 20)", "--crop"),
    "changing": ("number of blobs changes", "--crop"),
    "empty": ("clips hold nothing", "--start"),
    "clock": ("has no time stamps", "--source-fps"),
}


def recordings(fault):
    """The recording and settings with a fault, and nearly the same without."""
    t = np.arange(T)
    nothing = np.zeros((0, 2))
    large = np.stack((5 + 1.4 * t, 30 + 0 * t), 1)[:, None]
    wave = 30 * np.sin(t)
    some = RANDOM.integers(1, 5, T)
    return {
        "share": [(video_of_disks(large, radius=r), {"threshold": 0.3}) for r in (25, 12)],
        "flicker": [(video_of(pictures(wave)), {}), (video_of(pictures(0.1 * wave)), {})],
        "glue": [
            (video_of_disks(grid_of_disks(2, 4, 9), radius=2), {"size": size})
            for size in ((12, 18), (60, 90))
        ],
        "merge": [
            (video_of_disks(grid_of_disks(2, 4, 9), radius=3), {"size": size, "grow": 0})
            for size in ((6, 9), (60, 90))
        ],
        "touching": [(video_of_disks(touching(gap)), {"size": (60, 90)}) for gap in (-2, 5)],
        "crowd": [
            (video_of_disks(grid_of_disks(4, columns, 9), radius=2), {"size": (60, 90)})
            for columns in (5, 3)
        ],
        "changing": [(video_of_disks(count_varies(n)), {}) for n in (some, [3] * T)],
        "empty": [(video_of_disks([*crossing(20), *([nothing] * more)]), {}) for more in (40, 20)],
        "clock": [(video_of_disks(crossing(T), fps=fps), {}) for fps in (None, 10.0)],
    }[fault]


@pytest.mark.parametrize("fault", CASES)
def test_a_fault_is_said_with_the_option_that_helps_and_nothing_else(tmp_path, fault):
    (bad, settings), (good, other) = recordings(fault)
    said, option = CASES[fault]
    lines = warnings_of(tmp_path, bad, **settings)
    assert any(said in line and option in line for line in lines), lines
    assert all("\n" not in line for line in lines)
    assert warnings_of(tmp_path, good, **other) == []


def test_flicker_is_the_change_of_exposure():
    random = np.random.default_rng(0)
    added = np.linspace(0, 40, 21)
    frames = [np.where(disk(9 + 3 * t, 30, 5), 220, SCENE) + b for t, b in enumerate(added)]
    noisy = np.stack(frames)[..., None] + random.normal(0, 2, (21, HEIGHT, WIDTH, 1))
    found = flicker(noisy.round().astype(np.uint8))
    # From the 5 % to the 95 % quantile of 21 even steps: 36 levels. Rounding moves a median of
    # 1350 pixels by at most half a level at either end.
    assert found == pytest.approx(36 / 255, abs=1 / 255)


def gif(path, delay):
    images = [Image.fromarray(p.clip(0, 255).astype(np.uint8)) for p in pictures(np.zeros(T))]
    images[0].save(path, save_all=True, append_images=images[1:], duration=delay)


def test_a_gif_without_delays_is_not_one_frame_a_second_in_silence(tmp_path, capsys):
    gif(tmp_path / "none.gif", 0)
    assert open_video(tmp_path / "none.gif").fps is None
    clips = str(tmp_path / "clips.npz")
    assert main(["prepare", str(tmp_path / "none.gif"), "-o", clips, "--json"]) == 0
    told = capsys.readouterr()
    assert "none.gif has no time stamps" in told.err
    assert "--source-fps" in told.err
    assert any("time stamps" in line for line in json.loads(told.out)["warnings"])
    for name, options in (("none.gif", ["--source-fps", "25"]), ("some.gif", [])):
        gif(tmp_path / "some.gif", 40)
        assert main(["prepare", str(tmp_path / name), "-o", clips, *options]) == 0
        assert capsys.readouterr().err == ""


def test_counts_that_no_model_takes_are_named_in_short():
    for counts, named in ((tuple(range(1, 613)), "1 to 612"), ((3, 17), r"\(3, 17\)")):
        with pytest.raises(InputError, match=f"num_objects is {named}; give counts between 1"):
            DataConfig(num_objects=counts)
