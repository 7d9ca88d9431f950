-- `tomb` is how long to remember that the claim has ended; NULL: not at all.
CREATE OR REPLACE FUNCTION {s}.release_one(my_name bytea, me uuid, tomb bigint) RETURNS {s}.answer LANGUAGE plpgsql AS $f$
DECLARE
    l {s}.lock;
    was {s}.lock;
    w {s}.claim;
    at bigint;
    a {s}.answer;
    ended integer;
BEGIN
    a.holder := me;
    a.code := 0;
    IF tomb IS NULL THEN
        SELECT * INTO l FROM {s}.lock x WHERE x.name = my_name FOR UPDATE;
        IF NOT FOUND THEN RETURN a; END IF;
    ELSE
        l := {s}.locked(my_name);
    END IF;
    was := l;
    at := {now};
    -- The usual line: an Exclusive holder, and a living Exclusive waiter first. What stands behind it is looked at later.
    IF tomb IS NULL AND l.holder = me AND l.expires > at AND l.others > 0 AND l.token < {last} THEN
        DELETE FROM {s}.claim c
        WHERE c.name = my_name AND c.seq = (SELECT min(x.seq) FROM {s}.claim x WHERE x.name = my_name)
            AND c.kind = 'waiter' AND c.mode = 0 AND c.expires > at AND c.expires <= at + c.ttl
        RETURNING * INTO w;
        IF FOUND THEN
            UPDATE {s}.lock x SET token = greatest(l.token + 1, at), others = l.others - 1, holder = w.holder,
                expires = at + w.ttl, ttl = w.ttl, since = at, host = w.host, pid = w.pid, label = w.label,
                keeper = w.keeper, stamp = w.stamp, lease = w.ttl
            WHERE x.name = my_name RETURNING x.token INTO l.token;
            PERFORM {s}.tell(w, l.token);
            a.code := 1;
            RETURN a;
        END IF;
    END IF;
    IF l.holder = me THEN
        IF l.expires > at THEN a.code := 1; END IF;
        l := {s}.freed(l);
    END IF;
    IF l.others > 0 THEN
        DELETE FROM {s}.claim x WHERE x.name = my_name AND x.holder = me AND x.kind <> 'tomb' AND x.expires > at;
        GET DIAGNOSTICS ended = ROW_COUNT;
        l.others := l.others - ended;
        IF ended > 0 THEN a.code := 1; END IF;
    END IF;
    -- Also when something was found: the call that made it may have been a repeat of one still on its way.
    IF tomb IS NOT NULL
        AND NOT EXISTS (SELECT FROM {s}.claim x WHERE x.name = my_name AND x.holder = me AND x.kind = 'tomb') THEN
        INSERT INTO {s}.claim (name, seq, kind, holder, mode, expires, ttl, reason)
        SELECT my_name, coalesce(max(x.seq), 0) + 1, 'tomb', me, 0, at + tomb, tomb, 'released'
        FROM {s}.claim x WHERE x.name = my_name;
        l.others := l.others + 1;
    END IF;
    l := {s}.advance(l, at);
    IF l IS DISTINCT FROM was THEN PERFORM {s}.save(l); END IF;
    RETURN a;
END $f$;

