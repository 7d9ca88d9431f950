-- Raises a fence, then reads or writes. code: 1 passed (value) · 0 stale (token seen) · 2 another lock's fence (value).
CREATE OR REPLACE FUNCTION {s}.register(my_key bytea, my_lock bytea, my_token bigint, me uuid, writing boolean, my_value bytea,
    my_ttl bigint, OUT code integer, OUT token bigint, OUT value bytea) LANGUAGE plpgsql {patience} AS $f$
#variable_conflict use_column
DECLARE
    r {s}.register;
    at bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {s}.wrong_isolation(); END IF;
    LOOP
        SELECT * INTO r FROM {s}.register x WHERE x.key = my_key FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO {s}.register (key, lock, token, holder, used) VALUES (my_key, my_lock, my_token, me, {now})
        ON CONFLICT DO NOTHING;
    END LOOP;
    at := {now};
    -- The TTL ends the value, never the fence.
    IF r.ends <= at THEN r.value := NULL; r.ends := NULL; END IF;
    IF r.lock <> my_lock THEN
        code := 2; value := r.lock;
        RETURN;
    END IF;
    IF my_token < r.token OR (my_token = r.token AND me <> r.holder) THEN
        code := 0; token := r.token;
        RETURN;
    END IF;
    IF writing THEN
        r.value := my_value; r.ends := at + my_ttl;
    END IF;
    UPDATE {s}.register x SET token = my_token, holder = me, used = at, ends = r.ends, value = r.value
    WHERE x.key = my_key;
    code := 1;
    IF NOT writing THEN value := r.value; END IF;
END $f$;
