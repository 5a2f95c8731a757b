"""The dynamics fitted to many tracks at once, when a run's small steps are over."""

import torch

from motes.core.axes import Bool, Float, Tensor
from motes.kalman import mixture
from motes.kalman.dynamics import LinearDynamics

ITERATIONS = 50


def fit_dynamics(
    dynamics: LinearDynamics, positions: Float[Tensor, "M T 2"], seen: Bool[Tensor, "M T"]
) -> None:
    """Moves all parameters to where they make these tracks likeliest, by L-BFGS.

    The steps of a run leave them as well as the last few batches tell them. [Choice 39]

    Args:
        dynamics: What is changed.
        positions: Drawn from q, in latent units: their mean log p(a) is all of the bound that
            depends on the dynamics.
        seen: Which of the positions count.

    Law: tracks do not become less likely (test_settling_makes_tracks_no_less_likely).
    """
    whole = seen.all(1)  # many, and one matrix serves them all

    def log_prior() -> Float[Tensor, ""]:
        total = mixture.log_prior(dynamics, positions[whole]).sum()
        if not bool(whole.all()):
            total = total + mixture.log_prior(dynamics, positions[~whole], seen[~whole]).sum()
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
        if not bool(log_prior() >= before):  # nor where it is no number
            for part, value in zip(dynamics.parameters(), start, strict=True):
                part.copy_(value)
