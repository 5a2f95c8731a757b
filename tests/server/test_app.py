"""Responses of the playground equal the queries; every error is one line."""

import asyncio
import base64
import json
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import motes
from motes.data import Clips, pack
from motes.evaluation.learned import learned_force
from motes.output.tracks import SHOWN_DRAWS
from motes.queries.answer import Answer
from motes.server import schemas
from motes.server.app import PAGE, BusyError, QuestionQueue, create_app
from motes.server.playground import (
    NUM_EXAMPLES,
    NUM_SAMPLES,
    Playground,
    Question,
    _prediction,
    held_out_clips,
)
from motes.server.schemas import decode_frames, encode_frames
from tiny import HEIGHT, MAX_OBJECTS, WIDTH, tiny_config, tiny_frames, tiny_sprite_model

T = 7
GAP = [True, True, False, False, True, False, True]
HALF_ROUNDING = 0.5e-3 + 1e-6  # records hold thousandths of a pixel; the rest is float32
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let questions wait: on a busy machine an answer may take more than ten seconds."""
    monkeypatch.setattr("motes.server.app.WAIT_SECONDS", 600.0)


@pytest.fixture(scope="module")
def playground() -> Playground:
    model = tiny_sprite_model()
    with torch.no_grad():  # a law that moves places and speeds, so that none can be left out
        model.dynamics.force.copy_(torch.tensor([0.02, 0.04, 0.1, 0.3]))
    return Playground(model, tiny_config(), "tiny")


@pytest.fixture(scope="module")
def client(playground: Playground) -> TestClient:
    return TestClient(create_app(playground), base_url="http://localhost")


@pytest.fixture(scope="module")
def frames() -> torch.Tensor:
    return tiny_frames(1, T)


def video(frames: torch.Tensor) -> Json:
    num_frames, height, width = frames.shape
    shape = {"num_frames": num_frames, "height": height, "width": width}
    return {**shape, "frames": encode_frames(frames)}


def request(frames: torch.Tensor, **changes: Any) -> Json:
    return {"video": video(frames[0]), "masks": [[True] * T], "num_objects": 2, **changes}


def reply(client: TestClient, path: str, record: Json) -> Json:
    response = client.post(path, json=record)
    assert response.status_code == 200, response.text
    parsed: Json = response.json()
    return parsed


def assert_prediction_is(prediction: Json, answer: Answer) -> None:
    tracks = prediction["tracks"]
    fields = {"positions": answer.pixels, "path": answer.path_pixels}
    for name, expected in fields.items():
        found = torch.tensor([track[name] for track in tracks])
        torch.testing.assert_close(found, expected[0], rtol=1e-5, atol=HALF_ROUNDING)
    spreads = {
        "covariances": answer.pixel_covariances,
        "path_covariances": answer.path_pixel_covariances,
    }
    for name, expected in spreads.items():
        found = torch.tensor([track[name] for track in tracks])
        upper = expected[0].flatten(-2)[..., [0, 1, 3]]
        torch.testing.assert_close(found, upper, rtol=1e-5, atol=HALF_ROUNDING)
    found = torch.tensor([track["component_probabilities"] for track in tracks])
    torch.testing.assert_close(found, answer.component_probabilities[0], rtol=0, atol=HALF_ROUNDING)
    assert prediction["observed"] == answer.observed[0].tolist()
    assert all(track["branches"] == [] for track in tracks)  # this law does not fork


@pytest.mark.parametrize("count", [1, MAX_OBJECTS])
def test_masks_infer_forecast_and_interpolate(
    count: int, client: TestClient, playground: Playground, frames: torch.Tensor
) -> None:
    early = [True] * 3 + [False] * 4
    asked = request(frames, masks=[[True] * T, early, GAP], num_objects=count)
    whole, ahead, between = reply(client, "/api/query", asked)["predictions"]
    model = playground.model
    assert_prediction_is(whole, motes.infer(model, frames, count))
    assert_prediction_is(ahead, motes.forecast(model, frames[:, :3], count, horizon=4))
    assert_prediction_is(between, motes.interpolate(model, frames, GAP, count))


def test_a_single_mask_gets_the_frames_that_python_draws(
    client: TestClient, playground: Playground, frames: torch.Tensor
) -> None:
    (prediction,) = reply(client, "/api/query", request(frames, masks=[GAP]))["predictions"]
    expected = motes.interpolate(playground.model, frames, GAP, 2).frames[0]
    shape = {"num_frames": T, "height": HEIGHT, "width": WIDTH}
    found = decode_frames(schemas.Video(**shape, frames=prediction["frames"]))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.5 / 255 + 1e-6)


def test_frames_beyond_the_end_are_a_forecast(
    client: TestClient, playground: Playground, frames: torch.Tensor
) -> None:
    longer = request(frames, masks=[[True] * T + [False] * 5])
    (prediction,) = reply(client, "/api/query", longer)["predictions"]
    assert_prediction_is(prediction, motes.forecast(playground.model, frames, 2, horizon=5))


def test_hidden_pixels_do_not_reach_the_answer(client: TestClient, frames: torch.Tensor) -> None:
    other = frames.clone()
    other[:, ~torch.tensor(GAP)] = 1 - other[:, ~torch.tensor(GAP)]
    answers = [
        reply(client, "/api/query", request(f, masks=[GAP]))["predictions"] for f in (frames, other)
    ]
    assert answers[0] == answers[1]


def test_counting_gives_the_probabilities_that_python_gives(
    client: TestClient, playground: Playground, frames: torch.Tensor
) -> None:
    found = reply(client, "/api/count", {"video": video(frames[0]), "mask": GAP})
    expected = motes.interpolate(playground.model, frames, GAP).count_probabilities
    assert expected is not None
    np.testing.assert_allclose(found["probabilities"], expected[0].numpy(), rtol=1e-4, atol=1e-6)


def test_of_a_long_video_the_first_observed_frames_are_counted(
    client: TestClient,
    playground: Playground,
    frames: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("motes.server.playground.MAX_COUNT_FRAMES", 3)
    found = reply(client, "/api/count", {"video": video(frames[0]), "mask": GAP})
    expected = motes.interpolate(playground.model, frames[:, :5], GAP[:5]).count_probabilities
    assert sum(GAP[:5]) == 3 < sum(GAP)
    assert expected is not None
    np.testing.assert_allclose(found["probabilities"], expected[0].numpy(), rtol=1e-4, atol=1e-6)


def test_decoding_inverts_encoding(generator: torch.Generator) -> None:
    sent = torch.rand(3, 5, 4, generator=generator)
    record = schemas.Video(num_frames=3, height=5, width=4, frames=encode_frames(sent))
    torch.testing.assert_close(decode_frames(record), sent, rtol=0, atol=0.5 / 255 + 1e-6)


def test_examples_are_clips_with_their_truth_and_another_seed_gives_others(
    client: TestClient,
) -> None:
    first, again, other = (
        client.get(f"/api/examples?seed={seed}").json()["clips"] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert len(first) == NUM_EXAMPLES
    counts = [clip["num_objects"] for clip in first]
    assert counts == sorted(counts)
    assert set(counts) == set(range(1, MAX_OBJECTS + 1))
    for clip in first:
        assert len(clip["truth"]) == clip["num_objects"]
        assert all(len(path) == clip["num_frames"] for path in clip["truth"])
        assert (clip["height"], clip["width"]) == (HEIGHT, WIDTH)


def test_examples_are_held_out_clips_of_the_training_file_if_it_exists(
    playground: Playground, tmp_path: Path
) -> None:
    frames = tiny_frames(8, 6)
    path = tmp_path / "mine.npz"
    motes.save_clips(path, Clips(pack(frames > 0.5), torch.full((len(frames),), 2)))
    data = replace(playground.config.data, path=str(path), num_clips=3)
    mine = replace(playground, held_out=held_out_clips(data))
    shown = mine.examples(0).clips
    decoded = torch.stack([decode_frames(clip) for clip in shown])
    assert torch.equal(decoded, (frames[3 : 3 + NUM_EXAMPLES] > 0.5).float())
    assert {clip.num_objects for clip in shown} == {2}
    assert held_out_clips(replace(data, path=str(tmp_path / "gone.npz"))) is None
    assert held_out_clips(replace(data, height=HEIGHT + 1)) is None
    path.write_text("another file now")
    assert held_out_clips(data) is None


def test_sampled_clips_are_those_of_the_seed(client: TestClient, playground: Playground) -> None:
    wanted = {"num_objects": 2, "num_frames": 9, "seed": 4}
    clips = reply(client, "/api/sample", wanted)["clips"]
    expected = motes.sample(playground.model, NUM_SAMPLES, 2, 9, seed=4)
    for clip, path in zip(clips, expected.path_pixels, strict=True):
        found = torch.tensor(clip["truth"])
        torch.testing.assert_close(found, path, rtol=1e-5, atol=HALF_ROUNDING)


def test_thrown_balls_obey_the_learned_law(client: TestClient, playground: Playground) -> None:
    balls = [
        {"x": 1.0, "y": 4.0, "vx": 0.5, "vy": -0.25},
        {"x": 6.0, "y": 2.0, "vx": -0.25, "vy": 0.0},
    ]
    clip = reply(client, "/api/throw", {"balls": balls, "num_frames": 8})
    paths = np.array(clip["truth"])
    # Each place is rounded to half a thousandth; a step holds two places, a change of step four.
    np.testing.assert_allclose(paths[:, 0], [[1, 4], [6, 2]], atol=0.6e-3)
    np.testing.assert_allclose(paths[:, 1] - paths[:, 0], [[0.5, -0.25], [-0.25, 0]], atol=1.1e-3)
    model = playground.model
    law = learned_force(model).tolist()
    second = np.diff(paths, n=2, axis=1)
    np.testing.assert_allclose(second, np.broadcast_to(law, second.shape), atol=2.1e-3)
    assert clip["num_objects"] == 2


def test_a_thrown_ball_is_inferred_back() -> None:
    shipped = Playground.of("cannonballs-structured")
    ball = schemas.Ball(x=12, y=30, vx=0.9, vy=-1.2)
    clip = shipped.throw(schemas.ThrowRequest(balls=[ball], num_frames=30))
    sent = schemas.Video(num_frames=30, height=48, width=48, frames=clip.frames)
    asked = schemas.QueryRequest(video=sent, masks=[[True] * 30], num_objects=1)
    (reply_,) = shipped.answer([shipped.query(asked)])
    (track,) = schemas.Predictions.model_validate_json(reply_).predictions[0].tracks
    assert clip.truth is not None
    distance = np.linalg.norm(np.array(track.path) - np.array(clip.truth[0]), axis=-1)
    # The frames jitter by 0.8 px; a smoothed path is nearer than one jitter on average.
    assert distance.mean() < 0.8


def test_about_describes_the_model(client: TestClient, playground: Playground) -> None:
    about = client.get("/api/about").json()
    assert about["model"] == "tiny"
    assert (about["height"], about["width"]) == (HEIGHT, WIDTH)
    assert about["max_objects"] == MAX_OBJECTS
    assert sum(component["weight"] for component in about["components"]) == pytest.approx(1)


SHORT = base64.b64encode(bytes(5)).decode()
BAD: dict[str, tuple[str, Json, int, str]] = {
    "not base64": ("query", {"video.frames": "?!"}, 400, "base64"),
    "too few bytes": ("query", {"video.frames": SHORT}, 400, "5 bytes"),
    "another size": (
        "query",
        {"video.height": WIDTH, "video.width": HEIGHT},
        400,
        "8x6 pixels; this model takes 6x8",
    ),
    "one frame": ("query", {"video.num_frames": 1}, 422, "num_frames"),
    "nothing observed": ("query", {"masks": [[False] * T]}, 400, "no observed frame"),
    "mask too short": ("query", {"masks": [[True]]}, 400, "lengths [1]"),
    "masks of two lengths": ("query", {"masks": [[True] * 7, [True] * 8]}, 400, "lengths [7, 8]"),
    "observed after the end": ("query", {"masks": [[True] * (T + 1)]}, 400, "after the end"),
    "no mask": ("query", {"masks": []}, 422, "masks"),
    "four masks": ("query", {"masks": [GAP] * 4}, 422, "masks"),
    "no objects": ("query", {"num_objects": 0}, 422, "num_objects"),
    "more objects than anybody": ("query", {"num_objects": 17}, 422, "num_objects"),
    "too much work": (
        "query",
        {"num_objects": 16, "masks": [[True] * T + [False] * 100] * 3},
        400,
        "16 objects in 3 times 107 frames",
    ),
    "unknown field": ("query", {"colour": "red"}, 422, "colour"),
    "a word for a number": ("query", {"num_objects": "two"}, 422, "num_objects"),
    "mask of another clip": ("count", {"mask": [True] * 3}, 400, "3 flags"),
    "too many sampled objects": ("sample", {"num_objects": 17}, 422, "num_objects"),
    "sample too long": ("sample", {"num_frames": 10**6}, 422, "num_frames"),
    "seed too large": ("sample", {"seed": 2**64}, 422, "seed"),
    "no balls": ("throw", {"balls": []}, 422, "balls"),
    "more balls than it knows": (
        "throw",
        {"balls": [{"x": 1, "y": 1, "vx": 0, "vy": 0}] * 4},
        400,
        "got 4 balls",
    ),
    "a ball nowhere": ("throw", {"balls": [{"x": 1e300, "y": 1, "vx": 0, "vy": 0}]}, 422, "x"),
}


def good(path: str, frames: torch.Tensor) -> Json:
    return {
        "query": request(frames),
        "count": {"video": video(frames[0]), "mask": [True] * T},
        "sample": {"num_objects": 1, "num_frames": 4},
        "throw": {"balls": [{"x": 1, "y": 1, "vx": 0, "vy": 0}], "num_frames": 4},
    }[path]


@pytest.mark.parametrize("mistake", BAD)
def test_bad_requests_are_one_line(mistake: str, client: TestClient, frames: torch.Tensor) -> None:
    path, changes, status, words = BAD[mistake]
    record = good(path, frames)
    for key, value in changes.items():
        *inner, name = key.split(".")
        place = record[inner[0]] if inner else record
        place[name] = value
    response = client.post(f"/api/{path}", json=record)
    assert response.status_code == status
    assert_one_line(response.json(), words)


def assert_one_line(record: Json, words: str = "") -> None:
    assert set(record) == {"error"}
    assert words in record["error"]
    assert "\n" not in record["error"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"video": NaN}', b"[" * 100_000],
    ids=["empty", "cut", "list", "null", "binary", "NaN", "deep"],
)
def test_a_body_that_is_no_request_is_one_line(body: bytes, client: TestClient) -> None:
    response = client.post("/api/query", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    assert_one_line(response.json())


def test_numbers_that_json_does_not_know_are_refused(client: TestClient) -> None:
    body = '{"balls": [{"x": NaN, "y": 1, "vx": 0, "vy": Infinity}], "num_frames": 4}'
    response = client.post("/api/throw", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 422
    assert_one_line(response.json())


@pytest.mark.parametrize("path", ["/api/none", "/none.js", "/..%2f..%2fapp.py", "/api/query"])
def test_pages_that_are_not_there_are_one_line(path: str, client: TestClient) -> None:
    response = client.get(path)
    assert response.status_code in (404, 405)
    assert_one_line(response.json())


def test_a_full_queue_is_reported_at_once(
    client: TestClient, frames: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motes.server.app.MAX_QUESTIONS", 0)
    full = TestClient(
        create_app(Playground(tiny_sprite_model(), tiny_config(), "tiny")),
        base_url="http://localhost",
    )
    response = full.post("/api/query", json=request(frames))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert_one_line(response.json(), "try again")
    # Cheap requests and wrong ones do not wait for the model.
    assert full.get("/api/examples").status_code == 200
    unseen = request(frames, masks=[[False] * T])
    assert full.post("/api/query", json=unseen).status_code == 400


class Slow(Playground):
    """A playground that records its batches and waits until it is released."""

    def __init__(self, playground: Playground) -> None:
        super().__init__(playground.model, playground.config, "slow")
        batches: list[list[Question]] = []
        for name, value in {"batches": batches, "released": threading.Event()}.items():
            object.__setattr__(self, name, value)  # the record is frozen

    def answer(self, questions: Sequence[Question]) -> list[bytes]:
        self.batches.append(list(questions))
        assert self.released.wait(60)
        return super().answer(questions)


def test_questions_of_one_kind_are_answered_together_in_order(
    playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(playground)
    clips = [tiny_frames(1, T, seed=seed) for seed in range(8)]
    two, three = [[True] * T, GAP], [[True] * T, GAP, [True] * 3 + [False] * 4]
    asked = [
        *(request(clip, masks=two) for clip in clips[:3]),
        request(clips[3], masks=two, num_objects=1),
        *(request(clip, masks=three) for clip in clips[4:]),
    ]
    questions = [slow.query(schemas.QueryRequest(**record)) for record in asked]
    monkeypatch.setattr(type(playground.model.inference), "clips_per_thread", 9)

    async def scenario() -> list[bytes]:
        queue = QuestionQueue(slow, num_threads=1)
        tasks = [asyncio.create_task(queue.answer(question)) for question in questions]
        slow.released.set()
        answers = [bytes((await task).body) for task in tasks]
        await asyncio.wait([*queue.answering, asyncio.create_task(asyncio.sleep(0))])
        assert not queue.waiting
        assert not queue.answering
        return answers

    answers = asyncio.run(scenario())
    places = {id(question): place for place, question in enumerate(questions)}
    found = [[places[id(question)] for question in batch] for batch in slow.batches]
    # At most 9 clips in a batch: 2 + 2 + 2 + 3, then the other count, then 3 + 3 + 3.
    assert found == [[0, 1, 2, 4], [3], [5, 6, 7]]
    for question, answer in zip(questions, answers, strict=True):
        assert_same_answer(answer, playground.answer([question])[0])


def test_two_threads_answer_two_batches_at_a_time(playground: Playground) -> None:
    slow = Slow(playground)
    clips = [tiny_frames(1, T, seed=seed) for seed in range(2)]
    asked = [request(clips[0], num_objects=1), request(clips[1], num_objects=2)]
    questions = [slow.query(schemas.QueryRequest(**record)) for record in asked]

    async def scenario() -> list[bytes]:
        queue = QuestionQueue(slow, num_threads=2)
        tasks = [asyncio.create_task(queue.answer(question)) for question in questions]
        while len(slow.batches) < 2:  # both are begun although none is answered
            await asyncio.sleep(0.01)
        slow.released.set()
        return [bytes((await task).body) for task in tasks]

    for question, answer in zip(questions, asyncio.run(scenario()), strict=True):
        assert_same_answer(answer, playground.answer([question])[0])


def test_equal_questions_are_answered_once_and_the_last_answers_are_kept(
    playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motes.server.app.MAX_ANSWERS", 2)
    slow = Slow(playground)
    slow.released.set()
    clip, other = (tiny_frames(1, T, seed=seed) for seed in range(2))
    hidden = clip.clone()
    hidden[0, -1] = 1 - hidden[0, -1]
    asked = [
        request(clip),
        request(clip),
        request(clip, masks=[GAP]),
        request(clip, num_objects=1),
        request(hidden),
        request(other),
    ]
    questions = [slow.query(schemas.QueryRequest(**record)) for record in asked]
    same, again, *different = [question.digest for question in questions]
    assert same == again
    assert len({same, *different}) == 5

    async def scenario() -> None:
        queue = QuestionQueue(slow, num_threads=1)
        first = await asyncio.gather(*map(queue.answer, questions[:2]))
        assert [len(batch) for batch in slow.batches] == [1]
        assert first[0].body == first[1].body == (await queue.answer(questions[0])).body
        for question in questions[2:4]:
            await queue.answer(question)
        assert len(slow.batches) == 3
        assert list(queue.answers) == [question.digest for question in questions[2:4]]
        await queue.answer(questions[0])  # was dropped
        assert len(slow.batches) == 4

    asyncio.run(scenario())


def assert_same_answer(found: bytes, expected: bytes) -> None:
    """Answers in a batch may differ by rounding: sums of other shapes have another order."""
    ours, theirs = (json.loads(answer) for answer in (found, expected))
    assert set(ours) == set(theirs)
    for one, other in zip(ours["predictions"], theirs["predictions"], strict=True):
        assert one["observed"] == other["observed"]
        levels = [
            np.frombuffer(base64.b64decode(each["frames"]), np.uint8) for each in (one, other)
        ]
        np.testing.assert_allclose(*(level.astype(float) for level in levels), rtol=0, atol=1)
        for track, known in zip(one["tracks"], other["tracks"], strict=True):
            for name in known:
                np.testing.assert_allclose(track[name], known[name], rtol=1e-5, atol=1e-3 + 1e-9)


def test_questions_answered_together_get_their_own_answers(playground: Playground) -> None:
    clips = [tiny_frames(1, T, seed=seed) for seed in range(3)]
    asked = [
        playground.query(schemas.QueryRequest(**request(clip, masks=masks)))
        for clip, masks in zip(clips, ([GAP], [[True] * T, GAP], [GAP]), strict=True)
    ]
    together = playground.answer(asked)
    for question, answer in zip(asked, together, strict=True):
        assert_same_answer(answer, playground.answer([question])[0])
    counted = [
        playground.count(schemas.CountRequest(video=schemas.Video(**video(clip[0])), mask=GAP))
        for clip in clips
    ]
    alone = [json.loads(playground.answer([question])[0]) for question in counted]
    for answer, one in zip(playground.answer(counted), alone, strict=True):
        found = json.loads(answer)["probabilities"]
        # Evidence of hundreds of nats is rounded to 6e-8 of itself, below 1e-4 nats.
        np.testing.assert_allclose(found, one["probabilities"], rtol=1e-4, atol=1e-12)


def test_a_batch_that_fails_fails_for_its_questions_alone(
    playground: Playground, frames: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = playground.query(schemas.QueryRequest(**request(frames)))
    answer = Playground.answer

    async def scenario() -> None:
        queue = QuestionQueue(playground)
        monkeypatch.setattr(Playground, "answer", lambda self, questions: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await queue.answer(question)
        monkeypatch.setattr(Playground, "answer", answer)
        assert (await queue.answer(question)).status_code == 200

    asyncio.run(scenario())


def test_a_question_that_waits_too_long_is_refused(
    playground: Playground, frames: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(playground)
    question = slow.query(schemas.QueryRequest(**request(frames)))
    other = slow.query(schemas.QueryRequest(**request(frames, num_objects=1)))

    async def scenario() -> None:
        queue = QuestionQueue(slow, num_threads=1)
        first = asyncio.create_task(queue.answer(question))
        while not slow.batches:
            await asyncio.sleep(0)
        monkeypatch.setattr("motes.server.app.WAIT_SECONDS", 0.05)
        with pytest.raises(BusyError, match="waited more than"):
            await queue.answer(other)
        slow.released.set()
        assert (await first).status_code == 200
        assert len(slow.batches) == 1

    asyncio.run(scenario())


def test_openapi_documents_every_route_and_its_errors(client: TestClient) -> None:
    schema = client.get("/api/openapi.json").json()
    assert set(schema["paths"]) == {
        f"/api/{name}"
        for name in ("about", "query", "count", "examples", "sample", "throw", "upload")
    }
    for path in schema["paths"].values():
        for operation in path.values():
            assert operation["summary"]
            assert operation["description"]
            assert {"200", "400", "403", "408", "413", "422", "503"} == set(operation["responses"])


def page_files() -> Iterator[tuple[str, str]]:
    for path in sorted(PAGE.iterdir()):
        yield path.name, path.read_text("utf-8")


def test_the_page_refers_to_nothing_outside() -> None:
    for name, text in page_files():
        outside = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", text)
        assert [url for url in outside if url != "http://www.w3.org/2000/svg"] == [], name


def test_the_page_is_served_with_every_file_it_names(client: TestClient) -> None:
    named = set()
    for place in ("/", "/video.html"):
        index = client.get(place)
        assert index.status_code == 200
        assert "text/html" in index.headers["content-type"]
        named |= set(re.findall(r'(?:src|href)="(\w[\w.]*)"', index.text))
    modules = {m for _, text in page_files() for m in re.findall(r'from "\./(\w+\.js)"', text)}
    assert named >= {"main.js", "style.css", "icon.svg"}
    for name in named | modules:
        assert client.get(f"/{name}").status_code == 200, name
    assert {name for name, _ in page_files()} == named | modules | {"index.html"}


def test_every_element_that_the_page_looks_for_is_there() -> None:
    files = dict(page_files())
    for script, page in (("main.js", "index.html"), ("video.js", "video.html")):
        wanted = set(re.findall(r'find\("([\w-]+)"\)', files[script]))
        assert wanted <= set(re.findall(r'id="([\w-]+)"', files[page]))


def test_answers_are_small_enough_to_travel_quickly(
    client: TestClient, frames: torch.Tensor
) -> None:
    response = client.post("/api/query", json=request(frames, masks=[GAP]))
    pixels = T * HEIGHT * WIDTH
    numbers = 2 * T * (2 * 2 + 2 * 3)  # two objects: two points and two covariances a frame
    assert len(response.content) < 4 / 3 * pixels + 10 * numbers + 500
    assert "NaN" not in json.dumps(response.json())


def test_a_law_that_forks_sends_its_branches_where_frames_are_hidden(
    playground: Playground, frames: torch.Tensor
) -> None:
    answer = motes.interpolate(playground.model, frames[:1], torch.tensor(GAP), 1)
    paths = torch.randn(30, 1, 1, T, 2, generator=torch.Generator().manual_seed(0))
    forked = replace(answer, forks=True, draw_paths=lambda: paths)
    (track,) = _prediction(forked, 0).tracks
    assert len(track.branches) == SHOWN_DRAWS
    torch.testing.assert_close(
        torch.tensor(track.branches[3]), paths[3, 0, 0], rtol=1e-5, atol=HALF_ROUNDING
    )
    whole = replace(forked, observed=torch.ones_like(forked.observed))
    assert _prediction(whole, 0).tracks[0].branches == []
