"""From a model and clips whose truth is known to one record of scores."""

from collections.abc import Callable
from typing import Any

import torch

from motes import metrics
from motes.data import Clips
from motes.errors import InputError
from motes.model import Model
from motes.queries import forecast, infer, interpolate
from motes.shapes import Bool, Tensor

NUM_CONTEXT = 5  # frames seen before a forecast, and on either side of a gap, as in the paper
BATCH = 50

Scores = dict[str, float]


def evaluate(
    model: Model, clips: Clips, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Scores for each number of objects, and the recovered force.

    Args:
        model: Any model of the clips' size.
        clips: With truth; made from a seed that training never used.
        progress: Told after every batch how many clips are done.
    """
    if clips.num_objects is None or clips.positions is None or clips.clean is None:
        raise InputError("these clips carry no truth; evaluate needs positions and clean paths")
    if len(clips.frames[0]) <= 2 * NUM_CONTEXT:
        raise InputError(f"clips of {len(clips.frames[0])} frames; evaluate needs 11 or more")
    done, by_count = 0, {}
    for count in sorted(set(clips.num_objects.tolist())):
        chosen = clips[(clips.num_objects == count).nonzero()[:, 0]]
        parts = []
        for start in range(0, len(chosen), BATCH):
            parts.append(_batch_scores(model, chosen[start : start + BATCH], count))
            done += len(chosen[start : start + BATCH])
            progress(done)
        sizes = torch.tensor([part.pop("clips") for part in parts])
        by_count[str(count)] = {
            "clips": int(sizes.sum()),
            **{name: _pool(name, parts, sizes) for name in parts[0]},
        }
    force = model.pixel_matrix.double() @ acceleration(model)
    return {"by_count": by_count, "force_px_per_frame2": force.tolist()}


def _batch_scores(model: Model, clips: Clips, count: int) -> Scores:
    """Scores of clips with the same number of objects."""
    assert clips.positions is not None
    assert clips.clean is not None
    device = model.device
    frames = clips.frames.float().to(device)
    noisy, clean = clips.positions[:, :count].to(device), clips.clean[:, :count].to(device)
    T = frames.shape[1]
    time = torch.arange(T, device=device)
    all_seen = time >= 0
    future = time >= NUM_CONTEXT
    gap = future & (time < T - NUM_CONTEXT)

    seen = infer(model, frames, count)
    order = metrics.best_order(seen.pixels, noisy)
    pixels = metrics.reorder(seen.pixels, order)
    path = metrics.reorder(seen.path_pixels, order)
    ahead = forecast(model, frames[:, :NUM_CONTEXT], count, horizon=T - NUM_CONTEXT)
    between = interpolate(model, frames, ~gap, count)
    hidden = frames[:, NUM_CONTEXT:]
    scores: Scores = {
        "clips": len(frames),
        "tracked": float(metrics.tracked(pixels, noisy).float().mean()),
        "noisy_rmse": metrics.rmse(pixels, noisy),
        "path_rmse": metrics.rmse(path, clean),
        "infer_coverage90": _cover(seen.pixels, seen.pixel_covariances, noisy, all_seen),
        "path_coverage90": _cover(seen.path_pixels, seen.path_pixel_covariances, clean, all_seen),
        "forecast_loss": float(metrics.picture_loss(ahead.frames[:, NUM_CONTEXT:], hidden).mean()),
        "forecast_loss_of_mean": float(
            metrics.picture_loss(ahead.mean_frames[:, NUM_CONTEXT:], hidden).mean()
        ),
    }
    for name, answer, mask in (("forecast", ahead, future), ("interpolation", between, gap)):
        order = metrics.best_order(answer.path_pixels, clean)
        path = metrics.reorder(answer.path_pixels, order)
        scores[f"{name}_rmse"] = metrics.rmse(path, clean, mask)
        scores[f"{name}_coverage90"] = _cover(answer.pixels, answer.pixel_covariances, noisy, mask)
    return scores


def _cover(
    estimate: Tensor, covariances: Tensor, truth: Tensor, frames: Bool[Tensor, " T"]
) -> float:
    order = metrics.best_order(estimate, truth)
    return metrics.coverage(
        metrics.reorder(estimate, order), metrics.reorder(covariances, order), truth, frames
    )


def _pool(name: str, parts: list[Scores], sizes: Tensor) -> float:
    """The score of all clips from those of batches: squares are averaged for an RMSE."""
    values = torch.tensor([part[name] for part in parts], dtype=torch.float64)
    weights = sizes / sizes.sum()
    if name.endswith("rmse"):
        return float((values.square() * weights).sum().sqrt())
    return float((values * weights).sum())


def acceleration(model: Model) -> Tensor:
    """The change of displacement from frame to frame that the learned dynamics imply, latent.

    Displacement over a frame is delta v + u_position, and v grows by u_velocity a frame.
    """
    force = model.dynamics.force.detach()
    return model.dynamics.log_delta.exp().detach() * force[2:]
