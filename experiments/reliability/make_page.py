"""Write docs/results/reliability.md from the stored records: what was tried, and how it ended.

Usage: python -m experiments.reliability.make_page
"""

from pathlib import Path
from typing import Any

from benchmarks.scale import FAMILIES, growth
from experiments.records import ROOT, read_records

PAGE = ROOT / "docs" / "results" / "reliability.md"
MISSING = "No record is stored yet; run `{command}`."
STILL = "Everything else stays at {frames} frames, {objects} objects, {clips} clip, {size} px."
MEMORY = (
    "Memory is what a question takes beyond the frames, which are the caller's: a long video is "
    "gone through in stretches that bound it (some 300 frames in the structured family, 80 of "
    "pictures), so that "
    "with its length grows what is known of every position, and no picture. For an "
    "interpolation networks are given a copy of the frames, the hidden ones blanked."
)
Record = dict[str, Any]

OPENING = """# Reliability

What was done to break it, and how it ended. Made by `make docs` from records that name
commit, machine and versions; the short form of every test is part of `make test`.
"""


def table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def faults(record: Record) -> str:
    """Return what was done to training runs."""
    rows: list[tuple[object, ...]] = []
    for family, tried in record["families"].items():
        inside = tried["kills"] - tried["moments"].get("any", 0)
        commit = tried.get("environment", record["environment"])["motes_commit"][:10]
        same = "yes" if tried["bit_for_bit"] else "no"
        rows.append((family, tried["kills"], inside, same, commit))
    head = ("family", "kills (SIGKILL)", "inside a write", "same weights, bit for bit", "commit")
    told = [(fault, f"`{line}`") for fault, line in _lines(record["families"]["paper"])]
    return (
        "Runs of the smoke preset were killed at random moments and inside the writing of a "
        "checkpoint (file half written, before the sync, before and after the rename), then "
        "resumed:\n\n"
        f"{table(head, rows)}\n\nOther faults, each followed by a run to the end with the same "
        f"weights; what was said:\n\n{table(('fault', 'message'), [*told])}"
    )


def _lines(tried: Record) -> list[tuple[str, str]]:
    """Return every fault of a family with its message."""
    lines = []
    for name in ("full_disk", "small_disk", "closed_folder", "not_finite"):
        lines += [(case, message.replace("|", "/")) for case, message in tried[name].items()]
    return [*lines, ("clock", tried["wild_clock"])]


def inputs(record: Record) -> str:
    """Return how wrong inputs ended."""
    ends = record["ends"]
    good = ("answered", "refused", "failed clearly")
    rows: list[tuple[object, ...]] = [
        (
            name,
            sum(counts.values()),
            *(counts.get(end, 0) for end in good),
            sum(n for end, n in counts.items() if end not in good),
        )
        for name, counts in ends.items()
    ]
    limits = record["limits"]
    text = table(("entrance", "cases", *good, "defects"), rows)
    text += (
        f"\n\n{record['cases']} cases, each in a process of its own with at most "
        f"{limits['seconds']} s of a processor and {limits['gib_beyond_start']} GiB; "
        f"the slowest took {record['slowest_seconds']} s on a busy machine, the largest held "
        f"{record['largest_mib']} MiB in all. A hook ends every case that runs code from data, "
        "calls out, or writes elsewhere: none did."
    )
    for defect in record["defects"]:
        text += (
            f"\n- {defect['entrance']} {defect['seed']}: {defect['end']}, `{defect['text'][:80]}`"
        )
    if "mended" in record:
        text += f"\n\n{record['mended']}"
    return text


def processes(record: Record) -> str:
    """Return how several processes compare with one."""
    rows: list[tuple[object, ...]] = [
        (name, f"{value:.1e}") for name, value in record["curves"].items()
    ]
    killed, again = record["killed"], record["restarted_by_torchrun"]
    same = {True: "the weights of an undisturbed run", False: "other weights"}
    return (
        f"{record['iterations']} steps with the same global batch; the largest relative "
        f"difference of any logged term from one process:\n\n"
        f"{table(('run', 'difference'), rows)}\n\n"
        f"A killed worker: exit code {killed['exit_code']}, `{killed['told']}`; resumed from step "
        f"{killed['resumed_from_step']} it ended with "
        f"{same[killed['same_weights_as_undisturbed']]}. With `torchrun "
        "--max-restarts` it went on by itself and ended with "
        f"{same[again['same_weights_as_undisturbed']]}."
    )


def long_videos(record: Record) -> str:
    """Return how exact the Kalman code is."""
    rows: list[tuple[object, ...]] = [
        (name, *(f"{case['errors'][key]:.0e}" for key in case["errors"]))
        for name, case in record["cases"].items()
    ]
    head = ("3,000 frames", "means, in sds", "sds, relative", "log-likelihood, relative")
    return f"{record['what']}; the largest error of any frame:\n\n{table(head, rows)}"


LONG_SCORES = {"tracked": ".2f", "near": ".3f", "idf1": ".3f", "found": ".3f", "surplus": ".1f"}


