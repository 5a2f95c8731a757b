"""Clips in memory, on disk, and their conversion from colour to grey."""

import contextlib
import dataclasses
import io
import json
import os
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import motes
from motes import cli
from motes.config import DataConfig
from motes.core.errors import InputError
from motes.data import (
    Clips,
    PackedFrames,
    cannonballs,
    load_clips,
    pack,
    save_clips,
    video_of,
    worlds,
)
from motes.data.clips import clips_to_grey, colour_to_grey, find_colour_axis, median_background
from motes.data.gif import write_gif
from motes.models.checkpoint import save_model
from motes.models.model import build
from motes.server import schemas, uploads
from motes.server.playground import Playground
from motes.training.inputs import fit_to_data, make_dataset
from motes.training.presets import PRESETS

shapes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9))


def random_frames(shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 2, shape, dtype=np.uint8))


@given(shapes, st.integers(0, 1000))
def test_packing_then_unpacking_returns_the_frames(shape, seed):
    frames = random_frames(shape, seed)
    packed = pack(frames)
    assert torch.equal(packed.unpack_all(), frames)
    assert packed.shape == frames.shape
    indices = torch.tensor([0, shape[0] - 1, 0])
    unpacked = packed.unpack(indices)
    assert unpacked.dtype == torch.float32
    assert torch.equal(unpacked, frames[indices].float())


def test_bits_are_in_the_order_of_numpy():
    frames = random_frames((2, 3, 5, 7))
    expected = np.stack([[np.packbits(frame) for frame in clip] for clip in frames.numpy()])
    np.testing.assert_array_equal(pack(frames).bits.numpy(), expected)
    assert pack(random_frames((1, 1, 48, 48))).bits.shape == (1, 1, 288)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_frames_unpack_inside_a_cuda_graph():
    frames = random_frames((6, 3, 5, 7))
    packed, indices = pack(frames).to("cuda"), torch.tensor([1, 4], device="cuda")
    packed.unpack(indices)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = packed.unpack(indices)
    indices.copy_(torch.tensor([5, 0]))
    graph.replay()
    assert torch.equal(result.cpu(), frames[[5, 0]].float())


@pytest.mark.parametrize(("height", "width"), [(5, 8), (0, 35), (-5, -7)])
def test_bits_that_do_not_fit_the_size_are_refused(height, width):
    bits = pack(random_frames((1, 2, 5, 7))).bits[..., :4]
    with pytest.raises(InputError, match=f"{height}x{width}"):
        PackedFrames(bits, height, width)


@pytest.mark.parametrize("index", [slice(2, 5), torch.tensor([4, 0, 4]), slice(None, None, 3)])
def test_parts_of_clips_keep_frames_and_truth_together(index):
    clips = cannonballs(8, num_frames=4, size=16)
    part = clips[index]
    assert len(part) == len(clips.num_objects[index])
    assert torch.equal(part.frames, clips.frames[index])
    assert torch.equal(part.num_objects, clips.num_objects[index])
    assert torch.equal(part.positions.nan_to_num(-1), clips.positions[index].nan_to_num(-1))
    assert torch.equal(part.clean.nan_to_num(-1), clips.clean[index].nan_to_num(-1))


def test_clips_can_be_walked_one_by_one():
    clips = Clips(torch.rand(3, 2, 4, 5))
    assert [one.frames.shape for one in clips] == [(1, 2, 4, 5)] * 3
    assert torch.equal(clips[-1].frames, clips.frames[2:])
    assert clips[0].num_objects is None


@pytest.mark.parametrize("kind", [bool, np.uint8, np.float32, np.float64])
def test_black_and_white_frames_become_bits_whatever_their_type(kind):
    frames = random_frames((2, 3, 5, 7)).numpy()
    video = video_of(frames.astype(kind))
    assert isinstance(video, PackedFrames)
    np.testing.assert_array_equal(video.unpack_all().numpy(), frames)


