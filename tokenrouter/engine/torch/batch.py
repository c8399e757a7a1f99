"""A ragged batch: what one forward pass over the pool needs to know, computed once for all layers."""
from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tokenrouter.engine.base import Row
from tokenrouter.engine.pages import PagePool

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


def check_row(row: Row, pool: PagePool) -> None:
    """ValueError for a row that cannot be run."""
    count = len(row.token_ids)
    if not 0 <= row.num_logits <= count or not count:
        raise ValueError(f"{row.rid}: {row.num_logits} logits of {count} tokens")
    table = pool[row.rid]
    if not pool.writable(table, count):
        raise ValueError(f"{row.rid}: no room was allocated for {count} tokens behind {len(table.ids)}")


def build_batch(rows: Sequence[Row], pool: PagePool, device: torch.device) -> Batch:
    """Lay all integers of a step into one array, so that they reach the device in one copy."""
    size = pool.page_size
    tables = [pool[row.rid] for row in rows]
    counts = [len(row.token_ids) for row in rows]
    starts = [len(table.ids) for table in tables]
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logits_at: list[int] = []
    firsts: list[int] = []  # where each row begins in the flat batch
    for row, table, start, count in zip(rows, tables, starts, counts, strict=True):
        check_row(row, pool)
        pages = table.pages
        firsts.append(len(ids))
        ids += row.token_ids
        positions += range(start, start + count)
        slots += [pages[t // size] * size + t % size for t in range(start, start + count)]
        logits_at += range(len(ids) - row.num_logits, len(ids))

    groups = _group(counts, starts)
    whole = len(groups) == 1 and len(set(counts)) == 1  # decode, mostly: the flat batch goes through as it is
    if whole:
        groups[0].sort()
    flat = array("q", ids + positions + slots + logits_at)
    lengths = [len(ids)] * 3 + [len(logits_at)]
    order = [0] * len(ids)
    base = 0
    for members in groups:
        q_len = counts[members[-1]]
        width = -(-max([starts[m] + counts[m] for m in members]) // size)
        queries: list[int] = []
        for member in members:
            pages, count, first = tables[member].pages, counts[member], firsts[member]
            used = -(-(starts[member] + count) // size)
            flat.extend(pages if used == len(pages) else pages[:used])
            if used < width:
                flat.extend([pool.num_pages] * (width - used))
            if not whole:
                queries += range(first, first + count)
                queries += [0] * (q_len - count)
                order[first : first + count] = range(base, base + count)
                base += q_len
        lengths.append(len(members) * width)
        if not whole:
            flat.extend([positions[t] for t in queries])
            flat.extend(queries)
            lengths += [len(queries)] * 2
    if not whole:
        flat.extend(order)
        lengths.append(len(order))

    on_device = torch.frombuffer(flat, dtype=torch.long).to(device)
    parts = torch.split(on_device, lengths)
    if whole:
        placed = [Group(len(rows), counts[0], len(parts[4]) // len(rows) * size, parts[4], parts[1], None)]
    else:
        placed = [
            Group(len(members), counts[members[-1]], len(pages_at) // len(members) * size, pages_at, positions_at, at)
            for members, pages_at, positions_at, at in zip(groups, parts[4::3], parts[5::3], parts[6::3], strict=False)
        ]
    for group in placed:
        group.positions = group.positions.view(group.size, group.q_len)
    return Batch(
        ids=parts[0],
        positions=parts[1],
        slots=parts[2],
        logits_at=None if len(logits_at) == len(ids) else parts[3],
        order=None if whole else parts[-1],
        groups=placed,
    )


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
