"""Tables in the formats of other programs, opened by the real program where it is installed."""

import csv
import dataclasses
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch

from motes.core.errors import InputError
from motes.models.checkpoint import load
from motes.output import formats, napari_reader
from motes.output.tracks import table, write_table
from motes.queries import sample
from motes.video import VideoMap
from motes.video.units import Units
from tests.tiny import tiny_model

T = 6
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def answer():
    return sample(tiny_model(), num_clips=2, num_objects=torch.tensor([3, 2]), num_frames=T)


@pytest.fixture(scope="module")
def where():
    """Clips at 20 frames a second that overlap in time."""
    numbers = np.arange(T) + np.array([[0], [3]])
    return VideoMap(np.array([3.0, 5.0]), np.array([10.0, -1.0]), numbers / 20, numbers)


@pytest.fixture(scope="module")
def tracks(answer, where):
    """The rows of every track, in order of clips and objects: frame, x, y."""
    rows = list(table(answer, where)[1])
    keys = sorted({(row[0], row[2]) for row in rows})
    return [np.array([(r[1], r[3], r[4]) for r in rows if (r[0], r[2]) == key]) for key in keys]


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("file", "name", "expected"),
    [
        ("a.csv", None, "csv"),
        ("a.parquet", None, "parquet"),
        ("a.trackpy.csv", None, "trackpy"),
        ("a.napari.csv", None, "napari"),
        ("a.NAPARI", None, "napari"),
        ("a.xml", None, "trackmate"),
        ("a.txt", None, "mot"),
        ("a.anything", None, "csv"),
        ("a.csv", "mot", "mot"),
    ],
)
def test_a_name_or_the_longest_suffix_chooses_the_format(file, name, expected):
    assert formats.format_of(Path(file), name) == expected


def test_an_unknown_format_is_refused():
    with pytest.raises(InputError, match=r"format is 'xls'; give csv, parquet, trackpy, napari"):
        formats.format_of(Path("a.csv"), "xls")


def test_the_command_line_offers_every_format():
    from typing import get_args

    from motes.cli.queries import SUFFIXES, TableFormat

    assert get_args(TableFormat) == formats.FORMATS
    assert {name: formats.suffix_of(name) for name in formats.FORMATS} == SUFFIXES


def test_tracks_of_different_clips_have_different_numbers():
    columns = {
        "recording": np.array(["b", "a", "b", "a", "b"]),
        "clip": np.array([0, 0, 1, 0, 0]),
        "particle": np.array([1, 0, 1, 1, 1]),
    }
    assert formats.track_numbers(columns).tolist() == [2, 0, 3, 1, 2]


def test_a_failed_write_leaves_no_file(answer, tmp_path):
    with pytest.raises(InputError):
        formats.save_tracks(tmp_path / "a.csv", answer, format="xls")
    columns, rows = table(answer, None)
    several = ((f"{index % 2}", *row) for index, row in enumerate(rows))
    with pytest.raises(InputError, match="holds one recording"):
        formats.write_tracks(tmp_path / "a.txt", ["recording", *columns], several)
    assert list(tmp_path.iterdir()) == []


def test_trackpy_computes_the_displacements_of_all_clips(answer, where, tracks, tmp_path):
    trackpy = pytest.importorskip("trackpy")
    pandas = pytest.importorskip("pandas")
    write_table(tmp_path / "a.trackpy.csv", answer, where)
    frame = pandas.read_csv(tmp_path / "a.trackpy.csv")
    pandas.testing.assert_frame_equal(frame, formats.to_trackpy(answer, where))
    found = trackpy.emsd(frame, mpp=1, fps=20, max_lagtime=3)
    # Weighted as trackpy does, by the number of displacements of each track, which all have T rows.
    moved = [np.square(track[1:, 1:] - track[:-1, 1:]).sum(1).mean() for track in tracks]
    assert found.iloc[0] == pytest.approx(np.mean(moved), rel=1e-6)


