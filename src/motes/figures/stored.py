"""What figures are drawn from: stored records and arrays, and clips that a seed makes again."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from motes.core.errors import InputError
from motes.data import Clips, cannonballs
from motes.evaluation.labels import CONTENDERS, contenders
from motes.output.plots import FORECAST, INFERRED, INTERPOLATED, TRUTH, Style, View

# What `motes evaluate` does not make.
TOOLS = {"training": "tools/watch_training.py", "ed-lstm": "tools/train_ed_lstm.py"}
STYLES = {"infer": INFERRED, "forecast": FORECAST, "interpolation": INTERPOLATED}
NUM_CONTEXT = 5


@dataclass(frozen=True)
class Stored:
    """The folder of results, and the model whose examples are shown."""

    folder: Path
    model: str

    def record(self, name: str) -> dict[str, Any]:
        """A stored record."""
        path = self.folder / f"{name}.json"
        try:
            found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise InputError(f"no {path}; {self._remedy(name)}") from None
        except ValueError:
            raise InputError(f"{path} is no whole record; {self._remedy(name)}") from None
        return found

    @property
    def records(self) -> dict[str, dict[str, Any]]:
        """The records of all contenders that are stored."""
        there = [name for name in CONTENDERS if (self.folder / f"{name}.json").is_file()]
        return contenders({name: self.record(name) for name in there})

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Stored arrays; pictures become probabilities again."""
        path = self.folder / "figures" / f"{name}.npz"
        if not path.is_file():
            raise InputError(f"no {path}; {self._remedy(name)}")
        with np.load(path, allow_pickle=False) as file:
            return {key: _unpacked(file[key]) for key in file.files}

    @cached_property
    def examples(self) -> dict[str, np.ndarray]:
        """The answers of the model to the example clips."""
        return self.arrays(self.model)

    @cached_property
    def clips(self) -> Clips:
        """The example clips, made again from their seed."""
        record, number = self.record(self.model), len(self.examples["infer_pixels"])
        height, width = record["frame_size"]
        if record["test_seed"] is None:
            raise InputError(f"{self.model} was scored on a file of clips; figures need a seed")
        counts = tuple(int(count) for count in record["by_count"])
        return cannonballs(
            number, counts, record["num_frames"], (height, width), record["test_seed"]
        )

    def with_count(self, count: int) -> list[int]:
        """The example clips with so many objects."""
        assert self.clips.num_objects is not None
        return (self.clips.num_objects == count).nonzero()[:, 0].tolist()

    def true_frames(self, clip: int) -> np.ndarray:
        """One clip as it was."""
        frames: np.ndarray = self.clips.frames[clip].float().numpy()
        return frames

    def truth(self, clip: int) -> View:
        """One clip as it really was."""
        return true_view(self.clips, clip)

    def told(self, question: str, clip: int) -> View:
        """One clip as an answer tells it; pictures are of the mean."""
        assert self.clips.num_objects is not None
        present, frames = slice(int(self.clips.num_objects[clip])), self.drawn(question, clip)
        style: Style = STYLES[question]
        time = np.arange(len(frames))
        seen = {
            "infer": time >= 0,
            "forecast": time < NUM_CONTEXT,
            "interpolation": (time < NUM_CONTEXT) | (time >= len(time) - NUM_CONTEXT),
        }
        fields = ("pixels", "pixel_covariances", "path_pixels", "path_pixel_covariances")
        pixels, spread, path, path_spread = (
            self.examples[f"{question}_{field}"][clip, present] for field in fields
        )
        return View(
            style, frames, frames, pixels, spread, path, path_spread, observed=seen[question]
        )

    def drawn(self, question: str, clip: int) -> np.ndarray:
        """The frames of the mean path."""
        frames: np.ndarray = self.examples[f"{question}_mean_frames"][clip]
        return frames

    @cached_property
    def recurrent_frames(self) -> dict[str, np.ndarray]:
        """The example clips as the ED-LSTM goes on with them: seen frames, then its own.

        By its training: `frames`, fed true frames as in the paper, and `own_frames`.
        """
        kinds = {name: frames.copy() for name, frames in self.arrays("ed-lstm").items()}
        for frames in kinds.values():
            for clip, told in enumerate(frames):
                told[:NUM_CONTEXT] = self.true_frames(clip)[:NUM_CONTEXT]
        return kinds

    def _remedy(self, name: str) -> str:
        """How to get what is not there."""
        if name in TOOLS:
            return f"{TOOLS[name]} of the source tree makes it"
        return (
            f"run first: motes evaluate {name} --out {self.folder / name}.json; "
            f"experiments/paper_figures/stored_examples.py {name} {self.folder / 'figures' / name}.npz"
        )


def true_view(clips: Clips, clip: int) -> View:
    """One clip as it really was."""
    assert clips.num_objects is not None
    assert clips.positions is not None
    assert clips.clean is not None
    present, frames = slice(int(clips.num_objects[clip])), clips.frames[clip].float().numpy()
    pixels, path = (points[clip, present].numpy() for points in (clips.positions, clips.clean))
    certain = np.zeros((*pixels.shape, 2), dtype=pixels.dtype)
    seen = np.ones(len(frames), dtype=bool)
    return View(TRUTH, frames, frames, pixels, certain, path, certain, seen)


def _unpacked(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.uint8:
        return values.astype(np.float32) / 255
    return values.astype(np.float32) if values.dtype == np.float16 else values
