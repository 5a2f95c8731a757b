"""`motes infer` for recordings of any length: in stretches, in bounded memory, resumable.

While it runs, `TABLE.part` holds the rows of the frames that are done and `TABLE.state.npz` what
the rest depends on. The state is replaced after the rows of a stretch are on the disk, and says how
many bytes of them count, so a run that is killed at any time goes on from its last stretch.
"""

import csv
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motes.cli import batch
from motes.cli.options import HERE, time_span
from motes.cli.terminal import bar
from motes.core.errors import require
from motes.core.files import atomic_path

if TYPE_CHECKING:
    from motes.cli.queries import Query
    from motes.models.model import Model
    from motes.queries.stretches import Seam
    from motes.video.prepare import PreparedFrame
    from motes.video.streaming import PreparedVideo

REFUSED = ("gif", "overlay", "plot", "corrections")  # options that need all frames


@dataclass(frozen=True, eq=False)
class Progress:
    """What is left to do depends on this alone."""

    held: "list[PreparedFrame]"  # read already: before the next seam, and after it
    last: "PreparedFrame"  # read
    num_read: int = 0  # prepared frames
    num_done: int = 0  # frames in the table
    num_bytes: int = 0  # of the table
    num_objects: int = 0
    seam: "Seam | None" = None
    num_stretches: int = 0
    ended: int = 0  # 1 if nothing is left
    num_unfit: int = 0  # stretches that do not fit the model
    unfit: str = ""  # why, of the first of them


def is_long(query: "Query", path: Path) -> bool:
    """Return whether a recording is inferred in stretches: on request, or if it is long."""
    from motes.models.checkpoint import find_model
    from motes.video import find_preparation, open_video
    from motes.video.clips import MAX_FRAMES
    from motes.video.prepare import with_frame_rate
    from motes.video.streaming import expected_frames

    options = query.options
    if query.command != "infer":
        require(options.stretch is None, "stretch is for motes infer; leave it out")
        return False
    if options.stretch is not None:
        return True
    span = time_span(options.start, options.end)
    preparation = find_preparation(find_model(options.model or "cannonballs-48"))
    video = with_frame_rate(open_video(path), options.source_fps)
    fps = None if preparation is None else preparation.fps
    expected = expected_frames(video, span, fps)
    return expected is not None and expected > MAX_FRAMES


def answer(query: "Query", table: Path, show_progress: bool = False) -> dict[str, Any]:
    """Infer a long recording, write its table; return what was written, with the warnings.

    Law: killed and resumed, the bytes are the same
    (test_a_killed_run_resumes_to_the_same_bytes); the rows are those of the answer in one piece
    (test_the_table_of_stretches_equals_that_of_one_piece).
    """
    from motes.models.checkpoint import find_model, load
    from motes.output.formats import format_of, object_diameter
    from motes.output.full_resolution import MIN_SHRUNK
    from motes.output.merge import convert_table
    from motes.output.tracks import unit_of

    options, (path,) = query.options, query.options.clips
    _check(options, table)
    folder = find_model(options.model or "cannonballs-48")
    weights = [(file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.iterdir())]
    own = replace(query, options=replace(options, out=None, format=None, processes=HERE,
                                         resume=False, as_json=False))  # fmt: skip
    key = batch.job_key(path, own, weights)
    model = load(options.model or "cannonballs-48", device=options.device)
    part, state = (table.with_name(table.name + end) for end in (".part", ".state.npz"))
    done = read_state(state, key) if options.resume and part.is_file() else None
    with bar("reading", None, hidden=not show_progress) as report:
        source = _source(options, model, report)
    units = options.lengths.units()
    if units is not None:
        source = replace(source, units=units)
    with bar("inferring", source.video.num_frames, hidden=not show_progress) as report:
        for progress in _stretches(model, source, query, part, done):
            write_state(state, key, progress)
            report(progress.last.number + 1)
    where = source.map_of([progress.last])
    diameter = object_diameter(model, where)
    if format_of(table, options.format) == "csv":
        with atomic_path(table) as temporary:
            os.replace(part, temporary)
    else:
        convert_table(table, part, options.format, diameter)
        part.unlink()
    state.unlink()
    warnings = list(source.warnings)
    if options.full_resolution and where.scale.max() >= MIN_SHRUNK:
        warnings.append(
            "a recording in stretches is not fitted at full resolution; for that take a part of it "
            "with --start and --end, or say --no-full-resolution"
        )
    if progress.num_unfit:
        total = progress.num_stretches
        warnings.append(f"{progress.num_unfit} of {total} stretches: {progress.unfit}")
    return {
        "verb": query.command,
        "clips": 1,
        "frames": progress.num_done,
        "num_objects": [progress.num_objects],
        "stretches": progress.num_stretches,
        "unit": unit_of(where),
        "diameter": diameter,
        "out": str(table),
        "gif": None,
        "overlay": None,
        "plot": None,
        "warnings": warnings,
    }


def _check(options: Any, table: Path) -> None:
    from motes.queries.stretches import OVERLAP

    for name in REFUSED:
        require(
            getattr(options, name) is None,
            f"{name} is given for a long recording, which is inferred in stretches; leave it out, "
            "or take a part of the recording with --start and --end",
        )
    require(
        options.stretch is None or OVERLAP <= options.stretch <= 10_000,
        f"stretch is {options.stretch}; give {OVERLAP} to 10000 frames",
    )
    require(
        not table.exists() or table.is_file(),
        f"out is {table}, which is no plain file; a long recording needs one",
    )


