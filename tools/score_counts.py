"""How well the number of objects is found when it is not told, and how far to believe that.

Clips hold 1 to 6 cannonballs; the model learned from 1 to 3. It is asked after a few frames and
after all of them: at first an object may be behind another. Clear clips leave little doubt, so
there are faint ones too, of which a model learns that pixels of objects show now and then, and
others as well.

Usage: python tools/score_counts.py --learn runs/faint           (a model of faint clips)
       python tools/score_counts.py --score clear --clips 600 --runs runs/counts
       python tools/score_counts.py --score faint --model runs/faint/model --runs runs/counts
       python tools/score_counts.py --score clear --clips 100 --first 500   (a part of them)
       python tools/score_counts.py --merge --runs runs/counts   (record, picture and the page)
       python tools/score_counts.py --page                       (the page from the record)
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch
from world_scores import COUNTED, TEST_SEED, believed_counts, count_scores

import motes
from motes.core.axes import Float, Tensor
from motes.data import Clips, cannonballs, save_clips
from motes.models.checkpoint import write_json
from motes.training.presets import preset
from motes.training.run_folder import environment
from motes.training.train import train

ROOT = Path(__file__).parent.parent
RECORD, PICTURE = ROOT / "results" / "counts.json", ROOT / "docs" / "images" / "counts.png"
PAGE = ROOT / "docs" / "results" / "sprites.md"
OPEN, CLOSE = "<!-- counts: made by tools/score_counts.py -->", "<!-- end of counts -->"
SEEN = (1, 2, 3, 5, 30)  # frames that are seen
BATCH, GPU_BATCH = 25, 300
LIT, DARK = 0.35, 0.01  # chances that a pixel shows in faint clips, in an object and elsewhere
Record = dict[str, Any]


def fade(clips: Clips, seed: int) -> Clips:
    """Return clips of which each pixel shows by chance, more often in objects than elsewhere."""
    clear = clips.frames.float()
    chance = torch.rand(clear.shape, generator=torch.Generator().manual_seed(seed))
    return dataclasses.replace(clips, video=(chance < DARK + (LIT - DARK) * clear).float())


def learn_faint(folder: Path, num_clips: int) -> None:
    """Train a model of faint clips; it is told how many objects each holds, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    config = preset("structured", "robust")
    save_clips(folder / "clips.npz", fade(cannonballs(num_clips, (1, 2, 3), seed=1), seed=1))
    data = dataclasses.replace(config.data, path=str(folder / "clips.npz"))
    train(dataclasses.replace(config, data=data), folder / "model")


def score(kind: str, name: str, some: range, device: str, path: Path) -> None:
    """Write what is believed of some clips, batch by batch."""
    model = motes.load(name, device=device)
    clips = cannonballs(some.stop, COUNTED, seed=TEST_SEED + 1)
    if kind == "faint":
        clips = fade(clips, seed=TEST_SEED + 1)
    assert clips.num_objects is not None
    size = BATCH if device == "cpu" else GPU_BATCH
    record: Record = {"kind": kind, "model": name if kind == "clear" else "learned from such clips"}
    record |= {"environment": environment(model.device), "seconds": 0.0, "truth": []}
    record["believed"] = {str(seen): [] for seen in SEEN}
    for start in some[::size]:
        batch, begun = slice(start, min(start + size, some.stop)), time.monotonic()
        for seen in SEEN:
            frames = clips.frames[batch, : max(seen, 2)].float().to(device)
            record["believed"][str(seen)] += believed_counts(model, frames, seen).tolist()
        record["seconds"] += time.monotonic() - begun
        record["truth"] += clips.num_objects[batch].tolist()
        write_json(path, record)


def merge(folder: Path) -> dict[str, Record]:
    """Return the scores of each kind of clips, whose parts may lie in several files."""
    whole: dict[str, Record] = {}
    for path in sorted(folder.glob("*.json")):
        part = json.loads(path.read_text("utf-8"))
        so_far = whole.setdefault(part["kind"], part)
        if so_far is part:
            continue
        so_far["truth"] += part["truth"]
        so_far["seconds"] += part["seconds"]
        for seen, rows in part["believed"].items():
            so_far["believed"][seen] += rows
    merged = {}
    for kind, part in whole.items():
        truth = torch.tensor(part["truth"])

        def scores(rows: list[list[float]], truth: Tensor = truth) -> Record:
            believed: Float[Tensor, "B counts"] = torch.tensor(rows, dtype=torch.float64)
            return count_scores(believed, truth)

        merged[kind] = {
            "model": part["model"],
            "after": {seen: scores(rows) for seen, rows in part["believed"].items()},
            "seconds_a_clip": part["seconds"] / len(truth),
            "environment": part["environment"],
        }
    return merged


