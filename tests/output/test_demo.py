"""The demo, end to end through the command line: with a tiny untrained model, and learning one."""

import itertools
import json
from types import SimpleNamespace

import pytest
import torch

from motes.cli import main
from motes.evaluation.learned import learned_initial_states
from motes.models.checkpoint import load, load_with_config, save_model
from motes.models.model import build
from motes.output import demo
from motes.output.demo import learn
from motes.output.demo_report import CAPTIONS, SHOWN
from motes.training.presets import PRESETS
from motes.training.step import RESTART_STEPS, RESTARTS_KEPT

NUM_CLIPS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model as it is before training: the demo must not depend on its being good."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    folder.mkdir()
    config = PRESETS["paper-smoke"]
    save_model(folder, build(config), config)
    return folder


@pytest.fixture(scope="module")
def outcome(model, tmp_path_factory):
    """One demo: its folder, and the global random state before and after."""
    out = tmp_path_factory.mktemp("demo")
    before = torch.get_rng_state()
    subject = demo.existing_model(str(model))
    clips = demo.unseen_clips(subject.config, NUM_CLIPS, seed=77)
    done = []
    record = demo.run(subject, clips, out, seed=77, progress=done.append)
    assert done == sorted(set(done))
    assert done[-1] == demo.total_work(NUM_CLIPS)
    return record, out, before, torch.get_rng_state()


@pytest.fixture(scope="module")
def lesson():
    """A run of a few steps, and what was shown of it; it uses one of two threads."""
    shown, threads = [], set()
    before, threads_before = torch.get_rng_state(), torch.get_num_threads()

    def show(snapshot):
        shown.append(snapshot)
        threads.add(torch.get_num_threads())

    torch.set_num_threads(2)
    taken = learn(PRESETS["sprites-smoke"], show)
    assert threads == {1}
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads_before)
    assert torch.equal(before, torch.get_rng_state())
    return taken, shown


@pytest.fixture(scope="module")
def learned(lesson, tmp_path_factory):
    """The demo that learns first."""
    out = tmp_path_factory.mktemp("learned")
    clips = demo.unseen_clips(lesson[0].config, 4, seed=77)
    return demo.run(lesson[0], clips, out, seed=77), out


def test_a_known_model_leaves_one_file(outcome):
    record, out, *_ = outcome
    assert [path.name for path in out.iterdir()] == [demo.REPORT]
    assert record["report"] == str(out / demo.REPORT)


def test_the_report_of_a_known_model_has_every_picture_but_that_of_learning(outcome):
    record, out, *_ = outcome
    page = (out / demo.REPORT).read_text(encoding="utf-8")
    assert page.count("base64,") == len(CAPTIONS) - 1 == demo.NUM_FIGURES
    assert 'id="training"' not in page
    assert sum(column["clips"] for column in record["by_count"].values()) == NUM_CLIPS


def test_a_lesson_is_shown_from_the_rough_starts_to_the_last_step(lesson):
    taken, shown = lesson
    assert taken.snapshots == shown
    half = RESTART_STEPS // 2
    first = [(start, step) for start in (1, 2, 3, 4) for step in range(4, half + 1, 4)]
    ended = sorted({s.restart for s in shown if s.step == RESTART_STEPS})
    second = [(start, step) for start in ended for step in range(half + 4, RESTART_STEPS + 1, 4)]
    trials = [*first, *second]
    places = [(snapshot.restart, snapshot.step, snapshot.of) for snapshot in shown]
    assert len(ended) == RESTARTS_KEPT
    assert places == [*((*trial, RESTART_STEPS) for trial in trials), (0, 4, 8), (0, 8, 8)]
    assert [snapshot.rate > 0 for snapshot in shown] == [False] * len(trials) + [True] * 2


def test_every_snapshot_keeps_the_glyph_of_its_own_moment(lesson):
    taken, shown = lesson
    for earlier, later in itertools.pairwise(shown):
        assert (earlier.sprite != later.sprite).any()
    assert (shown[-1].sprite == demo.sprite_image(taken.model)).all()
    assert all(0 <= snapshot.sprite.min() <= snapshot.sprite.max() <= 1 for snapshot in shown)


def test_the_way_that_is_drawn_leads_from_the_start_that_was_taken_to_the_end(lesson):
    shown = lesson[1]
    ends = [snapshot for snapshot in shown if snapshot.restart and snapshot.step == RESTART_STEPS]
    best = max(ends, key=lambda snapshot: snapshot.bound)
    way = demo.best_restart(shown)
    assert [s.step for s in way] == [
        *range(4, RESTART_STEPS + 1, 4),
        RESTART_STEPS + 4,
        RESTART_STEPS + 8,
    ]
    assert {s.restart for s in way} == {0, best.restart}
    assert way[-1].sprite is shown[-1].sprite


