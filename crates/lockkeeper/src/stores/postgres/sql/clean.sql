-- Removes what was unused for a day: the clock is above its token by then, so the next one is higher without it.
-- One keeper in ten minutes does it; true when there may be more to remove. It waits for no other client: nothing
-- depends on it, and a server process that waits would be one connection less for all.
CREATE OR REPLACE FUNCTION {s}.clean() RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '{moment}' AS $f$
DECLARE
    at bigint := {now};
    day CONSTANT bigint := 86400000000;
    rows CONSTANT integer := 1000;
    removed integer := 0;
    gone integer;
    l {s}.lock;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {s}.wrong_isolation(); END IF;
    PERFORM FROM {s}.layout WHERE cleaned < at - 600000000 OR cleaned > at FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN false; END IF;
    UPDATE {s}.layout SET cleaned = at;
    FOR l IN SELECT * FROM {s}.lock x WHERE x.token < at - day AND (x.expires IS NULL OR x.expires < at)
        AND NOT EXISTS (SELECT FROM {s}.claim c WHERE c.name = x.name AND c.expires > at)
        LIMIT rows FOR UPDATE SKIP LOCKED LOOP
        -- Looked at again, now that its row is locked.
        IF NOT EXISTS (SELECT FROM {s}.claim c WHERE c.name = l.name AND c.expires > at) THEN
            DELETE FROM {s}.claim c WHERE c.name = l.name;
            DELETE FROM {s}.lock x WHERE x.name = l.name;
            removed := removed + 1;
        END IF;
    END LOOP;
    DELETE FROM {s}.register r WHERE r.key IN (SELECT x.key FROM {s}.register x
        WHERE x.used < at - day AND (x.value IS NULL OR x.ends < at) LIMIT rows FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS gone = ROW_COUNT;
    removed := greatest(removed, gone);
    -- Names of mode=advisory whose lock is free, and its Shared holders whose session has ended. A statement sees rows
    -- as they were before it reads the server's locks: of a session that came since it sees none.
    WITH taken AS MATERIALIZED (SELECT k.space, k.key FROM {s}.advisory_keys k WHERE k.granted)
    DELETE FROM {s}.advisory a WHERE a.name IN (SELECT x.name FROM {s}.advisory x
        WHERE x.used < at - day AND x.token < at - day AND (x.space, x.key) NOT IN (SELECT t.space, t.key FROM taken t)
        LIMIT rows FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS gone = ROW_COUNT;
    removed := greatest(removed, gone);
    WITH living AS MATERIALIZED (SELECT k.key FROM {s}.advisory_keys k WHERE k.space = 1 AND k.granted)
    DELETE FROM {s}.advisory_shared a WHERE (a.name, a.holder) IN (SELECT x.name, x.holder FROM {s}.advisory_shared x
        WHERE x.alive NOT IN (SELECT key FROM living) LIMIT rows FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS gone = ROW_COUNT;
    removed := greatest(removed, gone);
    IF removed < rows THEN RETURN false; END IF;
    UPDATE {s}.layout SET cleaned = 0;
    RETURN true;
END $f$;
