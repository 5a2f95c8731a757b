"""Find forces between objects in the tracks of whole scenes.

Second differences of positions are regressed on the force and field of the linear law and on sums
over the other objects of the kinds of `KINDS`; without a clear gain on other clips there is no such
force, which takes milliseconds to see. Otherwise each promising kind is fitted by maximum
likelihood: the evidence of the linearised law, by Fisher scoring. Error bars are those of the
scatter of scores (the sandwich formula), which holds if noise is not as assumed. A force is kept if
windows of clips that were not used are more likely with it than with the same fit without it. Noise
is calibrated by forecasts.
"""

import copy
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from motes.config import RunConfig
from motes.core.axes import Float, Tensor
from motes.kalman.dynamics import LinearDynamics, require_linear
from motes.kalman.pair_dynamics import PairDynamics
from motes.kalman.pair_forces import (
    Filtered,
    Joint,
    PairLaw,
    draw_paths,
    kalman_filter,
    linearise,
    products,
    smoothed_path,
)
from motes.models.protocols import InferredBatch
from motes.training.contact_fit import MARGIN, REGION, TEST_SHARE, Scenes, joint, scenes_of
from motes.training.event_fit import inferred_batches, may_have_events
from motes.training.inputs import TrainingData
from motes.training.step import Trainer, held_out_bound

SOFT = (0.01, 0.1, 0.3)  # softening of an attraction, in median distances
KINDS: dict[str, tuple[str, ...]] = {
    "free": (),
    "elastic": ("stiffness",),
    "spring": ("stiffness", "tension"),
    "attraction": ("attraction",),
}
CANDIDATES: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("free", (), 0.0),
    ("elastic", ("stiffness",), 0.0),
    ("spring", ("stiffness", "tension"), 0.0),
    *(("attraction", (f"attraction{softness}",), softness) for softness in SOFT),
)
LAGS = (1, 2, 4)  # frames of second differences
MIN_REDUCTION = 0.03  # of the residual sum of squares on other clips, to look closer
MIN_GAIN = 10.0  # nats by which all unused windows together must become more likely
LENGTH = 30  # frames of a window
FIT_WINDOWS = 64
TEST_WINDOWS = 40
MIN_WINDOWS = 12
ROUNDS = 12
NOISE_FLOOR = 1e-3  # of process noise, in units of the noise of positions
SEEN, AHEAD = 8, 10  # frames of the forecasts that calibrate noise
LOOSE = 0.15  # observation noise of the search, in typical distances
OUTLIER = 60.0  # nats below the median at which a window counts as wrongly tracked


class Regression(NamedTuple):
    """A fit to second differences."""

    kind: str
    reduction: float  # of the residual sum of squares on other clips, relative to `free`
    curvature: float  # further reduction by a field that is not linear, relative to this kind
    coefficients: dict[str, float]
    softening: float
    force: Float[Tensor, " 2"]
    field: Float[Tensor, "2 4"]


