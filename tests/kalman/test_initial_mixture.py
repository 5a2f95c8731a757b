import itertools
import math

import torch

from motes.kalman.dynamics import LinearDynamics
from motes.kalman.initial_mixture import (
    InitialMixture,
    StateInformation,
    e_step,
    fit_mixture,
    initial_state_information,
)


def test_fit_mixture_recovers_clusters(generator: torch.Generator) -> None:
    counts, centres = (300, 100, 200), torch.tensor([[0.0, 0.0], [12.0, 3.0], [-2.0, 15.0]])
    factor = torch.tensor([[1.0, 0.0], [0.6, 0.5]], dtype=torch.float64)
    noise = torch.randn(sum(counts), 2, generator=generator, dtype=torch.float64)
    truth = centres.double().repeat_interleave(torch.tensor(counts), dim=0)
    # Points that are known up to a deviation of a millionth.
    precision = (1e12 * torch.eye(2, dtype=torch.float64)).expand(sum(counts), 2, 2)
    information = StateInformation(precision, 1e12 * (truth + noise @ factor.T))
    eye = torch.eye(2, dtype=torch.float64).expand(3, 2, 2)
    start = InitialMixture(torch.full((3,), 1 / 3), torch.zeros(3, 2).double(), 100 * eye)
    weights, means, covariances = fit_mixture(information, start)
    order = [int((means - centre).norm(dim=1).argmin()) for centre in centres]
    assert sorted(order) == [0, 1, 2]
    # Clusters more than ten deviations apart share no points: the weights are the proportions.
    expected = torch.tensor(counts).double() / sum(counts)
    torch.testing.assert_close(weights[order], expected, rtol=0, atol=1e-6)
    # Five standard errors: of a mean 1 / sqrt(100), of a covariance sqrt(2 / 100).
    assert (means[order] - centres).abs().max() < 5 / math.sqrt(100)
    assert (covariances - factor @ factor.T).abs().max() < 5 * math.sqrt(2 / 100)


def test_one_track_or_equal_tracks_give_a_valid_mixture() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    start = InitialMixture(
        torch.full((2,), 0.5).double(), torch.zeros(2, 2).double(), eye.expand(2, 2, 2)
    )
    for number in (1, 16):
        information = StateInformation(
            (50 * eye).expand(number, 2, 2), 50 * torch.ones(number, 2).double()
        )
        weights, means, covariances = fit_mixture(information, start)
        assert float(weights.sum()) == 1
        # Known to a deviation of 1 / sqrt(50 n).
        assert (means - 1).abs().max() < 5 / math.sqrt(50)
        assert torch.linalg.eigvalsh(covariances).min() > 0


def test_unobserved_tracks_leave_the_mixture_unchanged() -> None:
    dynamics = dynamics_with_initial_states([[-4.0, 0.0, 0.5, 0.3], [4.0, 1.0, -0.5, 0.3]])
    before = {name: part.clone() for name, part in dynamics.state_dict().items()}
    dynamics.fit_initial_state(torch.zeros(3, 5, 2), torch.zeros(3, 5, dtype=torch.bool))
    assert all(torch.equal(part, before[name]) for name, part in dynamics.state_dict().items())