def test_the_demo_that_learns_leaves_its_report_and_its_model(learned, lesson):
    record, out = learned
    assert {path.name for path in out.iterdir()} == {demo.REPORT, demo.MODEL}
    kept, taken = load(record["model"]).state_dict(), lesson[0].model.state_dict()
    assert all(torch.equal(kept[name], taken[name]) for name in taken)


def test_the_report_of_a_lesson_says_so_and_has_every_picture(learned, lesson):
    page = (learned[1] / demo.REPORT).read_text(encoding="utf-8")
    assert page.count("base64,") == len(CAPTIONS)
    assert "trained on this machine from scratch" in page
    assert f"{lesson[0].training.held_out_bound:.0f} on held-out clips" in page


def test_a_lesson_that_is_stopped_is_an_interruption(monkeypatch):
    stopped = SimpleNamespace(finished=False)
    monkeypatch.setattr(demo, "train", lambda config, out, report: stopped)
    with pytest.raises(KeyboardInterrupt):
        learn(PRESETS["sprites-smoke"])


def test_the_command_without_a_model_learns_one_and_tells_it_in_lines(learned, monkeypatch, capsys):
    out = learned[1]  # where there is a model already
    monkeypatch.setattr(demo, "short_run", lambda: PRESETS["sprites-smoke"])
    assert main(["demo", "--out", str(out), "--num-clips", "3"]) == 0
    told = capsys.readouterr()
    assert "training took" in told.out
    assert str(out / demo.MODEL) in told.out
    assert "restart 4/4, step 12/24" in told.err
    assert "step 8/8" in told.err
    assert not any("\x1b" in line for line in told.err.splitlines())


def test_the_short_run_is_the_preset_with_less_of_it():
    full, short = PRESETS["sprites"], demo.short_run()
    assert short.model == full.model
    assert short.schedule.iterations < full.schedule.iterations
    assert max(short.schedule.mixture_em_steps) < short.schedule.iterations


def test_every_score_that_the_report_tells_is_there(outcome):
    for column in outcome[0]["by_count"].values():
        assert set(SHOWN) <= set(column)


def test_the_report_names_no_place_on_this_machine(outcome, model):
    page = (outcome[1] / demo.REPORT).read_text(encoding="utf-8")
    assert model.name in page
    assert str(model.parent) not in page


def test_the_demo_leaves_global_random_state_alone(outcome):
    assert torch.equal(outcome[2], outcome[3])


def test_the_command_prints_one_json_line(model, tmp_path, capsys):
    arguments = ["--model", str(model), "--out", str(tmp_path), "--num-clips", "3", "--json"]
    assert main(["demo", *arguments]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["verb"] == "demo"
    assert (tmp_path / demo.REPORT).stat().st_size > 10_000


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"--model": "no-such-model"}, "no-such-model"),
        ({"--seed": str(PRESETS["paper-smoke"].data.seed)}, "training clips"),
        ({"--num-clips": "0"}, "num_clips"),
    ],
    ids=["model", "seed", "clips"],
)
def test_bad_input_is_one_line_and_leaves_nothing(changes, named, model, tmp_path, capsys):
    out = tmp_path / "out"
    options = {"--model": str(model), "--out": str(out), **changes}
    assert main(["demo", *(word for pair in options.items() for word in pair)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert named in lines[-1]
    assert not out.exists()


def test_a_file_in_place_of_the_folder_is_bad_input(model, tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert main(["demo", "--model", str(model), "--out", str(taken)]) == 2
    assert str(taken) in capsys.readouterr().err
    assert taken.read_text() == "mine"


@pytest.mark.statistical
def test_learned_initial_states_are_the_moments_of_samples(model, generator):
    loaded, _ = load_with_config(model)
    with torch.no_grad():
        loaded.dynamics.force.copy_(torch.tensor([0.3, -0.2, 0.0, 0.1]))
        loaded.dynamics.initial_mean[:, 2:] = torch.tensor([[1.0, -2.0], [-3.0, 0.5]])
        loaded.pixel_matrix.copy_(torch.tensor([[3.0, 0.4], [-0.2, -2.0]]))
        loaded.pixel_offset.copy_(torch.tensor([7.0, 8.0]))
        component, states, _ = loaded.dynamics.sample((20_000,), 2, generator)
    found = learned_initial_states(loaded)
    for k in range(2):
        points = loaded.to_pixels(states[component == k, :, :2]).detach()
        steps = points[:, 1] - points[:, 0]
        # Five standard errors: a false alarm in less than one of 100,000 seeds.
        for draws, mean in ((points[:, 0], found.places[k]), (steps, found.steps[k])):
            error = 5 * draws.std(0) / len(draws) ** 0.5
            assert ((draws.mean(0) - mean).abs() < error).all()
        share = (component == k).double().mean()
        assert abs(share - found.shares[k]) < 5 * 0.5 / 20_000**0.5
        S = found.spreads[k]
        error = 5 * ((S.diagonal()[:, None] * S.diagonal() + S**2) / len(points)).sqrt()
        assert ((torch.cov(points[:, 0].T) - S).abs() < error).all()
