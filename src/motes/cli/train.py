"""`motes train`: train a model, alone or in several processes."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from motes.cli import batch
from motes.cli.options import HERE, Data, Json, Out, Processes, ProcessOptions
from motes.cli.prepare import Cutting
from motes.cli.terminal import print_result, print_warnings, training_bar
from motes.core.errors import InputError

if TYPE_CHECKING:
    from motes.training.train import Outcome


def train(
    processes: ProcessOptions = HERE,
    preset: str | None = None,
    family: Literal["paper", "structured"] | None = None,
    data: Data[tuple[Path, ...]] = (),
    out: Out[Path | None] = None,
    begin_with: Annotated[str | None, arg(name="from")] = None,
    teacher: str | None = None,
    seed: int = 0,
    replicas: int = 1,
    iterations: int | None = None,
    roll_backs: int = 0,
    resume: Path | None = None,
    device: str = "cpu",
    tensorboard: bool = False,
    dry_run: bool = False,
    as_json: Json = False,
) -> None:
    """Train a model on unlabelled clips.

    Example: motes train --preset paper-small --out runs/small

    Example: motes train --data clips.npz --from runs/other --out runs/mine

    Example: motes train --data monday/ 'tuesday/*.mp4' --out runs/rig

    Example: motes train --preset paper-distilled --data clips.npz --teacher runs/mine -o runs/net

    Example: motes train --resume runs/small

    Args:
        processes: where several videos are prepared.
        preset: networks of the paper: paper (as published, GPU), paper-curriculum (GPU),
            paper-distilled (from a sprite model, GPU), paper-scratch (self-distillation, GPU),
            paper-scratch-small (the same on two cores), paper-small (minutes on two cores),
            paper-smoke (seconds); sprites: sprites, sprites-small, sprites-video (your own video),
            sprites-occluded (the same with occlusion), sprites-smoke; layers (grey or colour
            frames of a still camera); default: sprites-video with --data, else paper-small.
        family: deprecated, the preset implies it; selects between equal preset names of version
            0.1 (small, robust, smoke).
        data: clip file: npz from motes prepare, or any with frames and num_objects; or videos,
            which are prepared first; several, folders and patterns are merged into OUT-clips.npz;
            default: the paper's cannonballs.
        out: output folder: the new run; must be new or empty.
        begin_with: shipped model or run folder to initialize sprite and dynamics from.
        teacher: shipped model or run folder that gives the pseudo-labels for distillation; default:
            cannonballs-structured.
        seed: random seed of weights, batches and noise.
        replicas: number of seeds to train in parallel; the best held-out bound is kept.
        iterations: number of iterations; the schedule of the preset is scaled to it.
        roll_backs: times that training may return to the last checkpoint with half the learning
            rates after a non-finite value; then it stops.
        resume: folder of a run to continue.
        device: cpu or cuda.
        tensorboard: also write TensorBoard events (pip install 'motes[tensorboard]').
        dry_run: print the resolved configuration and stop.
        as_json: print one JSON line instead of text.
    """
    from motes.config import to_json
    from motes.core.device import check_device
    from motes.training import train as training
    from motes.training.distillation import with_teacher
    from motes.training.inputs import fit_sprite_size
    from motes.training.presets import PRESETS
    from motes.training.step import with_initial_model

    check_device(device)
    name = _preset_name(preset, family, own_clips=bool(data), initial_model=begin_with)
    config = dataclasses.replace(PRESETS[name], seed=seed)
    if data:
        path = _clip_file(data, out, processes)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(path)))
        if name in ("sprites-video", "sprites-occluded"):
            config = fit_sprite_size(config)
    if begin_with is not None:
        config = with_initial_model(config, begin_with)
    if teacher is not None:
        config = with_teacher(config, teacher)
    if iterations is not None:
        config = config.stretched(iterations)
    if dry_run:
        print(to_json(training.fit_run_config(config)), end="")
        return
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))  # by torchrun
    if out is not None and restarts > 0 and (out / "config.json").is_file():
        out, resume = None, out
    if (out is None) == (resume is None):
        raise InputError("give either --out FOLDER for a new run or --resume FOLDER")
    events = (out or resume) if tensorboard else None
    with _process_group(device) as own_device, training_bar(events) as report:
        options: dict[str, Any] = dict(device=own_device, roll_backs=roll_backs, report=report)
        if resume is not None:
            outcome = training.resume(resume, **options)
        else:
            assert out is not None
            outcome = training.train(config, out, replicas=replicas, **options)
    if os.environ.get("RANK", "0") == "0":  # of the processes that torchrun starts
        store_preparation(outcome.folder)
        _print_outcome(outcome, as_json)


def _preset_name(
    preset: str | None, family: str | None, *, own_clips: bool, initial_model: str | None
) -> str:
    """Return the name of the preset, chosen by what is trained on or from if none is given."""
    from motes.models.checkpoint import find_model, read_config
    from motes.training.presets import OLD_NAMES, PRESETS, find_name

    if initial_model is not None and family is None:
        own = read_config(find_model(initial_model)).family
        family = "paper" if own == "paper" else "structured"
        if preset is None and own == "layers":
            return "layers"
    if preset is None:
        sprites = family != "paper" if own_clips else family == "structured"
        return ("sprites-video" if own_clips else "sprites-small") if sprites else "paper-small"
    if family is None and own_clips and ("structured", preset) in OLD_NAMES:
        family = "structured"
    elif family is not None and preset in PRESETS and initial_model is not None:
        family = None  # taken from the initial model, not given
    return find_name(preset, family)


def _clip_file(data: tuple[Path, ...], out: Path | None, processes: Processes) -> Path:
    """Return the clip file to train on, made from videos or several files if need be."""
    from motes.cli.gather import gather_clips
    from motes.video.recordings import are_many

    if not are_many(data) and data[0].suffix.lower() in (".npz", ".npy"):
        return data[0]
    if out is None or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            "videos and several clip files are merged by one process that has an --out FOLDER; "
            "make one clip file with motes prepare first"
        )
    made = out.with_name(f"{out.name}-clips.npz")
    made.parent.mkdir(parents=True, exist_ok=True)
    workers = batch.Workers(processes.jobs, processes.cluster)
    path, results = gather_clips(data, made, Cutting(), workers)
    if failed := batch.failures(results):
        print_warnings(f"left out {name}: {why}" for name, why in failed.items())
    return path


def store_preparation(folder: Path) -> None:
    """Store how the clips of a run were made from a video, so that queries prepare videos alike."""
    from motes.models.checkpoint import read_config
    from motes.video.clips import store_video_map

    path = read_config(folder).data.path
    if path is not None:
        store_video_map(folder, Path(path))


def _print_outcome(outcome: "Outcome", as_json: bool) -> None:
    """Print how training ended and the next command."""
    from motes.queries.quality import Quality

    quality = Quality.load(outcome.folder) if outcome.finished else None
    record = {"verb": "train", **outcome._asdict(), "folder": str(outcome.folder)}
    if quality is not None:
        record["quality"] = quality.record()
    state = "finished" if outcome.finished else "stopped and saved"
    advice = f"query it: motes infer CLIPS --model {outcome.folder}"
    if not outcome.finished:
        advice = f"continue: motes train --resume {outcome.folder}"
    print_result(
        record,
        as_json,
        f"{state} at step {outcome.step}: held-out bound {outcome.held_out_bound:.1f} nats per "
        f"clip, pixel map residual {outcome.pixel_map_residual:.2f} px. {advice}"
        + ("" if quality is None else f"\nquality: {quality}"),
    )


@contextlib.contextmanager
def _process_group(device: str) -> Iterator[str]:
    """Join the process group if torchrun started several processes; yield this one's device."""
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        yield device
        return
    import torch

    from motes.training import distributed

    on_gpu = device.startswith("cuda")
    store = distributed.join("nccl" if on_gpu else "gloo")
    try:
        yield f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else device
        distributed.leave(store)
    except RuntimeError as error:
        if not distributed.is_lost_connection(error):
            raise
        raise OSError(
            "another process of this run has ended or cannot be reached; the last checkpoint is "
            "intact: start all processes again with --resume"
        ) from error
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
