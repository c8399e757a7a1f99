"""Right answers to learn along, which CITER and Co-LLM call gold."""
from __future__ import annotations

from tokenrouter.core import InputError, SamplingParams
from zoo.labels import Pair
from zoo.offline import Offline, single
from zoo.walk import Record


class Gold:
    """The worked solutions of a pair's problems; where the data have none, what the large model samples, if right."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.alone = Offline(single("large"), [pair.large], batch_size=pair.options.decode_batch)

    def __call__(self, part: slice) -> dict[int, Record]:
        """One for each problem of the part that has a gold answer, by its place in the part."""
        pair, prompts, tasks = self.pair, self.pair.prompts[part], self.pair.tasks[part]
        limit, seed = pair.workload.max_tokens, pair.options.seed + part.start
        records = [Record(ids, SamplingParams(seed + i, limit, temperature=1.0)) for i, ids in enumerate(prompts)]
        sampled = []
        for record, task in zip(records, tasks, strict=True):
            if task.solution is None:
                sampled.append(record)
            else:
                ids = pair.setup.tokenizer(task.solution, add_special_tokens=False)["input_ids"]
                record.token_ids = [*ids, pair.setup.tokenizer.eos_token_id]
        self.alone.decode(sampled)
        kept = {
            place: record for place, (record, task) in enumerate(zip(records, tasks, strict=True))
            if (len(record.token_ids) <= limit if task.solution is not None else
                record.finish_reason == "stop" and pair.right(record, task))
        }
        if not kept:
            raise InputError(f"problems: of {len(tasks)} none has a worked solution, and the large model answers none "
                             f"rightly in {limit} tokens; allowed are problems of which it does some")
        return kept
