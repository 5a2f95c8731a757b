"""Invalid files for `tests.stress.fuzz`, from slightly to entirely wrong.

A case is a function of its own random numbers and of an empty folder. It ends in an answer, in an
`InputError`, or in the exit code of the command line; anything else is a defect.
"""

import importlib
import io
import json
import math
import os
import pickle
import struct
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

import motes
from motes.config import RunConfig, from_json, to_json
from motes.data import cannonballs, load_clips, save_clips
from motes.models.checkpoint import load, save_model
from motes.models.model import Model, build
from motes.training.presets import PRESETS
from motes.video import read_frames


def _layers(channels: int) -> RunConfig:
    """Return the smallest run of the layered family."""
    small, model = PRESETS["sprites-smoke"], PRESETS["layers"].model
    data, own = replace(small.data, channels=channels), small.model
    sizes = {name: getattr(own, name) for name in ("sprite_radius", "sprite_width", "window")}
    return replace(small, data=data, model=replace(model, num_sprite_classes=2, **sizes))


def _springs() -> RunConfig:
    """Return the smallest run of the sprite family with the linear law and a colour axis."""
    small = PRESETS["sprites-smoke"]
    data = replace(small.data, colour_axis=(0.3, 0.6, 0.1, 0.0))
    return replace(small, data=data, dynamics=replace(small.dynamics, law="linear"))


CONFIGS: dict[str, RunConfig] = {
    "paper": PRESETS["paper-smoke"],
    "structured": PRESETS["sprites-smoke"],
    "springs in colour": _springs(),
    "pictures": _layers(channels=1),
    "colour pictures": _layers(channels=3),
}
NUMBERS = (0, 1, 2, 3, -1, 7, 12, 16, 255, 256, 1000, 2**31, 2**63, -(2**63), 10**30, 0.5, 1e-300)
ODD: tuple[Any, ...] = (
    *NUMBERS,
    *(1e308, -1e308, math.nan, math.inf, -math.inf, None, True, False, "", "x", "1e9", "../x"),
    *([], {}, [[]], [1] * 300, {"a": {"b": []}}, "\0", "é" * 500, [math.nan], [[0, 1e-3], [0]]),
)
KINDS = ("u1", "i8", "f4", "f8", "f2", "b1", "u2", "c8", "U3", "S5", "M8[s]", "O", "V7", ">f4")


MEMBERS = ("frames.npy", "../frames.npy", "/tmp/x.npy", "num_objects.npy", "a/b")
TEXTS = ('{"version": 1', "[" * 10**5, '{"a":' * 10**5, "NaN", "", "9" * 10**5)


class Bomb:
    """What unpickling would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@cache
def model(family: str) -> Model:
    """A small untrained model."""
    return build(CONFIGS[family])


@cache
def model_bytes(family: str) -> bytes:
    """The bytes of its file."""
    return save(dict(model(family).state_dict()), {"format": "motes", "kind": "model"})


@cache
def clip_bytes(form: str) -> bytes:
    """A small whole file of clips."""
    clips = cannonballs(2, (1, 2), num_frames=12, size=16)
    buffer = io.BytesIO()
    if form == "npy":
        np.save(buffer, clips.frames.numpy())
    elif form == "npz":
        np.savez(buffer, frames=clips.frames.numpy(), num_objects=np.array([1, 2]))
    else:
        images = [_picture(frame) for frame in clips.frames[0].numpy() * 255]
        several = {} if form == "jpeg" else {"save_all": True, "append_images": images[1:]}
        images[0].save(buffer, form, **several)
    return buffer.getvalue()


def _picture(levels: Any) -> Any:
    from PIL import Image

    return Image.fromarray(levels)


@cache
def bits_bytes() -> bytes:
    """A small file of ours, with bits and truth."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bits.npz"
        save_clips(path, cannonballs(2, (1, 2), num_frames=12, size=16))
        return path.read_bytes()


@cache
def bomb_bytes() -> bytes:
    """A file of 128 KiB that unfolds to 128 MiB."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, frames=np.zeros((1, 2**15, 64, 64), np.uint8))
    return buffer.getvalue()


def mutate(chance: Random, content: bytes) -> bytes:
    """The content with a few wounds."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0 if data:
                data[place % len(data)] = chance.randrange(256)
            case 1:
                data[place:place] = chance.randbytes(chance.choice((1, 2, 50)))
            case 2:
                del data[place : place + chance.choice((1, 4, 200))]
            case 3:
                data[place : place + 4] = struct.pack("<I", chance.choice((0, 1, 2**31, 2**32 - 1)))
            case 4:
                number = chance.choice((2**63, 2**40, 2**64 - 1))
                data[place : place + 8] = struct.pack("<Q", number)
            case _:
                data = data[:place]
    return bytes(data)


