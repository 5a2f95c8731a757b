"""Files appear whole or not at all."""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from motes.core.errors import InputError

_TEMPORARY = re.compile(r"\.[0-9a-f]{16}(\.\w+)?")
_Written = list[tuple[Path, Path]]  # temporary paths, and those that they will replace
_waiting: ContextVar[_Written | None] = ContextVar("waiting", default=None)


@contextmanager
def all_or_none() -> Iterator[None]:
    """Files that `atomic_path` writes within the block take their names together at its end.

    Law: if one of them fails, none appears (test_of_several_files_all_appear_or_none).
    """
    written: _Written = []
    token = _waiting.set(written)
    try:
        yield
        for temporary, path in written:
            os.replace(temporary, path)
    finally:
        _waiting.reset(token)
        for temporary, _ in written:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends, and vanishes if it fails.

    The temporary file has the folder and the suffix of `path`; its bytes are on the disk before
    it takes the name, so a reader sees the old file or the new one, never a part of it. Who may
    read the result is said by the umask, whatever the writer in the block thinks.

    Law: a block that raises leaves the folder as it was
    (test_a_failed_write_leaves_the_old_file_and_nothing_else); permissions follow the umask
    (test_tensors_may_be_read_by_those_whom_the_umask_allows).
    """
    path = Path(path)
    check_places(path)
    temporary = path.with_name(f".{secrets.token_hex(8)}{path.suffix}")  # see `leftovers`
    waiting, kept = _waiting.get(), False
    try:
        temporary.touch()  # the plain way to be given the permissions that the umask leaves
        permissions = temporary.stat().st_mode
        yield temporary
        temporary.chmod(permissions)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        if waiting is None:
            os.replace(temporary, path)
        else:
            waiting.append((temporary, path))
            kept = True
    except PermissionError as error:
        raise InputError(
            f"got {path}; expected a place that can be written ({error.strerror}); choose another"
        ) from error
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        if not kept:
            temporary.unlink(missing_ok=True)


def check_places(*paths: Path | None) -> None:
    """Raises `InputError` where a file could not be written: before long work, not after it."""
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
    """Temporary files of `atomic_path` in a folder: of a writer at work, or of one that was killed.

    Only who holds the folder alone may take them for the second and delete them.
    """
    return [path for path in folder.iterdir() if _TEMPORARY.fullmatch(path.name)]
