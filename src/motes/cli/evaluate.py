"""`motes evaluate | calibrate | figures | bench`: score, correct, draw and time models."""

import dataclasses
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from motes.cli.options import Data, Json, Out
from motes.cli.terminal import bar, print_result
from motes.core.errors import InputError
from motes.core.files import check_output_paths

if TYPE_CHECKING:
    from motes.config import DataConfig, RunConfig
    from motes.data import Clips
    from motes.models.model import Model

NUM_TRAINING = 600  # training clips of a baseline
NUM_ALIGNING = 90  # training clips to which the affine map is fitted
REPEATS = 5  # timings of `motes bench`; the median counts


def evaluate(
    model: Positional[str] = "cannonballs-48",
    data: Annotated[Path | None, arg(aliases=("-d", "--clips"))] = None,
    num_clips: int = 600,
    seed: int = 1_000_000,
    out: Out[Path | None] = None,
    report: Path | None = None,
    baselines: Annotated[Path, arg(aliases=("--results",))] = Path("experiments/results_table"),
    device: str = "cpu",
    as_json: Json = False,
) -> None:
    """Score a model or a baseline on clips with known true positions.

    Example: motes evaluate cannonballs-48 --out cannonballs-48.json

    Example: motes evaluate limit --out limit.json

    Example: motes evaluate cannonballs-48 --report report.html

    Args:
        model: shipped model or run folder, or a baseline: limit, kalman, trackpy, disks-trackpy,
            known-gravity, constant-velocity, constant-image.
        data: clip file: npz with true positions; default: new cannonballs of the model's size.
        num_clips: number of clips to make.
        seed: random seed of the clips to make; training uses other seeds.
        out: output file: JSON record of all scores.
        report: HTML to write: table, figures, and the clips with the largest errors.
        baselines: folder of stored records to compare with in the report; ignored if missing.
        device: cpu or cuda.
        as_json: print one JSON line instead of text.
    """
    import torch

    from motes.config import DataConfig
    from motes.core.environment import environment
    from motes.core.files import write_json, write_text
    from motes.evaluation.baselines import BASELINES
    from motes.evaluation.labels import read_records
    from motes.models.checkpoint import load_with_config
    from motes.output.evaluation_report import evaluation_page

    check_output_paths(out, report)
    loaded = None if model in BASELINES else load_with_config(model, device=device)
    if loaded is None and report is not None:
        raise InputError(f"{model} is a baseline; --report describes models")
    config = DataConfig() if loaded is None else loaded[1].data
    if data is None and seed == config.seed:
        raise InputError(f"seed {seed} made the training clips of {model}; give another seed")
    clips = _read_or_make_clips(model, loaded and loaded[0], config, data, num_clips, seed)
    record: dict[str, Any] = {
        "model": model,
        "test_seed": None if data is not None else seed,
        "frame_size": list(clips.video.shape[2:4]),
        "num_frames": clips.video.shape[1],
        "environment": environment(torch.device(device if loaded is not None else "cpu")),
        **(_score_baseline(model, clips) if loaded is None else _score_model(*loaded, clips)),
    }
    if out is not None:
        write_json(out, record)
    if loaded is not None and report is not None:
        # The command contains no path of this machine.
        command = f"motes evaluate {Path(model).name} --report {report.name}"
        page = evaluation_page(loaded[0].cpu(), clips, record, read_records(baselines), command)
        write_text(report, page)
    print_result(record, as_json, score_table(record))


def calibrate(
    model: Positional[str],
    data: Data[Path | None] = None,
    out: Out[Path | None] = None,
    reference: str = "cannonballs-structured",
    num_clips: int = 600,
    as_json: Json = False,
) -> None:
    """Correct the error bars of a model of the paper, without true positions.

    Example: motes calibrate runs/small --reference runs/sprites-small

    Args:
        model: shipped model or run folder, of the paper's family.
        data: clip file: npz with frames and num_objects; default: the training clips of the model.
        out: output folder: the calibrated model; default: the run folder itself.
        reference: sprite model of the same clips, whose posterior gives the scale of the error
            bars.
        num_clips: number of clips to use, at most.
        as_json: print one JSON line instead of text.
    """
    from motes.evaluation.calibration import calibrate_run

    scales = calibrate_run(model, data, out, reference, num_clips).tolist()
    folder = model if out is None else str(out)
    record = {"verb": "calibrate", "model": model, "covariance_scales": scales, "out": folder}
    shown = ", ".join(f"{scale:.2f}" for scale in scales)
    text = f"covariances of 1, 2, ... objects are scaled by {shown}: {folder}"
    print_result(record, as_json, text)


