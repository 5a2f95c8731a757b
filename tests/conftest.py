"""Shapes in annotations are checked in the whole suite; sampling is seeded; threads are few.

All processors compute with the instructions of AVX2, so that results do not depend on the machine:
with those of AVX-512, short runs end with other weights than the recorded ones.
"""

import os

# Two tests run side by side on two cores, here and in the processes that they start.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["ATEN_CPU_CAPABILITY"] = "avx2"
os.environ["MKL_ENABLE_INSTRUCTIONS"] = os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"

from jaxtyping import install_import_hook

with install_import_hook("motes", "beartype.beartype"):
    import motes

    for name in motes.__all__:  # imported on first use: now, under the hook
        getattr(motes, name)

import hypothesis
import pytest
import torch

# On a busy machine a quick example may wait for its turn.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20261115)
