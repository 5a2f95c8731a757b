"""Infer, forecast, interpolate and sample with a model on unseen clips.

Usage: python examples/04_query_a_video.py [MODEL]     a shipped model or a run folder
"""

import sys

import torch

import motes
from motes.evaluation import metrics


def main(name: str) -> None:
    model = motes.load(name)
    height, width = model.image_size
    count = min(2, model.max_objects)
    clips = motes.cannonballs(20, num_objects=count, size=(height, width), seed=1_000_001)
    assert clips.clean is not None
    time = torch.arange(30)
    gap = (time >= 5) & (time < 25)

    answers = {
        "infer": (motes.infer(model, clips.frames, count), time >= 0),
        "forecast": (motes.forecast(model, clips.frames[:, :5], count, horizon=25), time >= 5),
        "interpolate": (motes.interpolate(model, clips.frames, ~gap, count), gap),
    }
    print(f"20 clips of {count} balls; error of the path, and the error that the model expects")
    print("query         frames   RMSE px   expected px")
    for query, (answer, chosen) in answers.items():
        path = metrics.reorder(
            answer.path_pixels, metrics.best_order(answer.path_pixels, clips.clean)
        )
        variances = answer.path_pixel_covariances.diagonal(dim1=-2, dim2=-1)[:, :, chosen]
        spread = variances.sum(-1).mean().sqrt()
        error = metrics.rmse(path, clips.clean, chosen)
        print(f"{query:12s}  {int(chosen.sum()):6d}  {error:8.2f}  {spread:8.2f}")

    sampled = motes.sample(model, num_clips=3, num_objects=count, seed=0)
    print("three sampled clips; first and last position of the first ball, in px:")
    for path in sampled.path_pixels[:, 0]:
        (x, y), (x_end, y_end) = path[0].tolist(), path[-1].tolist()
        print(f"  ({x:5.1f}, {y:5.1f}) -> ({x_end:5.1f}, {y_end:5.1f})")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cannonballs-48")
