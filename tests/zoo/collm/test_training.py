"""Co-LLM's objective, its head's start, and the joint training of base and head, on random models."""
from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from tests.scripted import dummy
from tokenrouter.core import InputError
from zoo.collm.label import Rows
from zoo.collm.network import DeferralHead, marginal_nll
from zoo.collm.train import (
    Answers,
    Joint,
    Options,
    answers_of,
    fit_head,
    fit_jointly,
    held_answers,
    rise_and_fall,
    start_head,
)

OPTIONS = Options(out="", epochs=3, batch_size=4, head_epochs=12, head_batch=64, lr=1e-3, head_lr=3e-2, seed=3)
VOCAB = 64


def nll(d: float, base: float, large: float) -> tuple[float, float]:
    """The loss and its derivative by d."""
    logit = torch.tensor(d, dtype=torch.double, requires_grad=True)
    loss = marginal_nll(logit, *(torch.tensor(p, dtype=torch.double).log() for p in (base, large)))
    loss.backward()
    return loss.item(), logit.grad.item()


def test_known_losses_and_gradients() -> None:
    loss, gradient = nll(0.0, 0.2, 0.6)
    assert loss == pytest.approx(0.916291, abs=1e-6)
    assert gradient == pytest.approx(0.5 - 0.75)  # s(d) - posterior of deferring
    assert nll(2.0, 0.7, 0.1)[0] == pytest.approx(1.763045, abs=1e-6)
    assert nll(1.3, 0.4, 0.4) == (pytest.approx(-math.log(0.4)), pytest.approx(0.0, abs=1e-12))


def test_its_limits_are_the_models_alone() -> None:
    for d, alone in ((-80.0, 0.2), (80.0, 0.6)):
        loss, gradient = nll(d, 0.2, 0.6)
        assert loss == pytest.approx(-math.log(alone)) and gradient == pytest.approx(0.0, abs=1e-9)
    impossible = marginal_nll(torch.tensor(0.0), torch.tensor(-torch.inf), torch.tensor(0.0))
    assert impossible.item() == pytest.approx(math.log(2))


def rows(problems: int = 12, length: int = 40) -> Rows:
    """The large model is better where the hidden state's first number is large, else the small one is."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(problems * length, 32, generator=generator)
    hard = hidden[:, 0] > 0.5
    good, bad = math.log(0.9), math.log(0.1)
    return Rows(
        torch.randint(0, VOCAB, (len(hidden),), generator=generator), hidden, torch.where(hard, bad, good),
        torch.where(hard, good, bad), hard.float(), torch.arange(problems).repeat_interleave(length),
    )


def held_of(data: Rows) -> torch.Tensor:
    return data.problems >= 9


@pytest.mark.parametrize("learn", [start_head, fit_head])
def test_the_head_learns_where_the_large_model_is_better(learn: Any) -> None:
    data = rows()
    head = DeferralHead(torch.zeros(32))
    learn(head, data, held_of(data), OPTIONS)
    with torch.no_grad():
        defer = head(data.hidden).sigmoid()
    assert defer[data.weak.bool()].mean() > 0.6 > 0.45 > defer[~data.weak.bool()].mean()


def joint(seed: int = 1) -> Joint:
    return Joint(dummy(seed), DeferralHead(torch.zeros(32)), VOCAB)


def answers(data: Rows) -> tuple[Answers, torch.Tensor]:
    """The rows as answers to prompts of different lengths."""
    pair = SimpleNamespace(prompts=[list(range(1, 3 + i)) for i in range(12)], held=lambda problems: problems >= 9)
    return answers_of(pair, data), held_answers(pair, data)  # type: ignore[arg-type]


def test_answers_are_put_together_from_rows() -> None:
    data = rows()
    kept = Rows(*(column[data.problems != 4] for column in data))  # a problem without a right answer
    made, held = answers(kept)
    assert made.starts == [2 + i for i in range(12) if i != 4]
    assert [len(ids) for ids in made.ids] == [start + 40 for start in made.starts]
    assert made.ids[4][:7].tolist() == list(range(1, 8))
    assert made.ids[4][7:].equal(data.token_ids[data.problems == 5])
    assert held.tolist() == [False] * 8 + [True] * 3


def test_the_head_does_not_change_what_the_base_says() -> None:
    made, ids = joint(), torch.randint(0, VOCAB, (2, 9))
    mask = torch.ones_like(ids)
    with torch.no_grad():
        before, d = made(ids, mask)
        made.head.vector.normal_(0, 50)
        after, other = made(ids, mask)
        plain = made.model(ids).logits.log_softmax(dim=-1)
    assert (d - other).abs().max() > 1
    assert after.equal(before)
    torch.testing.assert_close(before, plain)


def test_padding_does_not_change_a_row() -> None:
    made, ids = joint(), torch.randint(0, VOCAB, (1, 9))
    padded = torch.cat([ids, torch.zeros(1, 5, dtype=torch.long)], dim=1)
    mask = torch.tensor([[1] * 9 + [0] * 5])
    with torch.no_grad():
        alone, long = made(ids, torch.ones_like(ids)), made(padded, mask)
    for short, other in zip(alone, long, strict=True):
        torch.testing.assert_close(other[:, :9], short)


def test_base_and_head_learn_together_and_go_on_where_they_were(tmp_path: Path) -> None:
    made, held = answers(rows())
    first, again = joint(), joint()
    before = copy.deepcopy(first.state_dict())
    whole = fit_jointly(first, made, held, OPTIONS)
    changed = {name for name, tensor in first.state_dict().items() if not tensor.equal(before[name])}
    assert {"head.vector", "model.model.embed_tokens.weight", "model.lm_head.weight"} <= changed
    state, half = tmp_path / "joint.safetensors", joint()

    class Stopped(Exception):
        pass

    def stop(module: Any, _: Any) -> None:
        if state.exists():
            raise Stopped  # in the second epoch

    handle = half.register_forward_pre_hook(stop)
    with pytest.raises(Stopped):
        fit_jointly(half, made, held, OPTIONS, state)
    handle.remove()
    assert fit_jointly(again, made, held, OPTIONS, state) == whole
    expected = first.state_dict()
    assert all(tensor.equal(expected[name]) for name, tensor in again.state_dict().items())


def test_learning_rate_rises_and_falls() -> None:
    assert [rise_and_fall(0.2, at) for at in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert rise_and_fall(0.0, 0.0) == 1


@pytest.mark.parametrize(("field", "value"), [("warmup", 1.0), ("head_epochs", 0), ("head_batch", 0), ("epochs", 0)])
def test_options_out_of_range(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{field}={value}: allowed is"):
        msgspec.structs.replace(OPTIONS, **{field: value}).check()