def test_parquet_keeps_the_rows(answer, where, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_table(tmp_path / "a.parquet", answer, where)
    columns, rows = table(answer, where)
    read = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [tuple(row[name] for name in columns) for row in read] == list(rows)


def test_mot_rows_are_boxes_around_the_positions(answer, where, tracks, tmp_path):
    """The columns of the MOT Challenge; frames, ids and pixels count from 1."""
    write_table(tmp_path / "a.txt", answer, where, diameter=4.0)
    rows = np.loadtxt(tmp_path / "a.txt", delimiter=",")
    assert rows.shape == (5 * T, 10)
    assert (np.diff(rows[:, 0]) >= 0).all()
    for number, track in enumerate(tracks):
        mine = rows[rows[:, 1] == number + 1]
        assert (mine[:, 0] == track[:, 0] + 1).all()
        centre = mine[:, 2:4] + mine[:, 4:6] / 2 - 1
        assert np.allclose(centre, track[:, 1:], atol=1e-3)  # three decimals
    assert (rows[:, 4:6] == 4).all()
    assert (rows[:, 7:] == -1).all()


def test_trackmate_files_hold_spots_and_edges(answer, where, tracks, tmp_path):
    write_table(tmp_path / "a.xml", answer, where, diameter=4.0)
    root = ElementTree.parse(tmp_path / "a.xml").getroot()
    model = root.find("Model")
    assert (root.tag, model.get("timeunits")) == ("TrackMate", "sec")
    spots = {spot.get("ID"): spot for spot in model.iter("Spot")}
    assert len(spots) == 5 * T == int(model.find("AllSpots").get("nspots"))
    for place in model.iter("SpotsInFrame"):
        assert {spot.get("FRAME") for spot in place} == {place.get("frame")}
    declared = {feature.get("feature") for feature in model.find("*/SpotFeatures")}
    assert all(declared <= set(spot.keys()) for spot in spots.values())
    found = model.findall("AllTracks/Track")
    assert len(found) == len(model.findall("FilteredTracks/TrackID")) == len(tracks)
    for track, expected in zip(found, tracks, strict=True):
        edges = [(edge.get("SPOT_SOURCE_ID"), edge.get("SPOT_TARGET_ID")) for edge in track]
        chain = [edges[0][0], *(target for _, target in edges)]
        assert [source for source, _ in edges] == chain[:-1]
        names = ("FRAME", "POSITION_X", "POSITION_Y")
        values = [[float(spots[number].get(name)) for name in names] for number in chain]
        assert np.array_equal(values, expected)
    assert float(root.find("Settings/ImageData").get("timeinterval")) == pytest.approx(1 / 20)


def test_a_trackmate_file_names_the_unit_of_its_positions(answer, where, tmp_path):
    in_mm = dataclasses.replace(where, units=Units.by_scale(0.5, "mm"))
    for place, unit in ((where, "pixel"), (in_mm, "mm")):
        write_table(tmp_path / "a.xml", answer, place, diameter=4.0)
        model = ElementTree.parse(tmp_path / "a.xml").getroot().find("Model")
        assert model.get("spatialunits") == unit


def test_pytrackmate_reads_the_tracks(answer, where, tracks, tmp_path):
    pytrackmate = pytest.importorskip("pytrackmate", reason="pip install 'motes[formats]'")
    write_table(tmp_path / "a.xml", answer, where)
    found = pytrackmate.trackmate_peak_import(tmp_path / "a.xml", get_tracks=True)
    assert len(found) == 5 * T
    for number, expected in enumerate(tracks):
        mine = found[found["label"] == number].sort_values("t_stamp")
        assert np.array_equal(mine[["t_stamp", "x", "y"]], expected)


def test_supervision_receives_boxes_and_numbers(answer, where):
    supervision = pytest.importorskip("supervision", reason="pip install 'motes[formats]'")
    frames = formats.to_supervision(answer, where, clip=1, diameter=4.0)
    assert len(frames) == T
    assert all(isinstance(frame, supervision.Detections) for frame in frames)
    centres = np.stack(
        [frame.get_anchors_coordinates(supervision.Position.CENTER) for frame in frames], 1
    )
    assert np.allclose(centres, where.points(answer.pixels)[1, :2], atol=1e-4)
    assert frames[2].tracker_id.tolist() == [0, 1]
    assert frames[2][frames[2].tracker_id == 1].data["sd"].shape == (1, 2)


def test_the_reader_of_napari_returns_tracks(answer, where, tracks, tmp_path):
    path = tmp_path / "tracks.napari.csv"
    write_table(path, answer, where)
    ((data, options, kind),) = napari_reader.get_reader(str(path))(str(path))
    assert (kind, options["name"], data.shape) == ("tracks", "tracks", (5 * T, 4))
    for number, expected in enumerate(tracks):
        assert np.array_equal(data[data[:, 0] == number][:, [1, 3, 2]], expected)
    assert (np.diff(data[:, 0]) >= 0).all()
    assert {"sd_x", "observed", "time"} <= set(options["features"])
    write_table(tmp_path / "b.csv", answer, where)
    assert napari_reader.get_reader(str(tmp_path / "b.csv")) is None


@pytest.mark.filterwarnings("ignore::Warning")  # of napari and its dependencies
@pytest.mark.parametrize("suffix", [".napari", ".napari.csv"])
def test_napari_opens_the_file_as_a_tracks_layer(answer, where, tracks, tmp_path, suffix):
    pytest.importorskip("napari", reason="pip install 'motes[formats]'")
    npe2 = pytest.importorskip("npe2")
    from napari.components import ViewerModel
    from napari.layers import Tracks
    from napari.plugins import _initialize_plugins

    _initialize_plugins()
    manager = npe2.PluginManager.instance()
    if "motes" not in manager:
        manager.register(npe2.PluginManifest.from_file(ROOT / "src" / "motes" / "napari.yaml"))
    path = tmp_path / f"five{suffix}"
    write_table(path, answer, where)
    viewer = ViewerModel()
    # A file that only this package reads needs no choice of the reader, as in drag and drop.
    (layer,) = viewer.open(path, plugin=None if suffix == ".napari" else "motes")
    assert isinstance(layer, Tracks)
    assert len(np.unique(layer.data[:, 0])) == len(tracks)
    assert np.allclose(layer.data[layer.data[:, 0] == 4][:, [1, 3, 2]], tracks[4])
    assert "sd_x" in layer.features
    if suffix == ".napari.csv":  # without this package: points with the same columns
        (points,) = viewer.open(path, plugin="napari")
        assert np.allclose(points.data, layer.data[:, 1:])


def test_the_diameter_is_that_of_the_rendered_ball():
    """Balls of radius 2 cover 13 pixels [the shipped model of that world]."""
    model = load("cannonballs-structured")
    assert formats.object_diameter(model) == pytest.approx(2 * np.sqrt(13 / np.pi), rel=0.15)
    where = VideoMap(np.array([3.0, 3.0]), np.zeros(2), np.arange(4)[None] / 5, np.arange(4)[None])
    assert formats.object_diameter(model, where) == pytest.approx(
        3 * formats.object_diameter(model)
    )
