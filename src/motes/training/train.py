"""Training: start or resume a run, with several seeds side by side, into one folder.

A `Run` is a trainer and its folder: checkpoints, a log, roll-backs. A folder is locked by the
process that writes to it.
"""

import contextlib
import dataclasses
import json
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from motes.config import RunConfig, to_json
from motes.core.device import check_device, limited_threads
from motes.core.environment import environment
from motes.core.errors import InputError
from motes.core.files import atomic_path, leftover_files, write_json, write_text
from motes.models.checkpoint import (
    read_config,
    read_metadata,
    read_tensors,
    save_model,
    write_tensors,
)
from motes.models.model import FAMILIES, Model
from motes.models.pixel_map import align_pixel_map, draw_latent_map, find_latent_map
from motes.queries import fit, quality
from motes.queries.quality import Quality
from motes.training import distributed
from motes.training.contact_fit import find_contacts
from motes.training.distillation import find_teacher, infer_pseudo_labels
from motes.training.event_fit import find_events, inferred_batches, may_have_events
from motes.training.fit_reference import check_quality, write_fit_reference
from motes.training.gpu.replicas import Groups
from motes.training.inputs import Dataset, fit_to_data, make_dataset, schedule_at_step
from motes.training.pair_fit import find_pairs
from motes.training.self_distillation import (
    PseudoLabelled,
    continue_from,
    first_stage,
    fit_final_dynamics,
    label_combined_clips,
)
from motes.training.step import (
    Trainer,
    check_initial_model,
    held_out_bound,
    initialize,
    require_finite,
)

# Called with each line of the log, the folder, the number of steps and the model; during
# distillation with the number of clips that have pseudo-labels.
Report = Callable[[dict[str, Any]], None]
CHECKPOINT, LOCK = "checkpoint.safetensors", ".lock"
ROLL_BACK_RATE = 0.5  # multiple of the learning rates after a roll-back


class Outcome(NamedTuple):
    """The result of training."""

    folder: Path
    step: int
    finished: bool  # False: stopped by a signal, to be resumed
    held_out_bound: float  # nats per clip, KL weight 1
    pixel_map_residual: float  # pixels
    rolled_back: int  # roll-backs after non-finite values


