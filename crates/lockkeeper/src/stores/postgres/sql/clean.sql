-- Removes what nobody has used for a day: the clock is above its token by then, so the next one is higher without it.
-- One keeper in ten minutes does it; true when there may be more to remove.
CREATE FUNCTION {s}.clean() RETURNS boolean LANGUAGE plpgsql AS $f$
DECLARE
    at bigint := {now};
    day CONSTANT bigint := 86400000000;
    rows CONSTANT integer := 1000;
    removed integer := 0;
    gone integer;
    l {s}.lock;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM {s}.wrong_isolation(); END IF;
    UPDATE {s}.layout SET cleaned = at WHERE cleaned < at - 600000000 OR cleaned > at;
    IF NOT FOUND THEN RETURN false; END IF;
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
    IF removed < rows AND gone < rows THEN RETURN false; END IF;
    UPDATE {s}.layout SET cleaned = 0;
    RETURN true;
END $f$;
