import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from motes.config import FORMAT_VERSION
from motes.core.errors import InputError
from motes.models import checkpoint
from motes.models.checkpoint import load, load_with_config, read_tensors, save_model, write_tensors
from tiny import tiny_config, tiny_model

META = {"format": "motes", "kind": "model"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model."""
    path = tmp_path / "run"
    path.mkdir()
    save_model(path, tiny_model(), tiny_config())
    return path


def refusal(name_or_folder: str | Path) -> str:
    with pytest.raises(InputError) as caught:
        load(name_or_folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_model_comes_back_bit_for_bit_with_its_config(folder: Path) -> None:
    loaded, config = load_with_config(folder)
    assert config == tiny_config()
    assert not loaded.training
    expected = tiny_model().state_dict()
    assert set(loaded.state_dict()) == set(expected)
    for name, value in loaded.state_dict().items():
        assert value.dtype == expected[name].dtype, name
        assert torch.equal(value, expected[name]), name


def test_a_model_saved_by_half_keeps_its_networks_to_half_precision(tmp_path: Path) -> None:
    save_model(tmp_path, tiny_model(), tiny_config(), half=True)
    loaded = load(tmp_path).state_dict()
    stored, _ = read_tensors(tmp_path / "model.safetensors")
    for name, value in tiny_model().state_dict().items():
        if name.startswith(("renderer.", "inference.")):
            assert stored[name].dtype == torch.float16
            # float16 has 11 significant bits, and an absolute grain of 2^-24 near zero
            torch.testing.assert_close(loaded[name], value, rtol=2**-11, atol=2**-24)
        else:
            assert torch.equal(loaded[name], value), name
        assert loaded[name].dtype == value.dtype


def test_a_model_is_found_by_its_shipped_name_and_by_its_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SHIPPED", folder.parent)
    for name in ("run", folder, str(folder)):
        assert torch.equal(load(name).pixel_matrix, tiny_model().pixel_matrix)


@pytest.mark.parametrize("name", ["run/../run", "../shipped/run", "..", ".", "", "run\x00", "rum"])
def test_a_shipped_model_is_found_by_its_plain_name_only(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shipped" / "run").mkdir(parents=True)
    save_model(tmp_path / "shipped" / "run", tiny_model(), tiny_config())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(checkpoint, "SHIPPED", tmp_path / "shipped")
    load("run")
    if name == "../shipped/run":  # a path to a run folder, and as such it is fine
        load(name)
        return
    message = refusal(name)
    assert repr(name) in message
    assert "shipped name: run" in message


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    assert "no-such-model" in refusal("no-such-model")
    assert str(tmp_path) in refusal(tmp_path)
    (tmp_path / "file").write_text("x")
    assert "file" in refusal(tmp_path / "file")


def test_a_run_without_a_checkpoint_yet_says_what_to_do(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "motes train --resume" in refusal(folder)


def changed_tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        tensors, _ = read_tensors(path)
        change(tensors)
        save_file(tensors, path, metadata=META)

    return apply


def test_a_model_without_calibration_scale_is_uncalibrated(folder: Path) -> None:
    changed_tensors(lambda tensors: tensors.pop("calibration_scale"))(folder / "model.safetensors")
    assert load(folder).calibration_scale.tolist() == [1.0, 1.0, 1.0]


def test_tensors_of_version_0_1_are_renamed(folder: Path) -> None:
    scales = torch.tensor([1.0, 2.0, 3.0])

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        tensors.pop("calibration_scale")
        tensors["temper"] = scales

    changed_tensors(rename)(folder / "model.safetensors")
    assert torch.equal(load(folder).calibration_scale, scales)


def poison(value: float) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda tensors: tensors["renderer.to_image"].view(-1)[3].fill_(value)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "not a whole"),
    "truncated header": (lambda path: path.write_bytes(path.read_bytes()[:100]), "not a whole"),
    "truncated data": (lambda path: path.write_bytes(path.read_bytes()[:-4]), "not a whole"),
    "random bytes": (lambda path: path.write_bytes(bytes(range(256)) * 40), "not a whole"),
    "text": (lambda path: path.write_text("{" * 1000), "not a whole"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "not a whole"),
    "torch.save": (lambda path: torch.save({"a": torch.ones(3)}, path), "not a whole"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "model.safetensors"),
    "of another program": (lambda path: save_file({"a": torch.ones(1)}, path), "not written by"),
    "missing tensor": (changed_tensors(lambda t: t.pop("pixel_matrix")), "pixel_matrix"),
    "calibration scale of zero": (
        changed_tensors(lambda t: t.update(calibration_scale=torch.tensor([1.0, 0.0, 1.0]))),
        "its values overflow",
    ),
    "extra tensor": (changed_tensors(lambda t: t.update(extra=torch.ones(2))), "extra"),
    "wrong shape": (
        changed_tensors(lambda t: t.update(pixel_offset=torch.ones(3))),
        "pixel_offset has shape (3,)",
    ),
    "broadcastable shape": (
        changed_tensors(lambda t: t.update(pixel_offset=torch.ones(1))),
        "pixel_offset has shape (1,)",
    ),
    "whole numbers": (
        changed_tensors(lambda t: t.update(pixel_offset=torch.ones(2, dtype=torch.int64))),
        "pixel_offset",
    ),
    "eight-bit numbers": (
        changed_tensors(lambda t: t.update(pixel_offset=torch.ones(2).to(torch.float8_e4m3fn))),
        "pixel_offset",
    ),
    "too large for their type": (
        changed_tensors(
            lambda t: t.update(pixel_offset=torch.full((2,), 1e300, dtype=torch.float64))
        ),
        "pixel_offset",
    ),
    "NaN": (changed_tensors(poison(float("nan"))), "renderer.to_image"),
    "infinity": (changed_tensors(poison(float("inf"))), "renderer.to_image"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_weights_are_refused_with_one_line(damage: str, folder: Path) -> None:
    harm, expected = DAMAGE[damage]
    harm(folder / "model.safetensors")
    message = refusal(folder)
    assert "model.safetensors" in message
    assert expected in message


def test_a_config_that_promises_other_sizes_is_refused(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    raw["model"]["renderer_state_size"] += 1
    (folder / "config.json").write_text(json.dumps(raw))
    assert re.search(r"renderer\.\w+ has shape", refusal(folder))


def test_a_newer_version_is_refused(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    raw["version"] = FORMAT_VERSION + 1
    (folder / "config.json").write_text(json.dumps(raw))
    assert f"version {FORMAT_VERSION + 1}" in refusal(folder)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b"{}", b"[" * 100_000])
def test_a_damaged_config_is_refused(content: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(content)
    assert "config.json" in refusal(folder)


class Bomb:
    """What unpickling would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_that_is_loaded_can_run_code(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    pickle.loads(pickle.dumps(Bomb(trace)))
    assert trace.exists()  # the bomb works
    trace.unlink()
    harmless = {name: (folder / name).read_bytes() for name in ("config.json", "model.safetensors")}
    for name, content in harmless.items():
        for write in (
            lambda path: path.write_bytes(pickle.dumps(Bomb(trace))),
            lambda path: torch.save(Bomb(trace), path),
        ):
            write(folder / name)
            refusal(folder)
            assert not trace.exists()
        (folder / name).write_bytes(content)
    load(folder)


def test_tensors_and_metadata_come_back(tmp_path: Path, generator: torch.Generator) -> None:
    tensors = {
        "a": torch.randn(3, 4, generator=generator).T,
        "b": torch.ones((), dtype=torch.int64),
    }
    write_tensors(tmp_path / "x.safetensors", tensors, {"step": "7"})
    back, metadata = read_tensors(tmp_path / "x.safetensors")
    assert metadata == {"format": "motes", "step": "7"}
    assert set(back) == {"a", "b"}
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_missing_file_of_tensors_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.safetensors"):
        read_tensors(tmp_path / "none.safetensors")


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_permissions_of_tensors_follow_the_umask(mask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_tensors(tmp_path / "x.safetensors", {"a": torch.ones(2)}, {})
    finally:
        os.umask(before)
    assert (tmp_path / "x.safetensors").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(
    ("name", "value"),
    [("dynamics.log_delta", 800.0), ("dynamics.force", 1e30), ("pixel_offset", 2e6)],
)
def test_absurd_numbers_are_refused_though_they_are_finite(
    name: str, value: float, folder: Path
) -> None:
    tensors = {key: entry.clone() for key, entry in tiny_model().state_dict().items()}
    tensors[name].fill_(value)
    write_tensors(folder / "model.safetensors", tensors, META)
    assert "model.safetensors" in refusal(folder)


def test_a_refusal_stays_short_whatever_the_file_holds(folder: Path) -> None:
    tensors = {key: entry.clone() for key, entry in tiny_model().state_dict().items()}
    write_tensors(folder / "model.safetensors", {**tensors, "x" * 5000: torch.ones(1)}, META)
    assert len(refusal(folder)) < 1000
    tensors["pixel_offset"] = torch.ones([1] * 900)
    write_tensors(folder / "model.safetensors", tensors, META)
    assert len(refusal(folder)) < 1000
