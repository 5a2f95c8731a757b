"""A builder of self-contained HTML pages.

Pages have no scripts and load no fonts or images from elsewhere. Titles, captions and names are
text and are escaped; table cells and parts are HTML.
"""

import base64
from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --text: #1d1d1f; --soft: #5d5d66; --page: #fbfbfd; --card: #fff;
  --line: #d9d9e0; --accent: #0069a3 }
@media (prefers-color-scheme: dark) { :root { --text: #ececf1; --soft: #a5a5b0; --page: #141416;
  --card: #1f1f23; --line: #38383f; --accent: #6db3ff } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; background: var(--page);
  color: var(--text); font: 1rem/1.55 system-ui, sans-serif }
h1 { font-size: 1.9rem; margin: 0 } h2 { margin: 2.8rem 0 .6rem; font-size: 1.35rem }
h3 { margin: 0 0 .5rem; font-size: 1.05rem } p { max-width: 46rem } a { color: var(--accent) }
.soft, figcaption, small { color: var(--soft) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem }
.card, figure { background: var(--card); border: 1px solid var(--line); border-radius: .7rem;
  padding: .9rem 1rem; margin: 0 }
.card b { display: block; font-size: 1.7rem; line-height: 1.2 }
figure { margin: 1rem 0 } figcaption { font-size: .93rem; margin-top: .6rem }
img { display: block; max-width: 100%; height: auto; margin: 0 auto; background: #fff;
  border-radius: .4rem }
.wide { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; width: 100%; font-size: .93rem }
th, td { text-align: left; padding: .45rem .42rem; border-bottom: 1px solid var(--line);
  vertical-align: top }
td small { display: block } .number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap } th.number { white-space: normal }
td:first-child { min-width: 9rem }
@media (max-width: 40rem) { figure { overflow-x: auto } figcaption { position: sticky; left: 0 }
  img { max-width: none; width: 44rem } :is(#animation, #initial-states) img { max-width: 100% } }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: .7rem; padding: .8rem 1rem; font-size: .9rem }
"""


def document(title: str, body: Iterable[str]) -> str:
    """Return a whole page with a heading and parts that are HTML already."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def section(title: str, parts: Iterable[str]) -> list[str]:
    """Return a heading and the parts under it."""
    return [f"<h2>{escape(title)}</h2>", *parts]


def figure(name: str, data: bytes, title: str, caption: str) -> str:
    """Return a PNG or GIF inside the page, with its title and caption."""
    kind = "gif" if data.startswith(b"GIF8") else "png"
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return (
        f'<figure id="{escape(name)}"><h3>{escape(title)}</h3>'
        f'<img alt="{escape(title)}" src="{source}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are numbers; cells are HTML."""

    def line(cells: Sequence[str], tag: str) -> str:
        first, *others = cells
        right = "".join(f'<{tag} class="number">{cell}</{tag}>' for cell in others)
        return f"<tr><{tag}>{first}</{tag}>{right}</tr>"

    body = "".join(line(row, "td") for row in rows)
    top = f"<thead>{line(head, 'th')}</thead>" if any(head) else ""
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def count_name(count: str | int) -> str:
    """Return "1 object", "2 objects" and so on."""
    return f"{count} object{'s' * (str(count) != '1')}"


def force_table(learned: Iterable[float], true: Iterable[float]) -> str:
    """Return the learned and the true force, (x, y) in pixels per frame squared."""
    rows = [["learned", *numbers(learned, "+.4f")], ["true", *numbers(true, "+.4f")]]
    return table(["Force, pixels per frame²", "right", "down"], rows)


def initial_state_table(
    rows: Iterable[tuple[str, float, Sequence[float], Sequence[float]]],
) -> str:
    """Return initial states in pixels: name, share, position and step to the second frame."""
    return table(
        ["Initial states, pixels", "share", "x", "y", "step right", "step down"],
        [
            [escape(name), f"{share:.2f}", *numbers(place, ".1f"), *numbers(step, "+.2f")]
            for name, share, place, step in rows
        ],
    )


def numbers(values: Iterable[float], form: str) -> list[str]:
    """Return numbers as text."""
    return [f"{value:{form}}" for value in values]