def _columns(scenes: Scenes, lag: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return columns of the regression by name, second differences, and their clips."""
    x, seen = scenes.positions, scenes.observed
    before, at, after = x[:, :, : -2 * lag], x[:, :, lag:-lag], x[:, :, 2 * lag :]
    good = (seen[:, :, : -2 * lag] & seen[:, :, lag:-lag] & seen[:, :, 2 * lag :]).all(1)
    bend = (after - 2 * at + before) / lag**2
    velocity = (after - before) / (2 * lag)
    apart = at[:, None] - at[:, :, None]  # [i, j] = x_j - x_i
    r = apart.norm(dim=-1, keepdim=True)
    columns = {
        "stiffness": apart.sum(2),
        "tension": -(apart / r.clamp(min=1e-9)).sum(2),  # k L
    }
    for softness in SOFT:
        soft = softness * typical_distance(scenes)
        columns[f"attraction{softness}"] = (apart / (r.square() + soft**2) ** 1.5).sum(2)
    for axis in range(2):
        one = torch.zeros_like(at)
        one[..., axis] = 1.0
        columns[f"force{axis}"] = one
        for number, part in enumerate((*at.unbind(-1), *velocity.unbind(-1))):
            columns[f"field{axis}{number}"] = part[..., None] * one
        for number, part in enumerate(products(at).unbind(-1)):
            columns[f"curvature{axis}{number}"] = part[..., None] * one
    chosen = good[:, None].expand(bend.shape[:3])
    clip = torch.arange(len(x))[:, None, None].expand(chosen.shape)[chosen]
    return {name: part[chosen] for name, part in columns.items()}, bend[chosen], clip


def typical_distance(scenes: Scenes) -> float:
    """Return the median distance of two objects."""
    apart = (scenes.positions[:, None] - scenes.positions[:, :, None]).norm(dim=-1)
    return float(apart[apart > 0].median()) if bool((apart > 0).any()) else 1.0


def _solve(
    columns: dict[str, Tensor], bend: Tensor, test: Tensor, names: Sequence[str]
) -> tuple[dict[str, float], float]:
    """Return coefficients by least squares, and the sum of squared residuals of other clips."""
    X = torch.stack([columns[name] for name in names], -1)
    flat, y = X[~test].flatten(0, 1), bend[~test].flatten()
    scale = flat.norm(dim=0).clamp(min=1e-12)
    beta = torch.linalg.lstsq(flat / scale, y[:, None]).solution[:, 0] / scale
    off = (bend[test] - X[test] @ beta).square().sum(-1)
    # Wrong tracks count for a limited amount.
    squares = float(off.clamp(max=20 * float(off.median())).sum())
    return dict(zip(names, beta.tolist(), strict=True)), squares


def regressions(scenes: Scenes) -> list[Regression]:
    """Return the fit of each kind with the lag at which it explains most, the best first.

    A kind with more columns comes first only if it explains clearly more.
    """
    found: dict[str, Regression] = {}
    for lag in LAGS:
        if scenes.positions.shape[2] < 2 * lag + 1:
            continue
        columns, bend, clip = _columns(scenes, lag)
        test = clip % TEST_SHARE == 0
        if int(test.sum()) < 50 or int((~test).sum()) < 50:
            continue
        common = [name for name in columns if name.startswith(("force", "field"))]
        curved = [name for name in columns if name.startswith("curvature")]
        free = 1.0
        for kind, names, softness in CANDIDATES:
            value, squares = _solve(columns, bend, test, [*common, *names])
            more = _solve(columns, bend, test, [*common, *curved, *names])[1]
            free = squares if kind == "free" else free
            fit = Regression(
                kind,
                1 - squares / max(free, 1e-30),
                1 - more / max(squares, 1e-30),
                {name.rstrip(".0123456789"): value[name] for name in names},
                softness * typical_distance(scenes),
                bend.new_tensor([value["force0"], value["force1"]]),
                bend.new_tensor([[value[f"field{a}{n}"] for n in range(4)] for a in range(2)]),
            )
            if kind not in found or fit.reduction > found[kind].reduction:
                found[kind] = fit
    return sorted(found.values(), key=lambda fit: len(KINDS[fit.kind]) / 1000 - fit.reduction)


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
    law, value, found = start, -math.inf, None
    path = smoothed_path(law, seen)
    for _ in range(ROUNDS):
        law = with_prior(law, path)
        parameters = Parameters(law, kind, curved)
        vector = parameters.vector()
        path = smoothed_path(law, seen, path, 2)
        each = evidence(law, seen, path).log_likelihood
        kept = each > each.nanmedian() - OUTLIER  # false for NaN too
        if int(kept.sum()) < MIN_WINDOWS // 2:
            return None
        now = float(each[kept].mean())
        found = Slopes(*(part[kept] for part in slopes(parameters, vector, seen, path)))
        score, information = found.scores.sum(0), found.information.sum(0)
        information = information + 1e-9 * information.diagonal().diag_embed()
        move = torch.linalg.lstsq(information, score[:, None]).solution[:, 0]
        gain = float(score @ move) / len(found.scores)
        improved = False
        for size in (1.0, 0.3, 0.1):
            trial = parameters.law_of(vector + size * move)
            again = smoothed_path(trial, seen, path, 2)
            better = evidence(trial, seen, again).log_likelihood[kept]
            if float(better.mean()) > now:  # false for NaN too
                law, path, improved = trial, again, True
                break
        if not improved or (gain < 0.02 and now - value < 0.02):
            break
        value = now
    if found is None:
        return None
    inverse = torch.linalg.pinv(found.information.sum(0))
    covariance = inverse @ (found.scores.mT @ found.scores) @ inverse
    return with_errors(law, kind, covariance, seen.positions.shape[-1] // 2)


def with_errors(
    law: PairLaw, kind: str, covariance: Float[Tensor, "p p"], num_objects: int
) -> Fit:
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


def first_guess(scenes: Scenes, found: Regression) -> PairLaw:
    """Return a law to start from: that of the regression, with the noise that it left."""
    bend = _columns(scenes, 1)[1]
    x = scenes.positions[scenes.observed]
    one, k = x.new_ones(()), found.coefficients.get("stiffness", 0.0)
    noise = 1.4826 * (bend - bend.median(0).values).abs().median() / math.sqrt(6)
    speed = (scenes.positions[:, :, 1:] - scenes.positions[:, :, :-1]).flatten(0, 2)
    spread = torch.cat([x.var(0), speed.var(0)]) * 4 + noise**2
    return PairLaw(
        force=found.force,
        field=found.field,
        curvature=torch.zeros(2, 7, dtype=x.dtype),
        stiffness=k * one,
        rest_length=found.coefficients.get("tension", 0.0) / k * one if k else 0 * one,
        attraction=found.coefficients.get("attraction", 0.0) * one,
        softening=max(found.softening, 1e-3) * one,
        state_sds=torch.stack([0.1 * noise, 0.1 * noise]),
        position_variance=0.25 * noise**2 + 1e-12,
        initial_mean=torch.cat([x.mean(0), speed.mean(0)]),
        initial_covariance=spread.diag(),
        initial_coupling=torch.zeros(4, 4, dtype=x.dtype),
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
    found = regressions(scenes)
    if not found or not found[0].reduction > MIN_REDUCTION:  # false for NaN too
        return None
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
    close = 1 - 2 * (1 - forces[0].reduction)  # that leaves at most twice the residual
    forces = [guess for guess in forces[:2] if guess.reduction >= close]
    curved = forces[0].curvature > MIN_REDUCTION
    for guess in [*forces, *(guess for guess in found if guess.kind == "free")]:
        fit = maximise(first_guess(scenes, guess), guess.kind, used)
        if fit is not None and curved:
            fit = maximise(fit.law, guess.kind, used, curved=True)
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
    a, known = joint(windows)
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
    law, names = fit.law, ("stiffness", "rest_length", "attraction")
    made.set_law(
        law._replace(position_variance=law.position_variance + variance),
        mean_variance=law.position_variance,
        pair_errors=law.force.new_tensor([fit.errors.get(name, 0.0) for name in names]),
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
    fit = maximise(fit.law, fit.kind, _windows(again, FIT_WINDOWS), curved) or fit
    fit = fit._replace(law=calibrate(fit.law, again))
    model.dynamics = pair_dynamics(fit, own, again.variance).to(trainer.device)
    if not held_out_bound(trainer, held_out) > bound:
        model.dynamics = trained
        return None
    dynamics = dataclasses.replace(config.dynamics, pair_forces=1)
    return dataclasses.replace(config, dynamics=dynamics)
