"""`motes doctor` reports problems with their fixes."""

import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from motes import cli
from motes.cli import doctor
from motes.cli.doctor import Finding


def states(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.state for finding in findings}


@pytest.mark.slow
def test_a_working_installation_has_no_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", "--folder", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert torch.__version__ in shown
    assert "loads and answers" in shown
    assert "error  " not in shown
    assert list(tmp_path.iterdir()) == []


def test_old_and_missing_packages_are_reported_with_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"motes": "0.1.0", "torch": "2.5.1+cpu", "numpy": "1.26.4"}

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    needs = ["torch>=2.6", "numpy>=1.26", "rich>=13.7", 'pytest>=8.0; extra == "dev"']
    monkeypatch.setattr(metadata, "requires", lambda name: needs)
    monkeypatch.setattr(metadata, "version", version)
    found = {finding.name: finding for finding in doctor.versions()}
    assert found["torch"].state == "warning"
    assert found["torch"].fix == "pip install -U 'torch>=2.6'"
    assert found["numpy"].state == "ok"
    assert found["rich"].state == "error"
    assert "pytest" not in found


@pytest.mark.parametrize(("code", "state"), [(0, "ok"), (-4, "warning"), (1, "warning")])
def test_a_crash_of_bfloat16_is_a_warning(
    code: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: Any = subprocess.CompletedProcess([], code, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: done)
    (finding,) = doctor.bfloat16()
    assert finding.state == state
    assert ("ONEDNN_MAX_CPU_ISA" in finding.fix) == (code == -4)


def test_more_threads_than_cores_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 10**6)
    (finding, *_) = doctor.threads()
    assert finding.state == "warning"
    assert "OMP_NUM_THREADS=" in finding.fix


def test_slow_and_read_only_disks_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "PROBE_MIB", 1)
    monkeypatch.setattr(doctor, "SLOW_DISK", 1e9)
    assert states(list(doctor.disk(tmp_path))) == {"disk": "warning", "lock": "ok"}
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(doctor, "SLOW_DISK", 0.0)
    assert states(list(doctor.disk(tmp_path))) == {"disk": "ok", "lock": "ok"}
    assert states(list(doctor.disk(tmp_path / "none"))) == {"disk": "error"}


def test_missing_extras_are_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None)
    findings = list(doctor.extras())
    assert {finding.state for finding in findings} == {"hint"}
    assert "pip install 'motes[video]'" in {finding.fix for finding in findings}


def test_a_model_that_does_not_load_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motes.models.checkpoint.shipped_names", lambda: ["none"])
    assert states(list(doctor.models())) == {"model none": "error"}
