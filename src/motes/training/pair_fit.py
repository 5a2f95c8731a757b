"""Find forces between objects in the tracks of whole scenes.

Each kind of force that `motes.training.pair_guesses` sees is fitted by maximum likelihood: the
evidence of the linearised law, by Fisher scoring. Windows in which two tracks exchanged objects are
mended, and those that the law does not explain are left out. Error bars are those of the
scatter of scores (the sandwich formula), which holds if noise is not as assumed. A force is kept if
windows of clips that were not used are more likely with it than with the same fit without it. Noise
is calibrated by forecasts.
"""

import copy
import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

from motes.config import RunConfig
from motes.core.axes import Bool, Float, Tensor
from motes.kalman.dynamics import LinearDynamics, require_linear
from motes.kalman.pair_dynamics import PairDynamics
from motes.kalman.pair_forces import (
    Filtered,
    Joint,
    PairLaw,
    draw_paths,
    kalman_filter,
    linearise,
    smoothed_path,
)
from motes.models.protocols import InferredBatch
from motes.training.contact_fit import MARGIN, REGION, TEST_SHARE, Scenes, joint, scenes_of
from motes.training.event_fit import inferred_batches, may_have_events
from motes.training.inputs import TrainingData
from motes.training.pair_guesses import (
    KINDS,
    MIN_REDUCTION,
    first_guess,
    regressions,
    typical_distance,
    visible_forces,
)
from motes.training.step import Trainer, held_out_bound

FORCES = ("stiffness", "rest_length", "attraction")  # of a law, with error bars
MIN_GAIN = 10.0  # nats by which all unused windows together must become more likely
LENGTH = 30  # frames of a window
FIT_WINDOWS = 64
TEST_WINDOWS = 40
MIN_WINDOWS = 12
ROUNDS = 20
DAMPING = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SETTLED_GAIN = 0.01  # nats per window by which a round must improve the evidence
MAX_GAIN = 0.2  # nats per window that a further step promises: more is no optimum
NOISE_FLOOR = 1e-3  # of process noise, in units of the noise of positions
SEEN, AHEAD = 8, 10  # frames of the forecasts that calibrate noise
LOOSE = 0.15  # observation noise of the search, in typical distances
OUTLIER = 60.0  # nats below the median that the density of a test window counts at most
MISFIT = 4.0  # times the median of squared innovations: a window that the law does not explain
MIN_FITTING = 2 / 3  # of windows that the law must explain
SWAPS = 3  # exchanges of two objects that are tried for a window, one after the other


class Parameters:
    """A law as a vector of free parameters."""

    def __init__(self, law: PairLaw, kind: str, curved: bool = False) -> None:
        self.law, self.kind, self.curved = law, kind, curved

    def vector(self) -> Float[Tensor, " p"]:
        """Return the free parameters."""
        law = self.law
        tension = law.stiffness * law.rest_length
        values = {"stiffness": law.stiffness, "tension": tension, "attraction": law.attraction}
        pairs = [values[name] for name in KINDS[self.kind]]
        noise = [*law.state_sds.log(), 0.5 * law.position_variance.log()]
        bent = list(law.curvature.flatten()) if self.curved else []
        return torch.stack([*pairs, *law.force, *law.field.flatten(), *noise, *bent])

    def move(self, slopes: "Slopes", count: int) -> Float[Tensor, " p"]:
        """Return the step of Fisher scoring, damped until noise changes by a factor e at most.

        Far from the optimum, longer steps end at laws that explain everything by noise.

        Args:
            slopes: At these parameters.
            count: Known coordinates of the windows.
        """
        score, information = slopes.scores.sum(0), slopes.information.sum(0)
        information = information + 1e-9 * information.diagonal().diag_embed()
        first = len(KINDS[self.kind]) + 10
        damping = torch.zeros_like(score)
        damping[first : first + 3] = count
        step = torch.zeros_like(score)
        for share in DAMPING:
            damped = information + share * damping.diag_embed()
            step = torch.linalg.lstsq(damped, score[:, None]).solution[:, 0]
            if bool((step[first : first + 3].abs() < 1).all()):
                break
        return step

    def law_of(self, vector: Float[Tensor, " p"]) -> PairLaw:
        """Return the law of other values."""
        number = len(KINDS[self.kind])
        given = dict(zip(KINDS[self.kind], vector[:number], strict=True))
        zero = torch.zeros_like(vector[0])
        k = given.get("stiffness", zero)
        rest = given["tension"] / k if "tension" in given else zero
        force, field, sds, sd, bent = vector[number:].split([2, 8, 2, 1, 14 * self.curved])
        floor = NOISE_FLOOR * sd.exp()
        return self.law._replace(
            stiffness=k,
            rest_length=rest,
            attraction=given.get("attraction", zero),
            force=force,
            field=field.view(2, 4),
            curvature=bent.view(2, 7) if self.curved else self.law.curvature,
            state_sds=torch.maximum(sds.exp(), floor),
            position_variance=(2 * sd[0]).exp(),
        )


