"""Write the tables of docs/{results,structured,worlds}.md and README.md from results/.

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
WORLD_SCORES = (
    ("tracked", "{:.3f}"),
    ("noisy_rmse", "{:.2f}"),
    ("path_rmse", "{:.2f}"),
    ("hidden_rmse", "{:.2f}"),
)
WORLD_COVERS = ("coverage90", "hidden_coverage90", "path_coverage90")
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


def worlds_table(record: Record) -> str:
    """Return every world's scores beside its oracle's, for each number of objects."""
    lines = [
        "| world | N | clips tracked | position, px | path, px | hidden path, px "
        "| 90 % regions hold: seen / hidden / path | forecast, px | they hold |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for world, oracle in record.get("oracles", {}).items():
        runs = record.get("worlds", {}).get(world, {})
        for count, limit in oracle["by_count"].items():
            ours = [run["by_count"][count] for run in runs.values() if count in run["by_count"]]

            def pair(name: str, form: str, ours: list[Record] = ours, limit: Record = limit) -> str:
                if name not in limit:
                    return ""
                found = ", ".join(form.format(scores[name]) for scores in ours)
                return f"{found or '-'} ({form.format(limit[name])})"

            covers = " / ".join(pair(name, "{:.2f}") for name in WORLD_COVERS if name in limit)
            cells = [pair(name, form) for name, form in WORLD_SCORES]
            ahead = [pair("forecast_rmse", "{:.2f}"), pair("forecast_coverage90", "{:.2f}")]
            lines.append("| " + " | ".join([f"`{world}`", count, *cells, covers, *ahead]) + " |")
    return "\n".join(lines)


def worlds_page(records: dict[str, Record]) -> str:
    """Return the table of the worlds, how the number of objects was found, and the origin."""
    record = records.get("worlds")
    if record is None:
        return "No record is stored yet."
    parts = [worlds_table(record)]
    trained = [
        f"`{world}` seed {seed}: {run['training']['wall_seconds']:.0f} s "
        f"({run['training']['cpu_seconds']:.0f} s of one core)"
        for world, runs in record.get("worlds", {}).items()
        for seed, run in runs.items()
        if "training" in run
    ]
    if trained:
        parts.append("Training took: " + "; ".join(trained) + ".")
    for seed, run in record.get("worlds", {}).get("cannonballs", {}).items():
        if "counting" in run:
            parts.append(counting_told(seed, run["counting"]))
    first = next(iter(record["oracles"].values()))
    return "\n\n".join([*parts, origin(first)])


def counting_told(seed: str, counting: Record) -> str:
    """Return how often the number of objects was right, and what its probabilities were worth."""
    by_count = ", ".join(f"{share:.3f} of N = {n}" for n, share in counting["by_count"].items())
    rows = "\n".join(
        f"| {row['cases']} | {row['said']:.3f} | {row['happened']:.3f} |"
        for row in counting["reliability"]
    )
    return (
        f"Number of objects not told (seed {seed}, {counting['clips']} clips): right in "
        f"{counting['accuracy']:.3f} ({by_count}).\n\n"
        f"| cases | said | happened |\n|---|---|---|\n{rows}"
    )


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
        "docs/worlds.md": worlds_page(records),
        "README.md": scores_of("cannonballs-48", records, SHORT),
    }
    return {root / n: fill((root / n).read_text("utf-8"), text) for n, text in contents.items()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
