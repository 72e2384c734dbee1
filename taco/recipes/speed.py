"""What `codec_speed` times: operations, codecs, dtypes and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taco.config import require

OPS = ("encode", "decode", "decode_sum", "decode_sum_encode")
CODING = ("encode", "decode")
RELEASED = "coccl"
"""Arms of other implementations whose names start with it are the authors' released kernel."""


@dataclass(frozen=True, kw_only=True)
class SpeedCase:
    """One operation to time.

    mib: MiB of the tensor of `dtype` that is encoded or comes out; of decode_sum_encode, of the tensor that the sum
    would have. parts: packets summed, 1 for encode and decode.
    """

    op: str
    codec: str
    dtype: str
    mib: float
    parts: int = 1


@dataclass(frozen=True, kw_only=True)
class SpeedGrid:
    """The cases of one measurement; the fields of `SPEED` are the full one.

    codecs run every operation, coding_codecs (whose sums are decodes and additions) encode and decode. dtypes: the
    first is every codec's, the others those of dtype_codecs; a sum encoded again has no dtype, so it runs in the first.
    compared_mib: the size at which compiled_codecs are compiled and other implementations are drawn. replays: samples
    of a time.
    """

    ops: tuple[str, ...] = OPS
    codecs: tuple[str, ...] = ("taco", "taco-e5m2", "int8", "int6", "int4", "fp8", "mxfp8", "sdp4bit-gradient")
    coding_codecs: tuple[str, ...] = ("tahquant", "tahquant-backward", "flash-int8", "flash-int4")
    dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")
    dtype_codecs: tuple[str, ...] = ("taco", "int8")
    mib: tuple[int, ...] = (1, 8, 64, 256)
    parts: tuple[int, ...] = (2, 4, 8)
    compared_mib: int = 64
    compiled_codecs: tuple[str, ...] = ("taco", "int8", "fp8")
    launch_codecs: tuple[str, ...] = ("taco", "int8")
    launch_kib: tuple[int, ...] = (4, 64, 1024)
    launch_parts: int = 2
    replays: int = 25
    seed: int = 0

    def cases(self) -> Iterator[SpeedCase]:
        """Every operation, codec, dtype, size and number of parts."""
        for codec in (*self.codecs, *self.coding_codecs):
            for op in self.ops:
                if op not in CODING and codec in self.coding_codecs:
                    continue
                for dtype in self._dtypes(op, codec):
                    for mib in self.mib:
                        for parts in (1,) if op in CODING else self.parts:
                            yield SpeedCase(op=op, codec=codec, dtype=dtype, mib=mib, parts=parts)

    def _dtypes(self, op: str, codec: str) -> tuple[str, ...]:
        every = codec in self.dtype_codecs and op != "decode_sum_encode"
        return self.dtypes if every else self.dtypes[:1]

    def launches(self) -> Iterator[SpeedCase]:
        """Small calls, whose time is that of the path to the kernel."""
        for codec in self.launch_codecs:
            for op in self.ops:
                for kib in self.launch_kib:
                    parts = 1 if op in CODING else self.launch_parts
                    yield SpeedCase(op=op, codec=codec, dtype=self.dtypes[0], mib=kib / 1024, parts=parts)

    def narrowed(self, *, codecs: Sequence[str] = (), ops: Sequence[str] = (), mib: Sequence[int] = ()) -> SpeedGrid:
        """This grid with only these codecs, operations and sizes (none given: all). Raises `ConfigError` for others."""
        known = (*self.codecs, *self.coding_codecs)
        for name, given, allowed in (("codec", codecs, known), ("operation", ops, self.ops)):
            other = sorted(set(given) - set(allowed))
            require(not other, f"{name} {', '.join(other)}", f"some of {', '.join(allowed)}", "those are timed")
        require(all(m > 0 for m in mib), f"sizes {list(mib)}", "MiB above 0", "a tensor has that size")

        def kept(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(n for n in names if not codecs or n in codecs)

        return replace(
            self,
            ops=tuple(op for op in self.ops if not ops or op in ops),
            mib=tuple(mib) or self.mib,
            **{
                field: kept(getattr(self, field))
                for field in ("codecs", "coding_codecs", "dtype_codecs", "compiled_codecs", "launch_codecs")
            },
        )


SPEED = SpeedGrid()
