"""Files of corrections, and their way from the video to the clip."""

import csv
import json

import numpy as np
import pytest
import torch

import motes
from motes.cli import main
from motes.core.errors import InputError
from motes.output.corrections import (
    in_clip,
    read_corrections,
    read_corrections_of,
    write_corrections,
)
from motes.output.tracks import answer_in_video
from motes.queries.corrections import Forbid, Pin, Swap, as_mapping
from motes.video import VideoMap
from tests.tiny import tiny_frames, tiny_model

LISTED = [Pin(1, 8, 30.5, 12.0, sd=2.0), Forbid(6, end=9, object=0), Swap(0, 1, 8, clip=1)]


def where(shifts=None):
    numbers = np.arange(5) * 2 + np.array([[4], [0]])
    return VideoMap(np.array([3.0, 5.0]), np.array([10.0, -1.0]), numbers / 40, numbers, shifts)


def test_files_hold_corrections_as_json_or_csv(tmp_path):
    write_corrections(tmp_path / "a.json", LISTED)
    assert read_corrections(tmp_path / "a.json") == LISTED
    rows = [as_mapping(entry) for entry in LISTED]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    assert read_corrections(tmp_path / "a.csv") == LISTED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON or CSV"),
        ("{}", "corrections are a dict; give a list"),
        ('[{"kind": "pin"}]', "correction 0, a pin"),
        ("[" * 100_000, "is not JSON or CSV"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_corrections(tmp_path / "a.json")
    with pytest.raises(InputError, match="expected a JSON or CSV file"):
        read_corrections(tmp_path / "b.json")


def test_corrections_of_several_recordings_are_given_to_each(tmp_path):
    named = zip(["b", "a", "b"], map(as_mapping, LISTED), strict=True)
    path = tmp_path / "all.json"
    path.write_text(json.dumps([{"recording": name, **entry} for name, entry in named]))
    assert read_corrections_of(path, ["a", "b", "c"]) == {"b": LISTED[::2], "a": [LISTED[1]]}
    with pytest.raises(InputError, match="correction 1 is about recording 'a'; expected a name"):
        read_corrections_of(path, ["b"])
    write_corrections(path, LISTED)
    with pytest.raises(InputError, match="correction 0 is about recording None"):
        read_corrections_of(path, ["b"])


@pytest.mark.parametrize("moving", [False, True])
def test_corrections_of_a_video_are_those_of_its_table(moving):
    """A pin where the table shows an object is a pin at its place in the clip."""
    shifts = np.random.default_rng(0).normal(size=(2, 5, 2)) if moving else None
    answer = motes.infer(tiny_model(), tiny_frames(2, 5), 3)
    shown = answer_in_video(answer, where(shifts))
    for clip, n, t in ((0, 1, 3), (1, 2, 0)):
        x, y = shown.pixels[clip, n, t].tolist()
        frame = int(where().numbers[clip, t])
        (pin,) = in_clip([Pin(n, frame, x, y, sd=1.0, clip=clip)], where(shifts))
        at = torch.tensor([pin.x, pin.y])
        assert torch.allclose(at, answer.pixels[clip, n, t], atol=1e-4)
        assert (pin.object, pin.frame, pin.clip) == (n, t, clip)
        assert pin.sd == pytest.approx(1 / np.sqrt(15))


def test_clips_of_several_recordings_have_scales_of_their_own():
    scales, offsets = np.array([[3.0, 5.0], [2.0, 2.0]]), np.array([[10.0, -1.0], [0.0, 7.0]])
    numbers = np.arange(5) + np.zeros((2, 1), int)
    mixed = VideoMap(scales, offsets, numbers / 25, numbers)
    given = [Pin(0, 3, 16.0, 9.0, sd=2.0, clip=1), Forbid(2, x=16.0, y=9.0, radius=4.0, clip=1),
             Pin(0, 3, 16.0, 9.0, sd=2.0)]  # fmt: skip
    pin, forbid, first = in_clip(given, mixed)
    assert (pin.x, pin.y, pin.sd) == (8.0, 1.0, 1.0)
    assert (forbid.x, forbid.y, forbid.radius) == (8.0, 1.0, 2.0)
    assert (first.x, first.y) == (2.0, 2.0)
    assert first.sd == pytest.approx(2 / np.sqrt(15))


def test_frames_of_a_video_become_frames_of_the_clip():
    forbid, swap = in_clip([Forbid(6, end=9, x=13.0, y=4.0, radius=3.0), LISTED[2]], where())
    assert (forbid.frame, forbid.end, forbid.x, forbid.y) == (1, 3, 1.0, 1.0)
    assert swap.frame == 4
    (later,) = in_clip([Pin(0, 20, 10.0, 10.0)], where())  # in the frames of a forecast
    assert later.frame == 8
    with pytest.raises(InputError, match="is in frame 1; clip 0 begins with frame 4"):
        in_clip([Pin(0, 1, 10.0, 10.0)], where())
    with pytest.raises(InputError, match="is in clip 2; the clips are 0 to 1"):
        in_clip([Pin(0, 4, 10.0, 10.0, clip=2)], where())


def test_the_command_line_takes_corrections(tmp_path, capsys):
    clips = motes.cannonballs(num_clips=1, num_objects=(2,), num_frames=12, size=48, seed=3)
    motes.save_clips(tmp_path / "clips.npz", clips)
    (tmp_path / "swap.json").write_text(json.dumps([as_mapping(Swap(0, 1, 6))]))
    query = ["infer", str(tmp_path / "clips.npz"), "-m", "cannonballs-structured", "-o"]
    assert main([*query, str(tmp_path / "a.csv")]) == 0
    swap = ["--corrections", str(tmp_path / "swap.json")]
    assert main([*query, str(tmp_path / "b.csv"), *swap]) == 0
    before, after = (
        {
            (row["frame"], row["particle"]): (row["x"], row["y"])
            for row in csv.DictReader((tmp_path / name).read_text().splitlines())
        }
        for name in ("a.csv", "b.csv")
    )
    for frame in range(12):
        own, other = ("1", "0") if frame >= 6 else ("0", "1")
        assert after[str(frame), "0"] == before[str(frame), own]
        assert after[str(frame), "1"] == before[str(frame), other]
    (tmp_path / "swap.json").write_text(json.dumps([as_mapping(Swap(0, 5, 6))]))
    assert main([*query, str(tmp_path / "c.csv"), *swap]) == 2
    assert "names object 5; the objects of clip 0 are 0 to 1" in capsys.readouterr().err
