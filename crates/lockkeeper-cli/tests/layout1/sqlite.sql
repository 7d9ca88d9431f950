-- Lockkeeper's fence for SQLite 3.24 and newer, layout 1. Again does no harm.
BEGIN IMMEDIATE;

CREATE TABLE IF NOT EXISTS lockkeeper_fences (
  resource TEXT NOT NULL PRIMARY KEY,
  token INTEGER NOT NULL,                    -- the highest Exclusive token that entered; 0: none has
  holder TEXT,                               -- whose it is
  store TEXT,                                -- which store's numbers these are
  entered_at TEXT NOT NULL
) WITHOUT ROWID;

DROP VIEW IF EXISTS lockkeeper_fence;
DROP VIEW IF EXISTS lockkeeper_fence_shared;
DROP VIEW IF EXISTS lockkeeper_fence_version;

-- SQLite has no procedures: an INSERT into this view stands for the call. First in every transaction of an Exclusive
-- holder, before it reads anything: takes the database's write lock until the end of the transaction and refuses a
-- stale token with a message that begins with LK001. Holder and store may be left out.
CREATE VIEW lockkeeper_fence AS SELECT resource, token, holder, store FROM lockkeeper_fences;

CREATE TRIGGER lockkeeper_fence_enter INSTEAD OF INSERT ON lockkeeper_fence
BEGIN
  SELECT RAISE(ABORT, 'LK003 a resource has a name of 1 to 512 bytes, bound as text')
    WHERE typeof(NEW.resource) <> 'text' OR length(CAST(NEW.resource AS BLOB)) NOT BETWEEN 1 AND 512;
  -- JavaScript binds large whole numbers as REAL; below 2^53 nothing is lost.
  SELECT RAISE(ABORT, 'LK003 tokens are whole numbers from 1 to 9007199254740991, bound as numbers')
    WHERE typeof(NEW.token) NOT IN ('integer', 'real') OR NEW.token <> CAST(NEW.token AS INTEGER)
      OR NEW.token NOT BETWEEN 1 AND 9007199254740991;
  SELECT RAISE(ABORT, 'LK002 the fence has seen numbers of another store; after a move to another store: lockkeeper fence reset')
    FROM lockkeeper_fences f WHERE f.resource = NEW.resource AND f.store <> NEW.store;
  SELECT RAISE(ABORT, 'LK001 the token is stale: another holder has shown it')
    FROM lockkeeper_fences f
    WHERE f.resource = NEW.resource AND f.token = NEW.token AND f.holder IS NOT NEW.holder;
  SELECT RAISE(ABORT, 'LK001 the token is stale: a later holder was here')
    FROM lockkeeper_fences f WHERE f.resource = NEW.resource AND f.token > NEW.token;
  INSERT INTO lockkeeper_fences (resource, token, holder, store, entered_at)
    VALUES (NEW.resource, CAST(NEW.token AS INTEGER), NEW.holder, NEW.store, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    ON CONFLICT (resource) DO UPDATE
      SET token = excluded.token, holder = excluded.holder, store = coalesce(excluded.store, store),
          entered_at = excluded.entered_at;
END;

-- The same for a Shared holder: passes unless a later Exclusive holder has entered. Writes nothing but the first row.
CREATE VIEW lockkeeper_fence_shared AS SELECT resource, token, store FROM lockkeeper_fences;

CREATE TRIGGER lockkeeper_fence_enter_shared INSTEAD OF INSERT ON lockkeeper_fence_shared
BEGIN
  SELECT RAISE(ABORT, 'LK003 a resource has a name of 1 to 512 bytes, bound as text')
    WHERE typeof(NEW.resource) <> 'text' OR length(CAST(NEW.resource AS BLOB)) NOT BETWEEN 1 AND 512;
  SELECT RAISE(ABORT, 'LK003 tokens are whole numbers from 1 to 9007199254740991, bound as numbers')
    WHERE typeof(NEW.token) NOT IN ('integer', 'real') OR NEW.token <> CAST(NEW.token AS INTEGER)
      OR NEW.token NOT BETWEEN 1 AND 9007199254740991;
  SELECT RAISE(ABORT, 'LK002 the fence has seen numbers of another store; after a move to another store: lockkeeper fence reset')
    FROM lockkeeper_fences f WHERE f.resource = NEW.resource AND f.store <> NEW.store;
  SELECT RAISE(ABORT, 'LK001 the token is stale: a later holder was here')
    FROM lockkeeper_fences f WHERE f.resource = NEW.resource AND f.token > NEW.token;
  INSERT INTO lockkeeper_fences (resource, token, store, entered_at)
    VALUES (NEW.resource, 0, NEW.store, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    ON CONFLICT (resource) DO NOTHING;
END;

CREATE VIEW lockkeeper_fence_version AS SELECT 1 AS version;

COMMIT;
