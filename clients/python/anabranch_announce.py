"""Announce a program's flows to this host's ``anabranch shuffle agent``, so that the tasks that wait for the flows finish early.

For each TCP connection over which it sends, a program names the flow's *coflow* and states the bytes that the connection will
send. A coflow is the set of flows that a task waits for together; all its flows, on any host, share its name. Announce a flow
when its data is ready, again when there is more data, and when all of it has been sent. A program that only receives announces
nothing::

    from anabranch_announce import AnnounceError, Announcer

    agent = Announcer()  # ANABRANCH_SHUFFLE_SOCKET; one for the whole program
    try:
        flow = agent.announce(sock, "job-7", len(partition))
    except AnnounceError as error:
        print("goes unannounced:", error)  # and without a limit: nothing is lost but the stage's early end
    sock.sendall(partition)

Announcing hardly delays data. A call takes at most ``timeout`` seconds and then fails. The only exception of a call is
:class:`AnnounceError`. After a timeout all other calls fail at once for one second (``RETRY``). Threads do not wait for each
other. Without an agent a call fails at once. The next call reconnects, also after a restart of the agent or a fork of this
process.

A restarted agent has no record of flows: ``grow`` with the same size announces a flow again. For a connection's second or later
coflow, the agent then also counts the bytes of the earlier coflows. It therefore takes the flow for nearly complete until the
flow ends. An event loop that must never wait can call ``await asyncio.to_thread(agent.announce, writer, "job-7", size)``.

The module is one file without dependencies, for Python 3.8 and later, on Linux. Copy the file, or install its folder.
"""

import json
import operator
import os
import socket
import time
from typing import Any, List, Optional, Tuple

__all__ = ["RETRY", "SOCKET_VARIABLE", "TIMEOUT", "AnnounceError", "Announcer", "Flow"]

SOCKET_VARIABLE = "ANABRANCH_SHUFFLE_SOCKET"
"""Environment variable with the path of the socket on which the agent listens (its ``--listen``)."""

TIMEOUT = 0.1
"""Default time limit of a call, in seconds."""

RETRY = 1.0
"""Time after a timed-out call in which further calls fail at once, without a request to the agent; in seconds."""

_NAME_BYTES_MAX = 128
_TIMEOUT_MAX = 86_400
_REPLY_BYTES_MAX = 8_192
# Maximum number of idle connections. Several connections exist only if threads have called at the
# same time.
_IDLE_MAX = 4


class AnnounceError(Exception):
    """The reason, in one line, why a flow was not announced. The flow's data may be sent nevertheless."""

    # Whether the agent may have received and accepted the announcement.
    _may_be_heard = False


class Announcer:
    """Connection to this host's agent, for all threads of a program. Connects when the first flow is announced.

    Parameters
    ----------
    path : str, optional
        Path of the agent's socket. Default: the value of ``ANABRANCH_SHUFFLE_SOCKET``.
    timeout : float
        Time limit of a call, in seconds: 0 to 86400.

    Raises
    ------
    TypeError, ValueError
        The path or the timeout is invalid. No other call raises these exceptions.
    """

    def __init__(self, path: Optional[str] = None, timeout: float = TIMEOUT) -> None:
        self._path = os.fsdecode(path) if path is not None else os.environ.get(SOCKET_VARIABLE)
        self._timeout = float(timeout)
        if not 0 <= self._timeout <= _TIMEOUT_MAX:
            raise ValueError("timeout %r: must be 0 to %d seconds" % (timeout, _TIMEOUT_MAX))
        # Time until which an agent that did not answer in time is not called.
        self._away_until = float("-inf")
        # Connections that no call uses, with the process that opened each. A list's append and pop
        # are atomic between threads.
        self._idle: List[Tuple[int, socket.socket]] = []

    def announce(self, sock: Any, coflow: str, size_bytes: int) -> "Flow":
        """Announce the total bytes that a connected TCP socket sends for a coflow.

        Bytes that the connection has already sent count towards its first coflow, and not towards later coflows.

        Parameters
        ----------
        sock : socket.socket, asyncio transport or asyncio.StreamWriter
            The connection.
        coflow : str
            The coflow's name: 1 to 128 printable ASCII characters without blanks.
        size_bytes : int
            Total bytes that the connection sends for the coflow.

        Returns
        -------
        Flow
            The announced flow. As a context manager, it announces the flow's end.

        Raises
        ------
        AnnounceError
            The agent is unreachable, or refuses the announcement. The flow may send its data nevertheless.
        """
        flow = self.flow(sock, coflow)
        flow.grow(size_bytes)
        return flow

    def flow(self, sock: Any, coflow: str) -> "Flow":
        """Create the flow of a connection. The flow is announced when it grows.

        Raises
        ------
        AnnounceError
            The socket is not a connected TCP socket, or the name is not a coflow's name.
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
        """Close the idle connections to the agent. Flows stay announced, and the next call reconnects."""
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
                    # The agent may have been restarted since the last call. A silent agent has
                    # used up the time limit.
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
            # Lines of a forked child on this connection would mix with lines of its parent.
            if process == os.getpid():
                return idle
            idle.close()


class Flow:
    """An announced flow. As a context manager, it announces at the end that all data for the coflow has been sent.

    Keep one flow for each coflow on a connection. Of two flows with the same coflow, the first that ends ends both. After an
    announcement for another coflow, the connection belongs to the new coflow, and an older flow no longer ends it.
    """

    def __init__(self, announcer: Announcer, key: Any, coflow: str) -> None:
        self._announcer = announcer
        self._key = key
        self._coflow = coflow
        # Whether the agent knows the flow, or may know it because the agent may have received a
        # call without answering.
        self._is_said = False

    def grow(self, to_bytes: int) -> None:
        """Announce that the flow sends ``to_bytes`` bytes in total for its coflow.

        A repetition changes nothing, unless the agent was restarted and has lost its record of the flow. A smaller size changes
        nothing.

        Raises
        ------
        AnnounceError
            The agent is unreachable, or refuses the announcement. The flow may send its data nevertheless.
        """
        try:
            # Accepts all integer types, including numpy's.
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
        """Announce that all data for the coflow has been sent, although the connection may stay open.

        Not needed before the connection is closed, because the agent detects the close by itself.

        Raises
        ------
        AnnounceError
            The agent is unreachable, or the connection does not exist any more.
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
            # A closed connection ends the flow anyway.
            pass


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A connect to a full queue fails at once instead of waiting.
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
    """Send one line, and return the agent's answer."""
    connection.settimeout(_left(deadline))
    # Without this flag, a closed connection could end this program by SIGPIPE.
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
    """Format a socket's address for the agent. An IPv6 scope is a number."""
    host, port = address[0], address[1]
    if ":" not in host:
        return "%s:%d" % (host, port)
    scope = "%%%d" % address[3] if address[3] else ""
    return "[%s%s]:%d" % (host.partition("%")[0], scope, port)
