"""A final fit of the dynamics to many tracks at once."""

from typing import Any

import torch

from motes.core.axes import Bool, Float, Tensor

ITERATIONS = 50


def fit_dynamics(
    dynamics: Any, positions: Float[Tensor, "M T 2"], observed: Bool[Tensor, "M T"]
) -> None:
    """Maximise the likelihood of tracks over all parameters of the dynamics, by L-BFGS.

    Stochastic steps leave the parameters as well determined as the last few batches do.
    [Choice 39]

    Args:
        dynamics: Changed in place.
        positions: Drawn from q, in latent units: their mean log p(a) is the part of the bound that
            depends on the dynamics.
        observed: Which of the positions count.

    Law: tracks do not become less likely (test_fitting_makes_tracks_no_less_likely).
    """
    whole = observed.all(1)  # these share one matrix

    def log_prior() -> Float[Tensor, ""]:
        total: Tensor = dynamics.track_log_density(positions[whole]).sum()
        if not bool(whole.all()):
            part = dynamics.track_log_density(positions[~whole], observed[~whole])
            total = total + part.sum()
        return total / len(positions)

    def loss() -> Float[Tensor, ""]:
        optimizer.zero_grad()
        value = -log_prior()
        value.backward()
        return value.detach()

    before, start = log_prior().detach(), [part.detach().clone() for part in dynamics.parameters()]
    optimizer = torch.optim.LBFGS(
        dynamics.parameters(), max_iter=ITERATIONS, line_search_fn="strong_wolfe"
    )
    optimizer.step(loss)
    with torch.no_grad():
        if not bool(log_prior() >= before):  # false for NaN too
            for part, value in zip(dynamics.parameters(), start, strict=True):
                part.copy_(value)
