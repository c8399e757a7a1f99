"""The shipped folders: they load without a hub, share one vocabulary, and are small."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tokenrouter.core import InputError
from zoo.models import SIZES, path
from zoo.models.evaluate import answer_of, evaluate, load
from zoo.models.tokenizer import build, prompt
from zoo.models.train import RECIPES
from zoo.tasks.arithmetic import problems


@pytest.mark.parametrize("size", SIZES)
def test_folder_loads_and_has_the_recipe_s_shape(size: str) -> None:
    config = AutoConfig.from_pretrained(path(size), local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(path(size), local_files_only=True)
    recipe = RECIPES[size]
    assert (config.model_type, config.vocab_size, config.max_position_embeddings) == ("qwen3", 512, 16384)
    assert (config.hidden_size, config.num_hidden_layers) == (recipe.hidden, recipe.stages[-1].layers)
    assert config.tie_word_embeddings and model.dtype == torch.bfloat16
    with safe_open(path(size) / "model.safetensors", "pt") as weights:
        assert "lm_head.weight" not in weights.keys()  # noqa: SIM118


@pytest.mark.parametrize("size", SIZES)
def test_generation_is_greedy_and_ends_at_the_tokenizer_s_end(size: str) -> None:
    generation = GenerationConfig.from_pretrained(path(size), local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(path(size), local_files_only=True)
    assert generation.do_sample is False
    assert generation.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_sizes_share_the_tokenizer_that_the_training_split_gives() -> None:
    built = build()
    for size in SIZES:
        tokenizer = AutoTokenizer.from_pretrained(path(size), local_files_only=True)
        assert tokenizer.get_vocab() == built.get_vocab()
        assert prompt(tokenizer, "Why?") == prompt(built, "Why?")
        assert tokenizer("177 + 331 = 508")["input_ids"] == built("177 + 331 = 508")["input_ids"]


def test_all_sizes_together_are_small() -> None:
    files = [file for size in SIZES for file in path(size).iterdir()]
    assert sum(file.stat().st_size for file in files) < 20_000_000
    assert {file.suffix for file in files} <= {".json", ".safetensors"}


def test_large_solves_test_problems_that_it_was_never_shown() -> None:
    torch.set_num_threads(1)
    score = evaluate(*load(path("large")), problems("test", 20))
    assert score.right >= 18


def test_small_writes_a_worked_answer() -> None:
    torch.set_num_threads(1)
    model, tokenizer = load(path("small"))
    given = tokenizer(prompt(tokenizer, problems("test", 1)[0].question), return_tensors="pt")
    text = tokenizer.decode(model.generate(given["input_ids"], max_new_tokens=300)[0])
    assert "Step 1: " in text and answer_of(text) is not None


def test_path_names_what_is_allowed() -> None:
    with pytest.raises(InputError, match=r"size: 'huge'.*small, medium, large"):
        path("huge")


@pytest.mark.parametrize("size", SIZES)
def test_no_trace_of_where_it_was_made(size: str) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        assert "/" not in json.dumps([v for k, v in json.loads((path(size) / name).read_text()).items() if "path" in k])
