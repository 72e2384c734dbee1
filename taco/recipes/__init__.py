"""Named configurations: PRESETS (codecs), MODELS, RUNS, EXPERIMENTS and CLAIMS. Free of torch.

A recipe is the only place where a number of an experiment is chosen.
"""

from taco.recipes.claims import CLAIMS, Claim
from taco.recipes.codecs import PRESETS, policy, preset
from taco.recipes.experiments import CAPTURE_MEASURES, EXPERIMENTS, MEASURES, SOURCES, Experiment, captures
from taco.recipes.models import MODELS
from taco.recipes.runs import RUNS, TP_CODECS

__all__ = [
    "CAPTURE_MEASURES",
    "CLAIMS",
    "EXPERIMENTS",
    "MEASURES",
    "MODELS",
    "PRESETS",
    "RUNS",
    "SOURCES",
    "TP_CODECS",
    "Claim",
    "Experiment",
    "captures",
    "policy",
    "preset",
]
