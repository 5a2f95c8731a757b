"""`motes data | demo`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from motes.data import save_clips, worlds, write_gif
from motes.verbs import tell
from motes.verbs.progress import bar


def data(
    out: Path = Path("clips.npz"),
    world: str = "cannonballs",
    num_clips: int = 100,
    num_objects: tuple[int, ...] | None = None,
    num_frames: int | None = None,
    size: int = 48,
    seed: int = 0,
    gif: Path | None = None,
    as_json: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Makes clips of the paper's cannonballs or of a harder world, with their true positions.

    Example: motes data --world bar --num-clips 100 --out clips.npz --gif first.gif

    Args:
        out: npz file to write, bit-packed where clips are black and white.
        world: what the clips show: cannonballs, many, bar, drops, pictures, colour, weightless,
            wind, drag, bounce or long (docs/worlds.md).
        num_clips: how many clips.
        num_objects: balls in a clip; each clip takes one of these numbers (default: 1 2 3).
        num_frames: frames in a clip (the paper: 30 and 50; default: 30, of `long` 3000).
        size: pixels on a side (the paper: 48 and 32).
        seed: the same seed gives the same clips.
        gif: also write the first clip as an animation.
        as_json: print one JSON line instead of a sentence.
    """
    clips = worlds.make(world, num_clips, num_objects, num_frames, size, seed)
    save_clips(out, clips)
    if gif is not None:
        first = clips.frames[0].float()
        write_gif(gif, first.mean(-1) if first.ndim == 4 else first)
    record = {"verb": "data", "world": world, "clips": num_clips, "seed": seed, "out": str(out)}
    tell(record, as_json, f"made {num_clips} clips of {clips.video.shape[1]} frames: {out}")


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
