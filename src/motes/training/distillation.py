"""A taught start: tracks that the structured family inferred, as first lessons for the paper's.

The teacher learned from the same clips without labels. For the first steps the paper's renderer
draws the teacher's positions and its inference network is asked to say them; then the bound alone
goes on. Nothing but a starting point is passed on. [Choice 13]
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import torch

from motes.config import RunConfig
from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError
from motes.evaluation.metrics import reorder
from motes.kalman import mixture
from motes.kalman.dynamics import LinearDynamics
from motes.kalman.model import POSITION_DIM
from motes.models.checkpoint import find_model, load_with_config, read_config, shipped_names
from motes.models.elbo import BoundTerms, log_prior, reconstruction
from motes.models.model import Model
from motes.models.paper.inference import GaussianPosterior
from motes.training.inputs import TrainingData

BATCH, GPU_BATCH = 200, 4000  # clips; a GPU waits for every launch, whatever it holds
FIRST_FRAMES, FADE = 6.0, 2.0  # how much more the first frame counts, and for how many frames


def distillation_terms(
    model: Model,
    lesson: GaussianPosterior,
    frames: Float[Tensor, "B T height width"],
    num_objects: Int[Tensor, " B"],
    noise: Float[Tensor, "B N T 2"],
) -> BoundTerms:
    """What a lesson maximises, in the places of the bound's terms.

    The picture of the teacher's position, the student's log density of it, weighted (in place of
    the entropy), and its log prior.

    Law: equals the three densities as loops (test_a_lesson_is_three_densities_by_naive_loops).
    """
    present = model.present(num_objects)
    positions = lesson.draw(noise)
    return BoundTerms(
        reconstruction=reconstruction(model.explain(positions, present, frames)),
        entropy=log_density(model.inference(frames, num_objects), positions, present),
        log_prior=log_prior(model.dynamics, positions, present),
    )


def log_density(
    said: GaussianPosterior, positions: Float[Tensor, "B N T 2"], present: Bool[Tensor, "B N"]
) -> Float[Tensor, " B"]:
    """The log of q(a | v) at given positions of present objects, weighted for learning.

    By the scales, without their gradient: a likelihood forgives a student whatever it calls
    uncertain, and never teaches it what is hard. And more in the first frames, where everything has
    to be told from one look. [Choice 34]
    """
    surprise = ((positions - said.means) / said.scales).square() + 2 * said.scales.log()
    weighted = (surprise + math.log(2 * math.pi)) * said.scales.detach()
    time = torch.arange(positions.shape[2], device=positions.device)
    density = -0.5 * (weighted.sum(3) * (1 + FIRST_FRAMES * torch.exp(-time / FADE))).sum(2)
    return torch.where(present, density, 0.0).sum(1)


def with_teacher(config: RunConfig, name_or_folder: str) -> RunConfig:
    """The configuration of a run with this teacher, whose dynamics it begins with."""
    shipped, its = name_or_folder in shipped_names(), read_config(find_model(name_or_folder)).model
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, num_components=its.num_components, law=its.law),
        teacher=name_or_folder if shipped else str(Path(name_or_folder).resolve()),
    )


def find_teacher(config: RunConfig, device: torch.device) -> Model | None:
    """The teacher that a configuration names, if it names one.

    Raises:
        InputError: there is no such model, or its family, clips or dynamics are of another kind.
    """
    if config.teacher is None:
        return None
    teacher, its_config = load_with_config(config.teacher, device=device)
    own, its = (
        f"{c.model.pixels} frames of {c.data.height}x{c.data.width}, up to {c.data.max_objects} "
        f"objects, {c.model.num_components} kinds of start and the {c.model.law} law"
        for c in (config, its_config)
    )
    clips = config.data.path or "CLIPS"
    advice = (
        f"train one by motes train --family structured --data {clips} --out TEACHER, "
        "and choose it by --teacher TEACHER"
    )
    if its_config.model.family != "structured":
        raise InputError(
            f"teacher {config.teacher} is of the {its_config.model.family} family; "
            f"lessons are given by the structured family: {advice}"
        )
    if own != its:
        raise InputError(f"teacher {config.teacher} has {its}; this run has {own}: {advice}")
    return teacher


@torch.no_grad()
def infer_pseudo_labels(
    teacher: Model, clips: TrainingData, report: Callable[[int], None] = lambda done: None
) -> TrainingData:
    """The clips with the teacher's inferred positions beside them; `report` hears how many have."""
    device, total = clips.num_objects.device, len(clips.num_objects)
    parts = []
    batch = GPU_BATCH if device.type == "cuda" else BATCH
    for indices in torch.arange(total, device=device).split(batch):
        report(int(indices[0]))
        frames, counts = clips.frames(indices), clips.num_objects[indices]
        found = teacher.track(frames, counts)
        assert found is not None  # only the structured family teaches
        said = found.gaussian()
        order = starting_order(teacher.dynamics, said.means[:, :, 0], teacher.present(counts))
        parts.append(GaussianPosterior(*(reorder(part, order) for part in said)))
    report(total)
    lessons = GaussianPosterior(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))
    return clips._replace(lessons=lessons)


def starting_order(
    dynamics: LinearDynamics, first: Float[Tensor, "B N 2"], present: Bool[Tensor, "B N"]
) -> Int[Tensor, "B N"]:
    """The order of objects by their kind of start, then along the axis where that kind is widest.

    A student has one look at the first frame to tell who is who, so neighbours in the order should
    lie far apart in it. [Choice 33]

    Law: any order of the same objects ends in the same one
    (test_the_starting_order_undoes_any_permutation).
    """
    kind = mixture.component_log_posterior(dynamics, first[:, :, None]).argmax(-1)
    starts = dynamics.components()
    mu = starts.initial_mean[:, :POSITION_DIM]
    spread = starts.initial_covariance[:, :POSITION_DIM, :POSITION_DIM]
    axis = torch.linalg.eigh(spread).eigenvectors[..., -1]
    axis = axis * axis.gather(1, axis.abs().argmax(1, keepdim=True)).sign()  # to the right or down
    along = ((first - mu[kind]) * axis[kind]).sum(-1)
    by_kind = torch.where(present, kind, len(mu))  # absent objects are the last
    order: Tensor = along.argsort(dim=1, stable=True)
    return order.gather(1, by_kind.gather(1, order).argsort(dim=1, stable=True))
