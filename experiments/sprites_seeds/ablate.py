"""Ablate the sprite family: remove one part at a time and score the rest.

Each run trains from scratch on the same clips and seed with one constant or function changed, and
is scored with that change on the test clips of `score_seeds`, whose runs have all parts.

Usage: python -m experiments.sprites_seeds.ablate OPTIONS
    --learn --part "no exchange" --seed 0
    --score --device cuda
    --merge
"""

import argparse
import contextlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from experiments.sprites_seeds.score_seeds import (
    STARTS,
    Record,
    configuration,
    kept,
    learn,
    score,
    score_new,
)
from motes.core.files import write_json
from motes.models.sprites import grid_posterior  # noqa: F401 (before it is patched)
from motes.models.sprites.renderer import phase_kernels
from motes.queries import SEARCH

SIZE, FRAMES = 48, 30


class Change(NamedTuple):
    """A constant or function of a module or class, and its value in one run."""

    module: str
    name: str
    value: Any


# Names of the removed parts, and the changes that remove them in training and queries.
PARTS: dict[str, tuple[Change, ...]] = {
    "one start": (Change("motes.training.step", "RESTARTS", ((1.0, 1.0),)),),
    "no mixture seeding": (
        Change("motes.kalman.dynamics.LinearDynamics", "fit_initial_state", lambda *given: None),
    ),
    "no exploring": (Change("motes.training.step", "EXPLORE", 0.0),),
    "exploring to the end": (Change("motes.training.step", "EXPLORE_UNTIL", 1.0),),
    "dynamics not settled": (
        Change("motes.training.step", "fit_dynamics", lambda *arguments: None),
    ),
    "one cell a pixel": (
        Change("motes.models.sprites.renderer", "CELLS_PER_PIXEL", 1),
        Change("motes.models.sprites.renderer", "phase_kernels", partial(phase_kernels, phases=1)),
        Change("motes.models.sprites.grid_posterior", "CELLS_PER_PIXEL", 1),
    ),
    "one look at first": (Change("motes.models.sprites.forward_pass", "PASSES_PER_FRAME", 1),),
    "no search of whole frames": (
        Change(
            "motes.models.sprites.forward_pass",
            "redetect_lost",
            lambda sprite, frame, found, lost: found,
        ),
    ),
    "edges are sightings": (
        Change("motes.models.sprites.likelihood_maps", "MIN_LLR_FRACTION", 0.0),
    ),
    "no second look": (Change("motes.models.sprites.search", "REVISITS", 0),),
    "no exchange": (Change("motes.models.sprites.search", "MAX_SWAPS", 0),),
    "no later hypotheses": (Change("motes.queries", "SEARCH", SEARCH._replace(hypotheses=1)),),
}


@contextlib.contextmanager
def without(part: str) -> Iterator[None]:
    """Remove a part within the block."""
    with contextlib.ExitStack() as stack:
        for module, name, value in PARTS[part]:
            stack.enter_context(mock.patch(f"{module}.{name}", value))
        yield


def score_without(folder: Path, num_clips: int, device: str) -> Record:
    """Return the scores of a run without the part that it was trained without."""
    part = json.loads((folder / "learned.json").read_text("utf-8"))["part"]
    with without(part):
        return score(folder, num_clips, device)


def merge(folder: Path, note: str) -> Record:
    """Return all records of a folder as one, in order."""
    records = [kept(json.loads(path.read_text("utf-8"))) for path in folder.glob("*.json")]
    records.sort(key=lambda record: (list(PARTS).index(record["part"]), record["seed"]))
    return {"note": note, "runs": records}


def main() -> None:
    """Learn, score, or merge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for step in ("learn", "score", "merge"):
        parser.add_argument(f"--{step}", action="store_true")
    parser.add_argument("--part", choices=PARTS, default="no exchange")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clips", type=int, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=Path, default=Path("runs/ablations"))
    parser.add_argument("--note", default="One after the other", help="how they were run")
    parser.add_argument(
        "--out", type=Path, default=Path("experiments/sprites_seeds/ablation_structured.json")
    )
    given = parser.parse_args()
    if given.learn:
        config = configuration(SIZE, FRAMES, given.seed, STARTS["as it is"])
        folder = given.runs / f"{given.part.replace(' ', '-')}-{given.seed}"
        with without(given.part):
            learn(config, folder, {"part": given.part}, given.device)
    if given.score:
        score_new(given.runs, lambda folder: score_without(folder, given.clips, given.device))
    if given.merge:
        write_json(given.out, merge(given.runs, given.note))


if __name__ == "__main__":
    main()
