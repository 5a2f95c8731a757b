import dataclasses
import json
from typing import Any

import pytest

from motes.config import (
    FORMAT_VERSION,
    DataConfig,
    RunConfig,
    from_json,
    to_json,
)
from motes.core.errors import InputError
from motes.training.presets import PRESETS, find


def changed(place: str, value: Any) -> str:
    """The JSON of a preset with one value replaced; `place` is dotted."""
    raw = json.loads(to_json(PRESETS["paper-smoke"]))
    *path, name = place.split(".")
    record = raw
    for part in path:
        record = record[part]
    record[name] = value
    return json.dumps(raw)


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        from_json(text, "config.json")
    message = str(caught.value)
    assert "config.json" in message or "give" in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("config", [*PRESETS.values()])
def test_presets_survive_json(config: RunConfig) -> None:
    assert from_json(to_json(config), "x") == config


def test_presets_are_found_by_name_and_by_the_names_of_version_1() -> None:
    assert find("sprites") == PRESETS["sprites"]
    assert find("smoke", "paper") == PRESETS["paper-smoke"]
    assert find("smoke", "structured") == PRESETS["sprites-smoke"]
    assert find("covered") == PRESETS["sprites-occluded"]
    with pytest.raises(InputError, match="preset is 'nothing'; expected one of paper, paper-cur"):
        find("nothing")
    with pytest.raises(InputError, match="preset sprites is of family sprites, not paper"):
        find("sprites", "paper")


def test_every_field_survives_json_when_it_is_not_the_default() -> None:
    config = RunConfig(data=DataConfig(path="clips.npz", num_objects=(2, 5), seed=9), seed=2**62)
    assert from_json(to_json(config), "x") == config


@pytest.mark.parametrize("place", ["extra", "data.extra", "model.extra", "schedule.extra"])
def test_an_unknown_field_is_named(place: str) -> None:
    assert "'extra'" in refusal(changed(place, 1))


def every_field(record: dict[str, Any], prefix: str = "") -> list[str]:
    places = []
    for name, value in record.items():
        places.append(prefix + name)
        if isinstance(value, dict):
            places += every_field(value, f"{prefix}{name}.")
    return places


FIELDS = every_field(dataclasses.asdict(RunConfig()))


# What runs of the first versions did not write, written down by hand.
NEWER = [
    *("begins_with", "data.colour_axis", "data.channels", "schedule.frozen_occlusion"),
    *("model.law", "model.pixels", "model.num_kinds", "model.hidden_teach"),
]


def without(config: RunConfig, *places: str) -> str:
    """The JSON of a configuration that lacks some fields."""
    raw = json.loads(to_json(config))
    for place in places:
        *path, name = place.split(".")
        record = raw
        for part in path:
            record = record[part]
        del record[name]
    return json.dumps(raw)


@pytest.mark.parametrize("place", sorted(set(FIELDS) - set(NEWER)))
def test_a_missing_field_is_named(place: str) -> None:
    assert repr(place.split(".")[-1]) in refusal(without(PRESETS["paper-smoke"], place))


def test_a_run_of_an_older_version_did_what_newer_fields_say_by_default() -> None:
    """One by one, for a field that was forgotten here could not be missing."""
    assert from_json(without(PRESETS["paper-smoke"], *NEWER), "x") == PRESETS["paper-smoke"]
    config = PRESETS["layers"]
    for place in NEWER:
        *path, name = place.split(".")
        read: Any = from_json(without(config, place), "x")
        for part in path:
            read = getattr(read, part)
        default = {field.name: field.default for field in dataclasses.fields(read)}[name]
        assert getattr(read, name) == default


@pytest.mark.parametrize("place", FIELDS)
@pytest.mark.parametrize("value", [True, {"a": 1}, [[[]]]])
def test_a_value_of_the_wrong_type_is_refused_by_name(place: str, value: Any) -> None:
    message = refusal(changed(place, value))
    assert place.split(".")[-1] in message or "unknown fields ['a']" in message


HUGE = [
    *("batch_size", "seed", "log_every", "checkpoint_every"),
    *(f"data.{name}" for name in ("num_clips", "num_held_out", "num_frames", "seed")),
    *(f"model.{name}" for name in ("num_components", "sampling_period", "state_noise")),
    *(f"model.{name}" for name in ("position_noise", "initial_spread", "initial_scale")),
    *(f"model.{name}" for name in ("glyph_reach", "glyph_width", "pixels_per_unit", "window")),
    *(f"schedule.{name}" for name in ("iterations", "frozen_dynamics", "taught")),
    *(f"schedule.{name}" for name in ("steps_per_search", "dynamics_rate")),
]


@pytest.mark.parametrize("place", HUGE)
@pytest.mark.parametrize("value", [10**18 * 10, 10**400, -1], ids=["large", "huge", "negative"])
def test_a_number_beyond_reason_is_refused_by_name(place: str, value: int) -> None:
    name = place.split(".")[-1]
    assert ("K is" if name == "num_components" else name) in refusal(changed(place, value))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("name", ["learning_rate", "kl_weight", "blur"])
def test_a_knot_that_is_no_number_is_refused(name: str, value: float) -> None:
    assert name in refusal(changed(f"schedule.{name}", [[0, value]]))


@pytest.mark.parametrize("knots", [[], [[5, 1.0], [4, 1.0]], [[0]], [[0.5, 1.0]], [0, 1.0]])
def test_knots_out_of_order_or_shape_are_refused(knots: Any) -> None:
    assert "learning_rate" in refusal(changed("schedule.learning_rate", knots))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("data.num_objects", []),
        ("data.num_objects", [0, 1]),
        ("data.num_objects", [17]),
        ("data.height", 3),
        ("data.width", 513),
        ("model.inference_state_size", 0),
        ("model.renderer_state_size", 8193),
        ("model.scale_floor", 0.5),
        ("model.family", "other"),
    ],
)
def test_a_value_outside_its_limits_is_refused(place: str, value: Any) -> None:
    assert str(value if not isinstance(value, list) else tuple(value)) in refusal(
        changed(place, value)
    )


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, None, "1", 0])
def test_another_version_is_refused(version: Any) -> None:
    assert f"version {version!r}" in refusal(changed("version", version))


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "[" * 100_000, '"x"', "\x00"])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    assert "config.json" in refusal(text)
