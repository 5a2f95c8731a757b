"""Every command that the pages show can be typed."""

import functools
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tyro

from motes import cli
from tools.make_cli_docs import help_text

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
# Pages of results quote the commands of old records.
FOLDERS = ("tutorial", "howto", "reference", "explanation")
PATHS = [path for name in FOLDERS for path in sorted((ROOT / "docs" / name).glob("*.md"))]
PAGES = [README, *(path.read_text("utf-8") for path in PATHS)]
# In backticks, after "Example:", or in a block; a command ends where its line, its code or its
# redirected output does.
SHOWN = re.compile(r"(?:`|Example: |^    )motes ([a-z]+ [^`\n#>]*[^`\n#> ])", re.MULTILINE)
COMMANDS = sorted({command for page in PAGES for command in SHOWN.findall(page)})


def recorder(verb: Callable[..., None]) -> Callable[..., dict[str, Any]]:
    """A function that takes what the verb takes and does nothing."""

    @functools.wraps(verb)
    def record(**arguments: Any) -> dict[str, Any]:
        return arguments

    return record


def parse(command: str) -> dict[str, Any]:
    """The arguments that a verb would be called with."""
    verbs = {name: recorder(verb) for name, verb in cli.VERBS.items()}
    parsed: dict[str, Any] = tyro.extras.subcommand_cli_from_dict(verbs, args=shlex.split(command))
    return parsed


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_pages_are_understood(command: str):
    assert isinstance(parse(command), dict)


def test_the_first_pages_show_how_to_make_train_and_query():
    tutorial = (ROOT / "docs" / "tutorial" / "first_run.md").read_text("utf-8")
    readme, both = (
        {command.split()[0] for command in SHOWN.findall(text)}
        for text in (README, README + tutorial)
    )
    assert readme >= {"data", "train", "infer", "forecast"}
    assert both >= {"interpolate", "sample", "evaluate"}


def test_the_list_of_verbs_has_a_sentence_for_each_and_fits_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert len(listed.splitlines()) <= 40
    assert "Example:" not in listed
    for verb, function in cli.VERBS.items():
        assert f"  {verb} " in listed
        assert (function.__doc__ or "").partition("\n")[0] in listed
    assert max(map(len, listed.splitlines())) <= 88


def test_a_flag_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parse("data --no-such-flag 3")
    assert "no-such-flag" in capsys.readouterr().err


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_an_example_and_speaks_to_machines(verb: str):
    text = help_text(verb)
    assert f"Example: motes {verb}" in text
    assert "--json" in text


def test_help_is_wrapped_by_the_terminal_and_not_by_the_docstring():
    assert "fade; default: chosen from the" in help_text("prepare")


def test_the_readme_lists_make_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", README)) <= targets
