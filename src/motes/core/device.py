"""Where a computation runs: its device, and how many threads it uses there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from motes.core.errors import InputError

THREADS = "MOTES_THREADS"  # environment variable: number of threads, whatever the work


def check_device(device: str | torch.device) -> torch.device:
    """Return the device; raise `InputError` if PyTorch cannot use it here."""
    try:
        found = torch.device(device)
    except RuntimeError:
        raise InputError(f"device is {str(device)!r}; give cpu or cuda") from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count() or "no"
        raise InputError(f"device is {found}, but PyTorch finds {count} GPU here; use cpu")
    return found


def num_threads(num_clips: int, clips_per_thread: int) -> int:
    """Return how many threads to use for a batch of clips.

    A thread per `clips_per_thread` clips, at least one and at most those that PyTorch may use.
    Operations on few clips are too small to divide: a second thread saves no time on a quiet
    machine, and on a busy one the threads wait for each other (benchmarks/threads.py). The
    environment variable MOTES_THREADS overrides the choice.
    """
    given = os.environ.get(THREADS, "")
    if given:
        if not given.isdecimal() or int(given) < 1:
            raise InputError(f"{THREADS} is {given!r}; give a whole number of threads, or unset it")
        return int(given)
    return max(1, min(torch.get_num_threads(), num_clips // clips_per_thread))


@contextmanager
def limited_threads(num_clips: int, clips_per_thread: int) -> Iterator[None]:
    """Use `num_threads` threads within the block, and afterwards as many as before.

    Law: the caller's number is restored, after errors too
    (test_threads_are_chosen_by_the_work_and_restored).
    """
    before, chosen = torch.get_num_threads(), num_threads(num_clips, clips_per_thread)
    if chosen == before:
        yield
        return
    torch.set_num_threads(chosen)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def optimize_uncompiled() -> None:
    """Keep optimizers from importing PyTorch's compiler, which takes more than a second of CPU.

    Methods of `torch.optim.Optimizer` are wrapped so that a compiler leaves them alone, and the
    wrapper imports it on the first call to ask for that. It keeps the function to call in an
    attribute of the wrapped one; here that is the wrapped one itself. Nothing of this package is
    compiled. Where PyTorch has no such wrapper nothing changes.

    `torch.optim.Adam.step` imports it by itself, see `motes.training.step.Adam`.

    Law: an optimizer is made without the import (test_optimizers_do_not_import_a_compiler).
    """
    for method in vars(torch.optim.Optimizer).values():
        plain = getattr(method, "__wrapped__", None)
        if plain is not None and not hasattr(plain, "__dynamo_disable"):
            setattr(plain, "__dynamo_disable", plain)
