"""kazoo's locks, told over standard input what to do: `peer.py KIND PORT`, KIND one of LOCKS.

The commands and their answers are in ../mod.rs; keys are paths.
"""

import logging
import os
import random
import sys
import time

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

KIND, PORT = sys.argv[1], int(sys.argv[2])
logging.disable(logging.ERROR)
CLIENT = KazooClient(f"127.0.0.1:{PORT}", timeout=20)
CLIENT.start()
PAUSE = 0.008
LIMIT = 30
LOCKS = {
    # Sees only what kazoo writes.
    "kazoo": lambda path: CLIENT.Lock(path, "kazoo"),
    # Sees Curator's nodes too.
    "kazoo for curator": lambda path: CLIENT.Lock(path, "kazoo", extra_lock_patterns=["lock-"]),
    "kazoo's write": lambda path: CLIENT.WriteLock(path, "kazoo"),
    "kazoo's read": lambda path: CLIENT.ReadLock(path, "kazoo"),
}


def wait(lock):
    try:
        return lock.acquire(timeout=LIMIT)
    except LockTimeout:
        return False


def section(place):
    """Begin, end and how often another client was there."""
    inside, count = os.path.join(place, "inside"), os.path.join(place, "count")
    begin, overlaps = time.monotonic_ns(), 0
    try:
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        overlaps = 1
    with open(count) as file:
        n = int(file.read() or 0)
    time.sleep(0.0002)
    with open(count, "w") as file:
        file.write(str(n + 1))
    try:
        os.unlink(inside)
    except FileNotFoundError:
        overlaps = 1
    return begin, time.monotonic_ns(), overlaps


def storm(path, count, place):
    overlaps, times = 0, []
    for _ in range(count):
        lock = LOCKS[KIND](path)
        assert wait(lock), "not granted in time"
        begin, end, others = section(place)
        lock.release()
        overlaps += others
        times += [begin, end]
        time.sleep(random.uniform(0, PAUSE))
    return [overlaps, *times]


def said(word):
    return "yes" if word else "no"


lock = None
for line in sys.stdin:
    order, *args = line.split()
    if order == "take" or order == "wait":
        lock = LOCKS[KIND](args[0])
        taken = lock.acquire(blocking=False) if order == "take" else wait(lock)
        answer = [said(taken), time.monotonic_ns()]
    elif order == "free":
        asked = time.monotonic_ns()
        answer = [said(lock.release()), asked]
    elif order == "storm":
        answer = storm(args[0], int(args[2]), args[3])
    else:
        raise ValueError(order)
    print("@", *answer, flush=True)
