"""A process's one door: everything for it arrives on one socket, everything from it leaves in envelopes."""
from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import zmq

from tokenrouter.subserver.messages import Envelope, Message


class Mailbox:
    """Bound PULL socket for what comes in, one PUSH socket for each peer.

    Both are unlimited: a subserver that stands still must not make its peers stand still. Order is kept between
    any two processes. `post` collects, `flush` sends one envelope to each destination.
    """

    def __init__(self, index: int, epoch: int, address: str, peers: Mapping[int, str]) -> None:
        self.index, self.epoch = index, epoch
        self._context = zmq.Context()
        self._inbox = self._socket(zmq.PULL)
        self._inbox.bind(address)
        self._peers: dict[int, zmq.Socket[bytes]] = {}
        for peer, peer_address in peers.items():
            self._peers[peer] = self._socket(zmq.PUSH)
            self._peers[peer].connect(peer_address)
        self._outbox: dict[int, list[Message]] = {}
        self._epochs: dict[int, int] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Envelope).decode

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 200)  # ms: what was sent last (why a process fails) should still go out
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        return socket

    def receive(self, timeout_s: float = 0.0) -> Iterator[tuple[int, Message]]:
        """(sender, message) for all that has arrived; waits up to `timeout_s` if nothing has."""
        if timeout_s > 0:
            self._inbox.poll(max(1, round(timeout_s * 1000)))
        while True:
            try:
                data = self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            envelope = self._decode(data)
            if envelope.epoch < self._epochs.get(envelope.sender, 0):
                continue  # from a predecessor of a process that was restarted
            self._epochs[envelope.sender] = envelope.epoch
            for message in envelope.messages:
                yield envelope.sender, message

    def fileno(self) -> int:
        """Of the inbox: readable once when something has arrived, until `receive` has taken everything."""
        return int(self._inbox.fileno())

    def post(self, destination: int, message: Message) -> None:
        self._outbox.setdefault(destination, []).append(message)

    def flush(self) -> None:
        if self._outbox:
            for destination, messages in self._outbox.items():
                self._peers[destination].send(self._encode(Envelope(self.index, self.epoch, messages)))
            self._outbox.clear()

    def close(self) -> None:
        self._context.destroy(linger=200)
