"""Announce a program's flows to this host's ``anabranch shuffle agent``, so that the tasks that wait for them end early.

For each TCP connection over which it sends, a program names the *coflow* (the flows that a task waits for together; all of
them, on any host, have its name) and tells how much the connection has to move. Announce when the data is there; announce again
when there is more, and when all of it has been sent. A program that only receives announces nothing::

    from anabranch_announce import AnnounceError, Announcer

    agent = Announcer()  # ANABRANCH_SHUFFLE_SOCKET; one for the whole program
    try:
        flow = agent.announce(sock, "job-7", len(partition))
    except AnnounceError as error:
        print("goes unannounced:", error)  # and without a limit: nothing is lost but the stage's early end
    sock.sendall(partition)

Announcing hardly holds up data: a call takes at most ``timeout`` seconds and fails then, with :class:`AnnounceError` and nothing else,
and for a second after it (``RETRY``) all others fail at once; threads do not wait for each other. Without an agent a call fails at
once. The next call connects anew, also after the agent was started again or this process was forked. An agent that is started
anew knows nothing of flows: ``grow``, with the same size, announces a flow again. For a connection's second or later coflow it then
also counts the bytes of those before, so that it takes the flow for nearly through until it ends. In an event loop that must
not wait at all, ``await asyncio.to_thread(agent.announce, writer, "job-7", size)``.

One file without dependencies, for Python 3.8 and later, on Linux: copy it, or install the folder that it is in.
"""

import json
import operator
import os
import socket
import time
from typing import Any, List, Optional, Tuple

__all__ = ["RETRY", "SOCKET_VARIABLE", "TIMEOUT", "AnnounceError", "Announcer", "Flow"]

SOCKET_VARIABLE = "ANABRANCH_SHUFFLE_SOCKET"
"""The environment's word for where the agent listens (its ``--listen``)."""

TIMEOUT = 0.1
"""The longest that a call takes unless told otherwise, in seconds."""

RETRY = 1.0
"""After a call that took all of its time, for how many seconds others do not ask the agent but fail at once."""

_NAME_BYTES_MAX = 128
_TIMEOUT_MAX = 86_400
_REPLY_BYTES_MAX = 8_192
# Maximum number of idle connections. More than one is idle only after threads have announced
# at the same time.
_IDLE_MAX = 4


class AnnounceError(Exception):
    """Why a flow has not been announced, in one line. Its data may go all the same."""

    # Whether the agent may have heard and taken what was said.
    _may_be_heard = False


