"""Train variants of the paper's recurrent baseline in parallel on one GPU, and score each.

Every variant is captured in a CUDA graph and replayed on a stream of its own. Each first tries the
learning rates for a while and continues with the better one; the rate is constant, then decays, as
for our models. The weights with the best held-out loss in generation mode are kept, a choice in
favour of the baseline; test clips are not used to choose anything.

With `--earlier` only the variants of `--only` are trained anew, with the rates found in the earlier
record; the others are kept. `--iterations` per variant divides the available time.

Usage: python -m experiments.ed_lstm.train_ed_lstm --out FOLDER
           [--iterations 70000] [--seconds 400] [--smoke]
           [--earlier FILE --only "one layer, state 2048"]
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
from experiments.ed_lstm.ed_lstm import EDLSTM, Layers, Recurrent, loss
from experiments.paper_figures.stored_examples import save_arrays
from motes.core.environment import environment
from motes.evaluation.evaluate import evaluate
from motes.evaluation.metrics import frame_losses

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
LOSS_SCALE = 2.0**16  # of losses whose gradients are float16: about the pixels of a batch
NUM_SEEN, TEST_SEED, NUM_TEST, TRAINING_SEED = 5, 1_000_000, 600, 1
BLOCK, NUM_CHECKS, NUM_EXAMPLES = 16, 20, 15


class Adam(torch.optim.Adam):
    """Adam, whose fused form leaves out a step where `found_inf` is not zero."""

    found_inf: torch.Tensor | None = None


class Run:
    """One variant at one learning rate, its optimizer and its captured step."""

    def __init__(
        self, name: str, rate: float, iterations: int, video: Any, white: float, options: Any
    ) -> None:
        scale, batch = (64, 4) if options.smoke else (1, options.batch)
        device = video.bits.device
        layers, state, self.num_seen = VARIANTS[name]
        self.name, self.first_rate, self.video, self.steps = name, rate, video, 0
        self.iterations = iterations
        generator = torch.Generator().manual_seed(0)
        size = tuple(video.shape[2:])
        self.network = EDLSTM(size, state // scale, layers, generator)
        self.network.begin_with(white)
        self.network.to(device)
        self.rate = torch.tensor(rate, device=device)
        on_gpu = device.type == "cuda"
        self.adam = Adam(self.network.parameters(), lr=self.rate, capturable=on_gpu, fused=on_gpu)
        self.half = on_gpu and self.num_seen is None
        self.unscale = torch.tensor(1 / LOSS_SCALE, device=device)
        self.draws = torch.Generator(device).manual_seed(0)
        self.indices = torch.zeros(batch, dtype=torch.int64, device=device)
        self.best: tuple[float, dict[str, torch.Tensor]] = (math.inf, {})
        self.checks: list[tuple[int, float]] = []
        self.stream = torch.cuda.Stream() if on_gpu else None
        self.replay = self._capture() if on_gpu else self._step

    def _step(self) -> None:
        """One step; where true frames are fed, products read 16 bits and add up in 32.

        A gradient that is not finite in float16 leaves everything as it was.
        """
        self.adam.zero_grad(set_to_none=True)
        frames = self.video.unpack(self.indices)
        if not self.half:
            loss(self.network, frames, self.num_seen).backward()
        else:
            with torch.autocast("cuda", torch.float16):
                scaled = LOSS_SCALE * loss(self.network, frames, self.num_seen)
            scaled.backward()
            gradients = [w.grad for w in self.network.parameters() if w.grad is not None]
            bad = self.adam.found_inf = torch.zeros_like(self.unscale)
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, bad, self.unscale)
        self.adam.step()

    def _capture(self) -> Any:
        """The step as a graph; in float32 if it cannot be had otherwise, and as it is at last."""
        torch.cuda.synchronize()  # what was made on the default stream is there
        try:
            with torch.cuda.stream(self.stream):
                for _ in range(3):
                    self._step()
            torch.cuda.synchronize()
            if self.adam.found_inf is not None and self.adam.found_inf.item():
                raise RuntimeError("gradients are not finite")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                self._step()
            torch.cuda.synchronize()
            return graph.replay
        except RuntimeError as error:
            print(f"{self.name}, half {self.half}: not captured ({error!s:.200})", flush=True)
            torch.cuda.synchronize()
        if not self.half:
            return self._step
        self.half, self.adam.found_inf = False, None
        return self._capture()

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
    """Takes a block of steps of the runs in turn and waits for them, so that clocks are right."""
    most = max(run.iterations for run in runs)
    for step in range(BLOCK):
        for run in runs:
            # as many of the block as its iterations are of the most
            if step * run.iterations // most > (step - 1) * run.iterations // most:
                run.step(share)
    _settle(like)


def make_runs(
    options: argparse.Namespace, earlier: dict[str, Any], video: Any, white: float
) -> list[Run]:
    """The runs of the chosen variants: one for each rate, or with the rate of an earlier record."""
    names = [name for name in VARIANTS if name in options.only]
    each = options.iterations * len(names) if len(options.iterations) == 1 else options.iterations
    return [
        Run(name, rate, iterations, video, white, options)
        for name, iterations in zip(names, each, strict=True)
        for rate in ([earlier[name]["rate"]] if name in earlier else RATES)
    ]


def choose_rates(runs: list[Run], held_out: torch.Tensor, seconds: float) -> list[Run]:
    """Of each variant the run with the better rate after a trial."""
    if len({run.name for run in runs}) == len(runs):
        return runs
    began = time.monotonic()
    while runs[0].steps < TRIAL_STEPS and time.monotonic() - began < seconds:
        advance(runs, 0.0, held_out)
    for run in runs:
        print(f"{run.steps} steps at {run.first_rate}: {run.check(held_out):.5f} {run.name}")
    print(f"a round of {len(runs)}: {(time.monotonic() - began) / runs[0].steps * 1e3:.2f} ms")
    names = dict.fromkeys(run.name for run in runs)
    return [min((r for r in runs if r.name == n), key=lambda run: run.best[0]) for n in names]


def train(runs: list[Run], held_out: torch.Tensor, seconds: float) -> None:
    """Trains all runs in turn to their iterations, or for so many seconds if that is less."""
    began, first, checked = time.monotonic(), runs[0].steps, 0
    while True:
        spent = time.monotonic() - began
        share = max(runs[0].steps / runs[0].iterations, spent / seconds)
        if share >= 1:
            break
        advance(runs, share, held_out)
        if share * NUM_CHECKS >= checked:
            checked += 1
            losses = {run.name: round(run.check(held_out), 5) for run in runs}
            print(f"{spent:.0f} s, steps {[run.steps for run in runs]}: {losses}", flush=True)
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
    parser.add_argument("--iterations", type=int, nargs="*", default=[70_000], help="one or each")
    parser.add_argument("--earlier", type=Path, help="record whose rates and variants are taken")
    parser.add_argument("--seconds", type=float, default=400, help="at most, without the scores")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--num-clips", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--smoke", action="store_true", help="tiny, to see that it runs")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    num_clips, num_test = (40, 12) if options.smoke else (options.num_clips, NUM_TEST)
    began = time.monotonic()
    clips = motes.cannonballs(num_clips + 240, seed=TRAINING_SEED)
    video = clips[:num_clips].video.to(device)
    held_out = clips[num_clips:][:num_clips].frames.float().to(device)
    test = motes.cannonballs(num_test, seed=TEST_SEED)
    print(f"clips after {time.monotonic() - began:.0f} s on {device}", flush=True)
    earlier = json.loads(options.earlier.read_text())["variants"] if options.earlier else {}
    tried = make_runs(options, earlier, video, held_out.mean().item())
    print(f"captured after {time.monotonic() - began:.0f} s", flush=True)
    runs = choose_rates(tried, held_out, TRIAL_TIME * options.seconds)
    train(runs, held_out, options.seconds - (time.monotonic() - began))
    took = time.monotonic() - began
    options.out.mkdir(parents=True, exist_ok=True)
    variants = dict(earlier)
    for run in runs:
        run.network.load_state_dict(run.best[1])
        scores = evaluate(Recurrent(run.network.eval()), test)
        how = {"iterations": run.steps, "rate": run.first_rate, "rates": trial_of(run, tried)}
        if run.name in earlier:
            how["rates"] = earlier[run.name]["rates"]
        variants[run.name] = {**how, "held_out": run.checks, **scores}
        print(run.name, run.steps, scores["by_count"], flush=True)
    least = {n: min(loss for _, loss in v["held_out"]) for n, v in variants.items()}
    example = test[:NUM_EXAMPLES].frames.float().to(device)
    drawn = {}
    for key, own in (("frames", False), ("own_frames", True)):
        kind = [run for run in runs if (run.num_seen is not None) == own]
        if kind:
            drawn[key] = draw_examples(min(kind, key=lambda run: run.best[0]), example)
    save_arrays(options.out / "ed-lstm.npz", drawn)
    record = {
        "baseline": "ed-lstm",
        "best": min(least, key=lambda name: least[name]),
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
