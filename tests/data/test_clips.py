"""Clips in memory, and frames as bits, against numpy's own packing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from motes.core.errors import InputError
from motes.data import Clips, PackedFrames, cannonballs, pack, video_of

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
