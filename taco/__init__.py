"""TACO: tensor-parallel adaptive communication compression."""

__version__ = "0.1.0"
