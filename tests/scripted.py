"""Models whose greedy walk a test writes: no attention, no MLP, one output per input token."""
from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

SURE = 20.0


def config(vocab_size: int, eos_token_id: int | None = None, **sizes: int) -> Qwen3Config:
    """A tiny Qwen3 config; `sizes` override."""
    values = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 512, **sizes,
    }
    return Qwen3Config(
        vocab_size=vocab_size, eos_token_id=eos_token_id, bos_token_id=None, pad_token_id=None,
        tie_word_embeddings=False, **values,
    )


def dummy(seed: int, vocab_size: int = 64, eos_token_id: int | None = None, **sizes: int) -> Qwen3ForCausalLM:
    """Random weights, large enough that greedy tokens vary and logits are well apart."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config(vocab_size, eos_token_id, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model


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
