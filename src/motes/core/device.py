"""The device of a computation."""

import torch

from motes.core.errors import InputError


def check_device(device: str | torch.device) -> torch.device:
    """Return the device; raise `InputError` if PyTorch cannot use it here."""
    try:
        found = torch.device(device)
    except RuntimeError:
        raise InputError(f"device is {str(device)!r}; give cpu or cuda") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device is {found}, but PyTorch finds no GPU here; use cpu")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device is {found}; this machine has {torch.cuda.device_count()} GPUs, counted from 0"
        )
    return found
