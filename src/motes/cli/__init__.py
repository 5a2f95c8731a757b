"""The command line: a table of commands, and `main`.

Exit codes: 0 success, 1 failure, 2 invalid input (reported in one line on standard error).
Modules of commands import torch and the rest of the package inside of functions, so that help,
completion and errors in options take no time.
"""

import re
import sys
from collections.abc import Callable, Sequence

from motes.cli import data, doctor, evaluate, law, prepare, queries, serve, track, train, watch
from motes.cli.batch import IncompleteError
from motes.core.errors import InputError

GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "Get started": {"demo": data.demo, "doctor": doctor.doctor},
    "Make clips": {"data": data.data, "prepare": prepare.prepare},
    "Train and score a model": {
        "train": train.train,
        "calibrate": evaluate.calibrate,
        "evaluate": evaluate.evaluate,
        "law": law.law,
    },
    "Track without a model": {"track": track.track},
    "Query a model": {
        "infer": queries.infer,
        "forecast": queries.forecast,
        "interpolate": queries.interpolate,
        "sample": queries.sample,
        "watch": watch.watch,
        "serve": serve.serve,
    },
    "Figures and timings": {"figures": evaluate.figures, "bench": evaluate.bench},
}
VERBS = {name: verb for group in GROUPS.values() for name, verb in group.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] in ("-h", "--help"):
        print(overview())
        return 0
    if given == ["--version"]:
        from importlib.metadata import version

        print(f"motes {version('motes')}")
        return 0
    try:
        _run(given)
    except InputError as error:
        print(f"motes: {error}", file=sys.stderr)
        return 2
    except (FloatingPointError, IncompleteError) as error:
        print(f"motes: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print("motes: not enough memory; give fewer, shorter or smaller clips", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("motes: interrupted", file=sys.stderr)
        return 1
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"motes: {place}{error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def overview() -> str:
    """Return the help of `motes` itself: every command with the first line of its help."""
    lines = [
        "usage: motes COMMAND [OPTIONS]",
        "",
        "Learn from unlabelled videos which objects move and how, then query the model.",
    ]
    for title, group in GROUPS.items():
        lines += ["", title]
        summaries = {name: (verb.__doc__ or "").partition("\n")[0] for name, verb in group.items()}
        lines += [f"  {name:12s} {summary}" for name, summary in summaries.items()]
    return "\n".join([*lines, "", "Examples and options of a command: motes COMMAND --help"])


def _run(given: Sequence[str]) -> None:
    """Parse the arguments and call the function of the command."""
    import tyro

    if not given or given[0] not in VERBS:
        problem = f"no command {given[0]!r}" if given else "no command given"
        raise InputError(f"{problem}; there are {', '.join(VERBS)} (see motes --help)")
    verb = VERBS[given[0]]
    # tyro keeps the line breaks of a docstring; join the lines of an argument's description.
    verb.__doc__ = re.sub(r"\n {12,}", " ", verb.__doc__ or "")
    tyro.cli(verb, prog=f"motes {given[0]}", args=given[1:])
