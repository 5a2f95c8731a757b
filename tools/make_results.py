"""Write the tables of docs/results/*.md and README.md from the stored records.

`motes evaluate --out` and `motes bench --out` wrote the records; no number is typed by hand.

Usage: python tools/make_results.py
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beside import paired_table, reference_table
from seed_tables import ablation_table, large_table, spread_table, start_table
from world_tables import worlds_page

from motes.evaluation.labels import CONTENDERS, HEADS, TABLE, contenders

ROOT = Path(__file__).parent.parent
OPEN, CLOSE = "<!-- results: made by tools/make_results.py -->", "<!-- end of results -->"
SCORES = {
    "tracked": ("clips tracked throughout", "{:.3f}"),
    "within2": ("positions within 2 px", "{:.3f}"),
    "switches": ("identity switches a clip", "{:.2f}"),
    "idf1": ("IDF1", "{:.3f}"),
    "noisy_rmse": ("inferred position, RMSE in px", "{:.2f}"),
    "affine_noisy_rmse": ("the same after one affine map", "{:.2f}"),
    "path_rmse": ("smoothed path, RMSE in px", "{:.2f}"),
    "forecast_rmse": ("forecast of frames 6-30, RMSE in px", "{:.2f}"),
    "interpolation_rmse": ("gap of frames 6-25, RMSE in px", "{:.2f}"),
    "forecast_loss": ("forecast pictures, nats a pixel", "{:.4f}"),
    "forecast_loss_of_mean": ("the same, pictures of the mean", "{:.4f}"),
    "forecast_loss_papers_unit": ("the same, sigmoid taken twice", "{:.4f}"),
    **{
        f"{question}_{kind}": (f"{title}: {told}", form)
        for kind, title, form in (
            ("coverage50", "truth inside 50 % region", "{:.2f}"),
            ("coverage90", "truth inside 90 % region", "{:.2f}"),
            ("coverage95", "truth inside 95 % region", "{:.2f}"),
            ("nees", "NEES, 2 is right", "{:.2f}"),
            ("nll", "NLL of the truth, nats", "{:.2f}"),
        )
        for question, told in (
            ("infer", "inferred"), ("path", "path"), ("forecast", "forecast"),
            ("interpolation", "gap"),
        )
    },
}  # fmt: skip
SHORT = ("tracked", "noisy_rmse", "forecast_rmse", "interpolation_rmse", "forecast_loss")
README_ROWS = ("limit", "cannonballs-structured", "cannonballs-48", "ed-lstm", "trackpy")
STRUCTURED = (*SHORT, "infer_coverage90", "forecast_coverage90")
PERCENTS = ("p50", "p95")
Record = dict[str, Any]


def read_records(folder: Path) -> dict[str, Record]:
    """Return the stored records by the names of their files."""
    return {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))
    }


def _name(contender: str) -> str:
    """Return what a contender is called, ours in bold."""
    name = CONTENDERS[contender]
    return f"**{name}**" if name.startswith("ours") else name


def triple(record: Record, name: str) -> str:
    """Return a score for N = 1 / 2 / 3, or nothing where it does not exist."""
    columns = record["by_count"].values()
    if not all(name in column for column in columns):
        return ""
    return " / ".join(SCORES[name][1].format(column[name]) for column in columns)


def score_table(record: Record, names: Sequence[str], beside: Mapping[str, Record]) -> str:
    """Return the scores of one record, numbers for N = 1 / 2 / 3, beside those of others."""
    columns = {"this model": record, **beside}
    counts = " / ".join(record["by_count"])
    lines = [f"| N = {counts} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for name in names:
        cells = " | ".join(triple(column, name) for column in columns.values())
        lines.append(f"| {SCORES[name][0]} | {cells} |")
    return "\n".join(lines)


def short_table(
    records: Mapping[str, Record],
    names: Sequence[str] = SHORT,
    rows: Sequence[str] = tuple(CONTENDERS),
) -> str:
    """Return the chosen rows in one table, numbers for N = 1 / 2 / 3."""
    lines = [f"| N = 1 / 2 / 3 | {' | '.join(HEADS[name] for name in names)} |"]
    lines.append("|---" * (1 + len(names)) + "|")
    for name, record in contenders(records).items():
        if name in rows:
            cells = " | ".join(triple(record, score) for score in names)
            lines.append(f"| {_name(name)} | {cells} |")
    return "\n".join(lines) if len(lines) > 2 else "No record is stored yet."


def count_table(records: Mapping[str, Record], count: str) -> str:
    """Return all contenders on clips with one number of objects, with standard errors."""
    rows = [f"| N = {count} | {' | '.join(HEADS[name] for name in TABLE)} |"]
    rows.append("|---" * (1 + len(TABLE)) + "|")
    for name, record in contenders(records).items():
        values = record["by_count"].get(count, {})
        errors = record.get("standard_errors", {}).get(count, {})
        cells = []
        for score in TABLE:
            form = SCORES[score][1]
            cell = form.format(values[score]) if score in values else ""
            known = f" ± {form.format(errors[score])}" if cell and score in errors else ""
            cells.append(cell + known)
        rows.append(f"| {_name(name)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def gap_table(records: Mapping[str, Record]) -> str:
    """Return errors and coverage inside other gaps, for N = 1 / 2 / 3."""
    having = {n: r for n, r in contenders(records).items() if r.get("gaps")}
    gaps = ("drop10", "drop30", "drop50", "drop70", "drop90", "block5", "block10")
    rows = [f"| RMSE in px; inside the 90 % region | {' | '.join(gaps)} |"]
    rows.append("|---" * (1 + len(gaps)) + "|")
    for name, record in having.items():
        columns = record["gaps"].values()
        if not all("drop10_rmse" in column for column in columns):
            continue
        cells = []
        for gap in gaps:
            parts = [" / ".join(f"{c[f'{gap}_rmse']['value']:.2f}" for c in columns)]
            if all(f"{gap}_coverage90" in column for column in columns):
                cover = (f"{c[f'{gap}_coverage90']['value']:.2f}" for c in columns)
                parts.append(" / ".join(cover))
            cells.append("; ".join(parts))
        rows.append(f"| {_name(name)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def variant_table(record: Record) -> str:
    """Return the variants of the recurrent baseline."""
    rows = ["| ED-LSTM | iterations | forecast loss, N = 1 / 2 / 3 |", "|---|---|---|"]
    for name, variant in record["variants"].items():
        losses = triple(variant, "forecast_loss")
        best = " (best held-out loss)" if name == record["best"] else ""
        rows.append(f"| {name}{best} | {variant['iterations']} | {losses} |")
    return "\n".join(rows)


def seeds_table(record: Record) -> str:
    """Return what every seed of a watched training reached."""
    rows = ["| seed | tracked at the end, N = 1 / 2 / 3 | held-out bound, nats |", "|---|---|---|"]
    for name, checks in record["tracked"].items():
        last = checks[-1]
        shares = " / ".join(f"{last[count]:.2f}" for count in ("1", "2", "3"))
        rows.append(f"| {name.removeprefix('seed-')} | {shares} | {last['bound']:.0f} |")
    steps = next(iter(record["tracked"].values()))[-1]["step"]
    told = f"Preset `{record['training']}`, {steps} steps, every seed that was run; 90 clips."
    return f"{told}\n\n" + "\n".join(rows)


def told_of_model(record: Record) -> str:
    """Return what a record says besides its scores: force, starts, bounds, counts."""
    lines = [f"{sum(c['clips'] for c in record['by_count'].values())} clips."]
    if "force_px_per_frame2" in record:
        found = ", ".join(f"{value:.4f}" for value in record["force_px_per_frame2"])
        true = record.get("true_force_px_per_frame2")
        known = f", true {', '.join(f'{value:.4f}' for value in true)}" if true else ""
        lines.append(f"Recovered force (x right, y down), px/frame²: {found}{known}.")
    for kind, words in (("starts", "Starts found"), ("true_starts", "True starts")):
        if kind in record:
            part = record[kind]
            told = "; ".join(
                f"{share:.2f} at ({x:.1f}, {y:.1f}), step ({dx:.2f}, {dy:.2f})"
                for share, (x, y), (dx, dy) in zip(
                    part["shares"], part["places"], part["steps"], strict=True
                )
            )
            lines.append(f"{words} (share, place and first step in px): {told}.")
    if "beliefs" in record:
        columns = list(record["beliefs"].values())

        def cells(name: str, form: str) -> str:
            return " / ".join(format(column[name]["value"], form) for column in columns)

        lines.append(
            f"On {sum(c['clips'] for c in columns)} clips: bound {cells('bound', '.1f')}, "
            f"importance-weighted bound {cells('weighted_bound', '.1f')} nats a clip; "
            f"number of objects inferred rightly {cells('count_right', '.3f')}."
        )
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
    """Return the tables of all contenders, then every stored record as a section."""
    sections = []
    if contenders(records):
        tables = [count_table(records, count) for count in records["limit"]["by_count"]]
        sections.append("### All contenders\n\n" + "\n\n".join(tables))
        sections.append("### Forecast pictures, clip by clip\n\n" + paired_table(records))
        sections.append("### Beside reference figures\n\n" + reference_table(records))
        sections.append("### Other gaps\n\n" + gap_table(records))
    if "ed-lstm" in records:
        record = records["ed-lstm"]
        sections.append(f"### ed-lstm\n\n{variant_table(record)}\n\n{origin(record)}")
    if "training" in records:
        record = records["training"]
        sections.append(f"### From scratch\n\n{seeds_table(record)}\n\n{origin(record)}")
    for name, record in records.items():
        if "by_count" in record:
            first = next(iter(record["by_count"].values()))
            names = tuple(score for score in SCORES if score in first)
            table = score_table(record, names, others(name, records, "limit"))
            sections.append(f"### {name}\n\n{table}\n\n{told_of_model(record)}\n{origin(record)}")
        elif "bench" in record and "curves" not in record:  # those are in reliability.md
            sections.append(f"### {name}\n\n{bench_table(record)}\n\n{origin(record)}")
    return "\n\n".join(sections) or "No record is stored yet."


def others(name: str, records: dict[str, Record], *wanted: str) -> dict[str, Record]:
    """Return those of the wanted records that are of the same clips as one, by their titles."""
    known = contenders(records)
    beside = [other for other in wanted if name in known and other in known and other != name]
    return {"limit" if other == "limit" else CONTENDERS[other]: known[other] for other in beside}


def scores_of(model: str, records: dict[str, Record], names: Sequence[str]) -> str:
    """Return some scores of one shipped model, beside the other family and the limit."""
    if model not in records:
        return "No record is stored yet."
    beside = others(model, records, "cannonballs-structured", "cannonballs-48", "limit")
    return score_table(records[model], names, beside)


def fill(page: str, content: str) -> str:
    """Return a page with new content between its markers."""
    between = re.compile(f"{re.escape(OPEN)}.*?{re.escape(CLOSE)}", re.DOTALL)
    if len(between.findall(page)) != 1:
        raise ValueError(f"the page must hold the markers {OPEN} and {CLOSE} once")
    return between.sub(lambda _: f"{OPEN}\n\n{content}\n\n{CLOSE}", page)


def server_page(records: dict[str, Record]) -> str:
    """Return how quickly the playground answers one person, and how it bears many."""
    if "server" not in records:
        return "No record is stored yet."
    record = records["server"]
    crowd, memory = record["crowd"], record["crowd"]["memory_mib"]
    lines = [
        "| ms; clip of 30 frames, three balls | one client: median | 95 % "
        f"| {crowd['clients']} clients: median | 95 % |",
        "|---|---|---|---|---|",
    ]
    for name, alone in record["alone_ms"].items():
        cells = [part.get(p, "") for part in (alone, crowd["ms"].get(name, {})) for p in PERCENTS]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    statuses = ", ".join(f"{count} {name}" for name, count in crowd["statuses"].items())
    told = (
        f"{crowd['clients']} clients and {crowd['slow_clients']} that dawdle for "
        f"{crowd['seconds']:.0f} s: {crowd['answers']} answers, {crowd['errors']} of them neither "
        f"right nor one clear line ({statuses}). Memory: {memory['before']} MiB before, "
        f"{memory['most']} at most, {memory['end']} at the end. Load average of the machine "
        f"before: {record['load_average_before']}."
    )
    return "\n".join([*lines, "", told, "", origin(record)])


def pages(root: Path = ROOT) -> dict[Path, str]:
    """Return the pages as they should be."""
    records = read_records(root / "results")
    contents = {
        "docs/results/cannonballs.md": long_form(records),
        "docs/results/sprites.md": "\n\n".join(
            [
                scores_of("cannonballs-structured", records, STRUCTURED),
                "### From seed to seed",
                spread_table(records["structured_seeds"]),
                "### Forecasts of many clips",
                large_table(records.get("structured_large")),
                "### From other starts",
                start_table(records["structured_seeds"]),
                "### With one part taken away",
                ablation_table(records),
            ]
        ),
        "docs/results/worlds.md": worlds_page(records["worlds"], records["bounces"], origin),
        "docs/results/playground.md": server_page(records),
        "README.md": short_table(records, rows=README_ROWS),
    }
    return {root / n: fill((root / n).read_text("utf-8"), text) for n, text in contents.items()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
