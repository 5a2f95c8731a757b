"""Track all objects of a recording: learn its looks, detect, learn motion and rates, link."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from motes.core.errors import InputError, require
from motes.tracking.appearance import Appearance, learn_appearance
from motes.tracking.detection import Candidates, Looks, find_candidates, join
from motes.tracking.existence import Rates
from motes.tracking.learning import JOINS, Solution, describe, learn
from motes.tracking.linking import link_frames, relink
from motes.tracking.motion import Laws, mixed
from motes.tracking.resting import MIN_STEP, are_resting, that_move, without_captions
from motes.tracking.scene import SHORT, Fit, scene_at_scale, shrink
from motes.tracking.sprite import Array
from motes.tracking.tracks import Tracks, no_tracks
from motes.video.camera import LONGEST, CameraSample
from motes.video.source import Video, grey, open_video

SAMPLE = 31  # frames from which the looks are learned
BLOCK_BYTES = 8 * 2**20  # of the float32 frames that are processed together
LEARN_CANDIDATES = 2500  # detections from which motion and rates are learned
MIN_LEARN_FRAMES = 20
CHUNK_ROWS = 200_000  # rows of tracks that are smoothed together
MIN_ODDS = -3.0  # log odds below which a track is chance
MIN_SIDE = 8  # pixels
MANY = 5  # objects of a frame that may be parts of a scene
MIN_MOVING = 30  # detections that move, from which laws are learned
FOREGROUND = 6.0  # standard deviations of a pixel that differs from the background
STRONG = 8.0  # nats of a detection that counts
FAINTEST = 0.05  # of the contrast of typical objects: fainter ones are errors of the background
Progress = Callable[[int], None]
Blocks = Callable[[], Iterator[Array]]


def track(
    recording: str | Path | Video | Any,
    *,
    span: tuple[float, float] = (0.0, float("inf")),
    progress: Progress = lambda done: None,
) -> Tracks:
    """Return the tracks of all objects of a recording, however many come and go.

    Nothing is trained beforehand: background, looks, motion and rates are learned from the
    recording itself. Objects should be compact and alike, and brighter or darker than the
    background; the camera should be at rest. `Tracks.fit` says how well that holds. The work of a
    frame is bounded: large frames are shrunk, and at most 3000 candidates are searched.

    Args:
        recording: a video file or folder (see `motes.video.open_video`), a `Video`, or frames
            [T, height, width] or [T, height, width, 3] as numpy array or tensor: whole numbers of
            8 or 16 bits, booleans, or floats in [0, 1].
        span: first and last second to use; of a video only.
        progress: called with the number of frames that were read; every frame is read twice.

    Raises:
        InputError: no frames, or values that are no pictures.
    """
    if isinstance(recording, str | Path):
        recording = open_video(recording)
    if isinstance(recording, Video):
        require(
            recording.rereadable,
            f"got {recording.name}, which can be read only once; expected a file; record it first",
        )
        return _track(_video_blocks(recording, span), progress)
    frames = as_frames(recording)
    return _track(_array_blocks(frames), progress)


def as_frames(frames: Any) -> Array:
    """Return frames as an array [T, height, width], checked but not yet converted to floats."""
    values: Array = frames.detach().cpu().numpy() if isinstance(frames, torch.Tensor) else frames
    values = np.asarray(values)
    if values.ndim == 4 and values.shape[-1] in (1, 3):
        values = grey(values)
    require(
        values.ndim == 3,
        f"got frames of shape {list(values.shape)}; expected [T, height, width]; give one video",
    )
    require(
        values.dtype.kind in "fbu",
        f"got frames of type {values.dtype}; expected uint8, uint16, bool or float; convert them",
    )
    require(
        len(values) > 0, "got a recording without frames; expected at least one; check the file"
    )
    require(
        min(values.shape[1:]) >= MIN_SIDE,
        f"got frames of {values.shape[2]}x{values.shape[1]} pixels; expected sides of {MIN_SIDE} "
        "or more; enlarge them",
    )
    if values.dtype.kind == "f":
        low, high = float(values.min()), float(values.max())
        require(
            0 <= low and high <= 1,  # false for NaN, too
            f"got frames with values from {low:g} to {high:g}; expected floats in [0, 1]; "
            "rescale them",
        )
    return values


def _as_floats(values: Array) -> Array:
    if values.dtype.kind == "u":
        return values.astype(np.float32) / np.float32(np.iinfo(values.dtype).max)
    return values.astype(np.float32)


def _block_frames(height: int, width: int) -> int:
    return max(1, min(16, BLOCK_BYTES // (4 * height * width)))


def _array_blocks(frames: Array) -> Blocks:
    step = _block_frames(*frames.shape[1:])

    def blocks() -> Iterator[Array]:
        for first in range(0, len(frames), step):
            yield _as_floats(frames[first : first + step])

    return blocks


def _video_blocks(video: Video, span: tuple[float, float]) -> Blocks:
    step = _block_frames(video.height, video.width)

    def blocks() -> Iterator[Array]:
        held: list[Array] = []
        for frame in video.frames():
            if frame.time > span[1]:
                break
            if frame.time >= span[0]:
                held.append(grey(frame.picture))
            if len(held) == step:
                yield np.stack(held)
                held = []
        if held:
            yield np.stack(held)

    require(
        min(video.height, video.width) >= MIN_SIDE,
        f"got {video.name} with frames of {video.width}x{video.height} pixels; expected sides of "
        f"{MIN_SIDE} or more; enlarge it",
    )
    return blocks


@dataclass(frozen=True, eq=False)
class _Sample:
    """Frames spread over a recording, the one after each, their number, and the camera."""

    frames: Array
    following: Array
    num_frames: int
    camera: CameraSample


def _sample(blocks: Blocks, progress: Progress) -> _Sample:
    """Return at most SAMPLE frames, evenly spread, and what is known after one pass.

    The spacing doubles whenever the sample is full, so the length need not be known.
    """
    kept: list[tuple[Array, Array]] = []
    held: Array | None = None
    camera = CameraSample()
    spacing, count = 1, 0
    for block in blocks():
        for frame in block:
            levels = np.rint(255 * frame).astype(np.uint8)
            camera.add(shrink(levels[None], -(-max(frame.shape) // LONGEST))[0, ..., None])
            if held is not None:
                kept.append((held, levels))
                held = None
            if len(kept) > 2 * SAMPLE:
                kept, spacing = kept[::2], 2 * spacing
            if count % spacing == 0:
                held = frame.copy()
            count += 1
        progress(count)
    if held is not None:
        kept.append((held, np.rint(255 * held).astype(np.uint8)))
    if not kept:
        raise InputError("got a recording without frames; expected at least one; check the times")
    chosen = np.linspace(0, len(kept) - 1, min(SAMPLE, len(kept))).round().astype(int)
    frames, following = (np.stack([kept[index][part] for index in chosen]) for part in range(2))
    return _Sample(frames, _as_floats(following), count, camera)


def _track(blocks: Blocks, progress: Progress) -> Tracks:
    sample = _sample(blocks, progress)
    num_frames = sample.num_frames
    scene, factor = scene_at_scale(sample.frames, sample.following)
    appearance = learn_appearance(scene)
    fit = Fit(factor)
    if appearance.looks is None or num_frames < 2:
        return no_tracks(num_frames, _with_camera(fit, sample))
    candidates, fit = _detect(blocks, appearance, fit, lambda done: progress(num_frames + done))
    candidates = without_ghosts(candidates)
    diameter = 2 * appearance.looks.sprites[0].radius
    uneven = appearance.tolerance is not None
    if uneven:
        candidates = without_captions(candidates, diameter)
    if len(candidates) == 0:
        return no_tracks(num_frames, _with_camera(fit, sample))
    size = (scene.frames.shape[1], scene.frames.shape[2])
    laws, rates = _learn(candidates, size, num_frames, uneven)
    links = link_frames(candidates, laws, rates, num_frames)
    labels = relink(candidates, links, laws, rates, JOINS)
    if uneven:
        labels = that_move(candidates, labels, diameter)
    fit = replace(
        fit,
        followed=_followed(labels, candidates),
        detections=int((labels >= 0).sum()),
        drifts=_drifts(candidates, labels),
    )
    fit = _with_camera(fit, sample)
    tracks = assemble(candidates, labels, laws, rates, size, num_frames, diameter)
    return replace(enlarged(tracks, factor), fit=fit)


def _with_camera(fit: Fit, sample: _Sample) -> Fit:
    """Return the fit with what the camera does, which takes time, if something does not fit."""
    if not (fit.drifts or fit.warnings):
        return fit
    return replace(fit, camera=sample.camera.find_motion().kind)


def _detect(
    blocks: Blocks, appearance: Appearance, fit: Fit, progress: Progress
) -> tuple[Candidates, Fit]:
    """Return the candidates of all frames, and what of the foreground they explain."""
    looks = appearance.looks
    assert looks is not None
    matched = None
    parts: list[Candidates] = []
    done, crowded, changed = 0, 0, 0.0
    bound = foreground_bound(looks)
    explained: list[float] = []
    for block in blocks():
        deviation = appearance.deviation(shrink(block, fit.factor))
        if matched is None:
            matched = looks.matched_filter(*deviation.shape[1:])
        found, residual = find_candidates(deviation, looks, matched, looks.rounds, looks.least)
        foreground = np.abs(deviation[0]) > bound
        changed += float(foreground.mean())
        if foreground.any():
            energy = float(np.square(deviation[0][foreground]).sum())
            explained.append(1 - float(np.square(residual[0][foreground]).sum()) / energy)
        crowded += int((np.bincount(found.frame) >= looks.most // 2).sum())
        parts.append(found.shifted(done))
        done += len(block)
        progress(done)
    fit = replace(
        fit,
        foreground=changed / max(len(parts), 1),
        explained=float(np.median(explained)) if explained else float("nan"),
        crowded=crowded / max(done, 1),
    )
    return join(parts), fit


def foreground_bound(looks: Looks) -> float:
    """Return the deviation of a pixel that counts as foreground.

    FOREGROUND standard deviations of the noise, but where noise with structure is as large as the
    objects half of their brightness, so that they count.
    """
    faintest = float(looks.amplitude[0].min())
    by_noise = FOREGROUND * looks.noise
    return by_noise if by_noise < faintest else faintest / 2


def without_ghosts(candidates: Candidates) -> Candidates:
    """Return the candidates whose contrast is at least a share FAINTEST of typical objects'.

    Evidence grows with the square of the contrast over the noise, so in frames without noise the
    smallest errors of the background would pass for certain objects.
    """
    if len(candidates) == 0:
        return candidates
    typical = float(np.quantile(candidates.evidence, 0.9))  # errors may be the majority
    return candidates.select(candidates.evidence >= FAINTEST**2 * typical)


def _followed(labels: Array, candidates: Candidates) -> float:
    """Return the share of strong candidates in tracks of at least SHORT detections."""
    lengths = np.bincount(labels[labels >= 0], minlength=1)
    strong = (candidates.evidence > STRONG) & (labels >= 0)
    return float((lengths[labels[strong]] >= SHORT).mean()) if strong.any() else 1.0


def _drifts(candidates: Candidates, labels: Array) -> bool:
    """Return whether most of many objects move alike, as the scene of a moving camera does."""
    used = np.flatnonzero(labels >= 0)
    order = used[np.lexsort((candidates.frame[used], labels[used]))]
    moves = np.diff(candidates.positions[order], axis=0)[np.diff(labels[order]) == 0]
    per_frame = len(moves) / max(1, len(np.unique(candidates.frame)))
    if per_frame < MANY:
        return False
    common = np.median(moves, 0)
    speed = float(np.linalg.norm(common))
    apart = float(np.median(np.linalg.norm(moves - common, axis=1)))
    return speed > MIN_STEP and apart < speed / 2


def enlarged(tracks: Tracks, factor: int) -> Tracks:
    """Return tracks of shrunk frames in pixels of the recording."""
    if factor == 1:
        return tracks
    return replace(
        tracks,
        row_positions=factor * (tracks.row_positions + 0.5) - 0.5,
        row_raw=factor * (tracks.row_raw + 0.5) - 0.5,
        row_covariances=factor**2 * tracks.row_covariances,
        row_velocities=factor * tracks.row_velocities,
        diameter=factor * tracks.diameter,
        laws=None if tracks.laws is None else tracks.laws.scaled(float(factor)),
        rates=None if tracks.rates is None else tracks.rates.scaled(float(factor)),
    )


def _learn(
    candidates: Candidates, size: tuple[int, int], num_frames: int, uneven: bool
) -> tuple[Laws, Rates]:
    """Return laws and rates from a stretch in the middle that holds enough detections.

    In a scene that changes by itself, only from detections that move.
    """
    if uneven:
        moving = candidates.select(~are_resting(candidates))
        candidates = moving if len(moving) >= MIN_MOVING else candidates
    per_frame = max(len(candidates) / num_frames, 1e-9)
    length = int(min(num_frames, max(MIN_LEARN_FRAMES, LEARN_CANDIDATES / per_frame)))
    first = (num_frames - length) // 2
    inside = (candidates.frame >= first) & (candidates.frame < first + length)
    return learn(candidates.select(inside).shifted(-first), size, length)


def assemble(
    candidates: Candidates,
    labels: Array,
    laws: Laws,
    rates: Rates,
    size: tuple[int, int],
    num_frames: int,
    diameter: float,
) -> Tracks:
    """Return the record of linked candidates; tracks are smoothed in chunks."""
    names, lengths = np.unique(labels[labels >= 0], return_counts=True)
    chunk = (np.cumsum(lengths + 24) // CHUNK_ROWS).astype(int)
    parts: list[dict[str, Array]] = []
    offset = 0
    for number in np.unique(chunk):
        chosen = np.isin(labels, names[chunk == number])
        part = np.where(chosen, labels, -1)
        solution = describe(candidates, part, laws, rates, size, num_frames)
        rows = _rows(candidates, solution)
        rows["particle"] += offset
        offset += len(solution.table.order)
        parts.append(rows)
    if not parts:
        return no_tracks(num_frames)
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return _numbered(rows, num_frames, laws, rates, diameter)


def _rows(candidates: Candidates, solution: Solution) -> dict[str, Array]:
    """Return the rows of likely tracks as columns."""
    table, paths, existence = solution.table, solution.paths, solution.existence
    keep = (existence.log_odds > MIN_ODDS)[table.track] & (existence.exists > 1e-3)
    track = table.track[keep]
    weights = paths.weights[track]
    mean, cov = mixed(paths.mean[keep], paths.cov[keep], weights)
    candidate = solution.candidate[keep]
    seen = (candidate >= 0) & (existence.shows[keep] > 0.5)
    raw = np.where(seen[:, None], candidates.positions[candidate], np.nan)
    return {
        "particle": track,
        "frame": table.frame[keep],
        "positions": mean[:, :2],
        "covariances": cov[:, :2, :2],
        "velocities": mean[:, 2:],
        "exists": existence.exists[keep],
        "shows": existence.shows[keep],
        "seen": seen,
        "raw": raw,
        "weights": weights,
    }


def _numbered(
    rows: dict[str, Array], num_frames: int, laws: Laws, rates: Rates, diameter: float
) -> Tracks:
    """Return the record with tracks numbered by first appearance and rows in order."""
    if len(rows["frame"]) == 0:
        return replace(no_tracks(num_frames), laws=laws, rates=rates)
    names, inverse = np.unique(rows["particle"], return_inverse=True)
    first = np.full(len(names), num_frames)
    sure = rows["exists"] >= 0.5
    np.minimum.at(first, inverse[sure], rows["frame"][sure])
    rank = np.empty(len(names), int)
    rank[np.argsort(first, kind="stable")] = np.arange(len(names))
    particle = rank[inverse]
    order = np.lexsort((particle, rows["frame"]))
    weights = np.zeros((len(names), rows["weights"].shape[1]))
    weights[particle] = rows["weights"]
    return Tracks(
        len(names), num_frames, rows["frame"][order], particle[order], rows["positions"][order],
        rows["covariances"][order], rows["velocities"][order], rows["exists"][order],
        rows["shows"][order], rows["seen"][order], rows["raw"][order], laws, rates, diameter,
        weights, Fit(),
    )  # fmt: skip