@torch.no_grad()
def evidence(law: PairLaw, seen: Joint, path: Tensor) -> Filtered:
    """Return the filter of each window under the law linearised around a path."""
    return kalman_filter(law, seen, linearise(law, path[:, :-1]))


def misfit(run: Filtered, seen: Joint) -> Float[Tensor, " B"]:
    """Return the mean square of the standardised innovations of each window; 1 on average."""
    off = torch.linalg.solve_triangular(run.roots, run.innovations[..., None], upper=False)
    mean: Tensor = off.square().sum((1, 2, 3)) / seen.known.sum((1, 2))
    return mean


def explained(run: Filtered, seen: Joint) -> Bool[Tensor, " B"]:
    """Return the windows that a law explains about as well as the typical window.

    Relative to the median, so that wrong tracks, which also inflate the noise of a fitted law, are
    recognised as long as they are few.
    """
    found = misfit(run, seen)
    fits: Tensor = found < MISFIT * found.nanmedian()  # false for NaN too
    return fits


@torch.no_grad()
def relinked(law: PairLaw, seen: Joint) -> Joint:
    """Return windows in which tracks that exchanged their objects are exchanged back.

    Of windows that the law does not explain, two objects are exchanged from about the frame with
    the largest innovation on, if that makes the window more likely under the joint law.

    Law: exchanged tracks are restored (test_exchanged_tracks_are_restored).
    """
    a, N = seen.positions.clone(), seen.positions.shape[-1] // 2
    for _ in range(SWAPS):
        tracks = Joint(a, seen.known)
        run = evidence(law, tracks, smoothed_path(law, tracks))
        wrong = (~explained(run, tracks)).nonzero()[:, 0]
        if len(wrong) == 0:
            break
        off = torch.linalg.solve_triangular(run.roots, run.innovations[..., None], upper=False)
        worst = off.square().sum((2, 3))[wrong].nan_to_num(nan=0.0).argmax(1)
        trials = [a[wrong]]
        frames = torch.arange(a.shape[1])[None, :, None, None]
        for shift in (-1, 0, 1):
            later = frames >= (worst + shift)[:, None, None, None]
            for i, j in itertools.combinations(range(N), 2):
                order = list(range(N))
                order[i], order[j] = j, i
                x = a[wrong].unflatten(-1, (N, 2))
                trials.append(torch.where(later, x[:, :, order], x).flatten(2))
        known = seen.known[wrong].repeat(len(trials), 1, 1)
        some = Joint(torch.cat(trials), known)
        each = evidence(law, some, smoothed_path(law, some)).log_likelihood
        best = each.view(len(trials), -1).nan_to_num(nan=-math.inf).argmax(0)
        if not bool(best.any()):
            break
        a[wrong] = torch.stack(trials)[best, torch.arange(len(wrong))]
    return Joint(a, seen.known)


