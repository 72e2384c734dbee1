"""Finding a run or a codec by name or file, and changing single fields of it. Free of torch."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from taco.config import ROLES, Codec, ConfigError, Run, codec_from_dict, require, run_from_dict, to_dict
from taco.recipes import PRESETS, preset

MOST_NAMES, FEW_NAMES = 20, 4  # an error is one line that can be read
KINDS = {int: "an integer", float: "a number", bool: "true or false", tuple: "a list in JSON"}


def nearest(name: str, known: Iterable[str]) -> str:
    """The known names that look most like `name`, or all, or the first of many: text for 'such as' in an error."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
    shown = near or (known if len(known) <= MOST_NAMES else known[:FEW_NAMES])
    more = "" if near or shown == known else f" and {len(known) - FEW_NAMES} more (`taco recipes list`)"
    return ", ".join(map(repr, shown)) + more or "(none are defined)"


def find_run(name: str, known: dict[str, Run]) -> Run:
    """The run called `name` in `known`, or the run in the JSON file `name`, whose policy may name presets.

    Raises `ConfigError` for an unknown name (naming near matches), a missing file, or a file that is not a run.
    """
    if name in known:
        return known[name]
    path = _file(name, "run", known)
    data = _read(path, "run")
    if isinstance(data, dict):
        _resolve_presets_(data.get("policy"))
    return run_from_dict(data)


def find_codec(name: str) -> Codec:
    """The preset called `name`, or the codec in the JSON file `name`, in the form that `to_dict` gives it.

    Raises `ConfigError` for an unknown name (naming near matches), a missing file, or a file that is not a codec.
    """
    if name in PRESETS:
        return PRESETS[name]
    return codec_from_dict(_read(_file(name, "codec", PRESETS), "codec"))


def _file(name: str, what: str, known: Iterable[str]) -> Path:
    """The file `name`, which is not among the `known` names of runs or codecs."""
    path = Path(name)
    if path.suffix == ".json":
        require(path.exists(), f"no file {path}", f"an existing JSON file of a {what}", f"it names the {what}")
    need = f"an existing JSON file or a known {what}, such as {nearest(name, known)}"
    require(path.exists(), f"{what} {name!r}", need, "neither a file nor a recipe has this name")
    return path


def _read(path: Path, what: str) -> Any:
    """The data in a JSON file of a run or codec."""
    try:
        return json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"got {what} file {path}; need a JSON {what}; because {error}") from error


def _resolve_presets_(policy: Any) -> None:
    """Replace the names of presets in a policy's JSON data, whatever that holds, by their data."""
    if not isinstance(policy, dict):
        return
    for field in (*ROLES, "warmup"):
        if isinstance(policy.get(field), str):
            policy[field] = _preset(f"policy.{field}", policy[field])
    overrides = policy.get("overrides")
    for each in overrides if isinstance(overrides, list) else ():
        if isinstance(each, dict) and isinstance(each.get("codec"), str):
            each["codec"] = _preset("policy.overrides.codec", each["codec"])


def _preset(where: str, text: str) -> dict:
    """The preset called `text`, as the field `where` of a run in JSON."""
    known = text in PRESETS
    require(known, f"{where}={text!r}", f"a preset, such as {nearest(text, PRESETS)}", "presets are looked up by name")
    return to_dict(preset(text))


def _parse(where: str, text: str, old: Any, plain: Any) -> Any:
    """The value in plain data that `text` says. old: what the field holds now; plain: that in plain data."""
    if isinstance(old, Codec):
        return _preset(where, text)
    if isinstance(old, str):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        need = f"a value like {json.dumps(plain)}"
        holds = KINDS.get(type(old), "JSON")
        raise ConfigError(f"got --set {where}={text}; need {need}; because the field holds {holds}") from None


def _field(config: Any, part: str, where: str) -> Any:
    known = {f.name for f in fields(config)} if is_dataclass(config) and not isinstance(config, Codec) else set()
    require(part in known, f"--set {where}", f"a field, such as {nearest(part, known)}", f"there is no {part!r} here")
    return getattr(config, part)


def override(run: Run, settings: Iterable[str]) -> Run:
    """`run` with 'part.field=value' settings applied, e.g. train.steps=50 or policy.tp_forward=int8.

    Raises `ConfigError` for a setting without '=', an unknown field (naming near matches) or a value of another type.
    """
    data = to_dict(run)
    for setting in settings:
        where, equals, text = setting.partition("=")
        require(bool(equals), f"--set {setting}", "part.field=value", "a setting has a name and a value")
        config, target = run, data
        *parents, leaf = where.split(".")
        for part in parents:
            config, target = _field(config, part, where), target[part]
        old = _field(config, leaf, where)
        group = is_dataclass(old) and not isinstance(old, Codec)
        require(not group, f"--set {where}", f"one field of {where}", "a group of fields has no single value")
        target[leaf] = _parse(where, text, old, target[leaf])
    _resolve_presets_(data["policy"])
    return run_from_dict(data)
