"""Make the error bars of a model of the paper's family honest, without any truth.

Usage: python tools/temper_model.py FOLDER [--reference cannonballs-structured] [--num-clips 600]
"""

import argparse
from pathlib import Path

from motes.data import cannonballs
from motes.evaluation.calibration import temper
from motes.models.checkpoint import load_with_config, save_model


def main() -> None:
    """Tempers the model in a folder and writes it back in half precision, as models are shipped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--reference", default="cannonballs-structured")
    parser.add_argument("--num-clips", type=int, default=600, help="of the training clips")
    options = parser.parse_args()
    model, config = load_with_config(options.folder)
    reference, _ = load_with_config(options.reference)
    data = config.data
    size = (data.height, data.width)
    clips = cannonballs(options.num_clips, data.num_objects, data.num_frames, size, data.seed)
    assert clips.num_objects is not None
    found = temper(model, reference, clips.frames.float(), clips.num_objects)
    save_model(options.folder, model, config, half=True)
    print(f"covariances times {found.tolist()}")


if __name__ == "__main__":
    main()
