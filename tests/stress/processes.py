"""Train with several processes on one host and on two, kill one of them, and compare the results.

Two network namespaces joined by a virtual cable stand for two hosts, where the system permits.

Usage: python -m tests.stress.processes --out experiments/reliability/processes.json
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from motes.core.environment import environment
from motes.core.files import write_json
from motes.models.checkpoint import read_tensors

ITERATIONS = 40
PATIENCE = 300.0  # seconds, for a busy machine
# float32 sums of a global batch in another order: a part in 10^7 a step, grown by 40 steps.
TOLERANCE = 1e-4
TERMS = ("reconstruction", "entropy", "log_prior", "held_out_bound")
SMOKE = ["train", "--preset", "paper-smoke", "--iterations", str(ITERATIONS)]


def start(
    world: int, *arguments: str, options: tuple[str, ...] = ("--standalone",), before: str = ""
) -> subprocess.Popen[str]:
    """Starts `torchrun` with so many processes on this host."""
    run = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={world}", *options]
    return subprocess.Popen(
        [*before.split(), *run, "-m", "motes", *arguments, "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """Return the output of a process that ended with success."""
    output, _ = process.communicate(timeout=PATIENCE)
    if process.returncode != 0:
        raise RuntimeError(f"ended with {process.returncode}:\n{output}")
    return output


def curve(folder: Path) -> dict[tuple[int, str], float]:
    """Every logged term of a run."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return {(line["step"], name): line[name] for line in lines for name in TERMS if name in line}


def difference(folder: Path, other: Path) -> float:
    """The largest difference of two curves, relative to their terms."""
    ours, theirs = curve(folder), curve(other)
    if ours.keys() != theirs.keys():
        raise RuntimeError(f"{folder} and {other} logged other steps")
    return max(abs(ours[k] - theirs[k]) / max(abs(theirs[k]), 1.0) for k in theirs)


def same_weights(folder: Path, other: Path) -> bool:
    """Whether two runs ended with equal numbers."""
    name = "checkpoint.safetensors"
    ours, theirs = read_tensors(folder / name)[0], read_tensors(other / name)[0]
    return all(torch.equal(ours[key], theirs[key]) for key in theirs)


def workers(launcher: int) -> list[int]:
    """The processes that torchrun has started."""
    listed = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(process) for process in listed]


def kill_one(process: subprocess.Popen[str], folder: Path) -> None:
    """Kills the last worker as soon as a checkpoint is there."""
    deadline = time.monotonic() + PATIENCE
    while not (folder / "checkpoint.safetensors").exists():
        if time.monotonic() > deadline or process.poll() is not None:
            raise RuntimeError(f"no checkpoint: {process.communicate()[0]}")
        time.sleep(0.005)
    os.kill(workers(process.pid)[-1], signal.SIGKILL)


def killed_and_resumed(place: Path, undisturbed: Path) -> dict[str, Any]:
    """Kill a worker: the run ends with one line, and `--resume` continues it."""
    folder = place / "killed"
    process = start(2, *SMOKE, "--out", str(folder))
    kill_one(process, folder)
    output, _ = process.communicate(timeout=PATIENCE)
    messages = [line for line in output.splitlines() if line.startswith("motes: ")]
    if process.returncode == 0 or len(messages) != 1:
        raise RuntimeError(f"expected one message:\n{output}")
    step = int(read_tensors(folder / "checkpoint.safetensors")[1]["step"])
    ended(start(2, "train", "--resume", str(folder)))
    return {
        "exit_code": process.returncode,
        "told": messages[0],
        "resumed_from_step": step,
        "same_weights_as_undisturbed": same_weights(folder, undisturbed),
    }


def restarted(place: Path, undisturbed: Path) -> dict[str, Any]:
    """A worker is killed: torchrun starts all again, and they go on from the checkpoint."""
    folder = place / "restarted"
    options = ("--standalone", "--max-restarts=1")
    process = start(2, *SMOKE, "--out", str(folder), options=options)
    kill_one(process, folder)
    ended(process)
    return {"same_weights_as_undisturbed": same_weights(folder, undisturbed)}


@contextlib.contextmanager
def two_hosts() -> Iterator[list[str]]:
    """Two network name spaces with addresses 10.77.0.1 and 10.77.0.2, and their names."""
    names = [f"motes{os.getpid()}{letter}" for letter in "ab"]
    commands = [f"ip netns add {name}" for name in names]
    commands.append(f"ip link add va netns {names[0]} type veth peer name vb netns {names[1]}")
    for index, (name, cable) in enumerate(zip(names, ("va", "vb"), strict=True)):
        inside = f"ip -n {name}"
        commands.append(f"{inside} addr add 10.77.0.{index + 1}/24 dev {cable}")
        commands += [f"{inside} link set {cable} up", f"{inside} link set lo up"]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True, capture_output=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def across_hosts(place: Path) -> Path:
    """A run of two processes, one on each of two hosts, which share a disk."""
    folder = place / "hosts"
    with two_hosts() as names:
        parts = []
        for rank, name in enumerate(names):
            meeting = ("--master-addr=10.77.0.1", "--master-port=29517")
            options = ("--nnodes=2", f"--node-rank={rank}", *meeting)
            cable = f"env GLOO_SOCKET_IFNAME={('va', 'vb')[rank]}"
            before = f"ip netns exec {name} {cable}"
            parts.append(start(1, *SMOKE, "--out", str(folder), options=options, before=before))
        for part in parts:
            ended(part)
    return folder


def try_all(place: Path) -> dict[str, Any]:
    """All of it; raises where something is not as it should be."""
    single = place / "single"
    command = [sys.executable, "-m", "motes", *SMOKE, "--out", str(single)]
    subprocess.run(command, check=True, capture_output=True)
    found: dict[str, Any] = {"curves": {}}
    for world in (2, 4):
        folder = place / f"world-{world}"
        ended(start(world, *SMOKE, "--out", str(folder)))
        found["curves"][f"{world} processes"] = difference(folder, single)
        print(f"{world} processes: {difference(folder, single):.1e}", file=sys.stderr)
    try:
        folder = across_hosts(place)
        found["curves"]["2 hosts"] = difference(folder, single)
    except (subprocess.CalledProcessError, FileNotFoundError):
        found["hosts"] = "skipped: no right to make network name spaces here"
    if max(found["curves"].values()) > TOLERANCE:
        raise RuntimeError(f"other curves than one process has: {found['curves']}")
    undisturbed = place / "world-2"
    found["killed"] = killed_and_resumed(place, undisturbed)
    found["restarted_by_torchrun"] = restarted(place, undisturbed)
    return found


def main() -> None:
    """Tries all of it and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = try_all(Path(name))
    record = {
        "what": "the smoke preset with several processes (gloo) against one, same global batch",
        "difference": "largest of all logged terms, relative to the term or to 1 nat",
        "iterations": ITERATIONS,
        "tolerance": TOLERANCE,
        "environment": environment(torch.device("cpu")),
        **found,
    }
    if given.out is not None:
        write_json(given.out, record)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
