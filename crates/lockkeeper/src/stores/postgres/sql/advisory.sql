-- mode=advisory. The locks are the server's own; here is the last token of each name, and who took it last. That is about
-- now only while that session holds both the lock, `key` of space 1 (bigint) or 2 (two integers), and its own, `alive`.
CREATE TABLE IF NOT EXISTS {s}.advisory (
    name bytea PRIMARY KEY, token bigint NOT NULL, used bigint NOT NULL, space smallint NOT NULL, key bigint NOT NULL,
    session uuid, alive bigint, drawn bigint, since bigint, host bytea, pid bigint, label bytea
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

CREATE TABLE IF NOT EXISTS {s}.advisory_shared (
    name bytea NOT NULL, holder uuid NOT NULL, space smallint NOT NULL, key bigint NOT NULL, session uuid NOT NULL,
    alive bigint NOT NULL, drawn bigint NOT NULL, since bigint NOT NULL, host bytea, pid bigint, label bytea,
    PRIMARY KEY (name, holder)
);

-- Advisory locks of this database as the server shows them.
CREATE OR REPLACE VIEW {s}.advisory_keys AS
SELECT (classid::bigint << 32) | objid::bigint AS key, objsubid AS space, pid AS backend, granted,
    mode = 'ExclusiveLock' AS exclusive
FROM pg_locks
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- Who of ours holds what.
CREATE OR REPLACE VIEW {s}.advisory_holders AS
WITH keys AS MATERIALIZED (SELECT * FROM {s}.advisory_keys WHERE granted),
noted AS (
    SELECT name, space, key, session, alive, drawn, since, host, pid, label, true AS exclusive FROM {s}.advisory
    UNION ALL
    SELECT name, space, key, session, alive, drawn, since, host, pid, label, false FROM {s}.advisory_shared
)
SELECT n.*, k.backend
FROM noted n
    JOIN keys k ON k.space = n.space AND k.key = n.key AND k.exclusive = n.exclusive
    JOIN keys a ON a.backend = k.backend AND a.space = 1 AND a.key = n.alive AND a.exclusive;

CREATE OR REPLACE FUNCTION {s}.advisory_try(space smallint, key bigint, shared boolean) RETURNS boolean LANGUAGE plpgsql AS $f$
BEGIN
    IF space = 1 THEN
        IF shared THEN RETURN pg_try_advisory_lock_shared(key); END IF;
        RETURN pg_try_advisory_lock(key);
    END IF;
    IF shared THEN RETURN pg_try_advisory_lock_shared((key >> 32)::integer, (key << 32 >> 32)::integer); END IF;
    RETURN pg_try_advisory_lock((key >> 32)::integer, (key << 32 >> 32)::integer);
END $f$;

CREATE OR REPLACE FUNCTION {s}.advisory_unlock(space smallint, key bigint, shared boolean) RETURNS boolean LANGUAGE plpgsql AS $f$
BEGIN
    IF space = 1 THEN
        IF shared THEN RETURN pg_advisory_unlock_shared(key); END IF;
        RETURN pg_advisory_unlock(key);
    END IF;
    IF shared THEN RETURN pg_advisory_unlock_shared((key >> 32)::integer, (key << 32 >> 32)::integer); END IF;
    RETURN pg_advisory_unlock((key >> 32)::integer, (key << 32 >> 32)::integer);
END $f$;

-- Who is in the way, if it is one of us: the one who came last.
CREATE OR REPLACE FUNCTION {s}.advisory_who(names bytea[], spaces smallint[], keys bigint[], holders uuid[])
RETURNS SETOF {s}.answer LANGUAGE plpgsql AS $f$
DECLARE
    a {s}.answer;
BEGIN
    FOR i IN 1 .. cardinality(names) LOOP
        a := NULL;
        SELECT h.drawn, h.since, h.host, h.pid, h.label INTO a.token, a.since, a.host, a.pid, a.label
        FROM {s}.advisory_holders h WHERE h.name = names[i] AND h.space = spaces[i] AND h.key = keys[i]
        ORDER BY h.since DESC LIMIT 1;
        a.code := 0; a.holder := holders[i];
        RETURN NEXT a;
    END LOOP;
END $f$;

-- Takes each lock if it is free, and draws its token while holding it. No name and no key twice. `haves`: this session
-- has it already, Shared; the server would count it again. If this fails half-way, the locks it took are still held.
CREATE OR REPLACE FUNCTION {s}.advisory_take(names bytea[], spaces smallint[], keys bigint[], shareds boolean[], haves boolean[],
    holders uuid[], hosts bytea[], pids bigint[], labels bytea[], my_session uuid, my_alive bigint)
RETURNS SETOF {s}.answer LANGUAGE plpgsql AS $f$
DECLARE
    a {s}.answer;
    at bigint;
BEGIN
    FOR i IN 1 .. cardinality(names) LOOP
        a := NULL;
        IF haves[i] OR {s}.advisory_try(spaces[i], keys[i], shareds[i]) THEN
            at := {now};
            a.code := 1;
            IF NOT shareds[i] THEN
                INSERT INTO {s}.advisory AS l
                VALUES (names[i], at, at, spaces[i], keys[i], my_session, my_alive, at, at, hosts[i], pids[i], labels[i])
                ON CONFLICT (name) DO UPDATE SET token = greatest(l.token + 1, at), used = at, space = excluded.space,
                    key = excluded.key, session = my_session, alive = my_alive, drawn = greatest(l.token + 1, at),
                    since = at, host = excluded.host, pid = excluded.pid, label = excluded.label
                WHERE l.token < {last}
                RETURNING l.token INTO a.token;
            ELSE
                -- Between the Exclusive ones around it: none of those can be drawn now.
                INSERT INTO {s}.advisory AS l (name, token, used, space, key)
                VALUES (names[i], at, at, spaces[i], keys[i])
                ON CONFLICT (name) DO UPDATE SET used = at WHERE l.token < {last}
                RETURNING l.token INTO a.token;
                INSERT INTO {s}.advisory_shared
                SELECT names[i], holders[i], spaces[i], keys[i], my_session, my_alive, a.token, at, hosts[i], pids[i],
                    labels[i]
                WHERE a.token IS NOT NULL;
            END IF;
            IF a.token IS NULL THEN
                IF NOT haves[i] THEN PERFORM {s}.advisory_unlock(spaces[i], keys[i], shareds[i]); END IF;
                a.code := 5;
            END IF;
        ELSE
            SELECT * INTO a FROM {s}.advisory_who(names[i:i], spaces[i:i], keys[i:i], holders[i:i]);
        END IF;
        a.holder := holders[i];
        RETURN NEXT a;
    END LOOP;
END $f$;

-- Gives each lock back. code: 1 it was held · 0 it was not. `haves`: another Shared holder of this session keeps it.
-- `forget` where two names may have one key: what is noted of this one must not be taken for the other.
CREATE OR REPLACE FUNCTION {s}.advisory_free(names bytea[], spaces smallint[], keys bigint[], shareds boolean[], haves boolean[],
    holders uuid[], forget boolean)
RETURNS SETOF {s}.answer LANGUAGE plpgsql AS $f$
DECLARE
    a {s}.answer;
BEGIN
    FOR i IN 1 .. cardinality(names) LOOP
        a.holder := holders[i];
        IF shareds[i] THEN
            DELETE FROM {s}.advisory_shared WHERE name = names[i] AND holder = holders[i];
        ELSIF forget THEN
            UPDATE {s}.advisory SET session = NULL, alive = NULL WHERE name = names[i];
        END IF;
        a.code := (haves[i] OR {s}.advisory_unlock(spaces[i], keys[i], shareds[i]))::integer;
        RETURN NEXT a;
    END LOOP;
END $f$;

-- Asks the holders of `my_name` with `my_token` to let go, and draws a token above: that, and the holders' sessions.
CREATE OR REPLACE FUNCTION {s}.advisory_break(my_name bytea, my_token bigint) RETURNS TABLE (above bigint, backend integer)
LANGUAGE plpgsql {patience} AS $f$
#variable_conflict use_column
DECLARE
    h record;
    next bigint;
BEGIN
    FOR h IN SELECT x.session, x.backend FROM {s}.advisory_holders x WHERE x.name = my_name AND x.drawn = my_token LOOP
        IF next IS NULL THEN
            UPDATE {s}.advisory l SET token = greatest(l.token + 1, {now}), used = {now}
            WHERE l.name = my_name AND l.token < {last} RETURNING l.token INTO next;
        END IF;
        PERFORM pg_notify('lk_' || replace(h.session::text, '-', ''), my_token || ':' || encode(my_name, 'hex'));
        above := next; backend := h.backend;
        RETURN NEXT;
    END LOOP;
END $f$;

-- What keepers of earlier versions call; `clean` removes all that nothing uses.
CREATE OR REPLACE FUNCTION {s}.advisory_clean() RETURNS void LANGUAGE plpgsql AS $f$
BEGIN
    PERFORM {s}.clean();
END $f$;
