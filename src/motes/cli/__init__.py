"""The command line: a table from verb to function.

Exit codes: 0 done, 1 failed, 2 bad input (told in one line on standard error).
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Sequence

from motes.cli import bench, data, doctor, evaluate, prepare, queries, serve, train
from motes.core.errors import InputError

VERBS: dict[str, Callable[..., None]] = {
    "demo": data.demo,
    "data": data.data,
    "prepare": prepare.prepare,
    "train": train.train,
    "evaluate": evaluate.evaluate,
    "figures": evaluate.figures,
    "infer": queries.infer,
    "forecast": queries.forecast,
    "interpolate": queries.interpolate,
    "sample": queries.sample,
    "bench": bench.bench,
    "serve": serve.serve,
    "doctor": doctor.doctor,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code."""
    import tyro

    given = sys.argv[1:] if arguments is None else list(arguments)
    help_of = unwrapped if given and given[0] in VERBS else first_sentence
    try:
        tyro.extras.subcommand_cli_from_dict(
            {name: _told(verb, help_of(verb.__doc__ or "")) for name, verb in VERBS.items()},
            prog="motes",
            description="Learn from videos alone which objects move and by which law, then ask. "
            "Examples and options of a verb: motes VERB --help",
            args=given,
        )
    except InputError as error:
        print(f"motes: {error}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
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


def first_sentence(text: str) -> str:
    """What the list of all verbs says of one."""
    return text.partition("\n")[0]


def unwrapped(text: str) -> str:
    """A docstring whose arguments stand in one line each: a terminal has a width of its own."""
    return re.sub(r"\n {12,}", " ", text)


def _told(verb: Callable[..., None], text: str) -> Callable[..., None]:
    """The verb with another help."""

    def same(**arguments: object) -> None:
        verb(**arguments)

    own = vars(functools.update_wrapper(same, verb))
    del own["__wrapped__"]  # whose own help tyro would show
    own["__signature__"] = inspect.signature(verb)
    same.__doc__ = text
    return same
