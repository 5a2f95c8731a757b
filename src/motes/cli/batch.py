"""Many recordings: a job for each, in this process, in several, or on a Dask cluster.

A job writes one part, atomically, under a name that depends on the recording alone; a record beside
it marks the part as done. So a job that runs twice, because a worker was lost, leaves one part, and
`--resume` skips what is done. The parts are merged afterwards, in the order of the recordings.
"""

import contextlib
import hashlib
import json
import multiprocessing
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from motes.cli.terminal import bar
from motes.core.errors import InputError, require
from motes.core.files import all_or_none, atomic_path

if TYPE_CHECKING:
    from motes.video.recordings import Recording

CONNECT_SECONDS = 20  # to wait for a scheduler
ATTEMPTS = 2  # of a job whose process was killed
_one_at_a_time = threading.Lock()  # the number of threads of PyTorch is that of the process


class IncompleteError(Exception):
    """Some recordings failed; the command line prints the message and ends with exit code 1."""


class Workers(NamedTuple):
    """Where jobs run."""

    jobs: int | None = None  # processes on this machine; None: one for each core
    cluster: str | None = None  # address or scheduler file of a Dask cluster
    resume: bool = False  # skip what is done


class Job(NamedTuple):
    """What to do with one recording."""

    recording: str
    work: Callable[[Any, Path], dict[str, Any]]  # of a module, so that it can be sent elsewhere
    arguments: Any
    part: Path  # the file to write, absolute
    key: str  # changes with all that the part depends on


class Result(NamedTuple):
    """How a job ended."""

    recording: str
    part: Path
    record: dict[str, Any]
    failed: str | None = None  # why, in a line


def parts_folder(out: Path) -> Path:
    """Return the folder of the parts of an output, created if missing."""
    folder = Path(os.path.abspath(out.with_name(f"{out.stem}-parts")))
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(
            f"got {out}; expected a folder in which {folder.name} can be made ({error.strerror}); "
            "choose another"
        ) from error
    return folder


def part_path(folder: Path, recording: "Recording", suffix: str) -> Path:
    """Return the path of a recording's part: its name, and a code of its path."""
    name = re.sub(r"[^\w.-]+", "_", recording.name)[:80]
    code = hashlib.sha256(os.path.realpath(recording.path).encode()).hexdigest()[:8]
    return folder / f"{name}-{code}{suffix}"


def job_key(path: Path, *settings: object) -> str:
    """Return a code of the settings of a job and of the size and time of its recording's files."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    state = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((os.path.realpath(path), state, settings)).encode()).hexdigest()


def run_jobs(jobs: Sequence[Job], workers: Workers) -> list[Result]:
    """Return the results of all jobs in their order, whatever executor runs them.

    Law: the same parts in one process, in several and on a cluster that loses a worker
    (test_forty_recordings_on_a_cluster_equal_one_process).
    """
    require(
        workers.jobs is None or workers.jobs >= 1, f"jobs is {workers.jobs}; give a number above 0"
    )
    found = [_stored(job) if workers.resume else None for job in jobs]
    left = [job for job, result in zip(jobs, found, strict=True) if result is None]
    fresh: dict[str, Result] = {}
    with bar("recordings", len(jobs)) as progress:
        with _executor(workers, len(left)) as executor:
            done = len(jobs) - len(left)
            lost = _collect(executor, left, fresh, lambda: progress(done + len(fresh)))
        for job in lost:  # in a process that no other job can break
            for _ in range(ATTEMPTS):
                with _processes(1) as executor:
                    if not _collect(executor, [job], fresh, lambda: None):
                        break
            else:
                why = "its process was killed, probably for lack of memory"
                fresh[job.recording] = Result(job.recording, job.part, {}, why)
    return [
        result if result is not None else fresh[job.recording]
        for job, result in zip(jobs, found, strict=True)
    ]


def _collect(
    executor: Executor, jobs: Sequence[Job], results: dict[str, Result], report: Callable[[], None]
) -> list[Job]:
    """Add the results of jobs as they come; return the jobs that were lost with their process."""
    lost = []
    futures: dict[Future[Result], Job] = {executor.submit(perform, job): job for job in jobs}
    try:
        for future in as_completed(futures):
            job = futures[future]
            try:
                result = future.result()
            except BrokenExecutor:
                lost.append(job)
                continue
            except Exception as error:  # of the cluster: a job that killed several workers
                result = Result(job.recording, job.part, {}, f"{type(error).__name__}: {error}")
            if result.failed is None and not job.part.is_file():
                why = f"{job.part} was written by a worker and is not visible here: share a folder"
                result = result._replace(failed=why)
            results[job.recording] = result
            report()
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    return lost


def perform(job: Job) -> Result:
    """Do a job; return why it failed rather than raise, so that the others go on."""
    import torch

    with _one_at_a_time:
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # the same numbers wherever it runs
        try:
            with all_or_none():
                record = job.work(job.arguments, job.part)
                with atomic_path(_marker(job)) as temporary:
                    temporary.write_text(json.dumps({"key": job.key, "record": record}), "utf-8")
            return Result(job.recording, job.part, record)
        except InputError as error:
            return Result(job.recording, job.part, {}, str(error))
        except MemoryError:
            return Result(job.recording, job.part, {}, "not enough memory")
        except Exception as error:  # a defect with one recording must not cost the others
            return Result(job.recording, job.part, {}, f"{type(error).__name__}: {error}")
        finally:
            torch.set_num_threads(before)


def _marker(job: Job) -> Path:
    return job.part.with_name(f"{job.part.name}.json")


def _stored(job: Job) -> Result | None:
    """Return the result of a job that was done before with the same settings, else None."""
    try:
        stored = json.loads(_marker(job).read_text("utf-8"))
        if stored["key"] != job.key or not job.part.is_file():
            return None
        return Result(job.recording, job.part, {**stored["record"], "resumed": True})
    except (OSError, ValueError, KeyError, TypeError):
        return None


class _Here(Executor):
    """Runs jobs one after another in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return the result of a call that has been made."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextlib.contextmanager
