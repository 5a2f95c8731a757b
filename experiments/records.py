"""Locate, read, write and make again the records of experiments and benchmarks.

A record is current if what it depends on is as it was when it was made: the functions that its
commands called (`traced_sources`) and the files of `Recipe.sources`. Comments and docstrings do not
count. Pages mark all others as old.

Usage: python -m experiments.records                    list all records and what each needs
       python -m experiments.records make [NAMES]       make those that are not current
           [--gpu] [--jobs 4] [--folder runs/records] [--commit HASH]
       python -m experiments.records install FOLDER     copy current records into place

`make` writes into the folder and skips what is current there, so it can be stopped and resumed.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.traced_sources import (
    Functions,
    called_functions,
    functions_hash,
    parse,
    statements,
    tracing,
)
from motes.core.environment import commit, environment
from motes.core.files import write_json

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks" / "records"
NEW = ROOT / "runs" / "records"
Record = dict[str, Any]

PACKAGE = "src/motes/"
_WORLDS = (
    *(f"{PACKAGE}data/worlds/{name}.py" for name in ("__init__", "corruptions", "physics")),
    *(f"{PACKAGE}data/worlds/registry.py", f"{PACKAGE}data/clips.py"),
)
_SCORES = (f"{PACKAGE}evaluation/evaluate.py", f"{PACKAGE}evaluation/metrics.py", *_WORLDS)
_DISKS = (*_SCORES, f"{PACKAGE}evaluation/baselines/disk_trackers.py")
_MODELS = (
    *(f"{PACKAGE}kalman/*.py", f"{PACKAGE}models/*.py", f"{PACKAGE}queries/*.py"),
    *(f"{PACKAGE}evaluation/learned.py", *_SCORES),
)
_SPRITES = (*_MODELS, f"{PACKAGE}models/sprites/*.py")
_TRAINED = (*_SPRITES, f"{PACKAGE}models/layers/*.py", f"{PACKAGE}training/*.py")
_GPU = (*_MODELS, f"{PACKAGE}training/*.py", f"{PACKAGE}training/gpu/*.py")
_TRACKERS = (
    f"{PACKAGE}data/worlds/arrivals.py",
    *(
        f"{PACKAGE}evaluation/{name}.py"
        for name in ("tracking_metrics", "baselines/point_trackers")
    ),
)
FRESH_SEED = 2_000_000  # of clips that nobody looked at while models were chosen


class Recipe(NamedTuple):
    """How a record is made.

    Attributes:
        commands: Run one after the other from the root; {out} is the file of the record, {runs}
            a folder for models and parts.
        sources: Patterns of the files that the numbers depend on. Those of code count only where
            calls are not traced: in timings, which tracing would change.
        minutes: Of two CPU cores, or of one GPU.
        gpu: Whether a GPU is needed.
        needs: What is not part of the repository.
    """

    commands: tuple[str, ...]
    sources: tuple[str, ...]
    minutes: int
    gpu: bool = False
    needs: str = ""


def _evaluate(name: str, *sources: str, minutes: int = 5, needs: str = "") -> Recipe:
    command = f"motes evaluate {name} --seed {FRESH_SEED} --out {{out}}"
    return Recipe((command,), sources, minutes, needs=needs)


def _script(module: str, options: str, *sources: str, minutes: int, needs: str = "") -> Recipe:
    return Recipe(
        (f"python -m {module} {options}",), (_file(module), *sources), minutes, needs=needs
    )


def _file(module: str) -> str:
    """Return the file of a module or of a package's command."""
    path = module.replace(".", "/")
    return f"{path}/__main__.py" if (ROOT / path).is_dir() else f"{path}.py"


def _on_gpu(module: str, *options: str, minutes: int) -> Recipe:
    commands = tuple(f"python -m {module} {option}" for option in options)
    return Recipe(commands, (_file(module), *_GPU), minutes, gpu=True)


def _replicas(run: str, options: str, needs: str = "") -> Recipe:
    """Eight seeds of the paper's networks, trained at once and scored."""
    module = "experiments.paper_training.score_replicas"
    learn = f"--learn --run {{runs}}/{run} {options} --device cuda"
    scored = _on_gpu(
        module, learn, f"--score --run {{runs}}/{run} {options} --out {{out}}", minutes=60
    )
    return scored._replace(needs=needs)


