-- Times are microseconds: since 1970 for moments, plain for durations. A mode is 0 for Exclusive, -1 for Shared, and the
-- limit for Permits. Names and notes are bytes, since they may be any; the views make them readable.
-- `version` is that of the tables, `revision` that of the functions; `cleaned` is when unused rows were last removed.
CREATE TABLE IF NOT EXISTS {s}.layout (version integer NOT NULL, cleaned bigint NOT NULL, revision integer NOT NULL DEFAULT 0);
INSERT INTO {s}.layout SELECT {version}, 0, {revision} WHERE NOT EXISTS (SELECT FROM {s}.layout);
UPDATE {s}.layout SET revision = {revision};

-- A name: the last token drawn, how many rows of `claim` it has, and its Exclusive holder if there is one. `keeper`,
-- `stamp` and `lease` are set while a grant was handed over and has not been picked up.
CREATE TABLE IF NOT EXISTS {s}.lock (
    name bytea PRIMARY KEY, token bigint NOT NULL, others integer NOT NULL DEFAULT 0,
    holder uuid, expires bigint, ttl bigint, since bigint, host bytea, pid bigint, label bytea,
    keeper uuid, stamp bigint, lease bigint
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- In order of `seq`: Shared and Permit holders, waiters, and tombs (claims that ended before their acquire arrived, or
-- were broken). Changed only while the name's row in `lock` is locked.
CREATE TABLE IF NOT EXISTS {s}.claim (
    name bytea NOT NULL, seq bigint NOT NULL, kind text NOT NULL, holder uuid NOT NULL, mode bigint NOT NULL,
    expires bigint NOT NULL, ttl bigint NOT NULL, token bigint, since bigint, host bytea, pid bigint, label bytea,
    keeper uuid, stamp bigint, lease bigint, reason text, PRIMARY KEY (name, seq)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

CREATE TABLE IF NOT EXISTS {s}.register (
    key bytea PRIMARY KEY, lock bytea NOT NULL, token bigint NOT NULL, holder uuid NOT NULL, used bigint NOT NULL,
    ends bigint, value bytea
);

-- Text where the bytes are text.
CREATE OR REPLACE FUNCTION {s}.shown(bytes bytea) RETURNS text LANGUAGE plpgsql STABLE AS $f$
BEGIN
    RETURN convert_from(bytes, 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN encode(bytes, 'escape');
END $f$;

CREATE OR REPLACE VIEW {s}.locks AS
SELECT {s}.shown(name) AS name, 'holder' AS kind, 'exclusive' AS mode, token, {s}.shown(host) AS host, pid,
    {s}.shown(label) AS label, to_timestamp(since / 1e6) AS since, to_timestamp(expires / 1e6) AS expires
FROM {s}.lock WHERE expires > {now}
UNION ALL
SELECT {s}.shown(name), kind, CASE WHEN mode = 0 THEN 'exclusive' WHEN mode < 0 THEN 'shared' ELSE 'permit of ' || mode END,
    token, {s}.shown(host), pid, {s}.shown(label), to_timestamp(since / 1e6), to_timestamp(expires / 1e6)
FROM (SELECT * FROM {s}.claim WHERE kind <> 'tomb' AND expires > {now} ORDER BY name, seq) AS claim;
