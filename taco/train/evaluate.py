"""What a run is judged by: loss and next-token accuracy on held-out text, and how it continues fixed prompts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from taco.config import PROMPT_TOKENS, Run
from taco.parallel import Parallelism
from taco.parallel.evaluation import untraced
from taco.train.data import TokenDataset
from taco.train.data_format import check
from taco.train.depth import depth_records
from taco.train.sensitivity import sensitivity_records
from taco.train.tokenizer import TOKENIZER

PROMPTS = 4


def datasets(run: Run) -> tuple[TokenDataset, TokenDataset, TokenDataset | None]:
    """(train, held out, held out of the run's other corpus), looked through.

    Raises DataError for a corpus that cannot be used, held-out text below one batch, or another tokenizer of the other.
    """
    t = run.train
    tokens = partial(TokenDataset, seq=run.data.seq, batch=t.batch, seed=t.seed, vocab=run.model.vocab)
    found = [tokens(run.data.corpus, "train"), tokens(run.data.corpus, "val")]
    if run.data.other:
        found.append(tokens(run.data.other, "val"))
        _check_tokenizers(*found[1:])
    for split in found[1:]:
        check(
            len(split) >= t.batch,
            f"{len(split)} held-out sequences of {run.data.seq} tokens in {split.path}",
            f"a batch of {t.batch}",
            "the loss is a mean over whole batches, in which no sequence counts twice",
        )
    for split in found:
        split.scan()
    return found[0], found[1], found[2] if run.data.other else None


def _check_tokenizers(own: TokenDataset, other: TokenDataset) -> None:
    names = [data.meta.get("tokenizer") for data in (own, other)]
    trained = [data.path / TOKENIZER for data in (own, other)]
    same = [path.read_bytes() if path.is_file() else b"" for path in trained]
    check(
        names[0] == names[1] and same[0] == same[1],
        f"{other.path} in tokens of {names[1]}",
        f"the tokenizer of {own.path}, {names[0]}",
        "an id means one piece of text to a model",
    )


def held_out(par: Parallelism, data: TokenDataset, batches: int, microbatches: int) -> dict:
    """{loss, accuracy: share of tokens that are the most probable ones, tokens} over the first `batches` batches.

    A split of fewer whole batches, one at least, is seen once; tokens says how much it was.
    """
    batches = min(batches, len(data) // data.batch_size)
    results = []
    for i in range(batches):
        tokens, targets = (x.to(par.device) for x in data.batch(i, par.dp_rank, par.parallel.dp))
        results.append(par.evaluate(tokens, targets, microbatches))
    losses, accuracies = zip(*results, strict=True)
    return {
        "loss": statistics.fmean(losses),
        "accuracy": statistics.fmean(accuracies),
        "tokens": batches * data.batch_size * data.seq,
    }


def greedy(par: Parallelism, prompts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` tokens that continue prompts [prompts, length], each the most probable one, and their log
    probabilities, both [prompts, count]."""
    sequence, chances = prompts.to(par.device), []
    for _ in range(count):
        ids, chance = par.next_tokens(sequence)
        sequence = torch.cat([sequence, ids[:, None]], 1)
        chances.append(chance)
    return sequence[:, prompts.shape[1] :], torch.stack(chances, 1)


def _continued(par: Parallelism, data: TokenDataset, count: int) -> Iterator[dict]:
    """Prompts are the beginnings of the first held-out sequences, so that every run of a corpus has the same."""
    prompts = data.batch(0)[0][:PROMPTS, :PROMPT_TOKENS]
    tokens, chances = greedy(par, prompts, count)
    for prompt, ids, chance in zip(prompts, tokens, chances, strict=True):
        yield {
            "corpus": str(data.path),
            "prompt": prompt.tolist(),
            "tokens": ids.tolist(),
            "logprob": chance.mean().item(),
        }


def final_records(
    par: Parallelism, run: Run, own: TokenDataset, other: TokenDataset | None, microbatches: int
) -> Iterator[tuple[str, dict]]:
    """(kind, record) of what is looked at once, after the last step: the other corpus' held-out text, the errors by
    depth, what moves the gradient, and the continued prompts of both corpora. Changes no weight and no count."""
    t = run.train
    everything = par.communicators.values()
    if other is not None:
        with untraced(everything):
            found = held_out(par, other, t.eval_batches, microbatches)
        yield "held_out", {"corpus": str(other.path), **found}
    if t.monitor_every:
        for record in depth_records(par, run.policy, *own.batch(0)):
            yield "depth", record
    if t.sensitivity:
        for record in sensitivity_records(par, *own.batch(0)):
            yield "sensitivity", record
    for data in (own, other) if t.generate else ():
        if data is not None:
            with untraced(everything):
                found = list(_continued(par, data, t.generate))
            for record in found:
                yield "generate", record
