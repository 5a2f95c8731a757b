"""Write the tables of docs/results.md, docs/structured.md and README.md from results/.

`motes evaluate --out` and `motes bench --out` wrote the records; no number is typed by hand.

Usage: python tools/make_results.py
"""

import json
import re
from pathlib import Path
from typing import Any

from motes.report_words import LIMITS, LIMITS_HOLD_FOR

ROOT = Path(__file__).parent.parent
OPEN, CLOSE = "<!-- results: made by tools/make_results.py -->", "<!-- end of results -->"
SCORES = {
    "tracked": ("clips tracked throughout", "{:.3f}"),
    "noisy_rmse": ("inferred position, RMSE in px", "{:.2f}"),
    "path_rmse": ("smoothed path, RMSE in px", "{:.2f}"),
    "forecast_rmse": ("forecast of frames 6-30, RMSE in px", "{:.2f}"),
    "interpolation_rmse": ("gap of frames 6-25, RMSE in px", "{:.2f}"),
    "forecast_loss": ("forecast pictures, nats a pixel", "{:.4f}"),
    "forecast_loss_of_mean": ("the same, pictures of the mean", "{:.4f}"),
    "infer_coverage90": ("truth inside 90 % region: inferred", "{:.2f}"),
    "path_coverage90": ("truth inside 90 % region: path", "{:.2f}"),
    "forecast_coverage90": ("truth inside 90 % region: forecast", "{:.2f}"),
    "interpolation_coverage90": ("truth inside 90 % region: gap", "{:.2f}"),
}
SHORT = ("tracked", "noisy_rmse", "forecast_rmse", "interpolation_rmse", "forecast_loss")
Record = dict[str, Any]


def read_records(folder: Path) -> dict[str, Record]:
    """Return the stored records by the names of their files."""
    return {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))
    }


def score_table(record: Record, names: tuple[str, ...]) -> str:
    """Return the scores of one model beside those of the reference, numbers for N = 1 / 2 / 3."""
    counts = record["by_count"]
    known = (tuple(record["frame_size"]), record["num_frames"]) == LIMITS_HOLD_FOR
    limits = LIMITS if known and record["test_seed"] is not None else {}
    lines = [f"| N = {' / '.join(counts)} | this model | reference |", "|---|---|---|"]
    for name in names:
        title, form = SCORES[name]
        ours = " / ".join(form.format(scores[name]) for scores in counts.values())
        best = " / ".join(form.format(value) for value in limits.get(name, ()))
        lines.append(f"| {title} | {ours} | {best} |")
    return "\n".join(lines)


def bench_table(record: Record) -> str:
    """Return the times of every contender, in milliseconds, and how many times longer than ours."""
    questions = record.get("questions") or {record["task"]: record}
    lines = [
        "| question | contender | least ms | median ms | times ours |",
        "|---|---|---|---|---|",
    ]
    for question, answer in questions.items():
        ours = answer["milliseconds"]["motes"]["min"]
        for name, taken in answer["milliseconds"].items():
            least, median = taken["min"], taken["median"]
            row = f"{question} | {name} | {least:.2f} | {median:.2f} | {least / ours:.2f}"
            lines.append(f"| {row} |")
    return "\n".join(lines)


def origin(record: Record) -> str:
    """Return where a record comes from, in one line."""
    place = record["environment"]
    # Shortened, but the mark of a tree that was changed stays.
    commit, mark, _ = (place["motes_commit"] or "unknown").partition("+changes")
    machine = f"{place['processor']}, {place['threads']} threads, torch {place['torch']}"
    return f"`{place['command']}`, commit {commit[:10]}{mark}, {machine}."


def long_form(records: dict[str, Record]) -> str:
    """Return every stored record as a section."""
    sections = []
    for name, record in records.items():
        if "by_count" in record:
            names = tuple(n for n in SCORES if n in next(iter(record["by_count"].values())))
            force = ", ".join(f"{value:.4f}" for value in record["force_px_per_frame2"])
            clips = sum(scores["clips"] for scores in record["by_count"].values())
            table = score_table(record, names)
            told = f"{clips} clips. Recovered force (x right, y down), px/frame²: {force}."
            sections.append(f"### {name}\n\n{table}\n\n{told}\n{origin(record)}")
        elif "bench" in record:
            sections.append(f"### {name}\n\n{bench_table(record)}\n\n{origin(record)}")
    return "\n\n".join(sections) or "No record is stored yet."


def scores_of(model: str, records: dict[str, Record], names: tuple[str, ...]) -> str:
    """Return some scores of one shipped model."""
    return score_table(records[model], names) if model in records else "No record is stored yet."


def fill(page: str, content: str) -> str:
    """Return a page with new content between its markers."""
    between = re.compile(f"{re.escape(OPEN)}.*?{re.escape(CLOSE)}", re.DOTALL)
    if len(between.findall(page)) != 1:
        raise ValueError(f"the page must hold the markers {OPEN} and {CLOSE} once")
    return between.sub(lambda _: f"{OPEN}\n\n{content}\n\n{CLOSE}", page)


def pages(root: Path = ROOT) -> dict[Path, str]:
    """Return the pages as they should be."""
    records = read_records(root / "results")
    contents = {
        "docs/results.md": long_form(records),
        "docs/structured.md": scores_of(
            "cannonballs-structured", records, (*SHORT, "infer_coverage90", "forecast_coverage90")
        ),
        "README.md": scores_of("cannonballs-48", records, SHORT),
    }
    return {root / n: fill((root / n).read_text("utf-8"), text) for n, text in contents.items()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
