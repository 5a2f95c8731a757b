"""Train the paper's recurrent baseline in several variants side by side, and score each.

A GPU takes a round of all variants in milliseconds, each captured in a graph of its own and
replayed on a stream of its own. The learning rate follows the share of the time that is spent:
constant, then down, as ours. The weights with the best held-out loss in generation mode are kept,
a choice in favour of the baseline.

Usage: python tools/train_ed_lstm.py --out FOLDER [--seconds 200] [--smoke]
"""

import argparse
import copy
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import motes
from motes.baselines.ed_lstm import EDLSTM, Layers, Recurrent, loss
from motes.evaluate import evaluate
from motes.metrics import frame_losses
from motes.run_folder import environment

# encoder and decoder, size of the state, frames after which its own are fed in training
VARIANTS: dict[str, tuple[Layers, int, int | None]] = {
    "one layer, state 2048": ("one", 2048, None),
    "two layers, state 2048": ("two", 2048, None),
    "convolutional, state 1024": ("convolutional", 1024, None),
    "one layer, state 1024, trained on its own frames": ("one", 1024, 5),
}
LEARNING_RATE, LAST_RATE, DECAY_FROM = 1e-3, 1e-5, 0.6
NUM_SEEN, TEST_SEED, NUM_TEST, TRAINING_SEED = 5, 1_000_000, 600, 1
NUM_CHECKS, NUM_EXAMPLES = 12, 15


class Run:
    """One variant, its optimizer and its captured step."""

    def __init__(self, name: str, video: Any, batch: int, scale: int, device: torch.device) -> None:
        layers, state, self.num_seen = VARIANTS[name]
        self.name, self.video, self.steps = name, video, 0
        generator = torch.Generator().manual_seed(0)
        size = tuple(video.shape[2:])
        self.network = EDLSTM(size, state // scale, layers, generator).to(device)
        self.rate = torch.tensor(LEARNING_RATE, device=device)
        on_gpu = device.type == "cuda"
        self.adam = torch.optim.Adam(self.network.parameters(), lr=self.rate, capturable=on_gpu)
        self.draws = torch.Generator(device).manual_seed(0)
        self.indices = torch.zeros(batch, dtype=torch.int64, device=device)
        self.best: tuple[float, dict[str, torch.Tensor]] = (math.inf, {})
        self.checks: list[tuple[int, float]] = []
        self.stream = torch.cuda.Stream() if on_gpu else None
        self.replay = self._capture() if on_gpu else self._step

    def _step(self) -> None:
        self.adam.zero_grad(set_to_none=True)
        loss(self.network, self.video.unpack(self.indices), self.num_seen).backward()
        self.adam.step()

    def _capture(self) -> Any:
        """The step as a graph, or as it is where it cannot be captured."""
        try:
            with torch.cuda.stream(self.stream):
                for _ in range(3):
                    self._step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                self._step()
            torch.cuda.synchronize()
            return graph.replay
        except RuntimeError as error:
            print(f"{self.name}: not captured ({str(error)[:200]})", flush=True)
            torch.cuda.synchronize()
            return self._step

    def step(self, rate: float) -> None:
        """Takes one step with fresh clips."""
        with torch.cuda.stream(self.stream):  # None: the default
            self.rate.fill_(rate)
            self.indices.random_(0, len(self.video), generator=self.draws)
            self.replay()
        self.steps += 1

    @torch.no_grad()
    def check(self, frames: torch.Tensor) -> float:
        """The held-out loss in generation mode; the best weights are kept."""
        logits = self.network.generate(frames[:, :NUM_SEEN], frames.shape[1] - NUM_SEEN)
        losses = frame_losses(logits.sigmoid()[:, NUM_SEEN:], frames[:, NUM_SEEN:])
        now: float = losses.mean().item()
        self.checks.append((self.steps, now))
        if now < self.best[0]:
            self.best = (now, copy.deepcopy(self.network.state_dict()))
        return now


def rate_at(share: float) -> float:
    """The learning rate after a share of the time: constant, then falling geometrically."""
    fall = max(0.0, share - DECAY_FROM) / (1 - DECAY_FROM)
    rate: float = LEARNING_RATE * (LAST_RATE / LEARNING_RATE) ** fall
    return rate


def _settle(like: torch.Tensor) -> None:
    """Waits for the streams of all runs."""
    if like.is_cuda:
        torch.cuda.synchronize()


def train(runs: list[Run], held_out: torch.Tensor, seconds: float) -> float:
    """Trains all runs in turn for so many seconds; returns the seconds that it took."""
    began, checked = time.monotonic(), 0
    while (spent := time.monotonic() - began) < seconds:
        for run in runs:
            run.step(rate_at(spent / seconds))
        if runs[0].steps % 16 == 0:
            _settle(held_out)  # so that the clock is that of the work
        if spent / seconds * NUM_CHECKS >= checked:
            checked += 1
            _settle(held_out)
            told = {run.name: round(run.check(held_out), 5) for run in runs}
            _settle(held_out)
            print(f"{spent:.0f} s, step {runs[0].steps}: {told}", flush=True)
    _settle(held_out)
    for run in runs:
        run.check(held_out)
    return time.monotonic() - began


def main() -> None:
    """Trains, scores and writes one record, and the frames that figures show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--num-clips", type=int, default=100_000)
    parser.add_argument("--only", default="", help="words of the variants to train; default: all")
    parser.add_argument("--smoke", action="store_true", help="tiny, to see that it runs")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    num_clips, num_test, scale = (40, 12, 64) if options.smoke else (options.num_clips, NUM_TEST, 1)
    began = time.monotonic()
    clips = motes.cannonballs(num_clips + 240, seed=TRAINING_SEED)
    video = clips[:num_clips].video.to(device)
    held_out = clips[num_clips:][:num_clips].frames.float().to(device)
    test = motes.cannonballs(num_test, seed=TEST_SEED)
    print(f"clips after {time.monotonic() - began:.0f} s on {device}", flush=True)
    runs = [
        Run(name, video, options.batch, scale, device) for name in VARIANTS if options.only in name
    ]
    print(f"captured after {time.monotonic() - began:.0f} s", flush=True)
    took = train(runs, held_out, options.seconds)
    options.out.mkdir(parents=True, exist_ok=True)
    variants = {}
    for run in runs:
        run.network.load_state_dict(run.best[1])
        scores = evaluate(Recurrent(run.network.eval()), test)
        variants[run.name] = {"iterations": run.steps, "held_out": run.checks, **scores}
        print(run.name, run.steps, scores["by_count"], flush=True)
    best = min(runs, key=lambda run: run.best[0])
    example = test[:NUM_EXAMPLES].frames.float().to(device)
    with torch.no_grad():
        drawn = best.network.generate(example[:, :NUM_SEEN], example.shape[1] - NUM_SEEN)
    levels = (255 * drawn.sigmoid()).round().to(torch.uint8).cpu().numpy()
    np.savez_compressed(options.out / "ed-lstm.npz", frames=levels)
    record = {
        "baseline": "ed-lstm",
        "best": best.name,
        "batch_size": options.batch,
        "training_clips": num_clips,
        "training_seed": TRAINING_SEED,
        "test_seed": TEST_SEED,
        "frame_size": list(test.video.shape[2:]),
        "num_frames": test.video.shape[1],
        "seconds": took,
        "environment": environment(device),
        "variants": variants,
    }
    (options.out / "ed-lstm.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
