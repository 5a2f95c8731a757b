"""Calibration of error bars."""

import pytest
import torch

import motes
from motes.core.errors import InputError
from motes.data import Clips, cannonballs, save_clips
from motes.data.clips import pack
from motes.evaluation import metrics
from motes.evaluation.calibration import calibrate, calibrate_run
from motes.models.checkpoint import load, save_model
from motes.models.model import Model, build
from motes.models.protocols import GaussianPosterior
from motes.queries.tracks import track_observations
from motes.training.presets import PRESETS
from tiny import tiny_frames, tiny_model


def test_a_q_that_is_too_narrow_is_widened_by_as_much(monkeypatch: pytest.MonkeyPatch):
    model, reference = tiny_model(), tiny_model()
    generator, num_clips, num_frames = torch.Generator().manual_seed(3), 400, 60
    # Far apart, so that no draw is nearer to another object.
    means = 1000 * torch.randn(num_clips, 3, num_frames, 2, generator=generator)
    scales = 0.5 + torch.rand(means.shape, generator=generator)
    narrow = {1: 0.5, 3: 0.8}

    def infer(
        self: Model, frames: torch.Tensor, num_objects: torch.Tensor, *options: object
    ) -> GaussianPosterior:
        own = narrow[int(num_objects[0])] if self is model else 1.0
        return GaussianPosterior(means[: len(frames)], own * scales[: len(frames)])

    monkeypatch.setattr(Model, "infer", infer)
    counts = torch.tensor([1, 3]).repeat_interleave(num_clips)
    clips = Clips(pack(tiny_frames(2 * num_clips, num_frames).bool()), counts)
    found = calibrate(model, clips, reference)
    # The 0.9 quantile q = 4.605 of M draws whose density there is f = 0.05 has a standard error of
    # sqrt(0.09 / M) / f: 0.85 % of q for the 24000 draws of one object. Batches draw the same
    # noise, of 50 clips: 3000 draws, 2.4 %; five of these.
    torch.testing.assert_close(found, torch.tensor([4.0, 1.0, 1 / 0.64]), rtol=0.12, atol=0)
    assert found is model.calibration_scale


def test_the_90_percent_regions_hold_90_percent_where_tails_are_heavy(
    monkeypatch: pytest.MonkeyPatch,
):
    """Of Gaussian draws every quantile gives the same scale; of a mixture of two widths not."""
    model, reference = tiny_model(), tiny_model()
    generator = torch.Generator().manual_seed(3)
    shape = (400, 3, 60, 2)
    means = 1000 * torch.randn(shape, generator=generator)
    wide = torch.where(torch.rand(shape[:3], generator=generator) < 0.2, 5.0, 1.0)[..., None]

    def infer(self: Model, frames: torch.Tensor, *options: object) -> GaussianPosterior:
        size = len(frames)
        scales = torch.ones(shape) if self is model else wide.expand(shape)
        return GaussianPosterior(means[:size], scales[:size])

    monkeypatch.setattr(Model, "infer", infer)
    clips = Clips(pack(tiny_frames(400, 60).bool()), torch.full((400,), 3))
    scale = float(calibrate(model, clips, reference)[2])
    # Squared radii of draws; those of the first 50 clips repeat from batch to batch.
    squares = (wide[:50] * torch.randn((50, 3, 60, 2), generator=generator)).square().sum(-1)
    held = metrics.inside(squares / scale, 0.9)
    # 9,000 draws: a standard error of .003 of the share; of the chosen quantile as much again.
    assert float(held.mean()) == pytest.approx(0.9, abs=5 * 0.003 * 2**0.5)


def test_an_answer_is_scaled_by_the_calibration_of_its_count():
    model, frames, counts = tiny_model(), tiny_frames(3, 7), torch.tensor([1, 2, 3])
    before = motes.infer(model, frames, counts)
    model.calibration_scale.copy_(torch.tensor([4.0, 1.0, 0.25]))
    after = motes.infer(model, frames, counts)
    assert torch.equal(after.positions.nan_to_num(), before.positions.nan_to_num())
    for clip, factor in enumerate((4.0, 1.0, 0.25)):
        here = clip, slice(clip + 1)
        torch.testing.assert_close(after.covariances[here], factor * before.covariances[here])
    # A path smoothed from wider observations is wider, but by less than they are.
    wider = after.path_pixel_covariances[0, 0].det() / before.path_pixel_covariances[0, 0].det()
    assert bool(((wider > 1) & (wider < 16)).all())


def test_more_objects_than_in_training_have_the_last_scale():
    model, ones = tiny_model(), torch.ones(1, 4, 5, 2)
    model.calibration_scale[-1] = 9.0
    seen = torch.ones(1, 5, dtype=torch.bool)
    given = track_observations(model, GaussianPosterior(ones, ones), seen, torch.tensor([4]), 5)
    assert torch.equal(given.covariances, 9 * torch.eye(2).expand(1, 4, 5, 2, 2))


@pytest.fixture
def run(tmp_path):
    """The folder of an untrained model of the paper's family."""
    folder = tmp_path / "run"
    folder.mkdir()
    config = PRESETS["paper-smoke"]
    save_model(folder, build(config), config)
    return folder


@pytest.fixture
def reference(tmp_path):
    """The folder of an untrained sprite model of the same frames."""
    folder = tmp_path / "sprites"
    folder.mkdir()
    config = PRESETS["sprites-smoke"]
    save_model(folder, build(config), config)
    return folder


def test_a_run_is_calibrated_and_written_to_another_folder(run, reference, tmp_path):
    out, before = tmp_path / "calibrated", load(run)
    scales = calibrate_run(run, out=out, reference=reference, num_clips=6)
    after = load(out)
    assert torch.equal(after.calibration_scale, scales)
    assert not torch.equal(after.calibration_scale, before.calibration_scale)
    for name, value in before.state_dict().items():
        if name != "calibration_scale":
            assert torch.equal(after.state_dict()[name], value)
    assert torch.equal(load(run).calibration_scale, before.calibration_scale)


def test_bad_input_of_calibrate_is_named(run, reference, tmp_path):
    with pytest.raises(InputError, match="paper's family"):
        calibrate_run(reference, reference=reference)
    with pytest.raises(InputError, match="--reference"):
        calibrate_run(run, reference="cannonballs-structured")
    with pytest.raises(InputError, match="--out"):
        calibrate_run("cannonballs-48")
    save_clips(tmp_path / "large.npz", cannonballs(2, 1, 12, 30))
    with pytest.raises(InputError, match="30"):
        calibrate_run(run, tmp_path / "large.npz", reference=reference)