def figures(
    model: Positional[str] = "cannonballs-48",
    data: Data[Path | None] = None,
    num_clips: int = 60,
    seed: int = 1_000_000,
    out: Out[Path] = Path("figures"),
    only: tuple[str, ...] = (),
    as_json: Json = False,
) -> None:
    """Draw figures of the predictions and scores of a model.

    Example: motes figures --out figures

    Example: motes figures runs/small --only strip horizon

    Args:
        model: shipped model or run folder.
        data: clip file: npz with true positions; default: new cannonballs of the model's size.
        num_clips: number of clips to make.
        seed: random seed of the clips to make; training uses other seeds.
        out: output folder: PNG and PDF files; created if missing.
        only: strip, trajectories, overlays, horizon, reliability, initial-states or latent-grid;
            default: all.
        as_json: print one JSON line instead of text.
    """
    from motes.models.checkpoint import load_with_config
    from motes.output.figures import FIGURES, figures_of

    loaded, config = load_with_config(model)
    clips = _read_or_make_clips(model, loaded, config.data, data, num_clips, seed)
    with bar("figures", len(only or FIGURES)) as progress:
        name = Path(model).name
        drawn = figures_of(loaded, clips, out, name=name, only=only, progress=progress)
    record = {"verb": "figures", "figures": drawn, "out": str(out)}
    print_result(record, as_json, f"drew {len(drawn)} figures as PNG and PDF: {out}")


def bench(
    device: str = "cpu", smoke: bool = False, out: Out[Path | None] = None, as_json: Json = False
) -> None:
    """Time a training step and queries on this machine.

    Example: motes bench --out times.json

    Args:
        device: cpu or cuda.
        smoke: run everything at a tiny size; the times have no meaning.
        out: output file: JSON record of the times.
        as_json: print one JSON line instead of text.
    """
    from motes.core.device import check_device
    from motes.core.environment import environment
    from motes.core.files import write_json
    from motes.models.checkpoint import shipped_names

    place = check_device(device)
    check_output_paths(out)
    times = {"training step, preset small": _time_training(device, smoke)}
    for name in shipped_names():
        times |= _time_queries(name, device, 2 if smoke else 20)
    record = {"verb": "bench", "environment": environment(place), "seconds": times}
    if out is not None:
        write_json(out, record)
    lines = [f"{1e3 * seconds:10.1f} ms  {name}" for name, seconds in times.items()]
    print_result(record, as_json, "\n".join(lines))


def _score_model(model: "Model", config: "RunConfig", clips: "Clips") -> dict[str, Any]:
    """Return all scores of a model."""
    from motes.evaluation.evaluate import compare_physics, score_gaps
    from motes.evaluation.evaluate import evaluate as score
    from motes.evaluation.iwae import score_bounds
    from motes.evaluation.predictor import ModelPredictor

    data, predictor, some = config.data, ModelPredictor(model), min(len(clips), NUM_ALIGNING)
    training = None if data.path is not None else _new_clips(data, NUM_ALIGNING, data.seed)
    with bar("scoring", len(clips)) as progress:
        record = score(predictor, clips, training, progress)
    with bar("other gaps", some) as progress:
        record["gaps"] = score_gaps(predictor, clips, progress)
    with bar("bounds and counts", some) as progress:
        record["beliefs"] = score_bounds(model, clips, progress)
    return {"training_seed": config.seed, **record, **compare_physics(model.cpu(), clips)}


