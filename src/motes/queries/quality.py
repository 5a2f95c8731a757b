"""How good a trained model is, in words: from its answers about clips of its own recording.

No truth is needed: what moves in the frames is compared with what the model renders, the positions
with the learned motion, and the expected error is that of the posterior.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from motes.core.axes import Float, Tensor
from motes.core.files import write_json
from motes.queries.answer import Answer
from motes.queries.fit import MANY_PIXELS, MOSTLY_NEARBY, FitStatistics

FILE = "quality.json"  # in a run folder
GOOD, FAIR = 0.85, 0.6  # of explained and detected shares
TOO_MUCH_GOOD, TOO_MUCH_FAIR = 0.3, 0.6  # of what is rendered or seen alone
RESIDUAL_GOOD, RESIDUAL_FAIR = 1.5, 4.0  # pixels of the clips
IMPROVING = 0.02  # gain of a share since the check before: training was not at its end
Row = Float[Tensor, " B"]


class ClipErrors(NamedTuple):
    """Sums over the detections of each clip."""

    detections: Row
    residual: Row  # squared distance of positions from the smoothed path, pixels
    expected: Row  # trace of the covariance of positions, squared pixels

    @staticmethod
    def of(answer: Answer) -> "ClipErrors":
        """Return the sums of an answer."""
        found = answer.found
        away = (answer.pixels - answer.path_pixels).square().sum(-1)
        trace = answer.pixel_covariances.diagonal(dim1=-2, dim2=-1).sum(-1)
        sums = [values.where(found, 0).double().sum((1, 2)).cpu() for values in (away, trace)]
        return ClipErrors(found.sum((1, 2)).double().cpu(), *sums)


class Quality(NamedTuple):
    """How well a model explains clips of its recording; lengths are in pixels of the clips."""

    num_clips: int
    explained: float  # share of what moves that is explained by rendered objects
    unexpected: float  # share of what moves or is rendered: seen or rendered alone
    detected: float  # share of the frames of each object in which it was detected
    foreground: float  # share of all pixels that differ from the background
    nearby: float  # share of the unexplained pixels that are close to a rendered object
    residual: float  # root mean square distance of detections from the smoothed path
    expected_error: float  # root mean square error of a detected position, by the posterior
    gain: float = 0.0  # of the explained share since the check before
    networks: bool = False  # whether networks were trained, which detect objects in every frame

    @staticmethod
    def of(
        statistics: FitStatistics,
        errors: ClipErrors,
        before: "Quality | None" = None,
        networks: bool = False,
    ) -> "Quality":
        """Return the means over clips.

        Law: expected_error agrees with the error against the truth
        (test_a_good_run_says_so_and_expects_the_error_it_makes).
        """
        count = max(float(errors.detections.sum()), 1.0)
        shares = {
            name: float(getattr(statistics, name).double().mean())
            for name in ("explained", "unexpected", "detected", "foreground", "nearby")
        }
        return Quality(
            num_clips=len(statistics.explained),
            **shares,
            residual=math.sqrt(float(errors.residual.sum()) / count),
            expected_error=math.sqrt(float(errors.expected.sum()) / count),
            gain=0.0 if before is None else shares["explained"] - before.explained,
            networks=networks,
        )

    @property
    def verdict(self) -> str:
        """Return "good", "fair" or "poor"."""
        for word, share, too_much, residual in (
            ("good", GOOD, TOO_MUCH_GOOD, RESIDUAL_GOOD),
            ("fair", FAIR, TOO_MUCH_FAIR, RESIDUAL_FAIR),
        ):
            enough = min(self.explained, self.detected) >= share and self.foreground > 0
            if enough and self.unexpected <= too_much and self.residual <= residual:
                return word
        return "poor"

    @property
    def advice(self) -> str:
        """Return what to try, naming an option; empty if the model is good."""
        if self.verdict == "good":
            return ""
        if self.foreground <= 0:
            return "nothing moves in the clips: give motes prepare a lower --threshold"
        if self.foreground > MANY_PIXELS:
            return "most of the picture changes: give motes prepare a --crop or a --threshold"
        if self.gain > IMPROVING:
            return "it was still improving: train with more --iterations"
        if self.networks:
            return (
                "networks need long training: more --iterations, or --preset paper-distilled, "
                "which starts from a sprite model"
            )
        if self.explained < GOOD and self.nearby > MOSTLY_NEARBY:
            return (
                "objects are larger than the learned sprite: train with more --iterations, or give "
                "motes prepare a smaller --size"
            )
        if self.explained < GOOD and self.detected >= GOOD:
            return (
                "more moves than is looked for: give motes prepare a larger --num-objects, or "
                "leave things out with --mask"
            )
        if self.detected < GOOD:
            return (
                "objects are missing in many frames: give motes prepare a smaller --num-objects, "
                "or train with --preset sprites-occluded if something hides them"
            )
        if self.unexpected > TOO_MUCH_GOOD:
            return "the learned object is larger than the real ones: train with more --iterations"
        return "objects jump from frame to frame: keep more frames, with --fps of motes prepare"

    def __str__(self) -> str:
        """Return the quality in words, with advice."""
        words = (
            f"{self.verdict}: the model explains {100 * self.explained:.0f} % of what moves and "
            f"finds objects in {100 * self.detected:.0f} % of their frames; positions are "
            f"{self.residual:.2f} px from a smooth path, their expected error is "
            f"{self.expected_error:.2f} px"
        )
        return f"{words}. Try: {self.advice}" if self.advice else words

    def record(self) -> dict[str, Any]:
        """Return all numbers with the verdict and the words, for JSON."""
        return {**self._asdict(), "verdict": self.verdict, "in_words": str(self)}

    def save(self, folder: Path) -> None:
        """Write the quality into a run folder."""
        write_json(folder / FILE, self.record())

    @staticmethod
    def load(folder: Path) -> "Quality | None":
        """Return the quality in a run folder; None if it has none that can be read."""
        try:
            content = json.loads((folder / FILE).read_text(encoding="utf-8"))
            return Quality(**{name: content[name] for name in Quality._fields})
        except (OSError, ValueError, KeyError, TypeError):
            return None
