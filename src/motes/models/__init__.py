"""The generative model, its families, the bound, and models on disk."""