class Run:
    """A trainer and its folder."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        dataset: Dataset,
        device: torch.device,
        report: Report,
        roll_backs: int = 0,
        labelled: PseudoLabelled | None = None,
    ) -> None:
        self.folder, self.config, self.dataset, self.labelled = folder, config, dataset, labelled
        self.device, self.report, self.roll_backs = device, report, roll_backs
        self.checkpoint = folder / CHECKPOINT
        self.last_saved: int | None = None
        self.rolled_back = 0
        self.outcome: Outcome | None = None
        self.quality: Quality | None = None  # at the last check
        self.trainer = Trainer(config, dataset.training, device)
        self.started, self.started_at = time.monotonic(), 0

    def start(self, teacher: Model | None = None) -> None:
        """Restore the last checkpoint, or initialise the weights of a new run."""
        if self.checkpoint.is_file():
            self.restore()
        else:
            for trial in initialize(self.trainer):
                line = {"step": 0, "start": trial.restart, "start_step": trial.step}
                self._report({**line, "start_bound": trial.bound}, trial.model)
            if teacher is not None:
                self.trainer.model.dynamics.load_state_dict(teacher.dynamics.state_dict())
            if self.labelled is not None:
                continue_from(self.trainer.model, self.labelled.model)
            self._select_clips()
        if distributed.is_main():
            write_json(self.folder / "environment.json", environment(self.device))
            drop_lines_after(self.folder / "log.jsonl", self.trainer.step)
            self.quality = last_quality(self.folder / "log.jsonl")
        if self.labelled is not None:
            self.log_fit(self.labelled.fitted)
        self.started, self.started_at = time.monotonic(), self.trainer.step

    def restore(self, rolled_back: int | None = None) -> None:
        """Restore the last checkpoint, with learning rates reduced for each roll-back.

        Args:
            rolled_back: number of roll-backs; None: as many as before the checkpoint.
        """
        step, before = read_progress(self.checkpoint)
        tensors, _ = read_tensors(self.checkpoint)
        self.rolled_back = before if rolled_back is None else rolled_back
        self.last_saved = step
        schedule = self.config.schedule.slower(ROLL_BACK_RATE**self.rolled_back)
        slower = dataclasses.replace(self.config, schedule=schedule)
        self.trainer = Trainer(slower, self.dataset.training, self.device)
        self.trainer.restore(tensors, step)
        self._select_clips()

    def _select_clips(self) -> None:
        """Give the trainer the clips of its step: combined ones while it distils itself."""
        distills = self.trainer.step < self.config.schedule.distillation_steps
        combined = self.labelled if distills else None
        self.trainer.data = self.dataset.training if combined is None else combined.clips

    @property
    def unfinished(self) -> bool:
        """Whether steps are left."""
        return self.trainer.step < self.config.schedule.iterations

    @property
    def can_stop(self) -> bool:
        """Whether the next step searches new frames, so that the state is complete."""
        return self.trainer.step % self.config.schedule.steps_per_search == 0

    @property
    def shape(self) -> tuple[object, ...]:
        """What runs must have in common to be computed together."""
        config, schedule = self.config, self.config.schedule
        model, dynamics = config.model, config.dynamics
        sizes = (model.inference_state_size, model.renderer_state_size, model.scale_floor)
        settings = (config.batch_size, schedule.iterations, schedule.distillation_steps)
        clips = (config.data, config.hidden_clips)
        return self.trainer.step, *clips, *sizes, dynamics.num_components, *settings

    @property
    def due(self) -> bool:
        """Whether a log line or a checkpoint is due after this step."""
        step, every = self.trainer.step, (self.config.log_every, self.config.checkpoint_every)
        distilled = self.labelled is not None and step == self.config.schedule.distillation_steps
        return not self.unfinished or distilled or any(step % steps == 0 for steps in every)

    def after_step(self) -> None:
        """Log and save when they are due."""
        step = self.trainer.step
        if step % self.config.log_every == 0:
            self.log_terms()
        if self.labelled is not None and step == self.config.schedule.distillation_steps:
            self._select_clips()
        if step % self.config.checkpoint_every == 0 or not self.unfinished:
            self.save()

    @contextlib.contextmanager
    def handling_faults(self) -> Iterator[None]:
        """Roll back on non-finite values if allowed; else stop with a message on what is kept."""
        try:
            try:
                yield
            except (IndexError, ValueError, RuntimeError):
                require_finite(self.trainer)  # if this raises, it is the cause
                raise
        except FloatingPointError as error:
            if self.last_saved is None or self.rolled_back >= self.roll_backs:
                raise FloatingPointError(self._stopped(error)) from None
            self.roll_back(error)
        except OSError as error:
            advice = "fix that, then continue with --resume"
            raise OSError(f"{self._stopped(error)}; {advice}") from error

    def roll_back(self, error: FloatingPointError) -> None:
        """Restore the last checkpoint with half the learning rates, and log it."""
        self.restore(self.rolled_back + 1)
        if distributed.is_main():
            drop_lines_after(self.folder / "log.jsonl", self.trainer.step)
        self._log({"step": self.trainer.step, "rolled_back": self.rolled_back, "why": str(error)})

    def log_terms(self) -> None:
        """Write and report the terms of the bound since the last time."""
        step = self.trainer.step
        terms = self.trainer.mean_terms()
        phase = schedule_at_step(self.trainer.config.schedule, step - 1)
        rate = (step - self.started_at) / max(time.monotonic() - self.started, 1e-9)
        self._log({
            "step": step,
            **{name: float(value) for name, value in terms._asdict().items()},
            "bound": float(terms.weighted(1.0)),
            **phase._asdict(),
            "iterations_per_second": round(rate, 3),
        })  # fmt: skip

    def log_fit(self, fitted: bool) -> None:
        """Log a fit of the dynamics to inferred tracks if it failed: then they are as before."""
        if not fitted:
            why = "the fit of the dynamics met a singular matrix; they are as before the fit"
            self._log({"step": self.trainer.step, "dynamics_fitted": False, "why": why})

    def save(self) -> Outcome:
        """Compute the held-out bound, then replace the model and the checkpoint."""
        if self.trainer.num_summed:
            self.log_terms()
        step = self.trainer.step
        bound = held_out_bound(self.trainer, self.dataset.held_out)
        if not math.isfinite(bound):
            raise FloatingPointError(f"the held-out bound is not finite after step {step}")
        require_finite(self.trainer)  # an infinite weight behind a tanh leaves all terms finite
        residual = align_pixel_map(self.trainer.model, self.config.data.num_frames)
        if distributed.is_main() and step != self.last_saved:
            save_model(self.folder, self.trainer.model, self.config)
            place = {"step": str(step), "rolled_back": str(self.rolled_back)}
            write_tensors(self.checkpoint, self.trainer.state(), place)
            scores = {"held_out_bound": bound, "pixel_map_residual": residual}
            self._log({"step": step, **scores, "folded": self._draw_map(), **self._check()})
        self.last_saved = step
        self.outcome = Outcome(
            self.folder, step, not self.unfinished, bound, residual, self.rolled_back
        )
        return self.outcome

    def _check(self) -> dict[str, Any]:
        """Return how good the model is on a few clips; nothing at the end, when all are checked."""
        if not self.unfinished:
            return {}
        networks = FAMILIES[self.config.family].networks
        found = check_quality(self.trainer.model, self.dataset, self.quality, networks)
        if found is None:
            return {}
        self.quality = found
        return {"quality": found.record()}

    def _draw_map(self) -> float:
        """Replace the picture of the latent plane; return the share that is folded."""
        found = find_latent_map(self.trainer.model)
        with contextlib.suppress(ImportError):  # without Pillow there is no picture
            picture = draw_latent_map(found, self.trainer.model.image_size)
            with atomic_path(self.folder / "latent_map.png") as temporary:
                temporary.write_bytes(picture)
        return found.folded

    def finish(self) -> Outcome:
        """Return the last outcome, saving if needed."""
        if self.outcome is None or self.outcome.step != self.trainer.step:
            self.outcome = self.save()
        if self.outcome.finished and distributed.is_main():
            model, data = self.trainer.model, self.dataset
            networks = FAMILIES[self.config.family].networks
            quality = write_fit_reference(model, data, self.folder, self.quality, networks)
            if quality is not None:
                line = {"step": self.trainer.step, "quality": quality.record()}
                self._report(line, model)
        return self.outcome

    def _stopped(self, error: Exception) -> str:
        """Return why training stopped, and which checkpoint is kept."""
        kept = "no checkpoint had been saved yet"
        if self.last_saved is not None:
            kept = f"the last good checkpoint is {self.checkpoint} of step {self.last_saved}"
        return f"training stopped after step {self.trainer.step}: {error}; {kept}"

    def _log(self, line: dict[str, Any]) -> None:
        if distributed.is_main():
            with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
            self._report(line, self.trainer.model)

    def _report(self, line: dict[str, Any], model: Model) -> None:
        """Pass a line to the caller's report, with the model, which training goes on changing."""
        place = {"folder": str(self.folder), "of": self.config.schedule.iterations, "model": model}
        self.report(place | line)


