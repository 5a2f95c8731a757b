from typing import Any

import torch

import motes
from motes.queries.absences import infer_recording, parts_of


def two_throws() -> tuple[torch.Tensor, torch.Tensor]:
    """Return ten frames of nothing, a throw, twenty of nothing and another throw; and the truth."""
    clips = motes.cannonballs(2, 1, seed=8)
    assert clips.positions is not None
    frames, nothing = clips.frames.float(), torch.zeros(1, 20, 48, 48)
    nowhere = torch.full((1, 20, 2), torch.nan)
    paths = [clips.positions[clip, 0, :14][None] for clip in range(2)]
    shown = [nothing[:, :10], frames[:1, :14], nothing, frames[1:, :14]]
    return torch.cat(shown, 1), torch.cat([nowhere[:, :10], paths[0], nowhere, paths[1]], 1)[0]


def test_a_ball_that_is_thrown_twice_is_found_twice() -> None:
    model = motes.load("cannonballs-structured")
    frames, truth = two_throws()
    answer = infer_recording(model, frames, 1)
    there = truth[:, 0].isfinite() & (frames[0].sum((1, 2)) > 0)
    assert answer.pixels.shape == (1, 1, len(truth), 2)
    assert bool(answer.observed.all())
    assert not answer.seen[0, 0][~there].any()
    assert float(answer.seen[0, 0][there].float().mean()) > 0.9
    found = there & answer.seen[0, 0]
    assert float((answer.pixels[0, 0] - truth)[found].square().mean().sqrt()) < 0.8
    # In one piece most of it is missed, and the model says so.
    whole = motes.infer(model, frames, 1)
    assert int(whole.seen.sum()) < 0.7 * int(found.sum())
    assert whole.fit is not None
    assert answer.fit is not None
    assert whole.fit.warning is not None
    assert answer.fit.warning is None
    # Before the first throw the ball may be anywhere; frames and draws cover all frames.
    assert float(answer.pixel_covariances[0, 0, 0, 0, 0]) == 24.0**2
    assert answer.frames.shape == frames.shape
    assert answer.draws.shape[1:] == answer.pixels.shape


def test_an_answer_that_fits_is_that_of_infer() -> None:
    model, clips = motes.load("cannonballs-structured"), motes.cannonballs(1, 2, seed=8)
    options: dict[str, Any] = {"num_objects": 2}
    one, other = (ask(model, clips.frames, **options) for ask in (infer_recording, motes.infer))
    assert torch.equal(one.pixels, other.pixels)
    assert torch.equal(one.pixel_covariances, other.pixel_covariances)


def test_parts_and_absences_cover_the_recording() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        shows = (torch.rand(12, generator=generator) < 0.5).repeat_interleave(4)
        parts = parts_of(shows)
        if not parts:
            assert not shows.any()
            continue
        place = parts[0][0].start
        assert not shows[:place].any()
        for span, gap in parts:
            assert span.start == place
            assert shows[span.start]
            assert shows[span.stop - 1]
            assert not shows[span.stop : span.stop + gap].any()
            place = span.stop + gap
        assert place == len(shows)
    assert parts_of(torch.zeros(9, dtype=torch.bool)) == []
