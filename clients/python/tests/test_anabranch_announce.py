"""Tests with a fake agent that sends prescribed answers. ``crates/cli/tests/it/shuffle.rs`` has tests with a real agent.

Run by ``python3 -m unittest discover clients/python/tests``.
"""

import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from anabranch_announce import SOCKET_VARIABLE, AnnounceError, Announcer, _name

OK = b'{"ok":true}\n'


class Agent:
    """Answers every line of every connection with ``reply``, and keeps the lines with their connections' numbers."""

    def __init__(self, path, reply=OK, after=0):
        self.lines = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(16)
        self.streams = []
        self.reply = reply
        self.barrier = threading.Barrier(after) if after else None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                stream, _ = self.listener.accept()
            except OSError:
                return
            self.streams.append(stream)
            number = len(self.streams) - 1
            threading.Thread(target=self._converse, args=(number, stream), daemon=True).start()

    def _converse(self, number, stream):
        for line in stream.makefile("rb"):
            self.lines.append((number, json.loads(line)))
            if self.barrier:
                self.barrier.wait(20)
            stream.sendall(self.reply)

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for stream in self.streams:
            stream.shutdown(socket.SHUT_RDWR)


def pair(host="127.0.0.1", family=socket.AF_INET):
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        stream = socket.create_connection(("127.0.0.1", listener.getsockname()[1]))
        return stream, listener.accept()[0]


