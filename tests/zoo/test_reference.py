"""The reference decoder against plain loops, and on models whose tokens are scripted."""
from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from tests.scripted import dummy, scripted
from tests.zoo.algorithms import HALF, Circular, pair, single
from tokenrouter.core import InputError, SamplingParams
from tokenrouter.interface import Algorithm, BaseRouter, PeerReq, RequestView, StepResult
from tokenrouter.sampling import Draw, sample
from zoo.entropy.router import normalised_entropy
from zoo.reference import Reference, compare, sample_margin
from zoo.walk import Record

PROMPT = [5, 9, 33, 2, 47]
def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
        max_new_tokens=count, pad_token_id=0,
    )
    return ids[0, len(prompt):].tolist()


@pytest.fixture(scope="module")
def small() -> Any:
    return dummy(1)


@pytest.fixture(scope="module")
def large() -> Any:
    return dummy(2)


GREEDY = SamplingParams(seed=1, max_tokens=24)
SAMPLED = SamplingParams(seed=7, max_tokens=24, temperature=1.0, top_p=0.9, top_k=20, min_p=0.01)


def test_one_model_is_generate(small: Any) -> None:
    record = Reference(single(), [small]).decode(PROMPT, GREEDY)
    assert record.token_ids == greedy(small, PROMPT, 24)
    assert record.finish_reason == "length" and record.handoffs == record.discarded == 0


def test_never_is_the_small_and_always_the_large_model(small: Any, large: Any) -> None:
    never = Reference(pair(threshold="never"), [small, large]).decode(PROMPT, GREEDY)
    assert never.token_ids == greedy(small, PROMPT, 24) and set(never.token_models) == {0}
    always = Reference(pair(threshold="always"), [small, large]).decode(PROMPT, GREEDY)
    assert always.token_ids == greedy(large, PROMPT, 24) and set(always.token_models) == {1}
    # Each token costs a discarded proposal and the way there, all but the last also the way back.
    assert (always.discarded, always.handoffs) == (24, 47)


def test_sampled_tokens_depend_on_the_seed_alone(small: Any, large: Any) -> None:
    reference = Reference(pair(threshold=HALF), [small, large])
    first = reference.decode(PROMPT, SAMPLED)
    assert first == reference.decode(PROMPT, SAMPLED)
    assert first.token_ids != reference.decode(PROMPT, msgspec.structs.replace(SAMPLED, seed=8)).token_ids
    assert set(first.token_models) == {0, 1}


def test_a_threshold_may_come_with_the_request(small: Any, large: Any) -> None:
    reference = Reference(pair(threshold="never"), [small, large])
    assert set(reference.decode(PROMPT, GREEDY, {"threshold": "always"}).token_models) == {1}
    with pytest.raises(InputError, match=r"threshold=1.5: allowed is a number in \[0, 1\], or never, or always"):
        reference.decode(PROMPT, GREEDY, {"threshold": 1.5})
    with pytest.raises(InputError, match=r"params.tau: unknown; allowed for pair is \['threshold'\]"):
        reference.decode(PROMPT, GREEDY, {"tau": 0.5})


EOS, UNSURE = 9, {3: 1.0}  # after token 3 the small model is uncertain


def walk(large_chain: dict[int, int], max_tokens: int = 20, **fields: Any) -> Record:
    """The small model counts 1, 2, 3, EOS and doubts its EOS; the large one follows its chain."""
    small = scripted({1: 2, 2: 3, 3: EOS}, eos_token_id=EOS, logits=UNSURE)
    large = scripted(large_chain, eos_token_id=EOS)
    sampling = SamplingParams(seed=0, max_tokens=max_tokens, **fields)
    return Reference(pair(threshold=0.5), [small, large]).decode([1], sampling)


def test_a_discarded_eos_does_not_end_the_request() -> None:
    record = walk({3: 2}, max_tokens=6)
    assert record.token_ids == [2, 3, 2, 3, 2, 3]
    assert record.token_models == [0, 0, 1, 0, 1, 0]
    assert (record.discarded, record.handoffs, record.finish_reason) == (2, 4, "length")


def test_the_large_models_eos_ends_it_and_counts() -> None:
    record = walk({3: EOS})
    assert (record.token_ids, record.token_models, record.finish_reason) == ([2, 3, EOS], [0, 0, 1], "stop")
    assert (record.discarded, record.handoffs) == (1, 1)


def test_a_discarded_last_token_is_replaced_before_length_ends_it() -> None:
    record = walk({3: 7}, max_tokens=3)
    assert (record.token_ids, record.token_models, record.finish_reason) == ([2, 3, 7], [0, 0, 1], "length")


def test_stop_ids_and_ignored_eos() -> None:
    assert walk({3: 7}, stop_token_ids=(3,)).token_ids == [2, 3]
    assert walk({3: EOS, EOS: 1}, max_tokens=5, ignore_eos=True).token_ids == [2, 3, EOS, EOS, EOS]


def test_eos_of_either_model_ends_it() -> None:
    small, large = scripted({1: 2, 2: 3}, eos_token_id=9), scripted({}, eos_token_id=3)
    record = Reference(pair(threshold="never"), [small, large]).decode([1], GREEDY)
    assert (record.token_ids, record.finish_reason) == ([2, 3], "stop")


class Spy(Circular):
    """As `Circular`, noting what travels."""

    sent: list[PeerReq]

    def send(self, req: RequestView) -> PeerReq:
        self.sent.append(super().send(req))
        return self.sent[-1]


