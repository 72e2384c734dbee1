"""The paths of a communicator whose kernels write into memory of the peers or of the host; made at their first use.

    path                  kernels                                           sum
    fused                 taco's: encode, push, decode and sum in one       as the compressed algorithms, bit for bit
    fused_uncompressed    the same without a codec                          in rank order in fp32
    symmetric             torch's two-shot all-reduce over symmetric memory in rank order in the tensor's dtype
    symmetric_one_shot    its one-shot all-reduce                           the same

What makes or examines one is collective: all ranks come here together, because they choose the same paths.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from taco.comm import symmetric
from taco.comm.crossover import FUSED_PATHS
from taco.comm.errors import CommError
from taco.comm.fused import Fused, why_not
from taco.comm.links import Journal
from taco.comm.pending import capturing
from taco.config import NONE, Codec


class Peers:
    """The peer paths of one communicator with this codec. memory, sms: as of `Fused`; torch's paths need peers'."""

    def __init__(
        self, group: dist.ProcessGroup | None, codec: Codec, journal: Journal, memory: str = "auto", sms: int = 0
    ) -> None:
        self._group, self._codec, self._journal, self._memory, self._sms = group, codec, journal, memory, sms
        self._reasons: dict[tuple, str] = {}
        self._fused: dict[tuple[str, torch.device], Fused] = {}
        self._symmetric: dict[torch.device, symmetric.SymmetricReduce] = {}

    def why_not(self, path: str, device: torch.device, dtype: torch.dtype) -> str:
        """Why `path` cannot run on tensors of this device and dtype, on any rank; '' where it can on all.

        The first question of a kind is collective. Raises `CommError` if it is asked inside a CUDA graph capture.
        """
        key = (path, device) if path in FUSED_PATHS else (path, device, dtype)
        if key not in self._reasons:
            self._first_outside_capture(path)
            if path in FUSED_PATHS:
                mine = why_not(self._codec_of(path), self._group, device)
            elif self._memory == "host":
                mine = "got memory='host'; need 'auto' or 'peer'; because torch's kernels use the peers'"
            else:
                mine = symmetric.why_not(self._group, device, dtype)
            reason = self._agreed(path, mine)
            if path in FUSED_PATHS and not reason:
                reason = self._agreed(path, self._made(path, device))
                if reason:
                    self._fused.pop((path, device), None)
            self._reasons[key] = reason
        return self._reasons[key]

    def _agreed(self, path: str, mine: str) -> str:
        """The first rank's reason that is not empty."""
        reasons: list = [None] * dist.get_world_size(self._group)
        with self._journal.phase(f"agreeing on the path {path}"):
            dist.all_gather_object(reasons, mine, group=self._group)
        return next((f"{text} (rank {r})" for r, text in enumerate(reasons) if text), "")

    def _codec_of(self, path: str) -> Codec:
        return NONE if path == "fused_uncompressed" else self._codec

    def _made(self, path: str, device: torch.device) -> str:
        """Why the kernels' workspace cannot be made, or ''."""
        try:
            self._fused[path, device] = Fused(
                self._group, self._codec_of(path), device=device, memory=self._memory, sms=self._sms
            )
        except (CommError, ValueError) as error:
            return str(error)
        return ""

    def all_reduce(self, path: str, x: Tensor, algorithm: str, seed: int) -> Tensor:
        """Sum of x over the ranks, same shape. algorithm: of the path 'fused', 'one_shot' or 'two_shot'."""
        if path in FUSED_PATHS:
            chosen = algorithm if path == "fused" else "auto"
            try:
                return self._kernels(path, x).all_reduce(x, algorithm=chosen, seed=seed)
            except RuntimeError as error:
                self._journal.fail(path, error)
        if x.device not in self._symmetric:
            self._refuse(path, x)
            self._symmetric[x.device] = symmetric.SymmetricReduce(self._group, x.device)
        with self._journal.phase(path):
            return self._symmetric[x.device].all_reduce(x, two_shot=path == "symmetric")

    def reduce_scatter(self, path: str, x: Tensor, seed: int) -> Tensor:
        """x [N * size], row r for rank r -> own sum [size]."""
        try:
            return self._kernels(path, x).reduce_scatter(x, seed=seed)
        except RuntimeError as error:
            self._journal.fail(path, error)

    def all_gather(self, path: str, x: Tensor, seed: int) -> Tensor:
        """x [numel] -> [N, numel]."""
        try:
            return self._kernels(path, x).all_gather(x, seed=seed)
        except RuntimeError as error:
            self._journal.fail(path, error)

    def sent_bytes(self, path: str, collective: str, algorithm: str, numel: int, x: Tensor) -> int:
        """What `Fused.sent_bytes` says of a message of x's dtype and device. Makes the path's kernels."""
        return self._kernels(path, x).sent_bytes(collective, algorithm, numel, x.dtype)

    def check(self) -> None:
        """Raise `CommError` if a call on the GPU has timed out."""
        for fused in self._fused.values():
            fused.check()

    def _kernels(self, path: str, x: Tensor) -> Fused:
        key = (path, x.device)
        if key not in self._fused:
            self._refuse(path, x)
        return self._fused[key]

    def _refuse(self, path: str, x: Tensor) -> None:
        """Raise `CommError` where `path` cannot be made."""
        self._first_outside_capture(path)
        if reason := self.why_not(path, x.device, x.dtype):
            raise CommError(f"{self._journal.who}: {self._journal.said()} cannot take the path {path}: {reason}")

    def _first_outside_capture(self, path: str) -> None:
        if capturing():
            raise CommError(
                f"got the first call of the path {path} inside a CUDA graph capture; need one before it; "
                "because all ranks make it together, and a capture cannot wait for them"
            )
