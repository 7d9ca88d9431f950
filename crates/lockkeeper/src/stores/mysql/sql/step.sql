-- One step on one name; the caller has begun a transaction and ends it. `op`: a takes the lock if it is free, n renews,
-- r releases, b breaks the grant with `arg`. `arg` of a release: how long to remember that the claim has ended, 0 for
-- not at all; of any other: the caller's stamp. `life` is that of a waiter's entry.
--
-- One row: code, token, lease, place, since, host, pid, label. code: 1 granted, renewed, ended, broken · 0 held (who is
-- in the way, lease left, place in line) or nothing to end · 2 cancelled, or a waiter's turn has come · 3 another limit
-- is in use (token) · 4 lost (place 1: broken, 2: released) · 5 tokens have run out.
CREATE PROCEDURE `{p}step`(
    p_op CHAR(1) CHARACTER SET ascii, p_name VARBINARY(512), p_holder BINARY(16), p_mode BIGINT, p_ttl BIGINT,
    p_life BIGINT, p_queue TINYINT, p_arg BIGINT, p_keeper BINARY(16), p_host VARBINARY(1024), p_pid BIGINT,
    p_label VARBINARY(1024){shed_params})
    MODIFIES SQL DATA SQL SECURITY INVOKER
step: BEGIN
    DECLARE v_none, v_dirty, v_found TINYINT DEFAULT 0;
    DECLARE v_now, v_token, v_seq, v_expires, v_ttl, v_since, v_pid, v_stamp, v_lease BIGINT;
    DECLARE v_others INT DEFAULT 0;
    DECLARE v_holder, v_keeper BINARY(16);
    DECLARE v_host, v_label VARBINARY(1024);
    DECLARE w_holder, w_keeper BINARY(16);
    DECLARE w_mode, w_ttl, w_expires, w_pid, w_stamp, w_held, w_limit BIGINT;
    DECLARE w_host, w_label VARBINARY(1024);
    DECLARE my_kind TINYINT;
    DECLARE my_seq, my_token, my_expires, my_ttl, my_lease, my_mode BIGINT;
    DECLARE my_reason CHAR(1);
    DECLARE a_code INT DEFAULT NULL;
    DECLARE a_place INT;
    DECLARE a_token, a_lease, a_since, a_pid BIGINT;
    DECLARE a_host, a_label VARBINARY(1024);
--shed    DECLARE v_until BIGINT;
--shed    DECLARE v_by VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
--shed    DECLARE v_foreign, v_owned TINYINT DEFAULT 0;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_none = 1;

    -- Behind a proxy that lends sessions out, settings may be another's: times would be wrong, or waiters overlooked.
    IF @@session.time_zone <> '+00:00' OR @@session.{isolation} <> 'READ-COMMITTED' THEN
        SIGNAL SQLSTATE 'LK001' SET MESSAGE_TEXT = 'the session is not set up as it was';
    END IF;
    -- The row is locked before anything else is read: what is read later was committed before.
    SELECT token, seq, others, holder, expires, ttl, since, host, pid, label, keeper, stamp, lease
    INTO v_token, v_seq, v_others, v_holder, v_expires, v_ttl, v_since, v_host, v_pid, v_label, v_keeper, v_stamp, v_lease
    FROM `{p}lock` WHERE name = p_name FOR UPDATE;
    IF v_none THEN
        IF p_op IN ('n', 'b') OR (p_op = 'r' AND p_arg = 0) THEN
            SELECT IF(p_op = 'n', 4, 0), NULL, NULL, NULL, NULL, NULL, NULL, NULL;
            LEAVE step;
        END IF;
        INSERT INTO `{p}lock` (name) VALUES (p_name) ON DUPLICATE KEY UPDATE seq = seq;
        SET v_none = 0;
        SELECT token, seq, others, holder, expires, ttl, since, host, pid, label, keeper, stamp, lease
        INTO v_token, v_seq, v_others, v_holder, v_expires, v_ttl, v_since, v_host, v_pid, v_label, v_keeper, v_stamp, v_lease
        FROM `{p}lock` WHERE name = p_name FOR UPDATE;
        IF v_none THEN
            -- Removed as unused between the two: as if the call had not arrived.
            SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT = 'the lock''s row was removed meanwhile', MYSQL_ERRNO = 1213;
        END IF;
    END IF;
    -- SYSDATE is the time of now, NOW() that of the statement's beginning, before it waited for the row.
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', SYSDATE(6));

    IF v_holder IS NOT NULL THEN
        IF v_expires <= v_now THEN
            SET v_holder = NULL, v_dirty = 1;
        ELSEIF v_expires > v_now + v_ttl THEN
            -- A lease longer than its own TTL: the clock was set back.
            SET v_expires = v_now + v_ttl, v_dirty = 1;
        END IF;
    END IF;
