-- Lockkeeper's fence for PostgreSQL 11 and newer, layout 2. Run it in the schema it shall live in; again does no
-- harm, and brings an older layout up to date: what was seen and who may enter stay as they are.
BEGIN;

-- One at a time: PostgreSQL's own IF NOT EXISTS fails when two make the same thing at once.
DO $body$ BEGIN PERFORM pg_advisory_xact_lock(1282098789); END $body$;

CREATE TABLE IF NOT EXISTS lockkeeper_fences (
  resource text PRIMARY KEY,
  token bigint NOT NULL,                                     -- the highest Exclusive token that entered; 0: none has
  holder text,                                               -- whose it is
  store text,                                                -- which store's numbers these are
  entered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  shared bigint NOT NULL DEFAULT 0                           -- the highest Shared token that entered; 0: none has
);

-- Layout 1 had no mark of Shared holders. The column is looked for first, because ALTER TABLE waits for every
-- transaction inside a fence even where there is nothing to add.
DO $body$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'lockkeeper_fences'::regclass AND attname = 'shared') THEN
    ALTER TABLE lockkeeper_fences ADD COLUMN shared bigint NOT NULL DEFAULT 0;
  END IF;
END
$body$;

-- First in every transaction of an Exclusive holder, before it reads anything: locks the resource until the end of the
-- transaction and refuses a stale token with SQLSTATE LK001.
CREATE OR REPLACE FUNCTION lockkeeper_fence(resource text, token bigint, holder text DEFAULT NULL, store text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
  seen lockkeeper_fences%ROWTYPE;
BEGIN
  IF $1 IS NULL OR octet_length($1) NOT BETWEEN 1 AND 512 THEN
    RAISE EXCEPTION 'LK003 a resource has a name of 1 to 512 bytes' USING ERRCODE = 'LK003';
  ELSIF $2 IS NULL OR $2 NOT BETWEEN 1 AND 9007199254740991 THEN
    RAISE EXCEPTION 'LK003 % cannot be a token; tokens are 1 to 9007199254740991', coalesce($2::text, 'NULL')
      USING ERRCODE = 'LK003';
  END IF;
  -- Always an UPDATE, also for an equal token: under REPEATABLE READ a holder that waited for this row with an older
  -- snapshot must fail with 40001 rather than read what was true before. It sets the key, to itself, because only an
  -- UPDATE of a key waits for the FOR KEY SHARE of Shared holders.
  INSERT INTO lockkeeper_fences AS f (resource, token, holder, store) VALUES ($1, $2, $3, $4)
  ON CONFLICT (resource) DO UPDATE
    SET resource = excluded.resource, token = excluded.token, holder = excluded.holder,
        store = coalesce(excluded.store, f.store), entered_at = clock_timestamp()
    WHERE (f.token < excluded.token OR (f.token = excluded.token AND f.holder IS NOT DISTINCT FROM excluded.holder))
      AND f.shared < excluded.token
      AND (f.store = excluded.store OR f.store IS NULL OR excluded.store IS NULL);
  IF FOUND THEN
    RETURN;
  END IF;
  SELECT f.* INTO seen FROM lockkeeper_fences f WHERE f.resource = $1;
  IF seen.store <> $4 THEN
    RAISE EXCEPTION 'LK002 the fence of ''%'' has seen numbers of store ''%'', and a token of ''%'' does not compare',
      $1, seen.store, $4 USING ERRCODE = 'LK002', HINT = 'After a move to another store: lockkeeper fence reset.';
  ELSIF seen.token > $2 THEN
    RAISE EXCEPTION 'LK001 token % is stale: the fence of ''%'' has seen %, a later holder was here', $2, $1, seen.token
      USING ERRCODE = 'LK001', HINT = 'Roll back and stop: the lock is no longer yours.';
  ELSIF seen.shared >= $2 THEN
    RAISE EXCEPTION 'LK001 token % is stale: a Shared holder with % has entered the fence of ''%'' since',
      $2, seen.shared, $1 USING ERRCODE = 'LK001', HINT = 'Roll back and stop: the lock is no longer yours.';
  END IF;
  RAISE EXCEPTION 'LK001 token % is stale: another holder has shown it at the fence of ''%''', $2, $1
    USING ERRCODE = 'LK001', HINT = 'Roll back and stop. Show the holder at every entry or at none.';
END
$body$;

-- The same for a Shared holder: many at once, as long as no later Exclusive holder has entered. Raises the mark that an
-- Exclusive token must be above, once for each Shared token that is the highest so far.
CREATE OR REPLACE FUNCTION lockkeeper_fence_shared(resource text, token bigint, store text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
  seen lockkeeper_fences%ROWTYPE;
BEGIN
  IF $1 IS NULL OR octet_length($1) NOT BETWEEN 1 AND 512 THEN
    RAISE EXCEPTION 'LK003 a resource has a name of 1 to 512 bytes' USING ERRCODE = 'LK003';
  ELSIF $2 IS NULL OR $2 NOT BETWEEN 1 AND 9007199254740991 THEN
    RAISE EXCEPTION 'LK003 % cannot be a token; tokens are 1 to 9007199254740991', coalesce($2::text, 'NULL')
      USING ERRCODE = 'LK003';
  END IF;
  -- Which lock it needs, before it takes one: two that took the weaker and then both wanted the stronger would wait for
  -- each other. The mark only rises, so one that is high enough stays so.
  SELECT f.* INTO seen FROM lockkeeper_fences f WHERE f.resource = $1;
  IF seen.shared >= $2 THEN
    -- Beside other Shared holders, also one that is raising the mark; an Exclusive holder waits.
    SELECT f.* INTO seen FROM lockkeeper_fences f WHERE f.resource = $1 FOR KEY SHARE;
  ELSE
    -- An UPDATE, as above: an Exclusive holder that waited for this row with an older snapshot must fail with 40001.
    INSERT INTO lockkeeper_fences AS f (resource, token, shared, store) VALUES ($1, 0, $2, $3)
    ON CONFLICT (resource) DO UPDATE
      SET shared = excluded.shared, store = coalesce(excluded.store, f.store), entered_at = clock_timestamp()
      WHERE f.shared < excluded.shared AND f.token <= excluded.shared
        AND (f.store = excluded.store OR f.store IS NULL OR excluded.store IS NULL);
    SELECT f.* INTO seen FROM lockkeeper_fences f WHERE f.resource = $1;
  END IF;
  IF seen.store <> $3 THEN
    RAISE EXCEPTION 'LK002 the fence of ''%'' has seen numbers of store ''%'', and a token of ''%'' does not compare',
      $1, seen.store, $3 USING ERRCODE = 'LK002', HINT = 'After a move to another store: lockkeeper fence reset.';
  ELSIF seen.token > $2 THEN
    RAISE EXCEPTION 'LK001 token % is stale: the fence of ''%'' has seen %, a later holder was here', $2, $1, seen.token
      USING ERRCODE = 'LK001', HINT = 'Roll back and stop: the lock is no longer yours.';
  ELSIF seen.shared IS NULL OR seen.shared < $2 THEN
    RAISE EXCEPTION 'the fence of ''%'' was reset meanwhile', $1 USING ERRCODE = 'serialization_failure';
  END IF;
END
$body$;

-- Both find their table whatever the search_path of the caller is.
DO $body$
BEGIN
  EXECUTE format('ALTER FUNCTION lockkeeper_fence(text, bigint, text, text) SET search_path = %I, pg_temp', current_schema());
  EXECUTE format('ALTER FUNCTION lockkeeper_fence_shared(text, bigint, text) SET search_path = %I, pg_temp', current_schema());
END
$body$;

CREATE OR REPLACE VIEW lockkeeper_fence_version AS SELECT 2 AS version;

COMMIT;