_SHIPPED = f"{PACKAGE}models/shipped"
_BASELINES = f"{PACKAGE}evaluation/baselines"
_SEEDS = "experiments.sprites_seeds"
_GONE = "code that is gone: a variant that was not kept"
_EVENTS = "seeds of the sprite family at each size: " + f"python -m {_SEEDS}.score_seeds --learn"
RECIPES: dict[str, Recipe] = {
    # Accuracy on the paper's clips
    "limit": _evaluate(
        "limit", *_DISKS, f"{PACKAGE}kalman/*.py", f"{_BASELINES}/bayes_limit.py", minutes=20
    ),
    "kalman": _evaluate("kalman", *_DISKS, f"{PACKAGE}kalman/*.py"),
    "known-gravity": _evaluate("known-gravity", *_DISKS),
    "constant-velocity": _evaluate("constant-velocity", *_DISKS),
    "constant-image": _evaluate("constant-image", *_SCORES, minutes=1),
    "trackpy": _evaluate("trackpy", *_DISKS, f"{_BASELINES}/trackpy.py", needs="trackpy"),
    "disks-trackpy": _evaluate(
        "disks-trackpy", *_DISKS, f"{_BASELINES}/trackpy.py", needs="trackpy"
    ),
    "cannonballs-structured": _evaluate(
        "cannonballs-structured", *_SPRITES, f"{_SHIPPED}/cannonballs-structured/*", minutes=15
    ),
    **{
        name: _evaluate(name, *_MODELS, f"{_SHIPPED}/{name}/*", minutes=15)
        for name in ("cannonballs-48", "cannonballs-48-distilled")
    },
    "small": Recipe(
        (
            "motes train --preset paper-small --out {runs}/small",
            f"motes evaluate {{runs}}/small --seed {FRESH_SEED} --out {{out}}",
        ),
        (*_MODELS, f"{PACKAGE}training/*.py"),
        90,
    ),
    "ed-lstm": Recipe(
        ("python -m experiments.ed_lstm.train_ed_lstm --iterations 200000 --out {runs}",),
        ("experiments/ed_lstm/*.py", *_SCORES),
        600,
        gpu=True,
    ),
    "longer": Recipe(
        (
            "python -m experiments.ed_lstm.train_ed_lstm --iterations 200000 --seconds 520 "
            "--earlier experiments/results_table/ed-lstm.json "
            '--only "two layers, state 2048" "convolutional, state 1024" --out {runs}',
        ),
        ("experiments/ed_lstm/*.py", *_SCORES),
        10,
        gpu=True,
    ),
    # Other questions
    "worlds": _script(
        "experiments.worlds.score_worlds",
        "--jobs 16 --runs {runs}/worlds --out {out}",
        *("experiments/worlds/*.py", *_TRAINED, f"{_BASELINES}/*.py"),
        minutes=400,
        needs="trackpy",
    ),
    "bounces": _script(
        "experiments.worlds.score_bounces",
        "--runs {runs}/worlds --seeds 0 1 2 --out {out}",
        *("experiments/worlds/*.py", *_TRAINED),
        minutes=120,
    ),
    "long": _script(
        "experiments.long_clips.score_long", "--seed 0 --runs {runs}/worlds --out {out}",
        *_TRAINED, minutes=120,
    ),
    "hours": _script(
        "experiments.long_clips.hours", "--frames 108000 --out {out}",
        "experiments/long_clips/hours.py", *_SPRITES, minutes=30,
    ),
    "events": _script(
        "experiments.events.score_events",
        "--worlds bounce --seeds 0 1 2 --jobs 8 --runs {runs} --out {out}", *_TRAINED, minutes=120,
    ),
    "billiards": _script(
        "experiments.events.score_billiards", "--jobs 3 --runs {runs}/billiards --out {out}",
        *_TRAINED, f"{PACKAGE}data/worlds/billiards.py", minutes=60,
    ),
    "forces": Recipe(
        tuple(
            f"python -m experiments.public_tables.score_forces {world} {seed} "
            "--runs {runs} --out {out}"
            for world in ("gravity", "paig-spring", "spring-pair")
            for seed in range(3)
        ),
        (
            "experiments/public_tables/score_forces.py",
            *(*_TRAINED, f"{PACKAGE}data/worlds/pairs.py"),
        ),
        30,
    ),
    "phyworld": Recipe(
        tuple(
            f"python -m experiments.public_tables.score_phyworld {scene} {seed} "
            "--runs {runs} --out {out}"
            for scene in ("uniform", "parabola", "collision")
            for seed in range(3)
        ),
        (
            "experiments/public_tables/score_phyworld.py",
            *(*_TRAINED, f"{PACKAGE}data/worlds/published.py"),
        ),
        20,
    ),
    "rooms": _script(
        "experiments.events.score_rooms", "--jobs 8 --runs {runs}/rooms --out {out}",
        *_TRAINED, f"{PACKAGE}data/worlds/walled.py", minutes=120,
    ),
    **{
        f"misfit_{short}": _script(
            "experiments.misfit.score_misfit", f"--model cannonballs-{short} --out {{out}}",
            *_SPRITES, minutes=10,
        )
        for short in ("48", "structured")
    },
    "counts": Recipe(
        (
            "python -m experiments.counting.score_counts --learn {runs}/faint",
            "python -m experiments.counting.score_counts --score clear --clips 600 --runs {runs}",
            "python -m experiments.counting.score_counts --score faint --model {runs}/faint/model "
            "--runs {runs}",
            "python -m experiments.counting.score_counts --merge --runs {runs}",
        ),
        ("experiments/counting/*.py", *_TRAINED),
        120,
    ),
    "structured_seeds": _script(
        f"{_SEEDS}.score_seeds", "--merge --runs {runs}/seeds --out {out}", *_TRAINED,
        minutes=400, needs=_EVENTS,
    ),
    "structured_large": _script(
        f"{_SEEDS}.score_large", "--merge --out {out}", *_TRAINED, f"{_BASELINES}/*.py",
        minutes=400, needs=_EVENTS,
    ),
    "structured_time": _script(
        f"{_SEEDS}.score_seeds", "--merge --runs {runs}/time --out {out}", *_TRAINED,
        minutes=60, needs=_EVENTS,
    ),
    "ablation_structured": _script(
        f"{_SEEDS}.ablate", "--merge", *_TRAINED, minutes=400, needs=_EVENTS
    ),
    "juggling": _script(
        "experiments.juggling.score_juggling",
        "3_ball_juggling_cut.mp4 juggling.npz runs/juggling --out {out}",
        *(*_TRAINED, f"{PACKAGE}video/*.py"), minutes=30, needs="the recording",
    ),
    "throws": _script(
        "experiments.throws.score_throws",
        "6_throws_minimal_tracking_loss.tsv throws.npz runs/throws --out {out}",
        *(*_TRAINED, f"{PACKAGE}video/*.py"), minutes=20, needs="the recording",
    ),
    "fine_tuning": _script(
        "experiments.throws.score_throws",
        "6_throws_minimal_tracking_loss.tsv throws.npz runs/throws --out {out}",
        *(*_TRAINED, f"{PACKAGE}video/*.py"), minutes=20, needs="the recording",
    ),
    "projective": _script(
        "experiments.throws.score_projective",
        "6_throws_minimal_tracking_loss.tsv throws.npz runs/throws-0 runs/throws-1 runs/throws-2 "
        "--out {out}",
        *(*_TRAINED, f"{PACKAGE}video/*.py"), minutes=20, needs="the recording",
    ),
    "paths_made": _script(
        "experiments.own_video.measure_paths", "made --out {out}",
        *(*_TRAINED, f"{PACKAGE}video/*.py"), minutes=10,
    ),
    **{
        f"paths_juggling_{way}": _script(
            "experiments.own_video.measure_paths",
            f"3_ball_juggling_cut.mp4 --way {way} --out {{out}}",
            *(*_TRAINED, f"{PACKAGE}video/*.py"), minutes=5, needs="the recording",
        )
        for way in ("command", "page")
    },
    "watch_pipe": _script(
        "experiments.own_video.watch_pipe", "--out {out}", f"{PACKAGE}queries/live.py",
        f"{PACKAGE}video/live.py", f"{PACKAGE}cli/watch.py", minutes=1,
    ),
    "rnem": _script(
        "experiments.relational_nem.score_rnem", "NPZ --out {out}", *_TRAINED,
        minutes=60, needs="the data of Relational NEM",
    ),
    # Real scenes and other programs
    **{
        f"worlds_{name}": _script(
            "experiments.real_scenes.score_worlds", f"{name} --out {{out}}", *_TRACKERS,
            minutes=60, needs=needs,
        )
        for name, needs in (("trackpy", "trackpy"), ("kalman", ""))
    },
    "worlds_motes": _script(
        "experiments.real_scenes.score_worlds",
        "motes.tracking:track --seeds 4000000 4000001 4000002 --out {out}",
        *_TRACKERS, f"{PACKAGE}tracking/*.py", minutes=15,
    ),
    "microscopy": _script(
        "experiments.real_scenes.score_microscopy", "VIDEO --out {out}", f"{PACKAGE}tracking/*.py",
        minutes=5, needs="the recording and trackpy",
    ),
    "changing": _script(
        "experiments.real_scenes.score_changing", "{runs} --out {out}", *_TRAINED,
        f"{PACKAGE}data/worlds/changing.py", minutes=20,
    ),
    "track_seen": _script(
        "experiments.real_scenes.score_track_seen", "VIDEO TSV --out {out}",
        f"{PACKAGE}tracking/*.py", minutes=3, needs="the recording",
    ),
    "other_kinds": _script(
        "experiments.real_scenes.score_other_kinds",
        "DATA --model cannonballs-structured --out {out}", *_SPRITES, minutes=10,
        needs="the recordings",
    ),
    **{
        name: _script(
            f"experiments.real_scenes.score_{name}", "VIDEO RUN --out {out}",
            *(*_TRAINED, f"{PACKAGE}video/*.py"), minutes=10, needs="the recording and a run of it",
        )
        for name in ("seen", "full_resolution")
    },
    "opened": _script(
        "experiments.formats.open_tables", "-o {out}", f"{PACKAGE}output/formats.py",
        f"{PACKAGE}output/trackmate.py", f"{PACKAGE}output/napari_reader.py", minutes=5,
        needs="napari, pytrackmate, supervision, trackpy and pyarrow",
    ),
    # Training of the paper's networks
    "taught_seeds": _replicas("taught", ""),
    "taught_32": _replicas("taught-32", "--size 32 --teacher runs/structured-32"),
    "taught_T50": _replicas("taught-T50", "--frames 50 --teacher runs/structured-T50"),
    "taught_ablation": _replicas("taught-ablation", "--preset paper-distilled", _GONE),
    "taught_decay": _replicas("taught-decay", "--preset paper-distilled", _GONE),
    "lessons_pilot": _replicas("lessons", "--preset paper-distilled", _GONE),
    "robust_seeds": _replicas("robust", "--preset paper-curriculum"),
    "paper_seeds": _replicas("paper", "--preset paper"),
    "paper_once": _replicas("paper-once", "--preset paper"),
    "float32": _replicas("float32", "--preset paper --precision float32 --replicas 1"),
    "training": _on_gpu(
        "experiments.paper_training.watch_training", "--device cuda --out {runs}", minutes=30
    ),
    "training_h200": _on_gpu(
        "experiments.paper_training.watch_training", "--device cuda --out {runs}", minutes=30
    ),
    # Reliability and time
    **{
        name: _script(f"tests.stress.{script}", "--out {out}", *_TRAINED, minutes=minutes)
        for name, script, minutes in (
            ("faults", "faults", 60), ("processes", "processes", 10),
            ("kalman_long", "kalman_precision", 10), ("server", "load_server", 10),
            ("long_video", "long_video", 10),
        )
    },
    "mutations": _script(
        "tests.stress.mutations", "--jobs 2 --out {out}", "tests/stress/mutation_list.py",
        minutes=120,
    ),
    "fuzz": _script("tests.stress.fuzz", "--cases 10000 --out {out}", *_TRAINED, minutes=120),
    "devices": _on_gpu("tests.stress.compare_devices", "--out {out}", minutes=5),
    "bench_kalman": _script(
        "benchmarks", "kalman --out {out}", "benchmarks/kalman.py", f"{PACKAGE}kalman/*.py",
        minutes=10, needs="dynamax and pyro; a machine without other work",
    ),
    "bench_train": _script(
        "benchmarks", "train --out {out}", "benchmarks/train.py", *_GPU,
        minutes=10, needs="a machine without other work",
    ),
    "bench_recordings": _script(
        "benchmarks.recordings", "--axes objects --out {out}", *_SPRITES, minutes=10,
        needs="trackpy",
    ),
    "bench_learning": _script(
        "benchmarks.learning", "--seeds 0 --out {out}", "benchmarks/learning.py", *_TRAINED,
        minutes=8,
    ),
    "bench_startup": _script(
        "benchmarks", "startup --out {out}", "benchmarks/startup.py", f"{PACKAGE}__init__.py",
        f"{PACKAGE}cli/*.py", minutes=3,
    ),
    "scale": _script(
        "benchmarks", "scale --out {out} --picture docs/images/scale.png", "benchmarks/scale.py",
        *_TRAINED, minutes=30, needs="a machine without other work",
    ),
    "bench_sprites_gpu": _on_gpu(
        "benchmarks.sprites_gpu", "--device cuda --out {out}", minutes=5
    ),
    "bench_train_h200": _on_gpu("benchmarks", "train --device cuda --out {out}", minutes=5),
    "speed_h200": _on_gpu("benchmarks", "train --device cuda --out {out}", minutes=5),
}  # fmt: skip


