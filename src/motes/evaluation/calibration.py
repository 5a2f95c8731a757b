"""Calibration of error bars: one scale of q's covariances for each number of objects.

The ELBO hardly penalises a q that is too narrow, so the paper's inference network is
over-confident where it errs. The reference is a sprite model of the same videos, which computes its
posterior from likelihood maps; the scale is chosen so that the network's 90 % regions hold 90 % of
that posterior. No truth is used: both models learn from videos alone. [Choice 28]
"""

from pathlib import Path

import torch

from motes.core.axes import Float, Tensor
from motes.core.errors import InputError
from motes.data import Clips, cannonballs, load_clips
from motes.evaluation.evaluate import BATCH, by_count
from motes.evaluation.metrics import best_order, reorder, squared_distance, squared_radius
from motes.models.checkpoint import load_with_config, save_model
from motes.models.model import Model
from motes.queries import SEARCH

LEVEL = 0.9  # probability of the regions that are calibrated
REFERENCE = "cannonballs-structured"
NUM_CLIPS = 600


@torch.no_grad()
def calibrate(model: Model, clips: Clips, reference: Model) -> Float[Tensor, " Nmax"]:
    """Store in the model the scales of its covariances, and return them.

    Args:
        model: Of the paper's family.
        clips: Training clips with known numbers of objects; the scale of a number that no clip
            has stays as it is.
        reference: A sprite model of the same videos.

    Law: a q that is too narrow by a factor gets that factor
    (test_a_q_that_is_too_narrow_is_widened_by_as_much).
    """
    for count, own in by_count(clips).items():
        batches = (clips[part].frames.float() for part in own.split(BATCH))
        squares = torch.cat([_squared_distances(model, reference, b, count) for b in batches])
        quantile = squares.flatten().quantile(LEVEL)
        model.calibration_scale[count - 1] = quantile / squared_radius(LEVEL)
    return model.calibration_scale


def calibrate_run(
    run: str | Path,
    data: Path | None = None,
    out: Path | None = None,
    reference: str | Path = REFERENCE,
    num_clips: int = NUM_CLIPS,
    *,
    half: bool = False,
) -> Float[Tensor, " Nmax"]:
    """Calibrate the model of a run, write it, and return the scales.

    Args:
        run: A run folder or the name of a shipped model, of the paper's family.
        data: Clips with known numbers of objects; default: the run's own training clips.
        out: Folder of the calibrated model; default: the run folder itself.
        reference: A run folder or the name of a shipped sprite model of the same videos.
        num_clips: How many clips to use, at most.
        half: Store network weights in half precision, as shipped models are.

    Raises:
        InputError: The model needs no calibration, or model, reference and clips do not match.
    """
    model, config = load_with_config(run)
    if config.family != "paper":
        raise InputError(
            f"{run} computes its error bars from the frames; calibrate is for the paper's family"
        )
    if out is None and not Path(run).is_dir():
        raise InputError(f"{run} is a shipped model, which stays as it is; give an --out folder")
    sprites, _ = load_with_config(reference)
    if sprites.image_size != model.image_size:
        raise InputError(
            f"the reference {reference} is for frames of {sprites.image_size} pixels, {run} for "
            f"{model.image_size}; give a --reference trained on the same clips"
        )
    path = data if data is not None or config.data.path is None else Path(config.data.path)
    if path is not None:
        clips = load_clips(path)[:num_clips]
    else:
        size, d = (config.data.height, config.data.width), config.data
        clips = cannonballs(num_clips, d.num_objects, d.num_frames, size, d.seed)
    if clips.num_objects is None:
        raise InputError(f"{path} has no numbers of objects; calibrate needs them")
    if tuple(clips.video.shape[2:4]) != model.image_size:
        raise InputError(
            f"clips of {tuple(clips.video.shape[2:4])} pixels; {run} expects {model.image_size}"
        )
    scales = calibrate(model, clips, sprites)
    folder = Path(run) if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, model, config, half=half)
    return scales


def _squared_distances(
    model: Model, reference: Model, frames: Float[Tensor, "B T height width"], count: int
) -> Float[Tensor, "B N T"]:
    """Return squared Mahalanobis distances, under the model's q, of draws of the reference."""
    everything = torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
    counts = torch.full((len(frames),), count, device=frames.device)
    q, other = (m.infer(frames, counts, everything, SEARCH) for m in (model, reference))
    noise = torch.randn(other.means.shape, generator=torch.Generator().manual_seed(0))
    drawn = reference.to_pixels(other.draw(noise.to(frames)))[:, :count]
    pixels, to_pixels = model.to_pixels(q.means)[:, :count], model.pixel_matrix
    covariances = to_pixels @ q.covariances()[:, :count] @ to_pixels.mT
    order = best_order(pixels, drawn)
    return squared_distance(reorder(pixels, order), reorder(covariances, order), drawn)