def test_grey_frames_become_float32_between_0_and_1():
    levels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4) * 11
    assert torch.equal(video_of(levels), torch.from_numpy(levels / np.float32(255))[None])
    grey = np.linspace(0, 1, 24).reshape(1, 2, 3, 4).astype(">f8")
    assert torch.equal(video_of(grey), torch.from_numpy(grey.astype(np.float32)))


@pytest.mark.parametrize(
    ("frames", "named"),
    [
        (np.zeros((2, 3)), r"\(2, 3\)"),
        (np.zeros((1, 0, 4, 4)), r"\(1, 0, 4, 4\)"),
        (np.zeros((1, 2, 4, 4), dtype=np.int64), "int64"),
        (np.zeros((1, 2, 4, 4), dtype=complex), "complex"),
        (np.full((1, 2, 4, 4), np.nan), "nan"),
        (np.full((1, 2, 4, 4), 1.5), "1.5"),
        (np.full((1, 2, 4, 4), -0.25), "-0.25"),
    ],
)
def test_frames_that_are_no_frames_are_refused_by_name(frames, named):
    with pytest.raises(InputError, match=named):
        video_of(frames)


def test_clips_introduce_themselves_in_a_line() -> None:
    made = cannonballs(2, 1, 5, 16)
    told = "num_objects, positions, clean"
    assert repr(made) == f"Clips(2 clips of 5 frames, 16x16, known: {told})"
    assert repr(Clips(made.video)) == "Clips(2 clips of 5 frames, 16x16, known: nothing else)"


def test_clips_come_back_from_disk_as_they_were(tmp_path):
    clips = cannonballs(5, num_frames=4, size=(16, 18))
    save_clips(tmp_path / "clips.npz", clips)
    back = load_clips(tmp_path / "clips.npz")
    assert torch.equal(back.frames, clips.frames)
    assert torch.equal(back.num_objects, clips.num_objects)
    assert torch.equal(back.positions.nan_to_num(-1), clips.positions.nan_to_num(-1))
    assert torch.equal(back.clean.nan_to_num(-1), clips.clean.nan_to_num(-1))


def test_grey_clips_without_truth_come_back_too(tmp_path, generator):
    clips = Clips(torch.rand(2, 3, 4, 5, generator=generator))
    save_clips(tmp_path / "grey", clips)
    back = load_clips(tmp_path / "grey")
    assert torch.equal(back.frames, clips.frames)
    assert back.num_objects is back.positions is back.clean is None


def test_a_frame_of_48_by_48_takes_at_most_288_bytes_on_disk(tmp_path):
    clips = cannonballs(20)
    save_clips(tmp_path / "clips.npz", Clips(clips.video, clips.num_objects))
    assert os.path.getsize(tmp_path / "clips.npz") < 20 * 30 * 288 + 2000  # headers


def test_arrays_of_users_are_read_as_npz_and_as_npy(tmp_path):
    frames = np.random.default_rng(0).random((3, 4, 5))
    np.save(tmp_path / "one.npy", np.asfortranarray(frames))
    # Members that we do not know are not looked at, even where they hold objects.
    other = np.array([{}], dtype=object)
    np.savez(tmp_path / "one.npz", frames=frames, num_objects=np.array([2], np.uint8), other=other)
    for name in ("one.npy", "one.npz"):
        assert torch.equal(
            load_clips(tmp_path / name).frames, torch.from_numpy(frames.astype(np.float32))[None]
        )
    assert load_clips(tmp_path / "one.npz").num_objects.tolist() == [2]


