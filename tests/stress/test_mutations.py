"""The list of deliberate faults fits the source; see tests/stress/mutations.py."""

import shutil
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


def test_the_function_of_a_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "src/motes/one.py"
    source.parent.mkdir(parents=True)
    source.write_text(
        "A = 1\nclass C:\n    B = 2\n    def m(self):\n        def inner():\n"
        "            return 3\n        return inner\nasync def f():\n    return 4\n"
    )
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    names = ("A = 1", ""), ("B = 2", ""), ("return 3", "C.m.<locals>.inner"), ("return 4", "f")
    for text, name in (*names, ("return inner", "C.m")):
        assert mutations.function_of(Fault("one.py", text, "", ())) == name


@pytest.mark.slow
def test_a_fault_is_noticed_and_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, test = tmp_path / "src/motes/one.py", tmp_path / "tests/test_one.py"
    for path, text in (
        (tmp_path / "src/motes/__init__.py", ""),
        (source, "OTHER = 2\ndef value():\n    return 1\n"),
        (
            test,
            "import time\nfrom motes.one import value\n\ndef test_it():\n    assert value() == 1\n"
            "def test_broken():\n    assert value() == 5\ndef test_quick():\n    pass\n"
            "def test_slow():\n    start = time.process_time()\n"
            "    while time.process_time() < start + 0.2:\n        pass\n"
            "    assert value() < 5\n",
        ),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow']\n")
    stress = tmp_path / "tests/stress"
    stress.mkdir()
    for name in ("warm_pytest.py", "forked.py"):
        shutil.copy(mutations.ROOT / "tests/stress" / name, stress)
    tests = ("tests/test_one.py",)
    listed = [
        Fault("one.py", "return 1", "return 3", tests),
        Fault("one.py", "return 1", "return", tests),
        Fault("one.py", "return 1", "return (", tests),
        Fault("one.py", "OTHER = 2", "OTHER = 3", tests),
    ]
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    monkeypatch.setattr(mutations, "FAULTS", listed)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with mutations.runner(tmp_path) as worker:
        known = mutations.run_without_fault(worker, tests[0], 60)
        name = f"{tests[0]}::test_"
        assert [test for test in known if known[test]["failed"]] == [f"{name}broken"]
        assert mutations.nearest_first(listed[0], known)[2] == f"{name}quick"
        found = [mutations.try_fault(worker, fault, known, 60) for fault in listed]
    assert [(each["outcome"], each.get("by")) for each in found] == [
        (mutations.CAUGHT, f"{name}it"),
        (mutations.CAUGHT, f"{name}it"),
        (mutations.CAUGHT, "import"),
        (mutations.SURVIVED, None),
    ]
    assert source.read_text() == "OTHER = 2\ndef value():\n    return 1\n"
    assert not mutations.applies(Fault("one.py", "NOTHING", "", tests))
