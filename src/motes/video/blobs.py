"""How many things a frame seems to show: patches of pixels that touch."""

from collections import Counter

import numpy as np

from motes.core.axes import Float, UInt8

LIT = 64  # of 255; a quarter of a pixel is covered
SPECK = 0.25  # of the usual ink: smaller blobs are not counted


def blob_inks(frame: UInt8[np.ndarray, "height width"]) -> list[float]:
    """The ink of every patch of lit pixels that touch, also at corners, in whole pixels.

    Law: equals scipy's labelling (test_blobs_are_those_of_scipy).
    """
    rows, columns = np.nonzero(frame >= LIT)
    ink = {
        (row, column): level / 255
        for row, column, level in zip(
            rows.tolist(), columns.tolist(), frame[rows, columns].tolist(), strict=True
        )
    }
    inks = []
    while ink:
        place, total = ink.popitem()
        stack = [place]
        while stack:
            row, column = stack.pop()
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    neighbour = (row + down, column + right)
                    if neighbour in ink:
                        total += ink.pop(neighbour)
                        stack.append(neighbour)
        inks.append(total)
    return inks


def usual_count(inks: list[list[float]]) -> int:
    """How many objects most frames of a clip show, given the blobs of every frame.

    Specks do not count. Two objects that touch are one blob and a hidden one is none, so of two
    numbers that are seen equally often the larger is taken. [Choice 20]
    """
    all_inks: Float[np.ndarray, " M"] = np.array([ink for frame in inks for ink in frame])
    if not len(all_inks):
        return 0
    least = SPECK * float(np.median(all_inks))
    seen = Counter(sum(ink >= least for ink in frame) for frame in inks)
    return max(seen, key=lambda count: (seen[count], count))
