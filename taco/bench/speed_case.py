"""The operations that `codec_speed` times: their bytes, their operands, and the check of their answers.

operation            reads                     writes
encode               tensor                    packet
decode               packet                    tensor
decode_sum           N packets                 tensor
decode_sum_encode    N packets                 packet
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from taco.bench.speed_timer import Call, Timer, Work, sets_for
from taco.codec import Coder, coder
from taco.recipes import SpeedCase, preset

CHECKED_NUMEL = 1 << 16
OUTLIER_EVERY, OUTLIER_SCALE = 1009, 50.0


def dtype_of(case: SpeedCase) -> torch.dtype:
    """The torch dtype of a case."""
    return getattr(torch, case.dtype)


def numel_of(case: SpeedCase) -> int:
    """Elements of the tensor that a case's size speaks of."""
    return int(case.mib * 2**20) // dtype_of(case).itemsize


def tensor_bytes(case: SpeedCase) -> int:
    """Bytes of that tensor."""
    return numel_of(case) * dtype_of(case).itemsize


def bytes_moved(case: SpeedCase, packet: int) -> int:
    """Bytes an operation must move: every input byte read once, every output byte written once.

    packet: bytes of one packet.
    """
    tensor = tensor_bytes(case)
    return {
        "encode": tensor + packet,
        "decode": packet + tensor,
        "decode_sum": case.parts * packet + tensor,
        "decode_sum_encode": case.parts * packet + packet,
    }[case.op]


def packet_bytes(case: SpeedCase) -> int:
    """Bytes of one packet of the case's codec, a preset."""
    return coder(preset(case.codec)).nbytes(numel_of(case), dtype_of(case))


def data(rows: int, numel: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """[rows, numel] of `dtype` on the generator's device: normal, with an outlier in every OUTLIER_EVERY elements."""
    x = torch.randn(rows, numel, generator=generator, device=generator.device)
    x.view(-1)[::OUTLIER_EVERY] *= OUTLIER_SCALE
    return x.to(dtype)


def operation(op: str, chosen: Coder, rows: Tensor) -> Call:
    """A call of `op` through the public coder, on operands made of rows [parts, numel] beforehand."""
    numel, dtype = rows.shape[1], rows.dtype
    x = rows[0]
    if op == "encode":
        return lambda: chosen.encode(x)
    packets = chosen.encode_rows(rows, range(len(rows)))
    packet = packets[0]
    calls: dict[str, Call] = {
        "decode": lambda: chosen.decode(packet, numel, dtype),
        "decode_sum": lambda: chosen.decode_sum(packets, numel, dtype),
        "decode_sum_encode": lambda: chosen.decode_sum_encode(packets, numel, dtype),
    }
    return calls[op]


def work(case: SpeedCase, timer: Timer, seed: int, sets: int | None = None) -> Work:
    """The case as work on `sets` sets of operands; by default on so many that the L2 cache does not help."""
    chosen, nbytes = coder(preset(case.codec)), bytes_moved(case, packet_bytes(case))
    generator = torch.Generator(timer.device).manual_seed(seed)
    calls = [
        operation(case.op, chosen, data(case.parts, numel_of(case), dtype_of(case), generator))
        for _ in range(sets or sets_for(nbytes, timer.l2_bytes))
    ]
    return Work(sets=tuple(calls), nbytes=nbytes)


def copies(nbytes: int, timer: Timer, seed: int, shift: int = 0) -> Work:
    """Copies that move `nbytes` each: half is read, and as much written `shift` bytes into the target's memory."""
    generator = torch.Generator(timer.device).manual_seed(seed)
    sources = [
        torch.randint(256, (nbytes // 2,), dtype=torch.uint8, device=timer.device, generator=generator)
        for _ in range(sets_for(nbytes, timer.l2_bytes))
    ]

    # the target is allocated by the call, as the outputs of the operations are
    def copied(x):
        return torch.empty(len(x) + shift, dtype=x.dtype, device=x.device)[shift:].copy_(x)

    return Work(sets=tuple(partial(copied, x) for x in sources), nbytes=nbytes)


def check(case: SpeedCase, device: torch.device, seed: int) -> None:
    """Compare the operation on `device` with the reference on the CPU, bit for bit, on a small tensor.

    Raises `RuntimeError` where they differ: a time of a wrong answer means nothing.
    """
    rows = data(case.parts, CHECKED_NUMEL, dtype_of(case), torch.Generator().manual_seed(seed))
    config = preset(case.codec)
    got = operation(case.op, coder(config), rows.to(device))().cpu()
    want = operation(case.op, coder(config, backend="reference"), rows)()
    same = got.dtype == want.dtype and torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    if not same:
        raise RuntimeError(
            f"got another result of {case.op} of {case.parts} x {CHECKED_NUMEL} {case.dtype} elements with "
            f"{case.codec} on {device} than on the CPU; need equal bits; because a time of a wrong answer means nothing"
        )
