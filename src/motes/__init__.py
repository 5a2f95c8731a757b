"""Learn from videos alone which objects move and by which law; then ask about them.

Public names are imported on first use, so that `import motes` and the help of the command line do
not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from motes import kalman
    from motes.core.errors import InputError
    from motes.data import Clips, cannonballs, load_clips, save_clips
    from motes.models.checkpoint import load
    from motes.models.model import Model
    from motes.queries import forecast, infer, interpolate, sample
    from motes.queries.answer import Answer
    from motes.tracking import Tracks, track

_PACKAGES = (
    "config",
    "core",
    "data",
    "evaluation",
    "kalman",
    "models",
    "output",
    "queries",
    "training",
)
_HOMES = {
    **dict.fromkeys(("Clips", "cannonballs", "load_clips", "save_clips"), "motes.data"),
    **dict.fromkeys(("forecast", "infer", "interpolate", "sample"), "motes.queries"),
    "Answer": "motes.queries.answer",
    "InputError": "motes.core.errors",
    "Model": "motes.models.model",
    "Tracks": "motes.tracking",
    "load": "motes.models.checkpoint",
    "track": "motes.tracking",
}
__all__ = [
    "Answer",
    "Clips",
    "InputError",
    "Model",
    "Tracks",
    "cannonballs",
    "forecast",
    "infer",
    "interpolate",
    "kalman",
    "load",
    "load_clips",
    "sample",
    "save_clips",
    "track",
]


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name in _PACKAGES:
        return import_module(f"motes.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'motes' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