FRAMES = np.zeros((2, 3, 4, 5), dtype=np.uint8)
TRUTH = np.zeros((2, 1, 3, 2), dtype=np.float32)


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"pictures": FRAMES}, "frames"),
        ({"frames": np.array([{}], dtype=object)}, "objects"),
        ({"frames": FRAMES.astype(str)}, "<U3"),
        ({"frames": FRAMES, "num_objects": np.array([1, 2, 3])}, "num_objects"),
        ({"frames": FRAMES, "num_objects": np.array([1, -1])}, "num_objects"),
        ({"frames": FRAMES, "num_objects": np.array([1.0, 2.0])}, "num_objects"),
        ({"frames": FRAMES, "positions": TRUTH[:, :, :2]}, "positions"),
        ({"frames": FRAMES, "positions": TRUTH, "clean": TRUTH[:, :0]}, "clean"),
        ({"bits": FRAMES[0], "size": np.array([1, 1, 1])}, "bits"),
        ({"bits": FRAMES[0], "size": np.array([9, 9])}, "9x9"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(tmp_path, arrays, named):
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=named) as caught:
        load_clips(path)
    assert "bad.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_and_folders_are_refused(tmp_path):
    for path in (tmp_path / "none.npz", tmp_path):
        with pytest.raises(InputError, match="npz or npy"):
            load_clips(path)


def small_file():
    buffer = io.BytesIO()
    np.savez_compressed(buffer, frames=FRAMES, num_objects=np.array([1, 2]))
    return buffer.getvalue()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_give_an_input_error_or_clips_and_nothing_else(tmp_path, data):
    content = bytearray(small_file())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    path = tmp_path / "damaged.npz"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        assert len(load_clips(path)) == 2


def header(shape):
    buffer = io.BytesIO()
    form = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, form)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "shape", [(2**20, 2**20, 64, 64), (1, 3, 4, 5), (-1, 3, 4, 5), (-1, -3, 4, 5)]
)
def test_headers_that_promise_more_than_the_file_holds_are_refused_before_allocation(
    tmp_path, shape
):
    with zipfile.ZipFile(tmp_path / "short.npz", "w") as archive:
        archive.writestr("frames.npy", header(shape) + b"\0" * 10)
    (tmp_path / "short.npy").write_bytes(header(shape) + b"\0" * 10)
    for name in ("short.npz", "short.npy"):
        with pytest.raises(InputError, match="cut short"):
            load_clips(tmp_path / name)


def test_arrays_beyond_the_limit_are_refused_before_they_are_read(tmp_path, monkeypatch):
    start = header((5, 2**10, 2**10, 2**10))
    with open(tmp_path / "huge.npy", "wb") as file:
        file.write(start)
        file.truncate(len(start) + 5 * 2**30)  # a hole, which takes no space on the disk
    with pytest.raises(InputError, match=r"5\.0 GiB"):
        load_clips(tmp_path / "huge.npy")
    # The limit holds for all arrays of a file together.
    monkeypatch.setattr("motes.data.clips.MAX_BYTES", 300)
    np.savez(tmp_path / "sum.npz", frames=FRAMES, num_objects=np.array([1, 2]))
    with pytest.raises(InputError, match="split the file"):
        load_clips(tmp_path / "sum.npz")


