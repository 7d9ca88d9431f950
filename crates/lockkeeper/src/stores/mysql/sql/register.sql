-- Raises a fence, then reads or writes; the caller has begun a transaction and ends it. One row: code, token, value.
-- code: 1 passed (value) · 0 stale (token seen) · 2 another lock's fence (value: which).
CREATE PROCEDURE `{p}enter`(
    p_name VARBINARY(512), p_lock VARBINARY(512), p_token BIGINT, p_holder BINARY(16), p_write TINYINT,
    p_value MEDIUMBLOB, p_ttl BIGINT)
    MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE v_none TINYINT DEFAULT 0;
    DECLARE v_lock VARBINARY(512);
    DECLARE v_token, v_ends, v_now BIGINT;
    DECLARE v_holder BINARY(16);
    DECLARE v_value MEDIUMBLOB;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_none = 1;
    -- Behind a proxy that lends sessions out, settings may be another's: times would be wrong.
    IF @@session.time_zone <> '+00:00' OR @@session.{isolation} <> 'READ-COMMITTED' THEN
        SIGNAL SQLSTATE 'LK001' SET MESSAGE_TEXT = 'the session is not set up as it was';
    END IF;
    INSERT INTO `{p}register` (name, locked, token, holder, used) VALUES (p_name, p_lock, p_token, p_holder, 0)
    ON DUPLICATE KEY UPDATE used = used;
    SELECT locked, token, holder, ends, value INTO v_lock, v_token, v_holder, v_ends, v_value
    FROM `{p}register` WHERE name = p_name FOR UPDATE;
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', SYSDATE(6));
    IF v_lock <> p_lock THEN
        SELECT 2, NULL, v_lock;
    ELSEIF p_token < v_token OR (p_token = v_token AND p_holder <> v_holder) THEN
        SELECT 0, v_token, NULL;
    ELSE
        -- The TTL ends the value, never the fence.
        IF v_ends <= v_now THEN
            SET v_value = NULL, v_ends = NULL;
        END IF;
        IF p_write THEN
            SET v_value = p_value, v_ends = v_now + p_ttl;
        END IF;
        UPDATE `{p}register` SET token = p_token, holder = p_holder, used = v_now, ends = v_ends, value = v_value
        WHERE name = p_name;
        SELECT 1, NULL, IF(p_write, NULL, v_value);
    END IF;
END
