"""The training of the embedded models: its tokenizer, its batches, and that it learns and can be repeated."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from zoo.models.batches import IGNORE, Drills, problem_batches
from zoo.models.tokenizer import VOCAB_SIZE, build, completion, prompt
from zoo.models.train import Recipe, Stage, grow, loss_of, save, train
from zoo.tasks.arithmetic import problems, split_of

STAGE = Stage(layers=1, tokens=40_000)
TINY = Recipe(hidden=32, heads=2, kv_heads=1, intermediate=64, stages=(STAGE,), batch=400)


def briefly(tokens: int, *layers: int) -> Recipe:
    """TINY with stages of so many tokens and these numbers of layers."""
    return replace(TINY, stages=tuple(Stage(count, tokens) for count in layers))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build(n=500)


def test_tokenizer_is_repeatable_and_covers_any_text(tokenizer: PreTrainedTokenizerFast) -> None:
    assert build(n=500).get_vocab() == tokenizer.get_vocab()
    assert len(tokenizer) == VOCAB_SIZE
    for text in ("Zoë pays 3 €, or 40 %:\n\t日本", problems("test", 1)[0].solution, "  two  spaces "):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_are_single_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer("There are 508 pens")["input_ids"]
    assert [tokenizer.decode([i]) for i in ids if any(c.isdigit() for c in tokenizer.decode([i]))] == ["5", "0", "8"]
    assert not [t for t in tokenizer.get_vocab() if len(t) > 1 and any(c.isdigit() for c in t)]


def test_chat_prompt_is_chatml(tokenizer: PreTrainedTokenizerFast) -> None:
    assert prompt(tokenizer, "Why?") == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.convert_ids_to_tokens(tokenizer("a<|im_end|>")["input_ids"])[-1] == "<|im_end|>"


def test_problem_batches_are_prompt_and_answer_with_loss_on_the_answer(tokenizer: PreTrainedTokenizerFast) -> None:
    ids, labels = next(problem_batches(tokenizer, 1024, seed=0))
    assert ids.numel() <= 1024
    drawn = {prompt(tokenizer, p.question): completion(p) for p in problems("train", 512, seed=1)}
    for row, label in zip(ids, labels, strict=True):
        known = label != IGNORE
        assert torch.equal(row[known], label[known])
        answered = tokenizer.decode(row[known])
        asked = tokenizer.decode(row[: int(known.nonzero()[0])])
        assert drawn[asked] == answered


def test_drills_have_loss_on_results_and_never_go_on_from_an_equation(tokenizer: PreTrainedTokenizerFast) -> None:
    drills = Drills(tokenizer, 4096, seed=0)
    for ids, labels in (drills.next() for _ in range(3)):
        assert ids.numel() <= 4096
        for row, label in zip(ids, labels, strict=True):
            shown = tokenizer.decode(row[row != tokenizer.pad_token_id])
            equations = [line.removeprefix(": ").removesuffix(".") for line in shown.splitlines()]
            results = tokenizer.decode(label[label != IGNORE]).split(".\n")[:-1]
            assert [e.split("=")[1] for e in equations] == results
            assert all(a.split()[-1] != b.split()[0] for a, b in pairwise(equations))


def test_equation_that_was_got_wrong_comes_again(tokenizer: PreTrainedTokenizerFast) -> None:
    drills = Drills(tokenizer, 1024, seed=0, again=3)
    _, labels = drills.next()
    wrong = torch.zeros_like(labels, dtype=torch.bool)
    second = drills.drilled[0][1]
    wrong[0, len(drills.drilled[0][0]) + len(second) - 1] = True  # the last token of row 0's second equation
    drills.mark(wrong)
    assert drills.missed == [second.text] * 3
    drills.rows = []  # on to fresh ones
    seen = 0
    for _ in range(100):
        drills.next()
        seen += sum(e.text == second.text for row in drills.drilled for e in row)
        if not drills.rows:
            break
    assert seen >= 2  # less than all three where one would have gone on from its neighbour
    assert not drills.missed


def test_wrong_labels_are_those_that_the_model_would_not_write(tokenizer: PreTrainedTokenizerFast) -> None:
    model, _ = train(briefly(1, 1), tokenizer, seed=0)
    ids, labels = next(problem_batches(tokenizer, 512, seed=0))
    _, wrong = loss_of(model, (ids, labels))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predicted = model(ids).logits[:, :-1].argmax(-1)
    expected = (labels[:, 1:] != IGNORE) & (predicted != labels[:, 1:])
    assert expected.any() and (wrong[:, 1:] != expected).float().mean() < 0.01 and not wrong[:, 0].any()


def test_later_stage_goes_on_from_what_was_saved(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    first, _ = train(briefly(2_000, 2), tokenizer, seed=0)
    save(first, tokenizer, tmp_path)
    frozen = replace(TINY, stages=(Stage(2, 2_000), Stage(3, 1, rate=0.0)))
    grown, losses = train(frozen, tokenizer, seed=0, out=tmp_path, first=2)
    assert len(losses) <= 1 and grown.config.num_hidden_layers == 3
    assert torch.equal(grown.model.embed_tokens.weight, first.model.embed_tokens.weight.bfloat16().float())


def test_grown_model_computes_the_same_and_its_new_layers_learn(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.set_num_threads(1)
    shallow, _ = train(briefly(2_000, 2), tokenizer, seed=0)
    deep = grow(shallow, TINY.config(tokenizer, 3))
    ids = tokenizer("There are 508 pens", return_tensors="pt")["input_ids"]
    assert torch.equal(deep(ids).logits, shallow(ids).logits)
    trained, _ = train(briefly(2_000, 2, 3), tokenizer, seed=0)
    assert [bool(layer.mlp.down_proj.weight.any()) for layer in deep.model.layers] == [True, False, True]
    assert all(bool(layer.mlp.down_proj.weight.any()) for layer in trained.model.layers)


def test_attention_of_training_is_that_of_transformers(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    model, _ = train(briefly(1, 1), tokenizer, seed=0)
    save(model, tokenizer, tmp_path)
    plain, ours = (
        AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation=name)
        for name in ("eager", "matmul")
    )
    ids, _ = next(problem_batches(tokenizer, 1024, seed=0))
    torch.testing.assert_close(ours(ids).logits, plain(ids).logits, atol=1e-4, rtol=1e-4)


def test_training_text_holds_no_pair_of_the_test_split() -> None:
    assert {split_of(*pair) for p in problems("train", 512, seed=1) for pair in pairwise(p.equations)} == {"train"}


def test_training_learns_and_can_be_repeated(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model, losses = train(TINY, tokenizer, seed=3)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    short = briefly(4096, 1)
    first, second, other = (train(short, tokenizer, seed=seed)[1] for seed in (3, 3, 4))
    assert first == second != other
    save(model, tokenizer, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert loaded.dtype == torch.bfloat16
    assert AutoTokenizer.from_pretrained(tmp_path, local_files_only=True).get_vocab() == tokenizer.get_vocab()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.bfloat16()), name
