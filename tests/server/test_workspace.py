"""The page for own videos without a browser: previews, training, tracks, corrections, tables."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from motes.core.errors import InputError
from motes.server import video_schemas as schemas
from motes.server import workspace as module
from motes.server.app import create_app
from motes.server.playground import Playground
from motes.server.video_job import preparation_of
from motes.server.workspace import Workspace
from motes.video import open_video, plan
from tests.own_videos import HEIGHT, NUM_FRAMES, WIDTH, places, write_two_balls

LOGO = [[4.0, 4.0], [48.0, 4.0], [48.0, 28.0], [4.0, 28.0]]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "two balls.mp4"
    write_two_balls(path)
    return path


@pytest.fixture
def workspace(recording: Path, tmp_path: Path) -> Iterator[Workspace]:
    opened = Workspace(tmp_path)
    opened.open_file(recording, recording.name)
    yield opened
    opened.stop()


@pytest.fixture(scope="module")
def trained(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A model of the recording; the first start of training is enough for it."""
    opened = Workspace(tmp_path_factory.mktemp("trained"))
    opened.open_file(recording, recording.name)
    settings = schemas.Settings(leave_out=[LOGO])
    opened.train(schemas.TrainRequest(settings=settings, num_objects=2, iterations=40))
    assert opened.training is not None
    opened.training.wait()
    yield opened
    opened.stop()


def request(**given: object) -> schemas.PreviewRequest:
    return schemas.PreviewRequest(frame=8, settings=schemas.Settings(**given))


def test_a_recording_is_decoded_at_its_own_size(workspace: Workspace) -> None:
    opened = workspace.require_open()
    assert (opened.recording.width, opened.recording.height) == (WIDTH, HEIGHT)
    assert (opened.recording.num_frames, opened.recording.fps) == (NUM_FRAMES, 25.0)
    frames = [frame.picture for frame in open_video(opened.path).frames()]
    # Losses of JPEG: a few levels.
    assert np.abs(opened.picture(30).astype(int) - frames[30]).mean() < 2


@pytest.mark.parametrize(
    "given", [{}, {"crop": [60, 0, 260, 180]}, {"leave_out": [LOGO]}, {"threshold": 0.2}]
)
def test_a_preview_is_what_prepare_does(workspace: Workspace, given: dict[str, object]) -> None:
    """The same settings as `motes prepare` finds, up to the losses of JPEG."""
    opened = workspace.require_open()
    rule = workspace.rule(schemas.Settings(**given).model_dump_json())
    wanted = preparation_of(schemas.Settings(**given), WIDTH, HEIGHT)
    found = plan(open_video(opened.path), wanted)
    assert rule.geometry == found.geometry
    assert rule.grow == found.preparation.grow
    assert rule.foreground.threshold == pytest.approx(found.foreground.threshold, abs=0.05)
    picture = next(frame for number, frame in enumerate(found.frames()) if number == 8).frame
    seen = workspace.preview(request(**given))
    assert seen.box == list(found.geometry.box)
    from motes.video.foreground import blob_masses, object_counts

    assert seen.objects_here == object_counts([blob_masses(picture)])[0]


def test_a_region_left_out_does_not_count(workspace: Workspace) -> None:
    assert workspace.preview(request()).objects_here == 3  # two balls and the logo
    assert workspace.preview(request(leave_out=[LOGO])).objects_here == 2
    assert workspace.preview(request(keep=[LOGO])).objects_here == 1


@pytest.mark.slow
def test_a_recording_becomes_tracks_corrections_and_tables(trained: Workspace) -> None:
    progress = trained.status().progress
    assert progress is not None
    assert progress.phase == "done", progress.message
    found = trained.tracks(schemas.TracksRequest(num_objects=2))
    assert found.numbers == list(range(NUM_FRAMES))
    told = np.array([track.places for track in found.tracks])
    truth = places()
    order = int(np.abs(told[0, 5] - truth[1, 5]).max() < np.abs(told[0, 5] - truth[0, 5]).max())
    truth = truth[::-1] if order else truth
    inside = (truth > 8).all(-1) & (truth < [WIDTH - 8, HEIGHT - 8]).all(-1)
    # A prepared pixel is 2.7 pixels of the video.
    assert np.linalg.norm(told - truth, axis=-1)[inside].max() < 4

    swap = schemas.Correction(kind="swap", object=0, other=1, frame=50)
    x, y = told[0, 60]
    pin = schemas.Correction(kind="pin", object=0, frame=60, x=x, y=y, sd=1.0)
    swapped = trained.tracks(schemas.TracksRequest(num_objects=2, corrections=[swap]))
    assert np.array_equal(np.array(swapped.tracks[0].places)[50:], told[1, 50:])
    mended = trained.tracks(schemas.TracksRequest(num_objects=2, corrections=[swap, pin]))
    assert np.abs(np.array([track.places for track in mended.tracks]) - told).max() < 1
    assert [entry["kind"] for entry in trained.status().corrections] == ["swap", "pin"]
    kept = json.loads((trained.folder / "run" / "corrections.json").read_text())
    assert [entry["kind"] for entry in kept] == ["swap", "pin"]

    name, content = trained.table("csv")
    assert name == "two_balls-tracks.csv"
    assert len(content.splitlines()) == 1 + 2 * NUM_FRAMES
    assert trained.table("trackmate")[1].startswith(b"<?xml")


