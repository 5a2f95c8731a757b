"""The short form of tests/stress/fuzz.py, and the proof that nothing loaded can run code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stress.fuzz import joined

ROOT = Path(__file__).parents[2]


def run(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    what = ["-c", code] if code else ["-m", "tests.stress.fuzz"]
    return subprocess.run(
        [sys.executable, *what, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_wrong_input_ends_in_an_answer_or_in_one_clear_error() -> None:
    done = run("--cases", "150", "--seed", "1000000")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["cases"] >= 148  # shares are rounded
    assert record["defects"] == []
    assert set(record["ends"]) >= {"clips", "video", "config", "model file", "query", "http"}


def test_joined_records_add_their_cases_and_keep_all_defects() -> None:
    one = {
        "environment": {"motes_commit": "a"},
        "cases": 3,
        "ends": {"clips": {"refused": 2, "hangs": 1}},
        "defects": [{"entrance": "clips", "seed": 7}],
        "limits": {},
        "slowest_seconds": 2.0,
        "largest_mib": 5,
        "minutes": 1.0,
    }
    other = {**one, "environment": {"motes_commit": "b"}, "ends": {"clips": {"refused": 3}}}
    both = joined([one, other])
    assert (both["cases"], both["commits"], both["minutes"]) == (6, ["a", "b"], 2.0)
    assert both["ends"] == {"clips": {"refused": 5, "hangs": 1}}
    assert len(both["defects"]) == 2


BREAK_OUTS = {
    "pickle": "import pickle; pickle.loads(pickle.dumps(print))",
    "system": "import os; os.system('true')",
    "network": "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
    "elsewhere": "open('/tmp/motes-elsewhere', 'w')",
}


@pytest.mark.parametrize("deed", BREAK_OUTS)
def test_the_hook_ends_what_runs_code_or_calls_out(deed: str, tmp_path: Path) -> None:
    code = "from tests.stress import fuzz; from pathlib import Path; "
    code += f"fuzz.forbid(Path({str(tmp_path)!r}))\n"
    done = run(code=code + f"open({str(tmp_path / 'x')!r}, 'w')\n" + BREAK_OUTS[deed])
    assert done.returncode == 98, done.stderr
    assert "BROKE OUT" in done.stdout
