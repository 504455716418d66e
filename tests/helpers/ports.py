"""Ports of this machine that nobody listens on."""

import socket


def free_port() -> int:
    """A port that a server can take."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
