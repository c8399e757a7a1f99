"""What the author of a router sees: the paper's section 3.

An algorithm has roles in a declared order (small, large, ...), a router for each role, and an entry. A router is
written from the view of one request: `route` says where the next token is written, `send` what the peer gets to
know, `receive` what is done with it. Most routers write only `route` and name one of two ready-made forms of
handoff: regenerate (the proposal is discarded) or keep (it is accepted, then the request is handed over).
"""
from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch

from tokenrouter.core import InputError, Request, SamplingParams
from tokenrouter.sampling import Draw


@dataclass(slots=True)
class PeerReq:
    """What a peer is told (paper section 3.2).

    `loc` is the number of ids (prompt and accepted tokens) after this message, so the suffix `token_ids` starts
    at loc - len(token_ids). `extra` is the algorithm's own, any msgpack-able value. `drafts` continue the ids, and
    are for the peer to verify.
    """

    rid: str
    token_ids: list[int]
    loc: int
    finished: bool = False
    extra: Any = None
    drafts: list[int] = field(default_factory=list)


class RequestView:
    """A request as its router sees it, for the length of one call."""

    __slots__ = ("_finished", "_proposal", "_request", "destination", "draw")

    def __init__(self, request: Request, proposal: int | Sequence[int] | Callable[[], list[int]] = (),
                 draw: Draw | None = None) -> None:
        self._request, self._proposal = request, [proposal] if isinstance(proposal, int) else proposal
        self.draw = draw  # how the last of them was drawn
        self._finished = False
        self.destination = 0  # what route answered, while send runs

    @property
    def rid(self) -> str:
        return self._request.rid

    @property
    def proposal(self) -> list[int]:
        """One token, or those of a peer's drafts that this model accepts and one of its own.

        Reading it waits for the device, where route otherwise runs ahead of it.
        """
        if not isinstance(self._proposal, list):
            self._proposal = self._proposal() if callable(self._proposal) else list(self._proposal)
        return self._proposal

    @property
    def origin_input_ids(self) -> list[int]:
        return self._request.ids[: self._request.prompt_len]

    @property
    def output_ids(self) -> list[int]:
        """Accepted tokens, drafts and, after a step, the proposal."""
        return [*self._request.ids[self._request.prompt_len :], *self._request.drafts, *self.proposal]

    @property
    def drafts(self) -> list[int]:
        """What was drafted behind the accepted tokens, the proposal not included."""
        return self._request.drafts

    @property
    def authors(self) -> list[int]:
        """Role that wrote each accepted token."""
        return self._request.authors

    @property
    def num_accepted(self) -> int:
        return self._request.num_output

    @property
    def peer_locs(self) -> list[int]:
        """How many ids each destination is known to hold, indexed like route's answers; [0] is unused."""
        known, role = self._request.known, self._request.role
        return [0, *known[:role], *known[role + 1 :]]

    @property
    def sampling_params(self) -> SamplingParams:
        return self._request.sampling

    @property
    def params(self) -> Mapping[str, Any]:
        """Algorithm parameters that came with this request."""
        return self._request.params

    @property
    def state(self) -> dict[str, Any]:
        """The router's own notes on this request at this subserver.

        They must be a function of accepted tokens and their authors, or ride in `extra`: evictions and restarts
        lose them otherwise.
        """
        return self._request.state

    def ids_from(self, start: int, *, proposal: bool) -> list[int]:
        """Prompt and accepted ids from `start` on, with or without the proposal."""
        ids = self._request.ids[start:]
        return [*ids, *self.proposal] if proposal else ids

    def finished(self) -> bool:
        return self._finished


class LogitsOutput(NamedTuple):
    """`next_token_logits` [B, V]: raw, before temperature and penalties. `hidden_states` [B, H] or None."""

    next_token_logits: torch.Tensor
    hidden_states: torch.Tensor | None


@dataclass(slots=True)
class StepResult:
    """One forward pass, the rows of one algorithm's requests. Ids from `vocab_size` on, if given, are never drawn.

    `signal` [B]: route may leave here what it decided by, which is told to those who look at answers.
    """

    next_token_ids: torch.Tensor  # [B]
    logits_output: LogitsOutput
    requests: list[RequestView]
    vocab_size: int | None = None
    signal: torch.Tensor | None = None