def read_progress(checkpoint: Path) -> tuple[int, int]:
    """Return the step of a checkpoint and the number of roll-backs before it."""
    metadata = read_metadata(checkpoint)
    step, rolled_back = metadata.get("step", ""), metadata.get("rolled_back", "0")
    if not (step.isdecimal() and rolled_back.isdecimal()):
        raise InputError(f"{checkpoint} is not a training state; delete it to start again")
    return int(step), int(rolled_back)


def saved_step(folder: Path) -> int:
    """Return the step that the run in a folder continues from; 0 if nothing was saved."""
    checkpoint = folder / CHECKPOINT
    return read_progress(checkpoint)[0] if checkpoint.is_file() else 0


def train(
    config: RunConfig,
    out: Path,
    *,
    device: str = "cpu",
    replicas: int = 1,
    roll_backs: int = 0,
    report: Report = lambda line: None,
) -> Outcome:
    """Train into a new folder and return the outcome.

    With several replicas, seeds `config.seed`, `config.seed + 1`, ... train side by side into
    `out/seed-*`, and the one with the best held-out bound is copied to `out`. No truth is used.
    A term or gradient that is not finite ends training with a `FloatingPointError`; up to
    `roll_backs` times the last checkpoint is restored instead, with half the learning rates.
    """
    check_new_folder(out)
    if replicas < 1:
        raise InputError(f"replicas is {replicas}; give 1 or more")
    config = fit_run_config(config)
    distributed.barrier()  # until all processes have found the folder empty
    with contextlib.ExitStack() as stack:
        if distributed.is_main():
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_run_folder(out))
            check_new_folder(out)  # another process may have begun a run in the meantime
            begin_run(out, config, replicas)
        return continue_run(out, check_device(device), roll_backs, report)