def draw(record: dict[str, Record]) -> bytes:
    """Return the reliability diagrams: how often a count was true that was so probable."""
    from motes.output.plots import axes_grid, png

    least = 3e-4  # what is said or happens less often is drawn there
    figure, axes = axes_grid(len(record), len(SEEN), cell=2.2, room=(0.4, 0.5))
    for row, (kind, told) in zip(axes, record.items(), strict=True):
        for axis, (seen, scores) in zip(row, told["after"].items(), strict=True):
            axis.plot([least, 1 - least], [least, 1 - least], color="#999999", lw=0.8)
            for point in scores["reliability"]:
                said, number = point["said"], point["cases"]
                # Two standard errors of a share of so many cases, were it what was said.
                error = 2 * (max(said * (1 - said), 1e-12) / number) ** 0.5
                shown = [min(max(x, least), 1 - least) for x in (said, point["happened"])]
                low, high = (min(max(said + e, least), 1 - least) for e in (-error, error))
                axis.plot([shown[0]] * 2, [low, high], color="#999999", lw=3, alpha=0.5)
                axis.plot(*shown, color="#0072b2", marker="o", ms=4)
            axis.set(xscale="logit", yscale="logit")
            axis.set_xlabel("probability said", fontsize=8)
            axis.set(xlim=(least / 2, 1 - least / 2), ylim=(least / 2, 1 - least / 2))
            ticks = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
            for side in (axis.xaxis, axis.yaxis):
                side.set_ticks(ticks, [f"{tick:g}".lstrip("0") for tick in ticks], fontsize=6)
                side.set_ticks([], minor=True)
            frames = f"{seen} frame{'s' * (seen != '1')}"
            axis.set_title(f"{kind}, {frames}: {scores['accuracy']:.1%} right", fontsize=8)
        row[0].set_ylabel("share that was so", fontsize=8)
    return png(figure)


def told(record: dict[str, Record]) -> str:
    """Return the paragraph for the page."""
    counts = " / ".join(map(str, COUNTED))
    lines = [
        f"| clips | frames seen | count right | N = {counts} | probability given | nats |",
        "|---|---|---|---|---|---|",
    ]
    for kind, part in record.items():
        for seen, scores in part["after"].items():
            by_count = " / ".join(f"{share:.3f}" for share in scores["by_count"].values())
            said = f"{scores['mean_said']:.3f} | {scores['nats']:.4f}"
            lines.append(f"| {kind} | {seen} | {scores['accuracy']:.3f} | {by_count} | {said} |")
    origins = [
        f"{next(iter(part['after'].values()))['clips']} {kind} clips by commit "
        f"{part['environment']['motes_commit'][:10]} on {part['environment']['processor']}"
        for kind, part in record.items()
    ]
    below = (
        f"Clips of 1 to {max(COUNTED)} objects, and as many may be claimed; "
        "the models learned from 1 to 3. In faint clips a pixel shows with a chance of "
        f"{LIT:g} in an object and {DARK:g} elsewhere. The last column is the mean of -log of "
        f"the probability of the true count. {', '.join(origins)}."
    )
    picture = "![Counts that were given a probability, and how often they were true]"
    return "\n".join([*lines, "", below, "", f"{picture}(../images/counts.png)"])


def write_page(record: dict[str, Record]) -> None:
    """Put the paragraph into the page."""
    page = PAGE.read_text("utf-8")
    before, rest = page.split(OPEN)
    after = rest.split(CLOSE)[1]
    PAGE.write_text(f"{before}{OPEN}\n\n{told(record)}\n\n{CLOSE}{after}", encoding="utf-8")


def main() -> None:
    """Learn, score, or put the parts together."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learn", type=Path)
    parser.add_argument("--score", choices=("clear", "faint"))
    parser.add_argument("--model", default="cannonballs-structured")
    parser.add_argument("--clips", type=int, default=600)
    parser.add_argument("--first", type=int, default=0, help="of the clips that are scored")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=Path, default=Path("runs/counts"))
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.learn is not None:
        learn_faint(given.learn, 2240)
    if given.score is not None:
        given.runs.mkdir(parents=True, exist_ok=True)
        path = given.runs / f"{given.score}-{given.first:04d}.json"
        some = range(given.first, given.first + given.clips)
        score(given.score, given.model, some, given.device, path)
    if given.merge:
        write_json(RECORD, merge(given.runs))
        PICTURE.write_bytes(draw(json.loads(RECORD.read_text("utf-8"))))
    if given.merge or given.page:
        write_page(json.loads(RECORD.read_text("utf-8")))


if __name__ == "__main__":
    main()
