"""A ragged batch: what one forward pass over the pool needs to know, computed once for all layers."""
from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tokenrouter.engine.base import Row
from tokenrouter.engine.pages import PagePool, PageTable
from tokenrouter.engine.torch.lanes import Lanes

# Rows share an attention call while the scores computed for padding are fewer than this (about what a call of
# its own costs on a CPU) plus an eighth of the scores that are asked for.
PADDING_ALLOWED = 1024


@dataclass(slots=True)
class Group:
    """`size` rows that go through attention together, padded to q_len queries and kv_len keys each.

    `pages` [size * kv_len / page_size]: their page tables; empty if their KV lies in lanes, from `lane` on.
    `positions` [size, q_len]: of their queries. `queries` [size * q_len]: where those stand in the flat batch (None:
    the flat batch is this group as it is).
    """

    size: int
    q_len: int
    kv_len: int
    pages: torch.Tensor
    positions: torch.Tensor
    queries: torch.Tensor | None
    lane: int | None = None
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
    """T tokens of the rows, flat: `ids` [T], `positions` [T], `slots` [T] (where their KV goes), `lane_slots` [T]
    (where else; None for nowhere).

    `logits_at` [R]: the tokens whose logits are asked for, None for all T in order. `order` [T]: where each
    token stands in the concatenated outputs of `groups`, None for in order.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logits_at: torch.Tensor | None
    order: torch.Tensor | None
    groups: list[Group]
    lane_slots: torch.Tensor | None = None

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


@dataclass(slots=True)
class _Members:
    """Which rows a group has, None for a lane between them that is none of theirs; `lane` is the first."""

    rows: list[int | None]
    q_len: int
    kv_len: int
    lane: int | None = None


def build_batch(rows: Sequence[Row], pool: PagePool, device: torch.device, lanes: Lanes | None = None,
                pages: Sequence[torch.Tensor] = ()) -> Batch:
    """Lay all integers of a step into one array, so that they reach the device in one copy.

    `pages`: of each layer, which new lanes are filled from.
    """
    size = pool.page_size
    tables = [pool[row.rid] for row in rows]
    counts = [len(row.token_ids) for row in rows]
    starts = [len(table.ids) for table in tables]
    for row in rows:
        check_row(row, pool)
    groups = [] if lanes is None else _in_lanes(rows, tables, counts, lanes, pages)
    placed = {row for group in groups for row in group.rows}
    groups += _gathered([row for row in range(len(rows)) if row not in placed], counts, starts, size)
    # Decodes, mostly: the flat batch goes through as it is, in the order of its only group.
    whole = len(groups) == 1 and None not in groups[0].rows and len(set(counts)) == 1
    if whole and groups[0].lane is None:
        groups[0].rows = list(range(len(rows)))

    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    lane_slots: list[int] = []
    firsts = [0] * len(rows)  # where each row begins in the flat batch
    laid = [row for row in groups[0].rows if row is not None] if whole else list(range(len(rows)))
    for at in laid:
        start, count, table_pages = starts[at], counts[at], tables[at].pages
        firsts[at] = len(ids)
        ids += rows[at].token_ids
        positions += range(start, start + count)
        slots += [table_pages[t // size] * size + t % size for t in range(start, start + count)]
        if lanes is not None:
            lane_slots += lanes.slots(rows[at].rid, start, count) or [lanes.nowhere] * count
    if lanes is None or all(slot == lanes.nowhere for slot in lane_slots):
        lane_slots = []
    ends = [first + count for first, count in zip(firsts, counts, strict=True)]
    logits_at = [t for row, end in zip(rows, ends, strict=True) for t in range(end - row.num_logits, end)]

    flat = array("q", ids + positions + slots + lane_slots + logits_at)
    lengths = [len(ids)] * 3 + [len(lane_slots), len(logits_at)]
    order = [0] * len(ids)
    base = 0
    for group in groups:
        before = len(flat)
        queries: list[int] = []
        for member in group.rows:
            count = 0 if member is None else counts[member]
            if member is not None and group.lane is None:
                table_pages = tables[member].pages
                used, width = -(-(starts[member] + count) // size), group.kv_len // size
                flat.extend(table_pages if used == len(table_pages) else table_pages[:used])
                flat.extend([pool.num_pages] * (width - used))
            if not whole:
                first = 0 if member is None else firsts[member]
                queries += range(first, first + count)
                queries += [0] * (group.q_len - count)
                order[first : first + count] = range(base, base + count)
                base += group.q_len
        lengths.append(len(flat) - before)
        if not whole:
            flat.extend([positions[t] for t in queries])
            flat.extend(queries)
            lengths += [len(queries)] * 2
    if not whole:
        flat.extend(order)
        lengths.append(len(order))

    on_device = torch.frombuffer(flat, dtype=torch.long).to(device)
    ids_at, positions_at, slots_at, lane_slots_at, logits, *parts = torch.split(on_device, lengths)
    made = []
    for at, group in enumerate(groups):
        placed_at = (parts[0], positions_at, None) if whole else parts[3 * at : 3 * at + 3]
        made.append(Group(len(group.rows), group.q_len, group.kv_len, placed_at[0],
                          placed_at[1].view(-1, group.q_len), placed_at[2], group.lane))
    return Batch(
        ids=ids_at,
        positions=positions_at,
        slots=slots_at,
        logits_at=None if logits_at == list(range(len(ids))) else logits,
        order=None if whole else parts[-1],
        groups=made,
        lane_slots=lane_slots_at if lane_slots else None,
    )


def _in_lanes(rows: Sequence[Row], tables: Sequence[PageTable], counts: Sequence[int], lanes: Lanes,
              pages: Sequence[torch.Tensor]) -> list[_Members]:
    """The rows that append one token and whose KV lies close together, as one group, if there are any."""
    single = [row for row, count in enumerate(counts) if count == 1]
    places = lanes.place([rows[row].rid for row in single], [tables[row] for row in single], PADDING_ALLOWED, pages)
    if not places:
        return []
    first, last = min(places), max(places)
    members = [single[places[lane]] if lane in places else None for lane in range(first, last + 1)]
    return [_Members(members, 1, 1 + max(len(tables[m].ids) for m in members if m is not None), first)]


def _gathered(members: Sequence[int], counts: Sequence[int], starts: Sequence[int], size: int) -> list[_Members]:
    """The others, in groups that need little padding."""
    groups = _group(members, counts, starts)
    ends = [max(starts[m] + counts[m] for m in group) for group in groups]
    return [_Members([*group], counts[group[-1]], -(-end // size) * size)
            for group, end in zip(groups, ends, strict=True)]


def _group(members: Sequence[int], counts: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    """Which rows go through attention together: neighbours in the order of their number of tokens, then of keys."""
    groups: list[list[int]] = []
    asked = padded = widest = 0
    for row in sorted(members, key=lambda r: (counts[r], starts[r])):
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
