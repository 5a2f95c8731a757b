"""Colour clips: the grey level that separates objects, kept with the model."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

import motes
from motes import cli
from motes.config import DataConfig
from motes.core.errors import InputError
from motes.data import Clips, save_clips, worlds
from motes.data.colour import find_axis, in_grey, to_grey
from motes.data.gif import write_gif
from motes.models.checkpoint import save_model
from motes.models.model import build
from motes.server import schemas, uploads
from motes.server.playground import Playground
from motes.training.dataset import fit_to_data, make_dataset
from motes.training.presets import PRESETS


def hues(generator):
    """Objects and background of the same mean over channels: grey as an average shows nothing."""
    frames = torch.tensor([0.5, 0.3, 0.4]).repeat(4, 6, 16, 16, 1)
    frames += 0.01 * torch.randn(frames.shape, generator=generator)
    for t in range(6):
        frames[:, t, 2 * t : 2 * t + 3, 4:7] = torch.tensor([0.2, 0.6, 0.4])
    return frames


def test_objects_of_another_hue_become_bright(generator):
    frames = hues(generator)
    axis = find_axis(frames)
    # The one direction in which anything differs: from the background's colour to the objects'.
    direction = torch.tensor(axis[:3]) / torch.tensor(axis[:3]).norm()
    assert torch.allclose(direction, torch.tensor([-1.0, 1.0, 0.0]) / 2**0.5, atol=0.05)
    grey = to_grey(frames, axis)
    assert 0 <= grey.min() < grey.max() <= 1
    inside = grey[:, 0, 0:3, 4:7]
    outside = grey[:, 0, 8:]
    # Noise of 0.01 over a contrast of 0.42, stretched to about 1: five deviations.
    assert inside.min() > 0.9
    assert outside.max() < 0.25


def test_a_model_of_colour_clips_is_asked_with_colour(tmp_path):
    clips = worlds.make("colour", 12, (1, 2), num_frames=12, size=16)
    save_clips(tmp_path / "clips.npz", clips)
    config = PRESETS["sprites-smoke"]
    config = fit_to_data(
        dataclasses.replace(config, data=DataConfig(path=str(tmp_path / "clips.npz")))
    )
    axis = config.data.colour_axis
    assert axis is not None
    held = make_dataset(config, torch.device("cpu")).training
    grey = to_grey(clips.frames, axis)
    assert torch.equal(held.frames(torch.arange(2)), grey[:2])
    model = build(config)
    answer = motes.infer(model, clips.frames[:2], 1)
    plain = build(
        dataclasses.replace(config, data=dataclasses.replace(config.data, colour_axis=None))
    )
    assert torch.equal(answer.pixels, motes.infer(plain, grey[:2], 1).pixels)
    with pytest.raises(InputError, match="3 colours"):
        motes.infer(model, grey[:2], 1)
    with pytest.raises(InputError, match="trained on grey frames"):
        motes.infer(plain, clips.frames[:2], 1)


@pytest.fixture
def coloured(tmp_path):
    """A clip in colour as a file and as pictures, and a model that sees one grey level of it."""
    clip = worlds.make("colour", 1, 1, num_frames=12, size=16)
    save_clips(tmp_path / "clip.npz", clip)
    (tmp_path / "pictures").mkdir()
    for t, levels in enumerate((255 * clip.frames[0]).round().byte().numpy()):
        Image.fromarray(levels).save(tmp_path / "pictures" / f"{t}.png")
    config = PRESETS["sprites-smoke"]
    data = dataclasses.replace(config.data, colour_axis=find_axis(clip.frames))
    config = dataclasses.replace(config, data=data)
    (tmp_path / "run").mkdir()
    save_model(tmp_path / "run", build(config), config)
    return tmp_path, clip


def test_a_video_in_colour_is_asked_about_as_its_clips_are(coloured):
    folder, _ = coloured
    told = []
    for name in ("clip.npz", "pictures"):
        out = folder / f"{name}.csv"
        asked = [str(folder / name), f"--model={folder}/run", "--num-objects=1", f"--out={out}"]
        assert cli.main(["infer", *asked]) == 0
        told.append([line.split(",")[3:5] for line in out.read_text().splitlines()])
    assert told[0] == told[1]


def test_what_makes_its_own_clips_is_not_for_models_of_colour(coloured, capsys):
    folder, _ = coloured
    for verb in (["evaluate", f"{folder}/run"], ["demo", f"--model={folder}/run"]):
        assert cli.main(verb) == 2
        assert "grey or colour" in capsys.readouterr().err


def test_the_playground_shows_colour_as_the_model_sees_it(coloured):
    folder, clip = coloured
    playground = Playground.of(str(folder / "run"))
    axis = playground.config.data.colour_axis
    expected = to_grey(clip.frames, axis)[0]
    picture = (folder / "clip.npz").read_bytes()
    (sent,) = uploads.read_upload(picture, "clip.npz", playground).clips
    video = schemas.Video(**sent.model_dump(include={"num_frames", "height", "width", "frames"}))
    # Sent as one of 255 levels.
    torch.testing.assert_close(schemas.decode_frames(video), expected, rtol=0, atol=0.51 / 255)
    question = schemas.QueryRequest(video=video, masks=[[True] * 12], num_objects=1)
    assert len(playground.query(question).predictions[0].tracks) == 1


def test_hidden_colour_frames_cannot_matter(tmp_path):
    frames = worlds.make("colour", 2, 1, num_frames=12, size=16).frames
    config = PRESETS["sprites-smoke"]
    data = dataclasses.replace(config.data, colour_axis=(0.3, 0.3, 0.3, 0.0))
    model = build(dataclasses.replace(config, data=data))
    observed = torch.arange(12) < 6
    spoiled = torch.where(observed[:, None, None, None], frames, torch.nan)
    one = motes.interpolate(model, frames, observed, 1)
    assert torch.equal(one.pixels, motes.interpolate(model, spoiled, observed, 1).pixels)


def test_grey_clips_stay_as_they_are():
    clips = Clips(torch.rand(1, 2, 4, 5))
    assert in_grey(clips, (1.0, 1.0, 1.0, 0.0)) is clips


def test_a_gif_in_colour_keeps_its_colours(tmp_path):
    colours = torch.tensor([[1.0, 0.2, 0.0], [0.0, 0.6, 0.2], [0.2, 0.2, 0.8]])
    frames = colours[:, None, None].expand(3, 4, 5, 3)
    write_gif(tmp_path / "clip.gif", frames)
    with Image.open(tmp_path / "clip.gif") as gif:
        for number, colour in enumerate(colours):
            gif.seek(number)
            shown = torch.from_numpy(np.array(gif.convert("RGB"))) / 255
            # A palette of 256 colours has room for three: within the rounding to levels.
            assert (shown - colour).abs().max() <= 1 / 255
