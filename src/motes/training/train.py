"""Training: start or resume a run, with several seeds side by side, into one folder."""

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from motes.config import RunConfig, to_json
from motes.core.errors import InputError
from motes.core.files import atomic_path
from motes.models.model import FAMILIES, Model, read_config, write_json, write_text
from motes.training import distributed
from motes.training.dataset import Dataset, fit_to_data, make_dataset
from motes.training.distillation import find_teacher, infer_pseudo_labels
from motes.training.gpu.replicas import Groups
from motes.training.initialization import check_initial_model
from motes.training.run import Outcome, Report, Run, saved_step
from motes.training.run_folder import (
    begin,
    exclusive,
    fast_arithmetic,
    is_new,
    run_folders,
    stop_signals,
)
from motes.training.self_distillation import (
    PseudoLabelled,
    fit_final_dynamics,
    label_combined_clips,
    single_object_config,
    single_object_dataset,
)

FIRST_STAGE = "single_object"  # folder of the first stage, inside that of the run


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
    if out.is_file():
        raise InputError(f"{out} is a file; give a new folder")
    if not is_new(out):
        raise InputError(
            f"{out} is not empty; give a new folder, or continue with: motes train --resume {out}"
        )
    if replicas < 1:
        raise InputError(f"replicas is {replicas}; give 1 or more")
    config = fitted(config)
    distributed.barrier()  # until all processes have found the folder empty
    if distributed.is_main():
        begin(out, config, replicas)
    distributed.barrier()
    return resume(out, device=device, roll_backs=roll_backs, report=report)


def fitted(config: RunConfig) -> RunConfig:
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
    folders = run_folders(out, writes=distributed.is_main())
    distributed.barrier()
    configs = [read_config(folder) for folder in folders]
    if distributed.world_size() > configs[0].batch_size:
        raise InputError(
            f"{distributed.world_size()} processes share batches of {configs[0].batch_size} clips; "
            "start no more processes than a batch has clips"
        )
    place, report = torch.device(device), report if distributed.is_main() else lambda line: None
    with contextlib.ExitStack() as stack:
        for folder in folders if distributed.is_main() else []:
            stack.enter_context(exclusive(folder))
        distilled = configs[0].schedule.distillation_steps
        teacher = None
        if distilled > 0 and min(map(saved_step, folders)) < distilled:  # else it is over
            teacher = find_teacher(configs[0], place)
        dataset = make_dataset(configs[0], place)
        if teacher is not None:
            dataset = with_pseudo_labels(dataset, teacher, out, report)
        labelled: Sequence[PseudoLabelled | None] = [None] * len(folders)
        if configs[0].single_object_schedule and min(map(saved_step, folders)) < distilled:
            first = first_stage(folders, configs, dataset, place, report, roll_backs)
            with stop_signals() as stopping, fast_arithmetic():
                outcomes = run_all(first, lambda: distributed.any_process(stopping(), place))
                if all(outcome.finished for outcome in outcomes):
                    models = [run.trainer.model for run in first]
                    labelled = label_combined_clips(models, configs, dataset)
                if None in labelled or distributed.any_process(stopping(), place):
                    best = max(outcomes, key=lambda outcome: outcome.held_out_bound)
                    return best._replace(folder=out, finished=False)
        runs = [
            Run(folder, config, dataset, place, report, roll_backs, own)
            for folder, config, own in zip(folders, configs, labelled, strict=True)
        ]
        for run in runs:
            run.start(teacher)
        stopping = stack.enter_context(stop_signals())
        stack.enter_context(fast_arithmetic())
        outcomes = run_all(runs, lambda: distributed.any_process(stopping(), place))
    best = max(outcomes, key=lambda outcome: outcome.held_out_bound)
    if len(folders) == 1:
        return best
    finished = all(outcome.finished for outcome in outcomes)
    if finished and distributed.is_main():
        for name in ("config.json", "model.safetensors"):
            with atomic_path(out / name) as temporary:
                shutil.copyfile(best.folder / name, temporary)
        write_json(
            out / "selection.json",
            {"chosen": best.folder.name, "by": "held-out bound, KL weight 1", "bounds":
             {outcome.folder.name: outcome.held_out_bound for outcome in outcomes}},
        )  # fmt: skip
    return best._replace(folder=out, finished=finished)


def first_stage(
    folders: list[Path],
    configs: list[RunConfig],
    dataset: Dataset,
    device: torch.device,
    report: Report,
    roll_backs: int,
) -> list[Run]:
    """Return the started runs of the first stage of self-distillation."""
    singles, runs = single_object_dataset(dataset), []
    for folder, config in zip(folders, configs, strict=True):
        first, place = single_object_config(config), folder / FIRST_STAGE
        if distributed.is_main() and not (place / "config.json").is_file():
            place.mkdir(exist_ok=True)
            write_text(place / "config.json", to_json(first))
        runs.append(Run(place, first, singles, device, report, roll_backs))
        runs[-1].start()
    return runs


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
    """Fit the dynamics of runs of self-distillation after their last step."""
    ended = [run for run in runs if run.config.single_object_schedule and not run.unfinished]
    if ended:
        models, configs = [run.trainer.model for run in ended], [run.config for run in ended]
        fitted = fit_final_dynamics(models, configs, ended[0].dataset.training)
        for run, succeeded in zip(ended, fitted, strict=True):
            run.log_fit(succeeded)