def fit_run_config(config: RunConfig) -> RunConfig:
    """Return the configuration with the sizes of its clips, as a run of it starts.

    Raises:
        InputError: its clips, its teacher or its initial model cannot be used.
    """
    config = fit_to_data(config)
    check_initial_model(config)
    find_teacher(config, torch.device("cpu"))
    return config


def resume(
    out: Path, *, device: str = "cpu", roll_backs: int = 0, report: Report = lambda line: None
) -> Outcome:
    """Continue the run in a folder from its last checkpoint, or start it."""
    read_config(out)
    with lock_run_folder(out) if distributed.is_main() else contextlib.nullcontext():
        return continue_run(out, check_device(device), roll_backs, report)


def continue_run(out: Path, device: torch.device, roll_backs: int, report: Report) -> Outcome:
    """Continue the run in a folder that this process has locked; see `resume`."""
    distributed.barrier()
    folders = run_folders(out, writes=distributed.is_main())
    distributed.barrier()
    configs = [read_config(folder) for folder in folders]
    if distributed.world_size() > configs[0].batch_size:
        raise InputError(
            f"{distributed.world_size()} processes share batches of {configs[0].batch_size} clips; "
            "start no more processes than a batch has clips"
        )
    report = report if distributed.is_main() else lambda line: None
    with contextlib.ExitStack() as stack:
        for folder in folders if distributed.is_main() and folders != [out] else []:
            stack.enter_context(lock_run_folder(folder))
        distills = min(map(saved_step, folders)) < configs[0].schedule.distillation_steps
        teacher = find_teacher(configs[0], device) if distills else None
        dataset = make_dataset(configs[0], device)
        if teacher is not None:
            dataset = with_pseudo_labels(dataset, teacher, out, report)
        labelled: Sequence[PseudoLabelled | None] = [None] * len(folders)
        if configs[0].single_object_schedule and distills:
            stage = first_stage(folders, configs, dataset)
            runs = [Run(*own, device, report, roll_backs) for own in stage]
            with running(runs, device) as stopping:
                outcomes = run_all(runs, stopping)
                if all(outcome.finished for outcome in outcomes):
                    models = [run.trainer.model for run in runs]
                    labelled = label_combined_clips(models, configs, dataset)
                if None in labelled or stopping():
                    best = max(outcomes, key=lambda outcome: outcome.held_out_bound)
                    return best._replace(folder=out, finished=False)
        runs = [
            Run(folder, config, dataset, device, report, roll_backs, own)
            for folder, config, own in zip(folders, configs, labelled, strict=True)
        ]
        per_thread = runs[0].trainer.model.inference.clips_per_thread
        stack.enter_context(limited_threads(configs[0].batch_size, per_thread))
        with running(runs, device, teacher) as stopping:
            outcomes = run_all(runs, stopping)
    best = max(outcomes, key=lambda outcome: outcome.held_out_bound)
    if len(folders) == 1:
        return best
    finished = all(outcome.finished for outcome in outcomes)
    if finished and distributed.is_main():
        names = ("config.json", "model.safetensors", fit.FILE, quality.FILE)
        for name in filter(lambda name: (best.folder / name).is_file(), names):
            with atomic_path(out / name) as temporary:
                shutil.copyfile(best.folder / name, temporary)
        write_json(
            out / "selection.json",
            {"chosen": best.folder.name, "by": "held-out bound, KL weight 1", "bounds":
             {outcome.folder.name: outcome.held_out_bound for outcome in outcomes}},
        )  # fmt: skip
    return best._replace(folder=out, finished=finished)


