"""Figures: the same bytes each time, whatever fonts the machine has; they say what is missing; labels keep apart."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import paper_logs
import pytest
from matplotlib import font_manager

from taco.config import ConfigError
from taco.paper import style, tables
from taco.paper.figures import draw
from taco.recipes import EXPERIMENTS


def png_chunks(path: Path) -> set[str]:
    data, at, names = path.read_bytes(), 8, set()
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        names.add(data[at + 4 : at + 8].decode())
        at += 12 + length
    return names


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_same_table_same_bytes_without_date_or_version(name: str, results: Path, tmp_path: Path):
    source = paper_logs.source_of(name)
    first = [p.read_bytes() for p in draw.make(name, source, results, tmp_path / "1")]
    fonts = font_manager.fontManager
    known = list(fonts.ttflist)
    fonts.ttflist = known[::-1]  # another machine lists its fonts in another order
    try:
        second = draw.make(name, source, results, tmp_path / "2")
    finally:
        fonts.ttflist = known
    assert [p.read_bytes() for p in second] == first
    svg, png = second
    text = svg.read_text()
    assert "<dc:date>" not in text
    assert "matplotlib v" not in text.lower()
    assert png_chunks(png) <= {"IHDR", "IDAT", "IEND", "pHYs", "sBIT"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_source_without_logs_still_has_a_figure(name: str, tmp_path: Path):
    tables.make(name, "logged", tmp_path)
    svg, png = draw.make(name, "logged", tmp_path, tmp_path / "figures")
    assert svg.stat().st_size > 1000
    assert png.stat().st_size > 1000


def _notes(rows: list[dict], **options) -> str:
    fig = style.figure(2)
    style.notes(fig, rows, **options)
    return " ".join(fig.get_supxlabel().split())


def test_notes_say_what_is_missing_and_what_cpu_times_mean():
    measured = {"status": "measured", "hardware": "h", "transport": "gloo", "device": "cpu", "log": "a"}
    missing = [
        {"status": "missing", "log": f"run-{i}", "hardware": "", "transport": "", "device": ""} for i in range(6)
    ]
    text = _notes([measured, *missing], speed=True)
    assert "Measured on h over gloo." in text
    assert "Absolute speeds of CPU processes mean nothing for GPUs" in text
    assert "Not measured in this source: run-0, run-1, run-2, run-3 and 2 more." in text


def test_notes_of_gpus_do_not_speak_of_cpus():
    gpu = {"status": "measured", "hardware": "h", "transport": "nccl", "device": "cuda", "log": "a"}
    assert "CPU" not in _notes([gpu], speed=True)


@pytest.mark.parametrize(
    "values", [[1.0, 1.0, 1.0], [5.0, 1.0, 1.2, 0.9], [3.0], [], [0.0, 10.0], [2.0, 1.9, 1.8, 1.7]]
)
def test_spread_keeps_order_and_distance(values: list[float]):
    placed = style.spread(values, 0.5)
    order = sorted(range(len(values)), key=lambda i: (values[i], i))
    gaps = [placed[b] - placed[a] for a, b in itertools.pairwise(order)]
    assert all(gap >= 0.5 - 1e-9 for gap in gaps)
    assert sum(placed) == pytest.approx(sum(values))


def test_spread_leaves_what_is_far_apart():
    assert style.spread([0.0, 10.0, 5.0], 1.0) == [0.0, 10.0, 5.0]


def test_a_variant_has_its_base_colour_and_a_preset_its_own():
    assert style.colour("taco-g256") == style.PAPER
    assert style.colour("int4 forward, none backward") == style.OURS
    assert style.colour("fp8-cast") == style.OTHERS
    assert style.colour("fp8") == style.OURS


def test_an_unknown_experiment_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="got experiment 'speed'"):
        draw.make("speed", "mini", tmp_path, tmp_path)


def test_a_missing_table_is_an_error(tmp_path: Path):
    with pytest.raises(ValueError, match="need a table"):
        draw.make("scaling", "mini", tmp_path, tmp_path)
