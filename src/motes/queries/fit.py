"""How well a model explains the frames of a query, and what is wrong where it does not.

Five statistics of each clip are compared with those of clips like the ones that the model learned
from (`FitReference`). Foreground is what differs from the model's background.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import max_pool2d

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError
from motes.core.files import write_json
from motes.models.model import Model
from motes.queries.answer import Fit
from motes.queries.law_test import departure_from_law
from motes.queries.scatter import Scatter

FILE = "fit.json"  # in the folder of a model
MAX_Z = 6.0  # a clip with a larger score does not fit
# Of the law test, whose distribution is known: chi-squared, one false alarm in 20,000 clips.
MAX_LAW_Z = 4.8
# Smallest standard deviations, so that a statistic that never varies does not alarm at once.
MIN_SD = (0.01, 0.01, 0.15, 0.02, 0.5)
# Mean and standard deviation of the root of a chi-squared with three degrees of freedom: the law
# test of clips that fit, for references that were stored without it.
LAW_TEST = (1.596, 0.673)
MIN_CLIPS = 20  # of a reference by which clips are refused; fewer do not show how clips differ
CHUNK_FRAMES = 256  # rendered together, which bounds memory
OFF_FRAME = 1e4  # latent units; an object there lights no pixel
MIN_CONTRAST = 0.12  # of foreground in frames of grey levels, 30 of 256
NEAR = 3  # pixels around a rendered object that belong to it if it is larger than learned
MANY_PIXELS = 0.3  # share of the frame that objects do not fill
# Of `FitStatistics.badness`, without a reference.
PLAIN_LIMITS = (0.4, 0.6, float("inf"), 0.7, float("inf"))
ENOUGH_EXPLAINED = 0.9  # less asks for more objects
MOSTLY_NEARBY = 0.75


class FitStatistics(NamedTuple):
    """Shares of the pixels of each clip's observed frames, and its motion."""

    explained: Float[Tensor, " B"]  # of the foreground, by rendered objects; 1 without foreground
    unexpected: Float[Tensor, " B"]  # of foreground and rendered objects: seen or rendered alone
    motion: Float[Tensor, " B"]  # log density of a detected position under the law of motion, nats
    detected: Float[Tensor, " B"]  # of the objects' observed frames
    foreground: Float[Tensor, " B"]  # of all pixels
    nearby: Float[Tensor, " B"]  # of the unexplained foreground: close to a rendered object
    departure: Float[Tensor, " B"]  # from the law of motion, see `departure_from_law`

    def badness(self) -> Float[Tensor, "B 5"]:
        """Return the statistics that are compared with a reference, larger being worse."""
        parts = (1 - self.explained, self.unexpected, -self.motion, 1 - self.detected)
        return torch.stack((*parts, self.departure), 1)


