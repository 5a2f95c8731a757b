"""A law of motion and a family defined outside the package, and everything that runs with them."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import motes
from motes.config import (
    FAMILY_SETTINGS,
    DataConfig,
    DynamicsConfig,
    RunConfig,
    ScheduleConfig,
    from_json,
    to_json,
)
from motes.core.errors import InputError
from motes.kalman.model import Gaussian, GaussianMixture, SampledTracks, SmoothedTracks
from motes.models.checkpoint import load, read_config
from motes.models.model import FAMILIES, LAWS, Model, build, register_family, register_law
from motes.models.protocols import (
    Dynamics,
    Family,
    GaussianPosterior,
    Inference,
    PlainRenderer,
    Renderer,
    Search,
)
from motes.models.sprites.search import Tracker
from motes.training.presets import PRESETS
from motes.training.train import resume, train
from sprite_scenes import disk_renderer, frame_with

EYE = torch.eye(2, dtype=torch.float64)


class DampedWalk(nn.Module):
    """h_1 ~ N(0, s^2 I), h_t = rho h_{t-1} + N(0, v I), a_t = h_t + N(0, r I).

    The two coordinates are independent and alike, so a track is a Gaussian with a covariance
    [T, T] for each of them. Everything is computed from it without recursions.
    """

    independent_objects = True
    num_components = 1

    def __init__(self, config: DynamicsConfig) -> None:
        super().__init__()
        values = (config.initial_spread**2, config.state_noise, config.position_noise)
        self.log_variances = nn.Parameter(torch.tensor(values, dtype=torch.float64).log())
        self.rho_logit = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))

    def numbers(self) -> tuple[torch.Tensor, ...]:
        """Return rho, s^2, v and r."""
        return (self.rho_logit.sigmoid(), *self.log_variances.exp())

    def covariance(self, num_frames: int) -> torch.Tensor:
        """Return the covariance [T, T] of one coordinate of the states."""
        rho, first, step, _ = self.numbers()
        time = torch.arange(num_frames)
        powers = rho ** (2 * time)
        variance = first * powers + step * (1 - powers) / (1 - rho**2)
        return variance[torch.minimum(time, time[:, None])] * rho ** (time - time[:, None]).abs()

    def initial(self, batch: tuple[int, int]) -> Any:
        return torch.zeros(*batch, 2, dtype=torch.float64), self.numbers()[1].expand(batch)

    def predict(self, belief: Any) -> Any:
        rho, _, step, _ = self.numbers()
        return rho * belief[0], rho**2 * belief[1] + step

    def update(self, belief: Any, positions: torch.Tensor, observed: torch.Tensor) -> Any:
        mean, variance = belief
        gain = torch.where(observed, variance / (variance + self.numbers()[3]), 0.0)
        return mean + gain[..., None] * (positions.double() - mean), (1 - gain) * variance

    def observe(self, belief: Any) -> GaussianMixture:
        mean, variance = belief
        covariance = (variance + self.numbers()[3])[..., None, None] * EYE
        return GaussianMixture(
            torch.zeros_like(mean[..., :1]), mean[:, :, None], covariance[:, :, None]
        )

    def emit(self, states: Gaussian) -> Gaussian:
        return Gaussian(states.mean, states.covariance + self.numbers()[3] * EYE)

    def path(self, states: Gaussian) -> Gaussian:
        return states

    def velocities(self, states: torch.Tensor) -> torch.Tensor:
        return (self.numbers()[0] - 1) * states

    def log_density(
        self, positions: torch.Tensor, present: torch.Tensor, observed: torch.Tensor | None = None
    ) -> torch.Tensor:
        return torch.where(present, self.track_log_density(positions, observed), 0.0).sum(1)

    def track_log_density(
        self, positions: torch.Tensor, observed: torch.Tensor | None = None
    ) -> torch.Tensor:
        flags = torch.ones(positions.shape[:-1]) if observed is None else observed
        flags = flags.double().expand(positions.shape[:-1])
        residual = torch.where(flags[..., None] > 0, positions.double(), 0.0)
        K = self.masked(flags, torch.zeros_like(flags))
        solved = torch.linalg.solve(K, residual)
        nats = -0.5 * (residual * solved).sum((-2, -1)) - torch.logdet(K)
        return nats - flags.sum(-1) * math.log(2 * math.pi)

    def masked(self, flags: torch.Tensor, variances: torch.Tensor) -> torch.Tensor:
        """Return the covariance of observed positions; unobserved rows are of the identity."""
        pairs = flags[..., :, None] * flags[..., None, :]
        noise = flags * (self.numbers()[3] + variances) + 1 - flags
        return pairs * self.covariance(flags.shape[-1]) + noise.diag_embed()

    def smooth(
        self, positions: torch.Tensor, observed: torch.Tensor, variances: torch.Tensor
    ) -> SmoothedTracks:
        C, flags = self.covariance(positions.shape[2]), observed.double()
        means, spreads = [], []
        for axis in range(2):
            K = self.masked(flags, variances[..., axis].double() * flags)
            cross = C * flags[..., None, :]
            y = torch.where(observed, positions[..., axis].double(), 0.0)
            means.append((cross @ torch.linalg.solve(K, y[..., None]))[..., 0])
            left = C - cross @ torch.linalg.solve(K, cross.mT)
            spreads.append(left.diagonal(dim1=-2, dim2=-1))
        covariances = torch.stack(spreads, -1).diag_embed()
        weights = torch.zeros(*observed.shape[:2], 1, dtype=torch.float64)
        return SmoothedTracks(weights, torch.stack(means, -1)[:, :, None], covariances[:, :, None])

    def leave_one_out(self, positions: torch.Tensor, observed: torch.Tensor) -> Gaussian:
        means, covariances = [], []
        for t in range(positions.shape[2]):
            others = observed & (torch.arange(positions.shape[2]) != t)
            tracks = self.smooth(positions, others, torch.zeros_like(positions))
            means.append(tracks.means[:, :, 0, t])
            covariances.append(tracks.covariances[:, :, 0, t])
        return self.emit(Gaussian(torch.stack(means, 2), torch.stack(covariances, 2)))

    def swap_gains(self, positions: torch.Tensor, observed: torch.Tensor) -> torch.Tensor:
        B, N, T = observed.shape
        gains = torch.zeros(B, N, N, T, dtype=torch.float64)
        before = self.track_log_density(positions, observed)
        for one, other, t in itertools.product(range(N), range(N), range(T)):
            a, flags = positions.clone(), observed.clone()
            for values, source in ((a, positions), (flags, observed)):
                values[:, one, t:], values[:, other, t:] = source[:, other, t:], source[:, one, t:]
            gains[:, one, other, t] = (self.track_log_density(a, flags) - before).sum(1)
        return gains

    def sample(
        self, batch: tuple[int, ...], num_frames: int, generator: torch.Generator
    ) -> SampledTracks:
        noise = torch.randn(2, *batch, num_frames, 2, generator=generator, dtype=torch.float64)
        states = torch.linalg.cholesky(self.covariance(num_frames)) @ noise[0]
        positions = states + self.numbers()[3].sqrt() * noise[1]
        return SampledTracks(torch.zeros(batch, dtype=torch.int64), states, positions)

    def fit_initial_state(self, positions: torch.Tensor, observed: torch.Tensor) -> None:
        """Set s^2 to the mean square of the first observed positions."""
        first = positions[observed.any(1)][:, 0].double()
        with torch.no_grad():
            self.log_variances[0] = first.square().mean().log()

    def is_bounded(self, limit: float) -> bool:
        return all(bool(number.abs() <= limit) for number in self.numbers())


@dataclass(frozen=True)
class SquareSettings:
    """The side of the squares and the scale of latent units, in pixels."""

    side: int = 3
    pixels_per_unit: float = 2.0


class SquareRenderer(PlainRenderer):
    """White squares on black, with learned logits of both."""

    def __init__(self, settings: SquareSettings, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.settings, self.image_size = settings, image_size
        self.levels = nn.Parameter(torch.tensor([-2.0, 2.0]))

    def forward(
        self, positions: torch.Tensor, present: torch.Tensor, appearance: None = None
    ) -> torch.Tensor:
        height, width = self.image_size
        centre = torch.tensor([(width - 1) / 2, (height - 1) / 2])
        pixels = (positions * self.settings.pixels_per_unit + centre)[..., None, None, :]
        half = self.settings.side / 2
        inside = (torch.arange(width) - pixels[..., 0]).abs() < half
        inside = inside & ((torch.arange(height)[:, None] - pixels[..., 1]).abs() < half)
        lit = (inside & present[..., None, None, None]).any(1)
        return torch.where(lit, self.levels[1], self.levels[0])

    def log_likelihood(
        self,
        positions: torch.Tensor,
        present: torch.Tensor,
        frames: torch.Tensor,
        *,
        appearance: None = None,
        detected: torch.Tensor | None = None,
    ) -> torch.Tensor:
        logits = self(positions, present)
        return -binary_cross_entropy_with_logits(logits, frames, reduction="none").sum((2, 3))

    def pixel_map(self) -> torch.Tensor:
        height, width = self.image_size
        unit = self.settings.pixels_per_unit
        return torch.tensor([[unit, 0.0], [0.0, unit], [(width - 1) / 2, (height - 1) / 2]])


class BruteForce(nn.Module):
    """The pixels whose squares explain a frame best, one object after the other."""

    requires_zeroed_frames = False
    exchangeable = False
    clips_per_thread = 1
    scale = 0.2  # of q, in latent units

    def infer(
        self,
        frames: torch.Tensor,
        num_objects: torch.Tensor,
        observed: torch.Tensor | None,
        *,
        dynamics: Any,
        renderer: Any,
        slots: int,
        search: Search,
    ) -> GaussianPosterior:
        (B, T, height, width), unit = frames.shape, renderer.settings.pixels_per_unit
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        centre = torch.tensor([(width - 1) / 2, (height - 1) / 2])
        places = (torch.stack([columns, rows], -1).flatten(0, 1) - centre) / unit
        means = torch.zeros(B, slots, T, 2)
        for b, t in np.ndindex(B, T):
            if observed is not None and not observed[b, t]:
                continue
            for n in range(int(num_objects[b])):
                trial = means[b, : n + 1, t].expand(len(places), -1, -1)[:, :, None].clone()
                trial[:, n, 0] = places
                there = torch.ones(len(places), n + 1, dtype=torch.bool)
                frame = frames[b, t].expand(len(places), 1, -1, -1)
                with torch.no_grad():
                    nats = renderer.log_likelihood(trial, there, frame)
                means[b, n, t] = places[nats[:, 0].argmax()]
        return GaussianPosterior(means, torch.full_like(means, self.scale), observed)

    def max_objects(self, trained: int) -> int:
        return trained

    def bytes_per_clip(
        self, num_objects: int, num_frames: int, num_components: int, search: Search
    ) -> int:
        return 10_000 * num_frames


def build_squares(
    settings: SquareSettings, data: DataConfig, generator: torch.Generator
) -> tuple[SquareRenderer, BruteForce]:
    return SquareRenderer(settings, (data.height, data.width)), BruteForce()


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Register the law and the family; leave the registries as they were."""
    before = [dict(table) for table in (FAMILIES, FAMILY_SETTINGS, LAWS)]
    register_law("damped-walk", lambda config, generator: DampedWalk(config))
    register_family(Family("squares", SquareSettings, build_squares))
    yield
    for table, content in zip((FAMILIES, FAMILY_SETTINGS, LAWS), before, strict=True):
        table.clear()
        table.update(content)


