"""Measurements: each writes one log through taco.log and decides nothing.

A measurement is `measure_<name>(source, captures, out, provenance)`: source is 'mini', 'logged' or 'fresh', captures
are safetensors files that a training run wrote, out is the log's path, provenance goes into its header. Options have
defaults that give the whole measurement; only `collective`, which several ranks make, is told where it runs and what.
"""
