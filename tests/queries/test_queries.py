import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import motes
from motes.config import DataConfig, RunConfig
from motes.models.elbo import terms_of
from motes.models.layers.search import LayerSettings
from motes.models.model import Model, build
from motes.models.paper import PaperSettings
from motes.models.protocols import GaussianPosterior, Posterior
from motes.models.sprites.grid_posterior import GridPosterior
from motes.models.sprites.renderer import SpriteRenderer
from motes.models.sprites.search import SpriteSettings
from motes.queries import SEARCH
from motes.queries.answer import COLUMNS, Answer
from motes.queries.counting import count_log_evidence
from motes.queries.tracks import NUM_DRAWS
from oracles import gains, log_density, one_model, posterior
from paper_procedure import most_likely_path, paper_posterior
from tiny import HEIGHT, MAX_OBJECTS, WIDTH, tiny_frames, tiny_model, tiny_sprite_model

PER_POSITION = {
    "positions": (2,),
    "covariances": (2, 2),
    "velocities": (2,),
    "pixels": (2,),
    "pixel_covariances": (2, 2),
    "pixel_velocities": (2,),
    "path_pixels": (2,),
    "path_pixel_covariances": (2, 2),
}
PER_TRACK = ("component", "component_probabilities")
FIELDS = (*PER_POSITION, *PER_TRACK, "observed", "num_objects", "frames", "mean_frames")
GAP = [True, True, False, False, True, False, True]
T = len(GAP)


@pytest.fixture(scope="module", params=["paper", "sprites"])
def model(request: pytest.FixtureRequest) -> Model:
    """Families whose answers must have all of these properties."""
    return tiny_model() if request.param == "paper" else tiny_sprite_model()


def assert_same(left: Answer, right: Answer) -> None:
    """Bit for bit, NaN for NaN."""
    for name in FIELDS:
        torch.testing.assert_close(
            getattr(left, name), getattr(right, name), rtol=0, atol=0, equal_nan=True, msg=name
        )


def assert_close(left: Answer, right: Answer, clip: int | None = None) -> None:
    """To what float32 sums in another order may differ by: 1e-6 through seven frames."""
    for name in FIELDS:
        ours, theirs = getattr(left, name), getattr(right, name)
        if clip is not None:
            ours = ours[clip : clip + 1]
            if name in PER_POSITION or name in PER_TRACK:
                ours = ours[:, : theirs.shape[1]]
        if name == "frames":
            continue  # clips draw their noise from one stream, so other company gives other draws
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)


