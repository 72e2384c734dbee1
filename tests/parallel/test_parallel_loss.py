"""The loss over sharded logits is torch's cross entropy."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F

from taco.parallel.loss import IGNORE, _Compiled, _shares, _stats, cross_entropy, virtual_cross_entropy

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


@pytest.mark.parametrize("strange", [48, 1000, -1])
def test_a_target_that_is_no_id_makes_the_loss_nan(strange: int) -> None:
    logits, targets = case()
    targets[1, 1] = strange
    shards = [shard.clone().requires_grad_() for shard in logits.chunk(4, -1)]
    loss = virtual_cross_entropy(tuple(shards), targets)
    loss.backward()
    assert loss.isnan()
    assert all(shard.grad.isnan().all() for shard in shards)
    assert virtual_cross_entropy(tuple(logits.chunk(4, -1)), targets, ignore_index=strange).isfinite()


def test_a_second_derivative_is_refused() -> None:
    logits, targets = case()
    shards = tuple(shard.clone().requires_grad_() for shard in logits.chunk(2, -1))
    scale = torch.ones((), requires_grad=True)
    grads = torch.autograd.grad(scale * virtual_cross_entropy(shards, targets), shards, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        sum(grad.square().sum() for grad in grads).backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_compiled_is_what_runs_without_a_compiler(dtype: torch.dtype) -> None:
    logits, targets = case(dtype)
    logits[0, 0], logits[0, 1, 2], logits[0, 2, 3] = -math.inf, math.nan, math.inf
    row, ids = logits.flatten(0, 1), targets.flatten() - 8
    total, scale = 9 + torch.randn(15, generator=torch.Generator().manual_seed(1)), torch.full((15,), 0.5)
    total[3] = math.inf
    for both, more in ((_stats, ()), (_shares, (total, scale))):
        expected = both.eager(row, ids.clamp(min=-1), *more)
        torch.testing.assert_close(
            both.function(row, ids.clamp(min=-1), *more), expected, rtol=1e-6, atol=1e-6, equal_nan=True
        )


@pytest.mark.gpu
@pytest.mark.parametrize("width", [12576, 25152])
def test_compiled_is_close_to_torch(width: int) -> None:
    """At the sizes of a vocabulary, in backward's own thread, in one kernel for any number of tokens."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    for tokens in (512, 300, 301, 302, 303, 304, 305, 306, 307, 308):
        generator = torch.Generator("cuda").manual_seed(tokens)
        logits = 4 * torch.randn(tokens, 2 * width, device="cuda", generator=generator)
        targets = torch.randint(2 * width, (tokens,), device="cuda", generator=generator)
        targets[::7] = IGNORE
        whole = logits.bfloat16().requires_grad_()
        shards = [shard.detach().clone().requires_grad_() for shard in whole.chunk(2, -1)]
        before = counters["stats"]["unique_graphs"]
        loss = virtual_cross_entropy(tuple(shards), targets)
        loss.backward()
        assert counters["stats"]["unique_graphs"] - before == (2 if tokens == 512 else 0)
        expected = F.cross_entropy(whole.float(), targets)
        expected.backward()
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
        torch.testing.assert_close(torch.cat([s.grad for s in shards], -1), whole.grad, rtol=2**-7, atol=1e-8)
    assert not _Compiled.fails


@pytest.mark.gpu
def test_a_bad_call_does_not_end_compilation() -> None:
    logits, targets = (x.cuda() for x in case())
    with pytest.raises(RuntimeError):
        virtual_cross_entropy(tuple(logits.chunk(4, -1)), targets[:1])
    assert not _Compiled.fails


class OnGpu(torch.Tensor):
    """Says that it is on a GPU."""

    is_cuda = True


def test_a_compiler_that_fails_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def broken(*args: object) -> None:
        calls.append(args)
        raise RuntimeError("no C compiler\nand more")

    def double(row: torch.Tensor) -> torch.Tensor:
        if row.numel() == 2:
            raise ValueError("a bad call")
        return 2 * row

    monkeypatch.setattr(torch, "compile", lambda function, **_: broken)
    monkeypatch.setattr(_Compiled, "fails", False)
    both = [_Compiled(double, double) for _ in range(2)]
    row = torch.ones(3).as_subclass(OnGpu)
    with pytest.raises(ValueError, match="a bad call"):
        both[0](row[:2])
    assert not _Compiled.fails
    with pytest.warns(UserWarning, match="longer: no C compiler$"):
        assert (both[0](row) == 2).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all((each(row) == 2).all() for each in both)
    assert len(calls) == 2