def test_training_that_is_stopped_says_so(workspace: Workspace) -> None:
    started = workspace.train(schemas.TrainRequest(settings=schemas.Settings()))
    assert started.progress is not None
    assert started.progress.phase == "preparing"
    workspace.stop()
    stopped = workspace.status().progress
    assert stopped is not None
    assert (stopped.phase, stopped.message) == ("failed", "training was stopped")


def test_what_is_not_there_is_refused_in_one_line(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the recording has frames 0 to 69"):
        workspace.preview(request().model_copy(update={"frame": 70}))
    with pytest.raises(InputError, match="is not trained yet; train it first"):
        workspace.tracks(schemas.TracksRequest())
    with pytest.raises(InputError, match="is not trained yet; train it first"):
        workspace.table("csv")
    with pytest.raises(InputError, match="format is 'xls'"):
        workspace.table("xls")
    with pytest.raises(InputError, match=r"'clips.npz' has no supported format; give"):
        workspace.open_upload(b"", "clips.npz")
    with pytest.raises(InputError, match="no recording is open"):
        Workspace(tmp_path / "other").preview(request())


def test_a_file_that_is_no_video_is_refused(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with pytest.raises(InputError) as caught:
        workspace.open_upload(b"no video" * 100, "bad.mp4")
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert workspace.status().recording is None


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    playground = Playground.of("cannonballs-structured")
    return TestClient(
        create_app(playground, workspace=Workspace(tmp_path)), base_url="http://127.0.0.1:8000"
    )


def test_the_routes_answer(client: TestClient, recording: Path) -> None:
    assert client.get("/api/video").json() == {
        "recording": None, "progress": None, "corrections": [],
    }  # fmt: skip
    refused = client.get("/api/video/frames/0")
    assert (refused.status_code, refused.json()["error"][:20]) == (400, "no recording is open")
    opened = client.post(
        "/api/video/open?name=balls.mp4",
        content=recording.read_bytes(),
        headers={"content-type": "application/octet-stream"},
    )
    assert opened.json()["num_frames"] == NUM_FRAMES
    picture = client.get("/api/video/frames/3")
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/jpeg")
    assert "default-src 'none'" in picture.headers["content-security-policy"]
    seen = client.post(
        "/api/video/preview", json={"frame": 8, "settings": {"leave_out": [LOGO]}}
    ).json()
    assert seen["objects_here"] == 2
    wrong = client.post("/api/video/preview", json={"frame": 8, "settings": {"keep": [[[1, 2]]]}})
    assert wrong.status_code == 422
    for name in ("tracks", "train"):
        answer = client.post(f"/api/video/{name}", json={"settings": 3})
        assert answer.status_code == 422, name
    assert client.post("/api/video/stop").status_code == 200
    assert client.get("/api/video/table?format=csv").status_code == 400


def test_long_recordings_are_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    too_long = {"content-length": str(module.MAX_BYTES + 1), "content-type": "video/mp4"}
    answer = client.post("/api/video/open?name=a.mp4", content=b"", headers=too_long)
    assert (answer.status_code, answer.json()["error"][:20]) == (413, "the body is too long")


def test_openapi_documents_the_routes(client: TestClient) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    mine = {path: entry for path, entry in paths.items() if path.startswith("/api/video")}
    assert len(mine) == 8
    for entry in mine.values():
        for operation in entry.values():
            assert operation["summary"]
            assert operation["description"]
            assert {"200", "400", "403", "408", "413", "422", "503"} == set(operation["responses"])
