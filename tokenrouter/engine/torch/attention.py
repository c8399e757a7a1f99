"""Attention of a ragged batch over the page pool: any number of new tokens a row, grouped-query heads."""
from __future__ import annotations

import torch
import torch.nn.functional as F

from tokenrouter.engine.torch.batch import Batch
from tokenrouter.engine.torch.kv import KVPool


def attend(
    batch: Batch,
    kv: KVPool,
    layer: int,
    query: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """[T, num_heads, key_dim] -> [T, num_heads * value_dim]; the batch's own keys and values are in `kv` already.

    `softcap` bounds the scores (Gemma 2); `sinks` [num_heads] are scores of a key that nothing is read from
    (GPT-OSS).
    """
    outputs = []
    for group in batch.groups:
        rows = query if group.queries is None else query.index_select(0, group.queries)
        keys, values = kv.read(layer, group)
        mask = group.mask(window, query.dtype)
        if softcap is not None or sinks is not None:
            output = _plain(rows, keys, values, mask, scale, softcap, sinks)
        elif group.q_len == 1:
            output = _decode(rows, keys, values, mask, scale)
        else:
            output = _fused(rows, keys, values, mask, scale)
        outputs.append(output)
    if batch.order is None:
        return outputs[0]
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).index_select(0, batch.order)


def _decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """One query a row, [B, H, Dk] -> [B, H * Dv]: those of one key head are the rows of one product."""
    grouped = query.view(len(query), keys.shape[1], -1, query.shape[2])
    output = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
    return output.reshape(len(query), -1)


def _fused(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """[B * q, H, Dk] -> [B * q, H * Dv]."""
    size, kv_heads, q_len = len(keys), keys.shape[1], mask.shape[2]
    rows = query.view(size, q_len, query.shape[1], -1).transpose(1, 2)
    output = F.scaled_dot_product_attention(
        rows, keys, values, attn_mask=mask, scale=scale, enable_gqa=kv_heads != query.shape[1]
    )
    return output.transpose(1, 2).reshape(len(query), -1)


def _plain(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """The same, spelled out, for what the fused kernel has no place for."""
    size, q_len = len(keys), mask.shape[2]
    grouped = query.view(size, q_len, keys.shape[1], -1, query.shape[2]).permute(0, 2, 3, 1, 4)
    scores = (grouped @ keys[:, :, None].transpose(-1, -2)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask[:, :, None]
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        sink = sinks.float().view(1, keys.shape[1], -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
    output = weights.to(values.dtype) @ values[:, :, None]
    return output.permute(0, 3, 1, 2, 4).reshape(len(query), -1)