def dynamics_with_initial_states(starts: list[list[float]]) -> LinearDynamics:
    dynamics = LinearDynamics(
        num_components=len(starts),
        sampling_period=1.0,
        state_noise=1e-4,
        position_noise=0.01,
        initial_spread=0.2,
        generator=torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        dynamics.initial_mean.copy_(torch.tensor(starts, dtype=torch.float64))
    return dynamics


def test_em_recovers_the_initial_states_of_tracks(
    generator: torch.Generator,
) -> None:
    starts = [[-4.0, 0.0, 0.5, 0.3], [4.0, 1.0, -0.5, 0.3]]
    source = dynamics_with_initial_states(starts)
    with torch.no_grad():
        source.logits.copy_(torch.tensor([0.75, 0.25]).log())
    component, _, positions = source.sample((40, 3), 8, generator)
    present = torch.arange(3) < torch.tensor([[1], [2], [3], [3]]).repeat(10, 1)
    dynamics = dynamics_with_initial_states([[0.5, 0.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0]])
    with torch.no_grad():
        dynamics.initial_factor.diagonal(dim1=1, dim2=2).fill_(math.log(5.0))
    before = {name: value.clone() for name, value in dynamics.state_dict().items()}
    unlikely = dynamics.track_log_density(positions[present]).mean()
    seen = torch.ones(positions[present].shape[:2], dtype=torch.bool)
    dynamics.fit_initial_state(positions[present], seen)
    components = dynamics.components()
    torch.linalg.cholesky(components.initial_covariance)  # raises unless positive definite
    order = components.initial_mean[:, 0].argsort()
    share = (component[present] == 0).double().mean()
    expected = torch.stack([share, 1 - share])
    torch.testing.assert_close(dynamics.log_weights().exp()[order], expected, rtol=0, atol=1e-6)
    # At least 20 tracks of each component, spread 0.2: five standard errors of a mean are 0.23, and
    # a variance of 0.04 is known to a third.
    assert (components.initial_mean[order] - torch.tensor(starts)).abs().max() < 0.23
    variance = components.initial_covariance.diagonal(dim1=1, dim2=2)
    assert ((variance > 0.015) & (variance < 0.09)).all()
    assert dynamics.track_log_density(positions[present]).mean() > unlikely + 3
    for name, value in dynamics.state_dict().items():
        refitted = name in ("logits", "initial_mean", "initial_factor")
        assert torch.equal(value, before[name]) != refitted, name


def two_components(generator: torch.Generator) -> tuple[LinearDynamics, torch.Tensor, torch.Tensor]:
    """Return dynamics with two components, tracks of others, and which frames are observed."""
    source = dynamics_with_initial_states([[-4.0, 0.0, 0.5, 0.3], [4.0, 1.0, -0.5, 0.3]])
    positions = source.sample((60,), 8, generator).positions
    seen = torch.rand(60, 8, generator=generator) < 0.6
    seen[0] = False  # a track without observations
    return (
        dynamics_with_initial_states([[-2.0, 0.0, 0.0, 0.0], [3.0, 0.5, 0.0, 0.0]]),
        positions,
        seen,
    )


def test_evidence_differs_from_the_filters_by_a_constant(generator: torch.Generator) -> None:
    dynamics, positions, seen = two_components(generator)
    information = initial_state_information(dynamics.components(), positions, seen)

    def constant() -> torch.Tensor:
        components = dynamics.components()
        mixture = InitialMixture(
            dynamics.log_weights().exp(), components.initial_mean, components.initial_covariance
        )
        evidence = e_step(information, mixture)[0].logsumexp(1)
        return dynamics.track_log_density(positions, seen) - evidence

    before = constant()
    with torch.no_grad():
        dynamics.logits.copy_(torch.tensor([0.2, 0.8]).log())
        dynamics.initial_mean.add_(torch.tensor([0.3, -0.2, 0.1, 0.4]))
        dynamics.initial_factor.diagonal(dim1=1, dim2=2).add_(0.4)
    # Sums of terms of the size of the precision, 1e2, times squared positions, 1e2, each rounded.
    tolerance = 1e4 * 8 * 16 * torch.finfo(torch.float64).eps
    torch.testing.assert_close(constant(), before, rtol=0, atol=tolerance)


def test_em_makes_tracks_no_less_likely(generator: torch.Generator) -> None:
    dynamics, positions, seen = two_components(generator)
    likely = [dynamics.track_log_density(positions, seen).mean()]
    for _ in range(3):
        dynamics.fit_initial_state(positions, seen)
        likely.append(dynamics.track_log_density(positions, seen).mean())
    assert likely[1] > likely[0] + 1
    # What is added to covariances, a ten-thousandth of the spread of all, may cost as much.
    assert min(late - early for early, late in itertools.pairwise(likely[1:])) > -1e-3
