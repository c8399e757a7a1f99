"""lm-evaluation-harness, unchanged: a task of its own over the embedded problems, as token ids and as messages."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.conftest import CONCURRENCY, MAX_TOKENS, MODEL, OFFLINE, PROBLEMS, TOKENIZER, Client, Figures

NAME = "lm-eval"
TASK = r"""
task: embedded_problems
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{file}"}}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{problem}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: [], do_sample: false, temperature: 0, max_gen_toks: {max_tokens}}}
filter_list:
  - name: boxed
    filter:
      - {{function: regex, regex_pattern: '\\boxed\{{(-?\d+)\}}', group_select: -1}}
      - {{function: take_first}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


@pytest.mark.parametrize("kind, path, extra", [
    ("local-completions", "completions", f",tokenizer={TOKENIZER},tokenizer_backend=huggingface"),
    ("local-chat-completions", "chat/completions", ""),
])
def test_lm_eval_gets_the_drivers_texts_and_accuracy(
        client: Client, agree: Callable[[str, Figures], None], driver: tuple[Figures, dict[str, str]],
        kind: str, path: str, extra: str):
    (client.folder / "task.yaml").write_text(TASK.format(file=client.file, max_tokens=MAX_TOKENS))
    client.run("lm_eval", "run", "--model", kind, "--model_args",
               f"model={MODEL},base_url={client.url}/v1/{path},num_concurrent={CONCURRENCY},max_retries=1{extra}",
               "--tasks", "embedded_problems", "--include_path", client.folder, "--apply_chat_template",
               "--log_samples", "--output_path", client.folder / "out", **OFFLINE)
    results = json.loads(found(client.folder, "results_*.json").read_text())
    samples = [json.loads(line) for line in found(client.folder, "samples_*.jsonl").read_text().splitlines()]
    told = Figures(results["n-samples"]["embedded_problems"]["effective"], None, None,
                   accuracy=results["results"]["embedded_problems"]["exact_match,boxed"])
    agree(f"lm-eval {kind}", told)
    texts = {sample["doc"]["id"]: sample["resps"][0][0] for sample in samples}
    assert texts.keys() == driver[1].keys() and len(texts) == PROBLEMS
    assert sum(texts[id] == text for id, text in driver[1].items()) >= PROBLEMS - 1


def found(folder: Path, pattern: str) -> Path:
    (file,) = folder.glob(f"out/**/{pattern}")
    return file
