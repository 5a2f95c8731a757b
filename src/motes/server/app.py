"""The routes: HTTP in, records to the playground, records out."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from motes.core.errors import InputError
from motes.server import schemas as wire
from motes.server import uploads
from motes.server.playground import Playground
from motes.server.queue import BusyError, Worker
from motes.server.security import Guard

PAGE = Path(__file__).parent / "page"
MAX_BODY = 12 * 2**20  # of a question: base64 of MAX_PIXELS bytes, and masks
MAX_UPLOADS = 2  # one is read, one waits
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": wire.Error, "description": text}
    for status, text in {
        400: "Cannot be answered.",
        403: "Another host or another page.",
        408: "The body did not arrive.",
        413: "Too long.",
        422: "Not what the schema says.",
        503: "Too many questions are waiting.",
    }.items()
}
DESCRIPTION = """What the playground asks. Pixels are (x to the right, y down), 0 at the centre of
the first one. Every error is `{"error": one line}`; 503 means: try again in a moment."""


def create_app(playground: Playground, host: str = "127.0.0.1") -> Guard:
    """The playground of a model behind its guard.

    Args:
        playground: answers.
        host: the address that the server will listen on.
    """
    api = FastAPI(
        title="motes playground",
        description=DESCRIPTION,
        version="1",
        docs_url=None,  # their scripts come from other hosts
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    model, files = Worker(), Worker(MAX_UPLOADS)
    _add_questions(api, playground, model)
    _add_clips(api, playground, model)
    _add_uploads(api, playground, files)
    for path in PAGE.iterdir():  # one by one: a mount at the root would hide which methods exist
        name = "" if path.name == "index.html" else path.name
        api.add_route(f"/{name}", partial(_show, path), include_in_schema=False)
    _tell_errors(api)
    return Guard(api, host=host, max_bytes={"": MAX_BODY, "/api/upload": uploads.MAX_BYTES})


def _add_questions(api: FastAPI, playground: Playground, model: Worker) -> None:
    about = playground.about(uploads.MAX_BYTES, uploads.KINDS)

    @api.get("/api/about", responses=ERRORS, summary="The model")
    async def tell_about() -> wire.About:
        """What the model is, what it sees, and what may be sent."""
        return about

    @api.post("/api/ask", responses=ERRORS, summary="Infer, forecast, interpolate")
    async def ask(question: wire.Question) -> wire.Views:
        """Where every object is in every frame, given the frames that each mask shows."""
        return await model.run(partial(playground.ask, question))

    @api.post("/api/count", responses=ERRORS, summary="How many objects")
    async def count(question: wire.CountQuestion) -> wire.Counts:
        """The probability of each number of objects."""
        return await model.run(partial(playground.count, question))


def _add_clips(api: FastAPI, playground: Playground, model: Worker) -> None:
    @api.get("/api/examples", responses=ERRORS, summary="Clips to try")
    async def examples(seed: Annotated[wire.Seed, Query()] = 0) -> wire.Clips:
        """Clips that the model has not seen, with their truth; another seed, other clips."""
        return await model.run(partial(playground.examples, seed))

    @api.post("/api/sample", responses=ERRORS, summary="Imagine clips")
    async def imagine(wish: wire.Wish) -> wire.Clips:
        """Clips that the model imagines, with nothing seen."""
        return await model.run(partial(playground.imagine, wish))

    @api.post("/api/throw", responses=ERRORS, summary="Throw balls")
    async def throw(thrown: wire.Throw) -> wire.Clip:
        """A clip of balls that start as given and fly by the law that the model has learned."""
        return await model.run(partial(playground.throw, thrown))


def _add_uploads(api: FastAPI, playground: Playground, files: Worker) -> None:
    @api.post("/api/upload", responses=ERRORS, summary="Read a file")
    async def upload(
        name: Annotated[str, Query(min_length=1, max_length=255)],
        content: Annotated[bytes, Body(media_type="application/octet-stream")],
    ) -> wire.Clips:
        """The clips of a file, which is the request's body; nothing of it is kept."""
        return await files.run(partial(uploads.read_upload, content, name, playground))


async def _show(path: Path, request: Request) -> FileResponse:
    return FileResponse(path)


def _tell_errors(api: FastAPI) -> None:
    """Every error becomes a status and one line."""

    @api.exception_handler(InputError)
    async def tell_input(request: Request, error: InputError) -> Response:
        return _error(400, str(error))

    @api.exception_handler(BusyError)
    async def tell_busy(request: Request, error: BusyError) -> Response:
        return _error(503, str(error), {"retry-after": "1"})

    @api.exception_handler(RequestValidationError)
    async def tell_invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return _error(422, f"{place}: {first['msg']}")

    @api.exception_handler(HTTPException)
    async def tell_other(request: Request, error: HTTPException) -> Response:
        return _error(error.status_code, str(error.detail), dict(error.headers or {}))


def _error(status: int, line: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": line[:500]}, status, headers)
