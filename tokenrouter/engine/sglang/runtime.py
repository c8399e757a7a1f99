"""SGLang in this process: all that the engine asks of it, and all that depends on its version.

SGLang's Scheduler is built as its server builds it, which loads the model, makes the KV pools, the prefix cache and
the attention backend, and captures graphs. Its loop is never entered, and nothing of it is overridden. What is used:
Req and ScheduleBatch (the sequences and batches), ModelRunner.forward, the allocator and prefix cache that the
Scheduler made, release_kv_cache, and its leak checks.
"""
from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import msgspec
import torch

from tokenrouter.core import InputError
from tokenrouter.engine.sglang.options import check_names

VERSION = "0.5.21"


def check_version() -> None:
    """InputError unless the release is installed that this module was written for."""
    try:
        found = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        found = "none"
    if found != VERSION:
        raise InputError(f"engine=sglang: needs sglang {VERSION}, found {found}; allowed is "
                         "`pip install tokenrouter[sglang]` on a GPU machine, `make sglang-cpu` elsewhere")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is loaded, and how. `device`: rank 0's; the ranks of a machine have it and those behind it."""

    path: str
    revision: str | None = None
    device: str = "cuda"
    dtype: str = "float32"
    load_format: str = "auto"
    capacity_tokens: int
    max_sequences: int = 256
    prefix_cache: bool = True
    server_args: dict[str, Any] = {}


class Shard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the model a process has: `rank` of `size`, on one of `nodes` machines with as many ranks each.

    `port`: where the ranks of one machine meet; those of several do at SGLang's dist_init_addr.
    """

    rank: int = 0
    size: int = 1
    nodes: int = 1
    port: int | None = None

    @property
    def local_size(self) -> int:
        return self.size // self.nodes


@dataclass(slots=True)
class Append:
    """One sequence's part in a forward pass: `ids` are appended; the logits of its last `num_logits` are wanted."""

    req: Any
    ids: Sequence[int]
    num_logits: int


