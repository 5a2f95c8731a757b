"""What the pages say is what the project is."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from experiments.records import read_records
from experiments.results_table import make_tables
from motes.output.demo_report import LIMITS
from tools import make_cli_docs

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
# Taken apart, so that this file does not hold what it looks for.
HOMES = re.compile(
    r"(?<![\w.>])/(?:" + "|".join(["home", "root", "Users", "work", "mnt"]) + r")/\w"
)


def words(text: str) -> list[str]:
    """The words of a help text; how its lines are broken and framed is the printer's business."""
    return re.findall(r"[\w'.:,/-]*\w[\w'.:,/-]*", text)


def ours() -> list[Path]:
    """Every text file that a person wrote."""
    folders = ("src", "tests", "tools", "examples", "docs", "benchmarks", "experiments", ".ci")
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    top = [*ROOT.glob("[!.]*"), ROOT / ".pre-commit-config.yaml", ROOT / ".gitignore"]
    suffixes = ("", ".py", ".md", ".toml", ".json", ".cff", ".yaml")
    return [
        path
        for path in (*inside, *top)
        if path.is_file() and path.suffix in suffixes and "egg-info" not in str(path)
    ]


def test_the_page_of_the_command_line_is_its_help():
    written = make_cli_docs.PAGE.read_text("utf-8")
    assert words(written) == words(make_cli_docs.page()), "run make docs"


def test_tables_of_results_are_those_of_the_stored_records():
    for path, page in make_tables.pages().items():
        assert path.read_text("utf-8") == page, f"{path.name}: run make docs"


def record(**changes: Any) -> dict[str, Any]:
    """What `motes evaluate --out` stores, with made-up numbers."""
    scores = {"clips": 10, **{name: 0.25 for name in make_tables.SCORES}}
    place = {"motes_commit": None, "command": "c", "processor": "p", "threads": 2, "torch": "2"}
    standard = {"frame_size": [48, 48], "num_frames": 30, "test_seed": 5, "environment": place}
    counts = {"by_count": {"1": scores, "2": scores, "3": scores}}
    return {**standard, **counts, "force_px_per_frame2": [0.0, 0.05], **changes}


def limit() -> dict[str, Any]:
    """A record of the limit, with made-up numbers."""
    stored = record()
    for column in stored["by_count"].values():
        column["forecast_rmse"] = 2.19
    return stored


def test_a_table_shows_the_limit_beside_the_scores():
    table = make_tables.score_table(record(), ("forecast_rmse",), {"limit": limit()})
    assert "| 0.25 / 0.25 / 0.25 | 2.19 / 2.19 / 2.19 |" in table


def test_the_two_families_stand_beside_the_limit_in_one_table():
    records = {"cannonballs-48": record(), "cannonballs-structured": record(), "limit": limit()}
    table = make_tables.scores_of("cannonballs-structured", records, ("forecast_rmse",))
    assert "| this model | ours, the paper's networks | limit |" in table
    assert "| 0.25 / 0.25 / 0.25 | 0.25 / 0.25 / 0.25 | 2.19 / 2.19 / 2.19 |" in table


@pytest.mark.parametrize(
    "change", [{"frame_size": [32, 32]}, {"num_frames": 50}, {"test_seed": None}]
)
def test_no_limit_stands_beside_scores_of_other_clips(change: dict[str, Any]):
    records = {"limit": limit(), "cannonballs-48": record(**change)}
    assert "2.19" not in make_tables.scores_of("cannonballs-48", records, ("forecast_rmse",))
    table = make_tables.short_table(records)
    assert "distilled" not in table or "distilled** (other clips: seed None)" in table


def test_every_record_becomes_a_section_and_a_row():
    took = {"motes": {"min": 2.0, "median": 2.5}, "naive": {"min": 8.0, "median": 9.0}}
    bench = {"bench": "train", "task": "a step", "milliseconds": took}
    bench["environment"] = record()["environment"]
    variant = {**record(), "iterations": 7, "held_out": [[7, 0.3]]}
    recurrent = {**record(), "variants": {"small": variant}, "best": "small"}
    del recurrent["by_count"]
    records = {
        "bench_train": bench, "cannonballs-48": record(), "limit": limit(), "ed-lstm": recurrent,
    }  # fmt: skip
    page = make_tables.long_form(records)
    assert "| a step | naive | 8.00 | 9.00 | 4.00 |" in page
    assert "### cannonballs-48" in page
    assert "| small (best held-out loss) | 7 | 0.2500 / 0.2500 / 0.2500 |" in page
    table = make_tables.short_table(records)
    assert table.count("0.25 / 0.25 / 0.25") >= 2
    assert "as the paper trains it" in table


def test_every_seed_that_was_run_is_told():
    last = {"step": 9, "1": 1.0, "2": 0.5, "3": 0.25, "bound": -12.4}
    watched = {**record(), "training": "small", "tracked": {"seed-0": [last], "seed-1": [last]}}
    del watched["by_count"]
    page = make_tables.long_form({"training": watched})
    assert "| 1 | 1.00 / 0.50 / 0.25 | -12 |" in page


def test_limits_of_the_report_are_those_of_the_stored_record():
    stored = read_records()["limit"]["by_count"]
    for name, values in LIMITS.items():
        for value, column in zip(values, stored.values(), strict=True):
            assert value == pytest.approx(column[name], rel=0.005, abs=0.005 * value + 5e-5)


def test_a_model_without_a_record_says_so():
    assert make_tables.scores_of("another", {"cannonballs-48": record()}, ()) == (
        "No record is stored yet."
    )


def test_a_record_of_a_changed_tree_says_so():
    place = record()["environment"] | {"motes_commit": "0123456789abcdef+changes"}
    assert "commit 0123456789+changes," in make_tables.origin(record(environment=place))


def test_a_page_without_its_markers_is_refused():
    with pytest.raises(ValueError, match="markers"):
        make_tables.fill("no markers here", "content")


def test_the_map_shows_the_layers_that_are_enforced():
    (contract,) = (c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["id"] == "layers")
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    (shown,) = re.findall(r"```layers\n(.*?)```", page, re.DOTALL)
    assert shown.splitlines() == contract["layers"]


def test_the_version_is_the_newest_of_the_changelog():
    newest = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    cited = re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert cited is not None
    assert newest[1] == cited[1] == PROJECT["project"]["version"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8"))
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_holds_a_placeholder(page: Path):
    assert "TODO" not in page.read_text("utf-8")


def test_no_file_holds_a_path_of_somebodys_machine():
    found = {path.name: hit[0] for path in ours() if (hit := HOMES.search(path.read_text("utf-8")))}
    assert found == {}


def test_paths_of_machines_are_recognised():
    assert HOMES.search("open('/" + "home/anna/clips.npz')")
    assert not HOMES.search("https://example.org/" + "home/anna")