--shed    SET time_zone = {zone};
--shed    SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', lock_until), CONVERT(locked_by USING utf8mb4)
--shed    INTO v_until, v_by FROM {table} WHERE name = {key} FOR UPDATE;
--shed    IF v_until IS NULL AND p_op = 'a' THEN
--shed        INSERT IGNORE INTO {table} (name, lock_until, locked_at, locked_by)
--shed        VALUES (p_key, {utc_now}, {utc_now}, '');
--shed        SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', lock_until), CONVERT(locked_by USING utf8mb4)
--shed        INTO v_until, v_by FROM {table} WHERE name = {key} FOR UPDATE;
--shed    END IF;
--shed    SET time_zone = '+00:00';
--shed    SET v_owned = COALESCE(v_by LIKE CONCAT('%{mark}', v_token), 0);
--shed    IF v_holder IS NOT NULL AND (NOT v_owned OR v_until <= v_now) THEN
--shed        -- Somebody else ended it, or took it over.
--shed        SET v_holder = NULL, v_dirty = 1;
--shed    END IF;
--shed    SET v_foreign = COALESCE(v_until > v_now AND NOT v_owned, 0);
    IF v_others > 0 THEN
        IF p_op = 'n' THEN
            -- The place is refreshed first: a keep-alive that arrives in time must not lose it to the sweep.
            UPDATE `{p}claim` SET ttl = p_life, stamp = p_arg, keeper = p_keeper, expires = v_now + p_life
            WHERE name = p_name AND holder = p_holder AND kind = 1 AND expires > v_now;
        END IF;
        UPDATE `{p}claim` SET expires = v_now + ttl WHERE name = p_name AND expires > v_now + ttl;
        DELETE FROM `{p}claim` WHERE name = p_name AND expires <= v_now;
        IF ROW_COUNT() > 0 THEN
            SET v_others = (SELECT COUNT(*) FROM `{p}claim` WHERE name = p_name), v_dirty = 1;
        END IF;
    END IF;

    IF p_op = 'r' THEN
        IF v_holder = p_holder THEN
            SET v_holder = NULL, v_dirty = 1, v_found = 1;
        ELSEIF v_others > 0 THEN
            DELETE FROM `{p}claim` WHERE name = p_name AND holder = p_holder AND kind <> 2;
            IF ROW_COUNT() > 0 THEN
                SET v_found = 1, v_dirty = 1, v_others = v_others - 1;
            END IF;
        END IF;
        -- Also when something was found: the call that made it may have been a repeat of one still on its way.
        IF p_arg > 0 AND NOT EXISTS (SELECT 1 FROM `{p}claim` WHERE name = p_name AND holder = p_holder) THEN
            SET v_seq = v_seq + 1, v_others = v_others + 1, v_dirty = 1;
            INSERT INTO `{p}claim` (name, holder, kind, seq, expires, ttl, reason)
            VALUES (p_name, p_holder, 2, v_seq, v_now + p_arg, p_arg, 'r');
        END IF;
        SET a_code = v_found;
    ELSEIF p_op = 'b' THEN
        IF v_holder IS NOT NULL AND v_token = p_arg THEN
            SET v_seq = v_seq + 1, v_others = v_others + 1, v_found = 1, v_dirty = 1;
            INSERT INTO `{p}claim` (name, holder, kind, seq, expires, ttl, reason)
            VALUES (p_name, v_holder, 2, v_seq, v_expires + {tomb}, v_ttl + {tomb}, 'b');
            SET v_holder = NULL;
        ELSEIF v_others > 0 THEN
            UPDATE `{p}claim` SET kind = 2, reason = 'b', lease = NULL, keeper = NULL, expires = expires + {tomb}, ttl = ttl + {tomb}
            WHERE name = p_name AND kind = 0 AND token = p_arg;
            SET v_found = ROW_COUNT() > 0;
        END IF;
        SET a_code = v_found;
        IF v_found THEN
            SET v_token = GREATEST(v_token + 1, v_now), v_dirty = 1, a_token = v_token;
            IF v_token > {last} THEN
                SET v_token = {last}, a_code = 5;
            END IF;
        END IF;
    END IF;

    -- Whoever is first in line and fits is let in. The lease is the entry's short life: a waiter that died in line costs
    -- the others no more than that.
    line: WHILE v_others > 0 AND v_holder IS NULL AND v_token < {last} DO
        SET v_none = 0;
        SELECT holder, mode, ttl, expires, host, pid, label, keeper, stamp
        INTO w_holder, w_mode, w_ttl, w_expires, w_host, w_pid, w_label, w_keeper, w_stamp
        FROM `{p}claim` WHERE name = p_name AND kind = 1 ORDER BY seq LIMIT 1;
        IF v_none THEN LEAVE line; END IF;
        SELECT COUNT(*), MAX(mode) INTO w_held, w_limit FROM `{p}claim` WHERE name = p_name AND kind = 0;
        IF w_held > 0 AND (w_mode = 0 OR w_mode <> w_limit OR (w_mode > 0 AND w_held >= w_mode)) THEN LEAVE line; END IF;
        SET v_token = GREATEST(v_token + 1, v_now), v_dirty = 1;
        IF w_mode = 0 THEN
            DELETE FROM `{p}claim` WHERE name = p_name AND holder = w_holder;
            SET v_others = v_others - 1, v_holder = w_holder, v_expires = GREATEST(v_now + w_ttl, w_expires),
                v_ttl = w_ttl, v_since = v_now, v_host = w_host, v_pid = w_pid, v_label = w_label, v_keeper = w_keeper,
                v_stamp = w_stamp, v_lease = w_ttl;
        ELSE
            UPDATE `{p}claim` SET kind = 0, token = v_token, since = v_now, lease = w_ttl,
                expires = GREATEST(v_now + w_ttl, w_expires)
            WHERE name = p_name AND holder = w_holder;
        END IF;
    END WHILE;

    IF p_op IN ('a', 'n') AND v_others > 0 THEN
        SELECT kind, seq, token, expires, ttl, lease, mode, reason
        INTO my_kind, my_seq, my_token, my_expires, my_ttl, my_lease, my_mode, my_reason
        FROM `{p}claim` WHERE name = p_name AND holder = p_holder;
    END IF;
    IF p_op = 'a' THEN
        IF my_kind = 2 THEN
            SET a_code = 2;
        ELSEIF v_holder = p_holder THEN
            SET a_code = 1, a_token = v_token, a_lease = v_expires - v_now;
            IF v_lease IS NOT NULL THEN
                SET v_lease = NULL, v_keeper = NULL, v_stamp = NULL, v_dirty = 1;
            END IF;
        ELSEIF my_kind = 0 THEN
            SET a_code = 1, a_token = my_token, a_lease = my_expires - v_now;
            UPDATE `{p}claim` SET lease = NULL, keeper = NULL, stamp = NULL WHERE name = p_name AND holder = p_holder;
        ELSE
            IF p_mode > 0 AND v_others > 0 THEN
                SELECT mode INTO a_token FROM `{p}claim`
                WHERE name = p_name AND kind < 2 AND mode > 0 AND mode <> p_mode LIMIT 1;
            END IF;
            IF a_token IS NOT NULL THEN
                SET a_code = 3;
            ELSEIF my_kind = 1 THEN
                UPDATE `{p}claim` SET ttl = p_life, stamp = p_arg, keeper = p_keeper, expires = v_now + p_life
                WHERE name = p_name AND holder = p_holder;
                SET a_code = 0, a_place = (SELECT COUNT(*) FROM `{p}claim` WHERE name = p_name AND kind = 1 AND seq <= my_seq);
            ELSEIF v_token >= {last} THEN
                SET a_code = 5;
            ELSE
                SET w_held = 0, w_limit = 0, w_mode = 0;
                IF v_others > 0 THEN
                    SELECT COALESCE(SUM(kind = 0), 0), COALESCE(SUM(kind = 1), 0), MAX(IF(kind = 0, mode, NULL))
                    INTO w_held, w_limit, w_mode FROM `{p}claim` WHERE name = p_name AND kind < 2;
                END IF;
                IF v_holder IS NULL{not_foreign} AND w_limit = 0 AND (w_held = 0
                    OR (p_mode <> 0 AND p_mode = w_mode AND (p_mode < 0 OR w_held < p_mode))) THEN
                    SET v_token = GREATEST(v_token + 1, v_now), v_dirty = 1;
                    SET a_code = 1, a_token = v_token, a_lease = p_ttl;
                    IF p_mode = 0 THEN
                        SET v_holder = p_holder, v_expires = v_now + p_ttl, v_ttl = p_ttl, v_since = v_now,
                            v_host = p_host, v_pid = p_pid, v_label = p_label, v_keeper = NULL, v_stamp = NULL, v_lease = NULL;
                    ELSE
                        SET v_seq = v_seq + 1, v_others = v_others + 1;
                        INSERT INTO `{p}claim` (name, holder, kind, seq, mode, token, expires, ttl, since, host, pid, label)
                        VALUES (p_name, p_holder, 0, v_seq, p_mode, v_token, v_now + p_ttl, p_ttl, v_now, p_host, p_pid, p_label);
                    END IF;
                ELSE
                    SET a_code = 0;
                    IF p_queue THEN
                        SET v_seq = v_seq + 1, v_others = v_others + 1, v_dirty = 1, a_place = w_limit + 1;
                        INSERT INTO `{p}claim` (name, holder, kind, seq, mode, expires, ttl, since, host, pid, label, keeper, stamp)
                        VALUES (p_name, p_holder, 1, v_seq, p_mode, v_now + p_life, p_life, v_now, p_host, p_pid, p_label, p_keeper, p_arg);
                    END IF;
                END IF;
            END IF;
        END IF;
    ELSEIF p_op = 'n' THEN
        -- Never shorter: a delayed renewal must not take back what a later one gave.
        IF v_holder = p_holder THEN
            SET a_code = IF(v_lease IS NULL, 1, 2), a_token = v_token, v_ttl = GREATEST(p_ttl, LEAST(v_ttl, v_expires - v_now)),
                v_expires = v_now + v_ttl, v_lease = NULL, v_keeper = NULL, v_stamp = NULL, v_dirty = 1;
        ELSEIF my_kind = 0 THEN
            SET a_code = IF(my_lease IS NULL, 1, 2), a_token = my_token, my_ttl = GREATEST(p_ttl, LEAST(my_ttl, my_expires - v_now));
            UPDATE `{p}claim` SET ttl = my_ttl, expires = v_now + my_ttl, lease = NULL, keeper = NULL, stamp = NULL
            WHERE name = p_name AND holder = p_holder;
        ELSEIF my_kind = 1 THEN
            SET a_code = 0, a_place = (SELECT COUNT(*) FROM `{p}claim` WHERE name = p_name AND kind = 1 AND seq <= my_seq);
        ELSE
            SET a_code = 4, a_place = CASE my_reason WHEN 'b' THEN 1 WHEN 'r' THEN 2 END;
        END IF;
    END IF;

    -- Who is in the way: the holder whose lease ends last, since a waiter has to outwait that one.
    IF a_code = 0 AND p_op IN ('a', 'n') THEN
        IF v_holder IS NOT NULL THEN
            SET a_token = v_token, a_lease = v_expires - v_now, a_since = v_since, a_host = v_host, a_pid = v_pid, a_label = v_label;
