"""One run: a trainer and its folder, with checkpoints, a log, and a way back from faults."""

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
from motes.models.checkpoint import (
    read_metadata,
    read_tensors,
    save_model,
    write_json,
    write_tensors,
)
from motes.models.elbo import bound_terms
from motes.models.latent_map import draw, find_latent_map
from motes.models.model import Model
from motes.models.pixel_map import align
from motes.training import distributed
from motes.training.dataset import Dataset
from motes.training.initialization import Trial, first_weights
from motes.training.inputs import TrainingData
from motes.training.run_folder import drop_lines_after, environment
from motes.training.schedule import at_step
from motes.training.step import Trainer, require_finite

# Told each line of the log with the folder, the number of steps to come and the model itself; while
# a teacher looks at the clips, of how many there are lessons.
Report = Callable[[dict[str, Any]], None]
CHECKPOINT = "checkpoint.safetensors"
SLOWER = 0.5  # the learning rates after a roll-back, as a multiple of those before


class Outcome(NamedTuple):
    """How training ended."""

    folder: Path
    step: int
    finished: bool  # False: stopped by a signal, to be resumed
    held_out_bound: float  # nats a clip, KL weight 1
    pixel_map_residual: float  # pixels
    rolled_back: int  # times that training went back, because something was not finite


