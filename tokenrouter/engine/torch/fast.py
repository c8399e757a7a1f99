"""The Qwen and Llama family over the pool with little Python a layer: RMS norms, rotary positions, gated MLP.

What a layer's Python and small kernels cost counts: a decode step of a small model is little else. Hence, in fp32,
the weights of the norms live in the matrices behind them, the rows of the query and key weights are laid out so
that a rotation is one complex product in place, and keys and values go to the pool in one copy.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tokenrouter.engine.torch.attention import attend
from tokenrouter.engine.torch.batch import Batch
from tokenrouter.engine.torch.kv import KVPool
from tokenrouter.engine.torch.linear import Linear, make_linear
from tokenrouter.engine.torch.shape import LayerShape

FAMILY = ("qwen3", "qwen2", "llama", "mistral")


def unsupported(model: Any) -> str | None:
    """Why the fast runner cannot run a transformers model, or None."""
    config = model.config
    if config.model_type not in FAMILY:
        return f"model_type {config.model_type}, of {', '.join(FAMILY)}"
    if config.hidden_act != "silu":
        return f"hidden_act {config.hidden_act}, of silu"
    if 2 * model.model.rotary_emb.inv_freq.numel() != _head_dim(config):
        return "rotary positions in a part of the head"
    return None


class _Norm:
    """x / rms(x) up to the factor `scale`, which belongs into the weight that is multiplied next."""

    def __init__(self, size: int, eps: float, like: torch.Tensor) -> None:
        self._size, self._eps = size, eps
        # Composite on CPUs, rms_norm takes twice as long as this: sqrt(|x|^2 + n eps) = sqrt(n) rms(x).
        self._by_length = like.device.type == "cpu" and like.dtype == torch.float32
        self._bias = torch.tensor(math.sqrt(size * eps))
        self.scale = math.sqrt(size) if self._by_length else 1.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._by_length:
            return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self._bias)
        return F.rms_norm(x, (self._size,), None, self._eps)


@dataclass(slots=True)
class _Layer:
    before: torch.Tensor | None  # [hidden_size], the norms' weights; None if the matrices have them
    after: torch.Tensor | None
    qkv: Linear
    qk_norm: torch.Tensor | None  # [num_heads + num_kv_heads, head_dim]
    output: Linear
    gate: Linear
    up: Linear
    down: Linear
    window: int | None


class FastRunner:
    """Takes the weights out of a transformers model, which is of no use afterwards."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = _head_dim(config)
        self._attention_scale = self._head_dim**-0.5
        self.num_params = sum(p.numel() for p in model.parameters())
        self._embedding: torch.Tensor = model.model.embed_tokens.weight.detach()
        self._norm = _Norm(config.hidden_size, config.rms_norm_eps, self._embedding)
        self._head_norm = _Norm(self._head_dim, config.rms_norm_eps, self._embedding)
        self._final_norm = model.model.norm.weight.detach() * self._norm.scale
        self._head = make_linear(model.lm_head.weight.detach(), model.lm_head.bias)
        rotary = model.model.rotary_emb
        angles = torch.arange(config.max_position_embeddings, device=rotary.inv_freq.device)[:, None] * rotary.inv_freq
        self._rotations = torch.polar(torch.full_like(angles, rotary.attention_scaling), angles)[:, None]
        modules = model.model.layers
        count = len(modules)
        self.shapes = [LayerShape(self._kv_heads, self._head_dim, self._head_dim)] * count
        self._layers = []
        for index in range(count):
            self._layers.append(self._pack(modules[0], _window(config, index)))
            del modules[0]  # so that weights are held twice only a layer at a time
        self.weight_bytes = self._embedding.nbytes + self._head.nbytes + self._final_norm.nbytes
        for layer in self._layers:
            self.weight_bytes += sum(
                linear.nbytes for linear in (layer.qkv, layer.output, layer.gate, layer.up, layer.down)
            )

    def forward(self, batch: Batch, kv: KVPool) -> tuple[torch.Tensor, torch.Tensor]:
        heads, head_dim = self._heads, self._head_dim
        x = F.embedding(batch.ids, self._embedding)
        rotations = self._rotations.index_select(0, batch.positions)
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            normed = self._norm(x)
            flat = layer.qkv(normed if layer.before is None else normed.mul_(layer.before))
            qkv = flat.view(flat.shape[0], -1, head_dim)
            qk = qkv[:, : heads + self._kv_heads]
            if layer.qk_norm is not None:
                qk = torch.mul(self._head_norm(qk), layer.qk_norm, out=qk)
            self._rotate(qk, rotations)
            kv.write(index, batch, flat[:, heads * head_dim :])
            attended = attend(batch, kv, index, qkv[:, :heads], scale=self._attention_scale, window=layer.window)
            if index == last:  # nobody reads the other rows from here on
                attended, x = batch.select(attended), batch.select(x)
            x = layer.output.add(attended, x)
            normed = self._norm(x)
            if layer.after is not None:
                normed.mul_(layer.after)
            x = layer.down.add(F.silu(layer.gate(normed), inplace=True).mul_(layer.up(normed)), x)
        hidden = self._norm(x).mul_(self._final_norm)
        return self._head(hidden).float(), hidden

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(token_ids, self._embedding)

    def _rotate(self, qk: torch.Tensor, rotations: torch.Tensor) -> None:
        """Turn each pair of neighbours of qk [T, heads, head_dim] by its position's angle, in place."""
        pairs = qk.view(qk.shape[0], qk.shape[1], -1, 2)
        if qk.dtype == torch.float32:
            torch.view_as_complex(pairs).mul_(rotations)
        else:
            pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()) * rotations))

    def _pack(self, module: Any, window: int | None) -> _Layer:
        attention, mlp = module.self_attn, module.mlp
        projections = (
            _neighbours(attention.q_proj, self._head_dim),
            _neighbours(attention.k_proj, self._head_dim),
            (attention.v_proj.weight, attention.v_proj.bias),
        )
        weight = torch.cat([weight for weight, _ in projections])
        biases = [bias for _, bias in projections if bias is not None]
        before = module.input_layernorm.weight * self._norm.scale
        after = module.post_attention_layernorm.weight * self._norm.scale
        qk_norm = None
        if hasattr(attention, "q_norm"):
            order = _pair_order(self._head_dim)
            qk_norm = self._head_norm.scale * torch.cat((
                attention.q_norm.weight[order].expand(self._heads, -1),
                attention.k_norm.weight[order].expand(self._kv_heads, -1),
            ))
        gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
        fold = weight.dtype == torch.float32  # fewer bits would be lost twice
        if fold:
            weight, gate, up = weight * before, gate * after, up * after
        return _Layer(
            None if fold else before,
            None if fold else after,
            make_linear(weight, torch.cat(biases) if biases else None),
            qk_norm,
            make_linear(attention.o_proj.weight, attention.o_proj.bias),
            make_linear(gate, mlp.gate_proj.bias),
            make_linear(up, mlp.up_proj.bias),
            make_linear(mlp.down_proj.weight, mlp.down_proj.bias),
            window,
        )


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _window(config: Any, layer: int) -> int | None:
    types = getattr(config, "layer_types", None)
    sliding = types[layer] == "sliding_attention" if types else getattr(config, "use_sliding_window", True)
    return getattr(config, "sliding_window", None) if sliding else None


def _pair_order(head_dim: int) -> torch.Tensor:
    """Dimension i next to its partner i + head_dim / 2, as rotate_half pairs them."""
    return torch.arange(head_dim).view(2, -1).t().flatten()


def _neighbours(projection: Any, head_dim: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weight and bias of a query or key projection with rotary partners next to each other."""
    order = _pair_order(head_dim)
    weight = projection.weight.unflatten(0, (-1, head_dim))[:, order].flatten(0, 1)
    bias = projection.bias
    return weight, None if bias is None else bias.unflatten(0, (-1, head_dim))[:, order].flatten()
