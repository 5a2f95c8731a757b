"""Feed invalid inputs to every entry point; each must give an answer or one clear error.

Every case runs in its own process with limits on memory and time, under an audit hook that ends it
if loaded data tries to run code, to open a network connection or to write elsewhere.

Usage: python -m tests.stress.fuzz --cases 12000 --out experiments/reliability/fuzz.json
       python -m tests.stress.fuzz --entrances clips --seed 17 --cases 1     (repeat one case)
       python -m tests.stress.fuzz --join a.json b.json --out experiments/reliability/fuzz.json
"""

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch

from motes.core.environment import environment
from motes.core.errors import InputError
from motes.core.files import write_json
from tests.stress.forked import CRASHED, Ended, run_forked
from tests.stress.fuzz_files import FILES, warm_up
from tests.stress.fuzz_queries import QUESTIONS, client

ENTRANCES = {**FILES, **QUESTIONS}  # with their shares of all cases
SECONDS = 20  # of processor time
PATIENCE = 90.0  # on the clock, for a busy machine
MEMORY_GIB = 1.5  # beyond what the process holds before the case
BROKE_OUT = 98  # exit code of a case that ran code, called out or wrote elsewhere
LONGEST = 1000  # characters of a clear line
FORBIDDEN = (  # no reader needs them; programs may start, because git reports the commit
    *("pickle.find_class", "os.system", "os.exec", "os.fork", "socket.connect", "ctypes.dlopen"),
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def forbid(folder: Path) -> None:
    """Ends this process when it runs code from data, calls out, or writes outside of a folder."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN:
            _break_out(f"{event} {arguments!r:.200}")
        if event == "open" and isinstance(arguments[0], str) and (arguments[2] or 0) & WRITES:
            path = os.path.realpath(arguments[0])
            if not path.startswith((str(folder), "/dev/", "/proc/")) and "__pycache__" not in path:
                _break_out(f"wrote {path}")

    sys.addaudithook(hook)


def _break_out(what: str) -> None:
    print(f"BROKE OUT: {what}", flush=True)
    os._exit(BROKE_OUT)


def run_case(entrance: str, seed: int, folder: Path) -> int:
    """One case, in the process that it may harm: 0 answered, 1 failed clearly, 2 refused."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    forbid(folder.resolve())
    try:
        result = ENTRANCES[entrance][0](Random(f"{entrance} {seed}"), folder)
    except InputError as error:
        print(f"motes: {error}")
        return 2
    return result if isinstance(result, int) else 0


def verdict(ended: Ended, folder: Path) -> str | None:
    """What is wrong with how a case ended; None if it ended well."""
    if ended.timed_out:
        return "hangs"
    if ended.code not in (0, 1, 2):
        return {BROKE_OUT: "breaks out", CRASHED: "raises"}.get(ended.code, "dies")
    if (folder / "trace").exists():
        return "ran code"
    if "Traceback" in ended.text:
        return "traceback"
    messages = [line for line in ended.text.splitlines() if line.startswith("motes: ")]
    if ended.code and messages and (len(messages) > 1 or len(messages[0]) > LONGEST):
        return "no single clear line"
    if ended.code and any((folder / "out").rglob("*")):
        return "partial output"
    return None


def try_cases(num_cases: int, first_seed: int, only: list[str]) -> Iterator[dict[str, Any]]:
    """All cases; a record of how they ended, defects with what repeats them, after each entrance.

    The entrances share the cases; where only some are tried, each has as many as it would have.
    """
    ends: dict[str, Counter[str]] = defaultdict(Counter)
    defects, slowest, largest, started = [], 0.0, 0.0, time.monotonic()
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for entrance in only:
        count = max(round(ENTRANCES[entrance][1] * num_cases), 1)
        for seed in range(first_seed, first_seed + count):
            folder = Path(tempfile.mkdtemp())
            (folder / "out").mkdir()
            ended = run_forked(
                lambda: run_case(entrance, seed, folder),  # noqa: B023
                timeout=PATIENCE,
                memory_gib=own / 2**30 + MEMORY_GIB,
            )
            wrong = verdict(ended, folder)
            ends[entrance][wrong or ("answered", "failed clearly", "refused")[ended.code]] += 1
            if wrong:
                tail = ended.text.strip().splitlines()[-1:] or [f"code {ended.code}"]
                defects.append({"entrance": entrance, "seed": seed, "end": wrong, "text": tail[0]})
                print(f"{entrance} {seed}: {wrong}: {tail[0][:300]}", file=sys.stderr, flush=True)
            slowest = max(slowest, ended.seconds)
            largest = max(largest, ended.peak_mib)
            shutil.rmtree(folder)
        done = sum(sum(counter.values()) for counter in ends.values())
        print(f"{entrance}: {dict(ends[entrance])}; {done} cases", file=sys.stderr, flush=True)
        yield {
            "cases": done,
            "ends": {name: dict(counter) for name, counter in ends.items()},
            "defects": defects,
            "limits": {"seconds": SECONDS, "gib_beyond_start": MEMORY_GIB},
            "slowest_seconds": round(slowest, 2),
            "largest_mib": round(largest),
            "minutes": round((time.monotonic() - started) / 60, 1),
        }


def joined(records: list[dict[str, Any]]) -> dict[str, Any]:
    """One record of several; where they are of several commits, all are named."""
    ends: dict[str, Counter[str]] = {name: Counter() for name in ENTRANCES}
    for record in records:
        for name, counts in record["ends"].items():
            ends[name].update(counts)
    return {
        "environment": records[-1]["environment"],
        "commits": sorted({str(record["environment"]["motes_commit"]) for record in records}),
        "cases": sum(record["cases"] for record in records),
        "ends": {name: dict(counter) for name, counter in ends.items() if counter},
        "defects": [defect for record in records for defect in record["defects"]],
        "limits": records[0]["limits"],
        "slowest_seconds": max(record["slowest_seconds"] for record in records),
        "largest_mib": max(record["largest_mib"] for record in records),
        "minutes": round(sum(record["minutes"] for record in records), 1),
    }


def main() -> None:
    """Tries all cases and writes the record; exit code 1 if one of them ended badly."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case of each entrance")
    parser.add_argument("--entrances", nargs="+", choices=ENTRANCES, default=list(ENTRANCES))
    parser.add_argument("--join", nargs="+", type=Path, help="records to join instead")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    if given.join:
        write_json(given.out, joined([json.loads(path.read_text("utf-8")) for path in given.join]))
        return
    torch.set_num_threads(1)  # a fork must not inherit a pool of threads that did not follow it
    warm_up()
    client(), client("pictures")
    place = environment(torch.device("cpu"))
    record: dict[str, Any] = {}
    for ends in try_cases(given.cases, given.seed, given.entrances):
        record = {"environment": place, **ends}
        if given.out is not None:
            write_json(given.out, record)
    print(json.dumps(record))
    sys.exit(1 if record["defects"] else 0)


if __name__ == "__main__":
    main()
