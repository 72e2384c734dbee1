"""The group codec in plain torch operations: the specification that kernels must equal bit for bit.

Every step is one IEEE fp32 operation on tensors, without fused multiply-add. Groups are columns here:

    symbol     shape          meaning
    x, z       [group, n]     n groups of data, of their unscaled transform (fp32)
    M, s, a    [n]            absmax, scale, alpha of each group (fp32)
    f                         size^-1/2, 1 without a rotation
    c                         clip, at most 1
    q          [group, n]     payload codes (uint8; integers in two's complement)

    encode   z = FWHT(x * signs);  M = max|z| * (a * f);  s = round_up(c * M / T)
             q = round(z * ((a * f) * (1 / s))), at most T in magnitude
    decode   y = FWHT(q) * (s * (1 / a) * f) * signs
    sum      z = sum of q * (s * (1 / a));  decoded: y = FWHT(z) * f * signs;  encoded again: f = 1 and no transform
             a group with s / a of 2^119 or more, whose products could overflow, is NaN in a sum

alpha commutes with the transform, so it is multiplied into the scale and not into the data. Integer payloads round the
exact product once, FP8 payloads its fp32 value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from taco.codec.wire import PAYLOAD_BITS
from taco.config import GroupCodec

FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
# T: the largest payload value, to which the group's absmax is scaled
TARGET = {"e4m3": 448.0, "e5m2": 57344.0, "int8": 127.0, "int6": 31.0, "int4": 7.0}
# quantum of an FP8 value: 2^(max(exponent, lowest) - mantissa bits)
FP8_EXPONENT = {"e4m3": (-6, 3), "e5m2": (-14, 2)}
SMALLEST_SCALE = 2.0**-126
# with alpha, up to 1000 < 2^10: its product with 1 / s must not overflow
SMALLEST_ADAPTIVE_SCALE = 2.0**-116
LAMBDA, ALPHA_LOW, ALPHA_HIGH = 1e-6, 1e-3, 1e3


def mix(h: Tensor) -> Tensor:
    """A bijection of 32-bit integers held in int64 (xor-shift-multiply, constants of C. Wellons' hash prospector)."""
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & 0xFFFFFFFF
    h = h ^ (h >> 15)
    h = (h * 0x846CA68B) & 0xFFFFFFFF
    return h ^ (h >> 16)


@lru_cache(maxsize=64)
def signs(size: int, device: torch.device) -> Tensor:
    """fp32 [size, 1]: element i of a rotation block is -1 where the highest bit of mix(i) is set, else +1."""
    bit = mix(torch.arange(size, device=device)) >> 31
    return (1 - 2 * bit).float().view(size, 1)


def uniform(seed: int, start: int, count: int, device: torch.device) -> Tensor:
    """fp32 [count], multiples of 2^-24 in [0, 1), of the elements start.. of a message.

    Element i takes the high 24 bits of mix(mix(low32(i) ^ low32(seed)) + high32(i)).
    """
    i = torch.arange(start, start + count, device=device)
    h = mix((i & 0xFFFFFFFF) ^ (seed & 0xFFFFFFFF)) + (i >> 32)
    return (mix(h & 0xFFFFFFFF) >> 8).float() * 2.0**-24


def over(number: float, x: Tensor) -> Tensor:
    """number / x, one IEEE division (a scalar divisor or numerator would let a device use a reciprocal)."""
    return torch.full_like(x, number) / x


def under(x: Tensor, number: float) -> Tensor:
    """x / number, one IEEE division."""
    return x / torch.full_like(x, number)


def columns(flat: Tensor, group: int) -> Tensor:
    """flat [numel] or [P, numel] any dtype -> fp32 [group, n], the last group of each row filled with zeros."""
    flat = flat.float()
    short = -flat.shape[-1] % group
    if short:
        flat = torch.cat([flat, flat.new_zeros(*flat.shape[:-1], short)], -1)
    return flat.reshape(-1, group).t().contiguous()


def butterflies(z: Tensor, size: int) -> Tensor:
    """Walsh-Hadamard transform of every block of `size` rows of z [group, n], not scaled.

    Butterflies (a + b, a - b) at strides 1, 2, 4, ...
    """
    group, n = z.shape
    stride = 1
    while stride < size:
        pairs = z.view(-1, 2, stride * n)
        z = torch.empty_like(pairs)
        torch.add(pairs[:, 0], pairs[:, 1], out=z[:, 0])
        torch.sub(pairs[:, 0], pairs[:, 1], out=z[:, 1])
        stride *= 2
    return z.view(group, n)


def fwht(z: Tensor, size: int) -> Tensor:
    """The orthonormal transform: `butterflies`, then one multiplication by fp32 size^-1/2."""
    return butterflies(z, size) * inverse_root(size)


def inverse_root(size: int) -> float:
    """f = size^-1/2, rounded to fp32."""
    return torch.tensor(1 / math.sqrt(size), dtype=torch.float32).item()


def block(config: GroupCodec) -> int:
    """Coefficients of a rotation block, 1 without a rotation."""
    return 1 if config.rotation == "none" else config.rotation_size or config.group


def rotate(x: Tensor, config: GroupCodec) -> Tensor:
    """Data -> unscaled transform, [group, n]."""
    size = block(config)
    return butterflies(apply_signs(x, size) if config.rotation == "signed" else x, size)


def unrotate(z: Tensor, config: GroupCodec) -> Tensor:
    """Unscaled inverse of `rotate`: size times the data, [group, n]."""
    y = butterflies(z, block(config))
    return apply_signs(y, block(config)) if config.rotation == "signed" else y


def apply_signs(z: Tensor, size: int) -> Tensor:
    """z [group, n] with the rows of every block of `size` multiplied by `signs`."""
    return (z.view(-1, size, z.shape[1]) * signs(size, z.device)).view(z.shape)


def tree_sum(x: Tensor) -> Tensor:
    """x fp32 [a power of two, n] -> [n]: sums of adjacent pairs, then of pairs of those, and so on."""
    while len(x) > 1:
        x = x[0::2] + x[1::2]
    return x[0]


def alphas(x: Tensor, numel: int, payload: str) -> Tensor:
    """The paper's alpha of every group, fp32 [n]: clamp(T / sqrt(mean x^2 + 1e-6), 1e-3, 1e3).

    x holds one or more messages of `numel` elements. The sum of squares adds adjacent pairs, then pairs of those; the
    short last group of a message is divided by its true count.
    """
    group, n = x.shape
    squares = tree_sum(x * x)
    count = torch.full((n,), float(group), device=x.device)
    each = -(-numel // group)
    count[each - 1 :: each] = numel - (each - 1) * group
    mean = squares / count
    # through double: torch's fp32 square root is not correctly rounded on every CPU, and this one is
    root = torch.sqrt((mean + LAMBDA).double()).float()
    return over(TARGET[payload], root).clamp(ALPHA_LOW, ALPHA_HIGH)


def round_up(s: Tensor, scale: str) -> Tensor:
    """Positive normal fp32 [n] -> the least bf16 or power of two not below it, as fp32; fp32 stays."""
    if scale == "fp32":
        return s
    low = 16 if scale == "bf16" else 23
    return (((s.view(torch.int32) + ((1 << low) - 1)) >> low) << low).view(torch.float32)


def store_scale(s: Tensor, scale: str) -> Tensor:
    """fp32 [n], already rounded to the format, 0 for a zero group, NaN for a non-finite one -> its bytes, uint8."""
    if scale == "fp32":
        return s.view(torch.uint8)
    if scale == "bf16":
        # the high half as it is: a cast gives NaN other bits on other devices
        return (s.view(torch.int32) >> 16).to(torch.int16).view(torch.uint8)
    exponent = (s.view(torch.int32) >> 23) & 0xFF
    return exponent.to(torch.uint8)


def load_scale(stored: Tensor, scale: str) -> Tensor:
    """Inverse of `store_scale`: E8M0 code 0 is a zero group, 255 a non-finite one."""
    if scale == "fp32":
        return stored.view(torch.float32)
    if scale == "bf16":
        return stored.view(torch.bfloat16).float()
    s = (stored.to(torch.int32) << 23).view(torch.float32)
    return torch.where(stored == 255, math.nan, s)


def round_payload(y: Tensor, payload: str, u: Tensor | None = None) -> Tensor:
    """y fp32 or fp64, also infinite -> codes uint8.

    Without u to nearest even; with u fp32 in [0, 1) up with a probability equal to the remainder. Values beyond T
    (rounding of z / s, or clipped) become T, those below -T become -T.
    """
    target = TARGET[payload]
    if u is not None:
        quantum = _quantum(y, payload)
        y = torch.floor(y / quantum + u) * quantum
    y = y.clamp(-target, target)
    if payload in FP8:
        return y.to(FP8[payload]).view(torch.uint8)
    return torch.round(y).to(torch.int8).view(torch.uint8)


def round_products(z: Tensor, g: Tensor, payload: str, u: Tensor | None) -> Tensor:
    """z fp32 [group, n], g fp32 [n] -> codes uint8 of z * g: integers to nearest from the exact product."""
    if u is None and payload not in FP8:
        return round_payload(z.double() * g.double(), payload)
    return round_payload(z * g, payload, u)


def _quantum(y: Tensor, payload: str) -> Tensor:
    if payload not in FP8:
        return torch.ones_like(y)
    lowest, mantissa = FP8_EXPONENT[payload]
    exponent = ((y.view(torch.int32) >> 23) & 0xFF) - 127
    return ((exponent.clamp(min=lowest) - mantissa + 127) << 23).view(torch.float32)


@lru_cache(maxsize=64)
def fp8_values(payload: str, device: torch.device) -> Tensor:
    """fp32 [256]: the value of every code."""
    return torch.arange(256, device=device).to(torch.uint8).view(FP8[payload]).float()


def load_payload(codes: Tensor, payload: str) -> Tensor:
    """codes uint8 -> fp32 of the same shape."""
    if payload in FP8:
        # a table: torch converts FP8 element by element on CPUs, four times slower
        return fp8_values(payload, codes.device).index_select(0, codes.reshape(-1).int()).view(codes.shape)
    spare = 8 - PAYLOAD_BITS[payload]
    if spare:
        return ((codes << spare).view(torch.int8) >> spare).float()
    return codes.view(torch.int8).float()


def quantise(
    z: Tensor, config: GroupCodec, seeds: Sequence[int], factor: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """Coefficients z * factor of len(seeds) messages -> codes uint8 [group, n] and scales fp32 [n].

    z: fp32 [group, n]. factor: fp32 [n], or a number for all groups. A group of zeros has scale 0, one that is not
    finite (or overflowed in the transform) scale NaN; both have codes 0. Which groups those are does not depend on
    config.clip.
    """
    absmax = z.abs().amax(0) * factor
    finite = absmax < math.inf
    usable = finite & (absmax > 0)
    smallest = SMALLEST_ADAPTIVE_SCALE if config.adaptive_scale else SMALLEST_SCALE
    s = round_up(under(absmax * config.clip, TARGET[config.payload]).clamp(min=smallest), config.scale)
    g = torch.where(usable, over(1.0, s) * factor, 0.0)
    z = torch.where(usable, z, 0.0)
    u = None
    if config.rounding == "stochastic":
        group, n = z.shape
        each = group * n // len(seeds)
        u = torch.cat([uniform(seed, 0, each, z.device) for seed in seeds]).view(n, group).t()
    s = torch.where(usable, s, 0.0).masked_fill(~finite, math.nan)
    return round_products(z, g, config.payload, u), s


def summable(unit: Tensor) -> Tensor:
    """unit fp32 [n], NaN where products of codes with it could overflow (448 * 2^119 does not)."""
    return torch.where(unit < 2.0**119, unit, math.nan)


def units(s: Tensor, alpha: Tensor | None, factor: float = 1.0) -> Tensor:
    """s fp32 [n], alpha fp32 [n] or None -> the value of a code of 1: s * (1 / alpha) * factor, fp32 [n]."""
    return (s if alpha is None else s * over(1.0, alpha)) * factor
