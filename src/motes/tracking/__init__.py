"""Track a changing number of objects: nothing is trained beforehand, everything is learned here.

    frames --appearance, detection--> candidates --linking--> tracks --motion, existence--> Tracks

`learning` repeats the last two steps to learn laws of motion and rates.
"""

from motes.tracking.recording import track
from motes.tracking.tracks import COLUMNS, Tracks

__all__ = ["COLUMNS", "Tracks", "track"]
