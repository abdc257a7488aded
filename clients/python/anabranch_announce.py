"""Announce a program's flows to this host's ``anabranch shuffle agent``, so that what waits for them ends early.

A program says of each TCP connection over which it sends what waits for it (its *transfer*, a name that all flows of a stage
share, on whatever host) and how much it has to move. Announce when the data is there; say so when there is more, and when all of
it has been sent. Whoever only receives announces nothing::

    from anabranch_announce import AnnounceError, Announcer

    agent = Announcer()  # ANABRANCH_SHUFFLE_SOCKET; one for the whole program
    try:
        flow = agent.announce(sock, "job-7", len(partition))
    except AnnounceError as error:
        print("goes unannounced:", error)  # and without a limit: nothing is lost but the stage's early end
    sock.sendall(partition)

Data is never held up for it: a call takes at most ``timeout`` seconds and fails then, with :class:`AnnounceError` and nothing else;
threads do not wait for each other. Without an agent a call fails at once. The next call connects anew, also after the agent was
started again or this process was forked. An agent that is started anew knows nothing of flows: ``grow``, with the same size, says
a flow again. In an event loop that must not wait at all, ``await asyncio.to_thread(agent.announce, writer, "job-7", size)``.

One file without dependencies, for Python 3.8 and later, on Linux: copy it, or install the folder that it is in.
"""

import json
import os
import socket
import time
from typing import Any, List, Optional, Tuple

__all__ = ["SOCKET_VARIABLE", "TIMEOUT", "AnnounceError", "Announcer", "Flow"]

SOCKET_VARIABLE = "ANABRANCH_SHUFFLE_SOCKET"
"""The environment's word for where the agent listens (its ``--listen``)."""

TIMEOUT = 0.1
"""The longest that a call takes unless told otherwise, in seconds."""

_LINE_BYTES_MAX = 1_024
_REPLY_BYTES_MAX = 8_192
# What no call uses: more than one only after threads have announced at the same time.
_IDLE_MAX = 4


class AnnounceError(Exception):
    """Why a flow has not been announced, in one line. Its data may go all the same."""


