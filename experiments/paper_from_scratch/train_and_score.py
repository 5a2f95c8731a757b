"""Train seeds of the preset `paper-scratch` or `paper-scratch-small` side by side; score them.

Scores are of 600 clips of the usual test seed and of 600 fresh clips by which nothing was chosen,
with the stored scores of the limit beside them (`limits.py`). The record is written again after
every step. With too little time left, training stops (the same command continues it) or the fresh
clips are left out.

Usage: python -m experiments.paper_from_scratch.train_and_score OPTIONS
    --device cuda --run /tmp/scratch --out OUT --seconds 560
    --device cuda --side 32 --replicas 4 --run /tmp/scratch_32 --out OUT
    --device cuda --frames 50 --hidden 0.25 --replicas 4 --run /tmp/scratch_T50 --out OUT
    --preset paper-scratch-small --seed 2 --replicas 1 --threads 2 --run /tmp/small_2 --out OUT
    --smoke --run /tmp/smoke --out OUT      (tiny sizes, to see that everything runs)

Writes OUT/record.json, OUT/config.json and the chosen model with float16 weights in parts of at
most 12 MB; join them with: cat OUT/model.safetensors.part* > model.safetensors
"""

import argparse
import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from experiments.paper_training.score_replicas import row, score_limit, score_seed
from experiments.sprites_seeds.score_seeds import GPU_BATCH
from motes.config import DataConfig, RunConfig, ScheduleConfig
from motes.core.environment import environment
from motes.core.files import write_json
from motes.data import Clips, cannonballs
from motes.evaluation import metrics
from motes.evaluation.evaluate import BATCH, query_masks, score_clips
from motes.evaluation.predictor import ModelPredictor, ask_predictor
from motes.evaluation.scores import query_scores
from motes.models.checkpoint import load_with_config, save_model
from motes.training.presets import PRESETS
from motes.training.self_distillation import FIRST_STAGE
from motes.training.train import Outcome, resume, train

BEGUN = time.monotonic()
TEST_SEED, FRESH_SEED = 3_000_000, 7_000_003
LIMITS = Path(__file__).parent / "records" / "limits.json"
STOP_BEFORE = 25.0  # seconds before the end at which training stops and saves
FRESH_NEEDS = 40.0  # seconds that must be left to begin with the fresh clips
SEED_NEEDS = 8.0  # and to score one more seed
GAP_PASSES = (1, 3, 4)  # readings of clips with hidden frames, beside those of the preset
MAP_STEPS = 500  # steps between stored pictures of the latent plane
PART_BYTES = 12_000_000
Record = dict[str, Any]


def configuration(given: argparse.Namespace) -> RunConfig:
    """Return the preset with few checkpoints, or a tiny run through all stages."""
    if not given.smoke:
        config = PRESETS[given.preset]
        data = dataclasses.replace(
            config.data,
            height=given.side or config.data.height,
            width=given.side or config.data.width,
            num_frames=given.frames or config.data.num_frames,
        )
        every = config.schedule.iterations // 2 if given.maps is None else MAP_STEPS
        return dataclasses.replace(
            config,
            data=data,
            seed=given.seed,
            hidden_clips=given.hidden,
            log_every=1_000,
            checkpoint_every=every,
        )
    return dataclasses.replace(
        PRESETS["paper-smoke"],
        data=dataclasses.replace(PRESETS["paper-smoke"].data, num_objects=(1, 2, 3)),
        model=dataclasses.replace(PRESETS["paper-smoke"].model, gap_passes=2),
        single_object_schedule=ScheduleConfig(iterations=20, frozen_dynamics=5),
        schedule=ScheduleConfig(iterations=20, frozen_dynamics=12, distillation_steps=10),
        seed=given.seed,
    )


def say(*words: object) -> None:
    """Print words with the time since the start."""
    print(f"[{time.monotonic() - BEGUN:6.1f}]", *words, flush=True)


