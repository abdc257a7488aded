"""One end of a pipe of TLS: ``send PORT CHAIN`` sends standard input, ``receive PORT CHAIN KEY``
writes what arrives to standard output.

Alone in a file, so that it starts without the lab's modules.
"""

import contextlib
import os
import socket
import ssl
import sys
import time

#: Bytes that are moved at once.
BLOCK_BYTES = 256 << 10
#: Tries to connect, each ten milliseconds after the last.
TRIES = 1_000


def connected(port: int) -> socket.socket:
    """Connect to a listener of this machine, which may begin to listen later."""
    for _ in range(TRIES):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port))
        time.sleep(0.01)
    sys.exit(f"tls_pipe.py: no listener on port {port}")


def send(port: int, chain: str) -> None:
    """Send standard input over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(chain)
    with connected(port) as plain, context.wrap_socket(plain) as secure:
        while block := os.read(0, BLOCK_BYTES):
            secure.sendall(block)
        secure.unwrap()


def receive(port: int, chain: str, key: str) -> None:
    """Write to standard output what arrives over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    with socket.create_server(("127.0.0.1", port)) as listener:
        plain, _ = listener.accept()
    view = memoryview(bytearray(BLOCK_BYTES))
    # An end without TLS's own end is an error.
    with context.wrap_socket(plain, server_side=True, suppress_ragged_eofs=False) as secure:
        while count := secure.recv_into(view):
            left = view[:count]
            while left:
                left = left[os.write(1, left) :]
        secure.unwrap()


if __name__ == "__main__":
    verb, port, *files = sys.argv[1:]
    {"send": send, "receive": receive}[verb](int(port), *files)
