-- One row per name. `token` is the last one drawn; `holder` … `lease` describe the holder when one holds Exclusively
-- (NULL: no claim does); `others` counts the rows of this name in `claim`, `seq` numbers them. Times are microseconds of
-- the server's clock. `lease` is set while a grant was handed over and its holder has not been heard of since.
CREATE TABLE IF NOT EXISTS `{p}lock` (
    name VARBINARY(512) NOT NULL,
    token BIGINT NOT NULL DEFAULT 0,
    seq BIGINT NOT NULL DEFAULT 0,
    others INT NOT NULL DEFAULT 0,
    holder BINARY(16) NULL,
    expires BIGINT NULL,
    ttl BIGINT NULL,
    since BIGINT NULL,
    host VARBINARY(1024) NULL,
    pid BIGINT NULL,
    label VARBINARY(1024) NULL,
    keeper BINARY(16) NULL,
    stamp BIGINT NULL,
    lease BIGINT NULL,
    PRIMARY KEY (name),
    KEY handed (keeper)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4
@@
-- All other claims, in order of `seq`. `kind`: 0 holds (Shared or Permit), 1 waits, 2 has ended before its acquire arrived
-- or was broken. `mode`: 0 Exclusive, -1 Shared, else the limit of the permits. `reason` of a tomb: b broken, r released.
CREATE TABLE IF NOT EXISTS `{p}claim` (
    name VARBINARY(512) NOT NULL,
    holder BINARY(16) NOT NULL,
    kind TINYINT NOT NULL,
    seq BIGINT NOT NULL,
    mode BIGINT NOT NULL DEFAULT 0,
    token BIGINT NULL,
    expires BIGINT NOT NULL,
    ttl BIGINT NOT NULL,
    since BIGINT NULL,
    host VARBINARY(1024) NULL,
    pid BIGINT NULL,
    label VARBINARY(1024) NULL,
    keeper BINARY(16) NULL,
    stamp BIGINT NULL,
    lease BIGINT NULL,
    reason CHAR(1) NULL,
    PRIMARY KEY (name, holder),
    KEY handed (keeper)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4
@@
-- Values, with the highest pass their fence has seen.
CREATE TABLE IF NOT EXISTS `{p}register` (
    name VARBINARY(512) NOT NULL,
    locked VARBINARY(512) NOT NULL,
    token BIGINT NOT NULL,
    holder BINARY(16) NOT NULL,
    used BIGINT NOT NULL,
    ends BIGINT NULL,
    value MEDIUMBLOB NULL,
    PRIMARY KEY (name),
    KEY used (used)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4
@@
-- What is here, and up to which name unused rows were last removed. Written last: without it, nothing counts. `version` is
-- that of the tables, `revision` that of the procedures.
CREATE TABLE IF NOT EXISTS `{p}layout` (
    id TINYINT NOT NULL PRIMARY KEY,
    version INT NOT NULL,
    revision INT NOT NULL DEFAULT 0,
    cleaned BIGINT NOT NULL DEFAULT 0,
    reached VARBINARY(512) NOT NULL DEFAULT ''
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4
@@
-- Who took which session lock (`mode=get_lock`), and the last token drawn for it. The rest is about now only while `session` lives.
CREATE TABLE IF NOT EXISTS `{p}session` (
    name VARBINARY(512) NOT NULL,
    lock_key VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    token BIGINT NOT NULL,
    holder BINARY(16) NOT NULL,
    session BINARY(16) NOT NULL,
    since BIGINT NOT NULL,
    host VARBINARY(1024) NULL,
    pid BIGINT NULL,
    label VARBINARY(1024) NULL,
    broken BINARY(16) NULL,
    PRIMARY KEY (name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4
