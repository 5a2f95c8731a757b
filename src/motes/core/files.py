"""Output files: they appear whole or not at all; links are followed, devices are never replaced."""

import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple, TextIO

from motes.core.errors import InputError, require

_TEMPORARY = re.compile(r"\.[0-9a-f]{16}(\.\w+)?")


class _Target(NamedTuple):
    """Where a temporary file goes: renamed to a path, or copied into a device or FIFO."""

    path: Path
    stream: bool

    def receive(self, temporary: Path) -> None:
        """Put the content of a temporary file there."""
        if not self.stream:
            os.replace(temporary, self.path)
            return
        with open(temporary, "rb") as content, open(self.path, "wb") as stream:
            shutil.copyfileobj(content, stream)


_pending: ContextVar[list[tuple[Path, _Target]] | None] = ContextVar("pending", default=None)


@contextmanager
def all_or_none() -> Iterator[None]:
    """Move all files that `atomic_path` writes within the block to their places at its end.

    Law: if one of them fails, none appears (test_of_several_files_all_appear_or_none).
    """
    written: list[tuple[Path, _Target]] = []
    token = _pending.set(written)
    try:
        yield
        # Streams first: a copy can fail where a rename cannot.
        for temporary, target in sorted(written, key=lambda entry: not entry[1].stream):
            target.receive(temporary)
    finally:
        _pending.reset(token)
        for temporary, _ in written:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends, and is deleted if it fails.

    The temporary file has the folder and the suffix of `path` and is synced to disk before it is
    renamed, so a reader gets the old file or the new one, never a part of it. The permissions of
    the result follow the umask, whatever the writer in the block sets. Where `path` is a link, the
    file that it leads to is replaced; a character device or a FIFO receives the content.

    Law: a block that raises leaves the folder as it was
    (test_a_failed_write_leaves_the_old_file_and_nothing_else); permissions follow the umask
    (test_permissions_of_tensors_follow_the_umask); links, devices and FIFOs stay what they are
    (test_a_link_is_followed_and_stays_a_link, test_a_fifo_receives_the_whole_content,
    test_a_device_stays_a_device).
    """
    path = Path(path)
    target = _output_target(path)
    folder = Path(tempfile.gettempdir()) if target.stream else target.path.parent
    temporary = folder / f".{secrets.token_hex(8)}{path.suffix}"  # see `leftover_files`
    pending, kept = _pending.get(), False
    try:
        temporary.touch()  # creates it with the permissions that the umask leaves
        permissions = temporary.stat().st_mode
        yield temporary
        temporary.chmod(permissions)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        if pending is None:
            target.receive(temporary)
        else:
            pending.append((temporary, target))
            kept = True
    except PermissionError as error:
        raise InputError(
            f"got {path}; expected a writable path ({error.strerror}); choose another"
        ) from error
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        if not kept:
            temporary.unlink(missing_ok=True)


@contextmanager
def growing_file(path: str | Path) -> Iterator[TextIO]:
    """Yield a text file that readers see grow, for rows that are written as they come.

    Where `path` is a link, the file that it leads to is replaced. A character device or a FIFO
    receives each flushed row; opening a FIFO waits for its reader.

    Law: refused where `atomic_path` refuses (test_a_growing_file_is_refused_where_others_are); a
    reader sees flushed rows before the end (test_a_growing_file_is_read_while_it_grows); a FIFO and
    a device stay what they are (test_rows_reach_a_fifo_as_they_come).
    """
    path = Path(path)
    target = _output_target(path)
    try:
        # Only a stream is opened without the wish to create: a FIFO that was removed is an error.
        flags = os.O_WRONLY | (0 if target.stream else os.O_CREAT | os.O_TRUNC)
        handle = os.open(target.path, flags, 0o666)
    except PermissionError as error:
        raise InputError(
            f"got {path}; expected a writable path ({error.strerror}); choose another"
        ) from error
    with open(handle, "w", newline="", encoding="utf-8") as file:
        yield file


def check_output_paths(*paths: Path | None) -> None:
    """Raise `InputError` if a file could not be written there; call it before long work."""
    for path in paths:
        if path is not None:
            _output_target(path)


def _output_target(path: Path) -> _Target:
    """Return where the content of an output file goes; raise `InputError` if it cannot go there."""
    try:
        mode = path.stat().st_mode
    except OSError:  # nothing is there yet, or a link leads nowhere
        mode = stat.S_IFREG
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return _Target(path, stream=True)
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    require(
        target.parent.is_dir(),
        f"got {path}; expected a file in a folder that exists; create {target.parent} first",
    )
    require(
        not target.is_dir(), f"got {path}, a folder; expected the name of a file; add a file name"
    )
    require(
        stat.S_ISREG(mode) and not target.is_symlink(),
        f"got {path}, a block device, a socket or a link to itself; expected the name of a file; "
        "choose another",
    )
    return _Target(target, stream=False)


def leftover_files(folder: Path) -> list[Path]:
    """Return temporary files of `atomic_path` in a folder, of a running or of a killed writer.

    Only the process that holds the lock of the folder may delete them.
    """
    return [path for path in folder.iterdir() if _TEMPORARY.fullmatch(path.name)]


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")
