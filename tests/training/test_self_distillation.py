"""Self-distillation: combined clips, pseudo-labels in order, and a run through its stages."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from motes.cli.terminal import describe
from motes.config import RunConfig, ScheduleConfig, from_json, to_json
from motes.core.errors import InputError
from motes.data import PackedFrames, cannonballs
from motes.data.clips import pack
from motes.models.checkpoint import load, read_tensors
from motes.models.model import build
from motes.models.pixel_map import is_visible, rendered_centroids
from motes.training import self_distillation, step
from motes.training import train as training
from motes.training.distillation import starting_order
from motes.training.inputs import TrainingData, to_training_data
from motes.training.presets import PRESETS
from motes.training.self_distillation import (
    GAPS,
    Tracks,
    add_hidden,
    combine,
    combine_labels,
    continue_from,
    draw_gaps,
    hide_frames,
    infer_tracks,
    single_object_config,
    single_objects,
    straighten,
)
from motes.training.train import Outcome, Run, Team, begin_run, resume, train
from tiny import tiny_frames, tiny_model

CPU = torch.device("cpu")


@pytest.fixture
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few iterations instead of fits of the dynamics to convergence."""
    monkeypatch.setattr(step, "FIT_ITERATIONS", 3)


def staged_config() -> RunConfig:
    """A run of four steps on single objects, three of distillation and three on the bound."""
    smoke = PRESETS["paper-smoke"]
    return replace(
        smoke,
        data=replace(smoke.data, num_objects=(1, 2)),
        schedule=ScheduleConfig(iterations=6, frozen_dynamics=4, distillation_steps=3),
        single_object_schedule=ScheduleConfig(iterations=4, frozen_dynamics=2),
        log_every=2,
        checkpoint_every=2,
    )


def test_combined_frames_are_unions() -> None:
    singles = cannonballs(9, 1, num_frames=3, size=16, seed=4).video
    assert isinstance(singles, PackedFrames)
    made = combine(singles, (1, 2, 3), 40, seed=2)
    frames, alone = made.video.unpack_all(), singles.unpack_all()
    assert set(made.num_objects.tolist()) == {1, 2, 3}
    for k, count in enumerate(made.num_objects.tolist()):
        union = alone[made.members[k, :count]].amax(0)
        assert torch.equal(frames[k], union)


def test_pseudo_labels_are_the_members_tracks_in_initial_state_component_order(
    generator: torch.Generator,
) -> None:
    model = tiny_model()
    singles = cannonballs(6, 1, num_frames=4, size=16, seed=1).video
    assert isinstance(singles, PackedFrames)
    made = combine(singles, (2, 3), 20, seed=0)
    tracks = Tracks(*torch.rand(2, 6, 4, 2, generator=generator))
    labels = combine_labels(model.dynamics, tracks, made)
    for k, count in enumerate(made.num_objects.tolist()):
        members = tracks.means[made.members[k, :count]]
        own = labels.means[k, :count]
        rows = [sorted(part.flatten(1).tolist()) for part in (members, own)]
        assert rows[0] == rows[1]  # the same tracks, in another order
        order = starting_order(model.dynamics, own[None, :, 0], torch.ones(1, count).bool())
        assert order.tolist() == [list(range(count))]


def test_straightened_positions_are_mapped_to_the_rendered_centroids(
    generator: torch.Generator,
) -> None:
    model = tiny_model()
    points = torch.randn(3, 4, 2, generator=generator)
    straight = straighten(model, points).flatten(0, 1)
    centroids, mass = rendered_centroids(model, points.flatten(0, 1))
    visible = is_visible(mass)
    assert bool(visible.any())
    torch.testing.assert_close(model.to_pixels(straight)[visible], centroids[visible])
    assert torch.equal(straight[~visible], points.flatten(0, 1)[~visible])


def test_clips_without_single_objects_are_refused() -> None:
    clips = to_training_data(cannonballs(4, 2, num_frames=3, size=16, seed=0), CPU)
    with pytest.raises(InputError, match="got 0 clips of one object"):
        single_objects(clips)


def test_a_teacher_beside_itself_is_refused() -> None:
    with pytest.raises(InputError, match="leave out --teacher"):
        replace(staged_config(), teacher="cannonballs-structured")


def test_the_configuration_is_written_read_and_stretched() -> None:
    config = PRESETS["paper-scratch"]
    assert from_json(to_json(config), "here") == config
    shorter = config.stretched(5_400).single_object_schedule
    assert shorter is not None
    assert shorter.iterations == 2_000


def test_weights_of_the_first_stage_are_copied() -> None:
    config = staged_config()
    first, whole = build(single_object_config(config)), build(replace(config, seed=3))
    continue_from(whole, first)
    ours, theirs = whole.state_dict(), first.state_dict()
    assert torch.equal(ours["renderer.to_image"], theirs["renderer.to_image"])
    assert torch.equal(ours["inference.initial"][0, 0], theirs["inference.initial"][0, 0])


