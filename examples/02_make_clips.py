"""Generate clips of cannonballs, on Earth and on the Moon, and save them.

Usage: python examples/02_make_clips.py [FOLDER]
"""

import sys
from pathlib import Path

import motes
from motes.data import write_gif


def as_text(frame: list[list[int]]) -> str:
    """Return a frame as text, two rows of pixels per line."""
    marks = {(0, 0): " ", (1, 0): "▀", (0, 1): "▄", (1, 1): "█"}
    pairs = zip(frame[::2], frame[1::2], strict=True)
    return "\n".join(
        "|" + "".join(marks[above, below] for above, below in zip(*rows, strict=True)) + "|"
        for rows in pairs
    )


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    clips = motes.cannonballs(num_clips=100, num_objects=(1, 2, 3), seed=0)
    assert clips.num_objects is not None
    assert clips.positions is not None  # clips from a file may come without truth
    print(f"frames {tuple(clips.frames.shape)}, balls in the first clips:", end=" ")
    print(clips.num_objects[:8].tolist())
    print("frame 10 of the first clip:")
    print(as_text(clips.frames[0, 10].tolist()))
    x, y = clips.positions[0, 0, 10].tolist()
    print(f"its first ball is drawn at x = {x:.1f}, y = {y:.1f} px")

    motes.save_clips(folder / "clips.npz", clips)
    write_gif(folder / "first.gif", clips.frames[0].float())

    moon = motes.cannonballs(num_clips=10, num_objects=2, num_frames=50, seed=0, gravity=1.62)
    motes.save_clips(folder / "moon.npz", moon)
    for path in sorted(folder.iterdir()):
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("example-clips"))
