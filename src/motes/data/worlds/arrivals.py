"""Simulated recordings whose objects come and go, with exact truth.

A scene has births (Poisson, anywhere or at the border), deaths, blinking, random walks or
ballistic flights, spots or opaque disks, and where asked for a camera that shakes and objects that
grow. Each random quantity has its own stream, so changing one leaves the draws of the others.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, exp, log

import numpy as np

from motes.core.axes import Bool, Float
from motes.core.errors import InputError, require
from motes.data.worlds.physics import Array, require_whole

# Streams are numbered by position: append new ones, or every seed gives other scenes.
_QUANTITIES = ("births", "motion", "deaths", "blinking", "camera", "texture", "sensor", "looks")
_LIFETIME_DRAWS = 4000  # objects whose mean lifetime sets the birth rate
_LIFETIME_FRAMES = 400
SPOT_REACH = 4.0  # standard deviations of a spot that are drawn


@dataclass(frozen=True)
class Scene:
    """The settings of a recording in pixels and frames; rates are per frame.

    Attributes:
        size: of a side of the square picture.
        num_frames: of the recording.
        num_objects: expected number of objects that exist at a time.
        flights: share of objects that fly ballistically; the others walk at random.
        disk: whether objects are opaque disks with soft edges; else Gaussian spots that add up.
        radius: of a disk, or standard deviation of a spot.
        contrast: of an object against the background.
        noise: standard deviation of the sensor noise, grey levels in [0, 1].
        step: standard deviation of a walk's step.
        gravity: of flights, downwards.
        speed: largest initial speed of a flight in each direction.
        jitter: standard deviation of a flight's velocity change in each frame.
        death: probability that an object ends in a frame; one that leaves the picture ends too.
        at_border: share of births at the border of the picture; the others are anywhere.
        blink_off: probability that a shown object is not shown in the next frame.
        blink_on: probability that such an object is shown again in the next frame.
        shake: standard deviation of the camera's offset.
        growth: relative growth of the radius in each frame of an object's life.
    """

    size: int = 256
    num_frames: int = 60
    num_objects: float = 50.0
    flights: float = 0.0
    disk: bool = False
    radius: float = 1.5
    contrast: float = 0.5
    noise: float = 0.03
    step: float = 0.7
    gravity: float = 0.08
    speed: float = 2.0
    jitter: float = 0.02
    death: float = 0.025
    at_border: float = 0.5
    blink_off: float = 0.02
    blink_on: float = 0.3
    shake: float = 0.0
    growth: float = 0.0

    def __post_init__(self) -> None:
        """Raise `InputError` for a scene that cannot be drawn, naming the setting."""
        require_whole("size", self.size, least=8)
        require_whole("num_frames", self.num_frames, least=1)
        for name in ("flights", "death", "at_border", "blink_off", "blink_on"):
            value = getattr(self, name)
            require(
                0 <= value <= 1, f"got {name}={value}; expected a share between 0 and 1; change it"
            )
        require(
            self.death > 0, "got death=0; expected a rate above 0, so that counts settle; give one"
        )


@dataclass(frozen=True, eq=False)
class Arrivals:
    """A recording with the truth about every object that exists in some frame of it.

    Attributes:
        frames: in [0, 1], in steps of 1/255.
        positions: pixels (x, y); NaN where an object does not exist.
        exists: between birth and death, inside the picture.
        visible: exists and is not blinked off.
        flying: whether an object is ballistic.
        camera: offset of the picture's content in each frame, already part of `positions`.
        radii: of each object; NaN where it does not exist.
    """

    frames: Float[np.ndarray, "T height width"]
    positions: Float[np.ndarray, "N T 2"]
    exists: Bool[np.ndarray, "N T"]
    visible: Bool[np.ndarray, "N T"]
    flying: Bool[np.ndarray, " N"]
    camera: Float[np.ndarray, "T 2"]
    radii: Float[np.ndarray, "N T"]


_WALKS = Scene(death=0.01, at_border=0.2)
_FLIGHTS = Scene(flights=1.0)
_DISKS = Scene(flights=1.0, disk=True, radius=3.0)
SCENES: dict[str, Scene] = {
    "5 flights": replace(_DISKS, size=96, num_objects=5),
    "5 walks": replace(_WALKS, size=64, num_objects=5),
    "50 flights": _FLIGHTS,
    "50 dense walks": replace(_WALKS, size=160, step=1.0),
    "50 mixed": replace(_DISKS, flights=0.5, death=0.015),
    "50 faint walks": replace(_WALKS, contrast=0.12),
    "300 walks": replace(_WALKS, size=512, num_objects=300),
    "300 flights": replace(_FLIGHTS, size=512, num_objects=300),
    "500 flights": replace(_FLIGHTS, size=640, num_objects=500),
    "shaken": replace(_WALKS, shake=1.5),
    "growing": replace(_DISKS, size=128, num_objects=8, growth=0.02),
}


def draw_scene(scene: Scene | str, seed: int, num_frames: int | None = None) -> Arrivals:
    """Return a recording of a scene with its truth; the same seed gives the same recording.

    The number of objects that exist has a Poisson distribution with the mean of the scene: births
    have rate num_objects / (mean lifetime), and the scene has run before the first frame.

    Law: counts have that mean, and truth, masks and pixels agree
    (test_counts_have_the_mean_of_the_scene, test_pixels_equal_a_loop_over_objects,
    test_masks_nest_and_positions_are_known_where_objects_exist).

    Args:
        scene: settings, or a key of `SCENES`.
        seed: a whole number >= 0.
        num_frames: of the recording; None: the scene's.
    """
    if isinstance(scene, str):
        if scene not in SCENES:
            known = ", ".join(SCENES)
            raise InputError(f"got scene {scene!r}; expected one of {known}; choose one")
        scene = SCENES[scene]
    scene = scene if num_frames is None else replace(scene, num_frames=num_frames)
    require_whole("seed", seed, least=0)
    children = np.random.SeedSequence(seed).spawn(len(_QUANTITIES))
    streams = {
        name: np.random.Generator(np.random.PCG64(child))
        for name, child in zip(_QUANTITIES, children, strict=True)
    }
    paths, exists, flying, age = _lives(scene, streams)
    camera = _offsets(scene, streams["camera"])
    positions = np.where(exists[..., None], paths + camera, np.nan)
    inside = _inside(positions, scene.size)  # the shaken camera may lose an object for a while
    visible = exists & inside & _shown(scene, len(paths), streams["blinking"])
    radii = np.where(exists, scene.radius * np.exp(log(1 + scene.growth) * age), np.nan)
    frames = render(scene, positions, visible, radii, _background(scene, camera, streams))
    noisy = frames + scene.noise * streams["sensor"].standard_normal(frames.shape)
    quantised = np.rint(255 * noisy.clip(0, 1)) / 255
    return Arrivals(quantised.astype(np.float32), positions, exists, visible, flying, camera, radii)


def render(
    scene: Scene,
    positions: Float[np.ndarray, "N T 2"],
    visible: Bool[np.ndarray, "N T"],
    radii: Float[np.ndarray, "N T"],
    background: Float[np.ndarray, "T height width"],
) -> Float[np.ndarray, "T height width"]:
    """Return noise-free frames; later disks are in front of earlier ones, spots add up."""
    frames = background.copy()
    level = background.mean() + scene.contrast
    for n, t in zip(*np.nonzero(visible), strict=True):
        (x, y), radius = positions[n, t], radii[n, t]
        reach = ceil((radius + 1) if scene.disk else SPOT_REACH * radius)
        rows, columns = (
            slice(max(0, round(c) - reach), max(0, min(scene.size, round(c) + reach + 1)))
            for c in (y, x)
        )
        dy = np.arange(rows.start, rows.stop)[:, None] - y
        dx = np.arange(columns.start, columns.stop) - x
        patch = frames[t, rows, columns]
        if scene.disk:
            patch += (radius + 0.5 - np.hypot(dx, dy)).clip(0, 1) * (level - patch)
        else:
            patch += scene.contrast * np.exp(-0.5 * (dx**2 + dy**2) / radius**2)
    return frames


def _lives(scene: Scene, streams: dict[str, np.random.Generator]) -> tuple[Array, ...]:
    """Return paths, existence, kind and age of all objects that exist in some frame."""
    lifetime, longest = _lifetimes(scene)
    before = longest  # frames that the scene runs before the first one
    total = before + scene.num_frames
    births = streams["births"].poisson(scene.num_objects / lifetime, total)
    born = np.repeat(np.arange(total), births)
    states, flying = _first_states(scene, len(born), streams["births"])
    alive = np.zeros(len(born), dtype=bool)
    ended = np.zeros(len(born), dtype=bool)
    paths = np.full((len(born), scene.num_frames, 2), np.nan)
    exists = np.zeros((len(born), scene.num_frames), dtype=bool)
    for t in range(total):
        new = born == t
        moving = alive & ~ended
        states[moving] = _move(scene, states[moving], flying[moving], streams["motion"])
        dies = streams["deaths"].random(len(born)) < scene.death
        ended |= moving & (dies | ~_inside(states[:, :2], scene.size))
        alive |= new
        if t >= before:
            exists[:, t - before] = alive & ~ended
            paths[:, t - before] = states[:, :2]
    shown = exists.any(1)
    age = np.arange(before, total) - born[:, None]
    return paths[shown], exists[shown], flying[shown], age[shown]


@lru_cache(maxsize=64)
def _lifetimes(scene: Scene) -> tuple[float, int]:
    """Return the mean lifetime, from simulated objects, and a bound on nearly all of them."""
    stream = np.random.Generator(np.random.PCG64(0))
    states, flying = _first_states(scene, _LIFETIME_DRAWS, stream)
    alive, total, longest = np.ones(len(states), dtype=bool), 0.0, 1
    for t in range(_LIFETIME_FRAMES):
        # A death in each frame is a factor of survival, which has less variance than a draw.
        total += float(alive.mean()) * (1 - scene.death) ** t
        if alive.mean() * (1 - scene.death) ** t > 1e-3:
            longest = t + 1
        states = _move(scene, states, flying, stream)
        alive &= _inside(states[:, :2], scene.size)
    return total, longest


def _first_states(scene: Scene, count: int, stream: np.random.Generator) -> tuple[Array, Array]:
    """Return states (x, y, vx, vy) at birth, and which objects fly."""
    span = scene.size - 1.0
    flying = stream.random(count) < scene.flights
    position = span * stream.random((count, 2))
    at_border, side = stream.random(count) < scene.at_border, stream.integers(4, size=count)
    axis, end = side % 2, side // 2
    rows = np.nonzero(at_border)[0]
    position[rows, axis[rows]] = span * end[rows]
    velocity = scene.speed * (2 * stream.random((count, 2)) - 1)
    # Flights rise on average, so that they stay for a while, and border births point inwards.
    velocity[:, 1] -= scene.speed / 2
    inward = np.where(end[rows] == 0, 1.0, -1.0)
    velocity[rows, axis[rows]] = inward * np.abs(velocity[rows, axis[rows]])
    return np.concatenate((position, velocity * flying[:, None]), 1), flying


def _move(scene: Scene, states: Array, flying: Array, stream: np.random.Generator) -> Array:
    """Return the states one frame later."""
    noise = stream.standard_normal((len(states), 2))
    position, velocity = states[:, :2], states[:, 2:]
    fly = flying[:, None]
    gravity = np.array((0.0, scene.gravity))
    moved = position + np.where(fly, velocity + gravity / 2, scene.step * noise)
    speed = np.where(fly, velocity + gravity + scene.jitter * noise, 0.0)
    return np.concatenate((moved, speed), 1)


def _inside(positions: Array, size: int) -> Array:
    inside: Array = np.all((positions >= 0) & (positions <= size - 1), axis=-1)
    return inside


def _shown(scene: Scene, count: int, stream: np.random.Generator) -> Array:
    """Return a two-state chain for each object, started in equilibrium."""
    off, on = scene.blink_off, scene.blink_on
    shown = np.empty((count, scene.num_frames), dtype=bool)
    draws = stream.random((count, scene.num_frames))
    shown[:, 0] = draws[:, 0] >= (off / (off + on) if off > 0 else 0.0)
    for t in range(1, scene.num_frames):
        shown[:, t] = np.where(shown[:, t - 1], draws[:, t] >= off, draws[:, t] < on)
    return shown


def _offsets(scene: Scene, stream: np.random.Generator) -> Array:
    """Return an autoregressive camera offset with the scene's standard deviation."""
    keep = exp(-1 / 5)
    noise = scene.shake * stream.standard_normal((scene.num_frames, 2))
    offsets = np.zeros((scene.num_frames, 2))
    offsets[0] = noise[0]
    for t in range(1, scene.num_frames):
        offsets[t] = keep * offsets[t - 1] + np.sqrt(1 - keep**2) * noise[t]
    return offsets


def _background(scene: Scene, camera: Array, streams: dict[str, np.random.Generator]) -> Array:
    """Return a smooth texture of low waves that moves with the camera; mean about .15."""
    waves = streams["texture"].uniform(-1, 1, (6, 4))
    grid = np.arange(scene.size)
    offsets = camera if scene.shake > 0 else camera[:1]
    x, y = grid - offsets[:, :1], grid - offsets[:, 1:]  # [T, width], [T, height]
    frames = np.full((len(offsets), scene.size, scene.size), 0.15)
    for horizontal, vertical, phase, height in waves:
        k = 2 * np.pi * 3 / scene.size
        angle = k * (horizontal * x[:, None, :] + vertical * y[:, :, None]) + np.pi * phase
        frames += 0.02 * height * np.sin(angle)
    return np.broadcast_to(frames, (scene.num_frames, scene.size, scene.size))
