"""The group codec once more, in numpy and element by element: what taco.codec.reference is checked against."""

from __future__ import annotations

import numpy as np

F = np.float32
TOP = {"e4m3": 448, "e5m2": 57344, "int8": 127, "int6": 31, "int4": 7}
FLOAT8 = {"e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}


def mix(h: int) -> int:
    h ^= h >> 16
    h = h * 0x7FEB352D % 2**32
    h ^= h >> 15
    h = h * 0x846CA68B % 2**32
    return h ^ (h >> 16)


def uniform(seed: int, i: int) -> F:
    return F((mix((mix((i ^ seed) % 2**32) + (i >> 32)) % 2**32) >> 8) / 2**24)


def float8_value(code: int, payload: str) -> float:
    exponent_bits, mantissa_bits, bias = FLOAT8[payload]
    exponent, mantissa = code >> mantissa_bits & (2**exponent_bits - 1), code & (2**mantissa_bits - 1)
    scale = 2.0 ** (max(exponent, 1) - bias - mantissa_bits)
    magnitude = (mantissa + (2**mantissa_bits if exponent else 0)) * scale
    return -magnitude if code & 128 else magnitude


def round_float8(y: F, payload: str) -> int:
    """Nearest finite code, to the even code of two equally near ones."""
    last = 0x7E if payload == "e4m3" else 0x7B
    values = [float8_value(c, payload) for c in range(last + 1)]
    size = min(abs(float(y)), values[-1])
    best = min(range(last + 1), key=lambda c: (abs(values[c] - size), c & 1))
    return best | (128 if np.signbit(y) else 0)


def round_payload(z: F, g: F, payload: str, u: F | None) -> int:
    if u is None and payload not in FLOAT8:
        # the product of two fp32 numbers is exact in fp64
        return max(-TOP[payload], min(TOP[payload], int(np.rint(np.float64(z) * np.float64(g))))) & 255
    y = F(z * g)
    if payload in FLOAT8:
        if u is not None:
            _, mantissa_bits, bias = FLOAT8[payload]
            exponent = max(np.frexp(abs(y))[1] - 1 if y else -200, 1 - bias)
            quantum = F(2.0 ** (exponent - mantissa_bits))
            y = F(np.floor(F(F(y / quantum) + u)) * quantum)
        return round_float8(y, payload)
    q = int(np.floor(F(y + u)))
    return max(-TOP[payload], min(TOP[payload], q)) & 255


def fwht(v: np.ndarray, size: int) -> np.ndarray:
    v = v.copy()
    stride = 1
    while stride < size:
        for i in range(len(v)):
            if not i & stride:
                v[i], v[i + stride] = v[i] + v[i + stride], v[i] - v[i + stride]
        stride *= 2
    return v


def scale_bits(s: F, scale: str) -> bytes:
    bits = int(np.array(s).view(np.uint32))
    if scale == "bf16":
        return int(bits >> 16).to_bytes(2, "little")
    if scale == "e8m0":
        return bytes([bits >> 23])
    return bits.to_bytes(4, "little")


def round_scale(s: F, scale: str) -> F:
    low = {"fp32": 0, "bf16": 16, "e8m0": 23}[scale]
    bits = int(np.array(s).view(np.uint32))
    return np.array((bits + (1 << low) - 1 >> low) << low, dtype=np.uint32).view(F)[()]


def encode(x: np.ndarray, config, seed: int) -> bytes:
    """x fp32 [n] of finite values -> the Packet's bytes."""
    group, size = config.group, config.rotation_size or config.group
    root = F(1) if config.rotation == "none" else F(1 / np.sqrt(size))
    codes, scales, alphas = [], b"", b""
    for first in range(0, len(x), group):
        part = x[first : first + group]
        v = np.zeros(group, dtype=F)
        v[: len(part)] = part
        factor = root
        if config.adaptive_scale:
            squares = list(v * v)
            while len(squares) > 1:
                squares = [a + b for a, b in zip(squares[0::2], squares[1::2], strict=True)]
            alpha = F(TOP[config.payload]) / np.sqrt(F(squares[0] / F(len(part))) + F(1e-6))
            alpha = min(max(alpha, F(1e-3)), F(1e3))
            alphas += alpha.tobytes()
            factor = F(alpha * root)
        if config.rotation == "signed":
            v = v * np.array([1 - 2 * (mix(i % size) >> 31) for i in range(group)], dtype=F)
        if config.rotation != "none":
            v = np.concatenate([fwht(v[i : i + size], size) for i in range(0, group, size)])
        absmax = F(np.abs(v).max() * factor)
        if absmax == 0:
            scales += bytes({"fp32": 4, "bf16": 2, "e8m0": 1}[config.scale])
            codes += [0] * group
            continue
        smallest = F(2.0**-116) if config.adaptive_scale else F(2.0**-126)
        s = round_scale(max(F(absmax * F(config.clip)) / F(TOP[config.payload]), smallest), config.scale)
        scales += scale_bits(s, config.scale)
        g = F((F(1) / s) * factor)
        stochastic = config.rounding == "stochastic"
        codes += [
            round_payload(v[i], g, config.payload, uniform(seed, first + i) if stochastic else None)
            for i in range(group)
        ]
    return pack(codes, config.payload) + pad(scales) + pad(alphas)


def pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 16)


def pack(codes: list[int], payload: str) -> bytes:
    if payload not in ("int6", "int4"):
        return pad(bytes(codes))
    low = pad(bytes((a & 15) | (b & 15) << 4 for a, b in zip(codes[0::2], codes[1::2], strict=True)))
    if payload == "int4":
        return low
    high = bytes(sum((codes[k + j] >> 4 & 3) << 2 * j for j in range(4)) for k in range(0, len(codes), 4))
    return low + pad(high)
