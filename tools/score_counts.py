"""How well the number of objects is found when it is not told, and how far to believe that.

Clips hold 1 to 5 cannonballs, and up to 6 may be claimed; the model learned from 1 to 3. It is
asked after a few frames and after all of them: at first an object may be behind another.

Usage: python tools/score_counts.py --part 0 --clips 75 --runs runs/counts   (parts side by side)
       python tools/score_counts.py --merge runs/counts    (record, picture and the page)
       python tools/score_counts.py --page                 (the page from the record)
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import motes
from motes.checkpoint import write_json
from motes.data import worlds
from motes.run_folder import environment
from motes.shapes import Float, Tensor
from motes.world_scores import COUNTED, TEST_SEED, believed_counts, count_scores

ROOT = Path(__file__).parent.parent
RECORD, PICTURE = ROOT / "results" / "counts.json", ROOT / "docs" / "images" / "counts.png"
PAGE = ROOT / "docs" / "structured.md"
OPEN, CLOSE = "<!-- counts: made by tools/score_counts.py -->", "<!-- end of counts -->"
SEEN = (2, 3, 5, 30)  # frames that are seen
BATCH = 25
Record = dict[str, Any]


def score_part(name: str, part: int, num_clips: int, path: Path) -> None:
    """Write what is believed of some clips, batch by batch."""
    model = motes.load(name)
    clips = worlds.make("cannonballs", num_clips, COUNTED, seed=TEST_SEED + 1 + part)
    truth = clips.num_objects
    assert truth is not None
    record: Record = {"model": name, "environment": environment(torch.device("cpu"))}
    record |= {"truth": [], "seconds": 0.0, "believed": {str(seen): [] for seen in SEEN}}
    for start in range(0, num_clips, BATCH):
        batch = clips[start : start + BATCH]
        begun = time.monotonic()
        for seen in SEEN:
            told = believed_counts(model, batch.frames[:, :seen].float())
            record["believed"][str(seen)] += told.tolist()
        record["seconds"] += time.monotonic() - begun
        record["truth"] += truth[start : start + BATCH].tolist()
        write_json(path, record)


def merge(folder: Path) -> Record:
    """Return the scores of all parts together."""
    parts = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    truth = torch.tensor([count for part in parts for count in part["truth"]])

    def believed(seen: str) -> Float[Tensor, "B counts"]:
        rows = [row for part in parts for row in part["believed"][seen]]
        return torch.tensor(rows, dtype=torch.float64)

    return {
        "model": parts[0]["model"],
        "after": {seen: count_scores(believed(seen), truth) for seen in parts[0]["believed"]},
        "seconds_a_clip": sum(part["seconds"] for part in parts) / len(truth),
        "environment": parts[0]["environment"],
    }


def draw(record: Record) -> bytes:
    """Return the reliability diagram: how often a count was true that was so probable."""
    from motes.pictures import axes_grid, png

    figure, axes = axes_grid(1, len(record["after"]), cell=2.2, room=(0.3, 0.45))
    for axis, (seen, scores) in zip(axes[0], record["after"].items(), strict=True):
        axis.plot([0, 1], [0, 1], color="#999999", lw=0.8)
        for row in scores["reliability"]:
            # Two standard errors of a share of so many cases, were it what was said.
            error = 2 * (row["said"] * (1 - row["said"]) / row["cases"]) ** 0.5
            axis.errorbar(row["said"], row["happened"], error, color="#0072b2", marker="o", ms=4)
        axis.set_title(f"{seen} frames: {scores['accuracy']:.1%} right", fontsize=9)
        axis.set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05), xlabel="probability said")
    axes[0, 0].set_ylabel("share that was so", fontsize=9)
    return png(figure)


def told(record: Record) -> str:
    """Return the paragraph for the page."""
    rows = []
    for seen, scores in record["after"].items():
        by_count = " / ".join(f"{share:.3f}" for share in scores["by_count"].values())
        rows.append(
            f"| {seen} | {scores['accuracy']:.3f} | {by_count} | {scores['mean_said']:.3f} "
            f"| {scores['nats']:.4f} |"
        )
    first = next(iter(record["after"].values()))
    where = record["environment"]
    return "\n".join(
        [
            "| frames seen | count right | N = 1 / 2 / 3 / 4 / 5 | probability given | nats |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"{first['clips']} clips of 1 to 5 objects, up to 6 may be claimed; "
            f"`{record['model']}` learned from 1 to 3. The last column is the mean of -log of the "
            "probability of the true count. "
            f"Commit {where['motes_commit'][:10]}, {where['processor']}.",
            "",
            "![Counts that were given a probability, and how often they were true]"
            "(images/counts.png)",
        ]
    )


def write_page(record: Record) -> None:
    """Put the paragraph into the page."""
    page = PAGE.read_text("utf-8")
    before, rest = page.split(OPEN)
    after = rest.split(CLOSE)[1]
    PAGE.write_text(f"{before}{OPEN}\n\n{told(record)}\n\n{CLOSE}{after}", encoding="utf-8")


def main() -> None:
    """Score a part, or put the parts together."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cannonballs-structured")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--clips", type=int, default=75)
    parser.add_argument("--runs", type=Path, default=Path("runs/counts"))
    parser.add_argument("--merge", type=Path)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.merge is not None:
        write_json(RECORD, merge(given.merge))
        PICTURE.write_bytes(draw(json.loads(RECORD.read_text("utf-8"))))
    if given.merge is not None or given.page:
        return write_page(json.loads(RECORD.read_text("utf-8")))
    given.runs.mkdir(parents=True, exist_ok=True)
    score_part(given.model, given.part, given.clips, given.runs / f"{given.part}.json")


if __name__ == "__main__":
    main()
