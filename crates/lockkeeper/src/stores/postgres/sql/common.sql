-- What the steps share. Their caller has locked the name's row, and each statement here sees what was committed before.

-- code: 1 granted, prolonged, ended · 0 held (token, since, host, pid and label of who is in the way, lease left, place
-- in line) or nothing to end · 2 cancelled, or picked up · 3 another limit is in use (token) · 4 lost (place 1: broken,
-- 2: released) · 5 tokens have run out.
DO $type$ BEGIN
    IF to_regtype('{s}.answer') IS NULL THEN
        CREATE TYPE {s}.answer AS (holder uuid, code integer, token bigint, lease bigint, place integer, since bigint,
            host bytea, pid bigint, label bytea);
    END IF;
END $type$;

-- Elsewhere a statement sees the start of its transaction, and a waiter that came since would be overlooked.
CREATE OR REPLACE FUNCTION {s}.wrong_isolation() RETURNS void LANGUAGE plpgsql AS $f$
BEGIN
    RAISE EXCEPTION 'locks need the isolation level "read committed"' USING ERRCODE = 'LK010';
END $f$;

CREATE OR REPLACE FUNCTION {s}.freed(INOUT l {s}.lock) LANGUAGE plpgsql AS $f$
BEGIN
    l.holder := NULL; l.expires := NULL; l.ttl := NULL; l.since := NULL; l.host := NULL; l.pid := NULL;
    l.label := NULL; l.keeper := NULL; l.stamp := NULL; l.lease := NULL;
END $f$;

CREATE OR REPLACE FUNCTION {s}.save(l {s}.lock) RETURNS void LANGUAGE plpgsql AS $f$
BEGIN
    UPDATE {s}.lock SET token = l.token, others = l.others, holder = l.holder, expires = l.expires, ttl = l.ttl,
        since = l.since, host = l.host, pid = l.pid, label = l.label, keeper = l.keeper, stamp = l.stamp, lease = l.lease
    WHERE name = l.name;
END $f$;

-- Whether a claim of this mode may come in beside those who hold.
CREATE OR REPLACE FUNCTION {s}.fits(l {s}.lock, wanted bigint) RETURNS boolean LANGUAGE plpgsql AS $f$
BEGIN
    IF l.holder IS NOT NULL OR l.token >= {last} THEN RETURN false; END IF;
    IF l.others = 0 THEN RETURN true; END IF;
    IF wanted = 0 THEN
        RETURN NOT EXISTS (SELECT FROM {s}.claim c WHERE c.name = l.name AND c.kind = 'holder');
    END IF;
    IF EXISTS (SELECT FROM {s}.claim c WHERE c.name = l.name AND c.kind = 'holder' AND c.mode <> wanted) THEN
        RETURN false;
    END IF;
    RETURN wanted < 0
        OR wanted > (SELECT count(*) FROM {s}.claim c WHERE c.name = l.name AND c.kind = 'holder');
END $f$;

-- Tells the waiter's keeper that the lock is handed over to it.
CREATE OR REPLACE FUNCTION {s}.tell(w {s}.claim, my_token bigint) RETURNS void LANGUAGE sql AS $f$
    SELECT pg_notify('lk_' || replace(w.keeper::text, '-', ''),
        replace(w.holder::text, '-', '') || ':' || my_token || ':' || w.stamp || ':' || w.ttl)
$f$;

-- Forgets what has ended, then lets in the first in line while it fits, and tells its keeper.
CREATE OR REPLACE FUNCTION {s}.advance(INOUT l {s}.lock, at bigint) LANGUAGE plpgsql AS $f$
DECLARE
    w {s}.claim;
    gone integer;
BEGIN
    -- A lease longer than its own TTL: the clock was set back.
    IF l.expires > at + l.ttl THEN l.expires := at + l.ttl; END IF;
    IF l.expires <= at THEN l := {s}.freed(l); END IF;
    IF l.others = 0 THEN RETURN; END IF;
    UPDATE {s}.claim c SET expires = at + c.ttl WHERE c.name = l.name AND c.expires > at + c.ttl;
    DELETE FROM {s}.claim c WHERE c.name = l.name AND c.expires <= at;
    GET DIAGNOSTICS gone = ROW_COUNT;
    l.others := l.others - gone;
    WHILE l.others > 0 LOOP
        SELECT * INTO w FROM {s}.claim c WHERE c.name = l.name AND c.kind = 'waiter' ORDER BY c.seq LIMIT 1;
        EXIT WHEN NOT FOUND OR NOT {s}.fits(l, w.mode);
        l.token := greatest(l.token + 1, at);
        -- The lease is the entry's short life: a waiter that died in line costs the others no more than that.
        IF w.mode = 0 THEN
            DELETE FROM {s}.claim c WHERE c.name = l.name AND c.seq = w.seq;
            l.others := l.others - 1;
            l.holder := w.holder; l.expires := at + w.ttl; l.ttl := w.ttl; l.since := at; l.host := w.host;
            l.pid := w.pid; l.label := w.label; l.keeper := w.keeper; l.stamp := w.stamp; l.lease := w.ttl;
        ELSE
            UPDATE {s}.claim c SET kind = 'holder', token = l.token, expires = at + c.ttl, since = at, lease = c.ttl
            WHERE c.name = l.name AND c.seq = w.seq;
        END IF;
        PERFORM {s}.tell(w, l.token);
    END LOOP;
END $f$;

-- Who is in the way: the holder whose lease ends last, since a waiter has to outwait that one.
CREATE OR REPLACE FUNCTION {s}.held(l {s}.lock, at bigint, my_place integer) RETURNS {s}.answer LANGUAGE plpgsql AS $f$
DECLARE
    a {s}.answer;
    c {s}.claim;
BEGIN
    a.code := 0;
    a.place := my_place;
    IF l.holder IS NOT NULL THEN
        a.token := l.token; a.lease := l.expires - at; a.since := l.since; a.host := l.host; a.pid := l.pid;
        a.label := l.label;
    ELSIF l.others > 0 THEN
        SELECT * INTO c FROM {s}.claim x WHERE x.name = l.name AND x.kind = 'holder' ORDER BY x.expires DESC LIMIT 1;
        IF FOUND THEN
            a.token := c.token; a.lease := c.expires - at; a.since := c.since; a.host := c.host; a.pid := c.pid;
            a.label := c.label;
        END IF;
    END IF;
    RETURN a;
END $f$;

-- The row of a name, made if need be, and locked.
CREATE OR REPLACE FUNCTION {s}.locked(my_name bytea) RETURNS {s}.lock LANGUAGE plpgsql AS $f$
DECLARE
    l {s}.lock;
BEGIN
    LOOP
        SELECT * INTO l FROM {s}.lock x WHERE x.name = my_name FOR UPDATE;
        IF FOUND THEN RETURN l; END IF;
        INSERT INTO {s}.lock (name, token) VALUES (my_name, 0) ON CONFLICT DO NOTHING;
    END LOOP;
END $f$;
