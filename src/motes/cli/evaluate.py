"""`motes evaluate | figures`: score a model or a baseline; draw figures."""

from pathlib import Path
from typing import Annotated, Any

import torch
from tyro.conf import Positional, arg

from motes.cli.options import Data, Json, Out, print_result
from motes.cli.progress import bar
from motes.config import DataConfig, RunConfig
from motes.core.errors import InputError
from motes.core.files import check_output_paths
from motes.data import Clips, World, cannonballs, draw_clips, load_clips
from motes.models.model import Model, load_with_config, write_json, write_text
from motes.training.dataset import known_counts
from motes.training.run_folder import environment

NUM_TRAINING = 600  # training clips of a baseline
NUM_ALIGNING = 90  # training clips to which the affine map is fitted


def evaluate(
    model: Positional[str] = "cannonballs-48",
    data: Annotated[Path | None, arg(aliases=("-d", "--clips"))] = None,
    num_clips: int = 600,
    seed: int = 1_000_000,
    out: Out[Path | None] = None,
    report: Path | None = None,
    baselines: Annotated[Path, arg(aliases=("--results",))] = Path("experiments/results_table"),
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
        as_json: print one JSON line instead of text.
    """
    from motes.evaluation.baselines import BASELINES

    check_output_paths(out, report)
    loaded = None if model in BASELINES else load_with_config(model)
    if loaded is None and report is not None:
        raise InputError(f"{model} is a baseline; --report describes models")
    config = DataConfig() if loaded is None else loaded[1].data
    if data is None and loaded is not None and not loaded[0].black_and_white:
        raise InputError(f"{model} was trained on grey or colour frames; give such clips by --data")
    if data is None and seed == config.seed:
        raise InputError(f"seed {seed} made the training clips of {model}; give another seed")
    clips = load_clips(data) if data is not None else _new_clips(config, num_clips, seed)
    record: dict[str, Any] = {
        "model": model,
        "test_seed": None if data is not None else seed,
        "frame_size": list(clips.video.shape[2:4]),
        "num_frames": clips.video.shape[1],
        "environment": environment(torch.device("cpu")),
        **(_score_baseline(model, clips) if loaded is None else _score_model(*loaded, clips)),
    }
    if out is not None:
        write_json(out, record)
    if loaded is not None and report is not None:
        _write_report(report, loaded[0], clips, record, baselines)
    print_result(record, as_json, score_table(record))


def _write_report(
    path: Path, model: Model, clips: Clips, record: dict[str, Any], baselines: Path
) -> None:
    """Write the report; its command contains no path of this machine."""
    from motes.evaluation.labels import read_records
    from motes.output.evaluation_report import page

    name = record["model"]
    command = f"motes evaluate {Path(name).name} --report {path.name}"
    write_text(path, page(model, clips, record, read_records(baselines), command))


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
    from motes.output.figures import FIGURES, figures_of

    loaded, config = load_with_config(model)
    if data is None and not loaded.black_and_white:
        raise InputError(f"{model} was trained on grey or colour frames; give such clips by --data")
    clips = load_clips(data) if data is not None else _new_clips(config.data, num_clips, seed)
    with bar("figures", len(only or FIGURES)) as progress:
        name = Path(model).name
        drawn = figures_of(loaded, clips, out, name=name, only=only, progress=progress)
    record = {"verb": "figures", "figures": drawn, "out": str(out)}
    print_result(record, as_json, f"drew {len(drawn)} figures as PNG and PDF: {out}")


def _score_model(model: Model, config: RunConfig, clips: Clips) -> dict[str, Any]:
    """Return all scores of a model."""
    from motes.evaluation.evaluate import ModelPredictor, compare_physics, score_bounds, score_gaps
    from motes.evaluation.evaluate import evaluate as score

    data, predictor, some = config.data, ModelPredictor(model), min(len(clips), NUM_ALIGNING)
    training = None if data.path is not None else _new_clips(data, NUM_ALIGNING, data.seed)
    with bar("scoring", len(clips)) as progress:
        record = score(predictor, clips, training, progress)
    with bar("other gaps", some) as progress:
        record["gaps"] = score_gaps(predictor, clips, progress)
    with bar("bounds and counts", some) as progress:
        record["beliefs"] = score_bounds(model, clips, progress)
    return {"training_seed": config.seed, **record, **compare_physics(model, clips)}


def _score_baseline(name: str, clips: Clips) -> dict[str, Any]:
    """Return all scores of a baseline, fitted to clips of the paper's world."""
    from motes.evaluation.baselines import baseline
    from motes.evaluation.evaluate import evaluate as score
    from motes.evaluation.evaluate import score_gaps

    if clips.in_colour:
        raise InputError(f"{name} needs binary or grey clips; these are in colour")
    _, num_frames, height, width = clips.video.shape
    world, usual = World(num_frames, (height, width)), DataConfig()
    counts = sorted({*usual.num_objects, *known_counts(clips, "the clip file").tolist()})
    predictor = baseline(name, world, draw_clips(world, NUM_TRAINING, counts, usual.seed))
    with bar("scoring", len(clips)) as progress:
        record = score(predictor, clips, progress=progress)
    with bar("other gaps", min(len(clips), NUM_ALIGNING)) as progress:
        record["gaps"] = score_gaps(predictor, clips, progress)
    return record


def _new_clips(data: DataConfig, num_clips: int, seed: int) -> Clips:
    """Return cannonballs like the training clips of a run."""
    size = (data.height, data.width)
    counts = sorted(set(data.num_objects))  # training clips may repeat some numbers
    return cannonballs(num_clips, counts, data.num_frames, size, seed)


def score_table(record: dict[str, Any]) -> str:
    """Return the scores as text: one column with standard errors per number of objects."""
    columns, errors = record["by_count"], record["standard_errors"]
    lines = [f"{'objects':28s}" + "".join(f"{count:>19s}" for count in columns)]
    for name in next(iter(columns.values())):
        cells = "".join(
            f"{column[name]:10.4g}"
            + (f" ± {errors[n][name]:<6.2g}" if name in errors[n] else " " * 9)
            for n, column in columns.items()
        )
        lines.append(f"{name:28s}{cells}")
    if "force_px_per_frame2" in record:
        force = ", ".join(f"{value:.4f}" for value in record["force_px_per_frame2"])
        lines.append(f"recovered force {force} px/frame^2 (x right, y down)")
    return "\n".join(lines)
