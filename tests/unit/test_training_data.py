from dataclasses import replace
from pathlib import Path

import pytest
import torch

import motes
from motes.data import Clips
from motes.errors import InputError
from motes.training_data import fit_to_data, make_dataset
from tiny import tiny_config

CPU = torch.device("cpu")


def of_file(path: Path) -> motes.config.RunConfig:
    config = tiny_config()
    return replace(config, data=replace(config.data, path=str(path)))


def test_a_file_decides_the_sizes(tmp_path: Path) -> None:
    clips = motes.cannonballs(30, (1, 4), 9, (10, 14), seed=3)
    motes.save_clips(tmp_path / "clips.npz", clips)
    data = fit_to_data(of_file(tmp_path / "clips.npz")).data
    assert (data.num_frames, data.height, data.width) == (9, 10, 14)
    assert data.num_objects == (1, 2, 3, 4)
    assert (data.num_clips, data.num_held_out) == (27, 3)


def test_held_out_clips_are_not_trained_on(tmp_path: Path) -> None:
    clips = motes.cannonballs(20, (1, 2), 7, 8, seed=3)
    motes.save_clips(tmp_path / "clips.npz", clips)
    dataset = make_dataset(fit_to_data(of_file(tmp_path / "clips.npz")), CPU)
    assert clips.num_objects is not None
    counts = torch.cat([part.num_objects for part in dataset])
    assert torch.equal(counts, clips.num_objects)
    frames = torch.cat([part.frames(torch.arange(len(part.num_objects))) for part in dataset])
    assert torch.equal(frames, clips.frames.float())
    assert len(dataset.held_out.num_objects) == 2


def test_cannonballs_are_made_where_no_file_is_given() -> None:
    config = tiny_config()
    assert fit_to_data(config) == config
    dataset = make_dataset(config, CPU)
    assert dataset.training.frames(torch.arange(12)).shape == (12, 7, 6, 8)
    assert dataset.held_out.frames(torch.arange(4)).shape == (4, 7, 6, 8)


def test_one_clip_is_too_few_and_counts_must_be_known(tmp_path: Path) -> None:
    clips = motes.cannonballs(1, (1,), 7, 8, seed=3)
    motes.save_clips(tmp_path / "one.npz", clips)
    with pytest.raises(InputError, match=r"1 clip; training needs at least 2"):
        fit_to_data(of_file(tmp_path / "one.npz"))
    motes.save_clips(tmp_path / "bare.npz", Clips(clips.video))
    with pytest.raises(InputError, match="num_objects"):
        fit_to_data(of_file(tmp_path / "bare.npz"))