--shed        ELSEIF v_foreign THEN
--shed            SET a_lease = v_until - v_now;
        ELSEIF v_others > 0 THEN
            SELECT token, expires - v_now, since, host, pid, label INTO a_token, a_lease, a_since, a_host, a_pid, a_label
            FROM `{p}claim` WHERE name = p_name AND kind = 0 ORDER BY expires DESC LIMIT 1;
        END IF;
    END IF;
    IF v_dirty THEN
        IF v_holder IS NULL THEN
            UPDATE `{p}lock` SET token = v_token, seq = v_seq, others = v_others, holder = NULL, expires = NULL, ttl = NULL,
                since = NULL, host = NULL, pid = NULL, label = NULL, keeper = NULL, stamp = NULL, lease = NULL
            WHERE name = p_name;
        ELSE
            UPDATE `{p}lock` SET token = v_token, seq = v_seq, others = v_others, holder = v_holder, expires = v_expires,
                ttl = v_ttl, since = v_since, host = v_host, pid = v_pid, label = v_label, keeper = v_keeper,
                stamp = v_stamp, lease = v_lease
            WHERE name = p_name;
        END IF;
    END IF;
--shed    IF v_dirty AND (v_holder IS NOT NULL OR v_owned) THEN
--shed        SET time_zone = {zone};
--shed        IF v_holder IS NULL THEN
--shed            UPDATE {table} SET lock_until = LEAST(lock_until, {utc_now})
--shed            WHERE name = {key};
--shed        ELSE
--shed            UPDATE {table} SET lock_until = {utc_end},
--shed                locked_at = IF(p_op = 'a' AND a_code = 1, {utc_now}, locked_at),
--shed                locked_by = IF(p_op = 'a' AND a_code = 1, CONCAT(p_by, '{mark}', v_token), locked_by)
--shed            WHERE name = {key};
--shed        END IF;
--shed        SET time_zone = '+00:00';
--shed    END IF;
    SELECT a_code, a_token, a_lease, a_place, a_since, a_host, a_pid, a_label;
END
