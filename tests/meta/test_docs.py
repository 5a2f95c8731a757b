"""The hand-written pages are short, narrow, linked and complete."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
WRITTEN_BY_TOOLS = (
    DOCS / "reference" / "cli.md",
    DOCS / "results" / "laws.md",
    DOCS / "results" / "reliability.md",
)
HAND_WRITTEN = [page for page in PAGES if page not in WRITTEN_BY_TOOLS]
BLOCK = re.compile(r"<!-- (results|counts): .*?<!-- end of \1 -->", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
MAX_WORDS = 14_000
MAX_COLUMNS = 100


def prose(page: Path) -> str:
    """The text of a page without its generated blocks."""
    return BLOCK.sub("", page.read_text("utf-8"))


def words(text: str) -> int:
    """The number of words, those of tables and code included; bars and rules are none."""
    return sum(1 for word in text.split() if re.search(r"\w", word))


def headings(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub and MyST derive them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_hand_written_pages_fit_the_budget():
    counts = {page.relative_to(ROOT).as_posix(): words(prose(page)) for page in HAND_WRITTEN}
    assert sum(counts.values()) <= MAX_WORDS, counts


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda page: page.stem)
def test_lines_are_at_most_a_hundred_characters(page: Path):
    # A row of a table and an image are one line in Markdown, whatever they hold.
    lines = [line for line in prose(page).splitlines() if not line.startswith(("|", "!["))]
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_relative_links_lead_to_files_and_headings(page: Path):
    broken = []
    for target in LINK.findall(page.read_text("utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = page if not name else page.parent / name
        if not path.exists() or (anchor and anchor not in headings(path)):
            broken.append(target)
    assert broken == []


def test_every_page_is_in_the_table_of_contents():
    listed = set()
    for index in (DOCS / "index.md", DOCS / "results" / "index.md"):
        blocks = re.findall(r"```\{toctree\}\n(.*?)```", index.read_text("utf-8"), re.DOTALL)
        names = [line for block in blocks for line in block.splitlines()]
        entries = [name for name in names if name and not name.startswith(":")]
        listed |= {(index.parent / f"{name}.md").resolve() for name in entries}
    assert {page.resolve() for page in DOCS.rglob("*.md")} - listed == {DOCS / "index.md"}


@pytest.mark.parametrize("image", sorted((DOCS / "images").iterdir()), ids=lambda path: path.name)
def test_every_image_is_used(image: Path):
    assert any(f"images/{image.name})" in page.read_text("utf-8") for page in PAGES)


def test_a_generated_block_is_not_counted():
    text = "one <!-- results: made by a tool -->\n| two |\n<!-- end of results --> three"
    assert words(BLOCK.sub("", text)) == 2
