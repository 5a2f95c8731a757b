import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from motes.config import (
    FORMAT_VERSION,
    DataConfig,
    DynamicsConfig,
    RunConfig,
    ScheduleConfig,
    from_json,
    to_json,
)
from motes.core.errors import InputError
from motes.models.paper import PaperSettings
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
    config = RunConfig(
        model=PaperSettings(scale_floor=0.02),
        data=DataConfig(path="clips.npz", num_objects=(2, 5), seed=9),
        dynamics=DynamicsConfig(law="linear"),
        seed=2**62,
    )
    assert from_json(to_json(config), "x") == config


@pytest.mark.parametrize(
    "place", ["extra", "data.extra", "dynamics.extra", "model.extra", "schedule.extra"]
)
def test_an_unknown_field_is_named(place: str) -> None:
    assert "'extra'" in refusal(changed(place, 1))


def every_field(record: dict[str, Any], prefix: str = "") -> list[str]:
    places = []
    for name, value in record.items():
        places.append(prefix + name)
        if isinstance(value, dict):
            places += every_field(value, f"{prefix}{name}.")
    return places


FIELDS = every_field(dataclasses.asdict(PRESETS["paper-smoke"]))


# Fields that were added after the first files of their format, listed by hand.
NEWER = [
    *("initial_model", "single_object_schedule"),
    *("data.colour_axis", "data.channels", "schedule.frozen_occlusion"),
    *("hidden_clips", "precision", "dynamics.num_walls"),
    *("dynamics.contact_kinds", "dynamics.pair_forces"),
]
NEWER_OF_THE_PAPER = ["model.gap_passes"]
# Fields of version 1 that its first files lacked, and the default that they had.
NEWER_1 = {
    "begins_with": None,
    "data.colour_axis": None,
    "data.channels": 1,
    "schedule.frozen_visibility": 0,
    "model.law": "newton",
    "model.pixels": "binary",
    "model.num_kinds": 6,
    "model.hidden_teach": "all",
}
VERSION_1 = Path(__file__).parent / "golden" / "run_folders"


def without(config: RunConfig, *places: str) -> str:
    """Return the JSON of a configuration that lacks some fields."""
    return removed(json.loads(to_json(config)), *places)


def removed(raw: dict[str, Any], *places: str) -> str:
    """Return parsed JSON without some fields, as text."""
    for place in places:
        *path, name = place.split(".")
        record = raw
        for part in path:
            record = record[part]
        del record[name]
    return json.dumps(raw)


@pytest.mark.parametrize("place", sorted({*FIELDS} - {*NEWER, *NEWER_OF_THE_PAPER}))
def test_a_missing_field_is_named(place: str) -> None:
    assert repr(place.split(".")[-1]) in refusal(without(PRESETS["paper-smoke"], place))


def test_fields_that_older_files_lack_have_their_defaults() -> None:
    newer = (*NEWER, *NEWER_OF_THE_PAPER)
    assert from_json(without(PRESETS["paper-smoke"], *newer), "x") == PRESETS["paper-smoke"]
    config = PRESETS["sprites"]
    for place in NEWER:  # one by one, so that no field is forgotten here
        *path, name = place.split(".")
        read: Any = from_json(without(config, place), "x")
        for part in path:
            read = getattr(read, part)
        default = {field.name: field.default for field in dataclasses.fields(read)}[name]
        assert getattr(read, name) == default


