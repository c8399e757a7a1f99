"""How rows are laid out for one pass, and the forms of a matrix."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tokenrouter.engine.base import EngineCounters, Row
from tokenrouter.engine.pages import PagePool
from tokenrouter.engine.torch.batch import Batch
from tokenrouter.engine.torch.layout import build_batch
from tokenrouter.engine.torch.linear import Linear, PackedLinear, TransposedLinear

CPU = torch.device("cpu")


def build(lengths: list[tuple[int, int]], page_size: int = 4) -> Batch:
    """A batch of rows that hold the first number of tokens and append the second."""
    pool = PagePool(1000, page_size, copy=lambda source, target: None, counters=EngineCounters())
    rows = []
    for n, (held, count) in enumerate(lengths):
        pool.open(str(n), [0])
        assert pool.allocate(str(n), held + count)
        pool.append(str(n), [0] * held)
        rows.append(Row(str(n), list(range(10 * n, 10 * n + count))))
    return build_batch(rows, pool, CPU)


def test_flat_layout() -> None:
    batch = build([(5, 1), (0, 3)])
    assert batch.ids.tolist() == [0, 10, 11, 12]
    assert batch.positions.tolist() == [5, 0, 1, 2]
    assert batch.slots.tolist() == [4 + 1, 8, 9, 10]  # pages 0 and 1 are the first row's, page 2 the second's
    assert batch.logits_at is not None and batch.logits_at.tolist() == [0, 3]


def test_decode_alone_needs_no_reordering() -> None:
    batch = build([(5, 1), (9, 1)])
    assert batch.order is None and batch.logits_at is None
    (group,) = batch.groups
    assert group.queries is None and group.kv_len == 12
    assert group.pages.tolist() == [0, 1, 1000, 2, 3, 4]  # filled up with the page that is nobody's


def test_a_long_chunk_does_not_pad_decodes() -> None:
    asked = [(100, 1)] * 8 + [(40, 512)]
    batch = build(asked)
    computed = sum(group.size * group.q_len * group.kv_len for group in batch.groups)
    assert computed < 1.2 * sum(count * (held + count) for held, count in asked)
    assert batch.order is not None and sorted(batch.order.tolist()) == list(range(8 + 512))


def test_short_appends_share_a_call() -> None:
    assert len(build([(30, 1), (33, 2), (35, 4), (28, 3)]).groups) == 1


def test_masks_are_causal_and_windowed() -> None:
    (group,) = build([(2, 2)]).groups
    seen = group.mask(None, torch.float32)[0, 0] == 0
    assert seen.tolist() == [[True, True, True, False], [True, True, True, True]]
    seen = group.mask(2, torch.float32)[0, 0] == 0
    assert seen.tolist() == [[False, True, True, False], [False, False, True, True]]


@pytest.mark.parametrize("form", [Linear, TransposedLinear, PackedLinear])
@pytest.mark.parametrize("biased", [False, True])
def test_forms_of_a_matrix(form: type[Linear], biased: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, other = torch.randn(5, 24, generator=generator), torch.randn(5, 40, generator=generator)
    weight = torch.randn(40, 24, generator=generator)
    bias = torch.randn(40, generator=generator) if biased else None
    linear = form(weight, bias)
    expected = F.linear(x, weight, bias)
    kept = other.clone()
    assert torch.allclose(linear(x), expected, atol=1e-5)
    assert torch.allclose(linear.add(x, other), expected + other, atol=1e-5)
    assert torch.equal(other, kept)
    assert linear.nbytes == 4 * (40 * 24 + (40 if biased else 0))