@dataclass(frozen=True)
class FitReference:
    """Mean and standard deviation of `FitStatistics.badness` of clips that fit, by count."""

    mean: Float[Tensor, "Nmax 5"]
    sd: Float[Tensor, "Nmax 5"]
    num_frames: int  # of the clips
    scatter: Scatter | None = None  # of detections; None: unknown
    num_clips: int = MIN_CLIPS  # in shipped models more

    @staticmethod
    def of(
        statistics: FitStatistics,
        num_objects: Int[Tensor, " B"],
        num_frames: int,
        scatter: Scatter | None = None,
    ) -> "FitReference":
        """Return the reference of clips that fit; a count without clips has that of all."""
        values, means, sds = statistics.badness().double(), [], []
        for count in range(1, int(num_objects.max()) + 1):
            some = values[num_objects == count] if (num_objects == count).sum() > 1 else values
            means.append(some.mean(0))
            sds.append(some.std(0, unbiased=False))
        return FitReference(torch.stack(means), torch.stack(sds), num_frames, scatter, len(values))

    def score(
        self,
        statistics: FitStatistics,
        num_objects: Int[Tensor, " B"],
        num_frames: Int[Tensor, " B"],
    ) -> Float[Tensor, "B 5"]:
        """Return how many standard deviations each statistic is worse than the reference.

        A shorter clip averages over fewer frames, so its standard deviation is larger.
        """
        row = (num_objects - 1).clamp(max=len(self.mean) - 1).cpu()
        sd = self.sd[row].maximum(torch.tensor(MIN_SD, dtype=torch.float64))
        short = (self.num_frames / num_frames.cpu().double()).clamp(min=1).sqrt()
        score: Tensor = (statistics.badness().cpu().double() - self.mean[row]) / sd
        averages = torch.tensor((1.0, 1.0, 1.0, 1.0, 0.0), dtype=score.dtype)
        return score / short[:, None] ** averages

    def save(self, folder: Path) -> None:
        """Write the reference into the folder of a model."""
        content: dict[str, Any] = {"mean": self.mean.tolist(), "sd": self.sd.tolist()}
        content |= {"num_frames": self.num_frames, "num_clips": self.num_clips}
        if self.scatter is not None:
            content["overdispersion"] = self.scatter.overdispersion
            content["scatter"] = self.scatter.covariance.tolist()
        write_json(folder / FILE, content)

    @staticmethod
    def load(folder: Path) -> "FitReference | None":
        """Return the reference in the folder of a model; None if it has none."""
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            mean, sd = (
                torch.tensor([(*row, *[usual][len(row) - 4 :]) for row in content[name]]).double()
                for name, usual in zip(("mean", "sd"), LAW_TEST, strict=True)
            )
            scatter = None
            if "scatter" in content:
                covariance = torch.tensor(content["scatter"]).double().reshape(2, 2)
                scatter = Scatter(float(content["overdispersion"]), covariance)
            num_clips = int(content.get("num_clips", MIN_CLIPS))
            found = FitReference(mean, sd, int(content["num_frames"]), scatter, num_clips)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise InputError(f"{path} cannot be read ({error}); delete it") from None
        if found.mean.shape != found.sd.shape or found.mean.shape[1:] != (5,):
            raise InputError(f"{path} holds other numbers than expected; delete it")
        return found


@torch.no_grad()
def measure_fit(
    model: Model,
    frames: Float[Tensor, "B T height width *channels"],
    observed: Bool[Tensor, "B T"],
    positions: Float[Tensor, "B N T 2"],
    detected: Bool[Tensor, "B N T"],
    num_objects: Int[Tensor, " B"],
    appearance: Any = None,
) -> FitStatistics:
    """Return the statistics of clips, given the inferred positions in the same frames.

    Only detected objects are rendered, at their mean positions.
    """
    present, like = model.present(num_objects), model.pixel_matrix
    drawn = torch.where(detected[..., None], positions, OFF_FRAME).to(like.dtype)
    nothing = torch.zeros_like(present[:1])
    background = model.render(torch.zeros_like(drawn[:1, :, :1]), nothing)[0, 0]
    contrast = MIN_CONTRAST if model.renderer.grey_levels else 0.5

    def difference(one: Tensor, other: Tensor) -> Tensor:
        away = (one - other).abs()
        return away if model.channels == 1 else away.amax(-1)

    sums = torch.zeros(6, len(frames), dtype=torch.float64, device=frames.device)
    for start in range(0, frames.shape[1], CHUNK_FRAMES):
        time = slice(start, start + CHUNK_FRAMES)
        v, flags = frames[:, time], observed[:, time, None, None]
        p = model.render(drawn[:, :, time], present, appearance)
        away = difference(v, background)
        seen, shown = away > contrast, difference(p, background) > contrast
        explained = seen & (difference(v, p) <= (0.5 * away).clamp(min=contrast))
        missed = seen & ~explained
        around = max_pool2d(shown.to(like.dtype), 2 * NEAR + 1, 1, NEAR) > 0
        parts = (seen, explained, missed, missed & around, shown & ~seen, shown | seen)
        sums += torch.stack([(part & flags).sum((1, 2, 3)) for part in parts])
    seen, explained, missed, near, absent, either = sums
    there = detected & present[..., None] & observed[:, None]
    wanted = (present[..., None] & observed[:, None]).sum((1, 2)).clamp(min=1)
    # Of each object by itself: contacts are too slow to test, and clips differ in their number.
    log_density = getattr(model.dynamics, "search_log_density", model.dynamics.log_density)
    nats: Tensor = log_density(positions.double(), present, there)
    return FitStatistics(
        explained=torch.where(seen > 0, explained / seen.clamp(min=1), 1.0),
        unexpected=(missed + absent) / either.clamp(min=1),
        motion=nats / there.sum((1, 2)).clamp(min=1),
        detected=there.sum((1, 2)) / wanted,
        foreground=seen / (observed.sum(1) * like.new_tensor(model.image_size).prod()).clamp(min=1),
        nearby=near / missed.clamp(min=1),
        departure=departure_from_law(log_density, positions.double(), present, there, _unit(model)),
    )