class Slopes(NamedTuple):
    """How the evidence depends on parameters."""

    scores: Float[Tensor, "B p"]
    information: Float[Tensor, "B p p"]  # Fisher's, of each window


@torch.no_grad()
def slopes(parameters: Parameters, vector: Tensor, seen: Joint, path: Tensor) -> Slopes:
    """Return derivatives of the evidence and the information, by differences at a fixed path.

    Innovations e ~ N(0, S) have the information e_i' S^-1 e_j + tr(S^-1 S_i S^-1 S_j) / 2, indices
    being derivatives.
    """
    here = evidence(parameters.law_of(vector), seen, path)
    likelihoods, means, spreads = [], [], []
    for n in range(len(vector)):
        size = 1e-5 * max(abs(float(vector[n])), 1e-3)
        moved = vector.clone()
        moved[n] += size
        there = evidence(parameters.law_of(moved), seen, path)
        likelihoods.append((there.log_likelihood - here.log_likelihood) / size)
        off = (there.innovations - here.innovations)[..., None] / size
        means.append(torch.linalg.solve_triangular(here.roots, off, upper=False)[..., 0])
        ratio = torch.linalg.solve_triangular(here.roots, there.roots - here.roots, upper=False)
        spreads.append((ratio + ratio.mT) / size)
    m, s = torch.stack(means, -1).flatten(1, 2), torch.stack(spreads, -1).flatten(1, 3)
    return Slopes(torch.stack(likelihoods, 1), m.mT @ m + 0.5 * s.mT @ s)


class Fit(NamedTuple):
    """A law that was fitted, and the standard deviations of its parameters."""

    law: PairLaw
    kind: str
    errors: dict[str, float]
    force_error: Float[Tensor, " 2"]


