"""Atomic file writes: a file appears whole or not at all."""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from motes.core.errors import InputError

_TEMPORARY = re.compile(r"\.[0-9a-f]{16}(\.\w+)?")
_Written = list[tuple[Path, Path]]  # temporary paths, and the paths that they will replace
_pending: ContextVar[_Written | None] = ContextVar("pending", default=None)


@contextmanager
def all_or_none() -> Iterator[None]:
    """Rename all files that `atomic_path` writes within the block together, at its end.

    Law: if one of them fails, none appears (test_of_several_files_all_appear_or_none).
    """
    written: _Written = []
    token = _pending.set(written)
    try:
        yield
        for temporary, path in written:
            os.replace(temporary, path)
    finally:
        _pending.reset(token)
        for temporary, _ in written:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends, and is deleted if it fails.

    The temporary file has the folder and the suffix of `path` and is synced to disk before it is
    renamed, so a reader gets the old file or the new one, never a part of it. The permissions of
    the result follow the umask, whatever the writer in the block sets.

    Law: a block that raises leaves the folder as it was
    (test_a_failed_write_leaves_the_old_file_and_nothing_else); permissions follow the umask
    (test_permissions_of_tensors_follow_the_umask).
    """
    path = Path(path)
    check_output_paths(path)
    temporary = path.with_name(f".{secrets.token_hex(8)}{path.suffix}")  # see `leftovers`
    pending, kept = _pending.get(), False
    try:
        temporary.touch()  # creates it with the permissions that the umask leaves
        permissions = temporary.stat().st_mode
        yield temporary
        temporary.chmod(permissions)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        if pending is None:
            os.replace(temporary, path)
        else:
            pending.append((temporary, path))
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


def check_output_paths(*paths: Path | None) -> None:
    """Raise `InputError` if a file could not be written there; call it before long work."""
    for path in paths:
        if path is None:
            continue
        if not path.parent.is_dir():
            raise InputError(
                f"got {path}; expected a file in a folder that exists; create {path.parent} first"
            )
        if path.is_dir():
            raise InputError(f"got {path}, a folder; expected the name of a file; add a file name")


def leftovers(folder: Path) -> list[Path]:
    """Return temporary files of `atomic_path` in a folder, of a running or of a killed writer.

    Only the process that holds the lock of the folder may delete them.
    """
    return [path for path in folder.iterdir() if _TEMPORARY.fullmatch(path.name)]
