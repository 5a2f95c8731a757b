"""Train a very small model, and list the files of its run folder.

Usage: python examples/03_train_a_tiny_model.py [NEW_FOLDER]
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import motes
from motes.training.presets import PRESETS
from motes.training.train import train


def show(line: dict[str, Any]) -> None:
    """Print one report of training."""
    if "bound" in line:
        print(
            f"step {line['step']:3d}  bound {line['bound']:9.1f} nats per clip  "
            f"KL weight {line['kl_weight']:.2f}  blur {line['blur']:.2f} px"
        )


def main(folder: Path) -> None:
    outcome = train(PRESETS["paper-smoke"], folder, report=show)
    print(f"finished at step {outcome.step}, held-out bound {outcome.held_out_bound:.1f}")
    for path in sorted(folder.iterdir()):
        print(f"  {path.name}")

    model = motes.load(folder)
    clips = motes.cannonballs(num_clips=4, num_objects=2, num_frames=8, size=16, seed=1)
    answer = motes.infer(model, clips.frames, num_objects=clips.num_objects)
    print(f"positions in 4 clips: pixels of shape {tuple(answer.pixels.shape)}")
    print("train a useful model with: motes train --preset sprites-small --out runs/small")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
