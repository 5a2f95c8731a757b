"""The HTTP routes of the page for own videos."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Body, FastAPI, Path, Query
from fastapi.responses import FileResponse, Response

from motes.server import video_schemas as schemas
from motes.server.schemas import to_json
from motes.server.workspace import Workspace

Result = TypeVar("Result")
UPLOAD = "/api/video/open"


class Queue(Protocol):
    """Runs jobs one at a time."""

    def run(self, job: Callable[[], Result]) -> Awaitable[Result]:
        """Return the result of the job."""


def add_video_routes(
    api: FastAPI, workspace: Workspace, queue: Queue, errors: dict[int | str, dict[str, Any]]
) -> None:
    """Add the routes of the page for own videos."""
    _add_recording(api, workspace, queue, errors)
    _add_tracks(api, workspace, queue, errors)


def _add_recording(
    api: FastAPI, workspace: Workspace, queue: Queue, errors: dict[int | str, dict[str, Any]]
) -> None:
    @api.post(UPLOAD, responses=errors, summary="Open a recording")
    async def open_recording(
        name: Annotated[str, Query(min_length=1, max_length=255)],
        content: Annotated[bytes, Body(media_type="application/octet-stream")],
    ) -> schemas.Recording:
        """Open the recording in the body in place of the one before."""
        return await queue.run(lambda: workspace.open_upload(content, name))

    @api.get("/api/video", responses=errors, summary="The recording and its training")
    async def status() -> schemas.Status:
        """Return what is open and how far training is."""
        return workspace.status()

    @api.get(
        "/api/video/frames/{number}",
        responses={**errors, 200: {"content": {"image/jpeg": {}}, "description": "A picture."}},
        response_class=FileResponse,
        summary="A picture of the recording",
    )
    async def frame(number: Annotated[int, Path(ge=0, lt=100_000)]) -> FileResponse:
        """Return a picture at the resolution of the recording."""
        path = workspace.require_open().picture_path(number)
        return FileResponse(path, media_type="image/jpeg")

    @api.post(
        "/api/video/preview",
        response_model=schemas.Preview,
        responses=errors,
        summary="What preparation sees",
    )
    async def preview(request: schemas.PreviewRequest) -> Response:
        """Return the foreground and the prepared frame for some settings."""
        return _json(await queue.run(lambda: to_json(workspace.preview(request))))


def _add_tracks(
    api: FastAPI, workspace: Workspace, queue: Queue, errors: dict[int | str, dict[str, Any]]
) -> None:
    @api.post("/api/video/train", responses=errors, summary="Train a model of the recording")
    async def train(request: schemas.TrainRequest) -> schemas.Status:
        """Start training in a process of its own; `GET /api/video` says how far it is."""
        return await queue.run(lambda: workspace.train(request))

    @api.post("/api/video/stop", responses=errors, summary="Stop training")
    async def stop() -> schemas.Status:
        """Stop training, if it runs."""

        def job() -> schemas.Status:
            workspace.stop()
            return workspace.status()

        return await queue.run(job)

    @api.post(
        "/api/video/tracks",
        response_model=schemas.Tracks,
        responses=errors,
        summary="Follow the objects",
    )
    async def tracks(request: schemas.TracksRequest) -> Response:
        """Return every object in every frame of the recording, given corrections."""
        return _json(await queue.run(lambda: to_json(workspace.tracks(request))))

    @api.get(
        "/api/video/table",
        responses={
            **errors,
            200: {"content": {"application/octet-stream": {}}, "description": "A table."},
        },
        response_class=Response,
        summary="The table of the last tracks",
    )
    async def table(format: Annotated[str, Query(max_length=40)] = "csv") -> Response:
        """Return the table in a format of `motes infer --format`."""
        name, content = await queue.run(lambda: workspace.table(format))
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type="application/octet-stream", headers=headers)


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")