def _source(options: Any, model: "Model", report: Callable[[int], None]) -> "PreparedVideo":
    from motes.video import find_preparation
    from motes.video.streaming import prepared_video

    return prepared_video(
        options.clips[0],
        *model.image_size,
        find_preparation(options.model or "cannonballs-48"),
        time_span(options.start, options.end),
        report,
        in_colour=model.in_colour,
        source_fps=options.source_fps,
        by_seeking=True,
    )


def _stretches(
    model: "Model",
    source: "PreparedVideo",
    query: "Query",
    part: Path,
    progress: Progress | None,
) -> Iterator[Progress]:
    """Infer one stretch after another, append its rows and yield what the rest depends on."""
    import numpy as np
    import torch

    from motes.queries.stretches import OVERLAP, infer_stretch, stretch_length
    from motes.video.prepare import Place

    options = query.options
    length = options.stretch or stretch_length(*model.image_size)
    place = None
    if progress is not None:
        last = progress.last
        place = Place(progress.num_read, last.number, last.time, last.shift)
        if progress.ended:  # killed before the table got its name
            yield progress
            return
    frames, ends = source.frames(place), False
    while not ends:
        before = progress.held if progress is not None else []
        # One more than the stretch needs tells whether it is the last.
        context = 0 if progress is None or progress.seam is None else progress.seam.kept
        wanted = context + length + OVERLAP + 1
        new = list(islice(frames, wanted - len(before)))
        held = [*before, *new]
        require(len(held) >= 2, f"{source.video.name} has {len(held)} frames there; expected two")
        ends = len(held) < wanted
        some, extra = (held, []) if ends else (held[:-1], held[-1:])
        after = 0 if ends else OVERLAP
        pixels = np.stack([prepared.frame for prepared in some]) / np.float32(255)
        counts = options.num_objects if progress is None else progress.num_objects
        seam = None if progress is None else progress.seam
        found = infer_stretch(
            *(model, torch.from_numpy(pixels)[None], counts, seam, after), seed=options.seed
        )
        warning = _warning(found.whole.fit, options.force or progress is not None)
        kept = some[context : len(some) - after]
        size = _append(part, found.answer, source.map_of(kept), progress)
        done = progress or Progress([], some[0])
        progress = Progress(
            held=[*some[len(some) - after - min(len(some) - after, OVERLAP) :], *extra],
            last=held[-1],
            num_read=done.num_read + len(new),
            num_done=done.num_done + len(kept),
            num_bytes=size,
            num_objects=int(found.answer.num_objects[0]),
            seam=found.seam,
            num_stretches=done.num_stretches + 1,
            ended=int(ends),
            num_unfit=done.num_unfit + (warning is not None),
            unfit=done.unfit or warning or "",
        )
        yield progress


def _warning(fit: Any, force: bool) -> str | None:
    """Return the warning about a stretch; refuse one of another kind than the model's."""
    if fit is not None and not force:
        fit.require_same_kind()
    return None if fit is None else fit.warning


def _append(part: Path, found: Any, where: Any, progress: Progress | None) -> int:
    """Write the rows of a stretch after those before it; return the size of the file."""
    from motes.output.tracks import table

    columns, rows = table(found, where)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    if progress is None:
        writer.writerow(columns)
    writer.writerows(rows)
    with part.open("wb" if progress is None else "rb+") as file:
        file.truncate(0 if progress is None else progress.num_bytes)
        file.seek(0, os.SEEK_END)
        file.write(text.getvalue().encode())
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


NUMBERS = (
    *("num_read", "num_done", "num_bytes", "num_objects", "num_stretches", "ended", "num_unfit"),
)


def write_state(path: Path, key: str, progress: Progress) -> None:
    """Write what the rest of a recording depends on."""
    import numpy as np

    assert progress.seam is not None
    held = progress.held or [progress.last]
    arrays = {
        "key": np.array(key),
        "numbers": np.array([getattr(progress, name) for name in NUMBERS]),
        "unfit": np.array(progress.unfit),
        "frames": np.stack([prepared.frame for prepared in held]),
        "frame_numbers": np.array([prepared.number for prepared in held]),
        "times": np.array([prepared.time for prepared in held]),
        "shifts": np.array([prepared.shift for prepared in held]),
        "positions": progress.seam.positions.numpy(),
        "path": progress.seam.path.numpy(),
        "detected": progress.seam.detected.numpy(),
        "kept": np.array(progress.seam.kept),
    }
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_state(path: Path, key: str) -> Progress | None:
    """Return what `write_state` wrote; None if there is nothing, or of another run."""
    import torch

    from motes.data.clips import load_arrays
    from motes.queries.stretches import Seam
    from motes.video.prepare import PreparedFrame

    names = ("key", "numbers", "unfit", "frames", "frame_numbers", "times", "shifts")
    if not path.is_file():
        return None
    stored = load_arrays(path, (*names, "positions", "path", "detected", "kept"))
    if str(stored.get("key")) != key:
        return None
    numbers, times = stored["frame_numbers"].tolist(), stored["times"].tolist()
    shifts = [(x, y) for x, y in stored["shifts"].tolist()]
    held = [
        PreparedFrame(number, time, frame, shift)
        for number, time, frame, shift in zip(numbers, times, stored["frames"], shifts, strict=True)
    ]
    positions, path_, detected = (
        torch.from_numpy(stored[name]) for name in ("positions", "path", "detected")
    )
    return Progress(
        held,
        held[-1],
        seam=Seam(positions, path_, detected, int(stored["kept"])),
        unfit=str(stored["unfit"]),
        **dict(zip(NUMBERS, stored["numbers"].tolist(), strict=True)),
    )