def test_pickles_are_never_opened(tmp_path):
    (tmp_path / "pickle.npy").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(InputError, match=r"pickle\.npy"):
        load_clips(tmp_path / "pickle.npy")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "clips.npz"
    clips = Clips(torch.rand(1, 2, 3, 4))
    save_clips(path, clips)
    before = path.read_bytes()

    def fail(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        save_clips(path, clips)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["clips.npz"]


def test_places_that_cannot_hold_a_file_are_refused(tmp_path):
    clips = Clips(torch.rand(1, 2, 3, 4))
    with pytest.raises(InputError, match="create"):
        save_clips(tmp_path / "no" / "clips.npz", clips)
    with pytest.raises(InputError, match="a folder"):
        save_clips(tmp_path, clips)


def test_floats_take_the_lower_median_of_the_observed_frames() -> None:
    levels = torch.tensor([0.9, 0.0, 0.4, 0.7])
    frames = levels.view(4, 1, 1).expand(4, 2, 3)
    assert (median_background(frames) == levels[2]).all()
    observed = torch.tensor([True, False, True, True])
    assert (median_background(frames, observed) == levels[3]).all()


def test_a_moving_object_leaves_no_trace() -> None:
    scene = torch.rand(8, 9, 3, generator=torch.Generator().manual_seed(0))
    frames = scene.repeat(5, 1, 1, 1)
    for t in range(5):
        frames[t, :, t] = 1.0
    assert torch.equal(median_background(frames), scene)


def hues(generator):
    """Objects and background of the same mean over channels: grey as an average shows nothing."""
    frames = torch.tensor([0.5, 0.3, 0.4]).repeat(4, 6, 16, 16, 1)
    frames += 0.01 * torch.randn(frames.shape, generator=generator)
    for t in range(6):
        frames[:, t, 2 * t : 2 * t + 3, 4:7] = torch.tensor([0.2, 0.6, 0.4])
    return frames


def test_objects_of_another_hue_become_bright(generator):
    frames = hues(generator)
    axis = find_colour_axis(frames)
    # The one direction in which anything differs: from the background's colour to the objects'.
    direction = torch.tensor(axis[:3]) / torch.tensor(axis[:3]).norm()
    assert torch.allclose(direction, torch.tensor([-1.0, 1.0, 0.0]) / 2**0.5, atol=0.05)
    grey = colour_to_grey(frames, axis)
    assert 0 <= grey.min() < grey.max() <= 1
    inside = grey[:, 0, 0:3, 4:7]
    outside = grey[:, 0, 8:]
    # Noise of 0.01 over a contrast of 0.42, stretched to about 1: five deviations.
    assert inside.min() > 0.9
    assert outside.max() < 0.25


@pytest.mark.parametrize("number", [2, 3])
def test_objects_of_several_hues_become_bright(number):
    frames = torch.zeros(2, 6, 8, 8, 3)
    for t in range(6):
        for n in range(number):
            frames[:, t, 2 * n, t, n] = 1.0
    grey = colour_to_grey(frames, find_colour_axis(frames))
    shown = [grey[:, t, 2 * n, t].min() for t in range(6) for n in range(number)]
    assert min(shown) > 0.7
    assert grey[:, :, 7].max() < 0.1


@pytest.mark.parametrize("sign", [1, -1])
def test_objects_become_bright_whichever_way_they_differ(sign):
    """Both scenes have the same scatter of colours: only its third moment tells them apart."""
    frames = torch.full((1, 6, 8, 8, 3), 0.5)
    for t in range(6):
        frames[0, t, 1 + t // 2, 1 + t] += sign * torch.tensor([0.3, 0.1, -0.2])
    grey = colour_to_grey(frames, find_colour_axis(frames))
    for t in range(6):
        assert grey[0, t].argmax() == 8 * (1 + t // 2) + 1 + t
        assert grey[0, t].max() - grey[0, t].median() > 0.5


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
    grey = colour_to_grey(clips.frames, axis)
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
    data = dataclasses.replace(config.data, colour_axis=find_colour_axis(clip.frames))
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
    expected = colour_to_grey(clip.frames, axis)[0]
    picture = (folder / "clip.npz").read_bytes()
    (sent,) = uploads.read_upload(picture, "clip.npz", playground).clips
    video = schemas.Video(**sent.model_dump(include={"num_frames", "height", "width", "frames"}))
    # Sent as one of 255 levels.
    torch.testing.assert_close(schemas.decode_frames(video), expected, rtol=0, atol=0.51 / 255)
    question = schemas.QueryRequest(video=video, masks=[[True] * 12], num_objects=1)
    (answer,) = playground.answer([playground.query(question)])
    assert len(json.loads(answer)["predictions"][0]["tracks"]) == 1


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
    assert clips_to_grey(clips, (1.0, 1.0, 1.0, 0.0)) is clips


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