class Announcer:
    """A way to this host's agent, for all threads of a program. It connects when the first flow is announced.

    Parameters
    ----------
    path : str, optional
        Where the agent listens; what ``ANABRANCH_SHUFFLE_SOCKET`` says otherwise.
    timeout : float
        The longest that a call takes, in seconds.
    """

    def __init__(self, path: Optional[str] = None, timeout: float = TIMEOUT) -> None:
        self._path = os.fspath(path) if path is not None else os.environ.get(SOCKET_VARIABLE)
        self._timeout = timeout
        # A list's append and pop are whole under threads.
        self._idle = []  # type: List[Tuple[int, socket.socket]]

    def announce(self, sock: Any, transfer: str, size_bytes: int) -> "Flow":
        """Say that a connected TCP socket has so much to send for a transfer, in all.

        What the connection has moved before counts if this is its first transfer, and does not for later ones.

        Parameters
        ----------
        sock : socket.socket, asyncio transport or asyncio.StreamWriter
            The connection.
        transfer : str
            What waits for it: 1 to 128 printable ASCII characters without blanks.
        size_bytes : int
            All that it has to send for that.

        Returns
        -------
        Flow
            With which to say more. As a context manager it ends the flow.

        Raises
        ------
        AnnounceError
            The agent is away or refuses it. The flow may send all the same.
        """
        flow = self.flow(sock, transfer)
        flow.grow(size_bytes)
        return flow

    def flow(self, sock: Any, transfer: str) -> "Flow":
        """Make the flow of a connection, of which nothing is said until it grows.

        Raises
        ------
        AnnounceError
            It is no connected TCP socket.
        """
        if hasattr(sock, "get_extra_info"):
            sock = sock.get_extra_info("socket")
        try:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                raise OSError("neither IPv4 nor IPv6")
            key = {"local": _name(sock.getsockname()), "remote": _name(sock.getpeername())}
        except (OSError, AttributeError, TypeError) as error:
            raise AnnounceError("not a connected TCP socket: %s" % error) from error
        return Flow(self, key, transfer)

    def close(self) -> None:
        """Close the connection to the agent, which changes nothing for flows. The next call makes one."""
        while True:
            idle = self._take_idle()
            if idle is None:
                return
            idle.close()

    def _say(self, said: Any) -> None:
        line = json.dumps(said).encode("ascii") + b"\n"
        if len(line) > _LINE_BYTES_MAX:
            raise AnnounceError("a line of %d bytes: at most %d" % (len(line), _LINE_BYTES_MAX))
        if not self._path:
            raise AnnounceError(
                "no shuffle agent: set %s to the path that its --listen says" % SOCKET_VARIABLE
            )
        deadline = time.monotonic() + self._timeout
        idle = self._take_idle()
        try:
            try:
                reply = self._exchange(idle, line, deadline)
            except OSError:
                # The agent may have been started anew since; one that is silent has had its time.
                if idle is None or time.monotonic() >= deadline:
                    raise
                reply = self._exchange(None, line, deadline)
            answer = json.loads(reply)
            is_ok = answer["ok"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = "did not answer in time" if isinstance(error, socket.timeout) else error
            raise AnnounceError("shuffle agent at %s: %s" % (self._path, why)) from error
        if is_ok is not True:
            raise AnnounceError("refused by the shuffle agent: %s" % answer.get("error"))

    def _take_idle(self) -> Optional[socket.socket]:
        while True:
            try:
                process, idle = self._idle.pop()
            except IndexError:
                return None
            # A child's lines would mix with its parent's.
            if process == os.getpid():
                return idle
            idle.close()

    def _exchange(self, idle: Optional[socket.socket], line: bytes, deadline: float) -> bytes:
        connection = idle or socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if idle is None:
                # It does not wait: it is refused, where too many already do.
                connection.setblocking(False)
                connection.connect(self._path)
            connection.settimeout(_left(deadline))
            connection.sendall(line)
            reply = b""
            while not reply.endswith(b"\n"):
                connection.settimeout(_left(deadline))
                chunk = connection.recv(4_096)
                if not chunk:
                    raise OSError("has closed the connection")
                reply += chunk
                if len(reply) > _REPLY_BYTES_MAX:
                    raise OSError("its reply has no end")
        except BaseException:
            connection.close()
            raise
        if len(self._idle) < _IDLE_MAX:
            self._idle.append((os.getpid(), connection))
        else:
            connection.close()
        return reply


class Flow:
    """A flow that has been announced. As a context manager, it says at the end that all has been sent.

    One is enough for a transfer on a connection: of two with the same name, the first that ends ends both. Announced for another
    transfer, the connection is that one's, and what an older flow says later does not end it.
    """

    def __init__(self, announcer: Announcer, key: Any, transfer: str) -> None:
        self._announcer = announcer
        self._key = key
        self._transfer = transfer
        self._is_said = False

    def grow(self, to_bytes: int) -> None:
        """Say that it has so much to send for its transfer, in all: not so much more.

        Said again it changes nothing, unless the agent was started anew and has forgotten it; less than before changes nothing.

        Raises
        ------
        AnnounceError
            The agent is away or refuses it. The flow may send all the same.
        """
        self._announcer._say({"flow": self._key, "transfer": self._transfer, "size_bytes": to_bytes})
        self._is_said = True

    def ended(self) -> None:
        """Say that all that its transfer waits for has been sent, though the connection may stay.

        Needless before the connection is closed, as the agent sees that by itself.

        Raises
        ------
        AnnounceError
            The agent is away, or the connection has gone.
        """
        if self._is_said:
            self._is_said = False
            self._announcer._say({"ended": self._key, "transfer": self._transfer})

    def __enter__(self) -> "Flow":
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self.ended()
        except AnnounceError:
            # A connection that is closed already has ended anyway.
            pass


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise socket.timeout()
    return left


def _name(address: Any) -> str:
    """Write a socket's address as the agent reads it; of IPv6 with the scope as a number."""
    host, port = address[0], address[1]
    if ":" not in host:
        return "%s:%d" % (host, port)
    scope = "%%%d" % address[3] if address[3] else ""
    return "[%s%s]:%d" % (host.partition("%")[0], scope, port)
