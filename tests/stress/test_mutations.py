"""The list of deliberate faults fits the source; see tests/stress/mutations.py."""

from collections import Counter
from pathlib import Path

import pytest

from tests.stress import mutations
from tests.stress.mutation_list import FAULTS, Fault

LEAST = 120
STALE_SHARE = 0.05  # of faults, whose lines were changed since


def test_enough_faults_apply_in_all_packages() -> None:
    stale = [fault for fault in FAULTS if not mutations.applies(fault)]
    assert len(FAULTS) - len(stale) >= LEAST, stale
    assert len(stale) <= STALE_SHARE * len(FAULTS), stale
    packages = {path.name for path in (mutations.ROOT / "src/motes").iterdir() if path.is_dir()}
    counts = Counter(fault.file.split("/")[0] for fault in FAULTS)
    assert {name for name in packages if name != "__pycache__"} <= set(counts)


def test_no_fault_is_listed_twice_and_their_tests_exist() -> None:
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert fault.old != fault.new
        assert all((mutations.ROOT / path).is_file() for path in fault.tests), fault


@pytest.mark.slow
def test_a_fault_is_noticed_and_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, test = tmp_path / "src/motes/one.py", tmp_path / "tests/test_one.py"
    for path, text in (
        (tmp_path / "src/motes/__init__.py", ""),
        (source, "VALUE = 1\nOTHER = 2\n"),
        (test, "from motes.one import VALUE\n\ndef test_it():\n    assert VALUE == 1\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow']\n")
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    tests = ("tests/test_one.py",)
    assert mutations.run_tests(tmp_path, tests, 60) == mutations.PASSED
    for old, new, expected in (
        ("VALUE = 1", "VALUE = 3", mutations.CAUGHT),
        ("OTHER = 2", "OTHER = 3", mutations.SURVIVED),
    ):
        fault = Fault("one.py", old, new, tests)
        assert mutations.applies(fault)
        assert mutations.try_fault(tmp_path, fault, 60) == expected
    assert source.read_text() == "VALUE = 1\nOTHER = 2\n"
    assert not mutations.applies(Fault("one.py", "NOTHING", "", tests))
