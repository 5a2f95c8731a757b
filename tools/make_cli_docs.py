"""Write docs/reference/cli.md from the help text of every verb.

Usage: python tools/make_cli_docs.py
"""

import contextlib
import io
import os
from pathlib import Path

from motes import cli

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
WIDTH = "100"
OPENING = """# The command line

Every verb prints one sentence, or one JSON line with `--json`. Exit codes: 0 done, 1 failed,
2 invalid input, reported in one line on standard error. This page is generated from `--help` by
`make docs`.
"""


def help_text(*arguments: str) -> str:
    """Return what `motes ARGUMENTS --help` prints."""
    printed = io.StringIO()
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS=WIDTH, NO_COLOR="1")
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            cli.main([*arguments, "--help"])
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()).strip()


def page() -> str:
    """Return the whole page."""
    verbs = [f"\n## motes {verb}\n\n```text\n{help_text(verb)}\n```\n" for verb in cli.VERBS]
    return OPENING + "".join(verbs)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(Path.cwd())}")
