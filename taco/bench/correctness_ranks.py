"""The rules that need processes: four gloo ranks run every check once, then the last one dies.

A rank writes what it saw to a JSON file; this process compares. Each check is a function (rank, codec name) ->
{"ok": bool, "value": what must be equal on all ranks, or null}.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from taco.bench.correctness_codec import PRESETS, gaussian, same_bits
from taco.codec import coder
from taco.comm import CommError, Communicator, VirtualCommunicator
from taco.recipes import preset

WORLD = 4
TIMEOUT_S = 20.0
START_S = 120.0


def _digest(x: Tensor) -> str:
    return hashlib.sha256(x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def _parts(ways: int, numel: int = 5000) -> list[Tensor]:
    return [gaussian(numel, seed=r).bfloat16() for r in range(ways)]


def rank_identity(rank: int, name: str) -> dict:
    digests = []
    for algorithm, node_size in (("one_shot", 0), ("two_shot", 0), ("hierarchical", 2)):
        comm = Communicator(None, preset(name), role="check", algorithm=algorithm, node_size=node_size)
        digests.append(_digest(comm.all_reduce(_parts(WORLD)[rank])))
    return {"ok": True, "value": digests}


def virtual_equals_real(rank: int, name: str) -> dict:
    ok = True
    for node_size in (0, 2):
        options = {"role": "check", "node_size": node_size}
        real, virtual = Communicator(None, preset(name), **options), VirtualCommunicator(WORLD, preset(name), **options)
        parts = [part[:4996].view(4, -1) for part in _parts(WORLD)]
        ok &= same_bits(real.all_reduce(parts[rank]), virtual.all_reduce(parts))
        ok &= same_bits(real.reduce_scatter(parts[rank]), virtual.reduce_scatter(parts)[rank])
        ok &= same_bits(real.all_gather(parts[rank], 1), virtual.all_gather(parts, 1))
        ok &= real.meter.totals() == virtual.meter.totals()
    return {"ok": ok, "value": None}


def delayed_rank(rank: int, name: str) -> dict:
    comm = Communicator(None, preset(name), role="check")
    virtual = VirtualCommunicator(WORLD, preset(name), role="check")
    ok = True
    for call in range(12):
        if call < WORLD and rank == call:
            time.sleep(0.05)
        parts = [part * (call + 1) for part in _parts(WORLD, 700)]
        ok &= same_bits(comm.all_reduce(parts[rank]), virtual.all_reduce(parts))
    return {"ok": ok, "value": None}


def subgroups(rank: int, name: str) -> dict:
    """Two groups of two, of which one works twice as often."""
    group = dist.new_group([rank % 2, rank % 2 + 2], use_local_synchronization=True)
    comm = Communicator(group, preset(name), role="check")
    parts = [part * (1 + rank % 2) for part in _parts(2)]
    for _ in range(1 + rank % 2):
        y = comm.all_reduce(parts[comm.rank])
    return {"ok": same_bits(y, VirtualCommunicator(2, preset(name), role="check").all_reduce(parts)), "value": None}


def send_recv(rank: int, name: str) -> dict:
    """Around the ring, every rank posting both ends before it waits."""
    comm = Communicator(None, preset(name), role="check")
    x = [part.view(50, 100) for part in _parts(WORLD)]
    before = (rank - 1) % WORLD
    received = comm.irecv((50, 100), torch.bfloat16, before)
    comm.isend(x[rank], (rank + 1) % WORLD).wait()
    return {"ok": same_bits(received.wait(), coder(preset(name)).roundtrip(x[before])), "value": None}


def dead_rank(rank: int, name: str) -> dict:
    """The last rank has gone: the others must be told, with its place, within the timeout."""
    comm = Communicator(None, preset(name), role="check")
    start = time.monotonic()
    try:
        comm.all_reduce(gaussian(4096))
    except CommError as error:
        text, seconds = str(error), time.monotonic() - start
        named = all(word in text for word in (f"rank {rank} of {WORLD}", "role check", "all_reduce", "call 1", "all-"))
        return {"ok": named and seconds < TIMEOUT_S + 5, "value": None, "text": text.split(";")[0]}
    return {"ok": False, "value": None, "text": "no error"}


# name -> (statement, check, codecs, what an ok means)
CHECKS: dict[str, tuple[str, Callable[[int, str], dict], tuple[str, ...], str]] = {
    "rank-identity": (
        "All ranks end with bit-identical results",
        rank_identity,
        PRESETS,
        "one-shot, two-shot and hierarchical on 4 processes",
    ),
    "virtual-equals-real": (
        "Virtual ranks equal real ones bit for bit",
        virtual_equals_real,
        PRESETS,
        "all_reduce, reduce_scatter, all_gather and their bytes on 4 processes",
    ),
    "delayed-rank": ("Back-to-back calls with a delayed rank are right", delayed_rank, ("int8",), "12 calls in a row"),
    "subgroups": ("Subgroups work independently", subgroups, ("int8",), "two groups of 2 in 4 processes"),
    "send-recv": ("A message arrives as its codec decodes it", send_recv, PRESETS, "around a ring of 4 processes"),
    "dead-rank": ("A dead rank ends its peers with an error that says where", dead_rank, ("int8",), ""),
}


def _rank(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are here, and the host's name need not resolve
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    seen = {}
    for rule, (_, check, codecs, _) in CHECKS.items():
        if rule == "dead-rank" and rank == WORLD - 1:
            time.sleep(0.5)  # its last message has left; let everyone finish what came before
            break
        seen |= {f"{rule} {name}": check(rank, name) for name in codecs}
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))
    os._exit(0)  # the groups have lost a rank: nothing to take down in order


def run_checks() -> list[dict]:
    """One row per check and codec: rule, statement, codec, passed, detail."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    with tempfile.TemporaryDirectory(prefix="taco-ranks-") as folder:
        processes = [context.Process(target=_rank, args=(rank, folder), daemon=True) for rank in range(WORLD)]
        for process in processes:
            process.start()
        deadline = time.monotonic() + START_S
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in processes:
            process.kill()
            process.join()
        files = [Path(folder, f"{rank}.json") for rank in range(WORLD)]
        seen = [json.loads(path.read_text()) if path.exists() else {} for path in files]
    return [_row(rule, name, seen) for rule, (_, _, codecs, _) in CHECKS.items() for name in codecs]


def _row(rule: str, name: str, seen: list[dict]) -> dict:
    statement, _, _, meaning = CHECKS[rule]
    ranks = WORLD - 1 if rule == "dead-rank" else WORLD
    answers = [answers.get(f"{rule} {name}") for answers in seen[:ranks]]
    missing = [rank for rank, answer in enumerate(answers) if answer is None]
    row = {"rule": rule, "section": "collective", "statement": statement, "subject": "ours", "codec": name}
    if missing:
        return {**row, "passed": False, "detail": f"no answer from rank {', '.join(map(str, missing))}"}
    wrong = [rank for rank, answer in enumerate(answers) if not answer["ok"] or answer["value"] != answers[0]["value"]]
    detail = answers[0].get("text") or meaning
    if wrong:
        detail = f"rank {', '.join(map(str, wrong))} differs: {answers[wrong[0]].get('text', meaning)}"
    return {**row, "passed": not wrong, "detail": detail}
