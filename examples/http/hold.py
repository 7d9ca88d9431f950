#!/usr/bin/env python3
"""Writes every line of its input to a register, while it holds a lock, through a gateway.

    python3 hold.py http://127.0.0.1:7420 NAME < lines

Needs only Python 3.8 or newer. BEARER_FILE names a file with the secret of a token, TTL_MS sets the TTL.
"""
import base64
import json
import os
import secrets
import sys
import threading
import time
import urllib.error
import urllib.request

url, name = sys.argv[1:3]
ttl = int(os.environ.get("TTL_MS", "30000"))
# Fresh for every acquisition, and secret: it is what makes the lock ours, and a repeated request harmless.
holder = secrets.token_hex(16)
headers = {"Content-Type": "application/json"}
if "BEARER_FILE" in os.environ:
    with open(os.environ["BEARER_FILE"]) as file:
        headers["Authorization"] = "Bearer " + file.read().strip()


class Refused(Exception):
    def __init__(self, problem):
        super().__init__(problem["title"])
        self.problem, self.kind = problem, problem["kind"]


def ask(path, body, limit=60.0):
    request = urllib.request.Request(f"{url}/v1/{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=limit) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise Refused(json.load(error)) from None


def end(code, why):
    print(why, file=sys.stderr, flush=True)
    os._exit(code)  # from any thread, at once


def acquire():
    while True:
        sent = time.monotonic()  # the lease counts from here, not from the answer
        try:
            # stay keeps our place in line until we ask again.
            grant = ask("acquire", {"name": name, "holder": holder, "ttl_ms": ttl, "wait_ms": 20000, "stay": True})
            return grant, sent + grant["valid_ms"] / 1000
        except Refused as refused:
            if refused.kind not in ("busy", "closed", "unavailable"):
                end(1, f"refused: {refused}")
        except OSError:
            pass  # the same holder id asks again: a grant that was not heard is heard now
        time.sleep(0.1)


grant, deadline = acquire()
passport = {"lock": name, "token": grant["token"], "holder": holder}
done = threading.Event()


def keep():
    """Renews until the work is done. When the lock is lost, or may be, the work ends."""
    global deadline
    pause = grant["renew_ms"] / 1000
    while not done.wait(min(pause, max(0.0, deadline - time.monotonic()))):
        sent = time.monotonic()
        if sent >= deadline:
            end(76, "lost: not renewed in time")
        try:
            answer = ask("renew", {"name": name, "holder": holder, "ttl_ms": ttl}, limit=deadline - sent)
            deadline, pause = sent + answer["valid_ms"] / 1000, grant["renew_ms"] / 1000
        except Refused as refused:
            if refused.kind == "lost":
                end(76, f"lost: {refused.problem.get('reason')}")
            pause = 0.2
        except OSError:
            pause = 0.2  # asked again until the deadline


threading.Thread(target=keep, daemon=True).start()
print(f"token {grant['token']}", flush=True)
try:
    # From now on the fence refuses earlier holders of the lock.
    ask("registers/enter", {"key": f"last/{name}", "pass": passport})
    for line in sys.stdin:
        value = base64.b64encode(line.strip().encode()).decode()
        ask("registers/write", {"key": f"last/{name}", "pass": passport, "value64": value})
        print(f"wrote {line.strip()}", flush=True)
except Refused as refused:
    # The fence has seen a later holder: we were paused for too long, or broken, and have not noticed yet.
    if refused.kind == "stale":
        end(1, f"stale: the fence has seen token {refused.problem['seen']}")
    end(1, f"refused: {refused}")
done.set()
ask("release", {"name": name, "holder": holder})
