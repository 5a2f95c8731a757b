"""The structured family: the paper's prior and bound, with the dynamics inside inference.

The paper's inference network does not know the dynamics, so training has many bad optima, and it
ends on the remark that it is not obvious how to mend this for several objects. Here two parts are
exchanged and all else is kept. The renderer places one learned glyph at each position
(`template`). Inference looks where the dynamics predict each object, weighs every place there by how
well the renderer would explain the frame with the object at that place (`places`), and hands what
it found back to the dynamics for the next frame (`tracker`).
"""
