"""Requests of the playground, answered with `motes.queries`; independent of HTTP."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from motes import queries
from motes.config import DataConfig, RunConfig
from motes.core.axes import Bool, Float, Tensor
from motes.core.errors import InputError
from motes.data import Clips, draw_clips, load_clips
from motes.data.clips import clips_to_grey
from motes.evaluation.learned import learned_force, learned_initial_states
from motes.kalman.dynamics import require_linear
from motes.kalman.linalg import map_vector
from motes.kalman.model import draw_path
from motes.models.checkpoint import load_with_config
from motes.models.model import Model
from motes.output.demo import demo_world
from motes.output.tracks import SHOWN_DRAWS
from motes.queries import validation
from motes.queries.answer import Answer
from motes.queries.counting import count_log_evidence
from motes.server import schemas
from motes.server.schemas import decode_frames, encode_frames
from motes.video import Preparation

NUM_EXAMPLES = 6
NUM_SAMPLES = 4
MAX_HELD_OUT = 10 * NUM_EXAMPLES  # clips kept in memory
MAX_COUNT_FRAMES = 30  # observed frames used to count objects; more take longer and add little
MAX_WORK = 3_000  # objects times frames times masks of one request, to bound its duration
DIGITS = 3  # decimals of pixel coordinates


class Question(NamedTuple):
    """A query that was checked; questions of one kind can be answered together."""

    frames: Float[Tensor, "M T height width"]
    observed: Bool[Tensor, "M T"]
    num_objects: int | None  # None: to be inferred
    work: int  # objects times frames times masks
    digest: bytes  # equal for equal questions

    @property
    def kind(self) -> tuple[int, int | None]:
        """The shape that questions of a batch share."""
        return self.frames.shape[1], self.num_objects


@dataclass(frozen=True, eq=False)
class Playground:
    """A model with its configuration, name and video preparation.

    `held_out` are clips of its data file that were not used for training, if the file exists.
    """

    model: Model
    config: RunConfig
    name: str
    preparation: Preparation | None = None
    held_out: Clips | None = None

    @classmethod
    def of(cls, name_or_folder: str, preparation: Preparation | None = None) -> "Playground":
        """Return the playground of a shipped model or a run folder."""
        model, config = load_with_config(name_or_folder)
        if model.renderer.grey_levels:
            raise InputError(
                f"{name_or_folder} was trained on grey or colour frames; the playground needs "
                "binary ones: use motes infer"
            )
        model.colour_axis = None  # clips are sent in grey, the input of the model
        name = Path(name_or_folder).name
        return cls(model, config, name, preparation, held_out_clips(config.data))

    def about(self, max_upload_bytes: int, upload_formats: list[str]) -> schemas.About:
        """Return the properties of the model and the limits of requests."""
        found, (height, width) = learned_initial_states(self.model), self.model.image_size
        law = learned_force(self.model)
        columns = (found.shares.tolist(), _points(found.places), _points(found.steps))
        return schemas.About(
            model=self.name,
            height=height,
            width=width,
            num_frames=self.config.data.num_frames,
            max_objects=self.model.max_objects,
            components=[
                schemas.InitialComponent(weight=weight, position=position, step=step)
                for weight, position, step in zip(*columns, strict=True)
            ],
            acceleration=law.tolist(),
            max_upload_bytes=max_upload_bytes,
            upload_formats=upload_formats,
        )

    def examples(self, seed: int) -> schemas.Clips:
        """Return clips that were not used for training.

        They are held-out clips of the model's own file, or else new cannonballs of the model's
        frame size, sorted by number of balls.
        """
        if self.held_out is not None:
            some = torch.arange(NUM_EXAMPLES * seed, NUM_EXAMPLES * (seed + 1))
            some = (some % len(self.held_out)).unique()
            return schemas.Clips(clips=to_schema(self.held_out[some], "held out"))
        max_count = max(self.config.data.num_objects)
        counts = [1 + n * max_count // NUM_EXAMPLES for n in range(NUM_EXAMPLES)]
        world = demo_world(self.config)
        return schemas.Clips(
            clips=[
                _example(draw_clips(world, 1, count, NUM_EXAMPLES * seed + n))
                for n, count in enumerate(counts)
            ]
        )

    def query(self, request: schemas.QueryRequest) -> "Question":
        """Return the question of a request: its clip once for each mask.

        Law: all-true is `motes.infer`, true then false is `motes.forecast`
        (test_masks_infer_forecast_and_interpolate).
        """
        masks = _masks(request)
        clip = _extended(decode_frames(request.video), masks.shape[1])
        return self._question(clip.expand(len(masks), *clip.shape), masks, request.num_objects)

    def count(self, request: schemas.CountRequest) -> "Question":
        """Return the question how many objects there are, given the observed frames."""
        frames = decode_frames(request.video)
        if len(request.mask) != len(frames):
            raise InputError(f"mask has {len(request.mask)} flags for {len(frames)} frames")
        observed = torch.tensor(request.mask)
        used = observed.cumsum(0) <= MAX_COUNT_FRAMES
        if bool(observed.any()):
            used &= torch.arange(len(used)) <= int((observed & used).nonzero().max())
        return self._question(frames[None, used], observed[None, used], None)

    def _question(
        self,
        frames: Float[Tensor, "M T height width"],
        observed: Bool[Tensor, "M T"],
        num_objects: int | None,
    ) -> "Question":
        """Return a question that cannot fail, so that others can be answered with it."""
        observed = validation.check_observed(self.model, observed, frames)
        validation.check_frames(self.model, frames, observed)
        searched = sum(range(self.model.max_objects + 1))  # counts 1, 2, ... are compared
        if num_objects is not None:
            validation.check_counts(self.model, num_objects, len(frames))
            searched = num_objects
        digest = hashlib.blake2b(repr((num_objects, frames.shape)).encode(), digest_size=16)
        digest.update(observed.cpu().numpy().tobytes())
        digest.update(frames.cpu().contiguous().numpy().tobytes())
        work = searched * observed.numel()
        return Question(frames, observed, num_objects, work, digest.digest())

    def answer(self, questions: Sequence["Question"]) -> list[bytes]:
        """Return the answers as JSON, from one query; all questions have the same `kind`.

        Law: equals the answers one by one (test_questions_answered_together_get_their_own_answers).
        """
        began = time.perf_counter()
        frames = torch.cat([question.frames for question in questions])
        observed = torch.cat([question.observed for question in questions])
        count, answers, last = questions[0].num_objects, [], 0
        if count is None:
            with torch.no_grad():
                evidence = count_log_evidence(self.model, frames, observed, queries.SEARCH)
            spent = _milliseconds_since(began)
            return [
                schemas.to_json(schemas.Counts(probabilities=shares, milliseconds=spent))
                for shares in evidence.softmax(1).tolist()
            ]
        found = queries.interpolate(self.model, frames, observed, count)
        _ = found.frames  # drawn on first use, and part of the time
        spent = _milliseconds_since(began)
        for question in questions:
            first, last = last, last + len(question.frames)
            predictions = [_prediction(found, index) for index in range(first, last)]
            answer = schemas.Predictions(predictions=predictions, milliseconds=spent)
            answers.append(schemas.to_json(answer))
        return answers

    def sample(self, request: schemas.SampleRequest) -> schemas.Clips:
        """Return clips drawn from the model."""
        self._check_size(request.num_frames)
        answer = queries.sample(
            self.model, NUM_SAMPLES, request.num_objects, request.num_frames, seed=request.seed
        )
        white = (answer.frames > 0.5).float()
        return schemas.Clips(
            clips=[
                _clip(f"sample {i + 1}", white[i], answer.path_pixels[i])
                for i in range(NUM_SAMPLES)
            ]
        )

    @torch.no_grad()
    def throw(self, request: schemas.ThrowRequest) -> schemas.Clip:
        """Return a clip of balls that follow the learned dynamics, rendered by the model.

        Law: noise-free paths have the learned acceleration (test_thrown_balls_obey_the_learned_law)
        """
        self._check_size(request.num_frames)
        model, count = self.model, len(request.balls)
        if count > model.max_objects:
            raise InputError(f"got {count} balls; this model supports 1 to {model.max_objects}")
        starts = torch.tensor([(ball.x, ball.y) for ball in request.balls], dtype=torch.float64)
        steps = torch.tensor([(ball.vx, ball.vy) for ball in request.balls], dtype=torch.float64)
        first = self._first_states(starts, steps)
        components = require_linear(model.dynamics).components()
        law = components._replace(
            initial_mean=first,
            initial_covariance=first.new_zeros(4, 4),
            state_noise=torch.zeros_like(components.state_noise),
        )
        generator = torch.Generator().manual_seed(request.seed)
        noise = torch.randn(count, request.num_frames, 6, generator=generator).double()
        path = draw_path(law, noise.to(model.device))
        slots = torch.zeros(1, model.max_objects, request.num_frames, 2, device=model.device)
        slots[0, :count] = path.positions.to(slots.dtype)
        present = model.present(torch.tensor([count], device=model.device))
        white = (model.renderer(slots, present)[0] > 0).float()
        return _clip("thrown", white, model.to_pixels(path.states[..., :2]))

    def _first_states(
        self, places: Float[Tensor, "N 2"], steps: Float[Tensor, "N 2"]
    ) -> Float[Tensor, "N 4"]:
        """Return the latent states of given pixel positions and steps to the second frame."""
        to_latent = torch.linalg.inv(self.model.pixel_matrix.double())
        law = require_linear(self.model.dynamics)
        components, delta = law.components(), law.log_delta.exp()
        positions = map_vector(to_latent, places - self.model.pixel_offset)
        velocities = (map_vector(to_latent, steps) - components.force[:2]) / delta
        return torch.cat([positions, velocities], -1)

    def _check_size(self, num_frames: int) -> None:
        pixels = num_frames * prod(self.model.image_size)
        if pixels > schemas.MAX_PIXELS:
            raise InputError(
                f"{num_frames} frames of this model have too many pixels; request fewer"
            )


def to_schema(clips: Clips, title: str) -> list[schemas.Clip]:
    """Return clips as records."""
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
    """Return held-out clips of the training file, or None if it is missing or has changed."""
    if data.path is None or not Path(data.path).is_file():
        return None
    try:
        clips = load_clips(data.path)[data.num_clips :][:MAX_HELD_OUT]
    except InputError:  # the file has changed
        return None
    grey = clips_to_grey(clips, data.colour_axis)
    same_size = tuple(grey.video.shape[2:]) == (data.height, data.width)
    return grey if len(clips) and same_size else None


def _example(clips: Clips) -> schemas.Clip:
    assert clips.num_objects is not None
    count = int(clips.num_objects[0])
    (clip,) = to_schema(clips, "1 ball" if count == 1 else f"{count} balls")
    return clip


def _clip(
    title: str,
    frames: Float[Tensor, "T height width"],
    truth: Float[Tensor, "N T 2"] | None,
    *,
    num_objects: int | None = None,
    observed: list[bool] | None = None,
) -> schemas.Clip:
    num_frames, height, width = frames.shape
    present = [] if truth is None else [path for path in truth if not path.isnan().any()]
    return schemas.Clip(
        title=title,
        num_frames=num_frames,
        height=height,
        width=width,
        frames=encode_frames(frames),
        num_objects=num_objects or len(present) or None,
        truth=[_points(path) for path in present] or None,
        observed=observed,
    )


def _masks(request: schemas.QueryRequest) -> torch.Tensor:
    """Return the masks [M, T], at least as long as the clip."""
    lengths = {len(mask) for mask in request.masks}
    num_frames = request.video.num_frames
    if len(lengths) > 1 or not num_frames <= max(lengths) <= num_frames + schemas.MAX_FRAMES:
        raise InputError(
            f"masks have lengths {sorted(lengths)} for {num_frames} frames; give each one flag per "
            f"frame, and up to {schemas.MAX_FRAMES} more for frames after the end"
        )
    masks = torch.tensor(request.masks)
    if masks.numel() * request.num_objects > MAX_WORK:
        raise InputError(
            f"{request.num_objects} objects in {len(masks)} times {masks.shape[1]} frames are too "
            f"many for one request; the limit is {MAX_WORK} in all"
        )
    if bool(masks[:, num_frames:].any()):
        raise InputError("masks select frames after the end of the clip; give false there")
    return masks


def _extended(
    frames: Float[Tensor, "T height width"], num_frames: int
) -> Float[Tensor, "num_frames height width"]:
    """Return the clip padded with black frames, which the masks exclude."""
    return torch.cat([frames, frames.new_zeros(num_frames - len(frames), *frames.shape[1:])])


def _prediction(answer: Answer, clip: int) -> schemas.Prediction:
    """Return one clip of an answer as a record."""
    tracks = [
        schemas.Track(
            positions=_points(answer.pixels[clip, n]),
            covariances=_covariances(answer.pixel_covariances[clip, n]),
            path=_points(answer.path_pixels[clip, n]),
            path_covariances=_covariances(answer.path_pixel_covariances[clip, n]),
            component_probabilities=_rounded(answer.component_probabilities[clip, n]),
            branches=[_points(path[clip, n]) for path in answer.draws[:SHOWN_DRAWS]]
            if answer.forks and not bool(answer.observed[clip].all())
            else [],
        )
        for n in range(int(answer.num_objects[clip]))
    ]
    return schemas.Prediction(
        observed=answer.observed[clip].tolist(),
        tracks=tracks,
        frames=encode_frames(answer.frames[clip]),
    )


def _points(values: Float[Tensor, "M 2"]) -> list[schemas.Point]:
    return _rounded(values)


def _covariances(values: Float[Tensor, "M 2 2"]) -> list[schemas.Covariance]:
    return _rounded(values.flatten(-2)[:, [0, 1, 3]])


def _milliseconds_since(began: float) -> float:
    return round(1e3 * (time.perf_counter() - began), 1)


def _rounded(values: Tensor) -> list[Any]:
    return values.detach().double().round(decimals=DIGITS).tolist()
