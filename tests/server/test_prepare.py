"""Long texts are turned into tokens, and back, without anybody else waiting."""
from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tokenrouter.server.prepare import Preparer
from tokenrouter.server.routes import Routes
from tokenrouter.server.settings import SamplingDefaults
from zoo.models.tokenizer import build

TOKENIZER = build(50)
TEXT = "what is 12 + 34? "
LONG = TEXT * 2000
DEFAULTS = SamplingDefaults(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)


class Held:
    """A tokenizer that answers when it is let."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.let, self.asked = tokenizer, threading.Event(), threading.Event()

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.asked.set()
        assert self.let.wait(20)
        return self._tokenizer(*args, **options)

    def decode(self, *args: Any, **options: Any) -> Any:
        self.asked.set()
        assert self.let.wait(20)
        return self._tokenizer.decode(*args, **options)


@pytest.fixture
def preparer() -> Preparer:
    return Preparer(TOKENIZER, Routes([], []), DEFAULTS, context_length=100_000, max_choices=1)


def test_the_words_and_the_tokens_of_a_long_text(preparer: Preparer) -> None:
    async def there_and_back(text: str) -> str:
        return await preparer.decode(await preparer.encode(text, "prompt", special=False))

    for text in (TEXT, LONG):
        assert asyncio.run(there_and_back(text)) == TOKENIZER.decode(
            TOKENIZER(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("kind", ["encode", "decode"])
def test_short_ones_do_not_wait_for_a_long_one(preparer: Preparer, kind: str) -> None:
    preparer._aside = held = Held(preparer._aside)  # type: ignore[assignment]

    async def both() -> None:
        long = preparer.encode(LONG, "prompt") if kind == "encode" else preparer.decode([1] * 6000)
        task: asyncio.Task[Any] = asyncio.create_task(long)  # type: ignore[arg-type]
        assert await asyncio.to_thread(held.asked.wait, 20)
        ids = await asyncio.wait_for(preparer.encode(TEXT, "prompt"), 20)
        assert await asyncio.wait_for(preparer.decode(ids), 20) and not task.done()
        held.let.set()
        assert await task

    asyncio.run(both())