class Run:
    """A trainer and its folder."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        dataset: Dataset,
        device: torch.device,
        report: Report,
        teacher: Model | None = None,
        roll_backs: int = 0,
    ) -> None:
        self.folder, self.config, self.dataset = folder, config, dataset
        self.device, self.report, self.roll_backs = device, report, roll_backs
        self.checkpoint = folder / CHECKPOINT
        self.last_saved: int | None = None
        self.rolled_back = 0
        if self.checkpoint.is_file():
            self.restore()
        else:
            self.trainer = Trainer(config, dataset.training, device)
            weights = first_weights(config, dataset.training, device, self._tell_start)
            self.trainer.model.load_state_dict(weights, strict=False)
            if teacher is not None:
                self.trainer.model.dynamics.load_state_dict(teacher.dynamics.state_dict())
        if distributed.is_main():
            write_json(folder / "environment.json", environment(device))
            drop_lines_after(folder / "log.jsonl", self.trainer.step)
        self.outcome: Outcome | None = None
        self.started, self.started_at = time.monotonic(), self.trainer.step

    def restore(self, rolled_back: int | None = None) -> None:
        """Makes the trainer that of the last checkpoint, slower after so many roll-backs.

        Args:
            rolled_back: how often training went back; None: as often as before the checkpoint.
        """
        step, before = read_place(self.checkpoint)
        tensors, _ = read_tensors(self.checkpoint)
        self.rolled_back = before if rolled_back is None else rolled_back
        self.last_saved = step
        schedule = self.config.schedule.slower(SLOWER**self.rolled_back)
        slower = dataclasses.replace(self.config, schedule=schedule)
        self.trainer = Trainer(slower, self.dataset.training, self.device)
        self.trainer.restore(tensors, step)

    @property
    def unfinished(self) -> bool:
        """Whether steps are left."""
        return self.trainer.step < self.config.schedule.iterations

    @property
    def between_looks(self) -> bool:
        """Whether the next step looks at new frames, so that nothing but the state is needed."""
        return self.trainer.step % self.config.schedule.steps_per_look == 0

    @property
    def shape(self) -> tuple[object, ...]:
        """What runs must have in common to be computed together."""
        config, model, schedule = self.config, self.config.model, self.config.schedule
        sizes = (model.inference_state_size, model.renderer_state_size, model.num_components)
        settings = (model.scale_floor, config.batch_size, schedule.iterations, schedule.taught)
        return self.trainer.step, config.data, *sizes, *settings

    @property
    def due(self) -> bool:
        """Whether something is to be reported or saved after this step."""
        every = (self.config.log_every, self.config.checkpoint_every)
        return not self.unfinished or any(self.trainer.step % steps == 0 for steps in every)

    def advance(self) -> None:
        """Takes a step; reports and saves when they are due."""
        with self._faults_handled():
            self._step()
            self._tell()

    def after_step(self) -> None:
        """Reports and saves when they are due, after a step that others took too."""
        with self._faults_handled():
            self._tell()

    def _tell(self) -> None:
        step = self.trainer.step
        if step % self.config.log_every == 0:
            self.log_terms()
        if step % self.config.checkpoint_every == 0 or not self.unfinished:
            self.save()

    @contextlib.contextmanager
    def _faults_handled(self) -> Iterator[None]:
        """Goes back where that was asked for; else stops, and says what is kept."""
        try:
            yield
        except FloatingPointError as error:
            if self.last_saved is None or self.rolled_back >= self.roll_backs:
                raise FloatingPointError(self._stopped(error)) from None
            self.roll_back(error)
        except OSError as error:
            advice = "mend that, then go on with --resume"
            raise OSError(f"{self._stopped(error)}; {advice}") from error

    def roll_back(self, error: FloatingPointError) -> None:
        """Goes back to the last checkpoint with half the learning rates, and says so."""
        self.restore(self.rolled_back + 1)
        if distributed.is_main():
            drop_lines_after(self.folder / "log.jsonl", self.trainer.step)
        self._log({"step": self.trainer.step, "rolled_back": self.rolled_back, "why": str(error)})

    def log_terms(self) -> None:
        """Writes and reports the terms of the bound since the last time."""
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

    def save(self) -> Outcome:
        """Measures the held-out bound, then replaces the model and the checkpoint."""
        if self.trainer.num_summed:
            self.log_terms()
        step = self.trainer.step
        bound = held_out_bound(self.trainer, self.dataset.held_out)
        if not math.isfinite(bound):
            raise FloatingPointError(f"the held-out bound is not finite after step {step}")
        require_finite(self.trainer)  # an infinite weight behind a tanh spoils no term
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
        """Replaces the picture of the latent plane; the share of it that is turned over."""
        found = find_latent_map(self.trainer.model)
        with atomic_path(self.folder / "latent_map.png") as temporary:
            temporary.write_bytes(draw(found, self.trainer.model.image_size))
        return found.folded

    def finish(self) -> Outcome:
        """The last outcome, saved."""
        if self.outcome is None or self.outcome.step != self.trainer.step:
            self.outcome = self.save()
        return self.outcome

    def _step(self) -> None:
        """Takes a step; what breaks it because of weights that are not finite is told as that."""
        try:
            self.trainer.advance()
        except (IndexError, ValueError, RuntimeError):
            require_finite(self.trainer)
            raise

    def _stopped(self, error: Exception) -> str:
        """Why training stopped, and what is kept."""
        kept = "no checkpoint had been saved yet"
        if self.last_saved is not None:
            kept = f"the last good checkpoint is {self.checkpoint} of step {self.last_saved}"
        return f"training stopped after step {self.trainer.step}: {error}; {kept}"

    def _log(self, line: dict[str, Any]) -> None:
        if distributed.is_main():
            with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
            self._report(line, self.trainer.model)

    def _tell_start(self, trial: Trial) -> None:
        """Reports one of the starts that are tried before the first step."""
        line = {"step": 0, "start": trial.start, "start_step": trial.step}
        self._report({**line, "start_bound": trial.bound}, trial.model)

    def _report(self, line: dict[str, Any], model: Model) -> None:
        """Tells whoever watches, and lets them see the model as it stands; it goes on changing."""
        place = {"folder": str(self.folder), "of": self.config.schedule.iterations, "model": model}
        self.report(place | line)


def read_place(checkpoint: Path) -> tuple[int, int]:
    """The step of a checkpoint, and how often training had gone back before."""
    metadata = read_metadata(checkpoint)
    step, rolled_back = metadata.get("step", ""), metadata.get("rolled_back", "0")
    if not (step.isdecimal() and rolled_back.isdecimal()):
        raise InputError(f"{checkpoint} is no training state; delete it to start anew")
    return int(step), int(rolled_back)


def saved_step(folder: Path) -> int:
    """The step from which the run in a folder goes on; 0 where nothing was saved."""
    checkpoint = folder / CHECKPOINT
    return read_place(checkpoint)[0] if checkpoint.is_file() else 0


@torch.no_grad()
def held_out_bound(trainer: Trainer, clips: TrainingData, batch_size: int = 60) -> float:
    """The bound of a held-out clip at KL weight 1 on sharp frames, in nats, averaged."""
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
            observed=clips.seen(indices),
        )
        total += float(terms.weighted(1.0).sum())
    return total / len(clips.num_objects)
