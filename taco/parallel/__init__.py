"""Tensor, data and pipeline parallelism: torch's own machinery with compressed communication inside.

parallelize(model, mesh["tp"], policy)          # any model named like GPT-2, Qwen2 or Llama, or with a plan
virtual_tp(model, ways, policy)                 # the numerics of TP = ways in one process
setup(model_config, build, parallel, policy)    # a whole process grid, for the trainer
"""

from taco.parallel.evaluation import uncompressed
from taco.parallel.functions import TensorComm
from taco.parallel.grid import Parallelism
from taco.parallel.loss import virtual_cross_entropy, vocab_parallel_cross_entropy
from taco.parallel.mesh import build_mesh
from taco.parallel.plans import default_plan, parallelize
from taco.parallel.setup import setup
from taco.parallel.tensor import (
    ColwiseParallel,
    PrepareModuleInput,
    ReplicateParallel,
    RowwiseParallel,
    SequenceParallel,
    SharedParallel,
)
from taco.parallel.virtual import virtual_tp

__all__ = [
    "ColwiseParallel",
    "Parallelism",
    "PrepareModuleInput",
    "ReplicateParallel",
    "RowwiseParallel",
    "SequenceParallel",
    "SharedParallel",
    "TensorComm",
    "build_mesh",
    "default_plan",
    "parallelize",
    "setup",
    "uncompressed",
    "virtual_cross_entropy",
    "virtual_tp",
    "vocab_parallel_cross_entropy",
]
