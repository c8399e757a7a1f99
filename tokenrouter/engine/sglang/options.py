"""engine.options of engine=sglang. Nothing of SGLang is imported."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenrouter.core import InputError
from tokenrouter.engine.options import FIELD, EngineOptions, Positive

# Arguments of SGLang's server that follow from the engine's own options or from who runs the loop.
OURS = frozenset({
    "model_path", "revision", "load_format", "dtype", "device", "max_total_tokens", "max_running_requests",
    "disable_radix_cache", "page_size", "disable_overlap_schedule", "enable_return_hidden_states",
    "skip_tokenizer_init", "grammar_backend", "tp_size", "nccl_port", "node_rank", "dp_size", "pp_size",
    "speculative_algorithm",
})  # fmt: skip


class SglangOptions(EngineOptions, frozen=True, forbid_unknown_fields=True):
    """`max_sequences`: most that hold KV at once, those away included. `tp_size`: devices that share the model, from
    its device on; on a CPU, processes. `server_args`: arguments of SGLang's server by their names, such as
    attention_backend, or the ranges of its graphs.
    """

    max_sequences: Positive = 256
    prefix_cache: bool = True
    tp_size: Positive = 1
    server_args: dict[str, Any] | None = None

    @property
    def devices(self) -> int:
        return self.tp_size // nodes(self.server_args or {}, self.tp_size)

    def check(self, role: str, path: str, device: str) -> None:
        check_names(self.server_args or {})
        nodes(self.server_args or {}, self.tp_size)


def check_names(server_args: Mapping[str, Any]) -> None:
    """InputError for an argument that is not the user's."""
    for name, value in server_args.items():
        if name in OURS:
            raise InputError(f"{FIELD}.server_args.{name}={value!r}: allowed are SGLang's arguments but those that the "
                             f"engine sets itself ({', '.join(sorted(OURS))})")


def nodes(server_args: Mapping[str, Any], size: int) -> int:
    """On how many machines the `size` ranks of a model are. The arguments are those of all models of a run."""
    if size == 1:
        return 1
    count = server_args.get("nnodes", 1)
    if not isinstance(count, int) or count < 1 or size % count:
        raise InputError(f"{FIELD}.server_args.nnodes={count!r}: allowed is a divisor of {FIELD}.tp_size={size}")
    if count > 1 and not server_args.get("dist_init_addr"):
        raise InputError(f"{FIELD}.server_args.dist_init_addr=None: allowed with nnodes={count} is rank 0's HOST:PORT")
    return count
