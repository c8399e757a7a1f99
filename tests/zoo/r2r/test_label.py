"""Which proposals count as divergent, on two models whose tokens are scripted."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scripted import scripted
from tokenrouter.core import InputError
from tokenrouter.engine import load_engine
from zoo.labels import collect
from zoo.r2r.label import DIVERGENT, NEUTRAL, SAME, Labeller, Rows
from zoo.walk import Record

EOS, PROMPT = 9, [30, 1]
# The large model says 2 3 4 5 EOS, and its answer is what stands before the EOS: 5.
LARGE = {1: 2, 2: 3, 3: 4, 4: 5, 5: EOS, 6: 4, 7: 8, 8: EOS, 20: 20}


def answer(record: Record) -> int | None:
    return record.token_ids[-2] if record.token_ids[-1] == EOS and len(record.token_ids) > 1 else None


@pytest.fixture(scope="module")
def label(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def engine(chain: dict[int, int]) -> Any:
        folder = tmp_path_factory.mktemp("scripted")
        scripted(chain, eos_token_id=EOS).save_pretrained(folder)
        return load_engine("torch", path=str(folder), capacity_tokens=1024)

    large = engine(LARGE)

    def make(**changed: int) -> Labeller:
        small = engine({**LARGE, **{int(token[1:]): proposal for token, proposal in changed.items()}})
        return Labeller(small, large, lambda a, b: answer(a) is not None and answer(a) == answer(b), num_logits=8,
                        max_tokens=12, batch_size=4)

    return make


def kinds(labeller: Labeller) -> list[int]:
    return labeller.label([PROMPT]).kinds.tolist()


def test_the_same_token_is_not_a_mismatch(label: Any) -> None:
    assert kinds(label()) == [SAME] * 5


@pytest.mark.parametrize(("after", "proposal", "kind"), [
    ("_2", 6, NEUTRAL),  # 2 6 4 5 EOS: another way to 5
    ("_3", 7, DIVERGENT),  # 2 3 7 8 EOS: the answer is 8
    ("_4", EOS, DIVERGENT),  # 2 3 4 EOS: ends with the answer 4
    ("_3", 20, DIVERGENT),  # 2 3 20 20 ...: no answer in 12 tokens
    ("_1", 3, NEUTRAL),  # 3 4 5 EOS
    ("_1", EOS, DIVERGENT),  # EOS: no answer at all
    ("_5", 5, NEUTRAL),  # 2 3 4 5 5 EOS
])
def test_a_mismatch_diverges_if_the_large_model_ends_elsewhere_from_it(
    label: Any, after: str, proposal: int, kind: int
) -> None:
    position = int(after[1]) - 1  # token i of the chain is output position i - 2
    assert kinds(label(**{after: proposal})) == [kind if t == position else SAME for t in range(5)]


def test_rows_hold_what_the_small_model_saw(label: Any) -> None:
    rows = label(_3=7).label([PROMPT, [31, *PROMPT]])
    assert rows.token_ids.tolist() == [2, 3, 7, 5, EOS] * 2
    assert rows.problems.tolist() == [0] * 5 + [1] * 5
    assert rows.top_logits[0, 0] == pytest.approx(20, rel=1e-3) and rows.top_logits.shape == (10, 8)
    assert rows.hidden[0].argmax() == 1  # the embedding of the last prompt token, as nothing else is in this model


def test_collecting_goes_on_where_it_was(label: Any, tmp_path: Path) -> None:
    labeller, prompts = label(_3=7), [[i, *PROMPT] for i in range(30, 35)]
    done: list[int] = []
    asked: list[int] = []

    def label_part(part: slice) -> Rows:
        asked.append(len(prompts[part]))
        return labeller.label(prompts[part])

    whole = collect(Rows, label_part, 5, tmp_path / "a", chunk=2, progress=done.append)
    assert done == [2, 2, 1]
    assert whole.problems.tolist() == [i for i in range(5) for _ in range(5)]
    (tmp_path / "a" / "000002.safetensors").unlink()
    asked.clear()
    again = collect(Rows, label_part, 5, tmp_path / "a", chunk=2)
    assert asked == [2]
    assert all(a.equal(b) for a, b in zip(again, whole, strict=True))


def test_answers_that_never_end_are_left_out(label: Any) -> None:
    labeller = label()
    assert set(labeller.label([PROMPT, [30, 20]]).problems.tolist()) == {0}
    with pytest.raises(InputError, match="problems: the large model finished none"):
        labeller.label([[30, 20]])
