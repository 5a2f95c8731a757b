"""Nothing calls out: a model is loaded, trained and asked with every socket forbidden."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = """
import sys

def hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind", "socket.sendto"):
        raise SystemExit(f"called out: {event} {arguments}")

sys.addaudithook(hook)
if sys.argv[1] == "call":
    import socket
    socket.getaddrinfo("localhost", 80)
from motes import cli
out = sys.argv[2]
assert cli.main(["data", "--num-clips=2", "--num-frames=6", f"--out={out}/clips.npz"]) == 0
assert cli.main(["train", "--preset=smoke", "--iterations=2", f"--out={out}/run"]) == 0
assert cli.main(["infer", f"{out}/clips.npz", f"--out={out}/tracks.csv"]) == 0
assert cli.main(["forecast", f"{out}/clips.npz", "--model=cannonballs-structured",
                 "--horizon=2", f"--gif={out}/a.gif", f"--out={out}/f.csv"]) == 0
print("silent")
"""


def run(what: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE, what, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )


def test_making_training_and_asking_touch_no_network(tmp_path: Path) -> None:
    done = run("work", tmp_path)
    assert done.stdout.endswith("silent\n"), done.stderr
    assert (tmp_path / "f.csv").exists()


def test_the_hook_sees_who_calls_out(tmp_path: Path) -> None:
    done = run("call", tmp_path)
    assert done.returncode == 1
    assert "called out: socket.getaddrinfo" in done.stderr
