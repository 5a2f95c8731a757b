"""What figures show of a model, as arrays on disk: drawn later, by who has no model."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from motes.core.axes import Float, Tensor
from motes.core.files import atomic_path
from motes.data import Clips
from motes.evaluation.evaluate import NUM_CONTEXT, gap_mask
from motes.models.model import Model
from motes.models.pixel_map import drawn_centroids, shows
from motes.queries import forecast, infer, interpolate

NUM_EXAMPLES = 15  # clips, the first ones of the test: examples that nobody picked
GRID = 9  # nodes on a side of the latent grid
GRID_BORDER = 2.0  # pixels that stay free around it: a ball's radius
NUM_VISITED = 600  # true positions under the grid
KEPT = ("positions", "pixels", "path_pixels", "pixel_covariances", "path_pixel_covariances")


def collect(model: Model, clips: Clips) -> dict[str, np.ndarray]:
    """The answers to all questions about the first clips, and the latent grid."""
    some = clips[:NUM_EXAMPLES]
    frames, counts, num_frames = some.frames.float(), some.num_objects, some.video.shape[1]
    answers = {
        "infer": infer(model, frames, counts),
        "forecast": forecast(model, frames[:, :NUM_CONTEXT], counts, num_frames - NUM_CONTEXT),
        "interpolation": interpolate(model, frames, gap_mask(num_frames), counts),
    }
    found: dict[str, np.ndarray] = {}
    for question, answer in answers.items():
        for name in KEPT:
            found[f"{question}_{name}"] = _half(getattr(answer, name))
        found[f"{question}_mean_frames"] = _levels(answer.mean_frames)
    found["forecast_frames"] = _levels(answers["forecast"].frames)
    return found | latent_grid(model, clips)


@torch.no_grad()
def latent_grid(model: Model, clips: Clips) -> dict[str, np.ndarray]:
    """One object drawn at latent positions that should be a grid in pixels."""
    assert clips.positions is not None
    height, width = model.image_size
    x, y = (torch.linspace(GRID_BORDER, side - 1 - GRID_BORDER, GRID) for side in (width, height))
    expected = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(-1, 2)
    latent = torch.linalg.solve(model.pixel_matrix, (expected - model.pixel_offset).T).T
    centroids, mass = drawn_centroids(model, latent)
    centroids[~shows(mass)] = torch.nan
    slots = torch.zeros(1, model.max_objects, len(latent), 2)
    slots[0, 0] = latent
    tiles = model.renderer(slots, model.present(torch.tensor([1])))[0].sigmoid()
    visited = clips.positions.reshape(-1, 2)
    visited = visited[~visited.isnan().any(-1)]
    thin = max(1, len(visited) // NUM_VISITED)

    def nodes(values: Tensor) -> Tensor:
        square: Tensor = values.unflatten(0, (GRID, GRID))
        return square

    return {
        "grid_tiles": _levels(nodes(tiles)),
        "grid_centroids": _half(nodes(centroids)),
        "grid_expected": _half(nodes(expected)),
        "visited": _half(visited[::thin]),
    }


def save_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Writes a compressed npz file atomically, in a folder that is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _half(values: Float[Tensor, "..."]) -> np.ndarray:
    halved: np.ndarray = values.detach().cpu().numpy().astype(np.float16)
    return halved


def _levels(probabilities: Float[Tensor, "..."]) -> np.ndarray:
    levels: np.ndarray = (255 * probabilities).round().to(torch.uint8).cpu().numpy()
    return levels
