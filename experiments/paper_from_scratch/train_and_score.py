"""Train eight seeds of the preset `paper-scratch` side by side and score all of them.

Scores are of 600 clips of the usual test seed and of 600 fresh clips by which nothing was chosen,
with the stored scores of the limit beside them. The record is written again after every step. With
too little time left, training stops (the same command continues it) or the fresh clips are left
out.

Usage: python -m experiments.paper_from_scratch.train_and_score OPTIONS
    --device cuda --run /tmp/scratch --out OUT --seconds 560
    --smoke --run /tmp/smoke --out OUT      (tiny sizes, to see that everything runs)

Writes OUT/record.json, OUT/config.json and the chosen model with float16 weights in parts of at
most 12 MB; join them with: cat OUT/model.safetensors.part* > model.safetensors
"""

import argparse
import dataclasses
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from experiments.paper_training.score_replicas import row, score_limit, score_seed
from motes.config import RunConfig, ScheduleConfig
from motes.core.environment import environment
from motes.data import Clips, cannonballs
from motes.models.model import load_with_config, save_model, write_json
from motes.training.presets import PRESETS
from motes.training.train import Outcome, resume, train

BEGUN = time.monotonic()
TEST_SEED, FRESH_SEED = 3_000_000, 7_000_003
LIMITS = Path(__file__).parent / "records" / "limits.json"
STOP_BEFORE = 25.0  # seconds before the end at which training stops and saves
FRESH_NEEDS = 40.0  # seconds that must be left to begin with the fresh clips
SEED_NEEDS = 8.0  # and to score one more seed
PART_BYTES = 12_000_000
Record = dict[str, Any]


def configuration(smoke: bool) -> RunConfig:
    """Return the preset with few checkpoints, or a tiny run through all stages."""
    if not smoke:
        return dataclasses.replace(
            PRESETS["paper-scratch"], log_every=1_000, checkpoint_every=27_000
        )
    return dataclasses.replace(
        PRESETS["paper-smoke"],
        data=dataclasses.replace(PRESETS["paper-smoke"].data, num_objects=(1, 2, 3)),
        single_object_schedule=ScheduleConfig(iterations=20, frozen_dynamics=5),
        schedule=ScheduleConfig(iterations=20, frozen_dynamics=12, distillation_steps=10),
    )


def say(*words: object) -> None:
    """Print words with the time since the start."""
    print(f"[{time.monotonic() - BEGUN:6.1f}]", *words, flush=True)


def report(line: Record) -> None:
    """Print some log lines of the first seed."""
    bound = line.get("held_out_bound", line.get("bound"))
    if bound is not None and "seed-0" in str(line["folder"]) and line["step"] % 5_000 == 0:
        say(Path(line["folder"]).name, line["step"], f"{bound:.0f}")


def learn(config: RunConfig, folder: Path, replicas: int, device: str, seconds: float) -> Outcome:
    """Train into a folder or continue there; stop and save after so many seconds."""
    done, end = threading.Event(), time.monotonic() + seconds

    def stop_in_time() -> None:
        while not done.wait(1.0):
            if time.monotonic() > end:  # repeated: between stages the signal is ignored
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=stop_in_time, daemon=True).start()
    try:
        if (folder / "config.json").is_file():
            return resume(folder, device=device, report=report)
        return train(config, folder, device=device, replicas=replicas, report=report)
    finally:
        done.set()
        signal.signal(signal.SIGTERM, before)


def hand_over(folder: Path, out: Path) -> None:
    """Write the configuration and the float16 weights of a model, the weights in parts."""
    model, config = load_with_config(folder)
    save_model(out, model, config, half=True)
    whole = out / "model.safetensors"
    content = whole.read_bytes()
    whole.unlink()
    for part, start in enumerate(range(0, len(content), PART_BYTES)):
        (out / f"{whole.name}.part{part}").write_bytes(content[start : start + PART_BYTES])


def test_clips(config: RunConfig, num_clips: int, seed: int) -> Clips:
    """Return clips of a seed, as many with each number of objects."""
    data = config.data
    counts, size = tuple(sorted(set(data.num_objects))), (data.height, data.width)
    return cannonballs(num_clips, counts, data.num_frames, size, seed=seed)


def score(
    record: Record, config: RunConfig, given: argparse.Namespace, name: str, seed: int
) -> None:
    """Add the scores of all seeds on the clips of one test seed; the chosen seed comes first."""
    clips, folder = test_clips(config, given.clips, seed), given.run
    stored = json.loads(LIMITS.read_text("utf-8"))
    limit = score_limit(clips) if given.smoke else stored.get(str(seed))
    part: Record = {"test_seed": seed, "clips": given.clips, "limit": limit, "runs": {}}
    record[name] = part
    for own in sorted(record["bounds"], key=lambda own: (own != record["chosen"], own)):
        if left(given) < SEED_NEEDS:
            part["left_out"] = f"{own} and later seeds: no time was left"
            break
        bound = record["bounds"][own]
        part["runs"][own] = {
            "held_out_bound": bound,
            **score_seed(folder / own, clips, given.device),
        }
        write_record(record, given.out)
        say(name, row(own, part["runs"][own]))


def left(given: argparse.Namespace) -> float:
    """Return the seconds that are left."""
    return float(given.seconds) - (time.monotonic() - BEGUN)


def write_record(record: Record, out: Path) -> None:
    """Write the record as it is so far."""
    write_json(out / "record.json", record | {"seconds": time.monotonic() - BEGUN})


def main() -> int:
    """Train, hand over the chosen model, score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="folder of all seeds")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--clips", type=int, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=560.0, help="time for everything")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.device == "cuda":
        torch.set_num_threads(2)  # fits of all seeds run in threads
    if given.smoke:
        given.clips = min(given.clips, 12)
    config = configuration(given.smoke)
    record: Record = {
        "preset": "smoke" if given.smoke else "paper-scratch",
        "environment": environment(torch.device(given.device)),
    }
    outcome = learn(config, given.run, given.replicas, given.device, left(given) - STOP_BEFORE)
    record |= {"finished": outcome.finished, "step": outcome.step}
    record["training_seconds"] = time.monotonic() - BEGUN
    write_record(record, given.out)
    say(f"step {outcome.step}, finished: {outcome.finished}")
    if not outcome.finished:
        say("give the same command again to continue")
        return 3
    selection = json.loads((given.run / "selection.json").read_text("utf-8"))
    record |= {"chosen": selection["chosen"], "bounds": selection["bounds"]}
    hand_over(given.run, given.out)
    write_record(record, given.out)
    say("chosen:", record["chosen"])
    score(record, config, given, "clips", TEST_SEED)
    if left(given) < FRESH_NEEDS:
        record["fresh_clips"] = "left out: no time was left"
    else:
        score(record, config, given, "fresh_clips", FRESH_SEED)
    write_record(record, given.out)
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
