"""The sprite family: identical sprites, tracked by a filter that uses the renderer.

The prior and the bound are the paper's; two parts are replaced. `renderer` places one learned
sprite at each position instead of a network's output. `search` replaces the inference network:
it evaluates the likelihood of the frame at positions near each object's prediction
(`likelihood_maps`) and updates the dynamics with the result.
"""
