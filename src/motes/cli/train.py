"""`motes train`."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import torch
from tyro.conf import arg

from motes.cli.io import keep_preparation
from motes.cli.options import tell
from motes.cli.progress import training_bar
from motes.config import to_json
from motes.core.errors import InputError
from motes.models.checkpoint import find_model, read_config
from motes.training import distributed
from motes.training import train as training
from motes.training.dataset import fit_sprite_size
from motes.training.distillation import with_teacher
from motes.training.initialization import with_initial_model
from motes.training.presets import PRESETS, STRUCTURED_PRESETS
from motes.training.presets import preset as find_preset
from motes.training.run import Outcome


def train(
    preset: Literal["small", "robust", "paper", "taught", "video", "covered", "pictures", "smoke"]
    | None = None,
    family: Literal["paper", "structured"] | None = None,
    data: Path | None = None,
    out: Path | None = None,
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
    as_json: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Learns from clips alone: which objects move, how they look and by which law.

    Example: motes train --preset small --out runs/small

    Example: motes train --data clips.npz --from runs/other --out runs/mine

    Example: motes train --preset taught --data clips.npz --teacher runs/mine --out runs/networks

    Example: motes train --resume runs/small

    Args:
        preset: small (two cores, minutes), robust (ours, GPU), paper (as written), taught (after
            lessons of the structured family, GPU), video (your own, two cores, minutes), covered
            (the same where something hides objects for a while), pictures (grey or colour frames
            as a still camera took them, two cores, minutes), smoke (seconds); default: video for
            your own clips, else small.
        family: the paper's networks, or structured: a glyph and a tracker with the dynamics in it;
            default: the one that has the preset; of both, structured for your own clips.
        data: npz file of your own clips, as motes prepare writes it, or any with frames and
            num_objects; default: the paper's cannonballs.
        out: folder of the run; must be new or empty.
        begin_with: a model (a shipped name or a run folder) whose glyph and law of motion learning
            begins with.
        teacher: a model of the structured family (a shipped name or a run folder) that gives the
            lessons of preset taught; default: cannonballs-structured.
        seed: of weights, batches and noise.
        replicas: so many seeds side by side; the best held-out bound is kept.
        iterations: stretch or squeeze the preset's schedule to so many.
        roll_backs: if something is not finite, go back to the last checkpoint with half the
            learning rates, so many times; then, or without one, stop and say so.
        resume: go on with the run in this folder.
        device: cpu or cuda.
        tensorboard: also write TensorBoard events (pip install 'motes[tensorboard]').
        dry_run: print the resolved configuration and stop.
        as_json: print one JSON line instead of a sentence.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError("device is cuda, but PyTorch sees no GPU here; use --device cpu")
    if begin_with is not None:
        family = family or read_config(find_model(begin_with)).model.family
    family = family or _usual_family(preset, own_clips=data is not None)
    preset = preset or ("video" if data is not None and family == "structured" else "small")
    config = dataclasses.replace(find_preset(family, preset), seed=seed)
    if data is not None:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(data)))
        config = fit_sprite_size(config) if preset in ("video", "covered") else config
    if begin_with is not None:
        config = with_initial_model(config, begin_with)
    config = with_teacher(config, teacher) if teacher is not None else config
    if iterations is not None:
        config = dataclasses.replace(config, schedule=config.schedule.stretched(iterations))
    if dry_run:
        print(to_json(training.fitted(config)), end="")
        return
    if out is not None and _restarted() and (out / "config.json").is_file():
        out, resume = None, out
    if (out is None) == (resume is None):
        raise InputError("give either --out FOLDER for a new run or --resume FOLDER to go on")
    events = (out or resume) if tensorboard else None
    with _process_group(device) as own_device, training_bar(events) as report:
        silent = not distributed.is_main()
        if resume is not None:
            outcome = training.resume(
                resume, device=own_device, roll_backs=roll_backs, report=report
            )
        else:
            assert out is not None
            outcome = training.train(
                config,
                out,
                device=own_device,
                replicas=replicas,
                roll_backs=roll_backs,
                report=report,
            )
    if not silent:
        keep_preparation(outcome.folder)
        _tell(outcome, as_json)


def _usual_family(preset: str | None, own_clips: bool) -> Literal["paper", "structured"]:
    """The family of a run if nobody says: the preset's, where one alone has it."""
    if preset is not None and (preset in PRESETS) != (preset in STRUCTURED_PRESETS):
        return "paper" if preset in PRESETS else "structured"
    return "structured" if own_clips else "paper"


def _tell(outcome: Outcome, as_json: bool) -> None:
    """Says how training ended and what to do next."""
    record = {"verb": "train", **outcome._asdict(), "folder": str(outcome.folder)}
    state = "finished" if outcome.finished else "stopped and saved"
    advice = f"ask it: motes infer CLIPS --model {outcome.folder}"
    if not outcome.finished:
        advice = f"go on: motes train --resume {outcome.folder}"
    tell(
        record,
        as_json,
        f"{state} at step {outcome.step}: held-out bound {outcome.held_out_bound:.1f} nats a clip, "
        f"pixel map residual {outcome.pixel_map_residual:.2f} px. {advice}",
    )


def _restarted() -> bool:
    """Whether torchrun has started this run again, because one of its processes had ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextlib.contextmanager
def _process_group(device: str) -> Iterator[str]:
    """Joins the other processes where torchrun started several; yields this one's device."""
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        yield device
        return
    on_gpu = device.startswith("cuda")
    store = distributed.join("nccl" if on_gpu else "gloo")
    try:
        yield f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else device
        distributed.leave(store)
    except RuntimeError as error:
        if not distributed.is_lost_connection(error):
            raise
        raise OSError(
            "another process of this run has ended or cannot be reached; what was saved is whole: "
            "start all of them again with --resume"
        ) from error
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