FAMILIES = {
    "paper": PaperSettings(inference_state_size=5, renderer_state_size=4),
    "sprites": SpriteSettings(sprite_radius=2, window=3),
    "occluded sprites": SpriteSettings(sprite_radius=2, window=3, models_occlusion=True),
    "layers": LayerSettings(sprite_radius=2, window=3, num_sprite_classes=2),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_dtype_of_torch_cannot_change_an_answer(family: str) -> None:
    data = DataConfig(num_objects=(1, 2), height=HEIGHT, width=WIDTH)
    config, frames = RunConfig(data=data, model=FAMILIES[family]), tiny_frames(2, T)
    observed = torch.tensor(GAP)

    def answers(built: Model) -> list[Answer]:
        found = [motes.infer(built, frames, 2), motes.infer(built, frames)]
        found += [motes.interpolate(built, frames, observed, 2), motes.sample(built, 2, 2, 4)]
        assert all(answer.frames.dtype == answer.mean_frames.dtype for answer in found)
        return found

    model = build(config)
    plain = answers(model)
    torch.set_default_dtype(torch.float64)
    try:
        double = [answers(built) for built in (model, build(config))]
    finally:
        torch.set_default_dtype(torch.float32)
    for others in double:
        for ours, theirs in zip(plain, others, strict=True):
            assert_same(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("filling", ["noise", "NaN"])
def test_pixels_of_unobserved_frames_cannot_change_an_interpolation(
    filling: str, model: Model
) -> None:
    frames, observed = tiny_frames(2, T), torch.tensor(GAP)
    filled = frames.clone()
    filled[:, ~observed] = torch.nan if filling == "NaN" else tiny_frames(2, 3, seed=9)
    for count in (2, None):
        plain = motes.interpolate(model, frames, observed, count)
        assert_same(motes.interpolate(model, filled, observed, count), plain)


@pytest.mark.parametrize("filling", [0.7, torch.nan])
def test_a_forecast_is_an_interpolation_with_an_unobserved_future(
    filling: float, model: Model
) -> None:
    frames = tiny_frames(2, 4)
    longer = torch.cat([frames, torch.full((2, 5, HEIGHT, WIDTH), filling)], 1)
    observed = torch.arange(9) < 4
    ahead = motes.forecast(model, frames, 2, horizon=5)
    assert ahead.observed.tolist() == [observed.tolist()] * 2
    assert_same(motes.interpolate(model, longer, observed, 2), ahead)


@pytest.mark.slow
def test_frames_after_the_last_observed_one_are_not_evaluated(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    infer = model.infer

    def counted(frames: torch.Tensor, *rest: Any) -> Posterior:
        lengths.append(frames.shape[1])
        return infer(frames, *rest)

    monkeypatch.setattr(model, "infer", counted)
    far = motes.forecast(model, tiny_frames(2, 4), horizon=200)
    assert set(lengths) == {4}
    assert far.pixels.shape[2] == far.frames.shape[1] == 204
    near = motes.forecast(model, tiny_frames(2, 4), horizon=5)
    assert torch.equal(far.count_probabilities, near.count_probabilities)
    # Short and long videos go through the smoother in two ways, both in float64.
    torch.testing.assert_close(far.pixels[:, :, :9], near.pixels, equal_nan=True)


LONG_ROUTES = {"kalman.DENSE_FRAMES": 6, "kalman.BLOCK_FRAMES": 3, "queries.tracks.NUM_DRAWS": 2}
CHUNKS = {
    "queries.SEARCH": SEARCH._replace(stream_after=10),
    "models.model.CHUNK_FRAMES": 8,
    "models.paper.CHUNK_FRAMES": 7,
    "kalman.sequential.CHUNK_FRAMES": 5,
    "kalman.chunked.CHUNK_BLOCKS": 2,
    "kalman.track_evidence.CHUNK_FRAMES": 6,
    # frames, objects in three searches
    "models.sprites.search.CHUNK_PIXELS": 9 * 6 * HEIGHT * WIDTH,
}


@pytest.mark.parametrize("count", [2, pytest.param(None, marks=pytest.mark.slow)])
def test_a_long_clip_is_answered_as_a_short_one_is(
    count: int | None, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames, observed = tiny_frames(1, 16), torch.arange(16) % 7 != 4

    def query(sizes: dict[str, Any]) -> list[Answer]:
        for name, size in sizes.items():
            monkeypatch.setattr(f"motes.{name}", size)
        answers = [
            motes.interpolate(model, frames, observed, count),
            motes.forecast(model, frames, count, horizon=5),
        ]
        for answer in answers:
            assert answer.frames.shape == answer.mean_frames.shape  # drawn now, and kept
        return answers

    for whole, pieces in zip(query(LONG_ROUTES), query(CHUNKS), strict=True):
        assert_close(pieces, whole)
        torch.testing.assert_close(pieces.frames, whole.frames)
        if count is None:
            torch.testing.assert_close(pieces.count_probabilities, whole.count_probabilities)


def test_infer_is_an_interpolation_with_all_frames_observed(model: Model) -> None:
    frames = tiny_frames(2, T)
    everything = torch.ones(2, T, dtype=torch.bool)
    assert_same(motes.infer(model, frames, 3), motes.interpolate(model, frames, everything, 3))


@pytest.mark.parametrize("count", [1, 3])
def test_interpolation_is_the_procedure_of_the_paper(count: int) -> None:
    model, frames = tiny_model(), tiny_frames(1, 30)
    observed = np.array([True] * 5 + [False] * 20 + [True] * 5)
    answer = motes.interpolate(model, frames, observed, count)
    with torch.no_grad():
        q = paper_posterior(model, frames, 5, 5, count)
        q = GaussianPosterior(q.means.double(), q.scales.double())
    M, offset = model.pixel_matrix.double().numpy(), model.pixel_offset.double().numpy()
    dynamics = model.dynamics.components()
    # The network runs in float32: 1e-6 a step, 30 steps, and a map of order one.
    close = {"rtol": 1e-3, "atol": 1e-3}
    for n in range(count):
        path, cov, k = most_likely_path(model, q.means[0, n].numpy(), observed)
        assert int(answer.component[0, n]) == k
        part = one_model(dynamics, (2,), (k,))
        # q's variances are carried through the smoother: its mean is linear in the positions.
        gain = gains(part, observed)
        widened = cov + (gain * (q.scales[0, n].reshape(-1).numpy() ** 2) @ gain.T).reshape(
            cov.shape
        )
        for t in range(30):
            mean, spread = path[t], widened[t, :2, t, :2]
            np.testing.assert_allclose(answer.path_pixels[0, n, t], M @ mean + offset, **close)
            np.testing.assert_allclose(
                answer.path_pixel_covariances[0, n, t], M @ spread @ M.T, **close
            )
            if observed[t]:
                mean, spread = q.means[0, n, t].numpy(), np.diag(q.scales[0, n, t].numpy() ** 2)
            else:
                spread = spread + part.position_noise
            np.testing.assert_allclose(answer.positions[0, n, t], mean, **close)
            np.testing.assert_allclose(answer.covariances[0, n, t], spread, **close)
            np.testing.assert_allclose(answer.pixels[0, n, t], M @ mean + offset, **close)
            np.testing.assert_allclose(answer.pixel_covariances[0, n, t], M @ spread @ M.T, **close)


def test_velocity_is_the_step_that_the_path_takes(model: Model) -> None:
    """Far ahead nothing but the dynamics moves the path: x_{t+1} - x_t = v_t + u_x."""
    answer = motes.forecast(model, tiny_frames(1, 3), 2, horizon=6)
    steps = answer.positions[:, :, 4:].diff(dim=2)
    expected = answer.velocities[:, :, 4:-1] + model.dynamics.force[:2].float().detach()
    torch.testing.assert_close(steps, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        answer.pixel_velocities, answer.velocities @ model.pixel_matrix.T, rtol=1e-5, atol=1e-5
    )


def test_a_mask_for_each_clip_is_one_clip_at_a_time(model: Model) -> None:
    frames, counts = tiny_frames(3, T), torch.tensor([1, 3, 2])
    observed = torch.tensor([GAP, [True] * T, [True] * 3 + [False] * 4])
    together = motes.interpolate(model, frames, observed, counts)
    for b in range(3):
        alone = motes.interpolate(model, frames[b : b + 1], observed[b], int(counts[b]))
        assert_close(together, alone, clip=b)


@pytest.mark.slow
def test_a_count_may_be_a_number_or_a_tensor(model: Model) -> None:
    frames = tiny_frames(2, T)
    for given in (torch.tensor([2, 2]), [2, 2], np.array([2, 2]), torch.tensor(2)):
        assert_same(motes.infer(model, frames, 2), motes.infer(model, frames, given))


def test_absent_objects_are_nan_and_present_ones_are_not(model: Model) -> None:
    counts = torch.tensor([1, 3, 2])
    for answer in (
        motes.interpolate(model, tiny_frames(3, T), GAP, counts),
        motes.sample(model, 3, counts, T),
    ):
        present = torch.arange(3) < counts[:, None]
        for name in PER_POSITION:
            missing = getattr(answer, name).isnan()
            assert missing[~present].all(), name
            assert not missing[present].any(), name
        assert (answer.component[~present] == -1).all()
        assert (answer.component[present] >= 0).all()
        assert answer.num_objects.tolist() == [1, 3, 2]
        assert answer.frames.isfinite().all()


def test_an_unknown_count_is_inferred_from_the_bound(model: Model) -> None:
    frames, observed = tiny_frames(3, T), torch.tensor([GAP] * 3)
    answer = motes.interpolate(model, frames, observed)
    assert answer.count_probabilities is not None
    assert answer.count_probabilities.shape[0] == 3
    assert answer.count_probabilities.shape[1] >= MAX_OBJECTS
    torch.testing.assert_close(answer.count_probabilities.sum(1), torch.ones(3))
    assert torch.equal(answer.count_probabilities.argmax(1) + 1, answer.num_objects)
    assert_same(answer, motes.interpolate(model, frames, observed, answer.num_objects))


@pytest.mark.slow
@torch.no_grad()
def test_the_evidence_for_a_count_is_the_bound_averaged_over_draws(
    model: Model, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motes.queries.counting.UNSEEN_DRAWS", 0)  # for those see test_counting.py
    frames, observed = tiny_frames(2, T), torch.tensor([GAP] * 2)
    evidence = count_log_evidence(model, frames, observed, SEARCH)
    for count in range(1, MAX_OBJECTS + 1):
        counts = torch.full((2,), count)
        q = model.infer(frames, counts, observed, SEARCH)
        noise = torch.randn(100, 2, MAX_OBJECTS, T, 2, generator=generator)
        bounds = torch.stack(
            [terms_of(model, q, frames, counts, one, observed).weighted(1.0) for one in noise]
        )
        # A mean of 8 draws lies within 6 of its standard deviations but once in 1e8.
        limit = 6 * bounds.std(0) * (1 / 8 + 1 / 100) ** 0.5
        orders = math.lgamma(count + 1) if isinstance(q, GridPosterior) else 0.0
        assert ((evidence[:, count - 1] - bounds.mean(0) - orders).abs() <= limit).all()


def test_every_field_has_its_shape_and_type(model: Model) -> None:
    frames = tiny_frames(2, T)
    for answer in (
        motes.infer(model, frames, 2),
        motes.forecast(model, frames[:, :4], 2, horizon=T - 4),
        motes.interpolate(model, frames, GAP, 2),
        motes.sample(model, 2, 2, T),
    ):
        for name, trailing in PER_POSITION.items():
            assert getattr(answer, name).shape == (2, 2, T, *trailing), name
            assert getattr(answer, name).dtype == torch.float32, name
        for name in ("frames", "mean_frames"):
            assert getattr(answer, name).shape == (2, T, HEIGHT, WIDTH), name
            assert getattr(answer, name).dtype == torch.float32, name
            assert (getattr(answer, name) >= 0).all(), name
            assert (getattr(answer, name) <= 1).all(), name
        assert answer.component.shape == (2, 2)
        assert answer.component.dtype == torch.int64
        assert answer.observed.shape == (2, T)
        assert answer.observed.dtype == torch.bool
        assert answer.num_objects.tolist() == [2, 2]
        assert answer.count_probabilities is None
        assert not answer.frames.requires_grad
        assert not answer.positions.requires_grad


def test_covariances_are_symmetric_and_positive(model: Model) -> None:
    answer = motes.interpolate(model, tiny_frames(2, T), GAP, 3)
    for name in ("covariances", "pixel_covariances", "path_pixel_covariances"):
        value = getattr(answer, name)
        torch.testing.assert_close(value, value.mT, rtol=1e-5, atol=1e-6)
        assert (torch.linalg.eigvalsh(value.double()) > 0).all(), name


def test_unobserved_positions_vary_more_than_the_path_by_the_observation_noise(
    model: Model,
) -> None:
    answer = motes.interpolate(model, tiny_frames(1, T), GAP, 1)
    M = model.pixel_matrix.double()
    Sigma_A = model.dynamics.components().position_noise.detach()
    extra = (answer.pixel_covariances - answer.path_pixel_covariances)[0, 0, ~torch.tensor(GAP)]
    expected = (M @ Sigma_A @ M.T).float().expand_as(extra)
    torch.testing.assert_close(extra, expected, rtol=1e-4, atol=1e-4)


def test_component_probabilities_are_those_of_the_dense_joint(model: Model) -> None:
    frames, observed, count = tiny_frames(1, T), np.array(GAP), 2
    answer = motes.interpolate(model, frames, observed, count)
    with torch.no_grad():
        q = model.infer(frames, torch.tensor([count]), torch.tensor([GAP]), SEARCH)
    for n in range(count):
        track = q.means[0, n].double().numpy()
        weights, _ = component_moments(
            model, track, scales_of(q)[0, n], detected_of(q, observed)[n]
        )
        found = answer.component_probabilities[0, n].numpy()
        np.testing.assert_allclose(found, weights, rtol=1e-5, atol=1e-6)  # stored as float32
        assert int(answer.component[0, n]) == weights.argmax()


def test_the_component_of_a_sample_is_certain(model: Model) -> None:
    answer = motes.sample(model, 4, 2, T)
    chosen = answer.component_probabilities.take_along_dim(answer.component[..., None], 2)
    assert (chosen == 1).all()
    assert (answer.component_probabilities.sum(-1) == 1).all()


@pytest.mark.statistical
def test_frames_are_averages_over_the_posterior(model: Model, generator: torch.Generator) -> None:
    """Against draws of whole positions from dense moments, component by component."""
    frames, observed, count, draws = tiny_frames(1, T), np.array(GAP), 2, 2_000
    answer = motes.interpolate(model, frames, observed, count)
    with torch.no_grad():
        q = model.infer(frames, torch.tensor([count]), torch.tensor([GAP]), SEARCH)
    noise = torch.randn(draws, 1, MAX_OBJECTS, T, 2, generator=generator)
    positions = torch.cat([q.draw(one) for one in noise])
    normal = torch.randn(draws, count, T, 2, dtype=torch.float64, generator=generator)
    for n in range(count):
        track = q.means[0, n].double().numpy()
        seen = detected_of(q, observed)[n]
        weights, moments = component_moments(model, track, scales_of(q)[0, n], seen)
        chosen = torch.multinomial(
            torch.from_numpy(weights), draws * T, replacement=True, generator=generator
        ).reshape(draws, T)
        for t in range(T):
            if seen[t]:
                continue
            for k, (mean, cov) in enumerate(moments):
                drawn = mean[t] + normal[:, n, t].numpy() @ np.linalg.cholesky(cov[t]).T
                mine = chosen[:, t] == k
                positions[mine, n, t] = torch.from_numpy(drawn[mine.numpy()]).float()
    with torch.no_grad():
        present = torch.arange(MAX_OBJECTS)[None].expand(draws, -1) < count
        pictures = model.renderer(positions, present).sigmoid()
    # Two independent averages of pictures with this spread; 336 pixels, false alarm once in 1e6.
    limit = 6.5 * pictures.std(0) * (1 / draws + 1 / NUM_DRAWS) ** 0.5 + 1e-6
    assert ((answer.frames[0] - pictures.mean(0)).abs() <= limit).all()
    # and the picture of the mean is something else, which this test can tell apart
    assert ((answer.mean_frames[0] - pictures.mean(0)).abs() > limit).any()


def scales_of(q: Posterior) -> np.ndarray:
    return q.covariances().diagonal(dim1=-2, dim2=-1).sqrt().numpy()


def detected_of(q: Posterior, observed: np.ndarray) -> np.ndarray:
    """Return the frames in which each object of the first clip was detected."""
    if isinstance(q, GaussianPosterior):
        return np.broadcast_to(observed, (MAX_OBJECTS, T))
    assert q.detected is not None
    return q.detected[0].numpy()


def component_moments(
    model: Model, track: np.ndarray, scales: np.ndarray, observed: np.ndarray
) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """p(z = k | seen), and mean and covariance of each a_t under each component."""
    K = len(model.dynamics.logits)
    parts = [one_model(model.dynamics.components(), (K,), (k,)) for k in range(K)]
    logs = model.dynamics.log_weights().detach().numpy() + [
        log_density(part, track, observed) for part in parts
    ]
    moments = []
    for part in parts:
        mean, cov = posterior(part, track, observed)
        gain = gains(part, observed)
        wide = cov + (gain * scales.reshape(-1) ** 2 @ gain.T).reshape(cov.shape)
        blocks = [wide[t, :2, t, :2] + part.position_noise for t in range(len(track))]
        moments.append((mean[:, :2], np.stack(blocks)))
    weights = np.exp(logs - logs.max())
    return weights / weights.sum(), moments


def test_mean_frames_are_rendered_at_the_mean(model: Model) -> None:
    answer = motes.interpolate(model, tiny_frames(1, T), GAP, 2)
    with torch.no_grad():
        picture = model.renderer(answer.positions, torch.ones(1, 2, dtype=torch.bool)).sigmoid()
    torch.testing.assert_close(answer.mean_frames, picture, rtol=1e-5, atol=1e-6)


def test_the_seed_of_a_query_changes_the_frames_alone(model: Model) -> None:
    frames = tiny_frames(1, T)
    one, same, other = (motes.infer(model, frames, 2, seed=seed) for seed in (1, 1, 2))
    assert_same(one, same)
    assert_close(one, other)
    exact = isinstance(model.renderer, SpriteRenderer)  # without draws there is nothing to move
    assert torch.equal(one.frames, other.frames) == exact


def test_the_same_seed_samples_the_same_clips(model: Model) -> None:
    one, same, other = (motes.sample(model, 3, 2, T, seed=seed) for seed in (1, 1, 2))
    assert_same(one, same)
    assert not torch.equal(one.positions, other.positions)
    assert not one.observed.any()
    assert (one.covariances == 0).all()


def test_a_sample_moves_by_the_dynamics(model: Model) -> None:
    """The path steps by velocity and force, up to the noise of the state, and starts apart."""
    answer = motes.sample(model, 200, 1, 3, seed=0)
    M = model.pixel_matrix
    step = answer.path_pixels.diff(dim=2)[:, 0, 0]
    expected = answer.pixel_velocities[:, 0, 0] + M @ model.dynamics.force[:2].float().detach()
    Sigma_H = model.dynamics.components().state_noise[:2, :2].detach()
    spread = (M.double() @ Sigma_H @ M.double().T).diagonal().sqrt()
    # 400 gaps of a Gaussian: beyond 6 standard deviations once in 1e6
    assert ((step - expected).abs() <= 6 * spread).all()
    assert answer.positions[:, 0, 0].std(0).min() > 0.1
    assert set(answer.component.flatten().tolist()) == {0, 1}


def test_negative_variances_are_not_hidden(model: Model) -> None:
    answer = motes.infer(model, tiny_frames(1, T), 1)
    covariances = answer.pixel_covariances.clone()
    covariances[0, 0, 2, 0, 0] = -1e-3
    wrong = replace(answer, pixel_covariances=covariances)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in wrong.rows()]
    assert [t for t, row in enumerate(rows) if math.isnan(row["sd_x"])] == [2]
    assert all(row["sd_y"] > 0 for row in rows)


def test_the_table_has_the_promised_columns_and_rows(model: Model) -> None:
    answer = motes.interpolate(model, tiny_frames(3, T), GAP, torch.tensor([1, 3, 2]))
    table = answer.to_dataframe()
    names = "clip frame particle x y sd_x sd_y cov_xy vx vy observed seen".split()
    assert list(table.columns) == list(COLUMNS) == names
    assert len(table) == (1 + 3 + 2) * T
    assert not table.isna().any().any()
    for row in table.sample(10, random_state=0).itertuples():
        b, t, n = row.clip, row.frame, row.particle
        cov = answer.pixel_covariances[b, n, t]
        expected = [*answer.pixels[b, n, t], cov[0, 0].sqrt(), cov[1, 1].sqrt(), cov[0, 1]]
        given = [row.x, row.y, row.sd_x, row.sd_y, row.cov_xy]
        np.testing.assert_allclose(given, expected, rtol=1e-6)
        np.testing.assert_allclose([row.vx, row.vy], answer.pixel_velocities[b, n, t], rtol=1e-6)
        assert row.observed == GAP[t]
        assert row.seen == bool(answer.seen[b, n, t])
        assert not (row.seen and not row.observed)


def test_no_query_changes_the_global_random_state(model: Model) -> None:
    frames = tiny_frames(2, T)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    for answer in (
        motes.infer(model, frames),
        motes.forecast(model, frames, 2, horizon=2),
        motes.interpolate(model, frames, GAP, 2),
        motes.sample(model, 2, 2, T),
    ):
        answer.frames, answer.mean_frames  # noqa: B018 (drawn when asked)
        answer.to_dataframe()
    tiny_model()
    motes.cannonballs(2, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(numpy_before, after, strict=True))


def test_queries_do_not_record_gradients(model: Model) -> None:
    with torch.enable_grad():
        one = motes.interpolate(model, tiny_frames(1, T), GAP, 2)
        assert not one.frames.requires_grad
        assert not one.mean_frames.requires_grad


def test_objects_are_found_only_where_present_and_observed():
    model, frames = tiny_model(), tiny_frames(2, 6)
    observed = torch.tensor([True, True, False, True, False, True])
    answer = motes.interpolate(model, frames, observed, torch.tensor([1, 2]))
    assert answer.found.shape == (2, 2, 6)
    places, (height, width) = answer.pixels[1, 0], model.image_size
    corner = torch.tensor([width - 0.5, height - 0.5])
    inside = ((places >= -0.5) & (places <= corner)).all(-1)
    assert torch.equal(answer.found[1, 0], observed & inside)
    assert not answer.found[0, 1].any()
    assert not motes.sample(model, 1, 1, 4).found.any()


def test_a_query_that_does_not_fit_into_memory_is_refused_at_once(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motes.core.memory.free_bytes", lambda: 10_000_000)
    frames = tiny_frames(2, 4)
    small = motes.forecast(model, frames, 2, horizon=50)
    with pytest.raises(motes.InputError, match=r"2 clips of 10004 frames would take .* fewer"):
        motes.forecast(model, frames, 2, horizon=10_000)
    with pytest.raises(motes.InputError, match="sampling 100000 clips of 10000 frames"):
        motes.sample(model, 100_000, 2, 10_000)
    monkeypatch.setattr("motes.core.memory.free_bytes", lambda: 1000)
    for name in ("frames", "mean_frames"):
        with pytest.raises(motes.InputError, match="rendering 2 clips of 54 frames"):
            getattr(small, name)


def test_the_repr_of_an_answer_is_one_line(model: Model) -> None:
    answer = motes.forecast(model, tiny_frames(2, 4), torch.tensor([1, 2]), horizon=3)
    assert repr(answer) == "Answer(clips=2, objects=2, frames=7, observed=8 of 14)"
