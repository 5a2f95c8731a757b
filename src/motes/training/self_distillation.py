"""Self-distillation: a model's own tracks of single objects as pseudo-labels for several objects.

No other model and no labels are used. A run has three stages:

1. The bound is maximised on the clips that show one object, where identities cannot be confused.
2. The model infers the tracks of these clips, and its dynamics are fitted to them. Single-object
   clips are combined to clips of several objects, whose pseudo-labels are the tracks of their
   members in initial-state component order. The networks are trained on them by distillation.
   With `hidden_clips`, further combined clips have hidden frames as queries meet them: those that
   a model expects, given the tracks before a gap or on both sides of it.
3. The bound is maximised on all clips; in the end the dynamics are fitted once more.

Assumptions beyond the paper's: objects move independently, a frame of several objects is the union
of the white pixels of their own frames, the number of objects of each clip is known, and some clips
show one object.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from motes.config import RunConfig, to_json
from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError
from motes.core.files import write_text
from motes.data.clips import PackedFrames, pack
from motes.models.model import Model
from motes.models.paper import PaperSettings
from motes.models.pixel_map import align_pixel_map, is_visible, rendered_centroids
from motes.models.protocols import GaussianPosterior
from motes.training import distributed
from motes.training.distillation import LabelBatch, join_labels
from motes.training.inputs import Dataset, TrainingData
from motes.training.step import fit_dynamics

FIRST_STAGE = "single_object"  # folder of the first stage, inside that of the run
BATCH = 1_000  # clips inferred at a time
RENDERED = 20_000  # positions rendered at a time
FITTED_TRACKS = 2_000  # tracks that the dynamics are fitted to
FIRST_BATCH = 40  # clips in a step of the first stage, at most
COMBINED = 2  # combined clips for each training clip
GAPS = 16  # different gaps of clips with hidden frames
OUTLIERS = 0.02  # share of the least likely tracks, which the second fit leaves out


class Tracks(NamedTuple):
    """Inferred positions of single objects, in latent units."""

    means: Float[Tensor, "M T 2"]
    scales: Float[Tensor, "M T 2"]


class CombinedClips(NamedTuple):
    """Clips of several objects, each the union of single-object clips."""

    video: PackedFrames
    num_objects: Int[Tensor, " M"]
    members: Int[Tensor, "M N"]  # single-object clips; entries of absent objects have no meaning


class HiddenClips(NamedTuple):
    """Single-object clips with hidden frames; clip m has gap m modulo `GAPS`."""

    clips: TrainingData
    shown: Bool[Tensor, "M T"]  # False: hidden, the frame is what a model expects


class PseudoLabelled(NamedTuple):
    """What the second stage of a run starts from."""

    model: Model  # of the first stage, with fitted dynamics
    clips: TrainingData  # combined clips with pseudo-labels
    fitted: bool  # False: a fit of the dynamics failed, and they are those of the first stage


def single_objects(clips: TrainingData) -> TrainingData:
    """Return the clips that show one object.

    Raises:
        InputError: there are none, or frames are not black and white.
    """
    single = (clips.num_objects == 1).nonzero()[:, 0]
    if len(single) == 0 or not isinstance(clips.video, PackedFrames):
        raise InputError(
            f"got {len(single)} clips of one object, frames as {type(clips.video).__name__}; "
            "self-distillation combines black-and-white clips of one object: add such clips, or "
            "use another preset"
        )
    return clips._replace(video=clips.video[single], num_objects=clips.num_objects[single])


def first_stage(
    folders: Sequence[Path], configs: Sequence[RunConfig], dataset: Dataset
) -> list[tuple[Path, RunConfig, Dataset]]:
    """Return folders, configurations and clips of the first stage; create missing folders."""
    singles = Dataset(single_objects(dataset.training), single_objects(dataset.held_out))
    stage = [
        (folder / FIRST_STAGE, single_object_config(config), singles)
        for folder, config in zip(folders, configs, strict=True)
    ]
    for folder, config, _ in stage if distributed.is_main() else []:
        if not (folder / "config.json").is_file():
            folder.mkdir(exist_ok=True)
            write_text(folder / "config.json", to_json(config))
    return stage


def single_object_config(config: RunConfig) -> RunConfig:
    """Return the configuration of the first stage: one object, the default scales of q."""
    assert config.single_object_schedule is not None
    default = PaperSettings()
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, num_objects=(1,)),
        model=dataclasses.replace(
            config.model, scale_floor=default.scale_floor, initial_scale=default.initial_scale
        ),
        schedule=config.single_object_schedule,
        single_object_schedule=None,
        hidden_clips=0.0,
        batch_size=min(config.batch_size, FIRST_BATCH),
    )


def combine(
    singles: PackedFrames, counts: Sequence[int], num_clips: int, seed: int, groups: int = 1
) -> CombinedClips:
    """Return clips of several objects made of single-object clips, drawn with replacement.

    Args:
        singles: Clips of one object.
        counts: Numbers of objects, all equally likely.
        num_clips: How many clips to make.
        seed: Of the draws.
        groups: Members of a clip have the same index modulo this number.

    Law: a frame is the union of its members' frames (test_combined_frames_are_unions).
    """
    random = np.random.Generator(np.random.Philox(key=(seed, groups)))
    device = singles.bits.device
    number = torch.from_numpy(random.choice(np.array(counts), size=num_clips)).to(device)
    chosen = random.integers(len(singles) // groups, size=(num_clips, max(counts)))
    if groups > 1:
        chosen = groups * chosen + random.integers(groups, size=(num_clips, 1))
    members = torch.from_numpy(chosen).to(device)
    bits = singles.bits[members[:, 0]]
    for n in range(1, max(counts)):
        present = (number > n).nonzero()[:, 0]
        bits[present] |= singles.bits[members[present, n]]
    return CombinedClips(PackedFrames(bits, singles.height, singles.width), number, members)


@torch.no_grad()
def infer_tracks(model: Model, clips: TrainingData) -> Tracks:
    """Return the positions that a model infers from single-object clips."""
    parts = []
    for indices in torch.arange(len(clips.num_objects), device=model.device).split(BATCH):
        q: Any = model.infer(clips.frames(indices), clips.num_objects[indices])
        parts.append((q.means[:, 0], q.scales[:, 0]))
    return Tracks(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))


@torch.no_grad()
def straighten(model: Model, positions: Float[Tensor, "M T 2"]) -> Float[Tensor, "M T 2"]:
    """Return positions in coordinates that are an affine map of pixels.

    The learned latent plane may be curved: an object is not rendered exactly where the affine pixel
    map takes its position. Each visible position is replaced by the one that the map takes to the
    rendered centroid.
    """
    straight = []
    inverse = torch.linalg.inv(model.pixel_matrix)
    for points in positions.flatten(0, 1).split(RENDERED):
        centroids, mass = rendered_centroids(model, points)
        moved = (centroids - model.pixel_offset) @ inverse.T
        straight.append(torch.where(is_visible(mass)[:, None], moved, points))
    return torch.cat(straight).view_as(positions)


def fit_to_tracks(dynamics: Any, tracks: Tracks, seed: int) -> bool:
    """Fit all parameters of the dynamics to tracks of single objects, by EM and L-BFGS, twice.

    The second fit leaves out the least likely tracks, of objects that were lost. On the CPU in
    float64. Return False, with the dynamics as they were, if a fit meets a singular matrix.
    """
    generator = torch.Generator().manual_seed(seed)
    number = min(FITTED_TRACKS, len(tracks.means))
    some = torch.linspace(0, len(tracks.means) - 1, number).round().long()
    means, scales = (part[some.to(part.device)].cpu().double() for part in tracks)
    positions = means + scales * torch.randn(means.shape, generator=generator).double()
    observed = torch.ones(positions.shape[:2], dtype=torch.bool)
    fitted = copy.deepcopy(dynamics).cpu()
    try:
        fitted.fit_initial_state(positions, observed)
        fit_dynamics(fitted, positions, observed)
        with torch.no_grad():
            likelihood = fitted.track_log_density(positions)
        kept = likelihood >= likelihood.quantile(OUTLIERS)
        fitted.fit_initial_state(positions[kept], observed[kept])
        fit_dynamics(fitted, positions[kept], observed[kept])
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return False
    dynamics.load_state_dict(fitted.state_dict())
    return True


def infer_labels(
    model: Model, singles: TrainingData, num_frames: int, seed: int
) -> tuple[Tracks, bool]:
    """Fit a model's dynamics to its tracks of single objects.

    Returns:
        These tracks, straightened, and whether both fits succeeded.
    """
    tracks = infer_tracks(model, singles)
    fitted = fit_to_tracks(model.dynamics, tracks, seed)
    align_pixel_map(model, num_frames)
    straight = tracks._replace(means=straighten(model, tracks.means))
    return straight, fit_to_tracks(model.dynamics, straight, seed) and fitted


def combine_labels(dynamics: Any, tracks: Tracks, combined: CombinedClips) -> GaussianPosterior:
    """Return the tracks of the members of combined clips in initial-state component order."""
    number, members = combined.num_objects, combined.members
    present: Bool[Tensor, "M N"] = (
        torch.arange(members.shape[1], device=members.device) < number[:, None]
    )
    batches = torch.arange(len(number), device=members.device).split(BATCH)
    return join_labels(
        dynamics,
        (
            LabelBatch(tracks.means[members[some]], tracks.scales[members[some]], present[some])
            for some in batches
        ),
    )


def draw_gaps(num_frames: int, seed: int) -> Bool[Tensor, "gaps T"]:
    """Return which frames are shown in clips with hidden frames; the first and the last are."""
    random = np.random.Generator(np.random.Philox(key=(seed, 2)))
    edge = max(num_frames // 10, 1)
    first = random.integers(edge, max(num_frames // 3, edge + 1), size=(GAPS, 1))
    after = random.integers(2 * num_frames // 3, num_frames - edge + 1, size=(GAPS, 1))
    time = np.arange(num_frames)
    return torch.from_numpy((time < first) | (time >= np.minimum(after, num_frames - 1)))


@torch.no_grad()
def hide_frames(model: Model, singles: TrainingData, seed: int) -> HiddenClips:
    """Return single-object clips in which gaps show what a model expects, as in queries.

    With even gaps these are the frames of the prediction from before the gap, as when a clip is
    read for the first time, with odd ones those of the track smoothed from both sides.

    Law: shown frames are unchanged (test_hidden_frames_show_the_expected_object).
    """
    tracks, frames = infer_tracks(model, singles), singles.video
    assert isinstance(frames, PackedFrames)
    gaps = draw_gaps(tracks.means.shape[1], seed).to(model.device)
    hidden = torch.empty_like(frames.bits)
    for gap, shown in enumerate(gaps):
        own = torch.arange(gap, len(frames), GAPS, device=model.device)
        before = shown.cumprod(0).bool()
        known = (shown if gap % 2 else before).expand(len(own), 1, -1)
        means, scales = (part[own][:, None] for part in tracks)
        smoothed = model.dynamics.smooth(means, known, scales.double().square())
        states = smoothed.select(smoothed.log_weights.argmax(-1))
        expected = model.dynamics.emit(states).mean.to(means.dtype)
        drawn = torch.cat(
            [
                model.render(part, torch.ones_like(part[:, :, 0, 0], dtype=torch.bool)) > 0.5
                for part in expected.split(BATCH)
            ]
        )
        seen = frames.unpack(own) > 0.5
        hidden[own] = pack(torch.where(shown[:, None, None], seen, drawn)).bits.to(hidden.device)
    clips = singles._replace(video=dataclasses.replace(frames, bits=hidden))
    index = torch.arange(len(frames), device=model.device) % GAPS
    return HiddenClips(clips, gaps[index])


def label_hidden(model: Model, tracks: Tracks, hidden: HiddenClips) -> Tracks:
    """Return labels of clips and of those with hidden frames; there, of what these show."""
    imagined = infer_tracks(model, hidden.clips)
    shown = hidden.shown[..., None]
    means = torch.where(shown, tracks.means, straighten(model, imagined.means))
    scales = torch.where(shown, tracks.scales, imagined.scales)
    return Tracks(torch.cat([tracks.means, means]), torch.cat([tracks.scales, scales]))


def add_hidden(combined: CombinedClips, hidden: CombinedClips, num_singles: int) -> CombinedClips:
    """Return all clips; members with hidden frames come after the other single-object clips."""
    bits = torch.cat([combined.video.bits, hidden.video.bits])
    return CombinedClips(
        dataclasses.replace(combined.video, bits=bits),
        torch.cat([combined.num_objects, hidden.num_objects]),
        torch.cat([combined.members, num_singles + hidden.members]),
    )


def label_combined_clips(
    models: Sequence[Model], configs: Sequence[RunConfig], dataset: Dataset
) -> list[PseudoLabelled]:
    """Return for each run the combined clips with its own pseudo-labels.

    Clips are the same for all runs, hidden frames are those that the first model expects.
    """
    singles, data = single_objects(dataset.training), configs[0].data
    assert isinstance(singles.video, PackedFrames)
    counts, number = data.num_objects, COMBINED * len(dataset.training.num_objects)
    labels = for_each(
        models,
        lambda k: infer_labels(models[k], singles, data.num_frames, configs[k].seed),
    )
    for model in models:
        distributed.broadcast(model.dynamics)
    combined = {0.0: combine(singles.video, counts, number, data.seed)}
    hidden = None
    for share in sorted({config.hidden_clips for config in configs} - {0.0}):
        hidden = hide_frames(models[0], singles, data.seed) if hidden is None else hidden
        assert isinstance(hidden.clips.video, PackedFrames)
        more = combine(hidden.clips.video, counts, round(share * number), data.seed, GAPS)
        combined[share] = add_hidden(combined[0.0], more, len(singles.num_objects))
    labelled = []
    for model, config, (tracks, fitted) in zip(models, configs, labels, strict=True):
        clips = combined[config.hidden_clips]
        if hidden is not None and config.hidden_clips > 0:
            tracks = label_hidden(model, tracks, hidden)
        own = singles._replace(
            video=clips.video,
            num_objects=clips.num_objects,
            pseudo_labels=combine_labels(model.dynamics, tracks, clips),
        )
        labelled.append(PseudoLabelled(model, own, fitted))
    return labelled


def for_each(models: Sequence[Model], task: Callable[[int], Any]) -> list[Any]:
    """Return the results of a task for each model; in threads with a GPU: fits are on the CPU."""
    workers = len(models) if models[0].device.type == "cuda" else 1
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(task, range(len(models))))


@torch.no_grad()
def continue_from(model: Model, first: Model) -> None:
    """Copy the weights of the first stage; initial states of several objects stay as drawn."""
    own, theirs = model.state_dict(), first.state_dict()
    fits = {name: part for name, part in theirs.items() if own[name].shape == part.shape}
    model.load_state_dict(fits, strict=False)
    initial: Tensor = model.get_parameter("inference.initial")
    initial[0, 0] = theirs["inference.initial"][0, 0]


def fit_final_dynamics(
    models: Sequence[Model], configs: Sequence[RunConfig], clips: TrainingData
) -> list[bool]:
    """Fit the dynamics of trained models once more, to their tracks of single objects.

    Returns:
        For each model whether the fit succeeded; if not, its dynamics are as before.
    """
    singles = single_objects(clips)
    fitted = for_each(
        models,
        lambda k: fit_to_tracks(
            models[k].dynamics, infer_tracks(models[k], singles), configs[k].seed
        ),
    )
    for model in models:
        distributed.broadcast(model.dynamics)
    return fitted
