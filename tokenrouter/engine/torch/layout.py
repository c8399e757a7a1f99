"""From the rows of a step to a batch: which go through attention together, and where everything stands."""
from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tokenrouter.engine.base import Row
from tokenrouter.engine.pages import PagePool, PageTable
from tokenrouter.engine.torch.batch import Batch, Group
from tokenrouter.engine.torch.lanes import Lanes

# Rows share an attention call while the scores computed for padding are fewer than this (about what a call of
# its own costs on a CPU) plus an eighth of the scores that are asked for.
PADDING_ALLOWED = 1024
FEW = 16  # tokens that are appended to a lane without gathering, as of a request that returns


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
    """`pages`: of each layer, which new lanes are filled from."""
    for row in rows:
        check_row(row, pool)
    tables = [pool[row.rid] for row in rows]
    counts = [len(row.token_ids) for row in rows]
    starts = [len(table.ids) for table in tables]
    groups = [] if lanes is None else _in_lanes(rows, tables, counts, lanes, pages)
    placed = {row for group in groups for row in group.rows}
    groups += _gathered([row for row in range(len(rows)) if row not in placed], counts, starts, pool.page_size)
    # Decodes, mostly: the flat batch goes through as it is, in the order of its only group.
    whole = len(groups) == 1 and None not in groups[0].rows and len(set(counts)) == 1
    if whole and groups[0].lane is None:
        groups[0].rows = list(range(len(rows)))
    laid = [row for row in groups[0].rows if row is not None] if whole else list(range(len(rows)))
    tokens = _lay_out(rows, tables, laid, pool.page_size, lanes)

    integers = _Integers()
    for values in (tokens.ids, tokens.positions, tokens.slots, tokens.lane_slots, tokens.logits_at):
        integers.put(values)
    order, base = [0] * len(tokens.ids), 0
    for group in groups:
        integers.put(_page_tables(group, tables, counts, pool))
        if not whole:
            queries = _queries(group, tokens.firsts, counts, order, base)
            base += len(queries)
            integers.put([tokens.positions[t] for t in queries])
            integers.put(queries)
    if not whole:
        integers.put(order)

    ids, positions, slots, lane_slots, logits_at, *parts = integers.on(device)
    made = []
    for at, group in enumerate(groups):
        tables_at, positions_at, queries_at = (parts[0], positions, None) if whole else parts[3 * at : 3 * at + 3]
        views = None if lanes is None or group.lane is None else lanes.read(group.lane, len(group.rows), group.kv_len)
        made.append(Group(len(group.rows), group.q_len, group.kv_len, tables_at,
                          positions_at.view(-1, group.q_len), queries_at, views))
    return Batch(
        ids=ids,
        positions=positions,
        slots=slots,
        logits_at=None if tokens.logits_at == list(range(len(tokens.ids))) else logits_at,
        order=None if whole else parts[-1],
        groups=made,
        lane_slots=lane_slots if tokens.lane_slots else None,
    )


class _Integers:
    """All integers of a step in one array, so that they reach the device in one copy."""

    def __init__(self) -> None:
        self._flat, self._lengths = array("q"), list[int]()

    def put(self, values: Sequence[int]) -> None:
        self._flat.extend(values)
        self._lengths.append(len(values))

    def on(self, device: torch.device) -> Sequence[torch.Tensor]:
        """What was put, in order."""
        return torch.frombuffer(self._flat, dtype=torch.long).to(device).split_with_sizes(self._lengths)


@dataclass(slots=True)
class _Tokens:
    """The flat batch; `firsts[i]`: where row i begins in it."""

    ids: list[int]
    positions: list[int]
    slots: list[int]
    lane_slots: list[int]
    logits_at: list[int]
    firsts: list[int]


def _lay_out(rows: Sequence[Row], tables: Sequence[PageTable], laid: Sequence[int], page_size: int,
             lanes: Lanes | None) -> _Tokens:
    """The rows' tokens one behind the other, the rows in the order `laid`."""
    flat = _Tokens([], [], [], [], [], [0] * len(rows))
    for at in laid:
        start, count, pages = len(tables[at].ids), len(rows[at].token_ids), tables[at].pages
        flat.firsts[at] = len(flat.ids)
        flat.ids += rows[at].token_ids
        flat.positions += range(start, start + count)
        flat.slots += [pages[t // page_size] * page_size + t % page_size for t in range(start, start + count)]
        if lanes is not None:
            flat.lane_slots += lanes.slots(rows[at].rid, start, count) or [lanes.nowhere] * count
    if lanes is None or all(slot == lanes.nowhere for slot in flat.lane_slots):
        flat.lane_slots = []
    for row, first in zip(rows, flat.firsts, strict=True):
        end = first + len(row.token_ids)
        flat.logits_at += range(end - row.num_logits, end)
    return flat


def _page_tables(group: _Members, tables: Sequence[PageTable], counts: Sequence[int], pool: PagePool) -> list[int]:
    """Of a group's rows, each filled up to the group's length with the page that is nobody's; none for lanes."""
    width = group.kv_len // pool.page_size
    filled: list[int] = []
    for member in group.rows:
        if member is not None and group.lane is None:
            used = -(-(len(tables[member].ids) + counts[member]) // pool.page_size)
            filled += tables[member].pages[:used]
            filled += [pool.num_pages] * (width - used)
    return filled


def _queries(group: _Members, firsts: Sequence[int], counts: Sequence[int], order: list[int],
             base: int) -> list[int]:
    """Where a group's queries stand in the flat batch, padded.

    Notes in `order` where its outputs come to stand, the first at `base`.
    """
    queries: list[int] = []
    for member in group.rows:
        first, count = (0, 0) if member is None else (firsts[member], counts[member])
        order[first : first + count] = range(base + len(queries), base + len(queries) + count)
        queries += range(first, first + count)
        queries += [0] * (group.q_len - count)
    return queries


def _in_lanes(rows: Sequence[Row], tables: Sequence[PageTable], counts: Sequence[int], lanes: Lanes,
              pages: Sequence[torch.Tensor]) -> list[_Members]:
    """The rows that append one token and have a lane, those whose lanes lie close together as one group; and those that
    append a few to a long sequence, each as its own."""
    single = [row for row, count in enumerate(counts) if count == 1]
    groups = []
    for row, count in enumerate(counts):
        if 1 < count <= FEW and len(tables[row].ids) >= PADDING_ALLOWED:
            lane = lanes.lane(rows[row].rid, tables[row], count, pages)
            if lane is not None:
                groups.append(_Members([row], count, len(tables[row].ids) + count, lane))
    for run in lanes.place([rows[row].rid for row in single], [tables[row] for row in single], PADDING_ALLOWED, pages):
        first, last = min(run), max(run)
        members = [single[run[lane]] if lane in run else None for lane in range(first, last + 1)]
        groups.append(_Members(members, 1, 1 + max(len(tables[m].ids) for m in members if m is not None), first))
    return groups


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
