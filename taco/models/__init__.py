"""Plain single-device decoders with Hugging Face names; taco.parallel applies parallelism from outside."""

from taco.models.factory import ARCHITECTURES, build
from taco.models.gpt import GPT
from taco.models.hf import load_hf, save_hf
from taco.models.layers import initial_value, initialize_
from taco.models.qwen import Qwen

__all__ = ["ARCHITECTURES", "GPT", "Qwen", "build", "initial_value", "initialize_", "load_hf", "save_hf"]
