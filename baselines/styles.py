"""How the released code of each algorithm executes it, and the same without what is known to be slow in it.

Nothing here knows a router: all styles run the same route, send and receive code on the same engine, and come to the
same tokens. What differs is where models live, what they remember, who waits for whom, and what travels.
"""
from __future__ import annotations

from typing import Literal

import msgspec

from tokenrouter.core import InputError


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """How an algorithm is executed.

    hosts: all models in one process (`together`), a process each (`apart`), or behind HTTP servers with one blocking
        client a request (`http`).
    batch: how many requests begin together, none joining before all have ended (static batch; 0: as many as there are
        clients). None: a request begins whenever there is room (continuous batching).
    kept: the roles whose KV stays from call to call; the others compute the whole prefix each time.
    logprobs: replies carry the log-probability of every token of the vocabulary.
    appends: each token is told to all models at once, in a call of its own, instead of with the next step.
    prefix_cache: as the engine's.
    """

    hosts: Literal["together", "apart", "http"]
    batch: int | None
    kept: Literal["all", "first", "none"]
    logprobs: bool = False
    appends: bool = False
    prefix_cache: bool = False

    def keeps(self, role: int) -> bool:
        return self.kept == "all" or (self.kept == "first" and role == 0)


# R2R, thu-nics/R2R 560f5ec, dynamic_sglang_selector.py: static batch; the small model in the main process, the large
# one in its own; the main process blocks on each of its steps; the large model's KV is extended.
# CITER, aiming-lab/CITER 465492e, token_route.py: one process, static batches of 32, the large model's generate()
# without past_key_values. Padding, and steps for rows that have ended, are left out.
# Co-LLM, clinicalml/co-llm d83ab8c, generate.py: a server a model, eight clients that post the whole prefix for each
# token and read back the log-probabilities of the whole vocabulary; no prefix cache.
# ME, jialefu/Mixture-model-like-Ensemble (copy at cbe532b), ray_engine.py: an actor a model, one request at a time, the
# softmax copied to the driver, each token appended to all models by a call each. Decoding the text anew at each step is
# left out.
OFFICIAL = {
    "r2r": Style(hosts="apart", batch=0, kept="all", prefix_cache=True),
    "citer": Style(hosts="together", batch=32, kept="first"),
    "collm": Style(hosts="http", batch=None, kept="none", logprobs=True),
    "me": Style(hosts="apart", batch=1, kept="all", logprobs=True, appends=True),
}
# Requests join and leave a running batch, every model keeps its KV and prefixes, only tokens travel. What stays is the
# style's own: R2R, CITER and ME go step by step, one model at a time; Co-LLM's clients wait for their servers.
IMPROVED = {
    "r2r": Style(hosts="apart", batch=None, kept="all", prefix_cache=True),
    "citer": Style(hosts="together", batch=None, kept="all", prefix_cache=True),
    "collm": Style(hosts="http", batch=None, kept="all", prefix_cache=True),
    "me": Style(hosts="apart", batch=None, kept="all", prefix_cache=True),
}
# Standard serving: a server a model, an external dispatcher, one token a call, the router in the server. A call is a
# request of its own, whose prefix the server finds in its cache; with sessions, a server keeps the request's KV.
STD = Style(hosts="http", batch=None, kept="none", prefix_cache=True)
STD_PLUS = Style(hosts="http", batch=None, kept="all", prefix_cache=True)
CLIENTS = 8  # of Co-LLM's pool


def style_of(algorithm: str, like: str | None, *, improved: bool) -> Style:
    """The style of an algorithm's released code, or of the algorithm that `like` names."""
    table = IMPROVED if improved else OFFICIAL
    name = like or algorithm
    if name not in table:
        known = f"has no released code that is known here; allowed is one of {', '.join(table)}"
        if like:
            raise InputError(f"official.like={like}: {known}")
        raise InputError(f"algo={algorithm}: {known}, or another algorithm executed like one of these "
                         "(official.like=r2r)")
    return table[name]
