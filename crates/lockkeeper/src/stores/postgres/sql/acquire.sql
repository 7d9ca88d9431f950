CREATE OR REPLACE FUNCTION {s}.acquire_one(my_name bytea, me uuid, my_mode bigint, my_ttl bigint, queue boolean, life bigint,
    my_stamp bigint, my_keeper uuid, my_host bytea, my_pid bigint, my_label bytea)
RETURNS {s}.answer LANGUAGE plpgsql AS $f$
DECLARE
    l {s}.lock := {s}.locked(my_name);
    was {s}.lock := l;
    at bigint := {now};
    c {s}.claim;
    a {s}.answer;
    used bigint;
BEGIN
    l := {s}.advance(l, at);
    IF l.others > 0 THEN
        SELECT * INTO c FROM {s}.claim x WHERE x.name = my_name AND x.holder = me ORDER BY x.kind = 'tomb' DESC LIMIT 1;
        IF my_mode > 0 THEN
            SELECT x.mode INTO used FROM {s}.claim x
            WHERE x.name = my_name AND x.kind <> 'tomb' AND x.mode > 0 AND x.mode <> my_mode LIMIT 1;
        END IF;
    END IF;
    IF c.kind = 'tomb' THEN
        a.code := 2;
    ELSIF l.holder = me THEN
        l.keeper := NULL; l.stamp := NULL; l.lease := NULL;
        a.code := 1; a.token := l.token; a.lease := l.expires - at;
    ELSIF c.kind = 'holder' THEN
        UPDATE {s}.claim x SET keeper = NULL, stamp = NULL, lease = NULL WHERE x.name = my_name AND x.seq = c.seq;
        a.code := 1; a.token := c.token; a.lease := c.expires - at;
    ELSIF used IS NOT NULL THEN
        a.code := 3; a.token := used;
    ELSIF c.kind = 'waiter' THEN
        UPDATE {s}.claim x SET expires = at + life, ttl = life, stamp = my_stamp, keeper = my_keeper
        WHERE x.name = my_name AND x.seq = c.seq;
        a := {s}.held(l, at, (SELECT count(*)::integer FROM {s}.claim x
            WHERE x.name = my_name AND x.kind = 'waiter' AND x.seq <= c.seq));
    ELSIF l.token >= {last} THEN
        a.code := 5;
    ELSIF {s}.fits(l, my_mode)
        AND NOT EXISTS (SELECT FROM {s}.claim x WHERE x.name = my_name AND x.kind = 'waiter') THEN
        l.token := greatest(l.token + 1, at);
        a.code := 1; a.token := l.token; a.lease := my_ttl;
        IF my_mode = 0 THEN
            l.holder := me; l.expires := at + my_ttl; l.ttl := my_ttl; l.since := at; l.host := my_host;
            l.pid := my_pid; l.label := my_label;
        ELSE
            INSERT INTO {s}.claim (name, seq, kind, holder, mode, expires, ttl, token, since, host, pid, label)
            SELECT my_name, coalesce(max(x.seq), 0) + 1, 'holder', me, my_mode, at + my_ttl, my_ttl, l.token, at,
                my_host, my_pid, my_label FROM {s}.claim x WHERE x.name = my_name;
            l.others := l.others + 1;
        END IF;
    ELSIF queue THEN
        INSERT INTO {s}.claim (name, seq, kind, holder, mode, expires, ttl, since, host, pid, label, keeper, stamp)
        SELECT my_name, coalesce(max(x.seq), 0) + 1, 'waiter', me, my_mode, at + life, life, at, my_host, my_pid,
            my_label, my_keeper, my_stamp FROM {s}.claim x WHERE x.name = my_name;
        l.others := l.others + 1;
        a := {s}.held(l, at, (SELECT count(*)::integer FROM {s}.claim x WHERE x.name = my_name AND x.kind = 'waiter'));
    ELSE
        a := {s}.held(l, at, NULL);
    END IF;
    IF l IS DISTINCT FROM was THEN PERFORM {s}.save(l); END IF;
    a.holder := me;
    RETURN a;
END $f$;

