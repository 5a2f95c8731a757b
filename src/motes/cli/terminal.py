"""What commands print: results, and progress as a bar on a terminal or as plain lines elsewhere."""

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from motes.core.errors import InputError


def print_result(record: dict[str, Any], as_json: bool, text: str) -> None:
    """Print the result of a command: one JSON line for programs, or text for people."""
    print(json.dumps(record) if as_json else text)


def print_warnings(warnings: Iterable[str]) -> None:
    """Print one line on standard error for each warning."""
    for line in warnings:
        print(f"motes: warning: {line}", file=sys.stderr)


def join_paths(*paths: Path | None) -> str:
    """Return the given paths as a comma-separated list, without None."""
    return ", ".join(str(path) for path in paths if path is not None)


@contextlib.contextmanager
def bar(title: str, total: int | None, *, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error if it is a terminal; yield a function that sets the progress."""
    from rich.console import Console
    from rich.progress import Progress

    console, hidden = Console(stderr=True), hidden or not sys.stderr.isatty()
    with Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextlib.contextmanager
def training_bar(events: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that shows reports of training: terms of the bound, speed, time left.

    Args:
        events: Folder to also write TensorBoard events to, or None.
    """
    from motes.training import distributed

    if not distributed.is_main():
        yield lambda line: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.fields[folder]}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[terms]}"),
    )
    with (
        contextlib.nullcontext() if events is None else _events(events) as write,
        Progress(
            *columns,
            console=console,
            disable=not sys.stderr.isatty(),
            speed_estimate_period=600,  # seconds; a slow machine reports every minute
        ) as progress,
    ):
        tasks: dict[str, Any] = {}

        def report(line: dict[str, Any]) -> None:
            labels = line.get("pseudo_labels")  # clips labelled so far, for distillation
            title = line["folder"] if labels is None else f"pseudo-labels for {line['folder']}"
            if title not in tasks:
                tasks[title] = progress.add_task(
                    "", total=line["of"], folder=title, rate="", terms=""
                )
            task, text = tasks[title], describe(line)
            done = line.get("step") if labels is None else labels
            if labels is not None:
                progress.update(task, completed=done, rate=text, refresh=True)
            if "bound" in line:
                rate = f"{line['iterations_per_second']:.1f} it/s"
                progress.update(task, completed=done, terms=text, rate=rate, refresh=True)
            if "start" in line:
                progress.update(task, terms=text, refresh=True)
                return
            if not sys.stderr.isatty():
                console.print(f"{title} {done}/{line['of']} {text}", soft_wrap=True)
            if write is not None and labels is None:
                write(line)

        yield report


def describe(line: dict[str, Any]) -> str:
    """Return a report of training as text."""
    if "rolled_back" in line:
        return f"{line['why']}: returned to step {line['step']} with half the learning rates"
    if "dynamics_fitted" in line:
        return str(line["why"])
    if "pseudo_labels" in line:
        return f"{line['clips_per_second']:.1f} clips/s"
    if "start" in line:
        return f"restart {line['start']}: bound {line['start_bound']:.1f}"
    if "held_out_bound" in line:
        return (
            f"held-out bound {line['held_out_bound']:.1f}, "
            f"pixel map residual {line['pixel_map_residual']:.2f} px, "
            f"{100 * line['folded']:.0f} % folded (latent_map.png), saved"
            + (f"; {line['quality']['in_words']}" if "quality" in line else "")
        )
    if "quality" in line:
        return str(line["quality"]["in_words"])
    left = (line["of"] - line["step"]) / max(line["iterations_per_second"], 1e-9)
    return (
        f"bound {line['bound']:.1f} = reconstruction {line['reconstruction']:.1f} "
        f"+ entropy {line['entropy']:.1f} + log prior {line['log_prior']:.1f} | "
        f"KL x {line['kl_weight']:.2g}, blur {line['blur']:.2g} px, "
        f"{line['iterations_per_second']:.1f} it/s, {time_left(left)} left"
    )


def time_left(seconds: float) -> str:
    """Return a duration in the unit that a person would use."""
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


@contextlib.contextmanager
def _events(folder: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that writes reports as TensorBoard events.

    The folder is created with the first event, because a run must begin in a new folder.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("tensorboard is not installed; pip install 'motes[tensorboard]'") from None
    with contextlib.ExitStack() as stack:

        @functools.cache
        def writer() -> Any:
            return stack.enter_context(SummaryWriter(str(folder / "events")))

        def write(line: dict[str, Any]) -> None:
            for name, value in line.items():
                if isinstance(value, float):
                    writer().add_scalar(name, value, line["step"])

        yield write
