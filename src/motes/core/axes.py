"""The axes of every tensor, and the annotation types that name them.

Axes, in their order:

    B  clips            N  objects          T  frames (time)       S  random draws
    K  mixture components                   D  state, 4: position then velocity
    P  position, 2: (x, y)                  height, width: of a frame in pixels

`frames` are [B, T, height, width] with values in [0, 1], row 0 on top. Pixel coordinates are
(x to the right, y down), pixel centres at integers. Latent coordinates are those that a model
learned; `motes.models.pixel_map` estimates the affine map from latent to pixel coordinates.

Annotations such as ``Float[Tensor, "B N T 2"]`` are jaxtyping's, and the tests check them at run
time. jaxtyping is not needed to run the package: without it the annotations mean `Tensor`.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64, Int, UInt, UInt8
else:
    try:
        from jaxtyping import Bool, Float, Float64, Int, UInt, UInt8
    except ImportError:

        class _Unchecked:
            """Replacement for jaxtyping's types where it is not installed."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Float64 = Int = UInt = UInt8 = _Unchecked

__all__ = ["Bool", "Float", "Float64", "Int", "Tensor", "UInt", "UInt8"]
