"""Stored records and arrays that figures are drawn from, and clips regenerated from seeds."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from experiments.records import ROOT, record_paths
from motes.core.errors import InputError
from motes.data import Clips, cannonballs
from motes.evaluation.evaluate import query_masks
from motes.evaluation.labels import PREDICTORS, ordered_records
from motes.output.figures import true_view
from motes.output.plots import FORECAST, INFERRED, INTERPOLATED, View

# Records that `motes evaluate` does not write.
SCRIPTS = {
    "training": "experiments.paper_training.watch_training",
    "ed-lstm": "experiments.ed_lstm.train_ed_lstm",
    "swap": "experiments.paper_figures.stored_examples",
}
STYLES = {"infer": INFERRED, "forecast": FORECAST, "interpolation": INTERPOLATED}
NUM_CONTEXT = 5
EXAMPLE_SEED = 1_000_000  # of the clips that are shown, also by the ED-LSTM


@dataclass(frozen=True)
class Stored:
    """Records of all experiments, or of one folder, and the model whose examples are shown."""

    model: str
    folder: Path | None = None

    def path(self, name: str, suffix: str) -> Path:
        """Return the file of a record or of its arrays, which may not exist."""
        folder = self.folder or ROOT / "experiments" / "results_table"
        there = record_paths(suffix) if self.folder is None else {}
        return there.get(name, folder / f"{name}{suffix}")

    def record(self, name: str) -> dict[str, Any]:
        """Return a stored record."""
        path = self.path(name, ".json")
        try:
            found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise InputError(f"no {path}; {self._remedy(name)}") from None
        except ValueError:
            raise InputError(f"{path} is no complete record; {self._remedy(name)}") from None
        return found

    @property
    def records(self) -> dict[str, dict[str, Any]]:
        """Return the stored records of models and baselines."""
        there = [name for name in PREDICTORS if self.path(name, ".json").is_file()]
        return ordered_records({name: self.record(name) for name in there})

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return stored arrays; images are converted back to probabilities."""
        path = self.path(name, ".npz")
        if not path.is_file():
            raise InputError(f"no {path}; {self._remedy(name)}")
        with np.load(path, allow_pickle=False) as file:
            return {key: _unpacked(file[key]) for key in file.files}

    @cached_property
    def examples(self) -> dict[str, np.ndarray]:
        """Return the model's answers for the example clips."""
        return self.arrays(self.model)

    @cached_property
    def clips(self) -> Clips:
        """Return the example clips, regenerated from their seed."""
        record, number = self.record(self.model), len(self.examples["infer_pixels"])
        height, width = record["frame_size"]
        if record["test_seed"] is None:
            raise InputError(
                f"{self.model} was scored on a file of clips; figures need clips of a seed"
            )
        counts = tuple(int(count) for count in record["by_count"])
        return cannonballs(number, counts, record["num_frames"], (height, width), EXAMPLE_SEED)

    def with_count(self, count: int) -> list[int]:
        """Return the indices of the example clips with a number of objects."""
        assert self.clips.num_objects is not None
        return (self.clips.num_objects == count).nonzero()[:, 0].tolist()

    def true_frames(self, clip: int) -> np.ndarray:
        """Return the frames of a clip."""
        frames: np.ndarray = self.clips.frames[clip].float().numpy()
        return frames

    def truth(self, clip: int) -> View:
        """Return the true trajectories of a clip."""
        return true_view(self.clips, clip)

    def answer(self, question: str, clip: int) -> View:
        """Return an answer's trajectories; frames are those of the mean."""
        assert self.clips.num_objects is not None
        present, frames = slice(int(self.clips.num_objects[clip])), self.drawn(question, clip)
        observed = query_masks(len(frames))[question].numpy()
        fields = ("pixels", "pixel_covariances", "path_pixels", "path_pixel_covariances")
        arrays = {field: self.examples[f"{question}_{field}"][clip, present] for field in fields}
        return View(
            style=STYLES[question],
            observed=observed,
            detected=np.broadcast_to(observed, arrays["pixels"].shape[:2]),
            frames=frames,
            mean_frames=frames,
            **arrays,
        )

    def drawn(self, question: str, clip: int) -> np.ndarray:
        """Return the frames rendered from the mean path."""
        frames: np.ndarray = self.examples[f"{question}_mean_frames"][clip]
        return frames

    @cached_property
    def recurrent_frames(self) -> dict[str, np.ndarray]:
        """Return the example clips continued by the ED-LSTM: observed frames, then its own.

        Keys name its training: `frames`, fed true frames as in the paper, and `own_frames`.
        """
        kinds = {name: frames.copy() for name, frames in self.arrays("ed-lstm").items()}
        for frames in kinds.values():
            for clip, continued in enumerate(frames):
                continued[:NUM_CONTEXT] = self.true_frames(clip)[:NUM_CONTEXT]
        return kinds

    def _remedy(self, name: str) -> str:
        """Return the commands that write a missing record and its arrays."""
        if name in SCRIPTS:
            return f"python -m {SCRIPTS[name]} writes it"
        return (
            f"run first: motes evaluate {name} --out {self.path(name, '.json')} and "
            "python -m experiments.paper_figures.stored_examples "
            f"{name} {self.path(name, '.npz')}"
        )


def _unpacked(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.uint8:
        return values.astype(np.float32) / 255
    return values.astype(np.float32) if values.dtype == np.float16 else values
