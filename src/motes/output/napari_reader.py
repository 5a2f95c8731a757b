"""The napari plugin: files of format `napari` open as a tracks layer.

napari finds it by the manifest `motes/napari.yaml` where this package is installed beside napari.
napari itself reads CSV files as points or shapes only.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

AXES = ("track_id", "axis-0", "axis-1", "axis-2")
LayerData = tuple[np.ndarray, dict[str, Any], str]


def get_reader(path: str | list[str]) -> Callable[[Any], list[LayerData]] | None:
    """Return the reader of a file, or None if its columns are not those of tracks."""
    paths = [path] if isinstance(path, str) else path
    for name in paths:
        with Path(name).open(newline="", encoding="utf-8") as file:
            if tuple(next(csv.reader(file), ()))[: len(AXES)] != AXES:
                return None
    return read_tracks


def read_tracks(path: str | list[str]) -> list[LayerData]:
    """Return the tracks layer of each file: data, features and the kind of layer."""
    layers: list[LayerData] = []
    for name in [path] if isinstance(path, str) else path:
        with Path(name).open(newline="", encoding="utf-8") as file:
            columns, *rows = csv.reader(file)
        values = dict(zip(columns, zip(*rows, strict=True), strict=True)) if rows else {}
        data = np.asarray([values.get(axis, ()) for axis in AXES], dtype=float).T
        features = {feature: _numbers(values[feature]) for feature in values if feature not in AXES}
        title = Path(name).name.partition(".")[0]
        layers.append((data, {"name": title, "features": features}, "tracks"))
    return layers


def _numbers(texts: tuple[str, ...]) -> np.ndarray:
    """Return texts as numbers where all of them are."""
    try:
        return np.asarray(texts, dtype=float)
    except ValueError:
        return np.asarray(texts)