class Announcer:
    """A way to this host's agent, for all threads of a program. It connects when the first flow is announced.

    Parameters
    ----------
    path : str, optional
        Where the agent listens; what ``ANABRANCH_SHUFFLE_SOCKET`` says otherwise.
    timeout : float
        The longest that a call takes, in seconds: 0 to 86400.

    Raises
    ------
    TypeError, ValueError
        The path is none, or the timeout. No other call raises these.
    """

    def __init__(self, path: Optional[str] = None, timeout: float = TIMEOUT) -> None:
        self._path = os.fsdecode(path) if path is not None else os.environ.get(SOCKET_VARIABLE)
        self._timeout = float(timeout)
        if not 0 <= self._timeout <= _TIMEOUT_MAX:
            raise ValueError("timeout %r: must be 0 to %d seconds" % (timeout, _TIMEOUT_MAX))
        # Until when an agent that did not answer in time is not asked.
        self._away_until = float("-inf")
        # A list's append and pop are whole under threads.
        self._idle: List[Tuple[int, socket.socket]] = []

    def announce(self, sock: Any, coflow: str, size_bytes: int) -> "Flow":
        """Say that a connected TCP socket has so much to send for a coflow, in all.

        What the connection has moved before counts if this is its first coflow, and does not for later ones.

        Parameters
        ----------
        sock : socket.socket, asyncio transport or asyncio.StreamWriter
            The connection.
        coflow : str
            The coflow's name: 1 to 128 printable ASCII characters without blanks.
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
        flow = self.flow(sock, coflow)
        flow.grow(size_bytes)
        return flow

    def flow(self, sock: Any, coflow: str) -> "Flow":
        """Make the flow of a connection, of which nothing is said until it grows.

        Raises
        ------
        AnnounceError
            It is no connected TCP socket, or the name cannot be one.
        """
        if not isinstance(coflow, str):
            raise AnnounceError("a coflow's name is a str, not %s" % type(coflow).__name__)
        name_bytes = len(coflow.encode("utf-8", "surrogatepass"))
        if name_bytes > _NAME_BYTES_MAX:
            raise AnnounceError(
                "a coflow's name of %d bytes: the agent takes at most %d" % (name_bytes, _NAME_BYTES_MAX)
            )
        if hasattr(sock, "get_extra_info"):
            sock = sock.get_extra_info("socket")
        try:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                raise OSError("neither IPv4 nor IPv6")
            key = {"local": _name(sock.getsockname()), "remote": _name(sock.getpeername())}
        except (OSError, AttributeError, TypeError) as error:
            raise AnnounceError("not a connected TCP socket: %s" % error) from error
        return Flow(self, key, coflow)

    def close(self) -> None:
        """Close the connection to the agent, which changes nothing for flows. The next call makes one."""
        while True:
            idle = self._take_idle()
            if idle is None:
                return
            idle.close()

    def _say(self, said: Any) -> None:
        line = json.dumps(said).encode("ascii") + b"\n"
        if not self._path:
            raise AnnounceError(
                "no shuffle agent: set %s to the path that its --listen says" % SOCKET_VARIABLE
            )
        now = time.monotonic()
        if now < self._away_until:
            why = "did not answer in time: not asked for %d s" % RETRY
            raise AnnounceError("shuffle agent at %s: %s" % (self._path, why))
        deadline = now + self._timeout
        idle = self._take_idle()
        may_be_heard = False
        try:
            while True:
                is_old, connection = idle is not None, idle or _connect(self._path)
                idle, may_be_heard = None, True
                try:
                    answer = json.loads(_exchange(connection, line, deadline))
                    is_ok = answer["ok"]
                    break
                except BaseException as error:
                    connection.close()
                    # The agent may have restarted since; a silent one has used up its time.
                    if not (is_old and isinstance(error, Exception) and time.monotonic() < deadline):
                        raise
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            failed = AnnounceError("shuffle agent at %s: %s" % (self._path, error))
            if isinstance(error, socket.timeout):
                self._away_until = time.monotonic() + RETRY
                failed = AnnounceError("shuffle agent at %s: did not answer in time" % self._path)
            failed._may_be_heard = may_be_heard
            raise failed from error
        if len(self._idle) < _IDLE_MAX:
            self._idle.append((os.getpid(), connection))
        else:
            connection.close()
        if is_ok is not True:
            why = answer.get("error") or "for no stated reason"
            raise AnnounceError("refused by the shuffle agent: %s" % why)

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


class Flow:
    """A flow that has been announced. As a context manager, it says at the end that all has been sent.

    One is enough for a coflow on a connection: of two with the same name, the first that ends ends both. Announced for another
    coflow, the connection is that one's, and what an older flow says later does not end it.
    """

    def __init__(self, announcer: Announcer, key: Any, coflow: str) -> None:
        self._announcer = announcer
        self._key = key
        self._coflow = coflow
        # Whether the agent knows of it, or may: one that did not answer may have heard all the same.
        self._is_said = False

    def grow(self, to_bytes: int) -> None:
        """Say that it has so much to send for its coflow, in all: not so much more.

        Said again it changes nothing, unless the agent was started anew and has forgotten it; less than before changes nothing.

        Raises
        ------
        AnnounceError
            The agent is away or refuses it. The flow may send all the same.
        """
        try:
            # Any integer type, numpy's included.
            size_bytes = operator.index(to_bytes)
        except TypeError as error:
            raise AnnounceError("a size is a whole number, not %s" % type(to_bytes).__name__) from error
        if not 0 <= size_bytes < 2**64:
            raise AnnounceError("a size must be 0 to 2**64 - 1 bytes")
        try:
            self._announcer._say({"flow": self._key, "coflow": self._coflow, "size_bytes": size_bytes})
        except AnnounceError as error:
            self._is_said = self._is_said or error._may_be_heard
            raise
        self._is_said = True

    def ended(self) -> None:
        """Say that all that it has for its coflow has been sent, though the connection may stay.

        Needless before the connection is closed, as the agent sees that by itself.

        Raises
        ------
        AnnounceError
            The agent is away, or the connection has gone.
        """
        if self._is_said:
            self._is_said = False
            self._announcer._say({"ended": self._key, "coflow": self._coflow})

    def __enter__(self) -> "Flow":
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self.ended()
        except AnnounceError:
            # A connection that is closed already has ended anyway.
            pass


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # It does not wait: it is refused, where too many already do.
        connection.setblocking(False)
        connection.connect(path)
    except BlockingIOError:
        connection.close()
        raise OSError("has too many programs waiting") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _exchange(connection: socket.socket, line: bytes, deadline: float) -> bytes:
    """Say one line, and hear what is answered."""
    connection.settimeout(_left(deadline))
    # A peer that has gone raises no signal in this program.
    connection.sendall(line, socket.MSG_NOSIGNAL)
    reply = b""
    while not reply.endswith(b"\n"):
        connection.settimeout(_left(deadline))
        chunk = connection.recv(4_096)
        if not chunk:
            raise OSError("has closed the connection")
        reply += chunk
        if len(reply) > _REPLY_BYTES_MAX:
            raise OSError("its reply has no end")
    return reply


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
