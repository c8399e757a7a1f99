"""A ragged batch: what one forward pass over the pool needs to know, computed once for all layers."""
from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tokenrouter.engine.base import Row
from tokenrouter.engine.torch.pages import PagePool

# Rows share an attention call while the scores computed for padding are fewer than this (about what a call of
# its own costs on a CPU) plus an eighth of the scores that are asked for.
PADDING_ALLOWED = 1024


@dataclass(slots=True)
class Group:
    """`size` rows that go through attention together, padded to q_len queries and kv_len keys each.

    `pages` [size * kv_len / page_size]: their page tables. `positions` [size, q_len]: of their queries.
    `queries` [size * q_len]: where those stand in the flat batch (None: the flat batch is this group as it is).
    """

    size: int
    q_len: int
    kv_len: int
    pages: torch.Tensor
    positions: torch.Tensor
    queries: torch.Tensor | None
    _masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """[size, 1, q_len, kv_len], 0 where a query sees a key, else -inf: causal, at most the last `window` keys."""
        mask = self._masks.get(window)
        if mask is None:
            keys = torch.arange(self.kv_len, device=self.positions.device)
            queries = self.positions[:, None, :, None]
            hidden = keys > queries
            if window:
                hidden |= keys <= queries - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
            self._masks[window] = mask
        return mask


@dataclass(slots=True)
class Batch:
    """T tokens of the rows, flat: `ids` [T], `positions` [T], `slots` [T] (where their KV goes).

    `logits_at` [R]: the tokens whose logits are asked for, None for all T in order. `order` [T]: where each
    token stands in the concatenated outputs of `groups`, None for in order.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logits_at: torch.Tensor | None
    order: torch.Tensor | None
    groups: list[Group]

    def select(self, values: torch.Tensor) -> torch.Tensor:
        """The rows of `values` [T, ...] whose logits are asked for, [R, ...]."""
        return values if self.logits_at is None else values.index_select(0, self.logits_at)


def build_batch(rows: Sequence[Row], pool: PagePool, device: torch.device) -> Batch:
    """Lay all integers of a step into one array, so that they reach the device in one copy."""
    size = pool.page_size
    tables = [pool[row.rid] for row in rows]
    counts = [len(row.token_ids) for row in rows]
    starts = [len(table.ids) for table in tables]
    for row, table, start, count in zip(rows, tables, starts, counts, strict=True):
        if not 0 <= row.num_logits <= count or count == 0:
            raise ValueError(f"{row.rid}: {row.num_logits} logits of {count} tokens")
        if start + count > len(table.pages) * size:
            raise ValueError(f"{row.rid}: no room was allocated for {count} tokens after {start}")
    total = sum(counts)
    groups = _group(counts, starts)
    whole = len(groups) == 1 and counts.count(counts[0]) == len(counts) and groups[0] == list(range(len(rows)))
    ends = _running_sum(counts)
    logits_at = [t for row, end in zip(rows, ends, strict=True) for t in range(end - row.num_logits, end)]

    flat = array("q")
    lengths: list[int] = []

    def cut() -> None:
        lengths.append(len(flat) - sum(lengths))

    for row in rows:
        flat.extend(row.token_ids)
    cut()
    for start, count in zip(starts, counts, strict=True):
        flat.extend(range(start, start + count))
    cut()
    for table, start, count in zip(tables, starts, counts, strict=True):
        flat.extend([table.pages[t // size] * size + t % size for t in range(start, start + count)])
    cut()
    flat.extend(logits_at)
    cut()
    order = [0] * total
    base = 0
    for members in () if whole else groups:
        q_len = counts[members[-1]]
        for member in members:
            first = ends[member] - counts[member]
            order[first : ends[member]] = range(base, base + counts[member])
            base += q_len
    flat.extend(order)
    cut()
    trash = array("q", [pool.num_pages])
    for members in groups:
        q_len = counts[members[-1]]
        width = -(-max(starts[m] + counts[m] for m in members) // size)
        for member in members:
            used = -(-(starts[member] + counts[member]) // size)
            flat.extend(tables[member].pages[:used])
            flat.extend(trash * (width - used))
        cut()
        for member in members:
            flat.extend(range(starts[member], starts[member] + counts[member]))
            flat.extend([0] * (q_len - counts[member]))
        cut()
        for member in () if whole else members:
            flat.extend(range(ends[member] - counts[member], ends[member]))
            flat.extend([0] * (q_len - counts[member]))
        cut()

    on_device = torch.frombuffer(flat, dtype=torch.long).to(device)
    ids, positions, slots, wanted, placed, *parts = torch.split(on_device, lengths)
    return Batch(
        ids,
        positions,
        slots,
        None if len(logits_at) == total else wanted,
        None if whole else placed,
        [
            Group(len(members), counts[members[-1]], len(pages) // len(members) * size, pages,
                  queries_at.view(len(members), -1), None if whole else queries)
            for members, pages, queries_at, queries in zip(groups, parts[::3], parts[1::3], parts[2::3], strict=True)
        ],
    )  # fmt: skip


def _group(counts: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    """Which rows go through attention together: neighbours in the order of their number of tokens, then of keys."""
    groups: list[list[int]] = []
    asked = padded = widest = 0
    for row in sorted(range(len(counts)), key=lambda r: (counts[r], starts[r])):
        keys = starts[row] + counts[row]
        widest = max(widest, keys)
        asked += counts[row] * keys
        padded = (len(groups[-1]) + 1) * counts[row] * widest if groups else padded
        if not groups or padded - asked > PADDING_ALLOWED + asked // 8:
            groups.append([row])
            asked, widest = counts[row] * keys, keys
        else:
            groups[-1].append(row)
    return groups


def _running_sum(counts: Sequence[int]) -> list[int]:
    ends, total = [], 0
    for count in counts:
        total += count
        ends.append(total)
    return ends
