"""What Prometheus is told: requests under SGLang's names, routing and subservers under our own."""
from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tokenrouter.server.frontend import EndEvent, TokenEvent
from tokenrouter.server.prepare import Job

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 300)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


class Metrics:
    """One registry a server, so that several servers can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, doc: str, *labels: str) -> Counter:
            return Counter(name, doc, labels, registry=self.registry)

        def gauge(name: str, doc: str, *labels: str) -> Gauge:
            return Gauge(name, doc, labels, registry=self.registry)

        def histogram(name: str, doc: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(name, doc, labels, buckets=buckets, registry=self.registry)

        self.requests = counter("sglang:num_requests", "Answers asked for.", "model_name")
        self.aborted = counter("sglang:num_aborted_requests", "Answers that were cut off.", "model_name")
        self.prompt_tokens = counter("sglang:prompt_tokens", "Tokens read.", "model_name")
        self.generation_tokens = counter("sglang:generation_tokens", "Tokens written.", "model_name")
        self.running = gauge("sglang:num_running_reqs", "Answers under way.")
        self.ttft = histogram("sglang:time_to_first_token_seconds", "Until the first token.", SECONDS, "model_name")
        self.e2e = histogram("sglang:e2e_request_latency_seconds", "Until the last token.", SECONDS, "model_name")
        self.itl = histogram("sglang:inter_token_latency_seconds", "Mean between tokens of an answer.", SECONDS,
                             "model_name")
        self.by_role = counter("tokenrouter:tokens", "Tokens written, by role.", "model_name", "role")
        self.handoffs = counter("tokenrouter:handoffs", "Handoffs of answers that ended.", "model_name")
        self.discarded = counter("tokenrouter:discarded_tokens", "Proposals discarded, of answers that ended.",
                                 "model_name")
        self.timeouts = counter("tokenrouter:request_timeouts", "Requests that took longer than server.timeout_s.")
        self.refused = counter("tokenrouter:refused_requests", "Requests answered with an error, by status.", "status")
        self._step = histogram("tokenrouter:step_seconds", "A step, to the last message sent.", SECONDS, "subserver")
        self._batch = histogram("tokenrouter:batch_size", "Requests in a step.", SIZES, "subserver")
        self._admission = histogram("tokenrouter:admission_delay_seconds", "From arrival at a subserver to its step.",
                                    SECONDS, "subserver")
        self._gauges = {name: gauge(f"tokenrouter:{name}", doc, "subserver") for name, doc in (
            ("threshold_B", "Requests that must be ready for a step."), ("active", "Requests that can come here."),
            ("ready", "Requests that are here."), ("pending", "Requests that are away at a peer."),
            ("kv_used_tokens", "Tokens of KV in use."), ("kv_total_tokens", "Tokens of KV there are."))}
        self._totals = {name: counter(f"tokenrouter:{name}", doc, "subserver") for name, doc in (
            ("evictions", "KV taken from requests that are away."),
            ("preemptions", "KV taken from requests that are here."),
            ("timeouts", "Steps below the threshold after max_wait_s."),
            ("restarts", "Times that it died and was started anew."))}
        self._seen: dict[tuple[str, str], int] = {}

    def began(self, job: Job) -> None:
        self.requests.labels(job.route.id).inc()
        self.prompt_tokens.labels(job.route.id).inc(len(job.prompt_ids))
        self.running.inc()

    def tokens(self, job: Job, event: TokenEvent, began: float) -> None:
        count = len(event.token_ids)
        self.generation_tokens.labels(job.route.id).inc(count)
        self.by_role.labels(job.route.id, job.route.algorithm.roles[event.role]).inc(count)
        if event.position == 0:
            self.ttft.labels(job.route.id).observe(time.perf_counter() - began)

    def ended(self, job: Job, event: EndEvent, began: float) -> None:
        name, took = job.route.id, time.perf_counter() - began
        self.handoffs.labels(name).inc(event.handoffs)
        self.discarded.labels(name).inc(event.discarded)
        self.e2e.labels(name).observe(took)
        self.itl.labels(name).observe(took / max(event.num_output, 1))

    def left(self, job: Job, *, ended: bool) -> None:
        """An answer is no longer under way; `ended`: as it was to."""
        self.running.dec()
        if not ended:
            self.aborted.labels(job.route.id).inc()

    def subserver(self, name: str, report: Mapping[str, Any]) -> None:
        """What a subserver measured since its last report."""
        for step_ms in report["step_ms"]:
            self._step.labels(name).observe(step_ms / 1e3)
        for size in report["batch_size"]:
            self._batch.labels(name).observe(size)
        for delay_ms in report["admission_ms"]:
            self._admission.labels(name).observe(delay_ms / 1e3)
        for field, gauge in self._gauges.items():
            gauge.labels(name).set(report[field])
        for field, total in self._totals.items():
            before = self._seen.get((name, field), 0)
            total.labels(name).inc(max(0, report[field] - before))
            self._seen[name, field] = report[field]

    def text(self) -> bytes:
        return generate_latest(self.registry)
