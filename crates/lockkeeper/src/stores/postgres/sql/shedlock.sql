-- layout=shedlock. ShedLock's row `key` of table `tbl` is the lock; here is what it has no room for: the last token, and
-- which claim wrote `locked_by` last. That is about now only while the row still says so.
CREATE TABLE IF NOT EXISTS {s}.shed (
    tbl text, key text, name bytea NOT NULL, token bigint NOT NULL, used bigint NOT NULL, locked_by text, holder uuid,
    ttl bigint, since bigint, host bytea, pid bigint, label bytea, PRIMARY KEY (tbl, key)
);

-- Claims that ended before their acquire arrived, or were broken.
CREATE TABLE IF NOT EXISTS {s}.shed_tomb (tbl text, key text, holder uuid, expires bigint NOT NULL, reason text NOT NULL,
    PRIMARY KEY (tbl, key, holder));

CREATE OR REPLACE FUNCTION {s}.utc(micros bigint) RETURNS timestamp LANGUAGE sql IMMUTABLE AS $f$
    SELECT timestamp 'epoch' + micros * interval '1 microsecond'
$f$;

CREATE OR REPLACE FUNCTION {s}.micros(utc timestamp) RETURNS bigint LANGUAGE sql IMMUTABLE AS $f$
    SELECT round(extract(epoch FROM utc) * 1000000)::bigint
$f$;