CONFIG = RunConfig(
    model=SquareSettings(),
    data=DataConfig(
        num_clips=8, num_objects=(1, 2), num_frames=5, height=12, width=14, num_held_out=2
    ),
    dynamics=DynamicsConfig(
        law="damped-walk",
        num_components=1,
        state_noise=0.3,
        position_noise=0.05,
        initial_spread=2.0,
    ),
    schedule=ScheduleConfig(
        iterations=6, frozen_dynamics=0, steps_per_search=3, mixture_em_steps=(3,)
    ),
    batch_size=4,
    log_every=3,
    checkpoint_every=3,
)


def moving_square() -> torch.Tensor:
    """Return a clip [1, 5, 12, 14] of a square at (4 + t, 6)."""
    frames = torch.zeros(1, 5, 12, 14)
    for t in range(5):
        frames[0, t, 5:8, 3 + t : 6 + t] = 1
    return frames


def test_the_parts_satisfy_the_protocols() -> None:
    model = build(CONFIG)
    assert isinstance(model.dynamics, Dynamics)
    assert isinstance(model.renderer, Renderer)
    assert isinstance(model.inference, Inference)
    assert isinstance(model.dynamics, DampedWalk)
    assert isinstance(model.renderer, SquareRenderer)


def test_the_configuration_survives_json_and_unknown_names_are_refused() -> None:
    assert CONFIG.family == "squares"
    text = to_json(CONFIG)
    assert from_json(text, "x") == CONFIG
    with pytest.raises(InputError, match="'side'"):
        from_json(text.replace('"side"', '"size"'), "x")
    LAWS.pop("damped-walk")
    with pytest.raises(InputError, match="law is 'damped-walk'; expected one of newton, linear"):
        build(CONFIG)
    FAMILY_SETTINGS.pop("squares")
    with pytest.raises(InputError, match="family 'squares'; expected one of paper, sprites"):
        from_json(text, "x")


