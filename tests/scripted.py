"""Models whose greedy walk a test writes: no attention, no MLP, one output per input token."""
from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import Qwen3ForCausalLM

from zoo.cases import dummy
from zoo.cases import dummy_config as config

SURE = 20.0

__all__ = ["SURE", "config", "dummy", "scripted"]


def scripted(
    chain: Mapping[int, int],
    *,
    vocab_size: int = 64,
    eos_token_id: int | None = None,
    logits: Mapping[int, float] | None = None,
) -> Qwen3ForCausalLM:
    """After token i comes chain[i] (itself where the chain has no i) with logit logits[i] (default `SURE`) against 0
    for all others: a small one makes the model uncertain there."""
    model = Qwen3ForCausalLM(config(vocab_size, eos_token_id, hidden_size=vocab_size, num_hidden_layers=1)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.zero_()
        model.get_input_embeddings().weight.copy_(torch.eye(vocab_size))
        head = model.get_output_embeddings().weight
        for token in range(vocab_size):
            # The final norm makes a one-hot vector sqrt(V) long.
            head[chain.get(token, token), token] = (logits or {}).get(token, SURE) / vocab_size**0.5
    return model