class Announcing(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "agent.sock")
        self.stream, self.accepted = pair()
        self.key = {
            "local": "127.0.0.1:%d" % self.stream.getsockname()[1],
            "remote": "127.0.0.1:%d" % self.stream.getpeername()[1],
        }

    def tearDown(self):
        self.stream.close()
        self.accepted.close()
        self.folder.cleanup()

    def test_flow_uses_one_connection_until_its_end(self):
        agent = Agent(self.path)
        os.environ[SOCKET_VARIABLE] = self.path
        self.addCleanup(os.environ.pop, SOCKET_VARIABLE)
        announcer = Announcer()
        flow = announcer.announce(self.stream, 'job-"7\\', 1_000_000)
        flow.grow(2**64 - 1)
        flow.ended()
        flow.ended()
        with announcer.announce(self.stream, "b", 60_000):
            pass
        told = [
            {"flow": self.key, "coflow": 'job-"7\\', "size_bytes": 1_000_000},
            {"flow": self.key, "coflow": 'job-"7\\', "size_bytes": 2**64 - 1},
            {"ended": self.key, "coflow": 'job-"7\\'},
            {"flow": self.key, "coflow": "b", "size_bytes": 60_000},
            {"ended": self.key, "coflow": "b"},
        ]
        self.assertEqual(agent.lines, [(0, line) for line in told])

    def test_asyncio_transports_and_writers_are_accepted(self):
        agent = Agent(self.path)
        announcer = Announcer(self.path)

        async def talk():
            _, writer = await asyncio.open_connection(sock=self.stream)
            announcer.announce(writer, "t", 1)
            announcer.announce(writer.transport, "t", 2)
            writer.close()

        asyncio.run(talk())
        self.assertEqual([line["flow"] for _, line in agent.lines], [self.key, self.key])

    def test_ipv6_addresses_have_brackets_and_numeric_scopes(self):
        agent = Agent(self.path)
        stream, accepted = pair("::", socket.AF_INET6)
        with stream, accepted:
            port = accepted.getsockname()[1]
            Announcer(self.path).announce(accepted, "t", 1)
        self.assertEqual(agent.lines[0][1]["flow"]["local"], "[::ffff:127.0.0.1]:%d" % port)
        self.assertEqual(_name(("fe80::1%eth0", 9, 0, 4)), "[fe80::1%4]:9")
        self.assertEqual(_name(("fd00::1", 9, 0, 0)), "[fd00::1]:9")

    def test_only_connected_tcp_sockets_are_accepted(self):
        announcer = Announcer("nowhere")
        for sock in (*socket.socketpair(), socket.socket(), None, 7):
            with self.assertRaisesRegex(AnnounceError, "not a connected TCP socket"):
                announcer.announce(sock, "t", 1)

    def test_calls_fail_only_while_the_agent_is_absent(self):
        with self.assertRaisesRegex(AnnounceError, "set ANABRANCH_SHUFFLE_SOCKET"):
            Announcer().announce(self.stream, "t", 1)
        announcer = Announcer(self.path)
        with self.assertRaisesRegex(AnnounceError, "agent.sock"):
            announcer.announce(self.stream, "t", 1)
        first = Agent(self.path)
        flow = announcer.announce(self.stream, "t", 1)
        first.stop()
        os.unlink(self.path)
        with self.assertRaises(AnnounceError):
            flow.grow(2)
        second = Agent(self.path)
        flow.grow(3)
        # The agent restarts during a connection: the call connects once more.
        second.stop()
        os.unlink(self.path)
        third = Agent(self.path)
        flow.grow(4)
        self.assertEqual([line["size_bytes"] for _, line in third.lines], [4])

    def test_refusal_has_the_reason_of_the_agent(self):
        agent = Agent(self.path, b'{"ok":false,"error":"no room"}\n')
        announcer = Announcer(self.path)
        for _ in range(2):
            with self.assertRaisesRegex(AnnounceError, "no room"):
                announcer.announce(self.stream, "t", 1)
        self.assertEqual([number for number, _ in agent.lines], [0, 0])

    def test_refused_flow_is_not_ended_unlike_unanswered_one(self):
        no_reason = "refused by the shuffle agent: for no stated reason"
        for reply, says, is_ended in ((b"nonsense\n", ".", True), (b'{"ok":false}\n', no_reason, False)):
            agent = Agent(self.path, reply)
            with Announcer(self.path, timeout=20).flow(self.stream, "t") as flow:
                with self.assertRaisesRegex(AnnounceError, says):
                    flow.grow(1)
            os.unlink(self.path)
            self.assertEqual(["ended" in line for _, line in agent.lines], [False, True][: 1 + is_ended])

    def test_connection_with_an_invalid_answer_is_closed(self):
        agent = Agent(self.path, b"1\n")
        announcer = Announcer(self.path, timeout=20)
        for _ in range(2):
            with self.assertRaises(AnnounceError):
                announcer.announce(self.stream, "t", 1)
        self.assertEqual([number for number, _ in agent.lines], [0, 1])

    def test_missing_or_invalid_answer_is_a_timely_error(self):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        listener.listen(0)
        announcer = Announcer(self.path, timeout=0.05)
        for says in ("in time$", "has too many programs waiting$"):
            # A second later.
            announcer._away_until = 0
            with self.assertRaisesRegex(AnnounceError, says):
                announcer.announce(self.stream, "t", 1)
        listener.close()
        for reply in (b"x", b"{}\n", b"1\n", b"x" * 10_000):
            os.unlink(self.path)
            Agent(self.path, reply)
            announcer._away_until = 0
            with self.assertRaises(AnnounceError):
                announcer.announce(self.stream, "t", 1)
        announcer.flow(self.stream, "a" * 128)
        with self.assertRaisesRegex(AnnounceError, "name of 129 bytes: the agent takes at most 128"):
            announcer.announce(self.stream, "a" * 129, 1)

    def test_silent_agent_is_not_asked_for_one_second(self):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen(16)
            announcer = Announcer(self.path, timeout=0.05)
            begun = time.monotonic()
            for says in ("in time$", "not asked for 1 s", "not asked for 1 s"):
                with self.assertRaisesRegex(AnnounceError, says):
                    announcer.announce(self.stream, "t", 1)
                self.assertGreaterEqual(announcer._away_until, begun + 1)
                # A busy machine may need longer than the second for the next call.
                announcer._away_until += 60
            listener.setblocking(False)
            listener.accept()[0].close()
            with self.assertRaises(BlockingIOError):
                listener.accept()
            announcer._away_until = time.monotonic()
            with self.assertRaisesRegex(AnnounceError, "in time$"):
                announcer.announce(self.stream, "t", 1)
            listener.accept()[0].close()

    def test_invalid_sizes_and_names_are_announce_errors(self):
        class Count:
            def __index__(self):
                return 7

        agent = Agent(self.path)
        announcer = Announcer(self.path.encode())
        announcer.announce(self.stream, "t", Count())
        self.assertEqual(agent.lines[0][1]["size_bytes"], 7)
        for size in (1.5, "1", None, -1, 2**64, 10**5_000, -(10**5_000)):
            with self.assertRaisesRegex(AnnounceError, "a size "):
                announcer.announce(self.stream, "t", size)
        for name in (b"t", None, 7, Path("t")):
            with self.assertRaisesRegex(AnnounceError, "name is a str, not "):
                announcer.announce(self.stream, name, 1)
        announcer.announce(self.stream, "\udc80", 1)
        os.unlink(self.path)
        Agent(self.path, b"[" * 8_000 + b"\n")
        with self.assertRaises(AnnounceError):
            Announcer(self.path).announce(self.stream, "t", 1)
        with self.assertRaises(AnnounceError):
            Announcer("x" * 200 + "\0").announce(self.stream, "t", 1)

    def test_constructor_refuses_invalid_timeouts_and_paths(self):
        for timeout in (-0.1, 86_401, float("inf"), float("nan")):
            with self.assertRaises(ValueError):
                Announcer(self.path, timeout=timeout)
        for path, timeout in ((self.path, None), (7, 1)):
            with self.assertRaises(TypeError):
                Announcer(path, timeout=timeout)
        Announcer(self.path, timeout=86_400)

    def test_example_of_the_documentation_runs(self):
        page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../docs/shuffle.md")
        with open(page, encoding="utf-8") as file:
            shown = file.read().split("```python\n")[1].split("```")[0]
        agent = Agent(self.path)
        os.environ[SOCKET_VARIABLE] = self.path
        self.addCleanup(os.environ.pop, SOCKET_VARIABLE)
        names = {}
        exec(shown, names)
        with socket.create_server(("127.0.0.1", 0)) as reducer:
            names["push"](reducer.getsockname(), bytes(60_000))
        self.assertEqual([line["size_bytes"] for _, line in agent.lines], [60_000])

    def test_threads_do_not_wait_for_each_other(self):
        # The agent answers no thread before all three threads have sent their announcements.
        agent = Agent(self.path, after=3)
        announcer = Announcer(self.path, timeout=20)
        errors = []

        def announce():
            try:
                announcer.announce(self.stream, "t", 1)
            except AnnounceError as error:
                errors.append(error)

        threads = [threading.Thread(target=announce) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((errors, len(agent.streams)), ([], 3))

    def test_stopped_agent_causes_no_signal(self):
        agent = Agent(self.path)
        script = (
            "import signal, socket, sys\n"
            "from anabranch_announce import AnnounceError, Announcer\n"
            "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
            "stream = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
            "flow = Announcer(timeout=20).announce(stream, 't', 1)\n"
            "print(flush=True)\n"
            "input()\n"
            "try: flow.grow(2)\n"
            "except AnnounceError: print('unharmed')\n"
        )
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
        with socket.create_server(("127.0.0.1", 0)) as receiver, subprocess.Popen(
            [sys.executable, "-c", script, str(receiver.getsockname()[1])],
            env={**os.environ, "PYTHONPATH": folder, SOCKET_VARIABLE: self.path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child:
            child.stdout.readline()
            agent.stop()
            said, _ = child.communicate(b"\n", timeout=60)
        self.assertEqual((child.returncode, said), (0, b"unharmed\n"))

    def test_forked_child_opens_a_separate_connection(self):
        agent = Agent(self.path)
        announcer = Announcer(self.path, timeout=20)
        flow = announcer.announce(self.stream, "t", 1)
        child = multiprocessing.get_context("fork").Process(target=flow.grow, args=(2,))
        child.start()
        child.join()
        flow.grow(3)
        announcer.close()
        self.assertEqual(child.exitcode, 0)
        told = [(number, line["size_bytes"]) for number, line in agent.lines]
        self.assertEqual(told, [(0, 1), (1, 2), (0, 3)])


if __name__ == "__main__":
    unittest.main()
