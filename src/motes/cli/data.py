"""`motes data | demo`."""

from pathlib import Path

from motes.cli.live_view import learning_panel
from motes.cli.options import Json, listed, tell
from motes.cli.progress import bar
from motes.core.files import all_or_none
from motes.data import save_clips, worlds, write_gif


def data(
    out: Path = Path("clips.npz"),
    world: str = "cannonballs",
    num_clips: int = 100,
    num_objects: tuple[int, ...] | None = None,
    num_frames: int | None = None,
    size: int = 48,
    seed: int = 0,
    gif: Path | None = None,
    as_json: Json = False,
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
    with all_or_none():
        save_clips(out, clips)
        if gif is not None:
            first = clips.frames[0].float()
            write_gif(gif, first.mean(-1) if first.ndim == 4 else first)
    record = {"verb": "data", "world": world, "clips": num_clips, "seed": seed, "out": str(out)}
    tell(
        record,
        as_json,
        f"made {num_clips} clips of {clips.video.shape[1]} frames: {listed(out, gif)}",
    )


def demo(
    out: Path = Path("demo"),
    model: str | None = None,
    num_clips: int = 90,
    seed: int = 2_000_000,
    as_json: Json = False,
) -> None:
    """Learns from scratch before your eyes, then asks about unseen clips: one HTML report.

    Example: motes demo

    Example: motes demo --model runs/small --out demo-small

    Args:
        out: folder for report.html and, where one is learned, the model; made if it is not there.
        model: ask this one instead of learning: a shipped model's name or a run folder.
        num_clips: how many unseen clips are scored.
        seed: of the unseen clips; training uses other seeds.
        as_json: print one JSON line instead of a sentence.
    """
    from motes.output import demo as asking
    from motes.output.learning import learn, short_run

    subject = None if model is None else asking.known(model)
    config = short_run() if subject is None else subject.config
    clips = asking.unseen_clips(config, num_clips, seed)
    asking.make_folder(out)
    with asking.one_thread():
        if subject is None:
            title = f"learning from {config.data.num_clips:,} clips, from scratch"
            with learning_panel(title) as show:
                subject = asking.learned(learn(config, show))
        with bar("asking about unseen clips", asking.work(num_clips)) as progress:
            record = asking.run(subject, clips, out, seed=seed, progress=progress)
    taken = f"asked and drew in {record['seconds']:.0f} s"
    if subject.lesson is not None:
        taken = f"learned in {subject.lesson.seconds:.0f} s, {taken}"
    tell(
        {"verb": "demo", **record},
        as_json,
        f"{taken}; open this in a browser: {record['report']}\n"
        "then try: motes data --out clips.npz\n"
        f"          motes forecast clips.npz --model {model or record['model']} "
        "--seen 5 --overlay forecast.gif",
    )
