"""Score the column `seen` on a recording of throws in which the ball is absent most of the time.

A ball is present in a frame if the foreground of the full-size picture has a blob in the crop, as
in experiments/juggling/reference.py; no model takes part in that.

Usage: python -m experiments.real_scenes.score_seen VIDEO RUN --out FILE
"""

import argparse
from pathlib import Path

import numpy as np

import motes
from experiments.juggling.reference import find_blobs
from experiments.records import write_record
from motes.queries.absences import infer_recording
from motes.video import find_preparation, open_video, plan, whole_clip


def main() -> None:
    """Score and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("video", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--num-objects", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    model, preparation = motes.load(given.run), find_preparation(given.run)
    assert preparation is not None
    whole = whole_clip(given.video, *model.image_size, preparation)
    answer = infer_recording(model, whole.frames, given.num_objects)
    seen = answer.seen[0, 0].numpy()
    blobs = find_blobs(plan(open_video(given.video), preparation))
    present = np.array([len(one) > 0 for one in blobs])[whole.where.numbers[0]]
    places = whole.where.points(answer.pixels)[0, 0].numpy()
    box = np.array(preparation.crop).reshape(2, 2)
    outside = ((places < box[0] - 1) | (places > box[1])).any(1)
    write_record(
        {
            "question": "rows marked seen while the ball is absent",
            "recording": given.video.name,
            "frames": len(seen),
            "absent": int((~present).sum()),
            "seen_while_absent": int((seen & ~present).sum()),
            "share_of_absent_rows": float((seen & ~present).sum() / max(1, (~present).sum())),
            "share_of_seen_rows": float((seen & ~present).sum() / max(1, seen.sum())),
            "present_and_seen": float((seen & present).sum() / max(1, present.sum())),
            "outside_and_seen": int((seen & outside).sum()),
            "warning": answer.fit.warning if answer.fit is not None else None,
        },
        given.out,
    )


if __name__ == "__main__":
    main()