-- Locks ShedLock's row, made if need be, and says until when and for whom it is taken; then our own.
CREATE OR REPLACE FUNCTION {s}.shed_row(my_tbl text, my_key text, OUT until bigint, OUT whom text, OUT l {s}.shed)
LANGUAGE plpgsql AS $f$
DECLARE
    rows integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {s}.wrong_isolation(); END IF;
    LOOP
        EXECUTE 'SELECT {s}.micros(lock_until), locked_by FROM ' || my_tbl || ' WHERE name = $1 FOR UPDATE'
        INTO until, whom USING my_key;
        GET DIAGNOSTICS rows = ROW_COUNT;
        EXIT WHEN rows > 0;
        EXECUTE 'INSERT INTO ' || my_tbl || ' (name, lock_until, locked_at, locked_by) '
            'VALUES ($1, timestamp ''epoch'', timestamp ''epoch'', '''') ON CONFLICT DO NOTHING' USING my_key;
    END LOOP;
    SELECT * INTO l FROM {s}.shed x WHERE x.tbl = my_tbl AND x.key = my_key;
    -- Another client has taken it since, or ended it.
    IF whom <> l.locked_by OR until <= {now} THEN l.holder := NULL; END IF;
END $f$;

CREATE OR REPLACE FUNCTION {s}.shed_end(my_tbl text, my_key text, at bigint) RETURNS void LANGUAGE plpgsql AS $f$
BEGIN
    EXECUTE 'UPDATE ' || my_tbl || ' SET lock_until = {s}.utc($2) WHERE name = $1' USING my_key, at;
    UPDATE {s}.shed SET holder = NULL WHERE tbl = my_tbl AND key = my_key;
END $f$;

CREATE OR REPLACE FUNCTION {s}.shed_acquire(my_tbl text, my_key text, my_name bytea, me uuid, my_ttl bigint, my_by text,
    my_host bytea, my_pid bigint, my_label bytea)
RETURNS {s}.answer LANGUAGE plpgsql {patience} AS $f$
DECLARE
    r record;
    at bigint;
    a {s}.answer;
BEGIN
    SELECT * INTO r FROM {s}.shed_row(my_tbl, my_key);
    at := {now};
    a.holder := me;
    DELETE FROM {s}.shed_tomb t WHERE t.tbl = my_tbl AND t.key = my_key AND t.expires <= at;
    IF EXISTS (SELECT FROM {s}.shed_tomb t WHERE t.tbl = my_tbl AND t.key = my_key AND t.holder = me) THEN
        a.code := 2;
    ELSIF (r.l).holder = me THEN
        a.code := 1; a.token := (r.l).token; a.lease := r.until - at;
    ELSIF r.until > at THEN
        a.code := 0; a.lease := r.until - at;
        IF (r.l).holder IS NOT NULL THEN
            a.token := (r.l).token; a.since := (r.l).since; a.host := (r.l).host; a.pid := (r.l).pid;
            a.label := (r.l).label;
        END IF;
    ELSIF (r.l).token >= {last} THEN
        a.code := 5;
    ELSE
        a.code := 1; a.lease := my_ttl; a.token := greatest((r.l).token + 1, at);
        INSERT INTO {s}.shed VALUES (my_tbl, my_key, my_name, a.token, at, my_by || a.token, me, my_ttl, at, my_host,
            my_pid, my_label)
        ON CONFLICT (tbl, key) DO UPDATE SET name = my_name, token = a.token, used = at,
            locked_by = excluded.locked_by, holder = me, ttl = my_ttl, since = at, host = my_host, pid = my_pid,
            label = my_label;
        EXECUTE 'UPDATE ' || my_tbl || ' SET lock_until = {s}.utc($2), locked_at = {s}.utc($3), locked_by = $4 '
            'WHERE name = $1' USING my_key, at + my_ttl, at, my_by || a.token;
    END IF;
    RETURN a;
END $f$;

CREATE OR REPLACE FUNCTION {s}.shed_renew(my_tbl text, my_key text, me uuid, my_ttl bigint)
RETURNS {s}.answer LANGUAGE plpgsql {patience} AS $f$
DECLARE
    r record;
    a {s}.answer;
BEGIN
    SELECT * INTO r FROM {s}.shed_row(my_tbl, my_key);
    a.holder := me;
    IF (r.l).holder = me THEN
        a.code := 1;
        EXECUTE 'UPDATE ' || my_tbl || ' SET lock_until = {s}.utc($2) WHERE name = $1'
        USING my_key, greatest(r.until, {now} + my_ttl);
    ELSE
        a.code := 4;
        SELECT CASE t.reason WHEN 'broken' THEN 1 ELSE 2 END INTO a.place FROM {s}.shed_tomb t
        WHERE t.tbl = my_tbl AND t.key = my_key AND t.holder = me;
    END IF;
    RETURN a;
END $f$;

CREATE OR REPLACE FUNCTION {s}.shed_release(my_tbl text, my_key text, me uuid, tomb bigint)
RETURNS {s}.answer LANGUAGE plpgsql {patience} AS $f$
DECLARE
    r record;
    a {s}.answer;
BEGIN
    SELECT * INTO r FROM {s}.shed_row(my_tbl, my_key);
    a.holder := me;
    a.code := 0;
    IF (r.l).holder = me THEN
        a.code := 1;
        PERFORM {s}.shed_end(my_tbl, my_key, {now});
    END IF;
    IF tomb IS NOT NULL THEN
        INSERT INTO {s}.shed_tomb VALUES (my_tbl, my_key, me, {now} + tomb, 'released') ON CONFLICT DO NOTHING;
    END IF;
    RETURN a;
END $f$;

CREATE OR REPLACE FUNCTION {s}.shed_break(my_tbl text, my_key text, my_token bigint)
RETURNS bigint LANGUAGE plpgsql {patience} AS $f$
DECLARE
    r record;
    above bigint;
BEGIN
    SELECT * INTO r FROM {s}.shed_row(my_tbl, my_key);
    IF (r.l).holder IS NULL OR (r.l).token <> my_token THEN RETURN NULL; END IF;
    UPDATE {s}.shed x SET token = greatest(x.token + 1, {now}), used = {now} WHERE x.tbl = my_tbl AND x.key = my_key
    RETURNING x.token INTO above;
    INSERT INTO {s}.shed_tomb VALUES (my_tbl, my_key, (r.l).holder, {now} + (r.l).ttl + 60000000, 'broken')
    ON CONFLICT DO NOTHING;
    PERFORM {s}.shed_end(my_tbl, my_key, {now});
    RETURN above;
END $f$;

-- Removes our rows for a table that were unused for a day, as `clean` does, and tombs that have ended. Whether a row
-- is in use says ShedLock's own, which a renewal prolongs; its rows are not ours to remove. True when there may be more.
CREATE OR REPLACE FUNCTION {s}.shed_clean(my_tbl text) RETURNS boolean LANGUAGE plpgsql {patience} AS $f$
DECLARE
    at bigint := {now};
    day CONSTANT bigint := 86400000000;
    rows CONSTANT integer := 1000;
    my_key text;
    until bigint;
    locked integer;
    found boolean;
    removed integer := 0;
    gone integer;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {s}.wrong_isolation(); END IF;
    FOR my_key IN EXECUTE 'SELECT x.key FROM {s}.shed x LEFT JOIN ' || my_tbl || ' t ON t.name = x.key '
        'WHERE x.tbl = $1 AND x.token < $2 AND x.used < $2 AND (t.name IS NULL OR t.lock_until <= {s}.utc($3)) '
        'ORDER BY x.key LIMIT $4' USING my_tbl, at - day, at, rows LOOP
        -- Looked at again, its row locked first, as every step does; one that another client has locked is in use.
        EXECUTE 'SELECT {s}.micros(lock_until) FROM ' || my_tbl || ' WHERE name = $1 FOR UPDATE SKIP LOCKED'
        INTO until USING my_key;
        GET DIAGNOSTICS locked = ROW_COUNT;
        IF locked = 0 THEN
            EXECUTE 'SELECT EXISTS (SELECT FROM ' || my_tbl || ' WHERE name = $1)' INTO found USING my_key;
            CONTINUE WHEN found;
        END IF;
        CONTINUE WHEN until > at;
        DELETE FROM {s}.shed x WHERE x.tbl = my_tbl AND x.key = my_key AND x.token < at - day AND x.used < at - day;
        removed := removed + 1;
    END LOOP;
    DELETE FROM {s}.shed_tomb t WHERE (t.tbl, t.key, t.holder) IN (SELECT x.tbl, x.key, x.holder FROM {s}.shed_tomb x
        WHERE x.tbl = my_tbl AND x.expires <= at LIMIT rows FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN removed >= rows OR gone >= rows;
END $f$;
