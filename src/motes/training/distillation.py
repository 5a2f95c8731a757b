"""Distillation: positions inferred by a sprite model as pseudo-labels for the paper's networks.

The teacher was trained on the same clips without labels. In the first steps the paper's renderer is
trained on the teacher's positions and its inference network to predict them; then the bound alone
is maximised. Only an initial point is passed on. [Choice 13]
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from motes.config import RunConfig
from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError
from motes.evaluation.metrics import reorder
from motes.kalman.model import POSITION_DIM
from motes.models.checkpoint import find_model, load_with_config, read_config, shipped_names
from motes.models.elbo import BoundTerms, log_prior, reconstruction
from motes.models.model import Model
from motes.models.protocols import GaussianPosterior
from motes.training.inputs import TrainingData

BATCH, GPU_BATCH = 200, 4000  # clips; launches dominate on a GPU
FIRST_FRAMES, FADE = 6.0, 2.0  # extra weight of the first frame, and its decay in frames


class LabelBatch(NamedTuple):
    """Inferred positions of some clips, which become pseudo-labels."""

    means: Float[Tensor, "b N T 2"]
    scales: Float[Tensor, "b N T 2"]
    present: Bool[Tensor, "b N"]


def distillation_terms(
    model: Model,
    labels: GaussianPosterior,
    frames: Float[Tensor, "B T height width"],
    num_objects: Int[Tensor, " B"],
    noise: Float[Tensor, "B N T 2"],
) -> BoundTerms:
    """Return the terms that distillation maximises, in the places of the bound's terms.

    The log-likelihood of the frames given the teacher's positions, the student's weighted log
    density of these (in place of the entropy), and their log prior.

    Law: equals the three densities as loops (test_distillation_is_three_densities_by_naive_loops).
    """
    present = model.present(num_objects)
    q: Any = model.infer(frames, num_objects)
    positions = labels.draw(noise)
    return BoundTerms(
        reconstruction=reconstruction(model.log_likelihood(positions, present, frames)),
        entropy=log_density(q, positions, present),
        log_prior=log_prior(model.dynamics, positions, present),
    )


def log_density(
    q: GaussianPosterior, positions: Float[Tensor, "B N T 2"], present: Bool[Tensor, "B N"]
) -> Float[Tensor, " B"]:
    """Return log q(a | v) at given positions of present objects, weighted for training.

    Weighted by the scales, without their gradient: a plain likelihood down-weights whatever the
    student declares uncertain. And more in the first frames, which are hardest. [Choice 34]
    """
    squares = ((positions - q.means) / q.scales).square() + 2 * q.scales.log()
    weighted = (squares + math.log(2 * math.pi)) * q.scales.detach()
    time = torch.arange(positions.shape[2], device=positions.device)
    density = -0.5 * (weighted.sum(3) * (1 + FIRST_FRAMES * torch.exp(-time / FADE))).sum(2)
    return torch.where(present, density, 0.0).sum(1)


def with_teacher(config: RunConfig, name_or_folder: str) -> RunConfig:
    """Return the configuration of a run with this teacher, whose dynamics it starts from."""
    shipped, its = name_or_folder in shipped_names(), read_config(find_model(name_or_folder))
    law, components = its.dynamics.law, its.dynamics.num_components
    return dataclasses.replace(
        config,
        dynamics=dataclasses.replace(config.dynamics, law=law, num_components=components),
        teacher=name_or_folder if shipped else str(Path(name_or_folder).resolve()),
    )


def find_teacher(config: RunConfig, device: torch.device) -> Model | None:
    """Return the teacher that a configuration names, if it names one.

    Raises:
        InputError: there is no such model, or its family, clips or dynamics do not fit.
    """
    if config.teacher is None:
        return None
    teacher, its_config = load_with_config(config.teacher, device=device)
    own, its = (
        f"frames of {c.data.height}x{c.data.width}, up to {c.data.max_objects} objects, "
        f"{c.dynamics.num_components} initial-state components and the {c.dynamics.law} law"
        for c in (config, its_config)
    )
    advice = (
        f"train one by motes train --preset sprites --data {config.data.path or 'CLIPS'} "
        "--out TEACHER, and choose it by --teacher TEACHER"
    )
    if its_config.family != "sprites":
        raise InputError(
            f"teacher {config.teacher} is of the {its_config.family} family; "
            f"expected one of the sprites family: {advice}"
        )
    if own != its:
        raise InputError(f"teacher {config.teacher} has {its}; this run has {own}: {advice}")
    return teacher


@torch.no_grad()
def infer_pseudo_labels(
    teacher: Model, clips: TrainingData, report: Callable[[int], None] = lambda done: None
) -> TrainingData:
    """Return the clips with the teacher's inferred positions; `report` gets the number done."""
    device, total = clips.num_objects.device, len(clips.num_objects)
    batch = GPU_BATCH if device.type == "cuda" else BATCH

    def inferred() -> Iterator[LabelBatch]:
        for indices in torch.arange(total, device=device).split(batch):
            report(int(indices[0]))
            frames, counts = clips.frames(indices), clips.num_objects[indices]
            q = GaussianPosterior.matching(teacher.infer(frames, counts))
            yield LabelBatch(q.means, q.scales, teacher.present(counts))
        report(total)

    return clips._replace(pseudo_labels=join_labels(teacher.dynamics, inferred()))


@torch.no_grad()
def join_labels(dynamics: Any, batches: Iterable[LabelBatch]) -> GaussianPosterior:
    """Return the positions of all batches in one, the objects of each clip in starting order."""
    ordered = []
    for means, scales, present in batches:
        order = starting_order(dynamics, means[:, :, 0], present)
        ordered.append((reorder(means, order), reorder(scales, order)))
    return GaussianPosterior(*(torch.cat(parts) for parts in zip(*ordered, strict=True)))


def starting_order(
    dynamics: Any, first: Float[Tensor, "B N 2"], present: Bool[Tensor, "B N"]
) -> Int[Tensor, "B N"]:
    """Return the order of objects by initial-state component, then along its widest axis.

    The student must assign identities from the first frame, so neighbours in the order should be
    far apart in it. [Choice 33]

    Law: any order of the same objects ends in the same one
    (test_the_starting_order_undoes_any_permutation).
    """
    component = dynamics.component_log_posterior(first[:, :, None]).argmax(-1)
    starts = dynamics.components()
    mu = starts.initial_mean[:, :POSITION_DIM]
    spread = starts.initial_covariance[:, :POSITION_DIM, :POSITION_DIM]
    axis = torch.linalg.eigh(spread).eigenvectors[..., -1]
    axis = axis * axis.gather(1, axis.abs().argmax(1, keepdim=True)).sign()  # to the right or down
    along = ((first - mu[component]) * axis[component]).sum(-1)
    by_component = torch.where(present, component, len(mu))  # absent objects are the last
    order: Tensor = along.argsort(dim=1, stable=True)
    return order.gather(1, by_component.gather(1, order).argsort(dim=1, stable=True))
