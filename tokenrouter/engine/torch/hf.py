"""Any Hugging Face causal LM over the pool: its own layers, our attention."""
from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface

from tokenrouter.core import InputError
from tokenrouter.engine.torch.attention import attend
from tokenrouter.engine.torch.batch import Batch
from tokenrouter.engine.torch.kv import KVPool
from tokenrouter.engine.torch.shape import LayerShape

# (module, query [1, H, T, Dk], key, value [1, Hkv, T, D], options of the attention) -> [T, H * Dv]
Attention = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]], torch.Tensor]

_attention: ContextVar[Attention] = ContextVar("attention")  # of the forward pass that is running


def _pool_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None, **options: Any
) -> tuple[torch.Tensor, None]:
    output = _attention.get()(module, query, key, value, options)
    return output.view(1, query.shape[2], query.shape[1], -1), None


# transformers makes no mask for an attention that it knows no mask function of.
AttentionInterface.register("tokenrouter_pool", _pool_attention)


class HFRunner:
    """Forward passes of a transformers model with use_cache=False, on one flat row of ids and positions."""

    def __init__(self, model: Any, name: str) -> None:
        self._model = model
        self._hidden = torch.empty(0)
        head = model.get_output_embeddings()
        if head is None:
            raise InputError(f"model={name}: it has no output embeddings; allowed is a causal language model")
        # The head's input is the final hidden state, before any scaling or capping of the logits.
        head.register_forward_pre_hook(self._keep_hidden)
        self._keeps_logits = model._supports_logits_to_keep()
        self.num_params = sum(p.numel() for p in model.parameters())
        self.weight_bytes = sum(p.nbytes for p in model.parameters())
        model.set_attn_implementation("tokenrouter_pool")
        self.shapes = self._probe(name)

    def forward(self, batch: Batch, kv: KVPool) -> tuple[torch.Tensor, torch.Tensor]:
        def attention(
            module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
        ) -> torch.Tensor:
            layer: int = module.layer_idx
            keys, values = key[0].transpose(0, 1).flatten(1), value[0].transpose(0, 1).flatten(1)
            kv.write(layer, batch, torch.cat((keys, values), -1))
            scale = options.get("scaling")
            return attend(
                batch, kv, layer, query[0].transpose(0, 1),
                scale=query.shape[-1] ** -0.5 if scale is None else scale,
                window=options.get("sliding_window"), softcap=options.get("softcap"), sinks=options.get("s_aux"),
            )  # fmt: skip

        logits = self._call(attention, batch.ids, batch.positions, batch.logits_at)
        return logits.float(), self._hidden

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._model.get_input_embeddings()(token_ids)
        return embedded

    def _call(
        self, attention: Attention, ids: torch.Tensor, positions: torch.Tensor, logits_at: torch.Tensor | None
    ) -> torch.Tensor:
        token = _attention.set(attention)
        options = {"logits_to_keep": logits_at} if self._keeps_logits and logits_at is not None else {}
        try:
            output = self._model(input_ids=ids[None], position_ids=positions[None], use_cache=False, **options)
        finally:
            _attention.reset(token)
        logits: torch.Tensor = output.logits[0]
        self._hidden = self._hidden[0]
        if logits_at is not None and not self._keeps_logits:
            logits, self._hidden = logits[logits_at], self._hidden[logits_at]
        return logits

    def _keep_hidden(self, module: Any, inputs: tuple[torch.Tensor]) -> None:
        self._hidden = inputs[0]

    def _probe(self, name: str) -> list[LayerShape]:
        """What each layer asks of the attention, seen in a pass of two tokens; refuses layers that do not ask."""
        seen: list[tuple[int, LayerShape, int | None]] = []

        def attention(
            module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
        ) -> torch.Tensor:
            shape = LayerShape(key.shape[1], key.shape[3], value.shape[3])
            seen.append((module.layer_idx, shape, options.get("sliding_window")))
            return query.new_zeros(query.shape[2], query.shape[1] * value.shape[3])

        config = self._model.config.get_text_config()
        two = torch.zeros(2, dtype=torch.long, device=self._model.device)
        try:
            with torch.inference_mode():
                self._call(attention, two, torch.arange(2, device=two.device), None)
        except Exception as error:  # whatever a model of unknown code raises
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"model={name}: it does not run over paged KV ({reason})") from error
        layers = list(range(config.num_hidden_layers))
        if sorted(layer for layer, _, _ in seen) != layers:
            raise InputError(
                f"model={name}: {len(seen)} calls of the attention in {len(layers)} layers; allowed is a model of "
                "which each layer attends once, through transformers' attention interface"
            )
        seen.sort(key=lambda call: call[0])
        for layer, _, window in seen:
            _check_window(name, config, layer, window)
        return [shape for _, shape, _ in seen]


def _check_window(name: str, config: Any, layer: int, window: int | None) -> None:
    """A window that only the mask would have imposed is beyond the reach of a short self-test."""
    types = getattr(config, "layer_types", None)
    declared = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    kind = types[layer] if types else "sliding_attention" if declared else "full_attention"
    allowed = {"full_attention": None, "sliding_attention": declared}
    if kind not in allowed or allowed[kind] != window:
        raise InputError(
            f"model={name}: layer {layer} is declared as {kind} of window {declared} and asks for window {window}; "
            "allowed are full and sliding attention, as declared"
        )
