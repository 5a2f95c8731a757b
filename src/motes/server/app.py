"""The HTTP routes of the playground, and the queue of their jobs."""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from fastapi import Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from motes.core.errors import InputError
from motes.server import schemas, uploads
from motes.server.playground import MAX_WORK, Playground, Question
from motes.server.schemas import to_json
from motes.server.security import SecurityMiddleware
from motes.server.video_routes import UPLOAD, add_video_routes
from motes.server.workspace import MAX_BYTES as MAX_RECORDING
from motes.server.workspace import Workspace

PAGE = Path(__file__).parent / "page"
MAX_BODY = 12 * 2**20  # of a request: base64 of MAX_PIXELS bytes, and masks
MAX_UPLOADS = 2  # one in progress, one waiting
MAX_CACHED = 8  # answers with examples
MAX_WAITING = 64
MAX_QUESTIONS = 64  # that wait for the model
MAX_MODEL_THREADS = 4
MAX_ANSWERS = 32  # kept: many people begin with the same example
WAIT_SECONDS = 10.0  # that a job may wait for its turn
Result = TypeVar("Result")
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Error, "description": text}
    for status, text in {
        400: "Invalid input.",
        403: "Request to another host or from another page.",
        408: "The body did not arrive in time.",
        413: "The body is too long.",
        422: "The body does not match the schema.",
        503: "Too many requests are waiting.",
    }.items()
}
DESCRIPTION = """API of the playground page. Pixel coordinates are (x to the right, y down), 0 at
the centre of the first pixel. Every error is `{"error": one line}`; after 503 try again."""


class BusyError(Exception):
    """Too many requests are waiting, or one waited too long."""


class JobQueue:
    """Runs as many jobs at a time as it has threads, so that requests do not compete for cores.

    PyTorch uses one thread for a job: for small clips, more threads only wait for each other.
    """

    def __init__(self, max_waiting: int = MAX_WAITING, num_threads: int = 1) -> None:
        self.max_waiting, self.waiting = max_waiting, 0
        self.threads = ThreadPoolExecutor(
            num_threads, "model", initializer=torch.set_num_threads, initargs=(1,)
        )

    async def run(self, job: Callable[[], Result]) -> Result:
        """Return the result of the job.

        Raises:
            BusyError: At once if too many jobs are waiting, later if the job waited too long.
        """
        if self.waiting >= self.max_waiting:
            raise BusyError(f"{self.waiting} requests are waiting; try again in a moment")
        self.waiting += 1
        future = self.threads.submit(job)
        try:
            answer = asyncio.wrap_future(future)
            await asyncio.wait([answer], timeout=WAIT_SECONDS)
            if future.cancel():  # fails once the job runs
                raise BusyError(f"waited more than {WAIT_SECONDS:.0f} s; try again in a moment")
            return await answer
        finally:
            self.waiting -= 1


class QuestionQueue:
    """Answers questions in batches of one kind, a batch per thread at a time.

    Questions keep their order: a batch begins with the one that waits longest and takes later ones
    of its kind, while it is no more work than the largest single request may be. Equal questions
    are answered once, and the last answers are kept.

    Law: batches are of one kind, in order and bounded
    (test_questions_of_one_kind_are_answered_together_in_order).
    """

    def __init__(self, playground: Playground, num_threads: int | None = None) -> None:
        self.num_threads = num_threads or min(MAX_MODEL_THREADS, _usable_cores())
        self.playground, self.jobs = playground, JobQueue(num_threads=self.num_threads)
        self.max_clips = playground.model.inference.clips_per_thread
        self.waiting: dict[asyncio.Future[bytes], Question] = {}
        self.answers: OrderedDict[bytes, bytes] = OrderedDict()
        self.answering: set[asyncio.Task[None]] = set()

    async def answer(self, question: Question) -> Response:
        """Return the answer as JSON.

        Raises:
            BusyError: At once if too many questions are waiting, later if this one waited too long.
        """
        if question.digest in self.answers:
            self.answers.move_to_end(question.digest)
            return _json(self.answers[question.digest])
        if len(self.waiting) >= MAX_QUESTIONS:
            raise BusyError(f"{len(self.waiting)} requests are waiting; try again in a moment")
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.waiting[future] = question
        if len(self.answering) < self.num_threads:
            task = asyncio.create_task(self._answer_all())
            self.answering.add(task)
            task.add_done_callback(self.answering.discard)
        try:
            await asyncio.wait([future], timeout=WAIT_SECONDS)
            if future in self.waiting:
                raise BusyError(f"waited more than {WAIT_SECONDS:.0f} s; try again in a moment")
            return _json(await future)
        finally:
            self.waiting.pop(future, None)

    async def _answer_all(self) -> None:
        """Answer batches until no question is waiting."""
        while self.waiting:
            batch = {future: self.waiting.pop(future) for future in self._next_batch()}
            distinct = {question.digest: question for question in batch.values()}
            try:
                job = partial(self.playground.answer, list(distinct.values()))
                answers = dict(zip(distinct, await self.jobs.run(job), strict=True))
            except Exception as error:
                for future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for future, question in batch.items():
                if not future.done():  # its request may have been cancelled
                    future.set_result(answers[question.digest])
            self.answers.update(answers)
            while len(self.answers) > MAX_ANSWERS:
                self.answers.popitem(last=False)

    def _next_batch(self) -> list[asyncio.Future[bytes]]:
        """Return the first question that waits, and later ones of its kind that fit."""
        (first, begun), *others = self.waiting.items()
        batch, clips, work, known = [first], len(begun.frames), begun.work, {begun.digest}
        for future, question in others:
            if question.digest in known:
                batch.append(future)
                continue
            clips_with, work_with = clips + len(question.frames), work + question.work
            fits = clips_with <= self.max_clips and work_with <= MAX_WORK
            if fits and question.kind == begun.kind:
                batch.append(future)
                known.add(question.digest)
                clips, work = clips_with, work_with
        return batch


