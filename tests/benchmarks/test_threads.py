import os

import torch

from benchmarks import startup, threads
from motes.core.device import THREADS


def test_every_setting_is_timed_and_nothing_is_left_behind(monkeypatch):
    monkeypatch.setattr(threads, "MODELS", threads.MODELS[:1])
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setenv(THREADS, "1")
    before = torch.get_num_threads()
    rows = threads.bench_threads(smoke=True)["rows"]
    assert [row["busy_processes"] for row in rows] == [0, 1]
    for row in rows:
        for setting in ("one", "all", "chosen"):
            assert row[setting]["wall_ms"] > 0
            assert row[setting]["cpu_ms"] > 0
    assert os.environ[THREADS] == "1"
    assert torch.get_num_threads() == before


def test_start_up_is_measured_in_cpu_seconds_of_a_child(monkeypatch):
    monkeypatch.setattr(startup, "COMMANDS", {"python": ["-c", "sum(range(10**6))"]})
    result = startup.bench_startup(smoke=True)
    assert result["rounds"] == 1
    assert result["cpu_seconds"]["python"] > 0