-- Takes each lock if it is free; no name twice. Free ones in one statement, which locks the rows in order of their
-- names; then the others one by one, in statements that see what was committed before their row was locked. `at` may be
-- older than that, but not than the call: a lease counted from it is long enough.
CREATE OR REPLACE FUNCTION {s}.acquire(names bytea[], holders uuid[], modes bigint[], ttls bigint[], queues boolean[],
    lives bigint[], stamps bigint[], my_keeper uuid, hosts bytea[], pids bigint[], labels bytea[])
RETURNS SETOF {s}.answer LANGUAGE plpgsql {patience} AS $f$
DECLARE
    at bigint := {now};
    a {s}.answer;
    taken uuid[];
    tokens bigint[];
    leases bigint[];
    i integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {s}.wrong_isolation(); END IF;
    IF cardinality(names) = 1 THEN
        IF modes[1] = 0 THEN
            INSERT INTO {s}.lock AS l (name, token, holder, expires, ttl, since, host, pid, label)
            VALUES (names[1], at, holders[1], at + ttls[1], ttls[1], at, hosts[1], pids[1], labels[1])
            ON CONFLICT (name) DO UPDATE SET token = greatest(l.token + 1, at), holder = excluded.holder,
                expires = excluded.expires, ttl = excluded.ttl, since = at, host = excluded.host, pid = excluded.pid,
                label = excluded.label, keeper = NULL, stamp = NULL, lease = NULL
            WHERE l.others = 0 AND (l.holder IS NULL OR l.expires <= at) AND l.token < {last}
            RETURNING l.token INTO a.token;
        END IF;
        IF a.token IS NULL THEN
            a := {s}.acquire_one(names[1], holders[1], modes[1], ttls[1], queues[1], lives[1], stamps[1], my_keeper,
                hosts[1], pids[1], labels[1]);
        ELSE
            a.holder := holders[1]; a.code := 1; a.lease := ttls[1];
        END IF;
        RETURN NEXT a;
        RETURN;
    END IF;
    -- Rows are locked one after the other: who waits for one must not keep others for long.
    PERFORM set_config('lock_timeout', '{moment}', true);
    WITH free AS (
        INSERT INTO {s}.lock AS l (name, token, holder, expires, ttl, since, host, pid, label)
        SELECT x.name, coalesce(e.token, 0), e.holder, e.expires, e.ttl, e.token, e.host, e.pid, e.label
        FROM unnest(names, holders, modes, ttls, hosts, pids, labels) AS x (name, holder, mode, ttl, host, pid, label)
            LEFT JOIN LATERAL (SELECT at AS token, x.holder, at + x.ttl AS expires, x.ttl, x.host, x.pid, x.label
                WHERE x.mode = 0) AS e ON true
        ORDER BY x.name
        ON CONFLICT (name) DO UPDATE SET token = greatest(l.token + 1, at), holder = excluded.holder,
            expires = excluded.expires, ttl = excluded.ttl, since = at, host = excluded.host, pid = excluded.pid,
            label = excluded.label, keeper = NULL, stamp = NULL, lease = NULL
        WHERE excluded.holder IS NOT NULL AND l.others = 0 AND (l.holder IS NULL OR l.expires <= at)
            AND l.token < {last}
        RETURNING l.holder, l.token, l.ttl
    )
    SELECT array_agg(f.holder), array_agg(f.token), array_agg(f.ttl) INTO taken, tokens, leases
    FROM free AS f WHERE f.holder IS NOT NULL;
    RETURN QUERY SELECT t.holder, 1, t.token, t.lease, NULL::integer, NULL::bigint, NULL::bytea, NULL::bigint, NULL::bytea
        FROM unnest(taken, tokens, leases) AS t (holder, token, lease);
    IF cardinality(taken) = cardinality(names) THEN RETURN; END IF;
    FOR i IN SELECT x.i FROM unnest(names, holders) WITH ORDINALITY AS x (name, holder, i)
        WHERE x.holder <> ALL (coalesce(taken, '{}')) ORDER BY x.name LOOP
        RETURN NEXT {s}.acquire_one(names[i], holders[i], modes[i], ttls[i], queues[i], lives[i], stamps[i], my_keeper,
            hosts[i], pids[i], labels[i]);
    END LOOP;
END $f$;