@torch.no_grad()
def maximise(start: PairLaw, kind: str, seen: Joint, curved: bool = False) -> Fit | None:
    """Return the most likely law of a kind, by Fisher scoring; None where it fails.

    Law: parameters of simulated springs are found within their error bars
        (test_parameters_of_simulated_forces_are_found).
    """
    law, path, found = start, smoothed_path(start, seen), None
    gain, move = math.inf, start.force.new_zeros(0)
    for _ in range(ROUNDS):
        law, path, kept = _settled(law, seen, path)
        if float(kept.double().mean()) < MIN_FITTING:
            return None
        some, parameters = Joint(*(part[kept] for part in seen)), Parameters(law, kind, curved)
        vector, now = parameters.vector(), _mean_evidence(law, some, path[kept])
        found = slopes(parameters, vector, some, path[kept])
        if not bool(torch.isfinite(found.information).all() & torch.isfinite(found.scores).all()):
            return None
        move = parameters.move(found, int(some.known.sum()))
        gain = float(found.scores.sum(0) @ move) / len(found.scores)
        best = now
        for size in (1.0, 0.3, 0.1):
            trial = parameters.law_of(vector + size * move)
            again = smoothed_path(trial, seen, path, 2)
            value = _mean_evidence(trial, some, again[kept])
            if value > best:  # false for NaN too
                law, path, best = trial, again, value
            elif best > now:
                break
        if best - now < SETTLED_GAIN:
            break
    if found is None or not gain < MAX_GAIN:
        return None
    inverse = torch.linalg.pinv(found.information.sum(0))
    covariance = inverse @ (found.scores.mT @ found.scores) @ inverse
    # The step that is left belongs to the error.
    covariance = covariance + move[:, None] * move
    return with_errors(law, kind, covariance, seen.positions.shape[-1] // 2)


def _mean_evidence(law: PairLaw, seen: Joint, path: Tensor) -> float:
    """Return the log evidence of windows around a path, averaged."""
    return float(evidence(law, seen, path).log_likelihood.mean())


def _settled(
    law: PairLaw, seen: Joint, path: Tensor
) -> tuple[PairLaw, Float[Tensor, "B T D"], Bool[Tensor, " B"]]:
    """Return a law with first states and a scale of noise that fit, its path and its windows."""
    law = with_prior(law, path)
    for _ in range(2):
        path = smoothed_path(law, seen, path, 2)
        run = evidence(law, seen, path)
        kept = explained(run, seen)
        factor = float(misfit(run, seen)[kept].mean())
        if not (factor > 0 and abs(math.log(factor)) > 0.2):  # false for NaN too
            break
        law = law._replace(
            state_sds=math.sqrt(factor) * law.state_sds,
            position_variance=factor * law.position_variance,
        )
    return law, path, kept


def fit_kind(start: PairLaw, kind: str, seen: Joint, curved: bool = False) -> Fit | None:
    """Return the most likely law of a kind, with tracks that exchanged objects exchanged back.

    Where the field is curved, no polynomial need be right: what the curvature changes about a force
    belongs to its error.

    Law: one window in five with exchanged objects leaves the law within its error bars
        (test_exchanged_objects_in_some_windows_do_not_change_the_law).
    """
    start = start._replace(curvature=torch.zeros_like(start.curvature))
    seen = relinked(start, seen)
    fit = maximise(start, kind, seen)
    if fit is None:
        return None
    again = relinked(fit.law, seen)
    if not torch.equal(again.positions, seen.positions):
        seen, fit = again, maximise(fit.law, kind, again) or fit
    bent = maximise(fit.law, kind, seen, curved=True) if curved else None
    if bent is None:
        return fit
    return with_change(bent, fit.law)


def with_change(fit: Fit, before: PairLaw) -> Fit:
    """Return a fit whose error bars hold what it changed about the forces of another law."""
    change = {name: float(getattr(fit.law, name) - getattr(before, name)) for name in FORCES}
    errors = {name: math.hypot(bar, change.get(name, 0.0)) for name, bar in fit.errors.items()}
    return fit._replace(errors=errors)


def with_errors(law: PairLaw, kind: str, covariance: Float[Tensor, "p p"], num_objects: int) -> Fit:
    """Return a law with the error bars of k, L and G."""
    sds = covariance.diagonal().clamp(min=0).sqrt()
    errors = dict(zip(KINDS[kind], sds.tolist(), strict=False))
    number = len(KINDS[kind])
    if "stiffness" in errors:
        # N objects swing by w^2 = N k, and the integrator changes w by 6e-5 w^4 of itself.
        steps = 1.2e-4 * (num_objects * float(law.stiffness)) ** 2 * float(law.stiffness)
        errors["stiffness"] = math.hypot(errors["stiffness"], steps)
    if kind == "spring":  # L = tension / k
        slope = torch.stack([-law.rest_length, torch.ones_like(law.rest_length)]) / law.stiffness
        errors["rest_length"] = float((slope @ covariance[:2, :2] @ slope).clamp(min=0).sqrt())
    return Fit(law, kind, errors, sds[number : number + 2])


@torch.no_grad()
def with_prior(law: PairLaw, path: Float[Tensor, "B T D"]) -> PairLaw:
    """Return the law with the moments of smoothed first states, the same for all objects."""
    N = path.shape[-1] // 4
    first = path[:, 0].unflatten(-1, (2, N, 2)).movedim(1, 2).flatten(2)
    first = first[torch.isfinite(first).all(-1).all(-1)]
    mean = first.mean((0, 1))
    away = first - mean
    own = torch.einsum("bni,bnj->ij", away, away) / (len(away) * N)
    total = torch.einsum("bi,bj->ij", away.sum(1), away.sum(1)) / len(away)
    coupling = (total - N * own) / max(N * (N - 1), 1)
    # Four more windows of independent objects keep the moments positive.
    share = len(away) / (len(away) + 4.0)
    ridge = law.position_variance * torch.eye(4, dtype=own.dtype)
    return law._replace(
        initial_mean=mean,
        initial_covariance=own + ridge,
        initial_coupling=share * coupling if N > 1 else torch.zeros_like(own),
    )


def _windows(scenes: Scenes, number: int) -> Joint:
    """Return windows without gaps, spread over all clips."""
    some = scenes.windows(LENGTH)
    chosen = torch.linspace(0, len(some.positions) - 1, number).long().unique()
    return Joint(*joint(some.select(chosen)))


def fit_pairs(scenes: Scenes) -> Fit | None:
    """Return the law with forces between objects that scenes show; None without.

    Law: objects that ignore one another have none
        (test_scenes_without_forces_between_objects_have_none).
    """
    B, N = scenes.positions.shape[:2]
    if N < 2 or B < 2 * TEST_SHARE or scenes.positions.shape[2] < 5:
        return None
    visible = {kind for kind, gain in visible_forces(scenes).items() if gain > MIN_REDUCTION}
    if not visible:
        return None
    found = [guess for guess in regressions(scenes) if guess.kind in visible | {"free"}]
    test = torch.arange(B) % TEST_SHARE == 0
    if min(len(scenes.select(part).windows(LENGTH).positions) for part in (test, ~test)) < (
        MIN_WINDOWS
    ):
        return None
    used, unused = (
        _windows(scenes.select(~test), FIT_WINDOWS),
        _windows(scenes.select(test), TEST_WINDOWS),
    )
    best: dict[str, tuple[float, Fit]] = {}
    forces = [guess for guess in found if guess.kind != "free"]
    if not forces:
        return None
    close = 1 - 2 * (1 - forces[0].reduction)  # that leaves at most twice the residual
    forces = [guess for guess in forces[:2] if guess.reduction >= close]
    curved = forces[0].curvature > MIN_REDUCTION
    for guess in [*forces, *(guess for guess in found if guess.kind == "free")]:
        fit = fit_kind(first_guess(scenes, guess), guess.kind, used, curved)
        if fit is None or (guess.kind == "spring" and not _is_spring(fit)):
            continue
        each = draw_paths(fit.law, unused, 32).log_density
        each = each.clamp(min=float(each.median()) - OUTLIER)
        best[guess.kind] = (float(each.sum()), fit)
    if "free" not in best:
        return None
    # A kind with more parameters has to be better by as much as any force.
    chosen = "free"
    for kind in sorted(best, key=lambda kind: len(KINDS[kind])):
        if best[kind][0] > best[chosen][0] + MIN_GAIN:  # false for NaN too
            chosen = kind
    return None if chosen == "free" else best[chosen][1]


def _is_spring(fit: Fit) -> bool:
    """Return whether a spring pulls back and has a rest length."""
    length = float(fit.law.rest_length)
    return float(fit.law.stiffness) > 0 and length > 2 * fit.errors["rest_length"]


@torch.no_grad()
def calibrate(law: PairLaw, scenes: Scenes) -> PairLaw:
    """Return the law with its noise scaled so that regions of forecasts hold what they say.

    The errors of inferred positions last for some frames, so a law that takes them for independent
    is too sure of velocities. Forecasts of the clips themselves tell by how much.
    """
    length = min(SEEN + AHEAD, scenes.positions.shape[2])
    windows = scenes.windows(length)
    windows = windows.select(torch.linspace(0, len(windows.positions) - 1, 120).long().unique())
    tracks = relinked(law, Joint(*joint(windows)))
    fits = explained(evidence(law, tracks, smoothed_path(law, tracks)), tracks)
    a, known = (part[fits] for part in tracks)
    seen = min(SEEN, length // 2)
    shown = known & (torch.arange(length) < seen)[None, :, None]
    for _ in range(3):
        paths = draw_paths(law, Joint(a, shown), 64)
        x = paths.resampled(torch.full((len(a),), 0.5, dtype=a.dtype))[..., : a.shape[-1]]
        x = x[:, :, seen:].unflatten(-1, (-1, 2))
        away = x - x.mean(0)
        spread = torch.einsum("sbtni,sbtnj->btnij", away, away) / len(away)
        spread = spread + law.position_variance * torch.eye(2, dtype=a.dtype)
        off = a[:, seen:].unflatten(-1, (-1, 2)) - x.mean(0)
        squares = torch.einsum("btni,btnij,btnj->btn", off, spread.inverse(), off)
        factor = math.sqrt(float(squares.flatten().quantile(0.9)) / REGION)
        if not math.isfinite(factor):
            break
        factor = min(max(factor, 0.5), 3.0)
        law = law._replace(
            state_sds=factor * law.state_sds, position_variance=factor**2 * law.position_variance
        )
    return law._replace(
        state_sds=MARGIN * law.state_sds, position_variance=MARGIN**2 * law.position_variance
    )


@torch.no_grad()
def loosened(law: LinearDynamics, distance: float) -> LinearDynamics:
    """Return the law for the search, changed in place: more noise, so that frames decide.

    A linear law of single objects pulls inferred positions by a tenth of a pixel.
    """
    noise = float(law.components().position_noise.diagonal().mean().sqrt())
    law.position_factor.diagonal().add_(math.log(max(LOOSE * distance / noise, 1.0)))
    return law


def pair_dynamics(fit: Fit, trained: LinearDynamics, variance: float) -> PairDynamics:
    """Return the law as a `Dynamics` whose search is by the trained law.

    Args:
        fit: The law of the means of q.
        trained: Without forces between objects.
        variance: Of q.
    """
    made = PairDynamics(
        num_components=trained.num_components,
        linear=trained.force_field is not None,
        generator=torch.Generator(),
    )
    made.load_state_dict(made.state_dict() | trained.state_dict())
    law = fit.law
    made.set_law(
        law._replace(position_variance=law.position_variance + variance),
        mean_variance=law.position_variance,
        pair_errors=law.force.new_tensor([fit.errors.get(name, 0.0) for name in FORCES]),
        force_error=fit.force_error,
    )
    return made


def find_pairs(
    trainer: Trainer,
    held_out: TrainingData,
    config: RunConfig,
    batches: Iterable[InferredBatch],
) -> RunConfig | None:
    """Give a trained model the forces that its tracks show, if that raises the held-out bound.

    Args:
        trainer: Of the model.
        held_out: Clips that decide.
        config: Of the model.
        batches: Training clips with their posteriors.

    Returns:
        The configuration of the model with forces between objects; None: it has none.
    """
    if not may_have_events(trainer, config):
        return None
    model, scenes = trainer.model, scenes_of(batches)
    trained = require_linear(model.dynamics)
    fit = None if scenes is None else fit_pairs(scenes)
    if fit is None or scenes is None:
        return None
    own = loosened(copy.deepcopy(trained).cpu(), typical_distance(scenes))
    bound = held_out_bound(trainer, held_out)
    # Once more with positions that the linear law does not pull.
    model.dynamics = pair_dynamics(fit, own, scenes.variance).to(trainer.device)
    again = scenes_of(inferred_batches(trainer))
    assert again is not None
    curved = bool((fit.law.curvature != 0).any())
    refit = fit_kind(fit.law, fit.kind, _windows(again, FIT_WINDOWS), curved)
    # The search pulls positions a little still: by less than what the second inference changed.
    fit = fit if refit is None else with_change(refit, fit.law)
    fit = fit._replace(law=calibrate(fit.law, again))
    model.dynamics = pair_dynamics(fit, own, again.variance).to(trainer.device)
    if not held_out_bound(trainer, held_out) > bound:
        model.dynamics = trained
        return None
    dynamics = dataclasses.replace(config.dynamics, pair_forces=1)
    return dataclasses.replace(config, dynamics=dynamics)
