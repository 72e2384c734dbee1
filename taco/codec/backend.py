"""The one rule of which code runs: the kernels on CUDA tensors, plain torch elsewhere and for codecs without kernels.

Where a codec has kernels, neither runs for the other.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from taco.codec import cuda
from taco.codec.base import Coder
from taco.config import Codec


def on_gpu(x: Tensor) -> bool:
    """Whether x is where kernels run."""
    return x.is_cuda


class KernelCoder(Coder):
    """A coder with kernels.

    backend: 'reference' is plain torch; 'cuda' the kernels; 'auto' the kernels for CUDA tensors and plain torch for
    others. no_kernel: why this codec has none, or ''; then 'auto' is plain torch, which warns once where kernels of
    other codecs would run, and 'cuda' raises `ValueError`.
    """

    def __init__(self, config: Codec, backend: str = "auto", no_kernel: str = "") -> None:
        super().__init__(config)
        if backend == "cuda" and no_kernel:
            raise ValueError(
                f"got backend='cuda' for codec {config.name!r}; need 'auto' or 'reference'; because {no_kernel}"
            )
        self.backend = backend
        self.no_kernel = no_kernel
        self._ready = False  # the library has been found
        self._warned = False

    def _on_kernels(self, x: Tensor) -> bool:
        """Whether the kernels are to work on x; `path` says so too. Raises `RuntimeError` when they cannot."""
        if self.backend == "reference" or (self.backend == "auto" and not on_gpu(x)):
            self.path = "reference"
            return False
        if self.no_kernel:
            self._warn()
            self.path = "reference"
            return False
        if not self._ready:
            self._ready = self._find(x)
        elif not on_gpu(x):
            self._find(x)
        self.path = "cuda"
        return True

    def _warn(self) -> None:
        """Say once that plain torch works on CUDA tensors; not where a program is traced, which would break there."""
        if self._warned or torch.compiler.is_compiling():
            return
        self._warned = True
        warnings.warn(
            f"codec {self.config.name!r} runs in plain torch on a GPU, which is slower: {self.no_kernel}", stacklevel=2
        )

    def _find(self, x: Tensor) -> bool:
        """True. Raises `RuntimeError` unless the kernels can work on x."""
        if on_gpu(x) and cuda.available():
            return True
        built = "built" if cuda.available() else "not built"
        raise RuntimeError(
            f"got a {x.device.type} tensor with kernels {built}; need a CUDA tensor and the kernel library "
            "(`taco kernels build`); because plain torch replaces kernels only when asked: "
            "coder(config, backend='reference')"
        )
