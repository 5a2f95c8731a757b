"""The command line: a table from verb to function.

Exit codes: 0 done, 1 failed, 2 bad input (told in one line on standard error).
"""

import functools
import sys
from collections.abc import Callable, Sequence

from motes.errors import InputError
from motes.verbs import ask, bench, health, learn, make, score, serve, video

VERBS: dict[str, Callable[..., None]] = {
    "demo": make.demo,
    "data": make.data,
    "prepare": video.prepare,
    "train": learn.train,
    "evaluate": score.evaluate,
    "figures": score.figures,
    "infer": ask.infer,
    "forecast": ask.forecast,
    "interpolate": ask.interpolate,
    "sample": ask.sample,
    "bench": bench.bench,
    "serve": serve.serve,
    "doctor": health.doctor,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code."""
    import tyro

    given = sys.argv[1:] if arguments is None else list(arguments)
    chosen = bool(given) and given[0] in VERBS
    try:
        tyro.extras.subcommand_cli_from_dict(
            VERBS if chosen else {name: _in_a_sentence(verb) for name, verb in VERBS.items()},
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


def _in_a_sentence(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the first sentence of its help alone, for the list of all of them."""

    @functools.wraps(verb)
    def listed(**arguments: object) -> None:
        verb(**arguments)

    listed.__doc__ = (verb.__doc__ or "").partition("\n")[0]
    return listed
