"""The doctor sees what is there and says how to mend what is not."""

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
def test_a_sound_installation_is_found_sound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", "--folder", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert torch.__version__ in told
    assert "loads and answers" in told
    assert "broken" not in told
    assert list(tmp_path.iterdir()) == []


def test_old_and_missing_packages_are_told_with_what_to_type(
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
    assert found["torch"].state == "trap"
    assert found["torch"].mend == "pip install -U 'torch>=2.6'"
    assert found["numpy"].state == "fine"
    assert found["rich"].state == "broken"
    assert "pytest" not in found


@pytest.mark.parametrize(("code", "state"), [(0, "fine"), (-4, "trap"), (1, "trap")])
def test_a_crash_of_bfloat16_is_a_trap(
    code: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: Any = subprocess.CompletedProcess([], code, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: done)
    (finding,) = doctor.bfloat16()
    assert finding.state == state
    assert ("ONEDNN_MAX_CPU_ISA" in finding.mend) == (code == -4)


def test_more_threads_than_cores_are_a_trap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 10**6)
    (finding, *_) = doctor.threads()
    assert finding.state == "trap"
    assert "OMP_NUM_THREADS=" in finding.mend


def test_slow_and_closed_disks_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE_MIB", 1)
    monkeypatch.setattr(doctor, "SLOW_DISK", 1e9)
    assert states(list(doctor.disk(tmp_path))) == {"disk": "trap", "lock": "fine"}
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(doctor, "SLOW_DISK", 0.0)
    assert states(list(doctor.disk(tmp_path))) == {"disk": "fine", "lock": "fine"}
    assert states(list(doctor.disk(tmp_path / "none"))) == {"disk": "broken"}


def test_missing_extras_are_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None)
    findings = list(doctor.extras())
    assert {finding.state for finding in findings} == {"hint"}
    assert "pip install 'motes[video]'" in {finding.mend for finding in findings}


def test_a_model_that_does_not_load_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "shipped_names", lambda: ["none"])
    assert states(list(doctor.models())) == {"model none": "broken"}
