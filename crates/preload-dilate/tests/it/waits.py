"""Waits of Python and of the C library, each of WAIT seconds; prints each one's name and how long it took, in microseconds."""

import asyncio
import ctypes
import os
import queue
import select
import signal
import socket
import struct
import sys
import threading
import time

WAIT = int(sys.argv[1]) / 1_000
C = ctypes.CDLL(None, use_errno=True)


class Timespec(ctypes.Structure):
    """`struct timespec`."""

    _fields_ = [("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long)]


def spec(seconds):
    """A time as the C library takes it."""
    return Timespec(int(seconds), int(seconds % 1 * 1e9))


def at(clock):
    """The end of a wait by a clock."""
    return ctypes.byref(spec(time.clock_gettime(clock) + WAIT))


def took(name, wait):
    """Runs one wait."""
    begun = time.monotonic()
    wait()
    print(name, round((time.monotonic() - begun) * 1e6))


def expect(wait, *errors):
    """A wait that ends with an exception."""

    def run():
        try:
            wait()
        except errors:
            return
        raise AssertionError("it should time out")

    return run


def with_signal(start):
    """A wait for a signal that a timer sends."""

    def run():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        start()
        signal.sigwait({signal.SIGALRM})

    return run


def timer_fd(clock, is_absolute):
    """A wait for a timer's descriptor."""

    def run():
        fd = C.timerfd_create(clock, 0)
        assert fd >= 0
        first = time.clock_gettime(clock) + WAIT if is_absolute else WAIT
        new = (Timespec * 2)(spec(0), spec(first))
        assert C.timerfd_settime(fd, int(is_absolute), ctypes.byref(new), None) == 0
        os.read(fd, 8)
        os.close(fd)

    return run


def semaphore(function, *arguments):
    """A wait for a semaphore that nobody posts."""

    def run():
        memory = ctypes.create_string_buffer(64)
        assert C.sem_init(memory, 0, 0) == 0
        assert function(memory, *arguments) == -1

    return run


def mutex(function, *arguments):
    """A wait for a mutex that is locked."""

    def run():
        memory = ctypes.create_string_buffer(64)
        assert C.pthread_mutex_init(memory, None) == 0
        assert C.pthread_mutex_lock(memory) == 0
        assert function(memory, *arguments) == 110

    return run


def condition(clock):
    """A wait for a condition variable of a clock that nobody signals."""

    def run():
        attribute = ctypes.create_string_buffer(16)
        memory, lock = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
        assert C.pthread_condattr_init(attribute) == 0
        assert C.pthread_condattr_setclock(attribute, clock) == 0
        assert C.pthread_cond_init(memory, attribute) == 0
        assert C.pthread_mutex_init(lock, None) == 0
        assert C.pthread_mutex_lock(lock) == 0
        assert C.pthread_cond_timedwait(memory, lock, at(clock)) == 110

    return run


near, far = socket.socketpair()
near.settimeout(WAIT)
plain, _other = socket.socketpair()
plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(WAIT), int(WAIT % 1 * 1e6)))
locked = threading.Lock()
locked.acquire()
epoll = select.epoll()
poll = select.poll()
poll.register(near, select.POLLIN)
done = threading.Event()
sets = ctypes.create_string_buffer(128)

took("sleep", lambda: time.sleep(WAIT))
took("event", lambda: threading.Event().wait(WAIT))
took("lock", lambda: locked.acquire(timeout=WAIT))
took("queue", expect(lambda: queue.Queue().get(timeout=WAIT), queue.Empty))
took("timer", lambda: (threading.Timer(WAIT, done.set).start(), done.wait()))
took("select", lambda: select.select([near], [], [], WAIT))
took("poll", lambda: poll.poll(WAIT * 1_000))
took("epoll", lambda: epoll.poll(WAIT))
took("socket_timeout", expect(lambda: near.recv(1), TimeoutError))
took("so_rcvtimeo", expect(lambda: plain.recv(1), BlockingIOError))
took("asyncio", lambda: asyncio.run(asyncio.sleep(WAIT)))
took("sigtimedwait", lambda: signal.sigtimedwait({signal.SIGUSR1}, WAIT))
took("setitimer", with_signal(lambda: signal.setitimer(signal.ITIMER_REAL, WAIT)))
took("usleep", lambda: C.usleep(int(WAIT * 1e6)))
took("nanosleep", lambda: C.nanosleep(ctypes.byref(spec(WAIT)), None))
for clock in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME):
    took(f"clock_nanosleep_{clock}", lambda clock=clock: C.clock_nanosleep(clock, 1, at(clock), None))
    took(f"timerfd_{clock}", timer_fd(clock, False))
    took(f"timerfd_until_{clock}", timer_fd(clock, True))
took("pselect", lambda: C.pselect(0, sets, sets, sets, ctypes.byref(spec(WAIT)), None))
took("ppoll", lambda: C.ppoll(None, 0, ctypes.byref(spec(WAIT)), None))
took("sem_timedwait", lambda: semaphore(C.sem_timedwait, at(time.CLOCK_REALTIME))())
took("sem_clockwait", lambda: semaphore(C.sem_clockwait, time.CLOCK_MONOTONIC, at(time.CLOCK_MONOTONIC))())
took("mutex_timedlock", lambda: mutex(C.pthread_mutex_timedlock, at(time.CLOCK_REALTIME))())
took("mutex_clocklock", lambda: mutex(C.pthread_mutex_clocklock, time.CLOCK_MONOTONIC, at(time.CLOCK_MONOTONIC))())
took("condition_realtime", condition(time.CLOCK_REALTIME))
took("condition_monotonic", condition(time.CLOCK_MONOTONIC))
for name in ("CLOCK_REALTIME", "CLOCK_BOOTTIME", "CLOCK_MONOTONIC_RAW", "CLOCK_TAI"):
    clock = getattr(time, name)
    begun = time.clock_gettime(clock)
    time.sleep(WAIT)
    print(name.lower(), round((time.clock_gettime(clock) - begun) * 1e6))
