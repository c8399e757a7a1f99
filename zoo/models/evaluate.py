"""Accuracy of the embedded models on test problems, greedy: `python -m zoo.models.evaluate --size small --n 1000`."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy.stats import binomtest
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from zoo.models import SIZES, path
from zoo.models.tokenizer import prompt
from zoo.tasks.arithmetic import SPLITS, WORDINGS, Problem, problems

BATCH = 50
TOKENS_PER_STEP, TOKENS_BESIDES = 70, 80  # ample bounds for a worked answer
EQUATION = re.compile(r"(\d+ [-+*/] \d+) = (\d+)")
BOXED = re.compile(r"\\boxed\{(\d+)\}")


@dataclass(frozen=True)
class Score:
    """Of n problems, how many were answered rightly; of the others, how many first failed in a result (`slips`)."""

    n: int
    right: int
    slips: int
    tokens: int

    @property
    def accuracy(self) -> float:
        return self.right / self.n

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Wilson's score interval of the accuracy."""
        found = binomtest(self.right, self.n).proportion_ci(confidence, method="wilson")
        return float(found.low), float(found.high)


def answer_of(text: str) -> int | None:
    """The last boxed integer of a worked answer, or None."""
    found = BOXED.findall(text)
    return int(found[-1]) if found else None


def is_slip(problem: Problem, text: str) -> bool:
    """Whether the first equation that differs from the problem's has the right left side: a reckoning went wrong."""
    written = EQUATION.findall(text)
    for (left, result), right_one in zip(written, problem.equations, strict=False):
        if f"{left} = {result}" != right_one:
            return bool(right_one.startswith(f"{left} ="))
    return False


@torch.inference_mode()
def answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, asked: Sequence[Problem]
) -> tuple[list[str], int]:
    """The greedy answers to problems, in their order, and the number of tokens written, end-of-sequence included."""
    texts = [""] * len(asked)
    written = 0
    order = sorted(range(len(asked)), key=lambda i: len(asked[i].solution))
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        given = tokenizer(
            [prompt(tokenizer, asked[i].question) for i in chosen],
            return_tensors="pt",
            padding=True,
            padding_side="left",
            add_special_tokens=False,
            return_token_type_ids=False,
        )
        limit = TOKENS_BESIDES + TOKENS_PER_STEP * max(len(asked[i].equations) for i in chosen)
        out = model.generate(**given, do_sample=False, max_new_tokens=limit)[:, given["input_ids"].shape[1] :]
        written += int((out != tokenizer.pad_token_id).sum())
        for i, text in zip(chosen, tokenizer.batch_decode(out, skip_special_tokens=True), strict=True):
            texts[i] = text
    return texts, written


def evaluate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, asked: Sequence[Problem]) -> Score:
    texts, tokens = answers(model, tokenizer, asked)
    right = [answer_of(text) == problem.answer for problem, text in zip(asked, texts, strict=True)]
    slips = sum(is_slip(p, text) for p, text, ok in zip(asked, texts, right, strict=True) if not ok)
    return Score(len(asked), sum(right), slips, tokens)


def load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A model in float32 and its tokenizer, from a local folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.models.evaluate", description=__doc__)
    parser.add_argument("--size", choices=(*SIZES, "all"), default="all")
    parser.add_argument("--n", type=int, default=1000, help="problems")
    parser.add_argument("--split", choices=SPLITS, default="test")
    parser.add_argument("--seed", type=int, default=0, help="seed of the problems")
    parser.add_argument("--wordings", choices=(*WORDINGS, "all"), default="all")
    parser.add_argument("--min-steps", type=int, default=2)
    parser.add_argument("--max-steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--models", type=Path, help="folder that holds a folder for each size; default: zoo/models")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for size in SIZES if given.size == "all" else (given.size,):
        model, tokenizer = load(given.models / size if given.models else path(size))
        for wordings in WORDINGS if given.wordings == "all" else (given.wordings,):
            asked = problems(
                given.split,
                given.n,
                given.seed,
                wordings=wordings,
                min_steps=given.min_steps,
                max_steps=given.max_steps,
            )
            began = time.perf_counter()
            score = evaluate(model, tokenizer, asked)
            low, high = score.interval()
            print(
                f"{size} {given.split} {wordings}: {score.right} of {score.n} right, {score.accuracy:.1%} "
                f"[{low:.1%}, {high:.1%}]; {score.slips} of the {score.n - score.right} wrong slipped in a result; "
                f"{score.tokens / score.n:.0f} tokens each; {time.perf_counter() - began:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
