"""Tracks as the XML file of TrackMate, the tracking program of Fiji.

TrackMate identifies a spot by a number, keeps spots by frame, and keeps tracks as edges between
spots. Files load with "Plugins > Tracking > Load a TrackMate file"; no image is named, so that
TrackMate asks for the one to show.
"""

from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

import numpy as np

from motes.core.axes import Int

VERSION = "7.11.1"  # of TrackMate, whose file layout this is
# Name, TrackMate's short name, its dimension, whether the value is a whole number.
SPOT_FEATURES = (
    ("QUALITY", "Quality", "QUALITY", False),
    ("POSITION_X", "X", "POSITION", False),
    ("POSITION_Y", "Y", "POSITION", False),
    ("POSITION_Z", "Z", "POSITION", False),
    ("POSITION_T", "T", "TIME", False),
    ("FRAME", "Frame", "NONE", True),
    ("RADIUS", "R", "LENGTH", False),
    ("VISIBILITY", "Visibility", "NONE", True),
    ("SD_X", "SD x", "LENGTH", False),
    ("SD_Y", "SD y", "LENGTH", False),
    ("OBSERVED", "Observed", "NONE", True),
)
EDGE_FEATURES = (
    ("SPOT_SOURCE_ID", "Source ID", "NONE", True),
    ("SPOT_TARGET_ID", "Target ID", "NONE", True),
    ("LINK_COST", "Cost", "COST", False),
)
TRACK_FEATURES = (
    ("TRACK_INDEX", "Index", "NONE", True),
    ("TRACK_ID", "ID", "NONE", True),
    ("NUMBER_SPOTS", "N spots", "NONE", True),
    ("TRACK_START", "Start", "TIME", False),
    ("TRACK_STOP", "Stop", "TIME", False),
)


def write_trackmate(
    path: Path, table: dict[str, np.ndarray], tracks: Int[np.ndarray, " rows"], diameter: float
) -> None:
    """Write the rows of a table, `tracks` being the number of each row's track.

    Quality, which TrackMate filters by, is 1 in observed frames and 0.5 elsewhere.
    """
    seconds = "time" in table
    times = table["time"] if seconds else table["frame"]
    root = Element("TrackMate", version=VERSION)
    length = str(table["unit"][0]) if "unit" in table else "pixel"
    model = SubElement(root, "Model", spatialunits=length, timeunits="sec" if seconds else "frame")
    _declare_features(model)
    _add_spots(model, table, times, diameter)
    _add_tracks(model, table["frame"], times, tracks)
    _add_settings(root, table["frame"], times)
    SubElement(root, "GUIState", state="ConfigureViews")
    indent(root)
    ElementTree(root).write(path, encoding="UTF-8", xml_declaration=True)


def _declare_features(model: Element) -> None:
    declarations = SubElement(model, "FeatureDeclarations")
    groups = {
        "SpotFeatures": SPOT_FEATURES,
        "EdgeFeatures": EDGE_FEATURES,
        "TrackFeatures": TRACK_FEATURES,
    }
    for group, features in groups.items():
        parent = SubElement(declarations, group)
        for feature, short, dimension, whole in features:
            SubElement(
                parent,
                "Feature",
                feature=feature,
                name=short,
                shortname=short,
                dimension=dimension,
                isint=str(whole).lower(),
            )


def _add_spots(
    model: Element, table: dict[str, np.ndarray], times: np.ndarray, diameter: float
) -> None:
    frames = table["frame"].astype(int)
    spots = SubElement(model, "AllSpots", nspots=str(len(frames)))
    parents = {
        int(frame): SubElement(spots, "SpotsInFrame", frame=str(frame))
        for frame in np.unique(frames)
    }
    for row, frame in enumerate(frames.tolist()):
        observed = bool(table["observed"][row])
        values = {
            "QUALITY": 1.0 if observed else 0.5,
            "POSITION_X": float(table["x"][row]),
            "POSITION_Y": float(table["y"][row]),
            "POSITION_Z": 0.0,
            "POSITION_T": float(times[row]),
            "FRAME": frame,
            "RADIUS": diameter / 2,
            "VISIBILITY": 1,
            "SD_X": float(table["sd_x"][row]),
            "SD_Y": float(table["sd_y"][row]),
            "OBSERVED": int(observed),
        }
        attributes = {name: str(value) for name, value in values.items()}
        SubElement(parents[frame], "Spot", {"ID": str(row), "name": f"ID{row}", **attributes})


def _add_tracks(
    model: Element, frames: np.ndarray, times: np.ndarray, tracks: Int[np.ndarray, " rows"]
) -> None:
    parent, kept = SubElement(model, "AllTracks"), SubElement(model, "FilteredTracks")
    for number in np.unique(tracks).tolist():
        rows = np.flatnonzero(tracks == number)
        rows = rows[np.argsort(frames[rows], kind="stable")]
        track = SubElement(
            parent,
            "Track",
            name=f"Track_{number}",
            TRACK_INDEX=str(number),
            TRACK_ID=str(number),
            NUMBER_SPOTS=str(len(rows)),
            TRACK_START=str(float(times[rows[0]])),
            TRACK_STOP=str(float(times[rows[-1]])),
        )
        for source, target in zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True):
            ends = {"SPOT_SOURCE_ID": str(source), "SPOT_TARGET_ID": str(target)}
            SubElement(track, "Edge", {**ends, "LINK_COST": "-1.0"})
        SubElement(kept, "TrackID", TRACK_ID=str(number))


def _add_settings(root: Element, frames: np.ndarray, times: np.ndarray) -> None:
    settings = SubElement(root, "Settings")
    first, last = (int(frames.min()), int(frames.max())) if len(frames) else (0, 0)
    span = float(times.max() - times.min()) if len(times) else 0.0
    interval = span / (last - first) if last > first else 1.0
    SubElement(
        settings,
        "ImageData",
        filename="",
        folder="",
        width="0",
        height="0",
        nslices="1",
        nframes=str(last + 1),
        pixelwidth="1.0",
        pixelheight="1.0",
        voxeldepth="1.0",
        timeinterval=str(interval),
    )
    SubElement(settings, "InitialSpotFilter", feature="QUALITY", value="0.0", isabove="true")
    for name in ("SpotFilterCollection", "TrackFilterCollection", "AnalyzerCollection"):
        SubElement(settings, name)
