"""`motes calibrate`: correct the error bars of a trained model, without true positions."""

from pathlib import Path

from tyro.conf import Positional

from motes.cli.options import Data, Json, Out, print_result
from motes.evaluation.calibration import NUM_CLIPS, REFERENCE, calibrate_run


def calibrate(
    model: Positional[str],
    data: Data[Path | None] = None,
    out: Out[Path | None] = None,
    reference: str = REFERENCE,
    num_clips: int = NUM_CLIPS,
    as_json: Json = False,
) -> None:
    """Correct the error bars of a model of the paper, without true positions.

    Example: motes calibrate runs/small --reference runs/sprites-small

    Args:
        model: shipped model or run folder, of the paper's family.
        data: clip file: npz with frames and num_objects; default: the training clips of the model.
        out: output folder: the calibrated model; default: the run folder itself.
        reference: sprite model of the same clips, whose posterior gives the scale of the error
            bars.
        num_clips: number of clips to use, at most.
        as_json: print one JSON line instead of text.
    """
    scales = calibrate_run(model, data, out, reference, num_clips).tolist()
    folder = model if out is None else str(out)
    record = {"verb": "calibrate", "model": model, "covariance_scales": scales, "out": folder}
    shown = ", ".join(f"{scale:.2f}" for scale in scales)
    text = f"covariances of 1, 2, ... objects are scaled by {shown}: {folder}"
    print_result(record, as_json, text)
