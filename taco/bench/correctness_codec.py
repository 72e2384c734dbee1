"""The codec's rules as checks: what a receiver gets, for our presets and for the authors' published semantics.

A check takes a `Subject` and returns (passed, detail), or None where the rule does not apply to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from taco.codec import authors, coder
from taco.codec.quality import sqnr_db
from taco.config import Codec, ConfigError, codec_from_dict, to_dict
from taco.recipes import preset

Outcome = tuple[bool, str]
PRESETS = ("taco", "int8", "int6", "int4", "fp8")
TAILS = (1, 8, 32, 64, 96, 127)
SIZES = (1, 2, 3, 12, 17, 64, 100, 127, 129, 257, 896, 1000)


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """Something that codes tensors. name: 'ours' or 'authors-code'; config is None for the latter."""

    name: str
    codec: str
    roundtrip: Callable[[Tensor], Tensor]
    encode: Callable[[Tensor], tuple[Tensor, ...]]
    config: Codec | None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule of the design: its name, 'codec' or 'collective', what it says, and how it is checked."""

    name: str
    section: str
    statement: str
    check: Callable[[Subject], Outcome | None]


def _ours(config: Codec) -> Subject:
    packer = coder(config)
    return Subject(
        name="ours",
        codec=config.name,
        roundtrip=packer.roundtrip,
        encode=lambda x: (packer.encode(x),),
        config=config,
    )