def long_clips(record: Record) -> str:
    """Return how well tracks are kept through long clips, and in how much memory."""
    asked = [line for run in record["runs"].values() for line in run["asked"]]
    rows: list[tuple[object, ...]] = []
    for frames, count in sorted({(line["frames"], line["objects"]) for line in asked}):
        group = [line for line in asked if (line["frames"], line["objects"]) == (frames, count)]
        scores = [
            f"{_mean(group, 'model', name):{form}} ({_mean(group, 'oracle', name):{form}})"
            for name, form in LONG_SCORES.items()
        ]
        switches = (1000 * _mean(group, who, "switches") / frames for who in ("model", "oracle"))
        scores.append("{:.1f} ({:.1f})".format(*switches))
        peak = max(line["model"]["peak_mib"] for line in group)
        seconds = _mean(group, "model", "cpu_seconds")
        rows.append((frames, count, len(group), *scores, f"{seconds:.0f} s", f"{peak:.0f} MiB"))
    head = ("frames", "objects", "clips", "tracked", "within 4 px", "IDF1", "found")
    identity = ("likelier than the truth, nats", "switches in 1,000 frames")
    seeds = len(record["runs"])
    return (
        f"Trained on clips of 30 frames of the world `long` ({seeds} seed{'s' * (seeds > 1)}), "
        "then asked about clips of up to 3,000; in parentheses the oracle, which knows the law "
        "and the points but not which is which. *Tracked*: no object is ever 4 px away. *IDF1*: "
        "positions told within 2 px and under one name throughout. *Found*: positions that have "
        "some track within 2 px, whosever it is. *Switches*: how often an object is taken over by "
        "another's track. *Likelier than the truth*: the places found, by the true law, as they "
        "are told apart against as they truly belong together.\n\n"
        f"{table((*head, *identity, 'processor', 'peak memory'), rows)}\n\n"
        "Objects look alike: where two meet, only their motion tells them apart. Where what was "
        "found is likelier than the truth, no one could have known better; one exchange in the "
        "middle of a clip costs up to half of its IDF1."
    )


def _mean(lines: list[Record], who: str, name: str) -> float:
    """Return the mean of a score over clips."""
    return float(sum(line[who][name] for line in lines) / len(lines))


def curves(record: Record) -> str:
    """Return how cost grows, as powers: 1 is linear."""
    rows: list[tuple[object, ...]] = []
    for axis, curve in {**record["curves"], "clips, streamed": record["streamed"]}.items():
        for family in FAMILIES:
            if family in curve:
                values = {
                    field: [max(point[field], 1e-3) for point in curve[family]]
                    for field in ("seconds", "peak_mib")
                }
                powers = (f"{growth(curve['at'], part):.2f}" for part in values.values())
                last = curve[family][-1]
                sizes = f"{last['seconds']:.3g} s, {last['peak_mib']:.0f} MiB"
                if "answer_mib" in last:
                    sizes += f", of it the answer {last['answer_mib']:.1f}"
                rows.append(
                    (axis, family, f"{curve['at'][0]} to {curve['at'][-1]}", *powers, sizes)
                )
    head = ("axis", "family", "range", "power of seconds", "power of memory", "at the end")
    return (
        f"{table(head, rows)}\n\nPowers over the last tenfold: 1 is linear, 0 is flat. "
        f"{STILL.format(**record['crossing'])} {MEMORY}\n\n"
        "![Seconds and memory over every axis](../images/scale.png)"
    )


SECTIONS = {
    "Faults in training": (
        "faults",
        faults,
        "python -m tests.stress.faults --out experiments/reliability/faults.json",
    ),
    "Wrong input": (
        "fuzz",
        inputs,
        "python -m tests.stress.fuzz --cases 10000 --out experiments/reliability/fuzz.json",
    ),
    "Several processes and hosts": (
        *("processes", processes),
        "python -m tests.stress.processes --out experiments/reliability/processes.json",
    ),
    "Long videos": (
        *("kalman_long", long_videos),
        "python -m tests.stress.kalman_precision --out experiments/reliability/kalman_long.json",
    ),
    "Long clips": (
        "long",
        long_clips,
        "python -m experiments.long_clips.score_long --out experiments/long_clips/long.json",
    ),
    "Growth": (
        *("scale", curves),
        "python -m benchmarks scale --out benchmarks/records/scale.json "
        "--picture docs/images/scale.png",
    ),
}


def page(folder: Path | None = None) -> str:
    """Return the whole page, from the records of a folder or from all that are stored."""
    parts, records = [OPENING], read_records(folder)
    for title, (name, write, command) in SECTIONS.items():
        text = MISSING.format(command=command)
        if name in records:
            record = records[name]
            commit = (record["environment"]["motes_commit"] or "unknown").partition("+")
            place = f"commit {commit[0][:10]}{commit[1]}{commit[2]}"
            text = f"{write(record)}\n\n`{command}`, {place}."
        parts.append(f"\n## {title}\n\n{text}\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
