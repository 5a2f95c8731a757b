"""`motes data | demo`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from motes.data import cannonballs, save_clips, write_gif
from motes.verbs import tell
from motes.verbs.progress import bar


def data(
    out: Path = Path("clips.npz"),
    num_clips: int = 100,
    num_objects: tuple[int, ...] = (1, 2, 3),
    num_frames: int = 30,
    size: int = 48,
    seed: int = 0,
    gif: Path | None = None,
    as_json: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Makes clips of the paper's cannonballs, with their true positions.

    Example: motes data --num-clips 100 --out clips.npz --gif first.gif

    Args:
        out: npz file to write, bit-packed.
        num_clips: how many clips.
        num_objects: balls in a clip; each clip takes one of these numbers.
        num_frames: frames in a clip (the paper: 30 and 50).
        size: pixels on a side (the paper: 48 and 32).
        seed: the same seed gives the same clips.
        gif: also write the first clip as an animation.
        as_json: print one JSON line instead of a sentence.
    """
    clips = cannonballs(num_clips, num_objects, num_frames, size, seed)
    save_clips(out, clips)
    if gif is not None:
        write_gif(gif, clips.frames[0].float())
    record = {"verb": "data", "clips": num_clips, "seed": seed, "out": str(out)}
    tell(record, as_json, f"made {num_clips} clips of {num_frames} frames: {out}")


def demo(
    out: Path = Path("demo"),
    model: str = "cannonballs-48",
    num_clips: int = 90,
    seed: int = 2_000_000,
    as_json: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Shows what a model can do on unseen clips: one HTML report with pictures and scores.

    Example: motes demo --model runs/small --out demo-small

    Args:
        out: folder for report.html; made if it is not there.
        model: a shipped model's name or a run folder.
        num_clips: how many clips are scored.
        seed: of the clips; training uses other seeds.
        as_json: print one JSON line instead of a sentence.
    """
    from motes.demo import NUM_PICTURES, run

    with bar("demo", num_clips + NUM_PICTURES) as progress:
        record = run(model, out, seed=seed, num_clips=num_clips, progress=progress)
    tell(
        {"verb": "demo", **record},
        as_json,
        f"done in {record['seconds']:.0f} s; open this in a browser: {record['report']}\n"
        "then try: motes data --out clips.npz\n"
        f"          motes forecast clips.npz --model {model} --seen 5 --gif forecast.gif",
    )
