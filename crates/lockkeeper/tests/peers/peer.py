"""redis-py's Lock or python-redis-lock, told over standard input what to do: `peer.py KIND PORT`, KIND one of LOCKS.

The commands and their answers are in mod.rs.
"""

import logging
import os
import random
import sys
import time

import redis
import redis_lock

KIND, PORT = sys.argv[1], int(sys.argv[2])
# redis-py is the stricter with decoding on: it then reads our values as text.
CLIENT = redis.Redis("127.0.0.1", PORT, decode_responses=KIND == "redis-py")
# Or it tells of every try that fails.
logging.getLogger("redis_lock").setLevel(logging.ERROR)
POLL = 0.003
PAUSE = 0.008
LIMIT = 30


class RedisPy:
    def __init__(self, name, ttl):
        self.lock = CLIENT.lock(name, timeout=ttl / 1000 if ttl else None, sleep=POLL)

    def take(self):
        taken = self.lock.acquire(blocking=False)
        assert self.lock.locked() and self.lock.owned() == taken
        return taken

    def wait(self):
        return self.lock.acquire(blocking=True, blocking_timeout=LIMIT)

    def free(self):
        token = self.lock.local.token
        try:
            self.lock.release()
        except redis.exceptions.LockNotOwnedError:
            # It forgets what it held; an extension that comes even later is to be tried as well.
            self.lock.local.token = token
            return False
        return True

    def extend(self, ms):
        try:
            return self.lock.extend(ms / 1000, replace_ttl=True)
        except redis.exceptions.LockNotOwnedError:
            return False


class PythonRedisLock:
    def __init__(self, name, ttl):
        assert name.startswith("lock:")
        self.lock = redis_lock.Lock(CLIENT, name[5:], expire=-(-ttl // 1000) or None)

    def take(self):
        return self.lock.acquire(blocking=False)

    def wait(self):
        # Not its own blocking, which sleeps until its list of signals gets an element.
        for _ in range(int(LIMIT / POLL)):
            if self.take():
                return True
            time.sleep(POLL)
        return False

    def free(self):
        try:
            self.lock.release()
        except redis_lock.NotAcquired:
            return False
        return True

    def extend(self, ms):
        try:
            self.lock.extend(expire=-(-ms // 1000))
        except redis_lock.NotAcquired:
            return False
        return True


class Signals(PythonRedisLock):
    def wait(self):
        # The library takes a timeout only without an expiry, or below it. No holder here holds longer than the expiry.
        return self.lock.acquire()


LOCKS = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock, "python-redis-lock-signals": Signals}
LOCK = LOCKS[KIND]


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


def storm(name, ttl, count, place):
    overlaps, times = 0, []
    for _ in range(count):
        lock = LOCK(name, ttl)
        assert lock.wait(), "not granted in time"
        begin, end, others = section(place)
        assert lock.free(), "lost"
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
        lock = LOCK(args[0], int(args[1]))
        taken = getattr(lock, order)()
        answer = [said(taken), time.monotonic_ns()]
    elif order == "free":
        asked = time.monotonic_ns()
        answer = [said(lock.free()), asked]
    elif order == "extend":
        answer = [said(lock.extend(int(args[0])))]
    elif order == "storm":
        answer = storm(args[0], int(args[1]), int(args[2]), args[3])
    else:
        raise ValueError(order)
    print("@", *answer, flush=True)
