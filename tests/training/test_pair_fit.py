"""Forces between objects found in positions of simulated scenes, and scenes that have none."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import motes
from motes.data import save_clips
from motes.data.worlds.pairs import paig_spring, spring_pair, stove_gravity
from motes.kalman.pair_forces import Joint
from motes.training.contact_fit import Scenes, joint
from motes.training.pair_fit import (
    Fit,
    calibrate,
    fit_kind,
    fit_pairs,
    maximise,
    relinked,
    with_change,
)
from motes.training.pair_guesses import MIN_REDUCTION, first_guess, regressions, visible_forces
from motes.training.presets import find
from motes.training.train import train
from pair_scenes import NOISE, noisy, scenes


def fitted(found: Scenes) -> Fit:
    """Return the kind that explains most, fitted to a third of the scenes."""
    guess = regressions(found)[0]
    fit = maximise(first_guess(found, guess), guess.kind, Joint(*joint(found.select(slice(20)))))
    assert fit is not None
    return fit


def test_parameters_of_simulated_forces_are_found() -> None:
    found = scenes(spring_pair(), 60, 10)
    fit = fitted(found)
    assert fit.kind == "spring"
    # Leapfrog with four substeps against the simulator's ten: relative differences of 1e-3.
    assert float(fit.law.stiffness) == pytest.approx(0.02, abs=4 * fit.errors["stiffness"] + 4e-5)
    assert float(fit.law.rest_length) == pytest.approx(4.0, abs=4 * fit.errors["rest_length"])
    assert fit.errors["rest_length"] < 0.05
    assert float(fit.law.position_variance.sqrt()) == pytest.approx(NOISE, rel=0.1)
    before = fit.law.position_variance
    assert float(calibrate(fit.law, found).position_variance / before) == pytest.approx(1, abs=0.5)


def test_error_bars_hold_the_steps_of_a_stiff_spring() -> None:
    fit = fitted(scenes(paig_spring(), 60, 12))
    k, error = float(fit.law.stiffness), fit.errors["stiffness"]
    assert abs(k - 0.36) < 2 * error
    assert error < 0.01 * k


def exchanged(found: Scenes, every: int) -> Scenes:
    """Return scenes in which two objects of every n-th clip are exchanged from some frame on."""
    x, rng = found.positions.clone(), np.random.default_rng(3)
    for clip in range(0, len(x), every):
        i, j = rng.permutation(x.shape[1])[:2]
        frame = rng.integers(1, x.shape[2])
        x[clip, [i, j], frame:] = x[clip, [j, i], frame:]
    return found._replace(positions=x)


def test_exchanged_objects_in_some_windows_do_not_change_the_law() -> None:
    """Against the same windows without exchanges, and the simulator's spring."""
    found = scenes(paig_spring(), 60, 12)
    guess, right = regressions(found)[0], Joint(*joint(found.select(slice(24))))
    wrong = Joint(*joint(exchanged(found, 5).select(slice(24))))
    clean = fit_kind(first_guess(found, guess), guess.kind, right)
    start = regressions(exchanged(found, 5))[0]
    mended = fit_kind(first_guess(exchanged(found, 5), start), start.kind, wrong)
    alone = maximise(first_guess(exchanged(found, 5), start), start.kind, wrong)
    assert clean is not None
    assert mended is not None
    assert alone is not None
    error = clean.errors
    # The same windows after mending; without it, a fifth fewer of them.
    for fit, share in ((mended, 0.5), (alone, 1.0)):
        off = float(fit.law.stiffness - clean.law.stiffness)
        assert abs(off) < share * error["stiffness"]
        assert abs(float(fit.law.stiffness) - 0.36) < 0.002
        assert float(fit.law.rest_length) == pytest.approx(4.0, abs=4 * error["rest_length"])
        assert fit.errors["stiffness"] < 1.5 * error["stiffness"]


