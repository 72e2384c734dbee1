"""README and ARTIFACT say what the code does: bytes of every codec, code that compiles, links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from taco.codec import coder
from taco.paper.table import number, read_table
from taco.recipes import PRESETS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "ARTIFACT.md")


def test_readme_lists_every_codec_with_its_exact_bytes():
    text = (ROOT / "README.md").read_text()
    found = dict(re.findall(r"^\| `([a-z0-9-]+)` \|.*\| ([0-9.]+)(?: \(bfloat16\))? \|$", text, re.MULTILINE))
    assert list(found) == list(PRESETS)
    numel = 1 << 20
    for name, codec in PRESETS.items():
        exact = coder(codec).nbytes(numel, torch.bfloat16) / numel
        assert float(found[name]) == pytest.approx(exact, abs=6e-5), name


def test_python_in_the_readme_compiles_and_imports_exist():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")
        exec("\n".join(line for line in block.splitlines() if line.startswith(("import ", "from "))), {})


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_named_paths_exist(name: str):
    text = (ROOT / name).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), target
    for path in re.findall(r"`((?:taco|tests|envs|corpora|kernels)/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path


def test_readme_times_are_those_of_the_logged_table():
    rows = [r for r in read_table(ROOT / "results" / "logged" / "scaling.csv") if r["status"] == "measured"]
    cell = {
        (r["link"], r["codec"]): "{:.0f} ({:.0f} to {:.0f})".format(
            *(number(r[k]) for k in ("step_ms", "step_ms_q1", "step_ms_q3"))
        )
        for r in rows
    }
    text = (ROOT / "README.md").read_text()
    for link, name in (("auto", "NVLink"), ("host", "through host memory"), ("tcp", "loopback TCP")):
        base = next(r for r in rows if (r["link"], r["codec"]) == (link, "none"))
        cells = (f"{number(base['comm_fraction']):.2f}", *(cell[link, codec] for codec in ("none", "taco", "int8")))
        assert f"| {name} | {' | '.join(cells)} |" in text
