from dataclasses import replace
from pathlib import Path

import pytest
import torch

import motes
from motes import cli
from motes.core.errors import InputError
from motes.data import Clips, pack, worlds
from motes.models.sprites.search import SpriteSettings
from motes.training.inputs import fit_sprite_size, fit_to_data, make_dataset
from motes.training.presets import PRESETS
from motes.training.step import Trainer, held_out_bound
from tiny import tiny_config

CPU = torch.device("cpu")


def sprites_of(path: Path) -> motes.config.RunConfig:
    return replace(of_file(path), model=SpriteSettings())


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


def test_clips_without_objects_or_without_light_are_refused(tmp_path: Path) -> None:
    clips = motes.cannonballs(4, (1,), 7, 8, seed=3)
    motes.save_clips(tmp_path / "none.npz", Clips(clips.video, torch.tensor([1, 0, 1, 1])))
    with pytest.raises(InputError, match=r"none.npz has clips without objects"):
        fit_to_data(of_file(tmp_path / "none.npz"))
    motes.save_clips(tmp_path / "dark.npz", Clips(torch.zeros(4, 7, 8, 8), torch.ones(4).long()))
    with pytest.raises(InputError, match=r"dark.npz has black frames only"):
        fit_sprite_size(sprites_of(tmp_path / "dark.npz"))


def test_the_sprite_has_the_size_of_objects_in_colour_and_with_unobserved_frames(
    tmp_path: Path, generator: torch.Generator
) -> None:
    clips = motes.cannonballs(20, (1, 2), 12, 24, seed=3)
    motes.save_clips(tmp_path / "plain.npz", clips)
    lost = torch.rand(20, 12, generator=generator) < 0.5
    lost[:, 0] = False
    blank = pack(clips.frames * ~lost[:, :, None, None])
    motes.save_clips(tmp_path / "lost.npz", replace(clips, video=blank, observed=~lost))
    lit = clips.frames[..., None].float()
    hues = lit * torch.tensor([0.8, 0.3, 0.3]) + (1 - lit) * torch.tensor([0.3, 0.8, 0.3])
    hues = (hues + 0.003 * torch.randn(hues.shape, generator=generator)).clamp(0, 1)
    motes.save_clips(tmp_path / "hues.npz", replace(clips, video=hues))
    width = {
        name: fit_sprite_size(sprites_of(tmp_path / f"{name}.npz")).model.sprite_width
        for name in ("plain", "lost", "hues")
    }
    assert width["plain"] == pytest.approx(0.9 * 2, rel=0.05)  # of a disk of 13 pixels
    # Objects cover one another in some frames and not in others.
    assert width["lost"] == pytest.approx(width["plain"], rel=0.02)
    # Noise of .003 over a contrast of .7, of which a mean of .4 deviations is taken for light in
    # 576 pixels: 1 beside 13 pixels that shine.
    assert width["hues"] == pytest.approx(width["plain"], rel=0.1)


@pytest.mark.slow
def test_unobserved_pixels_cannot_matter_to_training(tmp_path: Path) -> None:
    clips = worlds.make("drops", 40, (1, 2), num_frames=12, size=16, seed=3)
    config = PRESETS["sprites-smoke"]
    weights = []
    for filling in (0, 1):
        frames = torch.where(clips.observed[:, :, None, None], clips.frames, filling)
        path = tmp_path / f"{filling}.npz"
        motes.save_clips(path, replace(clips, video=pack(frames)))
        run = fit_to_data(replace(config, data=replace(config.data, path=str(path))))
        dataset = make_dataset(run, CPU)
        trainer = Trainer(run, dataset.training, CPU)
        for _ in range(run.schedule.iterations):
            trainer.advance()
        weights.append(trainer.model.state_dict())
        bound = held_out_bound(trainer, dataset.held_out)
        weights[-1]["bound"] = torch.tensor(bound)
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


def test_the_paper_s_networks_refuse_clips_with_unobserved_frames(tmp_path: Path) -> None:
    motes.save_clips(tmp_path / "clips.npz", worlds.make("drops", 20, 1, num_frames=9, size=16))
    with pytest.raises(InputError, match=r"unobserved frames.*sprites-video"):
        fit_to_data(of_file(tmp_path / "clips.npz"))


@pytest.mark.parametrize("preset", ["sprites", "layers"])
def test_clips_of_one_frame_or_without_observed_frames_are_refused_in_one_line(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    motes.save_clips(tmp_path / "short.npz", motes.cannonballs(12, 1, num_frames=1, size=16))
    clips = motes.cannonballs(12, 1, num_frames=6, size=16)
    unobserved = replace(clips, observed=torch.zeros(12, 6, dtype=torch.bool))
    motes.save_clips(tmp_path / "unobserved.npz", unobserved)
    for name, reason in (
        ("short", "clips of 1 frame; motion needs at least 2"),
        ("unobserved", "training clips without an observed frame"),
    ):
        command = ["train", "--data", str(tmp_path / f"{name}.npz"), "--out", str(tmp_path / "run")]
        for options in (["--preset", preset], []):  # without: sprites-video
            assert cli.main([*command, *options]) == 2
            message = capsys.readouterr().err
            assert reason in message
            assert message.count("\n") == 1
    assert not (tmp_path / "run").exists()
    data = replace(PRESETS["paper-smoke"].data, num_frames=1)
    with pytest.raises(InputError, match="clips of 1 frame"):
        fit_to_data(replace(PRESETS["paper-smoke"], data=data))


def test_held_out_clips_may_be_unobserved(tmp_path: Path) -> None:
    observed = torch.ones(12, 6, dtype=torch.bool)
    observed[-1] = False
    clips = replace(motes.cannonballs(12, 1, num_frames=6, size=16), observed=observed)
    motes.save_clips(tmp_path / "clips.npz", clips)
    dataset = make_dataset(fit_to_data(sprites_of(tmp_path / "clips.npz")), CPU)
    assert dataset.held_out.mass == 1.0
    assert dataset.training.mass > 5