def subjects() -> list[Subject]:
    """Our presets, then the authors' published codec."""
    ours = [_ours(preset(name)) for name in PRESETS]
    released = authors.RELEASED
    theirs = Subject(
        name="authors-code",
        codec=released.name,
        roundtrip=released.roundtrip,
        encode=released.encode,
        config=None,
    )
    return [*ours, theirs]


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    """fp32 normal numbers, the same on every machine."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def same_bits(x: Tensor, y: Tensor) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and torch.equal(bits(x), bits(y))


# --- wire -------------------------------------------------------------------------------------------


def one_packet(s: Subject) -> Outcome | None:
    if s.config is None:
        return None
    packer = coder(s.config)
    for numel in SIZES:
        packet = packer.encode(gaussian(numel))
        size = packer.nbytes(numel, torch.float32)
        if (packet.dtype, packet.shape) != (torch.uint8, (size,)) or size % 16 or not packet.is_contiguous():
            return False, f"{numel} elements give {packet.dtype} {list(packet.shape)}, the formula says {size} bytes"
    big = packer.nbytes(2**31 + 5, torch.bfloat16)
    return big > 2**30, f"sizes 1..1000 match the formula; 2^31 + 5 elements would take {big} bytes"


# --- contents ---------------------------------------------------------------------------------------


def tail(s: Subject) -> Outcome:
    """Signal and noise of the tail alone, after a whole number of groups of any preset."""
    results, full = {}, 0.0
    for r in TAILS:
        x = [gaussian(256 + r, seed=seed) for seed in range(48)]
        y = [s.roundtrip(each) for each in x]
        full = sqnr_db(torch.stack([v[:256] for v in x]), torch.stack([v[:256] for v in y]))
        results[r] = sqnr_db(torch.stack([v[256:] for v in x]), torch.stack([v[256:] for v in y]))
    worst = min(results, key=results.__getitem__)
    detail = f"full groups {full:.1f} dB, worst tail ({worst} elements) {results[worst]:.1f} dB"
    return results[worst] > full - 2.0, detail


def non_finite(s: Subject) -> Outcome:
    lost = []
    for value in (math.nan, math.inf, -math.inf):
        x = gaussian(1024)
        x[300] = value
        y = s.roundtrip(x)
        if math.isfinite(y[300]):
            zeros = int((y[256:384] == 0).sum())
            lost.append(f"{value} becomes {float(y[300]):g} and {zeros} of its group's 128 elements become 0")
        elif not y[512:].isfinite().all():
            lost.append(f"{value} reaches elements more than 200 places away")
    return not lost, "; ".join(lost) or "NaN, Inf and -Inf arrive as not finite and stay in their group"


def zeros(s: Subject) -> Outcome:
    y = s.roundtrip(torch.zeros(300))
    mixed = torch.cat([torch.zeros(128), gaussian(128)])
    z = s.roundtrip(mixed)
    return bool((y == 0).all() and (z[:128] == 0).all()), "all-zero message and all-zero group come back as zeros"


def subnormal(s: Subject) -> Outcome:
    worst = 0.0
    for value in (1e-39, -1e-45, 1.1e-38):
        x = torch.full((300,), value)
        x[1::2] *= -1
        y = s.roundtrip(x)
        if not y.isfinite().all():
            return False, f"{value:g} gives values that are not finite"
        worst = max(worst, float((y - x).abs().max()))
    return worst < 1e-36, f"largest error {worst:.1g}; nothing hangs or divides by zero"


def _at_scale(s: Subject, factor: float) -> tuple[float, float]:
    x = gaussian(64, 128)
    return sqnr_db(x, s.roundtrip(x)), sqnr_db(x * factor, s.roundtrip(x * factor))


def small(s: Subject) -> Outcome:
    one, tiny = _at_scale(s, 1e-16)
    return tiny > one - 1.0, f"{one:.1f} dB at scale 1, {tiny:.1f} dB at scale 1e-16"


def large(s: Subject) -> Outcome:
    one, huge = _at_scale(s, 1e16)
    return huge > one - 1.0, f"{one:.1f} dB at scale 1, {huge:.1f} dB at scale 1e16"


def any_size(s: Subject) -> Outcome:
    """Also what 64 elements, hidden size 12 and 896 do."""
    floor = sqnr_db(gaussian(64, 128), s.roundtrip(gaussian(64, 128))) - 6.0
    worst = {}
    for numel in SIZES:
        x = torch.stack([gaussian(numel, seed=seed) for seed in range(24)])
        y = torch.stack([s.roundtrip(row) for row in x])
        worst[numel] = sqnr_db(x, y)
    at = min(worst, key=worst.__getitem__)
    return worst[at] > floor, f"lowest of sizes {SIZES[0]}..{SIZES[-1]}: {worst[at]:.1f} dB at {at} elements"


# --- forms ------------------------------------------------------------------------------------------


def shapes(s: Subject) -> Outcome | None:
    if s.config is None:
        return None
    x = gaussian(6, 40)
    strided = x.t().contiguous().t()
    if not same_bits(s.roundtrip(strided), s.roundtrip(x)):
        return False, "a strided tensor codes differently from its contiguous copy"
    for shape in ((), (0,), (3, 0), (1,)):
        if s.roundtrip(torch.ones(shape)).shape != shape:
            return False, f"shape {shape} does not come back"
    return True, "strided, 0-d, empty and one-element tensors come back in their shape"


def dtypes(s: Subject) -> Outcome | None:
    if s.config is None:
        return None
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        y = s.roundtrip(gaussian(300).to(dtype))
        if y.dtype != dtype:
            return False, f"{dtype} comes back as {y.dtype}"
    return True, "300 elements of each dtype"


def unchanged(s: Subject) -> Outcome:
    x = gaussian(1000)
    before = x.clone()
    s.roundtrip(x)
    return same_bits(x, before), "1000 elements compared bit by bit"


def deterministic(s: Subject) -> Outcome:
    x = gaussian(1000)
    pairs = zip(s.encode(x), s.encode(x.clone()), strict=True)
    return all(same_bits(a, b) for a, b in pairs), "two encodings compared bit by bit"


def refused(s: Subject) -> Outcome | None:
    if s.config is None:
        return None
    try:
        s.encode(torch.ones(3, dtype=torch.float64))
    except ValueError as error:
        text = str(error)
        return all(word in text for word in ("got", "need", "because")), text
    return False, "float64 was taken"


def configuration(s: Subject) -> Outcome:
    """A misspelt field of ours; the released README's format '1' and range 57734 of theirs."""
    if s.config is None:
        x = gaussian(64, 256)
        db = sqnr_db(x, authors.README.roundtrip(x))
        return db > 20, f"the README's configuration runs without a word and keeps {db:.2f} dB"
    try:
        codec_from_dict({**to_dict(s.config), "payloda": "e5m2"})
    except ConfigError as error:
        return "payloda" in str(error), str(error).split(";")[0]
    return False, "a misspelt field was ignored"


def _rule(name: str, statement: str, check: Callable[[Subject], Outcome | None]) -> Rule:
    return Rule(name=name, section="codec", statement=statement, check=check)


RULES = (
    _rule("one-packet", "A message is one packet, its size a function of the element count", one_packet),
    _rule("tail", "A tail shorter than the group is as exact as a full group", tail),
    _rule("non-finite", "NaN and Inf survive and stay in their group", non_finite),
    _rule("zeros", "A group of zeros comes back as zeros", zeros),
    _rule("subnormals", "Subnormals and negative subnormals are harmless", subnormal),
    _rule("small-data", "Data of size 1e-16 keep their precision", small),
    _rule("large-data", "Data of size 1e16 keep their precision", large),
    _rule("any-size", "Any element count codes every element", any_size),
    _rule("shapes", "Strided, 0-d and empty tensors work", shapes),
    _rule("dtypes", "fp32, bf16 and fp16 come back in their own dtype", dtypes),
    _rule("input-unchanged", "Encoding leaves its input unchanged", unchanged),
    _rule("deterministic", "Encoding is deterministic", deterministic),
    _rule("refused", "What cannot be coded is refused with got, need and why", refused),
    _rule("configuration", "A wrong configuration is refused, not run as something else", configuration),
)
