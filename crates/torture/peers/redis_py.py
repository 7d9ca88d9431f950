"""redis-py's Lock, told over standard input what to do: `redis_py.py PORT`, the password in REDIS_PASSWORD.

`lock NAME TTL_MS WAIT_MS` and `unlock` are answered by `yes`, `no` or `error`.
"""

import os
import sys

import redis

CLIENT = redis.Redis("127.0.0.1", int(sys.argv[1]), password=os.environ.get("REDIS_PASSWORD"))
lock = None
for line in sys.stdin:
    words = line.split()
    try:
        if words[0] == "lock":
            lock = CLIENT.lock(words[1], timeout=int(words[2]) / 1000, sleep=0.005)
            done = lock.acquire(blocking=True, blocking_timeout=int(words[3]) / 1000)
        else:
            lock.release()
            done = True
        print("yes" if done else "no", flush=True)
    except redis.exceptions.LockError:
        print("no", flush=True)
    except redis.exceptions.RedisError:
        print("error", flush=True)
