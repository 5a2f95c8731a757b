"""Run the same work on the CPU and on the GPU and report how far the numbers differ.

Covers networks and gradients at the paper's size, a hundred training steps, one of eight replicas
against its single run, and the answers of the shipped models. Exits with 1 where a difference
exceeds what the arithmetic explains.

Usage: python -m tests.stress.compare_devices --out experiments/reliability/devices.json
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch

from motes.config import RunConfig
from motes.core.axes import Tensor
from motes.core.environment import environment
from motes.core.files import write_json
from motes.data import cannonballs
from motes.evaluation.metrics import best_order, reorder
from motes.models import elbo as objective
from motes.models.checkpoint import load_with_config
from motes.models.model import build
from motes.queries import forecast, infer
from motes.training.gpu import networks as stacked
from motes.training.gpu.replicas import Groups, Replicas, stack_parameters
from motes.training.inputs import make_dataset
from motes.training.presets import PRESETS
from motes.training.step import Trainer
from motes.training.train import fast_arithmetic

# Of the largest relative difference (Frobenius norms). Forward products read float16, which loses
# up to 2^-11 of a factor, gradients bfloat16, up to 2^-9; both at random, through some 30 products.
VALUES, GRADIENTS = 2e-3, 1e-2
# Nats of the mean bound over the last of a hundred steps: two runs whose gradients differ by
# thousandths go apart, but must learn alike. One per cent of some thousand nats.
LEARNING = 1e-2
# Queries are float32 on both; a position is a sum of a thousand products over thirty frames.
PIXELS = 1e-2


def relative(ours: Tensor, reference: Tensor) -> float:
    """The norm of the difference over the norm of the reference."""
    gap = ours.detach().cpu().double() - reference.detach().cpu().double()
    return float(gap.norm() / reference.detach().cpu().double().norm())


def networks(config: RunConfig, device: str, kind: torch.dtype) -> tuple[dict[str, Tensor], ...]:
    """Values and gradients of two replicas on one batch."""
    generator = torch.Generator().manual_seed(0)
    models = [build(dataclasses.replace(config, seed=seed)) for seed in range(2)]
    stacks = {
        name: stack.detach().to(device, kind).requires_grad_()
        for name, stack in stack_parameters(models).items()
        if not name.startswith("dynamics.")
    }
    parts = {
        part: {n.removeprefix(part): s for n, s in stacks.items() if n.startswith(part)}
        for part in ("inference.", "renderer.")
    }
    clips, data = config.batch_size, config.data
    frames_each, objects = data.num_frames, data.max_objects
    size = (config.data.height, config.data.width)
    frames = (torch.rand(2, clips, frames_each, *size, generator=generator) < 0.01).to(device, kind)
    counts = torch.randint(1, objects + 1, (2, clips), generator=generator).to(device)
    noise = torch.randn(2, clips, objects, frames_each, 2, generator=generator).to(device, kind)
    factors = stacked.factors(stacks)
    means, scales = stacked.encode(
        parts["inference."],
        factors["inference.from_image"],
        factors["inference.recurrent"],
        frames,
        counts,
        config.model.scale_floor,
    )
    present = torch.arange(objects, device=device) < counts[..., None]
    positions = means + scales * noise
    nats = stacked.log_likelihood(
        parts["renderer."], factors["renderer.to_image"], positions, present, frames
    )
    loss = nats.sum() + means.square().sum() + scales.log().sum()
    gradients = torch.autograd.grad(loss, list(stacks.values()))
    values = {"means": means, "scales": scales, "log likelihood": nats}
    return values, dict(zip(stacks, gradients, strict=True))


def compare_networks(config: RunConfig) -> dict[str, Any]:
    """Relative differences from float64, of float32 on the CPU and of the GPU."""
    exact = networks(config, "cpu", torch.float64)
    record: dict[str, Any] = {}
    for name, device in (("cpu, float32", "cpu"), ("gpu", "cuda")):
        found = networks(config, device, torch.float32)
        pairs = zip(("values", "gradients"), found, exact, strict=True)
        record[name] = {
            which: {key: relative(ours[key], reference[key]) for key in reference}
            for which, ours, reference in pairs
        }
    return record


def compare_training(config: RunConfig, steps: int) -> dict[str, Any]:
    """The mean terms of the last fifth of some steps, on both devices."""
    terms = {}
    for device in ("cpu", "cuda"):
        place = torch.device(device)
        trainer = Trainer(config, make_dataset(config, place).training, place)
        advance = Replicas([trainer]).advance if device == "cuda" else trainer.advance
        for step in range(steps):
            if step == steps * 4 // 5:
                trainer.mean_terms()
            advance()
        terms[device] = {n: float(v) for n, v in trainer.mean_terms()._asdict().items()}
    gap = {name: terms["cuda"][name] - value for name, value in terms["cpu"].items()}
    whole = abs(sum(terms["cpu"].values()))
    return {"steps": steps, **terms, "relative": abs(sum(gap.values())) / whole}


def compare_replicas(config: RunConfig, steps: int) -> dict[str, Any]:
    """The last of eight replicas against its single run on the GPU, after some steps."""
    device = torch.device("cuda")
    data = make_dataset(config, device).training
    seeds = [dataclasses.replace(config, seed=seed) for seed in range(8)]
    together = [Trainer(seed, data, device) for seed in seeds]
    alone = Trainer(seeds[-1], data, device)
    many, one = Groups(together), Replicas([alone])
    for _ in range(steps):
        many.advance()
        one.advance()
    many.synchronize()
    ours, theirs = (objective.BoundTerms(*t.mean_terms()) for t in (together[-1], alone))
    return {
        "steps": steps,
        "bound together": float(ours.weighted(1.0)),
        "bound alone": float(theirs.weighted(1.0)),
        "relative": abs(float(ours.weighted(1.0) / theirs.weighted(1.0)) - 1),
    }


def compare_queries(name: str, num_clips: int) -> dict[str, float]:
    """The largest differences of answers in pixels, whichever of two equal balls is the first."""
    clips = cannonballs(num_clips, (2,), seed=77)
    answers = []
    for device in ("cpu", "cuda"):
        model, _ = load_with_config(name, device=torch.device(device))
        frames = clips.frames.float().to(device)
        answers.append((infer(model, frames, 2), forecast(model, frames[:, :5], 2, 25)))
    gaps = {}
    for what, here, there in zip(("infer", "forecast"), *answers, strict=True):
        ours, theirs = there.path_pixels.cpu(), here.path_pixels
        ours = reorder(ours, best_order(ours, theirs))
        gaps[f"{name}, {what}"] = float((ours - theirs).abs().max())
    return gaps


def main() -> int:
    """Compares, prints and, if asked, writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", nargs="+", default=["cannonballs-48", "cannonballs-structured"])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here; this compares the two devices of one machine", file=sys.stderr)
        return 2
    config, steps = PRESETS["paper-smoke" if arguments.smoke else "paper"], 100
    small = dataclasses.replace(PRESETS["paper-small"], data=PRESETS["paper-smoke"].data)
    queries: dict[str, float] = {}
    for name in arguments.models:
        queries |= compare_queries(name, 8)
    with fast_arithmetic():
        record: dict[str, Any] = {
            "what": "the same work on CPU and GPU; relative differences are of Frobenius norms",
            "environment": environment(torch.device("cuda")),
            "limits": {
                "values": VALUES, "gradients": GRADIENTS, "learning": LEARNING, "pixels": PIXELS,
            },
            "networks": compare_networks(config),
            "training": compare_training(small, steps),
            "replicas": compare_replicas(small, steps),
            "queries_px": queries,
        }  # fmt: skip
    gpu = record["networks"]["gpu"]
    within = {
        "values": max(gpu["values"].values()) < VALUES,
        "gradients": max(gpu["gradients"].values()) < GRADIENTS,
        "training": record["training"]["relative"] < LEARNING,
        "replicas": record["replicas"]["relative"] < LEARNING,
        "queries": max(queries.values()) < PIXELS,
    }
    record["within"] = within
    if arguments.out is not None:
        write_json(arguments.out, record)
    print(json.dumps(record, indent=1))
    return 0 if all(within.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
