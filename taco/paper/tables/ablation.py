"""The ablation table: what one change to a codec does to SQNR (part `sqnr`) and to training (part `training`)."""

from __future__ import annotations

from dataclasses import asdict

from taco.config import PAYLOADS, ROTATIONS, ROUNDINGS, SCALES, GroupCodec, to_dict
from taco.paper.table import Row, number
from taco.paper.tables.load import PROVENANCE, Logs, codec_rank, missing, provenance
from taco.paper.tables.pairs import baseline, delta_pct, noise_band_pct
from taco.paper.tables.summary import AXES, Summary, summaries
from taco.recipes import PRESETS

ABLATION = (
    "part", "base", "axis", "value", "dataset", "step", "role", "bytes_per_element", "sqnr_db", "two_shot_sqnr_db",
    "model", "tp", "val_loss", "delta_pct", "noise_band_pct", "wire_ratio", *PROVENANCE,
)  # fmt: skip
WORDS = (*PAYLOADS, *ROTATIONS, *SCALES, *ROUNDINGS, "both", "forward", "backward")
NUMBERS = ("bytes_per_element", "sqnr_db", "two_shot_sqnr_db")


def ablation(logs: Logs) -> tuple[tuple[str, ...], list[Row]]:
    """SQNR rows of the measuring program, then one row per training arm with its change to the uncompressed run."""
    rows = []
    for name, source in logs.measures.items():
        for record in source.of("row"):
            text = {k: record.get(k) for k in ("base", "axis", "value", "dataset", "step", "role")}
            rows.append(
                {"part": "sqnr", **text, **{k: number(record.get(k)) for k in NUMBERS}, **provenance(name, source)}
            )
    rows.sort(
        key=lambda r: (
            codec_rank(r["base"]), r["axis"], _value(r["value"]), str(r["dataset"]), r["step"] or 0, str(r["role"]),
        )
    )  # fmt: skip
    rows += [{"part": "sqnr", **missing(name)} for name in logs.missing_measures]
    runs = summaries(logs)
    arms = [_arm(r, runs) for r in runs]
    arms.sort(key=lambda r: (codec_rank(r["base"]), r["axis"], _value(r["value"]), r["log"]))
    return ABLATION, rows + arms


def _value(value: object) -> tuple:
    """Numbers in their order, then words in the order of taco.config, then others."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (0, value, "")
    return (1, WORDS.index(value), "") if value in WORDS else (2, 0, str(value))


def _arm(run: Summary, runs: list[Summary]) -> Row:
    base, axis, value = change(run.config["policy"])
    return {
        "part": "training", "base": base, "axis": axis, "value": value, "model": run.model, "tp": run.ways,
        "val_loss": run.val_loss, "delta_pct": delta_pct(run, baseline(run, runs)),
        "noise_band_pct": noise_band_pct(run, runs), "wire_ratio": run.wire_ratio(*AXES["tp"]), **run.provenance(),
    }  # fmt: skip


def change(policy: dict) -> tuple[str, str, object]:
    """(base, axis, value) of a policy: the preset it starts from, the one thing that is changed, and to what.

    A codec in one direction only is the axis `direction`; a preset in both directions is that axis' value 'both'.
    Several changed fields are joined with '+'.
    """
    forward, backward = (policy[role] for role in AXES["tp"])
    if forward != backward:
        if backward["name"] == "none":
            return forward["name"], "direction", "forward"
        if forward["name"] == "none":
            return backward["name"], "direction", "backward"
        return forward["name"], "tp_backward", backward["name"]
    if forward["name"] in PRESETS or forward["type"] != GroupCodec.__name__:
        return forward["name"], "direction", "both"
    name, changed = _nearest(forward)
    values = [forward[field] for field in changed]
    return name, "+".join(changed), values[0] if len(values) == 1 else "+".join(map(str, values))


def _nearest(codec: dict) -> tuple[str, list[str]]:
    """The group preset with the fewest different fields, and those fields."""
    differences = {
        name: [field for field in asdict(preset) if field != "name" and to_dict(preset)[field] != codec.get(field)]
        for name, preset in PRESETS.items()
        if isinstance(preset, GroupCodec)
    }
    name = min(differences, key=lambda n: (len(differences[n]), codec_rank(n)))
    return name, differences[name]