@contextlib.contextmanager
def running(
    runs: Sequence[Run], device: torch.device, teacher: Model | None = None
) -> Iterator[Callable[[], bool]]:
    """Start runs; yield a function that returns whether a signal asked any process to stop."""
    for run in runs:
        run.start(teacher)
    with stop_signals() as stopping, fast_arithmetic(runs[0].config.precision):
        yield lambda: distributed.any_process(stopping(), device)


def with_pseudo_labels(dataset: Dataset, teacher: Model, out: Path, report: Report) -> Dataset:
    """Return the dataset with a teacher's pseudo-labels, reporting progress."""
    total, started = len(dataset.training.num_objects), time.monotonic()

    def progress(done: int) -> None:
        rate = done / max(time.monotonic() - started, 1e-9)
        report({"folder": str(out), "pseudo_labels": done, "of": total, "clips_per_second": rate})

    return dataset._replace(training=infer_pseudo_labels(teacher, dataset.training, progress))


def run_all(runs: list[Run], stopping: Callable[[], bool]) -> list[Outcome]:
    """Take the steps of all runs until they end or a stop is requested."""
    teams = find_teams(runs)
    while any(run.unfinished for run in runs):
        if stopping() and all(run.can_stop for run in runs):
            break
        for team in teams:
            if team.runs[0].unfinished:
                take_step(team)
        if any(team.broken_up for team in teams):
            teams = find_teams(runs)
    for team in teams:
        team.synchronize()
    return [run.finish() for run in runs]


class Team:
    """Runs that are computed together: of one shape, at the same step."""

    def __init__(self, runs: list[Run], together: bool) -> None:
        self.runs, self.trainers = runs, [run.trainer for run in runs]
        self.clips = [trainer.data for trainer in self.trainers]
        self.groups = Groups(self.trainers) if together else None

    def synchronize(self) -> None:
        """Wait for all steps before anything is read."""
        if self.groups is not None:
            self.groups.synchronize()

    @property
    def broken_up(self) -> bool:
        """Whether a run was rolled back to another step, or continues with other clips."""
        before = zip(self.runs, self.trainers, self.clips, strict=True)
        return any(run.trainer is not t or t.data is not clips for run, t, clips in before)


def find_teams(runs: list[Run]) -> list[Team]:
    """Return the runs in teams, as large as possible on a GPU; on a CPU each run is alone."""
    teams: dict[object, list[Run]] = {}
    for run in runs:
        batched = run.device.type == "cuda" and FAMILIES[run.config.family].networks
        together = batched and distributed.world_size() == 1
        teams.setdefault(run.shape if together else run.folder, []).append(run)
    return [Team(team, isinstance(key, tuple)) for key, team in teams.items()]


def take_step(team: Team) -> None:
    """Take one step of every run of a team; log and save when due."""
    if team.groups is None:
        run = team.runs[0]
        with run.handling_faults():
            run.trainer.advance()
            fit_finished([run])
            run.after_step()
        return
    team.groups.advance()
    if any(run.due for run in team.runs):
        team.synchronize()
        fit_finished(team.runs)
        for run in team.runs:
            with run.handling_faults():
                run.after_step()


