"""A quick model of the recordings that a query is about, for a query without a model."""

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from motes.cli import batch
from motes.cli.gather import gather_clips
from motes.cli.prepare import SHORTEST, Cutting
from motes.cli.terminal import training_bar
from motes.core.errors import InputError

if TYPE_CHECKING:
    from motes.cli.queries import Options

STEPS = 120  # less than half of the preset's
MAX_FRAMES = 30  # of a clip
SOURCE = "source.json"  # in the folder: what the model was made from


def quick_model(videos: Sequence[Path], options: "Options", folder: Path) -> Path:
    """Train a small sprite model on videos, and return its run folder.

    The folder holds the clips, the run and what they were made from; the model is used again for
    the same videos and options.
    """
    from motes.cli.train import store_preparation
    from motes.queries.quality import Quality
    from motes.training import train as training
    from motes.training.inputs import fit_sprite_size
    from motes.training.presets import PRESETS

    settings = (options.num_objects, options.start, options.end, options.source_fps)
    source = {"key": [batch.job_key(path, settings) for path in videos]}
    run = folder / "run"
    if folder.exists():
        if not (folder / SOURCE).is_file():
            raise InputError(
                f"a quick model would be made in {folder}, which exists; give --model, or remove it"
            )
        if json.loads((folder / SOURCE).read_text("utf-8")) == source and _is_finished(run):
            print(f"motes: using the quick model of before, {run}", file=sys.stderr)
            return run
        shutil.rmtree(folder)
    print(
        "motes: no --model, so a quick one is trained on the recording itself, in about a minute; "
        f"for better numbers see motes prepare and motes train ({run})",
        file=sys.stderr,
    )
    began = time.monotonic()
    folder.mkdir()
    (folder / SOURCE).write_text(json.dumps(source), "utf-8")
    workers = batch.Workers(options.processes.jobs, options.processes.cluster)
    clips, _ = gather_clips(videos, folder / "clips.npz", _cutting(videos, options), workers)
    config = replace(PRESETS["sprites-video"], seed=0)
    config = replace(config, data=replace(config.data, path=str(clips)))
    config = fit_sprite_size(config).stretched(STEPS)
    with training_bar(None) as report:
        training.train(config, run, report=report)
    store_preparation(run)
    quality = Quality.load(run)
    words = "" if quality is None else f"; quality {quality}"
    print(f"motes: trained in {time.monotonic() - began:.0f} s: {run}{words}", file=sys.stderr)
    return run


def _is_finished(run: Path) -> bool:
    from motes.models.checkpoint import read_config
    from motes.training.train import saved_step

    try:
        return saved_step(run) >= read_config(run).schedule.iterations
    except InputError:
        return False


def _cutting(videos: Sequence[Path], options: "Options") -> Cutting:
    """Return how clips are cut: short ones, and more of them, where a recording is short."""
    from motes.video import open_video

    lengths = []
    for path in videos:
        try:
            lengths.append(open_video(path).num_frames)
        except InputError:
            continue  # its query will say why
    frames = sum(length or 1000 for length in lengths)
    length = min(max(frames // 3, SHORTEST), MAX_FRAMES)
    return Cutting(
        start=options.start,
        end=options.end,
        source_fps=options.source_fps,
        num_frames=length,
        stride=max(length // (4 if frames < 10 * MAX_FRAMES else 2), 1),
        num_objects=options.num_objects,
    )
