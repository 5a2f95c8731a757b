"""Measure the response times of the playground for one client and under load.

First one client sends one query after another. Then fifty clients send everything that the page
can send, invalid requests included, for a minute, while slow and broken clients stay connected.
Each client has a clip of its own and hides other frames in each question, so no answer is known
before. For each kind of request the record counts answers, refusals (503) and answers within five
seconds. A response that is neither correct nor one clear line is an error.

Usage: python -m tests.stress.load_server --out experiments/reliability/server.json
"""

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from motes.core.environment import environment
from motes.core.files import write_json

EXPECTED = {"wrong": 400, "bad file": 400}  # status of the answer; 200 otherwise
QUESTIONS = ("one answer", "forecast and filled in", "all three", "count")  # need the search
REFUSED, PATIENCE = 503, 5.0  # status; seconds in which a question should be answered
NUM_SLOW = 30
TIMEOUT = 100.0  # longer than the server lets any exchange last
Json = dict[str, Any]


@dataclass
class Responses:
    """Responses to the clients, by kind of request."""

    seconds: dict[str, list[float]] = field(default_factory=dict)  # of answers
    refused: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, status: int, body: bytes, seconds: float) -> None:
        """Add one response."""
        with self.lock:
            if status == EXPECTED.get(kind, 200):
                self.seconds.setdefault(kind, []).append(seconds)
            elif status == REFUSED and set(json.loads(body)) == {"error"}:
                self.refused[kind] += 1
            else:
                self.errors.append(f"{kind}: {status} {body[:80]!r}")

    def by_kind(self) -> dict[str, Json]:
        """Return answers, refusals, the share answered in time, and milliseconds of each kind."""
        found = {}
        for kind in sorted({*self.seconds, *self.refused}):
            times, refused = self.seconds.get(kind, []), self.refused[kind]
            in_time = sum(seconds <= PATIENCE for seconds in times)
            found[kind] = {
                "answered": len(times),
                "refused": refused,
                "in_time": round(in_time / (len(times) + refused), 4),
                **({"ms": summary([1e3 * seconds for seconds in times])} if times else {}),
            }
        return found

    def questions_in_time(self) -> float:
        """Return the share of all questions that were answered within five seconds."""
        times = [seconds for kind in QUESTIONS for seconds in self.seconds.get(kind, [])]
        asked = len(times) + sum(self.refused[kind] for kind in QUESTIONS)
        return round(sum(seconds <= PATIENCE for seconds in times) / max(asked, 1), 4)