def _score_baseline(name: str, clips: "Clips") -> dict[str, Any]:
    """Return all scores of a baseline, fitted to other clips of the same world."""
    from motes.config import DataConfig
    from motes.data import draw_clips
    from motes.evaluation.baselines import baseline, find_world
    from motes.evaluation.evaluate import evaluate as score
    from motes.evaluation.evaluate import score_gaps
    from motes.training.inputs import counts_for_training

    if clips.in_colour:
        raise InputError(f"{name} needs binary or grey clips; these are in colour")
    world, usual = find_world(name, clips), DataConfig()
    counts = sorted({*usual.num_objects, *counts_for_training(clips, "the clip file").tolist()})
    predictor = baseline(name, world, draw_clips(world, NUM_TRAINING, counts, usual.seed))
    with bar("scoring", len(clips)) as progress:
        record = score(predictor, clips, progress=progress)
    with bar("other gaps", min(len(clips), NUM_ALIGNING)) as progress:
        record["gaps"] = score_gaps(predictor, clips, progress)
    return record


def _new_clips(data: "DataConfig", num_clips: int, seed: int) -> "Clips":
    """Return cannonballs like the training clips of a run."""
    from motes.data import cannonballs

    counts = sorted(set(data.num_objects))  # training clips may repeat some numbers
    return cannonballs(num_clips, counts, data.num_frames, (data.height, data.width), seed)


def _read_or_make_clips(
    name: str,
    model: "Model | None",
    config: "DataConfig",
    path: Path | None,
    num_clips: int,
    seed: int,
) -> "Clips":
    """Return the clips of a file, or new ones like the training clips of the model."""
    from motes.data import load_clips

    if path is not None:
        return load_clips(path)
    if model is not None and not model.black_and_white:
        raise InputError(f"{name} was trained on grey or colour frames; give such clips by --data")
    return _new_clips(config, num_clips, seed)


def score_table(record: dict[str, Any]) -> str:
    """Return the scores as text: one column with standard errors per number of objects."""
    columns, errors = record["by_count"], record["standard_errors"]
    lines = [f"{'objects':28s}" + "".join(f"{count:>19s}" for count in columns)]
    for name in next(iter(columns.values())):
        cells = "".join(
            f"{column[name]:10.4g}"
            + (f" ± {_without_rounding(errors[n][name]):<6.2g}" if name in errors[n] else " " * 9)
            for n, column in columns.items()
        )
        lines.append(f"{name:28s}{cells}")
    if "force_px_per_frame2" in record:
        force = ", ".join(f"{value:.4f}" for value in record["force_px_per_frame2"])
        lines.append(f"recovered force {force} px/frame^2 (x right, y down)")
    return "\n".join(lines)


def _without_rounding(error: float) -> float:
    """Return an error of scores near 1, or 0 if all clips have the same score but for rounding."""
    return 0.0 if error < 1e-12 else error


def _time_training(device: str, smoke: bool) -> float:
    """Return the seconds of a training step."""
    from motes.training import train as training
    from motes.training.presets import PRESETS

    config, steps = PRESETS["paper-smoke" if smoke else "paper-small"], 2 if smoke else 20
    data = dataclasses.replace(config.data, num_clips=100, num_held_out=8)
    schedule = config.schedule.stretched(REPEATS * steps)
    config = dataclasses.replace(config, data=data, schedule=schedule, log_every=steps)
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        training.train(config, Path(folder) / "run", device=device, report=lines.append)
    speeds: list[float] = [line["iterations_per_second"] for line in lines if "bound" in line]
    return 1 / statistics.median(speeds)


def _time_queries(name: str, device: str, num_clips: int) -> dict[str, float]:
    """Return the seconds per clip to infer and to forecast two objects with a shipped model."""
    from motes import queries
    from motes.data import cannonballs
    from motes.models.checkpoint import load_with_config

    model, config = load_with_config(name, device=device)
    size, num_frames = (config.data.height, config.data.width), config.data.num_frames
    frames = cannonballs(num_clips, 2, num_frames, size).frames.float().to(device)
    jobs: dict[str, Callable[[], Any]] = {
        "infer": lambda: queries.infer(model, frames, 2).pixels.cpu(),
        "forecast": lambda: queries.forecast(model, frames[:, :5], 2, num_frames - 5).pixels.cpu(),
    }
    times = {}
    for job, run in jobs.items():
        run()  # warm-up
        moments = [time.perf_counter()]
        for _ in range(REPEATS):
            run()
            moments.append(time.perf_counter())
        seconds = [end - start for start, end in itertools.pairwise(moments)]
        times[f"{job}, one clip, {name}"] = statistics.median(seconds) / num_clips
    return times
