"""What the playground can do: records in, records out; no HTTP here."""

import time
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from motes import queries
from motes.config import DataConfig, RunConfig
from motes.core.axes import Float, Tensor
from motes.core.errors import InputError
from motes.data import Clips, draw_clips, load_clips
from motes.data.colour import in_grey
from motes.evaluation.physics import learned_force, learned_starts
from motes.kalman.linalg import map_vector
from motes.kalman.model import draw_path
from motes.models.checkpoint import load_with_config
from motes.models.model import Model
from motes.output.demo import demo_world
from motes.queries.answer import Answer
from motes.server import schemas as wire
from motes.server.schemas import decode_frames, encode_frames
from motes.video import Preparation

NUM_EXAMPLES = 6
NUM_IMAGINED = 4
MOST_HELD_OUT = 10 * NUM_EXAMPLES  # clips kept in memory
MOST_COUNTED = 30  # seen frames that are looked at to count: more take longer and tell little
MAX_WORK = 3_000  # objects times frames times masks of one question, so that others get their turn
DIGITS = 3  # of a pixel: finer than anybody sees


@dataclass(frozen=True, eq=False)
class Playground:
    """A model, the run that made it, the name to show, and how its videos were prepared.

    `held_out` are clips of the same file that it did not learn from, where that is at hand.
    """

    model: Model
    config: RunConfig
    name: str
    preparation: Preparation | None = None
    held_out: Clips | None = None

    @classmethod
    def of(cls, name_or_folder: str, preparation: Preparation | None = None) -> "Playground":
        """The playground of a shipped model or a run folder."""
        model, config = load_with_config(name_or_folder)
        if model.painter is not None:
            raise InputError(
                f"{name_or_folder} is a model of pictures; the playground is of black and white: "
                "ask it with motes infer"
            )
        model.colour_axis = None  # clips travel in grey, as the model sees them
        name = Path(name_or_folder).name
        return cls(model, config, name, preparation, held_out_clips(config.data))

    def about(self, max_upload_bytes: int, upload_kinds: list[str]) -> wire.About:
        """What the page must know."""
        found, (height, width) = learned_starts(self.model), self.model.image_size
        law = learned_force(self.model)
        columns = (found.shares.tolist(), _points(found.places), _points(found.steps))
        return wire.About(
            model=self.name,
            height=height,
            width=width,
            num_frames=self.config.data.num_frames,
            max_objects=self.model.max_objects,
            kinds=[
                wire.Kind(share=share, place=place, step=step)
                for share, place, step in zip(*columns, strict=True)
            ],
            acceleration=law.tolist(),
            max_upload_bytes=max_upload_bytes,
            upload_kinds=upload_kinds,
        )

    def examples(self, seed: int) -> wire.Clips:
        """Clips that the model has not seen: of its own file, or else fresh ones of flying balls.

        Those come in the model's frames, sorted by how many balls there are.
        """
        if self.held_out is not None:
            some = torch.arange(NUM_EXAMPLES * seed, NUM_EXAMPLES * (seed + 1))
            some = (some % len(self.held_out)).unique()
            return wire.Clips(clips=clips_from(self.held_out[some], "yours"))
        most = max(self.config.data.num_objects)
        counts = [1 + n * most // NUM_EXAMPLES for n in range(NUM_EXAMPLES)]
        world = demo_world(self.config)
        return wire.Clips(
            clips=[
                _example(draw_clips(world, 1, count, NUM_EXAMPLES * seed + n))
                for n, count in enumerate(counts)
            ]
        )

    def ask(self, question: wire.Question) -> wire.Views:
        """What the model thinks, for each mask: one smoother, as many masks as are given.

        Law: all-true is `motes.infer`, true then false is `motes.forecast`
        (test_masks_infer_forecast_and_interpolate).
        """
        began = time.perf_counter()
        masks = _masks(question)
        seen = _extended(decode_frames(question.video), masks.shape[1])
        frames = seen.expand(len(masks), *seen.shape)
        answer = queries.interpolate(self.model, frames, masks, question.num_objects)
        views = [_view(answer, clip) for clip in range(len(masks))]
        return wire.Views(views=views, milliseconds=_milliseconds(began))

    def count(self, question: wire.CountQuestion) -> wire.Counts:
        """How many objects there may be, given the frames that are seen."""
        began = time.perf_counter()
        frames = decode_frames(question.video)
        if len(question.mask) != len(frames):
            raise InputError(f"mask has {len(question.mask)} flags for {len(frames)} frames")
        seen = torch.tensor(question.mask)
        enough = seen.cumsum(0) <= MOST_COUNTED
        answer = queries.interpolate(self.model, frames[None, enough], seen[enough])
        assert answer.count_probabilities is not None
        probabilities = answer.count_probabilities[0].tolist()
        return wire.Counts(probabilities=probabilities, milliseconds=_milliseconds(began))

    def imagine(self, wish: wire.Wish) -> wire.Clips:
        """Clips that the model draws out of nothing."""
        self._check_size(wish.num_frames)
        answer = queries.sample(
            self.model, NUM_IMAGINED, wish.num_objects, wish.num_frames, seed=wish.seed
        )
        white = (answer.frames > 0.5).float()
        return wire.Clips(
            clips=[
                _clip(f"imagined {i + 1}", white[i], answer.path_pixels[i])
                for i in range(NUM_IMAGINED)
            ]
        )

    @torch.no_grad()
    def throw(self, throw: wire.Throw) -> wire.Clip:
        """Balls that fly by the law the model has learned, drawn as the model draws them.

        Law: noise-free paths have the learned acceleration (test_thrown_balls_obey_the_learned_law)
        """
        self._check_size(throw.num_frames)
        model, count = self.model, len(throw.balls)
        if count > model.max_objects:
            raise InputError(f"got {count} balls; this model knows 1 to {model.max_objects}")
        starts = torch.tensor([(ball.x, ball.y) for ball in throw.balls], dtype=torch.float64)
        steps = torch.tensor([(ball.vx, ball.vy) for ball in throw.balls], dtype=torch.float64)
        first = self._first_states(starts, steps)
        components = model.dynamics.components()
        law = components._replace(
            initial_mean=first,
            initial_covariance=first.new_zeros(4, 4),
            state_noise=torch.zeros_like(components.state_noise),
        )
        generator = torch.Generator().manual_seed(throw.seed)
        noise = torch.randn(count, throw.num_frames, 6, generator=generator).double()
        path = draw_path(law, noise.to(model.device))
        slots = torch.zeros(1, model.max_objects, throw.num_frames, 2, device=model.device)
        slots[0, :count] = path.positions.to(slots.dtype)
        present = model.present(torch.tensor([count], device=model.device))
        white = (model.renderer(slots, present)[0] > 0).float()
        return _clip("thrown by you", white, model.to_pixels(path.states[..., :2]))

    def _first_states(
        self, places: Float[Tensor, "N 2"], steps: Float[Tensor, "N 2"]
    ) -> Float[Tensor, "N 4"]:
        """Latent states at these pixels that move by these pixels to the second frame."""
        to_latent = torch.linalg.inv(self.model.pixel_matrix.double())
        components, delta = self.model.dynamics.components(), self.model.dynamics.log_delta.exp()
        positions = map_vector(to_latent, places - self.model.pixel_offset)
        velocities = (map_vector(to_latent, steps) - components.force[:2]) / delta
        return torch.cat([positions, velocities], -1)

    def _check_size(self, num_frames: int) -> None:
        pixels = num_frames * prod(self.model.image_size)
        if pixels > wire.MAX_PIXELS:
            raise InputError(f"{num_frames} frames of this model are too many pixels; ask fewer")


def clips_from(clips: Clips, title: str) -> list[wire.Clip]:
    """Clips of any source as they travel."""
    frames = clips.frames.float()
    return [
        _clip(
            title if len(clips) == 1 else f"{title} {i + 1}",
            frames[i],
            None if clips.clean is None else clips.clean[i],
            num_objects=None if clips.num_objects is None else int(clips.num_objects[i]),
            observed=None if clips.observed is None else clips.observed[i].tolist(),
        )
        for i in range(len(clips))
    ]


def held_out_clips(data: DataConfig) -> Clips | None:
    """Some of a user's clips that were kept from training; None if there are none at hand."""
    if data.path is None or not Path(data.path).is_file():
        return None
    try:
        clips = load_clips(data.path)[data.num_clips :][:MOST_HELD_OUT]
    except InputError:  # the file is another one now
        return None
    grey = in_grey(clips, data.colour_axis)
    as_learned = tuple(grey.video.shape[2:]) == (data.height, data.width)
    return grey if len(clips) and as_learned else None


def _example(clips: Clips) -> wire.Clip:
    assert clips.num_objects is not None
    count = int(clips.num_objects[0])
    (clip,) = clips_from(clips, "1 ball" if count == 1 else f"{count} balls")
    return clip


def _clip(
    title: str,
    frames: Float[Tensor, "T height width"],
    truth: Float[Tensor, "N T 2"] | None,
    *,
    num_objects: int | None = None,
    observed: list[bool] | None = None,
) -> wire.Clip:
    num_frames, height, width = frames.shape
    present = [] if truth is None else [path for path in truth if not path.isnan().any()]
    return wire.Clip(
        title=title,
        num_frames=num_frames,
        height=height,
        width=width,
        frames=encode_frames(frames),
        num_objects=num_objects or len(present) or None,
        truth=[_points(path) for path in present] or None,
        observed=observed,
    )


def _masks(question: wire.Question) -> torch.Tensor:
    """The masks [M, T], of one length, which is not below the clip's."""
    lengths = {len(mask) for mask in question.masks}
    num_frames = question.video.num_frames
    if len(lengths) > 1 or not num_frames <= max(lengths) <= num_frames + wire.MAX_FRAMES:
        raise InputError(
            f"masks have lengths {sorted(lengths)} for {num_frames} frames; give each one flag a "
            f"frame, and up to {wire.MAX_FRAMES} more for frames beyond the end"
        )
    masks = torch.tensor(question.masks)
    if masks.numel() * question.num_objects > MAX_WORK:
        raise InputError(
            f"{question.num_objects} objects in {len(masks)} times {masks.shape[1]} frames are too "
            f"much at once; ask about fewer: {MAX_WORK} in all"
        )
    if bool(masks[:, num_frames:].any()):
        raise InputError("masks show frames beyond the clip's end; give false there")
    return masks


def _extended(
    frames: Float[Tensor, "T height width"], num_frames: int
) -> Float[Tensor, "num_frames height width"]:
    """The clip with black frames added; they are hidden, so it does not matter what they hold."""
    return torch.cat([frames, frames.new_zeros(num_frames - len(frames), *frames.shape[1:])])


def _view(answer: Answer, clip: int) -> wire.View:
    """One clip of an answer as it travels."""
    tracks = [
        wire.Track(
            positions=_points(answer.pixels[clip, n]),
            covariances=_covariances(answer.pixel_covariances[clip, n]),
            path=_points(answer.path_pixels[clip, n]),
            path_covariances=_covariances(answer.path_pixel_covariances[clip, n]),
            kinds=_rounded(answer.component_probabilities[clip, n]),
        )
        for n in range(int(answer.num_objects[clip]))
    ]
    return wire.View(
        observed=answer.observed[clip].tolist(),
        tracks=tracks,
        frames=encode_frames(answer.frames[clip]),
    )


def _points(values: Float[Tensor, "M 2"]) -> list[wire.Point]:
    return _rounded(values)


def _covariances(values: Float[Tensor, "M 2 2"]) -> list[wire.Covariance]:
    return _rounded(values.flatten(-2)[:, [0, 1, 3]])


def _rounded(values: Tensor) -> list[Any]:
    return values.detach().double().round(decimals=DIGITS).tolist()


def _milliseconds(began: float) -> float:
    return round(1e3 * (time.perf_counter() - began), 1)
