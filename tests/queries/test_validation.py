"""Every wrong input is a ValueError of one line that names what was given."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import motes
from motes.core.errors import InputError
from motes.models.model import Model
from motes.queries.validation import check_counts, check_frames, check_observed
from tiny import HEIGHT, MAX_OBJECTS, WIDTH, tiny_frames, tiny_model, tiny_sprite_model

B, T = 2, 4


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny_model()


def refusal(ask: Callable[[], Any]) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        ask()
    assert isinstance(caught.value, motes.InputError)
    message = str(caught.value)
    assert "\n" not in message
    return message


def spoiled(value: float) -> torch.Tensor:
    frames = tiny_frames(B, T)
    frames[1, 2, 3, 4] = value
    return frames


WRONG_FRAMES: dict[str, tuple[Any, str]] = {
    "no frames": (torch.zeros(B, 0, HEIGHT, WIDTH), "2 clips of 0 frames"),
    "one frame": (torch.zeros(B, 1, HEIGHT, WIDTH), "2 clips of 1 frames"),
    "no clips": (torch.zeros(0, T, HEIGHT, WIDTH), "0 clips of 4 frames"),
    "wrong height": (torch.zeros(B, T, HEIGHT + 1, WIDTH), f"{HEIGHT + 1}x{WIDTH}"),
    "height and width swapped": (torch.zeros(B, T, WIDTH, HEIGHT), f"{WIDTH}x{HEIGHT}"),
    "NaN": (spoiled(float("nan")), "NaN"),
    "infinity": (spoiled(float("inf")), "infinite"),
    "above 1": (spoiled(1.5), "1.5"),
    "below 0": (spoiled(-0.25), "-0.25"),
    "bytes": (255 * tiny_frames(B, T).to(torch.uint8), "divide by 255"),
    "three axes": (torch.zeros(T, HEIGHT, WIDTH), f"({T}, {HEIGHT}, {WIDTH})"),
    "five axes": (torch.zeros(B, T, HEIGHT, WIDTH, 3), f"({B}, {T}, {HEIGHT}, {WIDTH}, 3)"),
    "a number": (0.5, "shape ()"),
    "a string": ("clips.npz", "str"),
    "None": (None, "NoneType"),
    "objects": (np.array([[object()]]), "object"),
    "words": (np.array([["a", "b"]]), "cannot be read as numbers"),
    "complex": (torch.zeros(B, T, HEIGHT, WIDTH, dtype=torch.complex64), "complex"),
    "ragged": ([[1.0], [1.0, 2.0]], "cannot be read as numbers"),
}


@pytest.mark.parametrize("wrong", WRONG_FRAMES)
def test_wrong_frames_are_refused_by_every_query(wrong: str, model: Model) -> None:
    frames, expected = WRONG_FRAMES[wrong]
    assert expected in refusal(lambda: motes.infer(model, frames, 1))
    assert expected in refusal(lambda: motes.forecast(model, frames, 1))
    length = frames.shape[1] if getattr(frames, "ndim", 0) > 1 else T
    message = refusal(lambda: motes.interpolate(model, frames, [True] * length, 1))
    assert expected in message or "observed" in message


def test_a_missing_clip_axis_comes_with_the_cure(model: Model) -> None:
    assert "frames[None]" in refusal(lambda: motes.infer(model, torch.zeros(T, HEIGHT, WIDTH), 1))


WRONG_FLAGS: dict[str, tuple[Any, str]] = {
    "too many": ([True] * (T + 1), f"({T + 1},)"),
    "too few": ([True] * (T - 1), f"({T - 1},)"),
    "of another batch": ([[True] * T] * (B + 1), f"({B + 1}, {T})"),
    "three axes": (torch.ones(1, B, T, dtype=torch.bool), f"(1, {B}, {T})"),
    "whole numbers": ([1] * T, "int64"),
    "nothing seen": ([False] * T, "no observed frame"),
    "nothing seen in one clip": ([[True] * T, [False] * T], "clip 1 has no observed frame"),
    "a string": ("TTFF", "observed"),
    "None": (None, "observed"),
    "ragged": ([[True], [True, False]], "observed"),
}


@pytest.mark.parametrize("wrong", WRONG_FLAGS)
def test_wrong_flags_are_refused(wrong: str, model: Model) -> None:
    flags, expected = WRONG_FLAGS[wrong]
    assert expected in refusal(lambda: motes.interpolate(model, tiny_frames(B, T), flags, 1))


WRONG_COUNTS: dict[str, tuple[Any, str]] = {
    "zero": (0, "is 0"),
    "negative": (-1, "is -1"),
    "beyond the model": (MAX_OBJECTS + 1, f"is {MAX_OBJECTS + 1}"),
    "one clip beyond": (torch.tensor([1, MAX_OBJECTS + 2]), f"is {MAX_OBJECTS + 2}"),
    "one clip zero": ([2, 0], "is 0"),
    "too many": ([1] * (B + 1), f"({B + 1},) for {B} clips"),
    "two axes": ([[1], [1]], f"({B}, 1)"),
    "a fraction": (1.5, "float32"),
    "a truth": (True, "bool"),
    "a string": ("two", "num_objects"),
    "huge": (2**70, "num_objects"),
    "ragged": ([[1], [1, 2]], "num_objects"),
}


@pytest.mark.parametrize("wrong", WRONG_COUNTS)
def test_wrong_counts_are_refused_by_every_query(wrong: str, model: Model) -> None:
    counts, expected = WRONG_COUNTS[wrong]
    frames = tiny_frames(B, T)
    for ask in (
        lambda: motes.infer(model, frames, counts),
        lambda: motes.forecast(model, frames, counts),
        lambda: motes.interpolate(model, frames, [True] * T, counts),
        lambda: motes.sample(model, B, counts),
    ):
        assert expected in refusal(ask)


def test_sample_needs_a_count(model: Model) -> None:
    assert "num_objects" in refusal(lambda: motes.sample(model, 2, None))


def test_whole_numbers_outside_their_limits_are_refused(model: Model) -> None:
    frames = tiny_frames(B, T)
    assert "horizon is 0" in refusal(lambda: motes.forecast(model, frames, 1, horizon=0))
    assert "horizon is 10001" in refusal(lambda: motes.forecast(model, frames, 1, horizon=10_001))
    assert "seed is -1" in refusal(lambda: motes.infer(model, frames, 1, seed=-1))
    assert "num_clips is 0" in refusal(lambda: motes.sample(model, num_clips=0))
    assert "num_frames is 1" in refusal(lambda: motes.sample(model, num_frames=1))
    assert "seed is -1" in refusal(lambda: motes.sample(model, seed=-1))


@pytest.mark.parametrize(
    "kind", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64]
)
def test_frames_of_any_real_type_are_read_as_the_same_numbers(
    kind: torch.dtype, model: Model
) -> None:
    frames = tiny_frames(B, T)
    assert torch.equal(check_frames(model, frames.to(kind)), frames)
    assert torch.equal(check_frames(model, frames.to(kind).numpy()), frames)
    assert torch.equal(check_frames(model, frames.to(kind).tolist()), frames)


@pytest.mark.parametrize(
    "layout",
    [
        lambda frames: np.ascontiguousarray(frames[:, ::-1])[:, ::-1],  # reversed in time
        lambda frames: np.asfortranarray(frames),
        lambda frames: frames.astype(">f4"),
        lambda frames: np.broadcast_to(frames, frames.shape),  # read-only
    ],
)
def test_frames_of_any_layout_are_read_as_the_same_numbers(
    layout: Callable[[np.ndarray], np.ndarray], model: Model
) -> None:
    frames = tiny_frames(B, T).numpy()
    assert torch.equal(check_frames(model, layout(frames)), torch.from_numpy(frames))


def test_hidden_frames_may_hold_anything(model: Model) -> None:
    frames, flags = spoiled(float("nan")), torch.ones(B, T, dtype=torch.bool)
    flags[1, 2] = False
    checked = check_frames(model, frames, flags)
    assert (checked[1, 2] == 0).all()
    assert torch.equal(checked[flags], tiny_frames(B, T)[flags])


def test_frames_are_not_copied_for_a_search() -> None:
    frames, flags = spoiled(float("nan")), torch.ones(B, T, dtype=torch.bool)
    flags[1, 2] = False
    assert check_frames(tiny_sprite_model(), frames, flags) is frames
    with pytest.raises(InputError, match="NaN"):
        check_frames(tiny_sprite_model(), frames, ~flags)


def test_flags_for_all_clips_are_shared_by_them(model: Model) -> None:
    flags = [True, False, True, True]
    for given in (flags, np.array(flags), torch.tensor(flags), [flags] * B):
        checked = check_observed(model, given, tiny_frames(B, T))
        assert checked.tolist() == [flags] * B


def test_counts_may_be_one_number_or_one_for_each_clip(model: Model) -> None:
    for given in (2, np.int64(2), [2, 2], np.array([2, 2], np.uint8), torch.tensor(2)):
        assert check_counts(model, given, B).tolist() == [2, 2]