def record_paths(suffix: str = ".json") -> dict[str, Path]:
    """Return the stored records (or arrays, with suffix ".npz") by the names of their files."""
    experiments = sorted((ROOT / "experiments").glob(f"*/*{suffix}"))
    return {path.stem: path for path in (*experiments, *sorted(BENCHMARKS.glob(f"*{suffix}")))}


def read_records(folder: Path | None = None) -> dict[str, Record]:
    """Return the records of a folder, or of all experiments and benchmarks, sorted by name."""
    paths = record_paths() if folder is None else {p.stem: p for p in folder.glob("*.json")}
    return {name: json.loads(paths[name].read_text("utf-8")) for name in sorted(paths)}


def write_record(record: Record, out: Path | None) -> None:
    """Print a record with its environment, and write it if a file is given.

    The command line is left out: it names the local file of the recording.
    """
    known = environment(torch.device("cpu"))
    del known["command"]
    record = {**record, "environment": known}
    if out is not None:
        write_json(out, record)
    print(record)


def source_hash(patterns: Sequence[str], root: Path = ROOT) -> str:
    """Return a hash of the files that match; comments, docstrings and layout of code do not count.

    Law: changes with a statement, not with a comment (test_a_record_is_old_when_code_has_changed).
    """
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        code = path.suffix == ".py"
        digest.update(statements(parse(content.decode())) if code else content)
    return digest.hexdigest()[:16]