def _unit(model: Model) -> float:
    """Return the latent length of one pixel."""
    return float(model.pixel_matrix.double().det().abs() ** -0.5)


def judge_fit(
    model: Model,
    statistics: FitStatistics,
    num_objects: Int[Tensor, " B"],
    num_frames: Int[Tensor, " B"],
) -> Fit:
    """Return which clips fit, by the reference beside the model or, without one, by plain limits.

    Args:
        model: with the folder of its reference.
        statistics: of the clips.
        num_objects: in each clip.
        num_frames: that were observed of each clip.
    """
    reference = None if model.folder is None else FitReference.load(model.folder)
    if reference is None:
        plain = torch.tensor(PLAIN_LIMITS).to(statistics.explained)
        scores = torch.where(statistics.badness() > plain, torch.inf, 0.0).cpu()
        z_score = torch.full(num_objects.shape, torch.nan)
    else:
        scores = reference.score(statistics, num_objects, num_frames)
        z_score = scores.amax(1).float()
    # Frames without any foreground fit no model of objects.
    limits = scores.new_tensor((MAX_Z, MAX_Z, MAX_Z, MAX_Z, MAX_LAW_Z))
    fits = (scores <= limits).all(1) & (statistics.foreground > 0).cpu()
    causes = (
        "" if ok else _cause(model, FitStatistics(*(part[clip] for part in statistics)), row)
        for clip, (ok, row) in enumerate(zip(fits.tolist(), scores.unbind(0), strict=True))
    )
    explained, unexpected = (part.float().cpu() for part in statistics[:2])
    sure = reference is not None and reference.num_clips >= MIN_CLIPS
    return Fit(explained, unexpected, z_score, fits, tuple(causes), sure)


def _cause(model: Model, clip: FitStatistics, scores: Float[Tensor, " 5"]) -> str:
    """Return the likely reason why a clip does not fit, and what to do."""
    learned, others = model.max_objects, scores[[0, 1, 3]].max()
    if not clip.foreground > 0:
        return "nothing differs from the background; check the input"
    if clip.foreground > MANY_PIXELS:
        return (
            "most of the picture differs from the background (inverted frames, another scene, or "
            "a camera that moves); prepare the recording with motes prepare and train on it"
        )
    if scores[[2, 4]].max() > others and clip.explained > 0.5:
        return (
            "objects move by another law than the learned one, or the camera moves; train a model "
            "on such clips"
        )
    if clip.explained < ENOUGH_EXPLAINED and clip.nearby > MOSTLY_NEARBY:
        return "objects have another size than learned; scale the frames, or train on such clips"
    if clip.explained < ENOUGH_EXPLAINED and clip.detected > ENOUGH_EXPLAINED:
        return (
            f"more objects than were looked for (learned: up to {learned}), or objects of another "
            "kind; give num_objects, or train on such clips"
        )
    if clip.explained < ENOUGH_EXPLAINED:
        return "objects of another kind, or noise; train a model on such clips"
    return "objects are smaller or fewer than expected, or occluded; give num_objects or train"
