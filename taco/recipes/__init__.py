"""Named configurations: PRESETS (codecs), MODELS, RUNS, EXPERIMENTS, SPEED, COLLECTIVE and CLAIMS. Free of torch.

A recipe is the only place where a number of an experiment is chosen.
"""

from taco.recipes.arms import ARMS, TP_CODECS
from taco.recipes.claims import CLAIMS, Claim
from taco.recipes.codecs import PRESETS, policy, preset
from taco.recipes.collective import COLLECTIVE, TRANSPORTS, CollectiveCase, CollectiveGrid
from taco.recipes.experiments import (
    CAPTURE_MEASURES,
    EXPERIMENTS,
    MEASURES,
    SOURCES,
    Experiment,
    captures,
)
from taco.recipes.layers import protected, with_layers
from taco.recipes.measures import GPU_MEASURES
from taco.recipes.models import MODELS
from taco.recipes.queue import QUEUE, Stage
from taco.recipes.recommended import DEFAULT, guarded
from taco.recipes.runs import RUNS
from taco.recipes.speed import SPEED, SpeedCase, SpeedGrid

__all__ = [
    "ARMS",
    "CAPTURE_MEASURES",
    "CLAIMS",
    "COLLECTIVE",
    "DEFAULT",
    "EXPERIMENTS",
    "GPU_MEASURES",
    "MEASURES",
    "MODELS",
    "PRESETS",
    "QUEUE",
    "RUNS",
    "SOURCES",
    "SPEED",
    "TP_CODECS",
    "TRANSPORTS",
    "Claim",
    "CollectiveCase",
    "CollectiveGrid",
    "Experiment",
    "SpeedCase",
    "SpeedGrid",
    "Stage",
    "captures",
    "guarded",
    "policy",
    "preset",
    "protected",
    "with_layers",
]
