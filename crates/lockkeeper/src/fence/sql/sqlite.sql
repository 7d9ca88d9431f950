-- Lockkeeper's fence for SQLite 3.24 and newer, layout 2. Again does no harm, and brings an older layout up to date: what
-- was seen stays.
BEGIN IMMEDIATE;

DROP VIEW IF EXISTS lockkeeper_fence;
DROP VIEW IF EXISTS lockkeeper_fence_shared;
DROP VIEW IF EXISTS lockkeeper_fence_version;

CREATE TABLE lockkeeper_fences_new (
  resource TEXT NOT NULL PRIMARY KEY,
  token INTEGER NOT NULL,                    -- the highest Exclusive token that entered; 0: none has
  holder TEXT,                               -- whose it is
  store TEXT,                                -- which store's numbers these are
  entered_at TEXT NOT NULL,
  shared INTEGER NOT NULL DEFAULT 0          -- the highest Shared token that entered; 0: none has
) WITHOUT ROWID;

-- Layout 1 had no mark of Shared holders, and SQLite cannot add a column only where it is missing, so the rows move to a
-- new table. Where the old one has no `shared`, the innermost SELECT means the 0 around it.
CREATE TABLE IF NOT EXISTS lockkeeper_fences (
  resource TEXT NOT NULL PRIMARY KEY, token INTEGER NOT NULL, holder TEXT, store TEXT, entered_at TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO lockkeeper_fences_new (resource, token, holder, store, entered_at, shared)
  SELECT resource, token, holder, store, entered_at,
    (SELECT shared FROM lockkeeper_fences f WHERE f.resource = old.resource)
  FROM (SELECT resource, token, holder, store, entered_at, 0 AS shared FROM lockkeeper_fences) old;
DROP TABLE lockkeeper_fences;
ALTER TABLE lockkeeper_fences_new RENAME TO lockkeeper_fences;

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
  SELECT RAISE(ABORT, 'LK001 the token is stale: a Shared holder has entered since')
    FROM lockkeeper_fences f WHERE f.resource = NEW.resource AND f.shared >= NEW.token;
  INSERT INTO lockkeeper_fences (resource, token, holder, store, entered_at)
    VALUES (NEW.resource, CAST(NEW.token AS INTEGER), NEW.holder, NEW.store, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    ON CONFLICT (resource) DO UPDATE
      SET token = excluded.token, holder = excluded.holder, store = coalesce(excluded.store, store),
          entered_at = excluded.entered_at;
END;

-- The same for a Shared holder: passes unless a later Exclusive holder has entered. Raises the mark that an Exclusive
-- token must be above.
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
  INSERT INTO lockkeeper_fences (resource, token, store, entered_at, shared)
    VALUES (NEW.resource, 0, NEW.store, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), CAST(NEW.token AS INTEGER))
    ON CONFLICT (resource) DO UPDATE
      SET shared = excluded.shared, store = coalesce(excluded.store, store), entered_at = excluded.entered_at
      WHERE shared < excluded.shared;
END;

CREATE VIEW lockkeeper_fence_version AS SELECT 2 AS version;

COMMIT;