def _executor(workers: Workers, num_jobs: int) -> Iterator[Executor]:
    if workers.cluster is not None and num_jobs > 0:
        with _dask(workers.cluster) as executor:
            yield executor
        return
    count = min(workers.jobs or os.cpu_count() or 1, max(num_jobs, 1))
    if count == 1:
        yield _Here()
        return
    with _processes(count) as executor:
        yield executor


def _processes(count: int) -> ProcessPoolExecutor:
    # A fresh interpreter for each: threads of PyTorch do not survive a fork.
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))


@contextlib.contextmanager
def _dask(cluster: str) -> Iterator[Executor]:
    """Yield an executor of the cluster at an address, or of the one that a scheduler file names."""
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "--cluster needs Dask; pip install 'motes[cluster]', on the workers too"
        ) from None
    place = {"address": cluster} if "://" in cluster else {"scheduler_file": cluster}
    try:
        client = Client(**place, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(
            f"cluster is {cluster}; expected a Dask scheduler there ({error}); start one with "
            "dask scheduler, then give its address or its scheduler file"
        ) from error
    with client:
        yield client.get_executor(pure=False)


def failures(results: Sequence[Result]) -> dict[str, str]:
    """Return why recordings failed, by their names."""
    return {result.recording: result.failed for result in results if result.failed is not None}


def recording_warnings(results: Sequence[Result]) -> list[str]:
    """Return the warnings of all recordings, with their names."""
    return [
        f"{result.recording}: {line}"
        for result in results
        for line in result.record.get("warnings", ())
    ]


def write_summary(folder: Path, results: Sequence[Result]) -> None:
    """Write what became of every recording, beside the parts."""
    with atomic_path(folder / "summary.json") as temporary:
        done = {result.recording: result.record for result in results if result.failed is None}
        content = {"done": done, "failed": failures(results)}
        temporary.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def require_some(results: Sequence[Result]) -> None:
    """Raise `IncompleteError` if all recordings failed, so that there is nothing to merge."""
    if len(failed := failures(results)) == len(results):
        raise IncompleteError(f"all {len(results)} recordings failed: {_reasons(failed)}")


def require_all(results: Sequence[Result], folder: Path) -> None:
    """Raise `IncompleteError` if recordings failed; the parts of the others are in the folder."""
    if failed := failures(results):
        raise IncompleteError(
            f"{len(failed)} of {len(results)} recordings failed: {_reasons(failed)} (all reasons: "
            f"{folder / 'summary.json'}; after mending them, --resume does the rest)"
        )


def _reasons(failed: dict[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in failed.items())
