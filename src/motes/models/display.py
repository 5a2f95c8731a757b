"""Models as HTML, for notebooks: sizes, the learned law, and one object as it is rendered."""

import base64
import io
from html import escape
from typing import TYPE_CHECKING

import torch

from motes.core.errors import InputError

if TYPE_CHECKING:
    from motes.models.model import Model

SIDE = 180  # pixels of the picture's longer side


@torch.no_grad()
def model_html(model: "Model") -> str:
    """Return a table of the model's properties and a picture of one object in the middle."""
    height, width = model.image_size
    lines = [
        ("frames", f"{height}x{width} pixels" + (", in colour" if model.in_colour else "")),
        ("objects", f"up to {model.max_objects} in training clips"),
        ("renderer", type(model.renderer).__name__),
        ("parameters", f"{sum(part.numel() for part in model.parameters()):,}"),
    ]
    try:
        lines += [("law", line) for line in str(model.law).splitlines() if line.strip()]
    except InputError as error:
        lines.append(("law", str(error)))
    cells = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in lines
    )
    picture = base64.b64encode(_picture(model)).decode()
    image = f'<img alt="one object as rendered" src="data:image/png;base64,{picture}">'
    return f'<div class="motes"><table>{cells}</table>{image}</div>'


def _picture(model: "Model") -> bytes:
    """Return a PNG of one object in the middle of a frame."""
    from PIL import Image

    height, width = model.image_size
    centre = model.pixel_offset.new_tensor([(width - 1) / 2, (height - 1) / 2])
    position = torch.linalg.solve(model.pixel_matrix, centre - model.pixel_offset)
    levels = model.renderer.coverage(position[None])
    if levels is None:
        slots = torch.zeros(1, model.max_objects, 1, 2).to(position)
        slots[0, 0] = position
        present = torch.arange(model.max_objects, device=position.device)[None] == 0
        levels = model.render(slots, present)[0]
    grey = levels[0].reshape(height, width, -1).mean(-1).clamp(0, 1)
    image = Image.fromarray((255 * grey).round().byte().cpu().numpy())
    factor = max(round(SIDE / max(height, width)), 1)
    content = io.BytesIO()
    enlarged = image.resize((width * factor, height * factor), Image.Resampling.NEAREST)
    enlarged.save(content, "PNG")
    return content.getvalue()
