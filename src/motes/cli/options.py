"""Options that several commands share.

An option means the same in every command: `-o/--out` is the output, `-m/--model` the model,
`-d/--data` a clip file, `-n/--num-objects` a number of objects.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

from tyro.conf import arg

from motes.core.errors import InputError

if TYPE_CHECKING:
    from motes.video.units import Units

T = TypeVar("T")
Out = Annotated[T, arg(aliases=("-o",))]
ModelName = Annotated[T, arg(aliases=("-m",))]
Data = Annotated[T, arg(aliases=("-d",))]
NumObjects = Annotated[T, arg(aliases=("-n",))]
Json = Annotated[bool, arg(name="json")]


@dataclass(frozen=True)
class Lengths:
    """The size of things in a video; at most one of three."""

    scale: str | None = None
    """length of a pixel of the video, as in 0.5mm/px; then results are in mm and seconds."""
    ruler: str | None = None
    """two points of the video and the distance between them, as in '100,40 420,40 1.5m'."""
    plane: Annotated[
        str | None,
        arg(
            help="four points of the video and their places in a plane, as in "
            "'10,20=0,0 400,30=2,0 390,300=2,1 5,290=0,1 m'."
        ),
    ] = None

    def units(self) -> "Units | None":
        """Return the units that were given, or None."""
        from motes.video.units import parse_units

        return parse_units(self.scale, self.ruler, self.plane)


@dataclass(frozen=True)
class Processes:
    """Where the work on several recordings is done."""

    jobs: int | None = None
    """recordings to work on at a time, on this machine; default: one for each core."""
    cluster: Annotated[
        str | None,
        arg(
            help="address (tcp://host:8786) or scheduler file of a Dask cluster that does the work "
            "(pip install 'motes[cluster]')."
        ),
    ] = None


NO_LENGTHS, HERE = Lengths(), Processes()
LengthOptions = Annotated[Lengths, arg(name="")]  # their fields become options of the command
ProcessOptions = Annotated[Processes, arg(name="")]


def time_span(start: float, end: float | None) -> tuple[float, float]:
    """Return the first and last second of a video to use; without an end, infinity."""
    last = float("inf") if end is None else end
    if not 0 <= start < last:
        raise InputError(f"start is {start:g} and end {end}; give 0 <= start < end in seconds")
    return start, last