def odd_array(chance: Random) -> np.ndarray:
    """An array of any type and shape, seldom that of frames."""
    shape = [chance.choice((0, 1, 1, 2, 3, 12, 16)) for _ in range(chance.randrange(6))]
    kind = chance.choice(KINDS)
    if chance.random() < 0.3:
        shape, kind = [chance.choice((1, 2)), 12, 16, 16], chance.choice(KINDS[:7])
    array = np.zeros(shape, kind)
    if array.size and array.dtype.kind in "fui":
        array.flat[0] = chance.choice((0, 1, 2)) if array.dtype.kind != "f" else any_number(chance)
    return array


def any_number(chance: Random) -> float:
    """A value of a pixel, or of none."""
    return chance.choice((0.0, 1.0, 0.3, -1.0, 1.5, 255.0, math.nan, math.inf))


def hostile_zip(chance: Random, folder: Path) -> bytes:
    """An archive that is whole and means no good."""
    buffer = io.BytesIO()
    trace = folder / "trace"
    with zipfile.ZipFile(buffer, "w", chance.choice((0, 8, 12, 14))) as archive:
        for _ in range(chance.randint(1, 4)):
            entry = zipfile.ZipInfo(chance.choice(MEMBERS))
            if chance.random() < 0.3:
                entry.external_attr = 0o120777 << 16  # a symbolic link
            inside = io.BytesIO()
            match chance.randrange(4):
                case 0:
                    np.save(inside, np.array([Bomb(trace)], dtype=object), allow_pickle=True)
                case 1:
                    pickle.dump(Bomb(trace), inside)
                case 2:
                    np.save(inside, np.zeros(chance.choice((10, 2**20)), "u1"))
                case _:
                    inside.write(b"../../../../etc/passwd")
            if entry.filename not in archive.namelist():
                archive.writestr(entry, inside.getvalue())
    return buffer.getvalue()


def clips_file(chance: Random, folder: Path) -> object:
    """Files of clips: ours, users', damaged, hostile."""
    path = folder / f"in.{chance.choice(('npz', 'npy'))}"
    match chance.randrange(7):
        case 0:
            content = mutate(chance, clip_bytes("npz"))
        case 6:
            content = chance.choice((bomb_bytes(), mutate(chance, bomb_bytes())))
        case 1:
            content = mutate(chance, clip_bytes("npy"))
        case 2:
            content = mutate(chance, bits_bytes())
        case 3:
            content = hostile_zip(chance, folder)
        case 4:
            content = pickle.dumps(Bomb(folder / "trace"))
        case _:
            buffer, names = io.BytesIO(), ("frames", "bits", "size", "num_objects", "positions")
            chosen = chance.sample(names, chance.randint(1, 3))
            arrays: dict[str, Any] = {name: odd_array(chance) for name in chosen}
            np.savez(buffer, **arrays)
            content = buffer.getvalue()
    path.write_bytes(content)
    return load_clips(path).frames if chance.random() < 0.5 else read_frames(path)


def pictures(chance: Random, folder: Path) -> object:
    """GIFs, TIFFs and folders of pictures, damaged, and things that are no files at all."""
    form = chance.choice(("gif", "tiff", "png", "jpeg"))
    content = mutate(chance, clip_bytes(form))
    if chance.random() < 0.05:
        os.mkfifo(folder / f"in.{form}")
        return read_frames(folder / f"in.{form}")
    if form in ("gif", "tiff"):
        (folder / f"in.{form}").write_bytes(content)
        return read_frames(folder / f"in.{form}")
    (folder / "many").mkdir()
    for number in range(chance.randint(0, 3)):
        (folder / f"many/{number}.{form}").write_bytes(chance.choice((content, clip_bytes(form))))
    return read_frames(folder / "many")


@cache
def video_bytes() -> bytes:
    """A small whole mp4."""
    from motes.video.source import write_mp4

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.mp4"
        write_mp4(path, (np.full((32, 32, 3), 20 * t, np.uint8) for t in range(10)), fps=10)
        return path.read_bytes()


def video(chance: Random, folder: Path) -> object:
    """Containers, damaged or under another name; playlists that name other files."""
    path = folder / f"in.{chance.choice(('mp4', 'mov', 'avi', 'mkv', 'webm', 'MP4'))}"
    match chance.randrange(8):
        case 0:
            path.write_bytes(clip_bytes("gif"))
        case 1:
            path.write_text("#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n")
        case _:
            path.write_bytes(mutate(chance, video_bytes()))
    return read_frames(path)