def test_three_roles_and_who_is_told_what() -> None:
    names = ("a", "b", "c")
    sent: list[PeerReq] = []
    routers = {name: {"_target_": "tests.zoo.test_reference.Spy", "sent": sent} for name in names}
    step = {i: i + 1 for i in range(30)}
    reference = Reference(Algorithm("ring", names, routers, "a"), [scripted(step) for _ in names])
    record = reference.decode([10], SamplingParams(seed=0, max_tokens=7))
    assert record.token_ids == [11, 12, 13, 14, 15, 16, 17]
    assert record.token_models == [0, 1, 2, 0, 1, 2, 0]
    # The prompt rides in each role's first message; nobody is told anything twice.
    assert [message.token_ids for message in sent[:6]] == [
        [10, 11], [10, 11, 12], [12, 13], [13, 14], [14, 15], [15, 16],
    ]
    assert [message.loc for message in sent[:6]] == [2, 3, 4, 5, 6, 7]


class Bounce(BaseRouter):
    def route(self, result: StepResult) -> torch.Tensor:
        return torch.ones(len(result.requests), dtype=torch.long)


def test_routers_that_only_discard_are_reported_not_followed_forever() -> None:
    bounce = {"_target_": "tests.zoo.test_reference.Bounce"}
    reference = Reference(Algorithm("bounce", ("a", "b"), {"a": bounce, "b": bounce}, "a"), [scripted({})] * 2)
    with pytest.raises(RuntimeError, match="handoffs in a row"):
        reference.decode([1], GREEDY)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_verify_accepts_the_truth_and_catches_tampering(small: Any, large: Any, sampling: SamplingParams) -> None:
    reference = Reference(pair(threshold=HALF), [small, large])
    record = reference.decode(PROMPT, sampling)
    assert reference.verify(record).kind == "equal"
    tokens, models = list(record.token_ids), list(record.token_models)

    def tampered(**fields: Any) -> tuple[str, int | None]:
        verdict = reference.verify(msgspec.structs.replace(record, **fields))
        return verdict.kind, verdict.position

    assert tampered(token_ids=[*tokens[:5], (tokens[5] + 1) % 64, *tokens[6:]]) == ("diverged", 5)
    assert tampered(token_models=[*models[:9], 1 - models[9], *models[10:]]) == ("diverged", 9)
    assert tampered(token_ids=tokens[:-1], token_models=models[:-1]) == ("diverged", 23)
    assert tampered(discarded=record.discarded + 1) == ("diverged", 24)
    assert tampered(finish_reason="stop") == ("diverged", 24)
    assert tampered(handoffs=None, discarded=None) == ("equal", None)


def test_a_record_that_goes_on_after_eos_is_caught() -> None:
    small = scripted({1: 2, 2: EOS, EOS: 4}, eos_token_id=EOS)
    reference = Reference(single(), [small])
    record = reference.decode([1], GREEDY)
    assert record.token_ids == [2, EOS]
    longer = msgspec.structs.replace(record, token_ids=[2, EOS, 4], token_models=[0, 0, 0])
    assert reference.verify(longer)[:2] == ("diverged", 2)


def test_a_divergence_is_excused_only_where_the_reference_was_undecided() -> None:
    reference = Record([1], GREEDY, {}, [2, 3, 4], [0, 0, 1], "length", 2, 1, [0.5, 5e-5, 0.3])
    assert compare(reference, reference).kind == "equal"
    for tokens, verdict in (([2, 5, 4], ("excused", 1)), ([7, 3, 4], ("diverged", 0)), ([2, 3, 9], ("diverged", 2))):
        assert compare(msgspec.structs.replace(reference, token_ids=tokens), reference)[:2] == verdict


def test_greedy_margin_is_the_gap_to_the_runner_up() -> None:
    assert sample_margin(torch.tensor([1.0, 3.0, 2.75]), Draw(GREEDY, 0, 0), 1) == 0.25


def test_sampled_margin_bounds_how_far_probabilities_may_move() -> None:
    logits = torch.tensor([0.2, 0.1, 0.4, 0.3]).log()
    plain = SamplingParams(seed=3, max_tokens=8, temperature=1.0)
    margins = [sample_margin(logits, Draw(plain, t, 0), t % 4) for t in range(4)]
    assert min(margins) < 0  # some of these tokens were not drawn: the draw lies outside their share
    cut = msgspec.structs.replace(plain, top_p=0.70005)
    token = int(sample(logits[None], [Draw(cut, 0, 0)], 4))
    assert sample_margin(logits, Draw(cut, 0, 0), token) == pytest.approx(5e-5, rel=1e-2)


def test_a_score_near_its_threshold_shows_in_the_margin(small: Any, large: Any) -> None:
    with torch.no_grad():
        first = float(normalised_entropy(small(torch.tensor([PROMPT])).logits[0, -1:]))
    record = Reference(pair(threshold=first + 2e-5), [small, large]).decode(PROMPT, GREEDY)
    assert record.margins[0] == pytest.approx(2e-5, rel=0.05)
    assert record.margins[1] < 1e-4 or record.token_models[0] == 0


def test_a_prompt_that_fills_the_context_is_refused(small: Any) -> None:
    with pytest.raises(InputError, match="prompt: 512 tokens; allowed is 1 to 511"):
        Reference(single(), [small]).decode([1] * 512, GREEDY)
    with pytest.raises(InputError, match="models: 1 given"):
        Reference(pair(), [small])
