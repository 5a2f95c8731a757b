import torch

from motes.kalman import dense
from motes.kalman.dynamics import LinearDynamics


def test_position_prior_gives_the_same_density(generator):
    """Values and gradients, with components that differ only in the initial state."""
    dynamics = LinearDynamics(num_components=3, generator=generator)
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator).double()
    positions = torch.randn(4, 1, 6, 2, generator=generator, dtype=torch.float64)
    positions.requires_grad_()
    model = dynamics.components()
    expected, _ = dense.log_likelihood_dense(model, positions, None)
    ours = dense.position_prior(model, 6).log_density(positions)
    # Float64 and covariances of condition below 1e4: 1e-16 * 1e4, some hundred terms.
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    cotangent = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    leaves = [positions, *(p for n, p in dynamics.named_parameters() if n != "logits")]
    torch.testing.assert_close(
        torch.autograd.grad(ours, leaves, cotangent, retain_graph=True),
        torch.autograd.grad(expected, leaves, cotangent),
        rtol=1e-8,
        atol=1e-8,
    )


def test_tracks_that_share_a_mask_have_the_density_of_each_alone(generator):
    """Values and gradients: five tracks with two distinct masks, interleaved."""
    dynamics = LinearDynamics(num_components=2, generator=generator)
    model = dynamics.components()
    positions = torch.randn(5, 1, 6, 2, dtype=torch.float64, generator=generator)
    positions.requires_grad_()
    masks = torch.rand(2, 6, generator=generator) < 0.6
    observed = masks[[1, 0, 0, 1, 0]][:, None]
    together, _ = dense.log_likelihood_dense(model, positions, observed)
    alone = torch.stack([
        dense.log_likelihood_dense(model, track, mask[0])[0]
        for track, mask in zip(positions, observed, strict=True)
    ])  # fmt: skip
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn(alone.shape, generator=generator, dtype=torch.float64)
    leaves = [positions, *(p for n, p in dynamics.named_parameters() if n != "logits")]
    pairs = (
        torch.autograd.grad(value, leaves, cotangent, retain_graph=True)
        for value in (together, alone)
    )
    for ours, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
