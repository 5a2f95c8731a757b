"""`motes data | demo`: clips of a simulation; train and show a model."""

from pathlib import Path

from motes.cli.options import Json, ModelName, NumObjects, Out
from motes.cli.terminal import bar, join_paths, print_result
from motes.core.files import all_or_none


def data(
    out: Out[Path] = Path("clips.npz"),
    world: str = "cannonballs",
    num_clips: int = 100,
    num_objects: NumObjects[tuple[int, ...] | None] = None,
    num_frames: int | None = None,
    size: int = 48,
    seed: int = 0,
    gif: Path | None = None,
    as_json: Json = False,
) -> None:
    """Make synthetic clips with true positions.

    Example: motes data --world bar --num-clips 100 --out clips.npz --gif first.gif

    Args:
        out: output file: npz, bit-packed if the frames are binary.
        world: simulated world: cannonballs, many, bar, drops, pictures, colour, weightless, wind,
            drag, bounce or long.
        num_clips: number of clips.
        num_objects: number of objects in a clip, drawn from the given numbers; default: 1 2 3.
        num_frames: number of frames in a clip; default: 30, for the world long 3000.
        size: frame size: pixels of a side.
        seed: random seed of the clips.
        gif: GIF to write: the first clip.
        as_json: print one JSON line instead of text.
    """
    from motes.data import save_clips, worlds, write_gif

    clips = worlds.make(world, num_clips, num_objects, num_frames, size, seed)
    with all_or_none():
        save_clips(out, clips)
        if gif is not None:
            first = clips.frames[0].float()
            write_gif(gif, first.mean(-1) if first.ndim == 4 else first)
    record = {"verb": "data", "world": world, "clips": num_clips, "seed": seed, "out": str(out)}
    print_result(
        record,
        as_json,
        f"made {num_clips} clips of {clips.video.shape[1]} frames: {join_paths(out, gif)}",
    )


def demo(
    out: Out[Path] = Path("demo"),
    model: ModelName[str | None] = None,
    num_clips: int = 90,
    seed: int = 2_000_000,
    as_json: Json = False,
) -> None:
    """Train a small model, query it about new clips, write a report.

    Example: motes demo

    Example: motes demo --model runs/small --out demo-small

    Args:
        out: output folder: report.html and the trained model; created if missing.
        model: shipped model or run folder to use instead of training one.
        num_clips: number of clips to score.
        seed: random seed of the clips to score; training uses other seeds.
        as_json: print one JSON line instead of text.
    """
    from motes.cli.live_view import training_panel
    from motes.output import demo as demonstration

    demo_model = None if model is None else demonstration.existing_model(model)
    config = demonstration.short_run() if demo_model is None else demo_model.config
    clips = demonstration.unseen_clips(config, num_clips, seed)
    demonstration.make_folder(out)
    if demo_model is None:
        title = f"training on {config.data.num_clips:,} clips, from scratch"
        with training_panel(title) as show:
            demo_model = demonstration.learn(config, show)
    with bar("querying new clips", demonstration.total_work(num_clips)) as progress:
        record = demonstration.run(demo_model, clips, out, seed=seed, progress=progress)
    duration = f"queries and figures took {record['seconds']:.0f} s"
    if demo_model.training is not None:
        duration = f"training took {demo_model.training.seconds:.0f} s, {duration}"
    print_result(
        {"verb": "demo", **record},
        as_json,
        f"{duration}; open in a browser: {record['report']}\n"
        "next: motes data --out clips.npz\n"
        f"      motes forecast clips.npz --model {model or record['model']} "
        "--num-observed 5 --overlay forecast.gif",
    )