def _usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def create_app(
    playground: Playground, host: str = "127.0.0.1", workspace: Workspace | None = None
) -> SecurityMiddleware:
    """Return the ASGI application of a playground, with its security checks.

    Args:
        playground: Answers the requests.
        host: Address that the server will listen on.
        workspace: Of the page for own videos; None: without that page.
    """
    api = FastAPI(
        title="motes playground",
        description=DESCRIPTION,
        version="1",
        docs_url=None,  # these pages load scripts from other hosts
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    cheap = JobQueue()  # apart: milliseconds do not wait for seconds
    _add_queries(api, playground, cheap, QuestionQueue(playground))
    _add_clips(api, playground, cheap)
    _add_uploads(api, playground, JobQueue(MAX_UPLOADS))
    if workspace is not None:
        add_video_routes(api, workspace, JobQueue(), ERRORS)
    for path in PAGE.iterdir():  # not a mount: it would answer other methods and paths too
        name = "" if path.name == "index.html" else path.name
        api.add_route(f"/{name}", partial(_send_file, path), include_in_schema=False)
    _add_error_handlers(api)
    longest = {"": MAX_BODY, "/api/upload": uploads.MAX_BYTES, UPLOAD: MAX_RECORDING}
    return SecurityMiddleware(api, host=host, max_bytes=longest)


def _add_queries(
    api: FastAPI, playground: Playground, cheap: JobQueue, questions: QuestionQueue
) -> None:
    about = playground.about(uploads.MAX_BYTES, uploads.FORMATS)

    @api.get("/api/about", responses=ERRORS, summary="The model")
    async def get_about() -> schemas.About:
        """Return the properties of the model and the limits of requests."""
        return about

    @api.post(
        "/api/query",
        response_model=schemas.Predictions,
        responses=ERRORS,
        summary="Infer, forecast, interpolate",
    )
    async def query(request: schemas.QueryRequest) -> Response:
        """Predict every object in every frame, given the frames that each mask selects."""
        return await questions.answer(await cheap.run(partial(playground.query, request)))

    @api.post(
        "/api/count", response_model=schemas.Counts, responses=ERRORS, summary="Count objects"
    )
    async def count(request: schemas.CountRequest) -> Response:
        """Return the probability of each number of objects."""
        return await questions.answer(await cheap.run(partial(playground.count, request)))


def _add_clips(api: FastAPI, playground: Playground, queue: JobQueue) -> None:
    make_examples = lru_cache(MAX_CACHED)(lambda seed: to_json(playground.examples(seed)))

    @api.get(
        "/api/examples", response_model=schemas.Clips, responses=ERRORS, summary="Example clips"
    )
    async def examples(seed: Annotated[schemas.Seed, Query()] = 0) -> Response:
        """Return clips that were not used for training, with true paths if known."""
        return _json(await queue.run(lambda: make_examples(seed)))

    @api.post("/api/sample", response_model=schemas.Clips, responses=ERRORS, summary="Sample clips")
    async def sample(request: schemas.SampleRequest) -> Response:
        """Return clips drawn from the model."""
        return _json(await queue.run(lambda: to_json(playground.sample(request))))

    @api.post("/api/throw", response_model=schemas.Clip, responses=ERRORS, summary="Throw balls")
    async def throw(request: schemas.ThrowRequest) -> Response:
        """Return a clip of balls with given initial states that follow the learned dynamics."""
        return _json(await queue.run(lambda: to_json(playground.throw(request))))


def _add_uploads(api: FastAPI, playground: Playground, queue: JobQueue) -> None:
    @api.post("/api/upload", response_model=schemas.Clips, responses=ERRORS, summary="Read a file")
    async def upload(
        name: Annotated[str, Query(min_length=1, max_length=255)],
        content: Annotated[bytes, Body(media_type="application/octet-stream")],
    ) -> Response:
        """Return the clips of the file in the body; the file is not kept."""
        read = partial(uploads.read_upload, content, name, playground)
        return _json(await queue.run(lambda: to_json(read())))


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


async def _send_file(path: Path, request: Request) -> FileResponse:
    return FileResponse(path)


def _add_error_handlers(api: FastAPI) -> None:
    """Turn every error into a status and one line."""

    @api.exception_handler(InputError)
    async def handle_input(request: Request, error: InputError) -> Response:
        return _error(400, str(error))

    @api.exception_handler(BusyError)
    async def handle_busy(request: Request, error: BusyError) -> Response:
        return _error(503, str(error), {"retry-after": "1"})

    @api.exception_handler(RequestValidationError)
    async def handle_invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return _error(422, f"{place}: {first['msg']}")

    @api.exception_handler(HTTPException)
    async def handle_other(request: Request, error: HTTPException) -> Response:
        return _error(error.status_code, str(error.detail), dict(error.headers or {}))


def _error(status: int, line: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": line[:500]}, status, headers)
