"""Over tcp the processes of a cluster hear each other alone, and nobody hears them."""
from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import zmq

from tokenrouter.cluster.cluster import Cluster
from tokenrouter.cluster.spec import ClusterSpec, LinkSpec, SubserverSpec
from tokenrouter.core import InputError
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.curve import Keys
from tokenrouter.subserver.link import Link
from tokenrouter.subserver.mailbox import Mailbox

WORD = "a-word-that-must-not-be-readable"


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def said(box: Mailbox, seconds: float) -> list[tuple[int, str]]:
    """(sender, command) of all that arrives until something has, or the time is over."""
    deadline, heard = time.monotonic() + seconds, []
    while not heard and time.monotonic() < deadline:
        heard = [(sender, message.command) for sender, message in box.receive(0.05) if isinstance(message, m.Control)]
    return heard


def say(box: Mailbox, destination: int, word: str) -> None:
    box.post(destination, m.Control(word))
    box.flush()


@pytest.fixture
def pair() -> Iterator[tuple[Mailbox, Mailbox, str, Keys]]:
    """Two mailboxes that know each other, the address of the first, and their keys."""
    keys, addresses = Keys.generate(), {0: free_address(), 1: free_address()}
    boxes = [Mailbox(i, 1, addresses[i], {1 - i: addresses[1 - i]}, keys) for i in range(2)]
    yield *boxes, addresses[0], keys
    for box in boxes:
        box.close()


class Stranger:
    """Sends envelopes that would be taken if they came from a peer. `server`, `own`: the keys that it has."""

    def __init__(self, address: str, server: str | None, own: Keys | None) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        if server is not None and own is not None:
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, own.public.encode())
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret.encode())
        self._socket.connect(address)
        self._socket.send(msgspec.msgpack.encode(m.Envelope(1, 99, [m.Control("stop")])))

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.mark.parametrize("knows", ["nothing", "keys of its own", "the public key", "everything"])
def test_who_has_not_the_clusters_key_is_not_heard(pair: tuple[Mailbox, Mailbox, str, Keys], knows: str):
    first, second, address, keys = pair
    server, own = {"nothing": (None, None), "keys of its own": (Keys.generate().public, Keys.generate()),
                   "the public key": (keys.public, Keys.generate()), "everything": (keys.public, keys)}[knows]
    with closing(Stranger(address, server, own)):
        if knows == "everything":  # it is by the keys that the others fail, not by how they are tried
            assert said(first, 10.0) == [(1, "stop")]
            return
        assert said(first, 0.5) == []
        say(second, 0, "hello")
        assert said(first, 10.0) == [(1, "hello")]
        say(first, 1, "hello")
        assert said(second, 10.0) == [(0, "hello")]


