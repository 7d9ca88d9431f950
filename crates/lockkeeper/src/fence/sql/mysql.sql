-- Lockkeeper's fence for MySQL 8 and MariaDB 10.5 and newer, layout 2. For the mysql or mariadb command line client,
-- in the database it shall live in; again does no harm and brings an older layout up to date, except that MySQL, which
-- cannot replace a procedure, forgets who was granted EXECUTE on one. MariaDB replaces it in place: each reads the
-- comments that are meant for it.
DELIMITER //

CREATE TABLE IF NOT EXISTS lockkeeper_fences (
  resource varbinary(512) NOT NULL PRIMARY KEY,
  token bigint NOT NULL COMMENT 'the highest Exclusive token that entered; 0: none has',
  holder varchar(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL COMMENT 'whose it is',
  store varchar(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL COMMENT 'which store''s numbers these are',
  entered_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  shared bigint NOT NULL DEFAULT 0 COMMENT 'the highest Shared token that entered; 0: none has'
) ENGINE=InnoDB
//

-- Layout 1 had no mark of Shared holders, and MySQL has no ADD COLUMN IF NOT EXISTS.
SET @lockkeeper_fence = IF(
  (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'lockkeeper_fences' AND column_name = 'shared') > 0, 'DO 0',
  'ALTER TABLE lockkeeper_fences ADD COLUMN shared bigint NOT NULL DEFAULT 0')
//
PREPARE lockkeeper_fence FROM @lockkeeper_fence
//
EXECUTE lockkeeper_fence
//
DEALLOCATE PREPARE lockkeeper_fence
//

/*M!100600 DO 0 */ /*!80000 DROP PROCEDURE IF EXISTS lockkeeper_fence */
//

-- First in every transaction of an Exclusive holder, before it reads anything: locks the resource until the end of the
-- transaction and refuses a stale token with SQLSTATE 45LK1. Holder and store may be NULL.
CREATE /*M!100600 OR REPLACE */ PROCEDURE lockkeeper_fence(
  IN p_resource text CHARACTER SET utf8mb4, IN p_token bigint,
  IN p_holder varchar(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  IN p_store varchar(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE seen_token, seen_shared bigint;
  DECLARE seen_holder, seen_store varchar(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
  DECLARE said varchar(128) CHARACTER SET utf8mb4;
  IF p_resource IS NULL OR LENGTH(p_resource) NOT BETWEEN 1 AND 512 THEN
    SIGNAL SQLSTATE '45LK3' SET MESSAGE_TEXT = 'LK003 a resource has a name of 1 to 512 bytes';
  ELSEIF p_token IS NULL OR p_token NOT BETWEEN 1 AND 9007199254740991 THEN
    SIGNAL SQLSTATE '45LK3' SET MESSAGE_TEXT = 'LK003 tokens are whole numbers from 1 to 9007199254740991';
  END IF;
  -- Only locking reads in here: a plain SELECT would fix the snapshot of the whole transaction. Check and change are one
  -- statement, so that without a transaction, too, a fence only rises. `token` comes last: the others are decided by it.
  INSERT INTO lockkeeper_fences (resource, token, holder, store) VALUES (p_resource, p_token, p_holder, p_store)
  ON DUPLICATE KEY UPDATE
    store = IF((token < p_token OR (token = p_token AND holder <=> p_holder)) AND shared < p_token
      AND COALESCE(store = p_store, TRUE), COALESCE(p_store, store), store),
    entered_at = IF((token < p_token OR (token = p_token AND holder <=> p_holder)) AND shared < p_token
      AND COALESCE(store = p_store, TRUE), CURRENT_TIMESTAMP(6), entered_at),
    holder = IF(token < p_token AND shared < p_token AND COALESCE(store = p_store, TRUE), p_holder, holder),
    token = IF(token < p_token AND shared < p_token AND COALESCE(store = p_store, TRUE), p_token, token);
  SELECT token, holder, store, shared INTO seen_token, seen_holder, seen_store, seen_shared
    FROM lockkeeper_fences WHERE resource = p_resource FOR UPDATE;
  IF seen_token IS NULL THEN
    SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'the fence was reset meanwhile';
  ELSEIF seen_store <> p_store THEN
    SET said = CONCAT('LK002 the fence of ''', LEFT(p_resource, 40), ''' has seen store ''', LEFT(seen_store, 12),
      ''', not ''', LEFT(p_store, 12), ''': fence reset?');
    SIGNAL SQLSTATE '45LK2' SET MESSAGE_TEXT = said;
  ELSEIF seen_token = p_token AND NOT (seen_holder <=> p_holder) THEN
    SET said = CONCAT('LK001 token ', p_token, ' is stale: another holder has shown it at ''', LEFT(p_resource, 40), '''');
    SIGNAL SQLSTATE '45LK1' SET MESSAGE_TEXT = said;
  ELSEIF seen_token > p_token THEN
    SET said = CONCAT('LK001 token ', p_token, ' is stale: the fence of ''', LEFT(p_resource, 40), ''' has seen ', seen_token);
    SIGNAL SQLSTATE '45LK1' SET MESSAGE_TEXT = said;
  ELSEIF seen_shared >= p_token THEN
    SET said = CONCAT('LK001 token ', p_token, ' is stale: a Shared holder with ', seen_shared, ' has entered ''',
      LEFT(p_resource, 30), '''');
    SIGNAL SQLSTATE '45LK1' SET MESSAGE_TEXT = said;
  END IF;
END
//

/*M!100600 DO 0 */ /*!80000 DROP PROCEDURE IF EXISTS lockkeeper_fence_shared */
//

-- The same for a Shared holder: many at once, as long as no later Exclusive holder has entered. Raises the mark that an
-- Exclusive token must be above, once for each Shared token that is the highest so far.
CREATE /*M!100600 OR REPLACE */ PROCEDURE lockkeeper_fence_shared(
  IN p_resource text CHARACTER SET utf8mb4, IN p_token bigint,
  IN p_store varchar(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE seen_token, seen_shared bigint;
  DECLARE seen_store varchar(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
  DECLARE said varchar(128) CHARACTER SET utf8mb4;
  DECLARE entry varbinary(600);
  IF p_resource IS NULL OR LENGTH(p_resource) NOT BETWEEN 1 AND 512 THEN
    SIGNAL SQLSTATE '45LK3' SET MESSAGE_TEXT = 'LK003 a resource has a name of 1 to 512 bytes';
  ELSEIF p_token IS NULL OR p_token NOT BETWEEN 1 AND 9007199254740991 THEN
    SIGNAL SQLSTATE '45LK3' SET MESSAGE_TEXT = 'LK003 tokens are whole numbers from 1 to 9007199254740991';
  END IF;
  -- Raising the mark needs the row's exclusive lock, and a mark that is high enough only a shared one. Which of them, a
  -- locking read tells too late: two that had read would both want more, and wait for each other; and a plain SELECT
  -- would fix the snapshot. So the session remembers what it has entered last, and a wrong memory is noticed below.
  SET entry = CAST(CONCAT(p_token, ' ', p_resource) AS BINARY);
  IF NOT (@lockkeeper_fence_entered <=> entry) THEN
    INSERT INTO lockkeeper_fences (resource, token, store, shared) VALUES (p_resource, 0, p_store, p_token)
    ON DUPLICATE KEY UPDATE
      store = IF(shared < p_token AND token <= p_token AND COALESCE(store = p_store, TRUE),
        COALESCE(p_store, store), store),
      entered_at = IF(shared < p_token AND token <= p_token AND COALESCE(store = p_store, TRUE),
        CURRENT_TIMESTAMP(6), entered_at),
      shared = IF(shared < p_token AND token <= p_token AND COALESCE(store = p_store, TRUE), p_token, shared);
  END IF;
  SELECT token, store, shared INTO seen_token, seen_store, seen_shared
    FROM lockkeeper_fences WHERE resource = p_resource LOCK IN SHARE MODE;
  SET @lockkeeper_fence_entered = NULL;
  IF seen_store <> p_store THEN
    SET said = CONCAT('LK002 the fence of ''', LEFT(p_resource, 40), ''' has seen store ''', LEFT(seen_store, 12),
      ''', not ''', LEFT(p_store, 12), ''': fence reset?');
    SIGNAL SQLSTATE '45LK2' SET MESSAGE_TEXT = said;
  ELSEIF seen_token > p_token THEN
    SET said = CONCAT('LK001 token ', p_token, ' is stale: the fence of ''', LEFT(p_resource, 40), ''' has seen ', seen_token);
    SIGNAL SQLSTATE '45LK1' SET MESSAGE_TEXT = said;
  ELSEIF seen_shared IS NULL OR seen_shared < p_token THEN
    SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'the fence was reset meanwhile';
  END IF;
  SET @lockkeeper_fence_entered = entry;
END
//

CREATE OR REPLACE VIEW lockkeeper_fence_version AS SELECT 2 AS version
//

DELIMITER ;
