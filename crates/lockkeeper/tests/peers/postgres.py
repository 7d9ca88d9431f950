"""Other users of PostgreSQL's locks, told over standard input what to do: `postgres.py KIND PORT`.

KIND is `session` (a psycopg session with pg_advisory_lock), `transaction` (pg_advisory_xact_lock) or `shedlock` (the
statements of a ShedLock application with usingDbTime). Orders, one a line, each answered with `@ …`:
- `take KEY` (one try), `wait KEY` (as the kind waits): `yes|no`. KEY: `1` or `1,2`; for shedlock the name
- `free`: `yes|no`
- `storm KEY COUNT DIR`: COUNT critical sections with pauses between them; how often another client was seen inside
"""

import os
import random
import sys
import time

import psycopg

KIND, PORT = sys.argv[1], int(sys.argv[2])
DB = psycopg.connect(
    host="127.0.0.1", port=PORT, user="postgres", dbname="postgres", autocommit=True, application_name="peer"
)
# What a ShedLock application keeps a job for at most, in seconds.
AT_MOST = 20
POLL = 0.003
PAUSE = 0.004
LIMIT = 30


def ask(text, *values):
    return DB.execute(text, values).fetchone()[0]


class Session:
    def __init__(self, key):
        self.key = key

    def take(self):
        return ask(f"SELECT pg_try_advisory_lock({self.key})")

    def wait(self):
        # Blocks in the server, in line with all who do.
        DB.execute(f"SELECT pg_advisory_lock({self.key})")
        return True

    def free(self):
        return ask(f"SELECT pg_advisory_unlock({self.key})")


class Transaction(Session):
    def take(self):
        DB.execute("BEGIN")
        taken = ask(f"SELECT pg_try_advisory_xact_lock({self.key})")
        if not taken:
            DB.execute("ROLLBACK")
        return taken

    def wait(self):
        DB.execute("BEGIN")
        DB.execute(f"SELECT pg_advisory_xact_lock({self.key})")
        return True

    def free(self):
        DB.execute("COMMIT")
        return True


class ShedLock:
    """A host name is all that tells applications apart, so this one has its own."""

    NOW = "timezone('utc', current_timestamp)"
    HOST = f"host-{os.getpid()}"

    def __init__(self, key):
        self.name = key

    def take(self):
        until = f"{self.NOW} + interval '{AT_MOST} seconds'"
        return 0 < DB.execute(
            f"""INSERT INTO shedlock (name, lock_until, locked_at, locked_by) VALUES (%s, {until}, {self.NOW}, %s)
            ON CONFLICT (name) DO UPDATE SET lock_until = {until}, locked_at = {self.NOW}, locked_by = excluded.locked_by
            WHERE shedlock.lock_until <= {self.NOW}""",
            (self.name, self.HOST),
        ).rowcount

    def wait(self):
        for _ in range(int(LIMIT / POLL)):
            if self.take():
                return True
            time.sleep(POLL)
        return False

    def free(self):
        return 0 < DB.execute(
            f"UPDATE shedlock SET lock_until = {self.NOW} WHERE name = %s AND locked_by = %s AND lock_until > {self.NOW}",
            (self.name, self.HOST),
        ).rowcount


LOCK = {"session": Session, "transaction": Transaction, "shedlock": ShedLock}[KIND]


def section(place):
    """How often another client was there."""
    inside, count, overlaps = os.path.join(place, "inside"), os.path.join(place, "count"), 0
    try:
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        overlaps += 1
    with open(count) as file:
        n = int(file.read() or 0)
    time.sleep(0.0002)
    with open(count, "w") as file:
        file.write(str(n + 1))
    try:
        os.unlink(inside)
    except FileNotFoundError:
        overlaps += 1
    return overlaps


def storm(key, count, place):
    overlaps = 0
    for _ in range(count):
        lock = LOCK(key)
        assert lock.wait(), "not granted in time"
        overlaps += section(place)
        assert lock.free(), "lost"
        time.sleep(random.uniform(0, PAUSE))
    return overlaps


def said(word):
    return "yes" if word else "no"


lock = None
for line in sys.stdin:
    order, *args = line.split()
    if order in ("take", "wait"):
        lock = LOCK(args[0])
        answer = said(getattr(lock, order)())
    elif order == "free":
        answer = said(lock.free())
    elif order == "storm":
        answer = storm(args[0], int(args[1]), args[2])
    else:
        raise ValueError(order)
    print("@", answer, flush=True)
