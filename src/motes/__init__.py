"""Learn from videos alone which objects move and by which law; then ask about them."""

from motes import kalman
from motes.core.errors import InputError
from motes.data import Clips, cannonballs, load_clips, save_clips
from motes.models.model import Model, load
from motes.queries import forecast, infer, interpolate, sample
from motes.queries.answer import Answer

__all__ = [
    "Answer",
    "Clips",
    "InputError",
    "Model",
    "cannonballs",
    "forecast",
    "infer",
    "interpolate",
    "kalman",
    "load",
    "load_clips",
    "sample",
    "save_clips",
]
