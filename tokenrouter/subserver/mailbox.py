"""A process's one door: everything for it arrives on one socket, everything from it leaves in envelopes."""
from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import zmq

from tokenrouter.core import InputError
from tokenrouter.subserver.curve import Keys
from tokenrouter.subserver.idle import spin
from tokenrouter.subserver.link import Link
from tokenrouter.subserver.messages import FRONT_END, Envelope, Message


class Outbox(ABC):
    """What process `index` has to say, by destination, until it is sent."""

    def __init__(self, index: int, epoch: int) -> None:
        self.index, self.epoch = index, epoch
        self._outbox: dict[int, list[Message]] = {}
        self._pressing: set[int] = set()  # destinations that something is for which may not wait
        self._encode = msgspec.msgpack.Encoder().encode

    def post(self, destination: int, message: Message, *, patient: bool = False) -> None:
        """`patient`: it may wait for others, as long as `flush` is told so."""
        self._outbox.setdefault(destination, []).append(message)
        if not patient:
            self._pressing.add(destination)

    def flush(self, *, peers_only: bool = False, patiently: bool = False) -> None:
        """One envelope to each destination that there is something for; `patiently`: that may not wait."""
        for destination in [*self._outbox]:
            if (peers_only and destination == FRONT_END) or (patiently and destination not in self._pressing):
                continue
            envelope = Envelope(self.index, self.epoch, self._outbox.pop(destination))
            self._pressing.discard(destination)
            self._send(destination, self._encode(envelope))

    @abstractmethod
    def _send(self, destination: int, data: bytes) -> None:
        """Must not wait for whoever is there."""


class Mailbox(Outbox):
    """Bound PULL socket for what comes in, one PUSH socket for each peer.

    Both are unlimited: a subserver that stands still must not make its peers stand still. Order is kept between
    any two processes. `keys` authenticate and encrypt; without them only ipc is allowed, which the file system guards.
    `link`: emulated to and from the other subservers.
    """

    def __init__(self, index: int, epoch: int, address: str, peers: Mapping[int, str],
                 keys: Keys | None = None, link: Link | None = None) -> None:
        super().__init__(index, epoch)
        if keys is None and (bare := [a for a in (address, *peers.values()) if not a.startswith("ipc://")]):
            raise InputError(f"address={bare[0]}: allowed without keys is ipc")
        self._context, self._keys, self._link = zmq.Context(), keys, link
        self._authenticator = keys.admit(self._context) if keys is not None else None
        self._inbox = self._socket(zmq.PULL)
        self._inbox.bind(address)
        self._peers: dict[int, zmq.Socket[bytes]] = {}
        for peer, peer_address in peers.items():
            self._peers[peer] = self._socket(zmq.PUSH)
            self._peers[peer].connect(peer_address)
        self._epochs: dict[int, int] = {}
        self._unread: list[tuple[int, Message]] = []
        self._decode = msgspec.msgpack.Decoder(Envelope).decode

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 200)  # ms: what was sent last (why a process fails) should still go out
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        if self._keys is not None:
            self._keys.secure(socket, bound=kind == zmq.PULL)
        return socket

    def receive(self, timeout_s: float = 0.0, *, awake: bool = False) -> Iterator[tuple[int, Message]]:
        """(sender, message) for all that has arrived; waits up to `timeout_s` if nothing has, asleep or `awake`."""
        if self._unread:
            unread, self._unread = self._unread, []
            yield from unread
        elif timeout_s > 0 and awake and self._link is None:
            spin(self._readable, timeout_s)
        elif timeout_s > 0:
            self._wait(timeout_s)
        for data in self._arrived():
            envelope = self._decode(data)
            if envelope.epoch < self._epochs.get(envelope.sender, 0):
                continue  # from a predecessor of a process that was restarted
            self._epochs[envelope.sender] = envelope.epoch
            for message in envelope.messages:
                yield envelope.sender, message

    def _wait(self, timeout_s: float) -> None:
        if self._link is not None and (next_s := self._link.next_s()) < timeout_s:
            timeout_s = next_s
            if timeout_s < 1e-3:  # a poll takes a millisecond at the least
                time.sleep(timeout_s)
                return
        self._inbox.poll(max(1, round(timeout_s * 1000)))

    def _readable(self) -> bool:
        """Cheaper than the exception of an empty inbox."""
        return bool(int(self._inbox.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _arrived(self) -> Iterator[bytes]:
        while self._readable():
            data = self._inbox.recv(zmq.NOBLOCK)
            if self._link is not None and self._inbox.getsockopt(zmq.RCVMORE):
                self._link.put(data, self._inbox.recv())
            else:
                yield data
        if self._link is not None:
            yield from self._link.arrived()

    def unread(self, messages: Sequence[tuple[int, Message]]) -> None:
        """Give back what was received: it comes first the next time."""
        self._unread += messages

    def fileno(self) -> int:
        """Of the inbox: readable once when something has arrived, until `receive` has taken everything."""
        return int(self._inbox.fileno())

    def _send(self, destination: int, data: bytes) -> None:
        if self._link is None or destination == FRONT_END:
            self._peers[destination].send(data)
        else:
            self._peers[destination].send_multipart([data, self._link.stamp(destination, data)])

    def close(self) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=200)
