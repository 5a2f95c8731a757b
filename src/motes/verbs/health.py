"""`motes doctor`."""

from pathlib import Path

from motes.verbs import Json, tell


def doctor(
    folder: Path = Path("."),
    as_json: Json = False,
) -> None:
    """Looks at this installation: versions, device, threads, known traps and how to mend each.

    Example: motes doctor --folder runs

    Args:
        folder: where runs would be written; its disk is tried with a small file.
        as_json: print one JSON line instead of a table.
    """
    from motes.doctor import Finding, examine

    findings = examine(folder)

    def line(finding: Finding) -> str:
        mend = f"\n{'':9s}mend: {finding.mend}" if finding.mend else ""
        return f"{finding.state:7s}  {finding.name}: {finding.told}{mend}"

    states = [finding.state for finding in findings]
    trouble = sum(state in ("trap", "broken") for state in states)
    last = f"{trouble} to mend" if trouble else "nothing to mend"
    record = {"verb": "doctor", "findings": [finding._asdict() for finding in findings]}
    tell(record, as_json, "\n".join([*map(line, findings), last]))
    if "broken" in states:
        raise SystemExit(1)
