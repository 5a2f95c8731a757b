"""Recordings of another kind than the model's."""

from pathlib import Path

import pytest
import torch

import motes
from motes import cli
from motes.data import Clips, pack, save_clips


def test_another_kind_of_clips_ends_with_one_line_and_exit_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    balls = motes.cannonballs(2, 2, seed=8)
    for name, frames in (("own", balls.frames), ("other", 1 - balls.frames)):
        save_clips(tmp_path / f"{name}.npz", Clips(pack(frames > 0.5), torch.tensor([2, 2])))
    table = tmp_path / "tracks.csv"
    asked = ["infer", f"{tmp_path}/other.npz", "--model=cannonballs-structured", f"--out={table}"]
    assert cli.main(asked) == 2
    printed = capsys.readouterr().err.strip()
    assert "\n" not in printed
    for words in ("most of the picture differs", "z-score", "motes track", "--force"):
        assert words in printed
    assert not table.exists()
    assert cli.main([*asked, "--force"]) == 0
    assert "do not fit this model" in capsys.readouterr().err
    assert table.exists()
    own = [asked[0], f"{tmp_path}/own.npz", *asked[2:3], f"--out={tmp_path}/own.csv"]
    assert cli.main(own) == 0
    assert "fit" not in capsys.readouterr().err
