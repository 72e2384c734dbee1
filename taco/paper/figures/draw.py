"""From the name of an experiment to its drawing."""

from __future__ import annotations

from pathlib import Path

import matplotlib

from taco.paper import style
from taco.paper.figures import ablation, codecs, collective, pareto, rules, speed, training
from taco.paper.table import read_table
from taco.paper.tables.load import experiment

FIGURES = {
    "codec_fidelity": codecs.codec_fidelity,
    "distribution": codecs.distribution,
    "accuracy": training.accuracy,
    "pareto": pareto.pareto,
    "threed": training.threed,
    "scaling": training.scaling,
    "ablation": ablation.ablation,
    "correctness": rules.correctness,
    "codec_speed": speed.codec_speed,
    "collective": collective.collective,
}


def make(name: str, source: str, results: Path = Path("results"), figures: Path = Path("figures")) -> tuple[Path, Path]:
    """Draw figures/<source>/<name>.svg and .png from results/<source>/<name>.csv.

    Raises `ConfigError` for an unknown experiment and `ValueError` for a missing table.
    """
    title = experiment(name).title
    rows = read_table(results / source / f"{name}.csv")
    style.own_fonts()
    with matplotlib.rc_context(style.RC):
        fig = FIGURES[name](rows)
        fig.suptitle(title, x=0.01, ha="left", fontsize=9, fontweight="bold")
        return style.save(fig, figures / source / name)
