"""Answers about a recording, fitted to its own pixels."""

from dataclasses import replace

import numpy as np
import torch

import motes
from motes.output.full_resolution import refine_answer
from motes.video import VideoMap
from tiny import tiny_frames, tiny_model


def test_seen_positions_are_fitted_to_the_pixels_of_the_recording() -> None:
    num_frames, factor = 12, 4.0
    x = 20.0 + 8 * np.arange(num_frames)
    truth = np.stack((x, np.full(num_frames, 30.3)), 1)
    row, column = np.mgrid[:60, :140].astype(float)
    frames = []
    for cx, cy in truth:
        cover = (6.5 - np.hypot(column - cx, row - cy)).clip(0, 1)
        level = np.rint(40 + 150 * cover).astype(np.uint8)
        frames.append(np.repeat(level[..., None], 3, 2))
    times = np.arange(num_frames)[None]
    where = VideoMap(np.full(2, factor), np.full(2, 1.5), times / 10, times)
    answer = motes.infer(tiny_model(), tiny_frames(1, num_frames), 1)
    rough = torch.from_numpy((truth + 1.0 - 1.5) / factor)[None, None].float()
    found = torch.ones(1, 1, num_frames, dtype=torch.bool)
    found[..., 4] = False
    answer = replace(answer, pixels=rough, found=found)
    refined = refine_answer(answer, where, lambda: iter(frames), 12.0)
    places = where.points(refined.pixels)[0, 0].numpy()
    seen = found[0, 0].numpy()
    assert np.abs(places - truth)[seen].max() < 0.05
    assert torch.equal(refined.pixels[..., 4, :], answer.pixels[..., 4, :])
    assert torch.equal(
        refined.pixel_covariances[..., 4, :, :], answer.pixel_covariances[..., 4, :, :]
    )
    sd = where.covariances(refined.pixel_covariances)[0, 0, :, 0, 0].sqrt().numpy()
    assert (sd[seen] < 0.1).all()
    assert torch.equal(refined.path_pixels, answer.path_pixels)


def test_an_answer_without_detections_is_returned_as_it_is() -> None:
    answer = motes.infer(tiny_model(), tiny_frames(1, 3), 1)
    answer = replace(answer, found=torch.zeros_like(answer.found))
    times = np.arange(3)[None]
    where = VideoMap(np.ones(2), np.zeros(2), times / 10, times)
    assert refine_answer(answer, where, lambda: iter(()), 5.0) is answer
