"""The tracer counts calls between modules and finds calls back into a module on the stack."""

import importlib
from pathlib import Path

import pytest

from tools.trace_calls import Trace, is_service, report, trace


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = tmp_path / "traced"
    source.mkdir()
    (source / "__init__.py").write_text("")
    (source / "a.py").write_text(
        "from traced import b, c\n\n\ndef begin():\n    c.leaf()\n    return b.middle(again)\n\n\n"
        "def again():\n    return c.leaf()\n"
    )
    (source / "b.py").write_text("def middle(call):\n    return call()\n")
    (source / "c.py").write_text("def leaf():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return source


def test_edges_are_counted_once_and_returns_are_found(package: Path) -> None:
    begin = importlib.import_module("traced.a").begin
    found = trace(begin, package)
    assert list(found.edges) == [("a", "c"), ("a", "b"), ("b", "a")]
    assert list(found.returns) == [("b", "a")]
    assert found.modules == {"a", "b", "c"}


def test_a_chain_of_calls_has_no_return(package: Path) -> None:
    assert trace(importlib.import_module("traced.a").again, package).returns == {}


def test_services_are_reported_apart() -> None:
    assert is_service("core.files")
    assert is_service("config")
    assert not is_service("configured")
    edges = dict.fromkeys([("cli", "core.files"), ("cli", "queries"), ("core.files", "cli")])
    found = Trace(edges, {("core.files", "cli"): None}, {("queries", "infer")})
    text = report(found, listed=False)
    assert "3 edges between 1 modules" in text
    assert "1 edges without services, 1 edges between packages" in text
    assert "0 returns" in text