@pytest.mark.slow
@pytest.mark.usefixtures("short_fits")
def test_a_run_goes_through_its_stages_and_resumes_in_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(staged_config(), tmp_path / "whole", replicas=2)
    assert whole.finished
    assert whole.step == 6
    first = tmp_path / "whole" / "seed-1" / self_distillation.FIRST_STAGE
    assert (first / "model.safetensors").is_file()
    load(tmp_path / "whole")
    # Stopped after every few steps, and resumed until it ends: the same tensors.
    real, steps = training.run_all, []

    def some(runs: list[Run], stopping: object) -> list[Outcome]:
        stops = iter([False, False, True])
        return real(runs, lambda: next(stops))

    monkeypatch.setattr(training, "run_all", some)
    outcome = train(staged_config(), tmp_path / "parts", replicas=2)
    while not outcome.finished:
        steps.append(outcome.step)
        outcome = resume(tmp_path / "parts")
    assert steps == [2, 2, 4]
    for seed in ("seed-0", "seed-1"):
        ours, theirs = (
            read_tensors(tmp_path / name / seed / "model.safetensors")[0]
            for name in ("whole", "parts")
        )
        for name, value in ours.items():
            assert torch.equal(value, theirs[name]), name


@pytest.mark.slow
@pytest.mark.usefixtures("short_fits")
def test_replicas_trained_together_continue_with_the_bound_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: one computation for both, built again when distillation ends."""
    train(staged_config(), tmp_path / "single", replicas=2)
    made: list[list[int]] = []

    def together(runs: list[Run]) -> list[Team]:
        made.append([run.trainer.step for run in runs])
        return [Team(runs, True)]

    monkeypatch.setattr(training, "find_teams", together)
    train(staged_config(), tmp_path / "together", replicas=2)
    assert made == [[0, 0], [0, 0], [3, 3]]
    for seed in ("seed-0", "seed-1"):
        ours, theirs = (
            read_tensors(tmp_path / name / seed / "model.safetensors")[0]
            for name in ("together", "single")
        )
        for name in ("renderer.to_image", "inference.from_past"):
            gap = (ours[name] - theirs[name]).abs()
            assert float(gap.flatten().quantile(0.9)) <= 2e-4, name


@pytest.mark.usefixtures("short_fits")
def test_a_failed_fit_of_the_dynamics_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise torch.linalg.LinAlgError("singular")  # type: ignore[attr-defined]

    monkeypatch.setattr(self_distillation, "fit_dynamics", fail)
    lines: list[dict[str, object]] = []
    config = staged_config()
    outcome = train(
        replace(config, data=replace(config.data, num_clips=24)),
        tmp_path / "run",
        report=lines.append,
    )
    assert outcome.finished
    reported = [line for line in lines if "dynamics_fitted" in line]
    assert [line["step"] for line in reported] == [0, 6]
    logged = (tmp_path / "run" / "log.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["step"] for line in logged if "dynamics_fitted" in line] == [0, 6]
    assert "singular matrix" in describe(reported[0])


def test_hidden_frames_show_the_expected_object() -> None:
    model = tiny_model()
    video = pack(tiny_frames(40, 12) > 0.5)
    singles = TrainingData(video, torch.ones(40, dtype=torch.long), mass=4.0)
    hidden = hide_frames(model, singles, seed=0)
    assert isinstance(hidden.clips.video, PackedFrames)
    before, after = video.unpack_all(), hidden.clips.video.unpack_all()
    assert torch.equal(before[hidden.shown], after[hidden.shown])
    gaps = draw_gaps(12, seed=0)
    assert torch.equal(hidden.shown, gaps[torch.arange(40) % GAPS])
    for m in (4, 5):  # an even gap and an odd one
        shown, (means, scales) = gaps[m], infer_tracks(model, singles)
        known = shown if m % 2 else torch.arange(12) < int(shown.int().argmin())
        smoothed = model.dynamics.smooth(
            means[m, None, None], known[None, None], scales[m, None, None].double().square()
        )
        path = model.dynamics.emit(smoothed.select(smoothed.log_weights.argmax(-1))).mean
        drawn = model.render(path.float(), torch.ones(1, 1).bool())[0] > 0.5
        assert torch.equal(after[m, ~shown].bool(), drawn[~shown])


def test_members_of_a_clip_with_hidden_frames_have_the_same_gap(
    generator: torch.Generator,
) -> None:
    singles = cannonballs(50, 1, num_frames=4, size=16, seed=1).video
    assert isinstance(singles, PackedFrames)
    plain, hidden = combine(singles, (2, 3), 9, seed=0), combine(singles, (2, 3), 20, 0, GAPS)
    assert (hidden.members % GAPS == hidden.members[:, :1] % GAPS).all()
    both = add_hidden(plain, hidden, len(singles))
    tracks = Tracks(*torch.rand(2, 100, 4, 2, generator=generator))
    labels = combine_labels(tiny_model().dynamics, tracks, both)
    assert len(labels.means) == len(both.video) == 29
    own = tracks.means[50 + hidden.members[3, : hidden.num_objects[3]]]
    found = labels.means[9 + 3, : hidden.num_objects[3]]
    assert sorted(own.flatten(1).tolist()) == sorted(found.flatten(1).tolist())


@pytest.mark.slow
@pytest.mark.usefixtures("short_fits")
def test_a_run_with_hidden_frames_beside_one_without(tmp_path: Path) -> None:
    config = replace(staged_config(), data=replace(staged_config().data, num_clips=120))
    folder = tmp_path / "run" / "seed-1"
    folder.mkdir(parents=True)
    begin_run(tmp_path / "run", config, 2)
    (folder / "config.json").write_text(to_json(replace(config, seed=1, hidden_clips=0.5)))
    assert resume(tmp_path / "run").finished
