"""R2R's router network (arXiv 2505.21600; `HiddenStatesTokenLMHeadLogitsClassifier` of the official code)."""
from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


class Sizes(NamedTuple):
    """`hidden_size`: of the SLM, also that of its input embeddings. `num_logits`: k of the top-k logits.

    Defaults are the paper's for `width` on; the embedded pair's router is far smaller.
    """

    hidden_size: int
    num_logits: int = 100
    width: int = 1024
    expansion: int = 4
    num_blocks: int = 6
    dropout: float = 0.1


class Features(NamedTuple):
    """Of the SLM at one position: `hidden` [B, H], `top_logits` [B, k] raw and descending, `embedding` [B, H] of the
    proposal."""

    hidden: torch.Tensor
    top_logits: torch.Tensor
    embedding: torch.Tensor


class Block(nn.Module):
    """x + W2 GELU(W1 LayerNorm(x)), with dropout behind both."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        inner = sizes.width * sizes.expansion
        self.norm = nn.LayerNorm(sizes.width)
        self.up, self.down = nn.Linear(sizes.width, inner), nn.Linear(inner, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(self.dropout(F.gelu(self.up(self.norm(x))))))


class R2RNetwork(nn.Module):
    """Features -> [B] logit of "this proposal would change the outcome".

    Inputs are standardised by `mean` and `std`, [H + k + H], which start as 0 and 1 (the official code does not
    standardise). The frozen copy of the SLM's input embeddings is the caller's: it is never stored.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        total = 2 * sizes.hidden_size + sizes.num_logits
        self.register_buffer("mean", torch.zeros(total))
        self.register_buffer("std", torch.ones(total))
        self.logits = nn.Linear(sizes.num_logits, sizes.hidden_size)
        self.mix = nn.Linear(3 * sizes.hidden_size, sizes.width)
        self.stem = nn.Linear(sizes.width, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.num_blocks))
        self.norm, self.head = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, 1)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, features: Features) -> torch.Tensor:
        h, k = self.sizes.hidden_size, self.sizes.num_logits
        hidden, top, embedding = ((torch.cat(features, dim=-1) - self.mean) / self.std).split([h, k, h], dim=-1)
        x = self.stem(self.mix(torch.cat([hidden, embedding, self.logits(top)], dim=-1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).squeeze(-1)


class FoldedNetwork:
    """An `R2RNetwork` for inference, which runs at every step of the SLM.

    All that is linear in front of the blocks is one matrix and one table: standardisation, the logits' layer, the
    concatenation and the stem are affine, so their product acts on hidden states and top-k logits, and the
    embeddings' share is a row of a [V, width] table. Operators are called without modules around them, whose calls
    would cost more than the arithmetic.
    """

    @torch.no_grad()
    def __init__(self, network: R2RNetwork, embeddings: torch.Tensor) -> None:
        """`embeddings` [V, H]: the SLM's input embeddings."""
        h, k, width = network.sizes.hidden_size, network.sizes.num_logits, network.sizes.width
        self._k, self._shape = k, (width,)
        on_hidden, on_embedding, on_logits = (network.stem.weight @ network.mix.weight).split(h, dim=1)
        scaled = torch.cat([on_hidden, on_logits @ network.logits.weight, on_embedding], dim=1) / network.std
        offset = network.stem(network.mix.bias) + on_logits @ network.logits.bias - scaled @ network.mean
        self._dense = scaled[:, : h + k].T.contiguous()
        self._table = embeddings.float() @ scaled[:, h + k :].T + offset
        self._blocks = [
            tuple(p.detach() for layer in (b.norm, b.up, b.down) for p in (layer.weight, layer.bias))
            for b in network.blocks
        ]
        self._last = tuple(p.detach() for layer in (network.norm, network.head) for p in (layer.weight, layer.bias))

    def __call__(self, token_ids: torch.Tensor, logits: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """[B] proposals, [B, V] raw logits, [B, H] hidden states -> [B] logit."""
        top = top_logits(logits, self._k)
        x = torch.addmm(self._table[token_ids], torch.cat([hidden, top], dim=1), self._dense)
        for norm, shift, up, up_bias, down, down_bias in self._blocks:
            inner = F.gelu(F.linear(F.layer_norm(x, self._shape, norm, shift), up, up_bias))
            x = x + F.linear(inner, down, down_bias)
        norm, shift, head, head_bias = self._last
        return F.linear(F.layer_norm(x, self._shape, norm, shift), head, head_bias).squeeze(-1)


def top_logits(logits: torch.Tensor, k: int) -> torch.Tensor:
    """[B, V] -> [B, k] descending, finite."""
    return logits.topk(k, dim=-1).values.float().nan_to_num(nan=0.0, posinf=100.0, neginf=-100.0)
