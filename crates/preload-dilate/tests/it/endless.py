"""Waits that are infinite or as good as that, each in a thread; prints those that ended while the program slept for 50 ms."""

import ctypes
import queue
import select
import socket
import threading
import time

C = ctypes.CDLL(None, use_errno=True)
near, _far = socket.socketpair()
polls, epoll = (select.poll(), select.poll()), select.epoll()
for poll in polls:
    poll.register(near, select.POLLIN)
epoll.register(near, select.EPOLLIN)
locked = threading.Lock()
locked.acquire()
longest = threading.TIMEOUT_MAX
memory = ctypes.create_string_buffer(64)
assert C.sem_init(memory, 0, 0) == 0
far_future = (ctypes.c_long * 2)(2**62, 999_999_999)

WAITS = {
    "select": lambda: select.select([near], [], []),
    "select_long": lambda: select.select([near], [], [], 1e9),
    "poll": lambda: polls[0].poll(),
    "poll_long": lambda: polls[1].poll(2**31 - 1),
    "epoll": lambda: epoll.poll(),
    "event_long": lambda: threading.Event().wait(longest),
    "lock": lambda: locked.acquire(),
    "lock_long": lambda: locked.acquire(timeout=longest),
    "queue_long": lambda: queue.Queue().get(timeout=1e9),
    "sleep_long": lambda: time.sleep(1e9),
    "receive": lambda: near.recv(1),
    "semaphore_long": lambda: C.sem_timedwait(memory, far_future),
    "nanosleep_long": lambda: C.nanosleep(far_future, None),
    "clock_nanosleep_long": lambda: C.clock_nanosleep(1, 1, far_future, None),
}
ended = []


def run(name, wait):
    """Notes the end of a wait."""
    wait()
    ended.append(name)


for item in WAITS.items():
    threading.Thread(target=run, args=item, daemon=True).start()
time.sleep(0.05)
print(len(WAITS), ended)
