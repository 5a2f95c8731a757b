"""Store what the figures show of a model: answers about the first test clips, the latent grid.

Usage: python -m experiments.paper_figures.stored_examples NAME
           experiments/results_table/NAME.npz
       python -m experiments.paper_figures.stored_examples --swap
           experiments/paper_from_scratch/model experiments/paper_figures/swap.npz
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from motes.core.axes import Float, Tensor
from motes.core.files import atomic_path
from motes.data import Clips, cannonballs
from motes.evaluation.evaluate import NUM_CONTEXT, query_masks
from motes.evaluation.learned import latent_grid
from motes.models.checkpoint import load_with_config
from motes.models.model import Model
from motes.queries import forecast, infer, interpolate

NUM_CLIPS, TEST_SEED = 600, 1_000_000  # those of `motes evaluate`
NUM_SWAP = 1000  # clips of two balls among which one that swaps is looked for
NUM_EXAMPLES = 15  # the first test clips, without selection
KEPT = ("positions", "pixels", "path_pixels", "pixel_covariances", "path_pixel_covariances")


def collect(model: Model, clips: Clips) -> dict[str, np.ndarray]:
    """Return the answers to all questions about the first clips, and the latent grid."""
    some = clips[:NUM_EXAMPLES]
    frames, counts, num_frames = some.frames.float(), some.num_objects, some.video.shape[1]
    answers = {
        "infer": infer(model, frames, counts),
        "forecast": forecast(model, frames[:, :NUM_CONTEXT], counts, num_frames - NUM_CONTEXT),
        "interpolation": interpolate(
            model, frames, query_masks(num_frames)["interpolation"], counts
        ),
    }
    found: dict[str, np.ndarray] = {}
    for question, answer in answers.items():
        for name in KEPT:
            found[f"{question}_{name}"] = _half(getattr(answer, name))
        found[f"{question}_mean_frames"] = _levels(answer.mean_frames)
    found["forecast_frames"] = _levels(answers["forecast"].frames)
    grid = latent_grid(model, clips)
    return found | {
        "grid_tiles": _levels(torch.from_numpy(grid.tiles)),
        "grid_centroids": _half(torch.from_numpy(grid.centroids)),
        "grid_expected": _half(torch.from_numpy(grid.expected)),
        "visited": _half(torch.from_numpy(grid.visited)),
    }


def swapped_clip(model: Model, clips: Clips) -> dict[str, np.ndarray]:
    """Return a clip of two balls whose inferred positions swap, and what the dynamics generate.

    The clip in which exchanging the two balls from some frame on brings most. Generated positions
    continue the first five frames.
    """
    assert clips.positions is not None
    batches = [clips.frames[part].float() for part in torch.arange(len(clips)).split(100)]
    pixels = torch.cat([infer(model, batch, 2).pixels for batch in batches])
    clip = first_swap(pixels.numpy(), clips.positions.numpy())
    frames, num_frames = clips.frames[clip : clip + 1].float(), clips.video.shape[1]
    ahead = forecast(model, frames[:, :NUM_CONTEXT], 2, num_frames - NUM_CONTEXT)
    return {
        "truth": clips.positions[clip].numpy(),
        "inferred": pixels[clip].numpy(),
        "generated": ahead.pixels[0].numpy(),
        "frame_size": np.array(clips.video.shape[2:4]),
        "clip": np.array(clip),
    }


def first_swap(inferred: np.ndarray, true: np.ndarray) -> int:
    """Return the clip in which swapping the two balls half-way would bring most."""
    gains = []
    for pixels, truth in zip(inferred, true, strict=True):
        straight = ((pixels - truth) ** 2).sum(-1).sum(0)
        crossed = ((pixels[::-1] - truth) ** 2).sum(-1).sum(0)
        whole = min(straight.sum(), crossed.sum())
        parts = np.minimum(
            straight.cumsum() + crossed.sum() - crossed.cumsum(),
            crossed.cumsum() + straight.sum() - straight.cumsum(),
        )
        gains.append(whole - parts.min())
    return int(np.argmax(gains))


def save_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write a compressed npz file atomically; the folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _half(values: Float[Tensor, "..."]) -> np.ndarray:
    halved: np.ndarray = values.detach().cpu().numpy().astype(np.float16)
    return halved


def _levels(probabilities: Float[Tensor, "..."]) -> np.ndarray:
    levels: np.ndarray = (255 * probabilities).round().to(torch.uint8).cpu().numpy()
    return levels


def main() -> None:
    """Collect and store the arrays of one model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="name of a shipped model, or a run folder")
    parser.add_argument("out", type=Path, help="npz file to write")
    parser.add_argument("--swap", action="store_true", help="a clip whose two balls swap")
    arguments = parser.parse_args()
    model, config = load_with_config(arguments.model)
    data = config.data
    counts, size = sorted(set(data.num_objects)), (data.height, data.width)
    if arguments.swap:
        clips = cannonballs(NUM_SWAP, 2, data.num_frames, size, TEST_SEED)
        save_arrays(arguments.out, swapped_clip(model, clips))
        return
    clips = cannonballs(NUM_CLIPS, counts, data.num_frames, size, TEST_SEED)
    save_arrays(arguments.out, collect(model, clips))


if __name__ == "__main__":
    main()
