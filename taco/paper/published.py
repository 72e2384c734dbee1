"""The numbers of the paper that are public: its abstract (arXiv 2604.24088) and the README of the authors' code.

They enter tables as rows of kind `paper`. The paper's body is not public to us, so nothing here refers to a table or a
figure of it. Model and schedule of the README's losses are not stated there.
"""

from __future__ import annotations

SPEEDUP = 1.87
"""End-to-end training throughput over no compression, 'up to' (abstract)."""

VALIDATION_LOSS = {"none": 2.389899, "taco": 2.395784, "tahquant": 2.458742}
"""Validation loss by codec on tensor-parallel traffic (README of the authors' code)."""