def test_training_improves_the_bound_and_resumes(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    outcome = train(CONFIG, tmp_path / "run", report=lines.append)
    assert (outcome.finished, outcome.step) == (True, 6)
    bounds = [line["held_out_bound"] for line in lines if "held_out_bound" in line]
    assert bounds[-1] > bounds[0]
    trained, fresh = load(tmp_path / "run"), build(CONFIG)
    for name, value in fresh.named_parameters():
        assert not torch.equal(trained.get_parameter(name), value), name
    assert read_config(tmp_path / "run") == CONFIG
    assert outcome.pixel_map_residual < 0.5  # the renderer's own map, up to rounding to pixels
    assert torch.equal(trained.pixel_matrix, 2 * torch.eye(2))
    assert resume(tmp_path / "run").step == 6


def scalar_filter(
    law: DampedWalk, observations: np.ndarray, variance: float, horizon: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of the state after the observed frames and in those ahead."""
    rho, first, step, noise = (float(number.detach()) for number in law.numbers())
    mean, spread, means, spreads = 0.0, first, [], []
    for t in range(len(observations) + horizon):
        if t > 0:
            mean, spread = rho * mean, rho**2 * spread + step
        if t < len(observations):
            gain = spread / (spread + noise + variance)
            mean, spread = mean + gain * (observations[t] - mean), (1 - gain) * spread
        means.append(mean)
        spreads.append(spread)
    return np.array(means), np.array(spreads)


def aligned_model() -> Model:
    model = build(CONFIG)
    model.pixel_matrix.copy_(2 * torch.eye(2))
    model.pixel_offset.copy_(torch.tensor([6.5, 5.5]))
    return model


def test_positions_are_inferred_and_counted() -> None:
    model = aligned_model()
    answer = motes.infer(model, moving_square(), 1)
    expected = torch.tensor([[4.0 + t, 6.0] for t in range(5)])
    torch.testing.assert_close(answer.pixels[0, 0], expected)
    assert answer.found.all()
    torch.testing.assert_close(answer.covariances[0, 0, 0], 0.04 * torch.eye(2))
    assert motes.infer(model, moving_square()).num_objects.tolist() == [1]


def test_a_forecast_is_the_closed_form_of_the_law() -> None:
    model = aligned_model()
    answer = motes.forecast(model, moving_square(), 1, horizon=4)
    rho, _, step, noise = (float(number.detach()) for number in model.dynamics.numbers())
    seen = (np.array([[4.0 + t, 6.0] for t in range(5)]) - [6.5, 5.5]) / 2
    for axis in range(2):
        means, variances = scalar_filter(model.dynamics, seen[:, axis], BruteForce.scale**2, 4)
        for k in range(1, 5):
            mean = rho**k * means[4]
            spread = rho ** (2 * k) * variances[4] + step * (1 - rho ** (2 * k)) / (1 - rho**2)
            assert float(answer.positions[0, 0, 4 + k, axis]) == pytest.approx(mean, rel=1e-5)
            found = float(answer.covariances[0, 0, 4 + k, axis, axis])
            assert found == pytest.approx(spread + noise, rel=1e-5)
            speed = float(answer.velocities[0, 0, 4 + k, axis])
            assert speed == pytest.approx((rho - 1) * mean, rel=1e-5)
    assert answer.found[0, 0].tolist() == [True] * 5 + [False] * 4


def test_an_interpolation_lies_between_its_neighbours() -> None:
    model, frames = aligned_model(), moving_square()
    observed = torch.tensor([True, True, False, True, True])
    answer = motes.interpolate(model, frames, observed, 1)
    filled = frames.clone()
    filled[:, 2] = torch.nan
    again = motes.interpolate(model, filled, observed, 1)
    torch.testing.assert_close(answer.pixels, again.pixels, rtol=0, atol=0)
    assert 5 < float(answer.pixels[0, 0, 2, 0]) < 7  # the square is at 6
    assert torch.linalg.det(answer.covariances[0, 0, 2]) > torch.linalg.det(
        answer.covariances[0, 0, 1]
    )
    assert answer.frames.shape == (1, 5, 12, 14)


@pytest.mark.statistical
def test_samples_have_the_variance_of_the_law() -> None:
    model = aligned_model()
    answer = motes.sample(model, 2_000, 1, 4, seed=0)
    assert answer.component.unique().tolist() == [0]
    rho, first, step, noise = (float(number.detach()) for number in model.dynamics.numbers())
    variance = first
    for t in range(4):
        variance = variance if t == 0 else rho**2 * variance + step
        found = answer.positions[:, 0, t].double().square().mean()
        # 4000 squares of Gaussians: five standard errors of their mean.
        assert abs(float(found) / (variance + noise) - 1) < 5 * (2 / 4000) ** 0.5


def test_the_tracker_of_the_sprites_follows_the_plugged_in_law() -> None:
    size = 24
    law = DampedWalk(DynamicsConfig(state_noise=0.2, position_noise=0.02, initial_spread=4.0))
    model = Model(law, disk_renderer(size), Tracker(7), image_size=(size, size), max_objects=2)
    places = [[(6 + t, 8), (17 - t, 16)] for t in range(6)]
    frames = torch.cat([frame_with(pair, size) for pair in places])[None]
    q = model.infer(frames, torch.tensor([2]), None, Search(hypotheses=3))
    found = model.renderer.to_pixels(q.means)[0]
    truth = torch.tensor(places).float().transpose(0, 1)
    # From left to right; a disk shows its pixel, in which it may be anywhere.
    assert (found - truth).abs().max() < 0.5


def test_the_paper_s_networks_train_with_the_plugged_in_law(tmp_path: Path) -> None:
    config = PRESETS["paper-smoke"]
    config = replace(
        config,
        dynamics=CONFIG.dynamics,
        schedule=replace(config.schedule.stretched(4), frozen_dynamics=0),
        data=replace(config.data, num_clips=8, num_held_out=2),
        checkpoint_every=4,
    )
    assert train(config, tmp_path / "run").finished
    trained = load(tmp_path / "run")
    assert isinstance(trained.dynamics, DampedWalk)
    start = build(config).dynamics.state_dict()
    for name, value in trained.dynamics.state_dict().items():
        assert not torch.equal(value, start[name]), name
    frames = motes.cannonballs(2, (1, 2), 12, 16, seed=1).frames.float()
    observed = torch.arange(12) % 4 != 2
    assert motes.interpolate(trained, frames, observed, 2).positions.isfinite().all()
