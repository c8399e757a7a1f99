"""The files of a run, each written whole or not at all."""
from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from transformers import PreTrainedTokenizerBase

from bench.metrics import e2el_ms, ttft_ms
from bench.records import Record, Trace
from zoo.tasks.grade import Grade


def request_rows(
    trace: Trace, texts: Sequence[str], grades: Sequence[Grade | None]
) -> list[dict[str, Any]]:
    """One plain record a request, as requests.jsonl holds it. `start_s` counts from the first request."""
    return [
        {
            "id": record.job.task.id,
            "sample": record.job.sample,
            "seed": record.job.sampling.seed,
            "input_tokens": len(record.job.prompt_ids),
            "output_tokens": len(record.token_ids),
            "token_ids": record.token_ids,
            "token_models": record.roles,
            "token_signals": [None if signal is None else float(f"{signal:.4g}") for signal in record.signals],
            "text": text,
            "finish_reason": record.reason.value if record.reason else None,
            "start_s": record.start - trace.began,
            "ttft_ms": ttft_ms(record) if record.chunks else None,
            "e2el_ms": e2el_ms(record) if record.chunks else None,
            "handoffs": record.handoffs,
            "grade": grade.correct if grade else None,
            "answer": grade.answer if grade else None,
            "expected": record.job.task.expected,
            "error": record.error,
        }
        for record, text, grade in zip(trace.records, texts, grades, strict=True)
    ]


def texts_of(records: Sequence[Record], tokenizer: PreTrainedTokenizerBase | None) -> list[str]:
    """What each request wrote, without special tokens; nothing where tokens stand for no text."""
    if tokenizer is None:
        return [""] * len(records)
    return [str(tokenizer.decode(record.token_ids, skip_special_tokens=True)) for record in records]


def write_config(folder: Path, values: Mapping[str, Any]) -> None:
    write_text(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(values))))


def write_requests(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_text(folder / "requests.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    write_text(folder / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