class Tap:
    """Passes on what is sent to `target`, and keeps it."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("tcp://").split(":")
        self._target, self.seen = (host, int(port)), bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        near = self._listener.accept()[0]
        far = socket.create_connection(self._target)
        threading.Thread(target=self._pass_on, args=(far, near), daemon=True).start()
        self._pass_on(near, far)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(65536):
            self.seen += data
            sink.sendall(data)
        sink.close()

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("secured", [True, False])
def test_what_is_sent_cannot_be_read_on_its_way(secured: bool):
    keys, address = Keys.generate(), free_address()
    receiver = Mailbox(0, 1, address, {}, keys) if secured else zmq.Context.instance().socket(zmq.PULL)
    if isinstance(receiver, zmq.Socket):  # what the tap would see of an open channel
        receiver.bind(address)
    with closing(receiver), closing(Tap(address)) as tap:
        if isinstance(receiver, Mailbox):
            with closing(Mailbox(1, 1, free_address(), {0: tap.address}, keys)) as sender:
                say(sender, 0, WORD)
                assert said(receiver, 10.0) == [(1, WORD)]
        else:
            with zmq.Context.instance().socket(zmq.PUSH) as open_sender:
                open_sender.connect(tap.address)
                open_sender.send(msgspec.msgpack.encode(m.Envelope(1, 1, [m.Control(WORD)])))
                assert receiver.poll(10_000)
        assert len(tap.seen) > len(WORD) and (WORD.encode() in tap.seen) is not secured


def test_without_keys_a_mailbox_is_opened_on_ipc_only(tmp_path: Path):
    with pytest.raises(InputError, match=r"address=tcp://127\.0\.0\.1:\d+: allowed without keys is ipc"):
        Mailbox(0, 1, free_address(), {})
    with pytest.raises(InputError, match=r"address=tcp://127\.0\.0\.1:1: allowed without keys is ipc"):
        Mailbox(0, 1, f"ipc://{tmp_path}/0", {1: "tcp://127.0.0.1:1"})


@pytest.mark.parametrize("hardware, message", [
    ({"addresses": ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "tcp://127.0.0.1:3"]},
     "allowed with transport=ipc is []"),
    ({"addresses": ["ipc:///tmp/a", "ipc:///tmp/b", "ipc:///tmp/c"]}, "allowed with transport=ipc is []"),
    ({"addresses": ["tcp://127.0.0.1:1"] * 3, "transport": "tcp"}, "allowed is 3 different addresses"),
    ({"pin": [99999]}, "hardware.pin=[99999]: allowed on this machine are "),
    ({"link": LinkSpec(delay_ms=-1.0, gbytes_per_s=1.0)}, "hardware.link.delay_ms=-1: allowed is 0 to 1000"),
    ({"link": LinkSpec(delay_ms=1.0, gbytes_per_s=0.0)}, "hardware.link.gbytes_per_s=0: allowed is a number > 0"),
    ({"addresses": ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "ipc:///tmp/c"], "transport": "tcp"},
     "hardware.addresses=ipc:///tmp/c: allowed is tcp://HOST:PORT"),
    ({"addresses": ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "tcp://*:3"], "transport": "tcp"},
     "hardware.addresses=tcp://*:3: allowed is tcp://HOST:PORT"),
])
def test_channels_that_cannot_be_are_refused_before_anything_starts(
        make_spec: Callable[..., ClusterSpec], hardware: dict[str, object], message: str):
    with pytest.raises(InputError) as refused:
        Cluster(make_spec(**hardware))
    assert message in str(refused.value)


def test_the_keys_of_a_cluster_can_be_read_by_nobody_else(make_spec: Callable[..., ClusterSpec]):
    given = [free_address() for _ in range(3)]
    with Cluster(make_spec(transport="tcp", addresses=given)) as cluster:
        cluster.frontend.check()
        arguments = Path(f"/proc/{cluster.pids[0]}/cmdline").read_bytes().split(b"\0")
        file = Path(next(os.fsdecode(word) for word in arguments if word.endswith(b".json")))
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        spec = msgspec.json.decode(file.read_bytes(), type=SubserverSpec)
        assert list(spec.addresses.values()) == given
    assert spec.keys is not None and spec.keys != Keys.generate()


def test_what_goes_over_an_emulated_link_is_there_later_and_in_order(tmp_path: Path):
    addresses = {i: f"ipc://{tmp_path}/{i}" for i in (m.FRONT_END, 0, 1)}
    link = LinkSpec(delay_ms=1000.0, gbytes_per_s=1e-3)
    front, sender, receiver = (
        Mailbox(i, 1, address, {j: a for j, a in addresses.items() if j != i}, None,
                None if i == m.FRONT_END else Link(link)) for i, address in addresses.items())
    with closing(front), closing(sender), closing(receiver):
        start = time.monotonic()
        sender.post(m.FRONT_END, m.Control("at once"))
        for word in ("x" * 60_000, "second"):  # 60 ms at a megabyte a second, then nearly nothing
            say(sender, 1, word)
        assert said(front, 0.9) == [(0, "at once")]  # the front end is on no link
        heard = []
        while len(heard) < 2 and time.monotonic() - start < 30:
            heard += [(word[0], time.monotonic() - start) for _, word in said(receiver, 1.0)]
        assert [word for word, _ in heard] == ["x", "s"] and all(at >= 1.06 for _, at in heard)