class Runtime:
    """One a process: much of SGLang's state is global to it.

    The ranks of a model have to be built at the same time, and to make the same calls in the same order: within a
    layer they wait for each other.
    """

    def __init__(self, options: Options, shard: Shard) -> None:
        check_version()
        self.options = options
        device = torch.device(options.device)
        if device.type == "cpu":
            os.environ["SGLANG_USE_CPU_ENGINE"] = "1"  # read at SGLang's import
            if shard.size > 1:  # or it wants a NUMA node for each rank
                cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
                os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "|".join([cores] * shard.size))
        logging.getLogger("sglang").setLevel(logging.ERROR)  # it warns of each model family that a CPU cannot run
        os.environ.setdefault("SGLANG_CHECK_KV_PAGE_INVARIANTS", "1")  # part of its leak checks, off by default
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.runtime_context import SpawnRanks, publish
        from sglang.srt.server_args import PortArgs, ServerArgs

        arguments = _defaults(device) | _checked(options.server_args, ServerArgs) | {
            "model_path": options.path, "revision": options.revision, "load_format": options.load_format,
            "dtype": options.dtype, "device": device.type, "max_total_tokens": options.capacity_tokens,
            "max_running_requests": options.max_sequences, "disable_radix_cache": not options.prefix_cache,
            "page_size": 1, "disable_overlap_schedule": True, "enable_return_hidden_states": True,
            "skip_tokenizer_init": True, "grammar_backend": "none", "tp_size": shard.size, "nccl_port": shard.port,
            "nnodes": shard.nodes, "node_rank": shard.rank // shard.local_size,
        }  # fmt: skip
        if shard.nodes == 1:  # it is for a model that is on several machines
            arguments["dist_init_addr"] = None
        threads = torch.get_num_threads()
        try:
            args = ServerArgs(**arguments)
            args.resolve_once()
            ports = PortArgs.init_new(args)
            gpu = (device.index or 0) + shard.rank % shard.local_size  # on a CPU: which of the sets of cores above
            publish(args, role="scheduler", ranks=SpawnRanks(world_rank=shard.rank, gpu_id=gpu))
            self._scheduler = scheduler = Scheduler(args, ports)
        except (ValueError, OSError, TypeError) as error:
            raise InputError(f"engine=sglang: SGLang does not start with {options.path!r}: {error}") from error
        torch.set_num_threads(threads)
        self.replayed = False  # whether the last pass came from a CUDA graph
        self.capacity: int = scheduler.max_total_num_tokens
        if self.capacity < options.capacity_tokens:
            raise InputError(
                f"engine.capacity_tokens={options.capacity_tokens}: SGLang finds room for {self.capacity} tokens; "
                "allowed is that, or more by engine.options.server_args.mem_fraction_static")
        self.max_sequences: int = scheduler.req_to_token_pool.size
        self._runner = scheduler.tp_worker.model_runner
        self._model = self._runner.model
        self._rows, self._slots = scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator
        self._cache = scheduler.tree_cache
        self._group = scheduler.tp_group
        self.device = torch.device(self._rows.device)
        config = scheduler.model_config
        self.vocab_size: int = config.vocab_size
        self.hidden_size: int = config.hidden_size
        self.context_length: int = config.context_len
        self.eos_token_ids = tuple(sorted(config.hf_eos_token_id or ()))
        parameters = list(self._model.parameters())
        self.num_params = sum(p.numel() for p in parameters)
        self.weight_bytes = sum(p.nbytes for p in parameters)

    # A sequence is a Req: `full_untruncated_fill_ids` are its ids whose KV is written, `kv` says where.

    def open(self, rid: str) -> Any:
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        # Sampling happens elsewhere; these say that there will be more tokens, and nothing else.
        return Req(rid, "", array("q"), SamplingParams(max_new_tokens=1, temperature=0.0), vocab_size=self.vocab_size)

    def adopt(self, req: Any, ids: Sequence[int]) -> int:
        """Let the sequence begin with what the prefix cache has of `ids`; returns how many that is."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        held = array("q", ids)
        match = self._cache.match_prefix(MatchPrefixParams(key=RadixKey(token_ids=held), req=req))
        lock = self._cache.inc_lock_ref(match.last_device_node).to_dec_params()
        self._cache.unpin(req)  # of the longer prefix, if it had one
        req.last_node, req.lock_receipt = match.last_device_node, lock
        req.prefix_indices = match.device_indices
        length = len(req.prefix_indices)
        req.kv.cache_protected_len = length
        req.full_untruncated_fill_ids = held[:length]
        return length

    def ids(self, req: Any) -> array[int]:
        """Those whose KV is written."""
        ids: array[int] = req.full_untruncated_fill_ids
        return ids

    def holds_row(self, req: Any) -> bool:
        return bool(req.kv.holds_kv)

    @property
    def free_tokens(self) -> int:
        """Slots that are unused, and those that only the prefix cache holds."""
        return int(self._slots.available_size() + self._cache.evictable_size())

    @property
    def free_rows(self) -> int:
        return int(self._rows.available_size())

    @property
    def cached_tokens(self) -> int:
        """What the prefix cache alone holds."""
        return int(self._cache.evictable_size())

    def forward(self, appends: Sequence[Append]) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass: logits [R, V] and hidden states [R, H] after the final norm, of the positions asked for.

        A batch of single tokens is a decode; any other one is an extend, as SGLang's mixed batches are.
        """
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch

        decode = all(len(append.ids) == 1 for append in appends)
        several = any(append.num_logits > 1 for append in appends)
        batch = self._decode_batch(appends) if decode else self._extend_batch(appends)
        capture = CaptureHiddenMode.FULL if several else CaptureHiddenMode.LAST
        forward_batch = ForwardBatch.init_new(
            batch, self._runner, capture_hidden_mode=capture, return_hidden_states_before_norm=False)
        made = self._runner.forward(forward_batch)
        output, self.replayed = made.logits_output, bool(made.can_run_graph)
        logits, hidden = output.next_token_logits, output.hidden_states
        if several:
            wanted: list[int] = []
            end = 0
            for append in appends:
                end += len(append.ids)
                wanted += range(end - append.num_logits, end)
            hidden = hidden[torch.tensor(wanted, device=self.device)]
            processor = self._model.logits_processor
            logits = processor._get_logits(hidden, self._model.lm_head, forward_batch, use_logits_buffer=False)
        elif not all(append.num_logits for append in appends):
            rows = [i for i, append in enumerate(appends) if append.num_logits]
            index = torch.tensor(rows, dtype=torch.long, device=self.device)
            logits, hidden = logits[index], hidden[index]
        return logits[:, : self.vocab_size].float(), hidden

    def _new_batch(self, appends: Sequence[Append]) -> Any:
        from sglang.srt.managers.schedule_batch import ScheduleBatch

        scheduler = self._scheduler
        return ScheduleBatch.init_new(
            [append.req for append in appends], self._rows, self._slots, self._cache, scheduler.model_config,
            scheduler.enable_overlap, scheduler.spec_algorithm)

    def _extend_batch(self, appends: Sequence[Append]) -> Any:
        for append in appends:
            req = append.req
            held = len(req.full_untruncated_fill_ids)
            if req.kv.holds_kv:
                req.prefix_indices = self._rows.req_to_token[req.kv.req_pool_idx, :held].to(torch.int64)
            req.full_untruncated_fill_ids.extend(append.ids)
            req.set_extend_range(held, held + len(append.ids))
        batch = self._new_batch(appends)
        batch.prepare_for_extend()
        batch.input_ids = batch.prefill_input_ids_cpu.to(self.device, non_blocking=True)
        batch.prefill_input_ids_cpu = None
        return batch

    def _decode_batch(self, appends: Sequence[Append]) -> Any:
        from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

        fresh = [append for append in appends if not append.req.kv.holds_kv]
        if fresh:  # a row of the token table comes with an extend; one of one token gives what a decode does
            return self._extend_batch(appends)
        batch = self._new_batch(appends)
        lengths = [len(append.req.full_untruncated_fill_ids) for append in appends]
        numbers = torch.tensor(
            [[append.req.kv.req_pool_idx for append in appends], lengths, [append.ids[0] for append in appends]])
        batch.req_pool_indices_cpu, batch.seq_lens_cpu, _ = numbers
        batch.req_pool_indices, batch.seq_lens, batch.input_ids = numbers.to(self.device, non_blocking=True)
        batch.orig_seq_lens = batch.seq_lens.to(torch.int32)
        batch.sampling_info = SamplingBatchInfo.from_schedule_batch(batch, self.vocab_size)
        batch.prepare_for_decode()
        for append in appends:
            append.req.full_untruncated_fill_ids.append(append.ids[0])
        return batch

    def truncate(self, req: Any, length: int) -> None:
        """Forget the KV beyond `length` tokens."""
        ids, kv = req.full_untruncated_fill_ids, req.kv
        if length == len(ids):
            return
        if kv.holds_kv:
            own = max(length, kv.cache_protected_len)
            self._cache.free_kv_row(kv, [(own, kv.kv_allocated_len)])
            kv.kv_allocated_len = kv.kv_committed_len = length
            if not length:
                self._rows.free(req)
        if length < kv.cache_protected_len:  # the prefix cache has the rest: a shorter part of it is kept
            self.adopt(req, ids[:length])
        else:
            del ids[length:]

    def release(self, req: Any, committed: int) -> None:
        """End the sequence; its first `committed` tokens enter the prefix cache."""
        from sglang.srt.mem_cache.common import release_kv_cache

        self.truncate(req, committed)
        if req.kv.holds_kv:
            req.origin_input_ids = req.full_untruncated_fill_ids
            release_kv_cache(req, self._cache, is_insert=committed > 0)
        else:
            self._cache.unpin(req)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[B] -> [B, H]; rank 0 says of which tokens, the others only of how many."""
        # On the device: rank 0's host may not know the values yet.
        token_ids = self._group.broadcast(token_ids.long().contiguous(), src=0)
        embedded: torch.Tensor = self._model.model.embed_tokens(token_ids)
        return embedded

    def check(self, reqs: Iterable[Any]) -> None:
        """SGLang's own leak checks, those of a busy server or of an idle one; AssertionError if they find a leak."""
        from sglang.srt.managers.schedule_batch import ScheduleBatch

        scheduler, checker = self._scheduler, self._scheduler.invariant_checker
        live = ScheduleBatch(reqs=list(reqs))
        try:
            if live.reqs:
                scheduler.running_batch = scheduler.last_batch = live
                checker.self_check_during_busy()
            else:
                scheduler.on_idle()
        except ValueError as error:
            raise AssertionError(str(error)) from error
        finally:
            scheduler.running_batch, scheduler.last_batch = ScheduleBatch(reqs=[]), None

    def flush(self) -> None:
        """Empty the prefix cache of what no sequence holds."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self._cache.evict_for_alloc(EvictParams(num_tokens=self.cached_tokens))


def _defaults(device: torch.device) -> dict[str, Any]:
    if device.type == "cpu":
        return {"attention_backend": "torch_native", "sampling_backend": "pytorch", "log_level": "error",
                "cuda_graph_backend_decode": "disabled", "cuda_graph_backend_prefill": "disabled"}
    # Room for KV is given in tokens, and models may share a device: the fraction is only a limit.
    return {"mem_fraction_static": 0.95, "log_level": "error"}


def _checked(server_args: Mapping[str, Any], known: Any) -> dict[str, Any]:
    check_names(server_args)
    for name, value in server_args.items():
        if name not in getattr(known, "__dataclass_fields__", getattr(known, "__struct_fields__", ())):
            raise InputError(f"engine.options.server_args.{name}={value!r}: allowed is an argument of SGLang {VERSION}")
    return dict(server_args)
