"""Calibrate the error bars of a model and write it in half precision, as models are shipped.

Usage: python tools/temper_model.py FOLDER [--reference cannonballs-structured] [--num-clips 600]
"""

import argparse
from pathlib import Path

from motes.evaluation.calibration import NUM_CLIPS, REFERENCE, calibrate_run


def main() -> None:
    """Calibrate the model in a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--reference", default=REFERENCE)
    parser.add_argument("--num-clips", type=int, default=NUM_CLIPS, help="of the training clips")
    given = parser.parse_args()
    scales = calibrate_run(
        given.folder, reference=given.reference, num_clips=given.num_clips, half=True
    )
    print(f"covariances times {scales.tolist()}")


if __name__ == "__main__":
    main()
