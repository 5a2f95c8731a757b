"""Track objects through clips of 3,000 frames; record accuracy, memory and time.

A model is trained on short clips of the world `long` and tested on long ones, beside the oracle,
which is given the true law and the set of detections in every frame, without identities. The
record is written clip by clip.

Usage: python -m experiments.long_clips.score_long --seed 0 --runs runs/worlds
           --out experiments/long_clips/long.json
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import motes
from benchmarks.scale import peak_memory
from experiments.worlds.oracle import Law, log_evidence
from experiments.worlds.score_worlds import learn, log, store
from experiments.worlds.world_scores import TASKS, TEST_SEED, ask_oracle, inside
from motes.core.axes import Float, Tensor
from motes.core.environment import environment
from motes.data import Clips, worlds
from motes.evaluation import metrics
from motes.evaluation.predictor import Prediction, Truth
from motes.models.model import Model
from motes.queries.answer import Answer

LENGTHS = (300, 3000)


def surplus(found: Float[Tensor, "1 N T 2"], truth: Float[Tensor, "1 N T 2"], law: Law) -> float:
    """Return the log-likelihood of the inferred identities less that of the true ones, in nats.

    Where it is positive, the true identities cannot be recovered from the positions and the law.
    """
    frames = [part[0].transpose(0, 1)[:, :, None] for part in (found, truth)]  # T N 1 2
    order = metrics.best_order(*frames).T[None]
    true = found.take_along_dim(order[..., None], 1)
    one, other = (log_evidence(tracks.double(), law) for tracks in (found, true))
    return float(one - other)


def scores(answer: Answer | Prediction, clips: Clips, law: Law) -> dict[str, float]:
    """How well the tracks of one clip are kept, and how far off they are while they are."""
    assert clips.positions is not None
    assert clips.clean is not None
    assert answer.pixels is not None
    assert answer.path_pixels is not None
    assert answer.pixel_covariances is not None
    truth, num_positions = clips.positions.to(answer.pixels), clips.positions[..., 0].numel()
    apart = (answer.pixels[:, :, None] - truth[:, None]).norm(dim=-1)  # B estimate truth T
    order = metrics.best_order(answer.path_pixels, clips.clean)
    own = metrics.reorder(answer.pixels, order)
    covariances = metrics.reorder(answer.pixel_covariances, order)
    return {
        "tracked": float(metrics.tracked(own, truth)),
        "near": float(((own - truth).norm(dim=-1) <= metrics.TRACKED_WITHIN).double().mean()),
        "surplus": round(surplus(answer.pixels, truth, law), 2),
        "switches": int(metrics.switches(answer.pixels, truth)),
        "idf1": int(metrics.identified(answer.pixels, truth)) / num_positions,
        "found": float((apart.amin(1) <= metrics.GATE).double().mean()),
        "noisy_rmse": metrics.rmse(own, truth),
        "coverage90": float(inside(own, covariances, truth).mean()),
    }


def ask(model: Model, clips: Clips, count: int, law: Law) -> dict[str, float]:
    """The scores of a model on one clip, with the seconds and the memory that it took."""
    frames = clips.frames.float()
    with peak_memory() as grown:
        wall, cpu = time.monotonic(), time.process_time()
        answer = motes.infer(model, frames, count)
        taken = time.monotonic() - wall, time.process_time() - cpu
    return {
        **scores(answer, clips, law),
        "seconds": round(taken[0], 1),
        "cpu_seconds": round(taken[1], 1),
        "peak_mib": round(grown.peak, 1),
        "video_mib": round(frames.numel() * 4 / 2**20, 1),
    }


def main() -> None:
    """Learn if need be, then ask about one clip after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0, help="of the training run")
    parser.add_argument("--num-clips", type=int, default=2000, help="to learn from")
    parser.add_argument(
        "--clips", type=int, default=4, help="to ask about, of each count and length"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--counts", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--runs", type=Path, default=Path("runs/worlds"))
    parser.add_argument("--out", type=Path, default=Path("experiments/long_clips/long.json"))
    given = parser.parse_args()
    folder, law = given.runs / f"long-{given.seed}", Law.of(worlds.physics_of("long", 30))
    if not (folder / "training.json").exists():
        learn(TASKS["long"], given.seed, folder, given.num_clips)
    model = motes.load(folder)
    record: dict[str, Any] = {
        "training": json.loads((folder / "training.json").read_text("utf-8")),
        "asked": [],
    }
    store(given.out, "environment", record=environment(torch.device("cpu")))
    for number in range(given.clips):
        for length in given.lengths:
            for count in given.counts:
                clips = worlds.make("long", 1, count, length, seed=TEST_SEED + number)
                line = {"clip": number, "frames": length, "objects": count}
                answer = ask(model, clips, count, law)
                everything = torch.ones(length, dtype=torch.bool)
                best = ask_oracle(law)(Truth.of(clips, count), everything)
                oracle = scores(best, clips, law)
                record["asked"].append({**line, "model": answer, "oracle": oracle})
                store(given.out, "runs", str(given.seed), record=record)
                log(json.dumps(record["asked"][-1]))


if __name__ == "__main__":
    main()