-- Ends each claim, held or waiting; no name twice. Exclusive ones without a line in one statement.
CREATE OR REPLACE FUNCTION {s}.release(names bytea[], holders uuid[], tombs bigint[])
RETURNS SETOF {s}.answer LANGUAGE plpgsql {patience} AS $f$
DECLARE
    at bigint := {now};
    a {s}.answer;
    ended uuid[];
    i integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {s}.wrong_isolation(); END IF;
    IF cardinality(names) = 1 THEN
        IF tombs[1] IS NULL THEN
            UPDATE {s}.lock l SET holder = NULL, expires = NULL, ttl = NULL, since = NULL, host = NULL, pid = NULL,
                label = NULL, keeper = NULL, stamp = NULL, lease = NULL
            WHERE l.name = names[1] AND l.holder = holders[1] AND l.others = 0 AND l.expires > at;
            IF FOUND THEN
                a.holder := holders[1]; a.code := 1;
            END IF;
        END IF;
        IF a.code IS NULL THEN a := {s}.release_one(names[1], holders[1], tombs[1]); END IF;
        RETURN NEXT a;
        RETURN;
    END IF;
    -- Rows are locked one after the other: who waits for one must not keep others for long.
    PERFORM set_config('lock_timeout', '{moment}', true);
    -- In one order everywhere, so that two batches never wait for each other: rows yet to be made as well.
    IF cardinality(array_remove(tombs, NULL)) > 0 THEN
        INSERT INTO {s}.lock AS l (name, token) SELECT DISTINCT x.name, 0 FROM unnest(names) AS x (name) ORDER BY 1
        ON CONFLICT (name) DO UPDATE SET token = l.token WHERE false;
    ELSE
        PERFORM 1 FROM {s}.lock l WHERE l.name = ANY (names) ORDER BY l.name FOR UPDATE;
    END IF;
    WITH freed AS (
        UPDATE {s}.lock l SET holder = NULL, expires = NULL, ttl = NULL, since = NULL, host = NULL, pid = NULL,
            label = NULL, keeper = NULL, stamp = NULL, lease = NULL
        FROM unnest(names, holders, tombs) AS x (name, holder, tomb)
        WHERE l.name = x.name AND l.holder = x.holder AND l.others = 0 AND l.expires > at AND x.tomb IS NULL
        RETURNING x.holder
    )
    SELECT array_agg(f.holder) INTO ended FROM freed f;
    RETURN QUERY SELECT e.holder, 1, NULL::bigint, NULL::bigint, NULL::integer, NULL::bigint, NULL::bytea, NULL::bigint,
        NULL::bytea FROM unnest(ended) AS e (holder);
    IF cardinality(ended) = cardinality(names) THEN RETURN; END IF;
    FOR i IN SELECT x.i FROM unnest(names, holders) WITH ORDINALITY AS x (name, holder, i)
        LEFT JOIN unnest(ended) AS e (holder) USING (holder) WHERE e.holder IS NULL ORDER BY x.name LOOP
        RETURN NEXT {s}.release_one(names[i], holders[i], tombs[i]);
    END LOOP;
END $f$;

-- Takes the lock away from every holder with that token; the token drawn above it, NULL when no holder had it.
CREATE OR REPLACE FUNCTION {s}.break_lock(my_name bytea, my_token bigint) RETURNS bigint LANGUAGE plpgsql {patience} AS $f$
DECLARE
    l {s}.lock;
    was {s}.lock;
    at bigint;
    tomb_extra CONSTANT bigint := 60000000;
    broken integer := 0;
    above bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {s}.wrong_isolation(); END IF;
    SELECT * INTO l FROM {s}.lock x WHERE x.name = my_name FOR UPDATE;
    IF NOT FOUND THEN RETURN NULL; END IF;
    was := l;
    at := {now};
    IF l.token = my_token AND l.expires > at THEN
        INSERT INTO {s}.claim (name, seq, kind, holder, mode, expires, ttl, reason)
        SELECT my_name, coalesce(max(x.seq), 0) + 1, 'tomb', l.holder, 0, l.expires + tomb_extra,
            l.expires - at + tomb_extra, 'broken' FROM {s}.claim x WHERE x.name = my_name;
        l := {s}.freed(l);
        l.others := l.others + 1;
        broken := 1;
    ELSIF l.others > 0 THEN
        UPDATE {s}.claim x SET kind = 'tomb', mode = 0, expires = x.expires + tomb_extra,
            ttl = x.expires - at + tomb_extra, reason = 'broken'
        WHERE x.name = my_name AND x.kind = 'holder' AND x.token = my_token AND x.expires > at;
        GET DIAGNOSTICS broken = ROW_COUNT;
    END IF;
    IF broken > 0 THEN
        above := greatest(l.token + 1, at);
        l.token := least(above, {last});
    END IF;
    l := {s}.advance(l, at);
    IF l IS DISTINCT FROM was THEN PERFORM {s}.save(l); END IF;
    RETURN above;
END $f$;
