"""Between being ready and being told to start."""
from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenrouter.subserver import messages as m
from tokenrouter.subserver.__main__ import _await_start
from tokenrouter.subserver.mailbox import Mailbox

START = m.Start((2,), 64)


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[dict[int, Mailbox]]:
    """The front end's, and those of subservers 0 and 1."""
    addresses = {index: f"ipc://{tmp_path}/{index}" for index in (m.FRONT_END, 0, 1)}
    made = {index: Mailbox(index, 1, address, {i: a for i, a in addresses.items() if i != index})
            for index, address in addresses.items()}
    yield made
    for box in made.values():
        box.close()


def send(box: Mailbox, to: int, *messages: m.Message) -> None:
    for message in messages:
        box.post(to, message)
    box.flush()
    time.sleep(0.05)


def test_what_a_peer_sends_before_it_is_not_lost(boxes: dict[int, Mailbox]) -> None:
    send(boxes[0], 1, m.Admitted("a", 0))
    send(boxes[m.FRONT_END], 1, START, m.Admitted("b", 0))
    send(boxes[0], 1, m.Admitted("c", 0))
    assert _await_start(boxes[1], lambda: True) == START
    send(boxes[0], 1, m.Admitted("d", 0))
    heard: list[tuple[int, str]] = []
    until = time.monotonic() + 30
    while len(heard) < 4 and time.monotonic() < until:
        heard += [(sender, message.rid) for sender, message in boxes[1].receive(1.0)]  # type: ignore[union-attr]
    # Each sender's messages come in its order; between senders there is none.
    assert [rid for sender, rid in heard if sender == 0] == ["a", "c", "d"]
    assert [rid for sender, rid in heard if sender == m.FRONT_END] == ["b"]


def test_told_to_stop_or_left_alone(boxes: dict[int, Mailbox]) -> None:
    assert _await_start(boxes[1], lambda: False) is None
    send(boxes[m.FRONT_END], 1, m.Control("stop"))
    assert _await_start(boxes[1], lambda: True) is None


def test_what_is_patient_waits_for_what_is_not(boxes: dict[int, Mailbox]) -> None:
    box = boxes[0]
    box.post(1, m.Admitted("a", 0), patient=True)
    box.post(m.FRONT_END, m.Admitted("x", 0))
    box.flush(patiently=True)
    assert [message.rid for _, message in boxes[m.FRONT_END].receive(5.0)] == ["x"]  # type: ignore[union-attr]
    assert list(boxes[1].receive(0.1)) == []
    box.post(1, m.Admitted("b", 0))
    box.post(1, m.Admitted("c", 0), patient=True)
    box.flush(patiently=True)
    assert [message.rid for _, message in boxes[1].receive(5.0)] == ["a", "b", "c"]  # type: ignore[union-attr]
    box.post(1, m.Admitted("d", 0), patient=True)
    box.flush()
    assert [message.rid for _, message in boxes[1].receive(5.0)] == ["d"]  # type: ignore[union-attr]
