"""Clips to train on, from any mixture of videos and clip files."""

from collections.abc import Sequence
from pathlib import Path

from motes.cli import batch
from motes.cli.prepare import Cutting, prepare_many
from motes.cli.terminal import print_warnings


def gather_clips(
    data: Sequence[Path], out: Path, cutting: Cutting, workers: batch.Workers
) -> tuple[Path, list[batch.Result]]:
    """Return one clip file of all inputs, and how the videos among them went.

    A single clip file is returned as it is. Otherwise videos are prepared and everything is merged
    into `out`.
    """
    from motes.video.merge import merge_clips
    from motes.video.recordings import are_many, find_recordings
    from motes.video.source import ARRAYS

    if not are_many(data) and data[0].suffix.lower() in ARRAYS:
        return data[0], []
    recordings = find_recordings(data)
    clips = [found for found in recordings if found.path.suffix.lower() in ARRAYS]
    videos = [found for found in recordings if found not in clips]
    results: list[batch.Result] = []
    if videos:
        made = out if not clips else out.with_name(f"{out.stem}-videos.npz")
        results = prepare_many(videos, cutting, None, made, workers)
        print_warnings(batch.recording_warnings(results))
    if clips:
        parts = [(found.name, found.path) for found in clips]
        merge_clips(out, [*parts, ("videos", made)] if videos else parts)
    return out, results
