"""The one rule of which code runs: the kernels on CUDA tensors, plain torch elsewhere, and never one for the other."""

from __future__ import annotations

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
    others.
    """

    def __init__(self, config: Codec, backend: str = "auto") -> None:
        super().__init__(config)
        self.backend = backend
        self._ready = False  # the library has been found

    def _on_kernels(self, x: Tensor) -> bool:
        """Whether the kernels are to work on x; `path` says so too. Raises `RuntimeError` when they cannot."""
        if self.backend == "reference" or (self.backend == "auto" and not on_gpu(x)):
            self.path = "reference"
            return False
        if not self._ready:
            self._ready = self._find(x)
        elif not on_gpu(x):
            self._find(x)
        self.path = "cuda"
        return True

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
