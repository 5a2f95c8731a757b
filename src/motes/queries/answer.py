"""The result of a query."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from motes.core.axes import Bool, Float, Int, Tensor
from motes.core.errors import InputError

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    "clip", "frame", "particle", "x", "y", "sd_x", "sd_y", "cov_xy", "vx", "vy", "observed", "seen",
)  # fmt: skip
REFUSED_Z = 20.0  # `Fit.z_score` of another kind of clips; the model's own have at most 6


@dataclass(frozen=True)
class Fit:
    """How well a model explains the observed frames of each clip."""

    explained: Float[Tensor, " B"]  # share of the foreground that rendered objects explain
    unexpected: Float[Tensor, " B"]  # share of foreground and rendered objects: one without other
    z_score: Float[Tensor, " B"]  # against clips like those learned from; NaN if unknown
    fits: Bool[Tensor, " B"]
    causes: tuple[str, ...]  # why a clip does not fit, and what to do; empty if it does
    sure: bool = True  # enough clips are known to fit for others to be refused

    @property
    def warning(self) -> str | None:
        """One line with the most frequent cause, if clips do not fit; else None."""
        bad = (~self.fits).nonzero()[:, 0].tolist()
        if not bad:
            return None
        causes = [self.causes[clip] for clip in bad]
        explained = float(self.explained[bad].mean())
        return (
            f"{len(bad)} of {len(self.causes)} clips do not fit this model, which explains "
            f"{explained:.0%} of their foreground: {max(causes, key=causes.count)}"
        )

    @property
    def refusal(self) -> str | None:
        """One line that says why the clips are of another kind than the model's; else None.

        They are if the z-score of most clips is beyond REFUSED_Z: the numbers would mean nothing.
        """
        other = (~self.fits) & (self.z_score > REFUSED_Z)
        if not self.sure or 2 * int(other.sum()) <= len(self.causes):
            return None
        score = float(self.z_score[other].median())
        return (
            f"{self.warning} (z-score {score:.0f}, refused beyond {REFUSED_Z:.0f}); or use motes "
            "track, which needs no model, or --force"
        )

    def require_same_kind(self) -> None:
        """Raise `InputError` with the refusal, if there is one."""
        if self.refusal is not None:
            raise InputError(self.refusal)


@dataclass(frozen=True, repr=False)
class Answer:
    """The posterior of every object's position in every frame, observed or not.

    Objects keep their index n in every field; fields of absent objects are NaN (component: -1).
    `positions` and `pixels` describe a_t, the position that is rendered: q's posterior where the
    frame was observed, the predictive distribution (Sigma_A included) where it was not.
    `path_pixels` describes B h_t, the noise-free path given all observations: the track.
    """

    positions: Float[Tensor, "B N T 2"]
    covariances: Float[Tensor, "B N T 2 2"]
    velocities: Float[Tensor, "B N T 2"]  # of the path, latent units per frame, [Choice 12]
    pixels: Float[Tensor, "B N T 2"]
    pixel_covariances: Float[Tensor, "B N T 2 2"]
    pixel_velocities: Float[Tensor, "B N T 2"]  # of the path, pixels per frame
    path_pixels: Float[Tensor, "B N T 2"]
    path_pixel_covariances: Float[Tensor, "B N T 2 2"]
    component: Int[Tensor, "B N"]  # the most likely initial-state component
    component_probabilities: Float[Tensor, "B N K"]
    observed: Bool[Tensor, "B T"]
    found: Bool[Tensor, "B N T"]  # detected, inside the frame; false where occluded
    num_objects: Int[Tensor, " B"]
    count_probabilities: Float[Tensor, "B Nmax"] | None  # column n is n + 1 objects
    draw_frames: Callable[[], Float[Tensor, "B T height width *channels"]]
    draw_mean_frames: Callable[[], Float[Tensor, "B T height width *channels"]]
    draw_paths: Callable[[], Float[Tensor, "S B N T 2"]]
    measure: Callable[[], Any] = lambda: None  # the statistics behind `fit`
    judge: Callable[[], Fit | None] = lambda: None
    forks: bool = False  # the law has events: `draws` show branches that moments cannot

    def __repr__(self) -> str:
        """Return the shape of the query in a line."""
        clips, objects, frames, _ = self.pixels.shape
        observed = f"{int(self.observed.sum())} of {self.observed.numel()}"
        return f"Answer(clips={clips}, objects={objects}, frames={frames}, observed={observed})"

    def cpu(self) -> "Answer":
        """Return the answer with all tensors on the CPU; frames still render on the device.

        Law: an answer on the CPU is returned as it is (test_an_answer_on_the_cpu_is_not_copied).
        """
        if self.pixels.device.type == "cpu":
            return self
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {
            name: part.cpu() for name, part in values.items() if isinstance(part, Tensor)
        }
        for name in ("draw_frames", "draw_mean_frames", "draw_paths"):
            moved[name] = partial(_on_cpu, values[name])
        return replace(self, **moved)

    def _repr_html_(self) -> str:
        from motes.queries.display import answer_html

        return answer_html(self)

    @property
    def detected(self) -> Bool[Tensor, "B N T"]:
        """Whether each object was detected in each frame; the same as `found`."""
        return self.found

    @property
    def seen(self) -> Bool[Tensor, "B N T"]:
        """Whether each object was detected in each frame, inside the picture.

        An object that is occluded, absent or outside is not seen, though the frame was observed.
        """
        return self.found

    @cached_property
    def fit(self) -> Fit | None:
        """How well the model explains the observed frames; None without any; on first use."""
        return self.judge()

    @cached_property
    def frames(self) -> Float[Tensor, "B T height width *channels"]:
        """Mean of each pixel with positions marginalised; rendered on first use."""
        return self.draw_frames()

    @cached_property
    def mean_frames(self) -> Float[Tensor, "B T height width *channels"]:
        """Frames rendered at the mean positions, as in the paper; rendered on first use."""
        return self.draw_mean_frames()

    @cached_property
    def draws(self) -> Float[Tensor, "S B N T 2"]:
        """Equally likely paths of every object in pixels, drawn on first use.

        Where the future forks, at a wall for example, they show the branches that a mean and a
        covariance cannot.
        """
        return self.draw_paths()

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield one row per clip, frame and object, in the order of `COLUMNS`, in pixels."""
        pixels, velocities = self.pixels.tolist(), self.pixel_velocities.tolist()
        covariances, observed = self.pixel_covariances.tolist(), self.observed.tolist()
        seen = self.seen.tolist()
        # NaN for a negative variance, which would be an error and must not be hidden.
        sds = self.pixel_covariances.double().diagonal(dim1=-2, dim2=-1).sqrt().tolist()
        for clip, count in enumerate(self.num_objects.tolist()):
            for frame in range(self.observed.shape[1]):
                for n in range(count):
                    yield (
                        clip, frame, n, *pixels[clip][n][frame],
                        *sds[clip][n][frame], covariances[clip][n][frame][0][1],
                        *velocities[clip][n][frame], observed[clip][frame],
                        seen[clip][n][frame],
                    )  # fmt: skip

    def to_dataframe(self) -> "pandas.DataFrame":
        """Return the rows as a pandas DataFrame with trackpy's column names."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_dataframe needs pandas; pip install 'motes[table]'") from None
        return pandas.DataFrame(list(self.rows()), columns=list(COLUMNS))


def _on_cpu(draw: Callable[[], Tensor]) -> Tensor:
    """Return what was drawn on a device."""
    return draw().cpu()


def nan_where_absent(values: Tensor, present: Bool[Tensor, "B N"]) -> Tensor:
    """Return the values [B, N, ...] with NaN for absent objects."""
    shape = present.shape + (1,) * (values.ndim - 2)
    return torch.where(present.reshape(shape), values, torch.nan)