def is_timing(name: str) -> bool:
    """Return whether a record holds times, which tracing would change."""
    return name.startswith(("bench", "scale", "speed"))


def depends_on(recipe: Recipe, functions: Functions | None, root: Path = ROOT) -> str:
    """Return the hash of what a record depends on, given which functions were called if known."""
    if functions is None:
        return source_hash(recipe.sources, root)
    files = [pattern for pattern in recipe.sources if not pattern.endswith(".py")]
    return f"{source_hash(files, root)}-{functions_hash(functions, root)}"


def is_current(name: str, record: Record, root: Path = ROOT) -> bool:
    """Return whether a record was made from the present sources."""
    known = name in RECIPES and "sources" in record
    return known and bool(
        record["sources"] == depends_on(RECIPES[name], record.get("functions"), root)
    )


def ages(names: Sequence[str], records: Mapping[str, Record]) -> str:
    """Return the line by which a page says which of the records that it quotes are old."""
    old = [n for n in names if n in records and not is_current(n, records[n])]
    current = [n for n in names if n in records and n not in old]
    parts = [f"made from the present sources: {', '.join(current)}"] if current else []
    if old:
        parts.append(f"**old** (their sources have changed since): {', '.join(old)}")
    return f"Records {'; '.join(parts)}."


def make_record(name: str, recipe: Recipe, folder: Path, revision: str) -> bool:
    """Make one record by its commands and stamp it; return whether that succeeded."""
    out, runs = folder / f"{name}.json", folder / "parts" / name
    runs.mkdir(parents=True, exist_ok=True)
    calls = folder / "calls" / name
    shutil.rmtree(calls, ignore_errors=True)
    shown = []
    for command in recipe.commands:
        words = command.format(out=out, runs=runs).split()
        shown.append(command.format(out=f"{name}.json", runs="runs"))
        module = {"motes": ["-m", "motes"], "python": []}[words[0]]
        done = subprocess.run(
            [sys.executable, *module, *words[1:]],
            cwd=ROOT,
            env=None if is_timing(name) else tracing(calls, ROOT),
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            print(f"{name}: {command}\n{done.stderr[-2000:]}", file=sys.stderr)
            return False
    written = out if out.is_file() else runs / f"{name}.json"  # some write a folder
    if not written.is_file():
        print(f"{name}: {recipe.commands[-1]} wrote no {name}.json", file=sys.stderr)
        return False
    record = json.loads(written.read_text("utf-8"))
    known = record.get("environment", environment(torch.device("cpu")))
    known |= {"motes_commit": revision, "command": "; ".join(shown)}
    functions = None if is_timing(name) else called_functions(calls)
    record |= {} if functions is None else {"functions": functions}
    sources = depends_on(recipe, functions)
    write_json(out, {**record, "environment": known, "sources": sources})
    return True


def make_records(
    names: Sequence[str],
    folder: Path = NEW,
    revision: str | None = None,
    jobs: int = 1,
    recipes: Mapping[str, Recipe] = RECIPES,
) -> dict[str, bool]:
    """Make records that are not current in the folder, several at once; return which succeeded.

    Law: what was made before is not made again (test_making_records_is_resumable).
    """
    revision = revision or commit()
    if revision is None or "+" in revision:
        raise SystemExit(
            f"got a source tree at {revision}; a record names a commit: commit first, or give "
            "--commit where there is no repository"
        )
    folder.mkdir(parents=True, exist_ok=True)
    stored = read_records(folder)
    parts = {name: (stored.get(name, {}), recipes[name]) for name in names}
    todo = [
        name
        for name, (made, recipe) in parts.items()
        if made.get("sources") != depends_on(recipe, made.get("functions"))
    ]
    with ThreadPoolExecutor(jobs) as pool:
        made = pool.map(lambda n: make_record(n, recipes[n], folder, revision), todo)
        return dict(zip(todo, made, strict=True))


def install(folder: Path) -> list[str]:
    """Copy the current records of a folder over the stored ones, and return their names."""
    paths, installed = record_paths(), []
    for name, record in read_records(folder).items():
        if name in paths and is_current(name, record):
            shutil.copy(folder / f"{name}.json", paths[name])
            installed.append(name)
    return installed


def records_table(records: Mapping[str, Record]) -> str:
    """Return every record with its commit, whether it is current, and what making it needs."""
    lines = ["| record | commit | sources | needs |", "|---|---|---|---|"]
    for name, record in records.items():
        recipe = RECIPES.get(name)
        if recipe is None:
            continue
        place = record.get("environment", {})
        revision = str(place.get("motes_commit") or "unknown")[:10]
        needs = "; ".join(filter(None, ("a GPU" if recipe.gpu else "", recipe.needs)))
        state = "current" if is_current(name, record) else "**old**"
        lines.append(f"| {name} | {revision} | {state} | {needs} |")
    return "\n".join(lines)


def main() -> None:
    """List, make or install records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", nargs="?", choices=("list", "make", "install"), default="list")
    parser.add_argument("names", nargs="*", help="records to make, or the folder to install")
    parser.add_argument("--folder", type=Path, default=NEW)
    parser.add_argument("--commit", default=None)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--gpu", action="store_true", help="make those that need a GPU too")
    given = parser.parse_args()
    if given.action == "install":
        print("installed", *install(Path(given.names[0]) if given.names else given.folder))
    elif given.action == "list":
        print(records_table(read_records()))
    else:
        stored = read_records()
        old = [n for n in RECIPES if not is_current(n, stored.get(n, {}))]
        names = given.names or [
            n for n in old if (given.gpu or not RECIPES[n].gpu) and not RECIPES[n].needs
        ]
        print("to make:", *names, "\nleft out:", *(n for n in old if n not in names))
        made = make_records(names, given.folder, given.commit, given.jobs)
        print("made", *(n for n, good in made.items() if good))
        if not all(made.values()):
            sys.exit(1)


if __name__ == "__main__":
    main()
