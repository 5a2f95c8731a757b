"""The reference that a run writes for the warnings of later queries."""

from dataclasses import replace
from pathlib import Path

import torch

import motes
from motes.config import DataConfig
from motes.queries.fit import FitReference
from motes.training.fit_reference import write_fit_reference
from motes.training.inputs import make_dataset
from motes.training.presets import PRESETS
from tiny import tiny_config, tiny_model


def test_a_reference_has_one_row_for_each_count(tmp_path: Path) -> None:
    config = tiny_config()
    model, dataset = tiny_model(), make_dataset(config, torch.device("cpu"))
    assert write_fit_reference(model, dataset, tmp_path)
    found = FitReference.load(tmp_path)
    assert found is not None
    assert len(found.mean) == int(torch.cat([d.num_objects for d in dataset]).max())
    assert found.num_frames == config.data.num_frames


def test_a_model_that_cannot_answer_gets_no_reference(tmp_path: Path) -> None:
    config = tiny_config()
    other = replace(config, data=replace(config.data, height=9))
    assert not write_fit_reference(tiny_model(), make_dataset(other, torch.device("cpu")), tmp_path)
    assert FitReference.load(tmp_path) is None


def test_a_trained_run_warns_about_other_clips(tmp_path: Path) -> None:
    """A trained model with a reference of its own clips, as a run writes it."""
    config = replace(
        PRESETS["sprites-smoke"], data=replace(DataConfig(), num_clips=8, num_held_out=8)
    )
    model, dataset = motes.load("cannonballs-structured"), make_dataset(config, torch.device("cpu"))
    assert write_fit_reference(model, dataset, tmp_path)
    model.folder = tmp_path
    own = motes.cannonballs(4, (1, 2, 3), seed=77)
    fit = motes.infer(model, own.frames, own.num_objects).fit
    assert fit is not None
    assert fit.fits.all()
    assert not fit.z_score.isnan().any()
    other = motes.infer(model, 1 - own.frames, own.num_objects).fit
    assert other is not None
    assert not other.fits.any()
