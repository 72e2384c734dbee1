"""The current stream of a GPU, for questions that every operation asks: answers without torch.cuda's checks.

Both functions cost a few calls into the driver's bindings where their counterparts in torch.cuda cost several times as
many Python calls, which a small message waits for.
"""

from __future__ import annotations

import torch

# a build of torch without CUDA lacks them, and has no tensors whose stream matters
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current_device = getattr(torch._C, "_cuda_getDevice", None)

LIMIT = 64  # streams that are kept: torch itself has 32 of a priority
_streams: dict[tuple[int, int], torch.cuda.Stream] = {}  # by device and address


def current_stream(device: torch.device) -> torch.cuda.Stream:
    """`torch.cuda.current_stream(device)`; mostly the same object for the same stream."""
    if device.index is None:
        return torch.cuda.current_stream(device)
    key = (device.index, _raw_stream(device.index))
    stream = _streams.get(key)
    if stream is None:
        if len(_streams) >= LIMIT:
            _streams.clear()
        stream = _streams[key] = torch.cuda.current_stream(device)
    return stream


def capturing(device: torch.device) -> bool:
    """Whether the current stream of `device` is being captured into a CUDA graph. device: with an index."""
    if _current_device() == device.index:
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()