def test_exchanged_tracks_are_restored() -> None:
    """Up to the names of objects, and a frame at which the two were closer than the noise."""
    found = scenes(stove_gravity(), 40, 20)
    guess = regressions(found)[0]
    law = first_guess(found, guess)
    again = relinked(law, Joint(*joint(exchanged(found, 4)))).positions.unflatten(-1, (3, 2))
    assert torch.equal(relinked(law, Joint(*joint(found))).positions, joint(found)[0])
    for clip in range(0, 40, 4):
        x, y = found.positions[clip].movedim(1, 0), again[clip]
        orders = torch.cdist(x, y).argmin(-1)
        assert bool((orders == orders[0]).all()), clip


def test_what_another_fit_changes_is_part_of_the_error() -> None:
    fit = fitted(scenes(spring_pair(), 60, 10))
    other = fit.law._replace(stiffness=fit.law.stiffness + 3.0, rest_length=fit.law.rest_length)
    found = with_change(fit._replace(errors={"stiffness": 4.0, "rest_length": 0.1}), other)
    assert found.errors == {"stiffness": pytest.approx(5.0), "rest_length": 0.1}
    assert found.law is fit.law


def test_a_law_of_few_of_its_windows_is_none() -> None:
    found = scenes(paig_spring(), 60, 12)
    noise = torch.randn(30, 2, 12, 2, generator=torch.Generator().manual_seed(2)).double()
    found.positions[:30] += noise
    guess = first_guess(found, regressions(scenes(paig_spring(), 60, 12))[0])
    assert maximise(guess, "spring", Joint(*joint(found))) is None


@pytest.mark.parametrize("case", ["free", "field", "rest"])
def test_scenes_without_forces_between_objects_have_none(case: str) -> None:
    rng = np.random.default_rng(0)
    time, start = np.arange(20)[:, None], 3 * rng.normal(size=(80, 3, 1, 2))
    speed = 0.3 * rng.normal(size=(80, 3, 1, 2))
    path = {
        "free": start + speed * time + 0.02 * time**2,
        "field": start * np.cos(0.2 * time) + 5 * speed * np.sin(0.2 * time),
        "rest": start + 0 * time,
    }[case]
    found = noisy(torch.from_numpy(path))
    assert max(visible_forces(found).values(), default=0.0) < MIN_REDUCTION
    assert fit_pairs(found) is None


def test_too_little_to_see_is_no_force() -> None:
    found = scenes(spring_pair(), 60, 16)
    assert fit_pairs(found.select(slice(3))) is None
    assert fit_pairs(Scenes(found.positions[:, :1], found.observed[:, :1], NOISE**2)) is None
    hidden = Scenes(found.positions, torch.zeros_like(found.observed), NOISE**2)
    assert fit_pairs(hidden) is None


@pytest.mark.slow
def test_training_finds_a_spring_in_pixels_and_a_loaded_run_forecasts_with_it(
    tmp_path: Path,
) -> None:
    world, path = spring_pair(), tmp_path / "clips.npz"
    save_clips(path, world.make(60, 16, seed=0))
    config = find("sprites-video")
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, path=str(path)),
        schedule=dataclasses.replace(config.schedule, iterations=48),
    )
    train(config, tmp_path / "run")
    model = motes.load(tmp_path / "run")
    terms = {term.name: term for term in model.law.terms}
    assert terms["spring between objects"].value == pytest.approx(0.02, rel=0.03)
    assert terms["rest length of the spring"].value == pytest.approx(12.0, rel=0.01)
    clips = world.make(6, 24, seed=9)
    answer = motes.forecast(model, clips.frames[:, :10], 2, 14)
    assert clips.positions is not None
    apart = [path[:, 0] - path[:, 1] for path in (answer.pixels, clips.positions)]
    miss = (apart[0].norm(dim=-1) - apart[1].norm(dim=-1)).abs()
    assert float(miss.median()) < 0.3