def report(line: Record, maps: Path | None = None) -> None:
    """Print some log lines of the first seed; keep the pictures of the latent plane."""
    folder = Path(line["folder"])
    if maps is not None and "folded" in line:
        maps.mkdir(parents=True, exist_ok=True)
        stage = "single" if folder.name == FIRST_STAGE else "all"
        shutil.copyfile(folder / "latent_map.png", maps / f"{stage}_{line['step']:05d}.png")
    bound = line.get("held_out_bound", line.get("bound"))
    if (
        bound is not None
        and not re.search("seed-[1-9]", str(line["folder"]))
        and line["step"] % 5_000 == 0
    ):
        say(Path(line["folder"]).name, line["step"], f"{bound:.0f}")


def learn(
    config: RunConfig,
    folder: Path,
    replicas: int,
    device: str,
    seconds: float,
    maps: Path | None = None,
) -> Outcome:
    """Train into a folder or continue there; stop and save after so many seconds."""
    done, end = threading.Event(), time.monotonic() + seconds
    keep = functools.partial(report, maps=maps)

    def stop_in_time() -> None:
        while not done.wait(1.0):
            if time.monotonic() > end:  # repeated: between stages the signal is ignored
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=stop_in_time, daemon=True).start()
    try:
        if (folder / "config.json").is_file():
            return resume(folder, device=device, report=keep)
        return train(config, folder, device=device, replicas=replicas, report=keep)
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
    limit = score_limit(clips) if given.smoke else stored.get(limit_name(config.data, seed))
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
        part["runs"][own]["gap_px_by_passes"] = {
            str(n): gap_errors(folder / own, clips, given.device, n) for n in GAP_PASSES
        }
        write_record(record, given.out)
        say(name, row(own, part["runs"][own]))


def gap_errors(folder: Path, clips: Clips, device: str, passes: int) -> Record:
    """Return the errors in the gap if the clips are read several times, by number of objects."""
    model, _ = load_with_config(folder, device=device)
    inference: Any = model.inference
    inference.gap_passes = passes
    found = score_clips(
        ask_predictor(ModelPredictor(model)),
        clips,
        lambda start, num_frames: {"interpolation": query_masks(num_frames)["interpolation"]},
        lambda name, prediction, truth, shown: query_scores(name, prediction, truth, shown, None),
        batch_size=BATCH if device == "cpu" else GPU_BATCH,
    )
    return {str(n): float(metrics.score(own["interpolation_rmse"])) for n, own in found.items()}


def limit_name(data: DataConfig, seed: int) -> str:
    """Return the key of `records/limits.json`: the seed, with other sizes than 48x48, T = 30."""
    size = (data.height, data.num_frames)
    return str(seed) if size == (48, 30) else f"{seed}_{size[0]}_T{size[1]}"


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
    parser.add_argument(
        "--preset", choices=("paper-scratch", "paper-scratch-small"), default="paper-scratch"
    )
    parser.add_argument("--side", type=int, help="of a frame in pixels")
    parser.add_argument("--frames", type=int, help="in a clip")
    parser.add_argument("--seed", type=int, default=0, help="of the first replica")
    parser.add_argument("--hidden", type=float, default=0.0, help="hidden_clips")
    parser.add_argument("--maps", type=Path, help="folder of pictures of the latent plane")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--clips", type=int, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=560.0, help="time for everything")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(given.threads)  # on a GPU fits of all seeds run in threads
    if given.smoke:
        given.clips = min(given.clips, 12)
    config = configuration(given)
    record: Record = {
        "preset": "smoke" if given.smoke else given.preset,
        "command": " ".join(sys.argv),
        "environment": environment(torch.device(given.device)),
    }
    outcome = learn(
        config, given.run, given.replicas, given.device, left(given) - STOP_BEFORE, given.maps
    )
    record |= {"finished": outcome.finished, "step": outcome.step}
    record["training_seconds"] = time.monotonic() - BEGUN
    write_record(record, given.out)
    say(f"step {outcome.step}, finished: {outcome.finished}")
    if not outcome.finished:
        say("give the same command again to continue")
        return 3
    if given.replicas == 1:
        record |= {"chosen": ".", "bounds": {".": outcome.held_out_bound}}
    else:
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
