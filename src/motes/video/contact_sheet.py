"""Contact sheet of prepared clips: the frames as a model receives them."""

from collections.abc import Sequence
from pathlib import Path

from motes.core.files import atomic_path
from motes.video.clip_file import SheetRow

CELL = 120  # pixels of the longer side of a frame on the sheet
GAP, LABEL = 4, 64  # pixels between frames, and for the label of a row


def write_sheet(path: Path, rows: Sequence[SheetRow]) -> None:
    """Write a PNG with one row of frames per clip, labelled with time and number of objects."""
    from PIL import Image, ImageDraw, ImageFont

    columns, height, width = rows[0].frames.shape
    scale = CELL / max(height, width)
    across, down = max(round(width * scale), 1), max(round(height * scale), 1)
    size = (LABEL + columns * (across + GAP), len(rows) * (down + GAP) + GAP)
    sheet = Image.new("L", size, 70)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for row, clip in enumerate(rows):
        top = GAP + row * (down + GAP)
        noun = "object" if clip.num_objects == 1 else "objects"
        label = f"{clip.time:.1f} s\n{clip.num_objects} {noun}"
        draw.multiline_text((4, top + 2), label, fill=255, font=font)
        for column, frame in enumerate(clip.frames):
            cell = Image.fromarray(frame).resize((across, down), Image.Resampling.NEAREST)
            sheet.paste(cell, (LABEL + column * (across + GAP), top))
    with atomic_path(path) as temporary:
        sheet.save(temporary, "PNG")  # whatever the suffix
