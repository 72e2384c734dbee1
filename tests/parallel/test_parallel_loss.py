"""The loss over sharded logits is torch's cross entropy."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F

from taco.parallel.loss import IGNORE, _Compiled, cross_entropy, virtual_cross_entropy

# fp32 sums over 48 classes in another order
TOLERANCE = {"rtol": 1e-5, "atol": 1e-7}


def case(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 8 * torch.randn(3, 5, 48, generator=generator)
    return logits.to(dtype), torch.randint(48, (3, 5), generator=generator)


@pytest.mark.parametrize("ways", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_value_and_gradient(ways: int, dtype: torch.dtype) -> None:
    logits, targets = case(dtype)
    targets[1, 2] = IGNORE
    whole = logits.clone().requires_grad_()
    shards = [shard.clone().requires_grad_() for shard in logits.chunk(ways, -1)]
    expected = F.cross_entropy(whole.float().flatten(0, 1), targets.flatten())
    expected.backward()
    loss = virtual_cross_entropy(tuple(shards), targets)
    (loss * 1.0).backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, **TOLERANCE)
    got = torch.cat([shard.grad for shard in shards], -1)
    assert got.dtype == dtype
    if dtype == torch.float32:
        torch.testing.assert_close(got, whole.grad, **TOLERANCE)
    else:
        torch.testing.assert_close(got, whole.grad, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("ways", [1, 4])
def test_ignored_id_inside_the_vocabulary_has_no_gradient(ways: int) -> None:
    logits, targets = case()
    targets[0, :3] = 7
    whole = logits.clone().requires_grad_()
    shards = [shard.clone().requires_grad_() for shard in logits.chunk(ways, -1)]
    F.cross_entropy(whole.flatten(0, 1), targets.flatten(), ignore_index=7).backward()
    (-3 * virtual_cross_entropy(tuple(shards), targets, ignore_index=7)).backward()
    torch.testing.assert_close(torch.cat([shard.grad for shard in shards], -1), -3 * whole.grad, **TOLERANCE)


def test_large_logits_do_not_overflow() -> None:
    logits, targets = case()
    loss = virtual_cross_entropy(tuple((logits * 1e4).chunk(4, -1)), targets)
    torch.testing.assert_close(loss, cross_entropy(logits * 1e4, targets), rtol=1e-6, atol=0)


def test_nan_logit_gives_nan_loss() -> None:
    logits, targets = case()
    logits[0, 0, 7] = float("nan")
    assert virtual_cross_entropy(tuple(logits.chunk(4, -1)), targets).isnan()


def test_all_targets_ignored_is_zero() -> None:
    logits, targets = case()
    assert virtual_cross_entropy(tuple(logits.chunk(2, -1)), torch.full_like(targets, IGNORE)) == 0


def test_ignored_tokens_stay_without_gradient_when_the_loss_scale_overflows() -> None:
    logits, targets = case()
    targets[0] = IGNORE
    shards = [shard.clone().requires_grad_() for shard in logits.chunk(4, -1)]
    virtual_cross_entropy(tuple(shards), targets).backward(torch.tensor(math.inf))
    assert all((shard.grad[0] == 0).all() for shard in shards)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_ignored_tokens_have_no_gradient_whatever_they_hold(value: float) -> None:
    logits, targets = case()
    targets[0, 1], logits[0, 1, 3] = IGNORE, value
    shards = [shard.clone().requires_grad_() for shard in logits.chunk(4, -1)]
    loss = virtual_cross_entropy(tuple(shards), targets)
    loss.backward()
    assert loss.isfinite()
    grads = torch.cat([shard.grad for shard in shards], -1)
    assert (grads[0, 1] == 0).all()
    assert grads.isfinite().all()


def test_a_shard_that_is_masked_has_no_share() -> None:
    logits, targets = case()
    targets %= 36
    logits[..., 36:] = -math.inf
    whole = logits.clone().requires_grad_()
    shards = [shard.clone().requires_grad_() for shard in logits.chunk(4, -1)]
    expected = cross_entropy(whole, targets)
    expected.backward()
    loss = virtual_cross_entropy(tuple(shards), targets)
    loss.backward()
    torch.testing.assert_close(loss, expected, **TOLERANCE)
    torch.testing.assert_close(torch.cat([shard.grad for shard in shards], -1), whole.grad, **TOLERANCE)


def test_the_loss_of_fp64_logits_is_fp32() -> None:
    logits, targets = case(torch.float64)
    assert virtual_cross_entropy(tuple(logits.chunk(2, -1)), targets).dtype == torch.float32


@pytest.mark.gpu
def test_compiled_is_close_to_torch() -> None:
    """At the size of a vocabulary, in backward's own thread."""
    generator = torch.Generator("cuda").manual_seed(0)
    logits = 4 * torch.randn(512, 50304, device="cuda", generator=generator)
    targets = torch.randint(50304, (512,), device="cuda", generator=generator)
    targets[::7] = IGNORE
    whole = logits.bfloat16().requires_grad_()
    shards = [shard.detach().clone().requires_grad_() for shard in whole.chunk(4, -1)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="torch.compile failed")
        loss = virtual_cross_entropy(tuple(shards), targets)
        loss.backward()
    expected = F.cross_entropy(whole.float(), targets)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(torch.cat([s.grad for s in shards], -1), whole.grad, rtol=2**-7, atol=1e-8)


def test_a_compiler_that_fails_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def broken(*args: object) -> None:
        calls.append(args)
        raise RuntimeError("no C compiler\nand more")

    monkeypatch.setattr(torch, "compile", lambda function, **_: broken)
    double = _Compiled(lambda row: 2 * row)

    class OnGpu(torch.Tensor):
        is_cuda = True

    row = torch.ones(3).as_subclass(OnGpu)
    with pytest.warns(UserWarning, match="longer: no C compiler$"):
        assert (double(row) == 2).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (double(row) == 2).all()
    assert len(calls) == 1
