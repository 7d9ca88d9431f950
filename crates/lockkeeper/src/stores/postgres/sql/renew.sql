CREATE OR REPLACE FUNCTION {s}.renew_one(my_name bytea, me uuid, my_ttl bigint, life bigint, my_stamp bigint, my_keeper uuid)
RETURNS {s}.answer LANGUAGE plpgsql AS $f$
DECLARE
    l {s}.lock;
    was {s}.lock;
    at bigint;
    c {s}.claim;
    a {s}.answer;
    -- Never shorter: a delayed renewal must not take back what a later one gave.
    longest bigint;
BEGIN
    SELECT * INTO l FROM {s}.lock x WHERE x.name = my_name FOR UPDATE;
    at := {now};
    was := l;
    a.code := 4;
    IF l.name IS NOT NULL THEN
        IF l.others > 0 THEN
            -- The place is refreshed first: a keep-alive that arrives in time must not lose it to the sweep.
            UPDATE {s}.claim x SET expires = at + life, ttl = life, stamp = my_stamp, keeper = my_keeper
            WHERE x.name = my_name AND x.holder = me AND x.kind = 'waiter' AND x.expires > at;
        END IF;
        l := {s}.advance(l, at);
        IF l.others > 0 THEN
            SELECT * INTO c FROM {s}.claim x WHERE x.name = my_name AND x.holder = me ORDER BY x.kind = 'tomb' LIMIT 1;
        END IF;
        IF l.holder = me THEN
            longest := greatest(my_ttl, l.expires - at);
            a.code := CASE WHEN l.lease IS NULL THEN 1 ELSE 2 END;
            a.token := l.token;
            l.expires := at + longest; l.ttl := longest; l.keeper := NULL; l.stamp := NULL; l.lease := NULL;
        ELSIF c.kind = 'holder' THEN
            longest := greatest(my_ttl, c.expires - at);
            a.code := CASE WHEN c.lease IS NULL THEN 1 ELSE 2 END;
            a.token := c.token;
            UPDATE {s}.claim x SET expires = at + longest, ttl = longest, keeper = NULL, stamp = NULL, lease = NULL
            WHERE x.name = my_name AND x.seq = c.seq;
        ELSIF c.kind = 'waiter' THEN
            a := {s}.held(l, at, (SELECT count(*)::integer FROM {s}.claim x
                WHERE x.name = my_name AND x.kind = 'waiter' AND x.seq <= c.seq));
        ELSE
            a.place := CASE c.reason WHEN 'broken' THEN 1 WHEN 'released' THEN 2 END;
        END IF;
        IF l IS DISTINCT FROM was THEN PERFORM {s}.save(l); END IF;
    END IF;
    a.holder := me;
    RETURN a;
END $f$;

-- Prolongs each claim, held or waiting; no name twice.
CREATE OR REPLACE FUNCTION {s}.renew(names bytea[], holders uuid[], ttls bigint[], lives bigint[], stamps bigint[], my_keeper uuid)
RETURNS SETOF {s}.answer LANGUAGE plpgsql {patience} AS $f$
DECLARE
    at bigint := {now};
    a {s}.answer;
    i integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {s}.wrong_isolation(); END IF;
    -- `at` may be older than a renewal that was answered while this one waited for the row: what that one gave stays.
    -- A clock that was set back is for `advance`, which reads it under the lock and cuts the lease to its TTL.
    IF cardinality(names) = 1 THEN
        UPDATE {s}.lock l SET ttl = greatest(ttls[1], least(l.expires - at, l.ttl)),
            expires = greatest(l.expires, at + ttls[1])
        WHERE l.name = names[1] AND l.holder = holders[1] AND l.lease IS NULL AND l.expires > at;
        IF FOUND THEN
            a.holder := holders[1]; a.code := 1;
        ELSE
            a := {s}.renew_one(names[1], holders[1], ttls[1], lives[1], stamps[1], my_keeper);
        END IF;
        RETURN NEXT a;
        RETURN;
    END IF;
    -- Rows are locked one after the other: who waits for one must not keep others for long.
    PERFORM set_config('lock_timeout', '{moment}', true);
    -- In one order everywhere, so that two batches never wait for each other. A statement for each: planned for ten rows, one
    -- for all of them compared every claim with every row.
    FOR i IN SELECT x.i FROM unnest(names) WITH ORDINALITY AS x (name, i) ORDER BY x.name LOOP
        UPDATE {s}.lock l SET ttl = greatest(ttls[i], least(l.expires - at, l.ttl)),
            expires = greatest(l.expires, at + ttls[i])
        WHERE l.name = names[i] AND l.holder = holders[i] AND l.lease IS NULL AND l.expires > at;
        IF FOUND THEN
            a := NULL;
            a.holder := holders[i]; a.code := 1;
        ELSE
            a := {s}.renew_one(names[i], holders[i], ttls[i], lives[i], stamps[i], my_keeper);
        END IF;
        RETURN NEXT a;
    END LOOP;
END $f$;
