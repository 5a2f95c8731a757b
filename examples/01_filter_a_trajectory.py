"""Smooth a noisy trajectory with missing observations, and forecast it.

Usage: python examples/01_filter_a_trajectory.py
"""

import torch

from motes import kalman
from motes.kalman.model import LGSSM, draw_path

NUM_FRAMES = 30


def falling_ball() -> LGSSM:
    """Return a model of a ball under gravity, y up, one time unit per frame."""
    identity, zero = torch.eye(2).double(), torch.zeros(2, 2).double()
    return LGSSM(
        transition=torch.cat([torch.cat([identity, identity], 1), torch.cat([zero, identity], 1)]),
        force=torch.tensor([0.0, -0.025, 0.0, -0.05]).double(),
        emission=torch.cat([identity, zero], 1),
        state_noise=torch.zeros(4, 4).double(),
        position_noise=0.5 * identity,
        initial_mean=torch.tensor([5.0, 10.0, 1.0, 1.0]).double(),
        initial_covariance=torch.diag(torch.tensor([4.0, 4.0, 0.1, 0.1])).double(),
    )


def main() -> None:
    model = falling_ball()
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(NUM_FRAMES, 6, dtype=torch.float64, generator=generator)
    truth, positions = draw_path(model, noise)

    time = torch.arange(NUM_FRAMES)
    observed = (time < 10) | ((time >= 15) & (time < 20))
    positions[~observed] = torch.nan  # values at unobserved frames are ignored

    past = kalman.filter(model, positions, observed)
    track = kalman.smooth(model, positions, observed)
    evidence = kalman.log_likelihood(model, positions, observed)
    print(f"log-likelihood of the observations: {evidence:.2f}")
    print("frame  obs.   true y   filtered y        smoothed y")
    for t in range(0, NUM_FRAMES, 4):
        filtered, smoothed = past.means[t, 1], track.means[t, 1]
        sd_filtered = past.covariances[t, 1, 1].sqrt()
        sd_smoothed = track.covariances[t, 1, 1].sqrt()
        print(
            f"{t:5d}  {'yes' if observed[t] else ' - '}  {truth[t, 1]:7.2f}  "
            f"{filtered:7.2f} +- {sd_filtered:.2f}   {smoothed:7.2f} +- {sd_smoothed:.2f}"
        )


if __name__ == "__main__":
    main()