def version_1(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((VERSION_1 / name / "config.json").read_text("utf-8"))
    return raw


def test_files_of_version_1_are_read_as_their_presets() -> None:
    """The smoke runs of version 0.1, written by it, against the presets of this version."""
    smoke = PRESETS["paper-smoke"]
    assert from_json(json.dumps(version_1("paper")), "x") == smoke
    assert from_json(json.dumps(version_1("sprites")), "x") == PRESETS["sprites-smoke"]
    distilled = replace(
        smoke, teacher="sprites", schedule=replace(smoke.schedule, distillation_steps=10)
    )
    assert from_json(json.dumps(version_1("distilled")), "x") == distilled
    occluded = PRESETS["sprites-occluded"]
    short = {"iterations": 8, "steps_per_search": 4, "mixture_em_steps": (4,)}
    schedule = replace(occluded.schedule, frozen_occlusion=4, **short)
    batches = {"batch_size": 8, "log_every": 4, "checkpoint_every": 4}
    expected = replace(occluded, data=smoke.data, schedule=schedule, **batches)
    assert from_json(json.dumps(version_1("sprites-occluded")), "x") == expected
    layers = PRESETS["layers"]
    read = from_json(json.dumps(version_1("layers")), "x")
    expected = replace(layers, schedule=replace(layers.schedule, **short), **batches)
    assert read == replace(expected, data=read.data)
    assert (read.data.path, read.data.height, read.data.channels) == ("layers.npz", 24, 1)


@pytest.mark.parametrize("name", ["paper", "sprites", "sprites-occluded", "layers"])
def test_fields_that_older_files_of_version_1_lack_have_their_defaults(name: str) -> None:
    for place, default in NEWER_1.items():
        raw = version_1(name)
        *path, field = place.split(".")
        record = raw
        for part in path:
            record = record[part]
        record[field] = default
        expected = from_json(json.dumps(raw), "x")
        assert from_json(removed(version_1(name), place), "x") == expected, place


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("model.family", "other"),
        ("model.family", ["paper"]),
        ("model.pixels", "grey"),
        ("model.hidden_teach", "none"),
        ("model.extra", 1),
        ("schedule.extra", 1),
        ("schedule.distillation_steps", 1),
        ("extra", 1),
        ("model", 3),
        ("schedule", None),
    ],
)
def test_damaged_files_of_version_1_are_refused_by_name(place: str, value: Any) -> None:
    raw = version_1("paper")
    *path, name = place.split(".")
    record = raw
    for part in path:
        record = record[part]
    record[name] = value
    message = refusal(json.dumps(raw))
    assert name in message or "fields of two versions" in message


def test_a_missing_field_of_version_1_is_named() -> None:
    for name in set(version_1("paper")["model"]) - {p.split(".")[-1] for p in NEWER_1}:
        assert repr(name) in refusal(removed(version_1("paper"), f"model.{name}"))


@pytest.mark.parametrize("place", FIELDS)
@pytest.mark.parametrize("value", [True, {"a": 1}, [[[]]]])
def test_a_value_of_the_wrong_type_is_refused_by_name(place: str, value: Any) -> None:
    message = refusal(changed(place, value))
    assert place.split(".")[-1] in message or "unknown fields ['a']" in message


HUGE = [
    *("batch_size", "seed", "log_every", "checkpoint_every"),
    *(f"data.{name}" for name in ("num_clips", "num_held_out", "num_frames", "seed")),
    *(f"dynamics.{name}" for name in ("num_components", "sampling_period", "state_noise")),
    *(f"dynamics.{name}" for name in ("position_noise", "initial_spread")),
    "model.initial_scale",
    *(f"schedule.{name}" for name in ("iterations", "frozen_dynamics", "distillation_steps")),
    *(f"schedule.{name}" for name in ("steps_per_search", "dynamics_rate")),
]


@pytest.mark.parametrize("place", HUGE)
@pytest.mark.parametrize("value", [10**18 * 10, 10**400, -1], ids=["large", "huge", "negative"])
def test_a_number_beyond_reason_is_refused_by_name(place: str, value: int) -> None:
    name = place.split(".")[-1]
    assert ("K is" if name == "num_components" else name) in refusal(changed(place, value))


@pytest.mark.parametrize("name", ["sprite_radius", "sprite_width", "pixels_per_unit", "window"])
@pytest.mark.parametrize("preset", ["sprites-smoke", "layers"])
@pytest.mark.parametrize("value", [10**19, 10**400, -1], ids=["large", "huge", "negative"])
def test_a_sprite_setting_beyond_reason_is_refused_by_name(
    name: str, preset: str, value: int
) -> None:
    raw = json.loads(to_json(PRESETS[preset]))
    raw["model"][name] = value
    assert name in refusal(json.dumps(raw))


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
        ("family", "other"),
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
def test_text_that_is_no_json_object_is_refused(text: str) -> None:
    assert "config.json" in refusal(text)


def test_frames_are_grey_or_in_colour() -> None:
    assert "channels is 2; give 1 or 3" in refusal(changed("data.channels", 2))


def test_a_stretched_schedule_has_its_knots_at_the_same_shares() -> None:
    schedule = ScheduleConfig(
        iterations=100, frozen_dynamics=10, kl_weight=((0, 1.0), (50, 4.0)), blur=((20, 0.0),)
    )
    longer = schedule.stretched(300)
    assert longer.kl_weight == ((0, 1.0), (150, 4.0))
    assert longer.blur == ((60, 0.0),)
    assert (longer.iterations, longer.frozen_dynamics) == (300, 30)


def test_an_unknown_precision_is_refused() -> None:
    assert "precision is 'half'; give mixed or float32" in refusal(changed("precision", "half"))