@contextmanager
def serving(model: str) -> Iterator[tuple[int, int]]:
    """Yields the port and the process number of a fresh server."""
    command = [sys.executable, "-m", "motes", "serve", "--port=0", "--json", f"--model={model}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = urlsplit(json.loads(process.stdout.readline())["url"]).port
        assert port is not None
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def request(
    port: int, method: str, path: str, content: Json | bytes | None = None
) -> tuple[int, bytes, float]:
    """Status, body and seconds of one request on a connection of its own."""
    body = json.dumps(content).encode() if isinstance(content, dict) else content
    kind = "application/octet-stream" if "upload" in path else "application/json"
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request(method, path, body, {"content-type": kind} if body else {})
        response = connection.getresponse()
        return response.status, response.read(), time.perf_counter() - began
    finally:
        connection.close()


Requests = dict[str, tuple[str, str, Json | bytes | None]]


def example(port: int, seed: int) -> Json:
    """A clip of the largest number of balls."""
    clip: Json = json.loads(request(port, "GET", f"/api/examples?seed={seed}")[1])["clips"][-1]
    return clip


def questions(clip: Json, chance: random.Random) -> Requests:
    """The requests of a page by name: method, path, content; 30 frames, and wrong ones too.

    A quarter of the frames before and after a gap are shown, and some others hidden by chance.
    """
    video = {name: clip[name] for name in ("num_frames", "height", "width", "frames")}
    length, count = clip["num_frames"], clip["num_objects"]
    shown = [t % 5 == 0 or chance.random() < 0.9 for t in range(length)]
    gap = [shown[t] and (t < length // 4 or t >= 3 * length // 4) for t in range(length)]
    early = [shown[t] and t < length // 4 for t in range(length)]

    def ask(*masks: list[bool]) -> Json:
        return {"video": video, "masks": list(masks), "num_objects": count}

    ball = {"x": 12, "y": 30, "vx": 0.9, "vy": -1.2}
    posts: dict[str, tuple[str, Json]] = {
        "one answer": ("query", ask(gap)),
        "forecast and filled in": ("query", ask(early, gap)),
        "all three": ("query", ask(shown, early, gap)),
        "count": ("count", {"video": video, "mask": gap}),
        "sample": ("sample", {"num_objects": 2, "num_frames": 30}),
        "throw": ("throw", {"balls": [ball], "num_frames": 30}),
        "wrong": ("query", ask([False] * length)),
    }
    found: Requests = {
        name: ("POST", f"/api/{path}", record) for name, (path, record) in posts.items()
    }
    found["examples"] = ("GET", "/api/examples?seed=3", None)
    found["page"] = ("GET", "/", None)
    found["bad file"] = ("POST", "/api/upload?name=a.npz", b"no clip")
    return found


def alone(port: int, process: int, repeats: int) -> dict[str, Json]:
    """Milliseconds of each kind of request, one after the other: elapsed, and of CPU."""
    clip, chance, taken = example(port, 0), random.Random(0), {}
    for name in questions(clip, chance):
        times, began = list[float](), 0.0
        for repeat in range(repeats + 2):
            if repeat == 2:
                times, began = [], cpu_seconds(process)
            times.append(1e3 * request(port, *questions(clip, chance)[name])[2])
        spent = 1e3 * (cpu_seconds(process) - began) / repeats
        taken[name] = {**summary(times), "cpu_mean": round(spent, 1)}
    return taken


def cpu_seconds(process: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def crowd(port: int, clients: int, seconds: float, watch: Callable[[], None]) -> Responses:
    """Return the responses to many clients that send queries for some seconds."""
    responses, clips = Responses(), [example(port, number) for number in range(clients)]
    ends = time.monotonic() + seconds

    def client(number: int) -> None:
        chance = random.Random(f"{number} {seconds}")  # other questions than while settling
        while time.monotonic() < ends:
            mix = questions(clips[number], chance)
            name = chance.choice(list(mix))
            try:
                responses.note(name, *request(port, *mix[name]))
            except OSError as error:
                with responses.lock:
                    responses.errors.append(f"{name}: {error!r}")
            time.sleep(chance.random() * 0.4)  # a person reads the answer

    everybody = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    everybody += [threading.Thread(target=dawdle, args=(port, n, ends)) for n in range(NUM_SLOW)]
    for thread in everybody:
        thread.start()
    while time.monotonic() < ends:
        watch()
        time.sleep(1)
    for thread in everybody:
        thread.join()
    return responses


def dawdle(port: int, number: int, ends: float) -> None:
    """Sends a byte a second, or half a body, or never reads, again and again."""
    head = b"POST /api/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    large = b"GET /api/examples HTTP/1.1\r\nHost: localhost\r\n\r\n"
    while time.monotonic() < ends:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as slow:
            if number % 3 == 0:
                for byte in head:
                    slow.sendall(bytes([byte]))
                    time.sleep(1)
                    if time.monotonic() > ends:
                        return
            elif number % 3 == 1:
                slow.sendall(head + b"{")
                time.sleep(2)
            else:
                slow.sendall(8 * large)
                time.sleep(5)


def summary(times: list[float]) -> Json:
    """Median, 95th percentile and most of some milliseconds."""
    ordered = sorted(times)
    at = {"p50": 0.5, "p95": 0.95}
    found = {name: ordered[min(len(ordered) - 1, int(p * len(ordered)))] for name, p in at.items()}
    return {
        "count": len(times),
        **{k: round(v, 1) for k, v in found.items()},
        "max": round(ordered[-1], 1),
    }


def memory_mib(process: int) -> float:
    """What a process holds in memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(model: str, clients: int, seconds: float, repeats: int) -> Json:
    """The whole record."""
    with serving(model) as (port, process):
        first = alone(port, process, repeats)
        crowd(port, clients, min(seconds, 15), lambda: None)  # buffers grow to their size
        settled, held = memory_mib(process), list[float]()
        responses = crowd(port, clients, seconds, lambda: held.append(memory_mib(process)))
        time.sleep(6)  # connections that idle are closed by now
        files = len(list(Path(f"/proc/{process}/fd").iterdir()))
        after = request(port, "GET", "/api/about")[0]
    return {
        "model": model,
        "alone_ms": first,
        "crowd": {
            "clients": clients,
            "slow_clients": NUM_SLOW,
            "seconds": seconds,
            "questions_in_time": responses.questions_in_time(),
            "kinds": responses.by_kind(),
            "errors": len(responses.errors),
            "first_errors": responses.errors[:5],
            "memory_mib": {
                "before": round(settled, 1),
                "most": round(max(held), 1),
                "end": round(held[-1], 1),
            },
            "open_files_after": files,
            "answers_after": after == 200,
        },
    }


def main() -> None:
    """Measures, prints and stores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="cannonballs-structured")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    record = {
        "server": "load",
        "environment": environment(torch.device("cpu")),
        "load_average_before": round(os.getloadavg()[0], 2),  # others at work make times longer
        **measure(given.model, given.clients, given.seconds, given.repeats),
        "load_average_after": round(os.getloadavg()[0], 2),
    }
    if given.out is not None:
        write_json(given.out, record)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
