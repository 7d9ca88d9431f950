"""A plain user of GET_LOCK, or ShedLock's statements by hand, over PyMySQL: `mysql.py get_lock|shedlock PORT ZONE`.

The commands and their answers are those of mod.rs.
"""

import os
import random
import sys
import time
import uuid

import pymysql

KIND, PORT, ZONE = sys.argv[1], int(sys.argv[2]), sys.argv[3]
DB = pymysql.connect(host="127.0.0.1", port=PORT, user="root", database="test", autocommit=True)
POLL = 0.003
PAUSE = 0.008
LIMIT = 30
NOW = "UTC_TIMESTAMP(3)"
UNTIL = f"TIMESTAMPADD(MICROSECOND, %s, {NOW})"


def run(text, *args):
    with DB.cursor() as cursor:
        return cursor.execute(text, args), cursor.fetchone()


if ZONE:
    run("SET SESSION time_zone = %s", ZONE)


class GetLock:
    def __init__(self, name, ttl):
        self.name = name

    def take(self):
        return run("SELECT GET_LOCK(%s, 0)", self.name)[1][0] == 1

    def wait(self):
        return run("SELECT GET_LOCK(%s, %s)", self.name, LIMIT)[1][0] == 1

    def free(self):
        return run("SELECT RELEASE_LOCK(%s)", self.name)[1][0] == 1

    def extend(self, ms):
        return True


class ShedLock:
    """What a Spring application with `usingDbTime()` does: insert, or take the row over when its time is up."""

    def __init__(self, name, ttl):
        self.name, self.ttl, self.me = name, ttl * 1000, f"spring-{uuid.uuid4()}"

    def take(self):
        insert = f"INSERT IGNORE INTO shedlock (name, lock_until, locked_at, locked_by) VALUES (%s, {UNTIL}, {NOW}, %s)"
        if run(insert, self.name, self.ttl, self.me)[0] == 1:
            return True
        update = f"UPDATE shedlock SET lock_until = {UNTIL}, locked_at = {NOW}, locked_by = %s"
        return run(update + f" WHERE name = %s AND lock_until <= {NOW}", self.ttl, self.me, self.name)[0] == 1

    def wait(self):
        for _ in range(int(LIMIT / POLL)):
            if self.take():
                return True
            time.sleep(POLL)
        return False

    def free(self):
        # Whatever the row says by now: it compares the name of the holder only, not the time.
        free = f"UPDATE shedlock SET lock_until = {NOW} WHERE name = %s AND locked_by = %s"
        return run(free, self.name, self.me)[0] == 1

    def extend(self, ms):
        more = f"UPDATE shedlock SET lock_until = {UNTIL} WHERE name = %s AND locked_by = %s AND lock_until > {NOW}"
        return run(more, ms * 1000, self.name, self.me)[0] == 1


LOCK = {"get_lock": GetLock, "shedlock": ShedLock}[KIND]


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
        answer = [said(getattr(lock, order)()), time.monotonic_ns()]
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
