import numpy as np
import pytest
import torch

from motes.core.axes import Tensor
from motes.models.model import Model
from motes.queries import infer, stretches
from motes.queries.answer import Answer
from motes.queries.stretches import Seam, infer_stretch, same_objects, stretch_length
from sprite_scenes import straight
from swinging import frames_of, swinging_model, swinging_places


def joined(model: Model, frames: Tensor, length: int) -> list[Answer]:
    """Return the answers of stretches of a recording in memory."""
    overlap, T, seam, found = stretches.OVERLAP, frames.shape[1], None, []
    for start in range(0, T, length):
        last = start + length + overlap >= T
        end = T if last else start + length + overlap
        part = frames[:, max(start - overlap, 0) : end]
        answer, _, seam = infer_stretch(model, part, 2, seam, 0 if last else overlap)
        found.append(answer)
        if last:
            return found
    raise AssertionError


def test_joined_stretches_equal_the_answer_in_one_piece() -> None:
    """To 1e-3 px: 64 frames away the law of this model has forgotten all but e^-20."""
    model, places = swinging_model(), swinging_places(420)
    frames = frames_of(places)
    whole = infer(model, frames, 2)
    parts = joined(model, frames, 100)
    assert [part.observed.shape[1] for part in parts] == [100, 100, 100, 120]
    for name in ("pixels", "pixel_covariances", "path_pixels", "pixel_velocities"):
        both = torch.cat([getattr(part, name) for part in parts], 2)
        torch.testing.assert_close(both, getattr(whole, name), rtol=0, atol=1e-3)
    assert torch.equal(torch.cat([part.found for part in parts], 2), whole.found)
    assert (whole.pixels[0] - places).abs().max() < 0.6


def test_objects_are_renamed_where_a_stretch_orders_them_otherwise() -> None:
    """At the start of the second stretch the second object is the left one."""
    model, t = swinging_model(), torch.arange(300)
    one = torch.stack([20 + 14 * (t / 30).cos(), 10 + 0 * t], -1)
    two = torch.stack([20 - 14 * (t / 30).cos(), 30 + 0 * t], -1)
    places = torch.stack([one, two]).round()
    first, second = joined(model, frames_of(places), 160)
    assert places[0, 0, 0] > places[1, 0, 0]
    assert places[0, 96, 0] < places[1, 96, 0]  # frame 96 is the first of the second stretch
    both = torch.cat([first.pixels, second.pixels], 2)[0]
    assert (both.flip(0) - places).abs().max() < 0.6
    assert second.mean_frames.shape[1] == second.observed.shape[1] == 140


def test_objects_that_cross_at_a_seam_are_matched_by_the_law() -> None:
    """The nearest object in the frame of the seam is the wrong one."""
    law, t = straight(1.0), torch.arange(40.0)
    tracks = torch.stack(
        [torch.stack([(t - 20.4) / 4, 0 * t], -1), torch.stack([(20.4 - t) / 4, 0 * t + 0.01], -1)]
    )
    seen = torch.ones(2, 40, dtype=torch.bool)
    seen[:, 16:24] = False  # while they are one blob
    before = Seam(tracks, tracks, seen, 20)
    for order in ([0, 1], [1, 0]):
        index = torch.tensor(order)
        after = Seam(tracks[index], tracks[index], seen, 20)
        assert same_objects(law, before, after).tolist() == order


def test_an_object_that_is_not_detected_is_matched_by_its_path() -> None:
    law, t = straight(1.0), torch.arange(40.0)
    tracks = torch.stack([torch.stack([t / 40, row + 0 * t], -1) for row in (0.0, 3.0, 6.0)])
    seen = torch.ones(3, 40, dtype=torch.bool)
    seen[1:, 20:] = False
    before, index = Seam(tracks, 3 * tracks, seen, 20), torch.tensor([2, 0, 1])
    after = Seam(tracks[index], 3 * tracks[index], seen[index], 20)
    assert same_objects(law, before, after).tolist() == [1, 2, 0]


@pytest.mark.parametrize("size", [(8, 8), (128, 77), (256, 256), (512, 512)])
def test_stretches_of_large_frames_are_shorter(size: tuple[int, int]) -> None:
    length = stretch_length(*size)
    assert stretches.MIN_LENGTH <= length <= stretches.LENGTH
    assert length * np.prod(size) <= stretches.MAX_PIXELS
