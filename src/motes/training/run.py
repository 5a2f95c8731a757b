"""One run: a trainer and its folder, with checkpoints, a log and roll-backs."""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from motes.config import RunConfig
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.models.model import (
    Model,
    bound_terms,
    read_metadata,
    read_tensors,
    save_model,
    write_json,
    write_tensors,
)
from motes.models.pixel_map import align, draw_latent_map, find_latent_map
from motes.training import distributed
from motes.training.dataset import Dataset
from motes.training.initialization import Trial, initialize
from motes.training.inputs import TrainingData
from motes.training.run_folder import drop_lines_after, environment
from motes.training.schedule import at_step
from motes.training.self_distillation import PseudoLabelled, continue_from
from motes.training.step import Trainer, require_finite

# Called with each line of the log, the folder, the number of steps and the model; during
# distillation with the number of clips that have pseudo-labels.
Report = Callable[[dict[str, Any]], None]
CHECKPOINT = "checkpoint.safetensors"
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
        self.trainer = Trainer(config, dataset.training, device)
        self.started, self.started_at = time.monotonic(), 0

    def start(self, teacher: Model | None = None) -> None:
        """Restore the last checkpoint, or initialise the weights of a new run."""
        if self.checkpoint.is_file():
            self.restore()
        else:
            initialize(self.trainer, self._report_trial)
            if teacher is not None:
                self.trainer.model.dynamics.load_state_dict(teacher.dynamics.state_dict())
            if self.labelled is not None:
                continue_from(self.trainer.model, self.labelled.model)
            self._select_clips()
        if distributed.is_main():
            write_json(self.folder / "environment.json", environment(self.device))
            drop_lines_after(self.folder / "log.jsonl", self.trainer.step)
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
        return self.trainer.step, config.data, *sizes, dynamics.num_components, *settings

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
        phase = at_step(self.trainer.config.schedule, step - 1)
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
        residual = align(self.trainer.model, self.config.data.num_frames)
        if distributed.is_main() and step != self.last_saved:
            save_model(self.folder, self.trainer.model, self.config)
            place = {"step": str(step), "rolled_back": str(self.rolled_back)}
            write_tensors(self.checkpoint, self.trainer.state(), place)
            self._log({
                "step": step,
                "held_out_bound": bound,
                "pixel_map_residual": residual,
                "folded": self._draw_map(),
            })  # fmt: skip
        self.last_saved = step
        self.outcome = Outcome(
            self.folder, step, not self.unfinished, bound, residual, self.rolled_back
        )
        return self.outcome

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

    def _report_trial(self, trial: Trial) -> None:
        """Report a restart before the first step."""
        line = {"step": 0, "start": trial.restart, "start_step": trial.step}
        self._report({**line, "start_bound": trial.bound}, trial.model)

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


@torch.no_grad()
def held_out_bound(trainer: Trainer, clips: TrainingData, batch_size: int = 60) -> float:
    """Return the mean bound of a held-out clip at KL weight 1 on sharp frames, in nats."""
    data = trainer.config.data
    random = np.random.Generator(np.random.Philox(key=(data.seed, 0)))
    total = 0.0
    for start in range(0, len(clips.num_objects), batch_size):
        indices = torch.arange(start, min(start + batch_size, len(clips.num_objects)))
        indices = indices.to(trainer.device)
        shape = (len(indices), data.max_objects, data.num_frames, 2)
        noise = torch.from_numpy(random.standard_normal(shape, dtype=np.float32))
        terms = bound_terms(
            trainer.model,
            clips.frames(indices),
            clips.num_objects[indices],
            noise.to(trainer.device),
            observed=clips.observed_in(indices),
        )
        total += float(terms.weighted(1.0).sum())
    return total / len(clips.num_objects)
