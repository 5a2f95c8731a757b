"""Tables of docs/results/worlds.md, from the records of score_worlds and score_bounces."""

from collections.abc import Callable
from typing import Any

Record = dict[str, Any]
SCORES = (
    ("tracked", "{:.3f}"),
    ("noisy_rmse", "{:.2f}"),
    ("path_rmse", "{:.2f}"),
    ("hidden_rmse", "{:.2f}"),
)
COVERS = ("coverage90", "hidden_coverage90", "path_coverage90")


def worlds_table(record: Record) -> str:
    """Return every world's scores beside its oracle's, for each number of objects."""
    lines = [
        "| world | N | trackpy tracks | clips tracked | position, px | path, px "
        "| hidden path, px | 90 % regions: visible / hidden / path | forecast, px | 90 % |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for world, oracle in record["oracles"].items():
        if world == "long":  # on the page of reliability
            continue
        for called, runs in record["worlds"].items():
            if called.partition(",")[0] != world:  # learned as usual, or in another way
                continue
            for count, limit in oracle["by_count"].items():
                ours = [run["by_count"][count] for run in runs.values() if count in run["by_count"]]
                rival = record["trackpy"].get(world, {"by_count": {}})["by_count"].get(count)
                blobs = f"{rival['tracked']:.2f}" if rival and called == world else ""
                name = f"`{world}`" + called.removeprefix(world)
                lines.append("| " + " | ".join([name, count, blobs, *cells(ours, limit)]) + " |")
    return "\n".join(lines)


def cells(ours: list[Record], limit: Record) -> list[str]:
    """Return what the runs of a world scored, that of its oracle in parentheses."""

    def pair(name: str, form: str) -> str:
        if name not in limit:
            return ""
        found = ", ".join(form.format(scores[name]) for scores in ours)
        return f"{found or '-'} ({form.format(limit[name])})"

    covers = " / ".join(pair(name, "{:.2f}") for name in COVERS if name in limit)
    ahead = [pair("forecast_rmse", "{:.2f}"), pair("forecast_coverage90", "{:.2f}")]
    return [*(pair(name, form) for name, form in SCORES), covers, *ahead]


def bounces_table(record: Record) -> str:
    """Return errors and widths of regions before and after bounces, for three objects."""
    rows: dict[str, list[Record]] = {}
    for name, run in record.items():
        if name != "environment":
            rows.setdefault(name.partition(", seed")[0], []).append(run)
    first = record["oracle"]["3"]
    kinds = [kind for kind in first if kind != "clips"]
    lines = [f"| N = 3 | {' | '.join(kinds)} |", "|---" * (1 + len(kinds)) + "|"]
    for name, those in rows.items():
        cells_of_kinds = []
        for kind in kinds:
            errors = ", ".join(f"{run['3'][kind]['rmse']:.2f}" for run in those)
            radius = ", ".join(f"{run['3'][kind]['radius90']:.1f}" for run in those)
            held = ", ".join(f"{run['3'][kind]['coverage90']:.2f}" for run in those)
            cells_of_kinds.append(f"{errors} ({radius}; {held})")
        lines.append(f"| {name} | {' | '.join(cells_of_kinds)} |")
    shares = ", ".join(f"{kind} {first[kind]['share']:.2f}" for kind in kinds)
    below = (
        "Errors in px; in parentheses the radius of a circle as large as the 90 % region, and how "
        f"often it holds the truth. Shares of all positions: {shares}. {first['clips']} clips, "
        f"every seed; `python -m experiments.worlds.score_bounces`, commit "
        f"{record['environment']['motes_commit'][:10]}."
    )
    return "\n".join([*lines, "", below])


def worlds_page(record: Record, bounces: Record, origin: Callable[[Record], str]) -> str:
    """Return the tables and where their numbers come from."""
    times = {
        world: [run["training"]["cpu_seconds"] for run in runs.values() if "training" in run]
        for world, runs in record["worlds"].items()
    }
    trained = [
        f"{world} {min(taken):.0f}" + (f"-{max(taken):.0f}" if len(taken) > 1 else "")
        for world, taken in times.items()
        if taken
    ]
    commits = {
        run["environment"]["motes_commit"][:10]
        for runs in record["worlds"].values()
        for run in runs.values()
    }
    return "\n\n".join(
        [
            worlds_table(record),
            "Training took, in seconds of one core, with up to 15 such jobs on the machine: "
            f"{'; '.join(trained)}.",
            f"Models of the commits {', '.join(sorted(commits))}; the oracles:",
            origin(next(iter(record["oracles"].values()))),
            "### What bounces cost",
            bounces_table(bounces),
        ]
    )
