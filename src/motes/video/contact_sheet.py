"""A contact sheet: what a model will see of a video."""

from collections.abc import Sequence
from pathlib import Path

from motes.core.files import atomic_path
from motes.video.cutting import Shown

CELL = 120  # pixels of the longer side of a frame on the sheet
GAP, LABEL = 4, 64  # pixels between frames, and for the words beside a row


def write_sheet(path: Path, rows: Sequence[Shown]) -> None:
    """Writes a PNG with a row of frames for each clip, its second and its number of objects."""
    from PIL import Image, ImageDraw, ImageFont

    columns, height, width = rows[0].frames.shape
    scale = CELL / max(height, width)
    across, down = max(round(width * scale), 1), max(round(height * scale), 1)
    size = (LABEL + columns * (across + GAP), len(rows) * (down + GAP) + GAP)
    sheet = Image.new("L", size, 70)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for row, clip in enumerate(rows):
        top = GAP + row * (down + GAP)
        things = "object" if clip.num_objects == 1 else "objects"
        words = f"{clip.time:.1f} s\n{clip.num_objects} {things}"
        draw.multiline_text((4, top + 2), words, fill=255, font=font)
        for column, frame in enumerate(clip.frames):
            cell = Image.fromarray(frame).resize((across, down), Image.Resampling.NEAREST)
            sheet.paste(cell, (LABEL + column * (across + GAP), top))
    with atomic_path(path) as temporary:
        sheet.save(temporary, "PNG")  # whatever the name ends in
