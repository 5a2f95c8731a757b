"""Train the paper's recurrent baseline in several variants side by side, and score each.

A GPU takes a round of all variants in milliseconds, each captured in a graph of its own and
replayed on a stream of its own. Every variant first tries the learning rates for a while and goes
on with the better. The rate is constant, then falls, as ours. The weights with the best held-out
loss in generation mode are kept, a choice in favour of the baseline; test clips choose nothing.

Usage: python tools/train_ed_lstm.py --out FOLDER [--iterations 70000] [--seconds 400] [--smoke]
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
    "two layers, state 1024, trained on its own frames": ("two", 1024, 5),
    "convolutional, state 1024, trained on its own frames": ("convolutional", 1024, 5),
}
RATES, LAST_SHARE, DECAY_FROM = (1e-3, 3e-4), 0.01, 0.6
TRIAL_STEPS, TRIAL_TIME = 1500, 0.3  # of each rate, and at most this share of the seconds
NUM_SEEN, TEST_SEED, NUM_TEST, TRAINING_SEED = 5, 1_000_000, 600, 1
BLOCK, NUM_CHECKS, NUM_EXAMPLES = 16, 20, 15


class Run:
    """One variant at one learning rate, its optimizer and its captured step."""

    def __init__(
        self, name: str, rate: float, video: Any, white: float, batch: int, scale: int
    ) -> None:
        device = video.bits.device
        layers, state, self.num_seen = VARIANTS[name]
        self.name, self.first_rate, self.video, self.steps = name, rate, video, 0
        generator = torch.Generator().manual_seed(0)
        size = tuple(video.shape[2:])
        self.network = EDLSTM(size, state // scale, layers, generator)
        self.network.begin_with(white)
        self.network.to(device)
        self.rate = torch.tensor(rate, device=device)
        on_gpu = device.type == "cuda"
        self.adam = torch.optim.Adam(
            self.network.parameters(), lr=self.rate, capturable=on_gpu, fused=on_gpu
        )
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
        torch.cuda.synchronize()  # what was made on the default stream is there
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

    def step(self, share: float) -> None:
        """Takes one step with fresh clips, when a share of the training is done."""
        with torch.cuda.stream(self.stream):  # None: the default
            self.rate.fill_(self.first_rate * pace(share))
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


def pace(share: float) -> float:
    """The factor of the learning rate when a share is done: one, then falling geometrically."""
    fall = max(0.0, share - DECAY_FROM) / (1 - DECAY_FROM)
    factor: float = LAST_SHARE**fall
    return factor


def _settle(like: torch.Tensor) -> None:
    """Waits for the streams of all runs."""
    if like.is_cuda:
        torch.cuda.synchronize()


def advance(runs: list[Run], share: float, like: torch.Tensor) -> None:
    """Takes a block of steps of all runs in turn and waits for them, so that clocks are right."""
    for _ in range(BLOCK):
        for run in runs:
            run.step(share)
    _settle(like)


def choose_rates(runs: list[Run], held_out: torch.Tensor, seconds: float) -> list[Run]:
    """Of each variant the run with the better rate after a trial."""
    began = time.monotonic()
    while runs[0].steps < TRIAL_STEPS and time.monotonic() - began < seconds:
        advance(runs, 0.0, held_out)
    for run in runs:
        print(f"{run.steps} steps at {run.first_rate}: {run.check(held_out):.5f} {run.name}")
    print(f"a round of {len(runs)}: {(time.monotonic() - began) / runs[0].steps * 1e3:.2f} ms")
    names = dict.fromkeys(run.name for run in runs)
    return [min((r for r in runs if r.name == n), key=lambda run: run.best[0]) for n in names]


def train(runs: list[Run], held_out: torch.Tensor, iterations: int, seconds: float) -> None:
    """Trains all runs in turn to so many iterations, or for so many seconds if that is less."""
    began, first, checked = time.monotonic(), runs[0].steps, 0
    while True:
        spent = time.monotonic() - began
        share = max(runs[0].steps / iterations, spent / seconds)
        if share >= 1:
            break
        advance(runs, share, held_out)
        if share * NUM_CHECKS >= checked:
            checked += 1
            told = {run.name: round(run.check(held_out), 5) for run in runs}
            print(f"{spent:.0f} s, step {runs[0].steps}: {told}", flush=True)
    print(f"a round of {len(runs)}: {spent / max(1, runs[0].steps - first) * 1e3:.2f} ms")
    for run in runs:
        run.check(held_out)


def trial_of(run: Run, runs: list[Run]) -> dict[str, float]:
    """The held-out loss of each rate after the trial."""
    return {str(r.first_rate): r.checks[0][1] for r in runs if r.name == run.name}


def draw_examples(run: Run, frames: torch.Tensor) -> np.ndarray:
    """The forecast pictures of some clips, in levels of 0 to 255."""
    with torch.no_grad():
        drawn = run.network.generate(frames[:, :NUM_SEEN], frames.shape[1] - NUM_SEEN)
    levels: np.ndarray = (255 * drawn.sigmoid()).round().to(torch.uint8).cpu().numpy()
    return levels


def main() -> None:
    """Trains, scores and writes one record, and the frames that figures show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=70_000)
    parser.add_argument("--seconds", type=float, default=400, help="at most, without the scores")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--num-clips", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", default=[""], help="words of variants; default: all")
    parser.add_argument("--smoke", action="store_true", help="tiny, to see that it runs")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    num_clips, num_test, scale = (40, 12, 64) if options.smoke else (options.num_clips, NUM_TEST, 1)
    began = time.monotonic()
    clips = motes.cannonballs(num_clips + 240, seed=TRAINING_SEED)
    video = clips[:num_clips].video.to(device)
    held_out = clips[num_clips:][:num_clips].frames.float().to(device)
    test = motes.cannonballs(num_test, seed=TEST_SEED)
    print(f"clips after {time.monotonic() - began:.0f} s on {device}", flush=True)
    white = held_out.mean().item()
    names = [name for name in VARIANTS if any(word in name for word in options.only)]
    tried = [Run(name, r, video, white, options.batch, scale) for name in names for r in RATES]
    print(f"captured after {time.monotonic() - began:.0f} s", flush=True)
    runs = choose_rates(tried, held_out, TRIAL_TIME * options.seconds)
    train(runs, held_out, options.iterations, options.seconds - (time.monotonic() - began))
    took = time.monotonic() - began
    options.out.mkdir(parents=True, exist_ok=True)
    variants = {}
    for run in runs:
        run.network.load_state_dict(run.best[1])
        scores = evaluate(Recurrent(run.network.eval()), test)
        how = {"iterations": run.steps, "rate": run.first_rate, "rates": trial_of(run, tried)}
        variants[run.name] = {**how, "held_out": run.checks, **scores}
        print(run.name, run.steps, scores["by_count"], flush=True)
    best = min(runs, key=lambda run: run.best[0])
    levels = draw_examples(best, test[:NUM_EXAMPLES].frames.float().to(device))
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