def fit_finished(runs: list[Run]) -> None:
    """Fit the dynamics of runs of self-distillation after their last step; look for events."""
    for run in runs:
        if not run.unfinished:
            if not may_have_events(run.trainer, run.config):
                continue
            batches = run.trainer.fitted_to or list(inferred_batches(run.trainer))
            run.trainer.fitted_to = []
            given = (run.trainer, run.dataset.held_out, run.config, batches)
            run.config = find_contacts(*given) or find_pairs(*given) or find_events(*given)
    ended = [run for run in runs if run.config.single_object_schedule and not run.unfinished]
    if ended:
        models, configs = [run.trainer.model for run in ended], [run.config for run in ended]
        fitted = fit_final_dynamics(models, configs, ended[0].dataset.training)
        for run, succeeded in zip(ended, fitted, strict=True):
            run.log_fit(succeeded)


@contextlib.contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; raise `InputError` if another process has it.

    The lock is the operating system's, so a killed process leaves none. Partly written files of
    such a process are deleted.
    """
    from filelock import FileLock, Timeout  # a requirement of torch, too

    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"{folder} is in use by another process; wait for it") from None
    except OSError as error:
        raise InputError(f"cannot write to {folder} ({error.strerror}); choose another") from None
    try:
        for path in leftover_files(folder):
            path.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def begin_run(out: Path, config: RunConfig, replicas: int) -> None:
    """Write what a new run needs to be resumed; `config.json` last, which makes it a run.

    With several replicas, `replicas.json` holds their number, from which their folders follow.
    """
    (out / "replicas.json").unlink(missing_ok=True)  # of a process that was killed here
    if replicas > 1:
        write_json(out / "replicas.json", {"seed": config.seed, "replicas": replicas})
    write_text(out / "config.json", to_json(config))


def check_new_folder(out: Path) -> None:
    """Raise `InputError` unless a folder is missing, empty, or as a killed `begin_run` left it."""
    if out.is_file():
        raise InputError(f"{out} is a file; give a new folder")
    entries = set(out.iterdir()) - set(leftover_files(out)) if out.exists() else set()
    if not {path.name for path in entries} <= {"replicas.json", LOCK}:
        raise InputError(
            f"{out} is not empty; give a new folder, or continue with: motes train --resume {out}"
        )


def run_folders(out: Path, *, writes: bool) -> list[Path]:
    """Return the folders of a run's replicas, created if missing; or the run's own folder."""
    try:
        noted = json.loads((out / "replicas.json").read_text(encoding="utf-8"))
        first, count = int(noted["seed"]), int(noted["replicas"])
    except FileNotFoundError:
        return [out]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{out / 'replicas.json'} is damaged ({error}); start again") from None
    folders = [out / f"seed-{first + offset}" for offset in range(count)]
    for offset, folder in enumerate(folders if writes else []):
        if not (folder / "config.json").is_file():
            folder.mkdir(exist_ok=True)
            own = dataclasses.replace(read_config(out), seed=first + offset)
            write_text(folder / "config.json", to_json(own))
    return folders


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C or SIGTERM requested a stop.

    A second Ctrl-C interrupts at once. Each call installs the handlers again: compilers of GPU
    kernels replace them, after which a second signal would kill the process.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, note) for number in numbers]

    def requested() -> bool:
        for number in numbers:
            signal.signal(number, note)
        return bool(received)

    try:
        yield requested
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def fast_arithmetic(precision: str = "mixed") -> Iterator[None]:
    """Use TensorFloat-32 products on GPUs, unless in "float32", and flush denormals on CPUs.

    Blurred frames contain many denormals, on which a CPU is a hundred times slower.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "mixed" else "highest")
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_float32_matmul_precision(before)


def drop_lines_after(log: Path, step: int) -> None:
    """Remove log lines beyond the checkpoint that training continues from."""
    if not log.is_file():
        return
    kept = []
    for line in log.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):  # a line cut off by the kill
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
    write_text(log, "".join(kept))


def last_quality(log: Path) -> Quality | None:
    """Return the quality at the last check of a run that is resumed."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    checks = [line["quality"] for line in map(json.loads, lines) if "quality" in line]
    return Quality(**{name: checks[-1][name] for name in Quality._fields}) if checks else None
