"""Options that several commands share.

An option means the same in every command: `-o/--out` is the output, `-m/--model` the model,
`-d/--data` a clip file, `-n/--num-objects` a number of objects.
"""

from typing import Annotated, TypeVar

from tyro.conf import arg

from motes.core.errors import InputError

T = TypeVar("T")
Out = Annotated[T, arg(aliases=("-o",))]
ModelName = Annotated[T, arg(aliases=("-m",))]
Data = Annotated[T, arg(aliases=("-d",))]
NumObjects = Annotated[T, arg(aliases=("-n",))]
Json = Annotated[bool, arg(name="json")]


def time_span(start: float, end: float | None) -> tuple[float, float]:
    """Return the first and last second of a video to use; without an end, infinity."""
    last = float("inf") if end is None else end
    if not 0 <= start < last:
        raise InputError(f"start is {start:g} and end {end}; give 0 <= start < end in seconds")
    return start, last