class ModelContext(NamedTuple):
    """What a router may ask about the model it sits on. `embed`: [B] token ids -> [B, H] input embeddings."""

    device: torch.device
    vocab_size: int
    hidden_size: int
    eos_token_ids: tuple[int, ...]
    embed: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Param:
    """A parameter of an algorithm, in a documented range; may come with a request."""

    name: str
    default: float | tuple[float, ...]
    low: float
    high: float
    doc: str
    # A threshold is also spelled `never` and `always`. `sends` says on which side of it a score leaves for the
    # peer, and so which infinity each word is.
    sends: Literal["above", "below"] | None = None
    per_role: bool = False  # a list of numbers, one for each role, of which one at least is above 0
    whole: bool = False  # a count

    def parse(self, value: object, roles: Sequence[str] = ()) -> float | tuple[float, ...]:
        """The number that `value` stands for, or the numbers; InputError if it is out of range.

        `roles`: the algorithm's, where they are known.
        """
        if self.sends and value in ("never", "always"):
            return math.inf if (value == "never") == (self.sends == "above") else -math.inf
        span = f"in [{self.low:g}, {self.high:g}]"
        if self.per_role:
            if (not isinstance(value, (list, tuple)) or not all(map(self._fits, value)) or not sum(value)
                    or (roles and len(value) != len(roles))):
                each = f"each of {list(roles)}" if roles else "each role"
                raise InputError(f"{self.name}={value!r}: allowed is a list of numbers {span}, one for {each}, not "
                                 "all 0")
            return tuple(map(float, value))
        if not self._fits(value):
            words = ", or never, or always" if self.sends else ""
            kind = "a whole number" if self.whole else "a number"
            raise InputError(f"{self.name}={value!r}: allowed is {kind} {span}{words}")
        return float(value)  # type: ignore[arg-type]

    def _fits(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.low <= value <= self.high:
            return False
        return not self.whole or value == int(value)


class BaseRouter:
    """Base of all routers: one object for each role of an algorithm, living in that role's subserver.

    Config values arrive as keyword arguments and become attributes; those that `params` declares are checked.
    """

    params: ClassVar[tuple[Param, ...]] = ()
    needs: ClassVar[frozenset[str]] = frozenset()  # of {"hidden_states"}
    top_logits: int | None = None  # how many of the likeliest tokens' logits route looks at; None: at all
    handoff: ClassVar[Literal["regenerate", "keep"]] = "regenerate"
    drafts: ClassVar[bool] = False  # what stays here is drafted, not accepted, and a peer verifies it
    peers: ClassVar[int] = 0  # other roles that it needs at the least, to send requests to

    role: int = 0
    roles: tuple[str, ...] = ()
    model: ModelContext

    def __init__(self, **config: Any) -> None:
        for param in self.params:
            value = config.pop(param.name, param.default)
            setattr(self, param.name, param.parse(value))
        for name, value in config.items():
            setattr(self, name, value)

    def check_model(self, model: ModelContext) -> None:
        """Called before anything is started, with the model as it lies on disk: InputError if this is not for it."""

    def setup(self, model: ModelContext) -> None:
        """Called once, when the model is loaded: move weights to its device, check sizes."""
        self.model = model

    def route(self, result: StepResult) -> torch.Tensor:
        """[B] destinations: 0 = go on here, d > 0 = the d-th of the algorithm's roles, this one left out."""
        return torch.zeros(len(result.requests), dtype=torch.long)

    def send(self, req: RequestView) -> PeerReq:
        """The message for a request that route sends away."""
        keep = self.handoff == "keep" and not self.drafts
        base = req.peer_locs[req.destination]
        suffix = req.ids_from(base, proposal=keep)
        drafts = [*req.drafts, *req.proposal] if self.drafts else []
        return PeerReq(req.rid, suffix, base + len(suffix), req.finished(), drafts=drafts)

    def receive(self, peer_req: PeerReq, req: RequestView) -> list[int]:
        """The ids to hold from position loc - len(token_ids) on; the runtime accepts nothing twice."""
        return peer_req.token_ids

    def verify(self, req: RequestView, sampled: list[int], logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
        """The drafts in `req.drafts` that are accepted, in their order, and one token of this model's own.

        `logits` [m + 1, V] after each of 0 to m drafts, `draws` how this model draws there, `sampled` what it drew. By
        default a draft is accepted if it is that, so that the answer is the one that this model would write alone.
        """
        same = 0
        while same < len(req.drafts) and sampled[same] == req.drafts[same]:
            same += 1
        return sampled[: same + 1]

    def values(self, name: str, result: StepResult) -> torch.Tensor:
        """[B] fp32 values of a parameter, [B, R] of one per role: each request's own, or this router's."""
        default = getattr(self, name)
        own = [view.params.get(name, default) for view in result.requests]
        return torch.tensor(own, dtype=torch.float32, device=result.next_token_ids.device)


class StayRouter(BaseRouter):
    """Never leaves: the router of a single model."""

    top_logits = 0


class ReturnAfterOne(BaseRouter):
    """The large side of CITER, R2R and Co-LLM: keep one token, then hand back (paper Table 1)."""

    handoff = "keep"
    top_logits = 0
    peers = 1

    def route(self, result: StepResult) -> torch.Tensor:
        return torch.ones(len(result.requests), dtype=torch.long)


@dataclass(frozen=True)
class EntryContext:
    """What an entry rule may look at."""

    prompt_ids: Sequence[int]
    seed: int
    params: Mapping[str, Any]
    roles: tuple[str, ...] = ()  # the algorithm's, filled in by it


@dataclass
class Algorithm:
    """A named set of roles, the router of each, and the rule for where a request enters.

    `routers[role]` is a spec: {"_target_": "package.module.Class", ...keyword arguments}. `entry` is a role's
    name or such a spec of a callable EntryContext -> role name.
    """

    name: str
    roles: tuple[str, ...]
    routers: dict[str, dict[str, Any]]
    entry: str | dict[str, Any]
    _entry: Callable[[EntryContext], str] | None = field(default=None, repr=False)

    @property
    def params(self) -> dict[str, Param]:
        """Every parameter that a request may set, by name."""
        return {p.name: p for role in self.roles for p in self._class(role).params}

    def parse(self, params: Mapping[str, Any]) -> dict[str, float | tuple[float, ...]]:
        """The numbers that a request's parameters stand for; InputError for an unknown one or one out of range."""
        known = self.params
        parsed: dict[str, float | tuple[float, ...]] = {}
        for name, value in params.items():
            if name not in known:
                raise InputError(f"params.{name}: unknown; allowed for {self.name} is {sorted(known)}")
            try:
                parsed[name] = known[name].parse(value, self.roles)
            except InputError as error:
                raise InputError(f"params.{error}") from None
        return parsed

    def router(self, role: str) -> BaseRouter:
        spec, target = self.routers[role], self._class(role)
        if len(self.roles) <= target.peers:
            raise InputError(f"roles={list(self.roles)}: allowed are {target.peers + 1} or more, as {target.__name__} "
                             "sends requests to another")
        made: BaseRouter = target(**{k: v for k, v in spec.items() if k != "_target_"})
        made.roles, made.role = self.roles, self.roles.index(role)
        for param in made.params:
            if param.per_role:
                param.parse(getattr(made, param.name), self.roles)
        return made

    def entry_role(self, context: EntryContext) -> int:
        if isinstance(self.entry, str):
            return self.roles.index(self.entry)
        if self._entry is None:
            self._entry = _class("entry", self.entry)(**{k: v for k, v in self.entry.items() if k != "_target_"})
        return self.roles.index(self._entry(replace(context, roles=self.roles)))

    def destination_role(self, role: int, destination: int) -> int:
        """The role that route's answer `destination` > 0 names, seen from `role`."""
        if not 0 < destination < len(self.roles):
            router = self.routers.get(self.roles[role], {}).get("_target_", self.name)
            raise ValueError(f"{router}.route answered {destination}: allowed is 0 to {len(self.roles) - 1}")
        return destination - 1 if destination <= role else destination

    def _class(self, role: str) -> Any:
        found = _class(f"roles.{role}", self.routers[role])
        if not issubclass(found, BaseRouter):
            raise InputError(f"algo.roles.{role}._target_={self.routers[role]['_target_']!r}: allowed is a subclass of "
                             "tokenrouter.interface.BaseRouter")
        return found


def _class(field: str, spec: Mapping[str, Any]) -> Any:
    target, allowed = spec.get("_target_"), "allowed is an importable package.module.Class"
    try:
        found = pkgutil.resolve_name(str(target))
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"algo.{field}._target_={target!r}: {allowed} ({error})") from None
    if not isinstance(found, type):
        raise InputError(f"algo.{field}._target_={target!r}: {allowed}, this is none")
    return found
