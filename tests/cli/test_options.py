"""An option with one meaning has one name, alias, type and description in all commands."""

import argparse
import re
import warnings
from collections import Counter
from collections.abc import Iterator

import pytest
import tyro

from motes import cli

# Option: other spellings everywhere, type, first words of the description.
COMMON = {
    "--out": ({"-o"}, "PATH", "output f"),  # file or folder
    "--model": ({"-m"}, "STR", "shipped model or run folder"),
    "--data": ({"-d"}, "PATH", "clip file: "),
    "--num-objects": ({"-n"}, "INT", "number of objects in a clip"),
    "--num-clips": (set(), "INT", "number of clips"),
    "--num-frames": (set(), "INT", "number of frames in a clip"),
    "--size": (set(), "INT", "frame size: "),
    "--seed": (set(), "INT", "random seed of "),
    "--start": (set(), "FLOAT", "first second of the video to use"),
    "--end": (set(), "FLOAT", "last second of the video to use"),
    "--gif": (set(), "PATH", "GIF to write: the first clip"),
    "--overlay": (set(), "PATH", "mp4 or GIF to write: "),
    "--plot": (set(), "PATH", "PNG to write: "),
    "--device": (set(), "STR", "cpu or cuda"),
    "--json": (set(), None, "print one JSON line instead of text"),
    "--fps": (set(), "FLOAT", "frames per second "),
    "--source-fps": (set(), "FLOAT", "frames per second of a video without time stamps"),
    "--format": (set(), None, "format of the output file"),
    "--corrections": (set(), "PATH", "JSON or CSV file of pins"),
    "--force": (set(), None, "answer even if the recording is of another kind"),
    "--full-resolution": (set(), None, "let infer fit positions"),
    "--stretch": (set(), "INT", "frames of a video that infer takes at once"),
    "--jobs": (set(), "INT", "recordings to work on at a time"),
    "--cluster": (set(), "STR", "address (tcp://host:8786) or scheduler file of a Dask cluster"),
    "--scale": (set(), "STR", "length of a pixel of the video"),
    "--ruler": (set(), "STR", "two points of the video and the distance"),
    "--plane": (set(), "STR", "four points of the video and their places"),
}
OLD_NAMES = {"--clips", "--frames", "--results", "--seen"}  # of version 0.1, still accepted
OTHER_MODELS = {"--from", "--teacher"}  # models in another role
SHEET = "--sheet"  # a PNG in another role
SOURCE_FPS = "--source-fps"  # a frame rate in another role
RESUME = "--resume"  # of train the folder of a run, of others a switch


def actions(verb: str) -> list[argparse.Action]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = tyro.extras.get_parser(cli.VERBS[verb])
    return [action for action in parser._actions if "--help" not in action.option_strings]


def named(verb: str) -> Iterator[tuple[str, set[str], argparse.Action]]:
    """Each option of a command by its name, with its other spellings."""
    for action in actions(verb):
        spellings = [
            spelling
            for spelling in action.option_strings
            if spelling not in OLD_NAMES and not spelling.startswith("--no-")
        ]
        if spellings:
            (name,) = [spelling for spelling in spellings if spelling.startswith("--")]
            yield name, set(spellings) - {name}, action


def element(action: argparse.Action) -> str | None:
    """The type of one value: INT of {None}|{[INT [INT ...]]}."""
    kinds = set(re.findall(r"PATH|STR|INT|FLOAT", str(action.metavar)))
    return kinds.pop() if len(kinds) == 1 else None


@pytest.mark.parametrize("verb", cli.VERBS)
def test_common_options_are_spelled_and_described_alike(verb: str) -> None:
    for name, others, action in named(verb):
        if name in COMMON:
            aliases, kind, phrase = COMMON[name]
            assert others == aliases, name
            assert element(action) == kind, name
            assert (action.help or "").startswith(phrase), name
        else:
            assert others == set(), name


def test_options_of_two_commands_are_common_options() -> None:
    counts = Counter(name for verb in cli.VERBS for name, _, _ in named(verb))
    assert {name for name, count in counts.items() if count > 1} <= {*COMMON, RESUME}
    assert set(COMMON) <= set(counts)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_no_other_option_has_the_meaning_of_a_common_one(verb: str) -> None:
    for name, _, action in named(verb):
        for common, (_, _, phrase) in COMMON.items():
            if (action.help or "").startswith(phrase) and name not in {
                *OTHER_MODELS,
                SHEET,
                SOURCE_FPS,
            }:
                assert name == common


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_command_that_writes_has_an_output_option(verb: str) -> None:
    names = {name for name, _, _ in named(verb)}
    assert "--json" in names
    assert ("--out" in names) == (verb not in ("serve", "doctor"))