def any_file(chance: Random, folder: Path) -> tuple[bytes, str]:
    """The bytes of a file that holds pictures, whole, damaged or hostile, and its suffix."""
    form = chance.choice(("npz", "npy", "gif", "tiff", "mp4", "bits", "zip", "bomb"))
    match form:
        case "zip":
            return hostile_zip(chance, folder), "npz"
        case "bomb":
            return bomb_bytes(), "npz"
    content = {"mp4": video_bytes, "bits": bits_bytes}.get(form, lambda: clip_bytes(form))()
    content = content if chance.random() < 0.5 else mutate(chance, content)
    return content, {"bits": "npz"}.get(form, form)


def damage_json(chance: Random, record: Any) -> Any:
    """A JSON value with one part changed."""
    if isinstance(record, dict) and record and chance.random() < 0.8:
        key = chance.choice(sorted(record))
        changed = dict(record)
        if chance.random() < 0.1:
            del changed[key]
        elif chance.random() < 0.1:
            changed["surplus"] = chance.choice(ODD)
        else:
            changed[key] = damage_json(chance, record[key])
        return changed
    return chance.choice(ODD)


def damaged_config(chance: Random, family: str) -> str:
    """The text of a configuration, damaged as text or as a record."""
    text = to_json(CONFIGS[family])
    match chance.randrange(8):
        case 0:
            return mutate(chance, text.encode()).decode(errors="surrogateescape")
        case 1:
            return chance.choice(TEXTS)
    record = json.loads(text)
    for _ in range(chance.choice((1, 1, 2))):
        record = damage_json(chance, record)
    return json.dumps(record)


def config(chance: Random, folder: Path) -> object:
    """Configurations, read and then built into the model whose file lies beside them."""
    family = chance.choice(sorted(CONFIGS))
    text = damaged_config(chance, family)
    (folder / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    (folder / "model.safetensors").write_bytes(model_bytes(family))
    return load(folder)


def config_text(chance: Random, folder: Path) -> object:
    """Configurations as text alone, many of them."""
    return from_json(damaged_config(chance, chance.choice(sorted(CONFIGS))), "config.json")


def header_changed(chance: Random, content: bytes) -> bytes:
    """A safetensors file whose header tells other types, shapes or places."""
    (length,) = struct.unpack("<Q", content[:8])
    header = damage_json(chance, json.loads(content[8 : 8 + length]))
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def damaged_weights(chance: Random, family: str) -> bytes:
    """A whole file whose numbers are extreme."""
    tensors = {name: value.clone() for name, value in model(family).state_dict().items()}
    for name in chance.sample(sorted(tensors), chance.randint(1, 3)):
        extreme = chance.choice((0.0, 1e30, -1e30, 700.0, -700.0, 3e38, 1e-40, math.nan, math.inf))
        tensors[name] = torch.full_like(tensors[name], extreme)
    return save(tensors, {"format": "motes", "kind": "model"})


def model_file(chance: Random, folder: Path) -> object:
    """Model files, damaged, disguised, or valid with extreme numbers and then queried."""
    family = chance.choice(sorted(CONFIGS))
    save_model(folder, model(family), CONFIGS[family])
    path = folder / "model.safetensors"
    match chance.randrange(6):
        case 0:
            path.write_bytes(pickle.dumps(Bomb(folder / "trace")))
        case 1:
            torch.save(Bomb(folder / "trace"), path)
        case 2:
            path.write_bytes(header_changed(chance, model_bytes(family)))
        case 3 | 4:
            path.write_bytes(damaged_weights(chance, family))
        case _:
            path.write_bytes(mutate(chance, model_bytes(family)))
    loaded = load(folder)
    return motes.forecast(loaded, shown_to(loaded, torch.zeros(1, 5, 16, 16)), 1, horizon=2).frames


def shown_to(model: Model, frames: torch.Tensor) -> torch.Tensor:
    """Frames as a model takes them: grey, or in colour."""
    in_colour = model.channels == 3 or model.colour_axis is not None
    return frames[..., None].expand(*frames.shape, 3) if in_colour else frames


def warm_up() -> None:
    """Makes the whole files once, so that the forks inherit them, and a list of fonts."""
    importlib.import_module("matplotlib.font_manager")  # which is written where there is none
    for form in ("npz", "npy", "gif", "tiff", "png", "jpeg"):
        clip_bytes(form)
    for family in CONFIGS:
        model_bytes(family)
    bits_bytes(), bomb_bytes(), video_bytes()


FILES: dict[str, tuple[Callable[[Random, Path], object], float]] = {
    "clips": (clips_file, 0.15),
    "pictures": (pictures, 0.1),
    "video": (video, 0.08),
    "config": (config_text, 0.15),
    "config and model": (config, 0.06),
    "model file": (model_file, 0.12),
}
