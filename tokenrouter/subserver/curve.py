"""CURVE on the peer channel: encrypted, open only to who has the cluster's own key (ZeroMQ RFC 26, 27)."""
from __future__ import annotations

from typing import Any

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

DOMAIN = "tokenrouter"


class Keys(msgspec.Struct, frozen=True):
    """One pair for all processes of one cluster, which trust each other; made anew for each, in Z85."""

    public: str
    secret: str

    @classmethod
    def generate(cls) -> Keys:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a client that has proved to own `key` may send; what the authenticator asks."""
        return key == self.public.encode()

    def admit(self, context: zmq.Context[Any]) -> ThreadAuthenticator:
        """The authenticator of all sockets of `context` that are bound; to be stopped before the context ends."""
        authenticator = ThreadAuthenticator(context)
        authenticator.start()
        authenticator.configure_curve_callback(DOMAIN, self)
        return authenticator

    def secure(self, socket: zmq.Socket[bytes], *, bound: bool) -> None:
        """Before the socket is bound or connected."""
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret.encode())
        if bound:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN.encode())
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an authenticator nobody is let in
        else:
            socket.setsockopt(zmq.CURVE_SERVERKEY, self.public.encode())
