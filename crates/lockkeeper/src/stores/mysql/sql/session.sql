-- Takes the session lock `p_key` for `p_name` if it is free, and draws the token while holding it. One row: code, token,
-- since, host, pid, label. code: 1 granted · 0 held, by whom if it is one of us. The session's own lock, `lk-s-` and its
-- id, tells whether a row is about the present holder.
CREATE PROCEDURE `{p}get_lock`(
    p_key VARCHAR(64) CHARACTER SET utf8mb4, p_name VARBINARY(512), p_holder BINARY(16), p_session BINARY(16),
    p_host VARBINARY(1024), p_pid BIGINT, p_label VARBINARY(1024))
    MODIFIES SQL DATA SQL SECURITY INVOKER
take: BEGIN
    DECLARE v_now, v_token, v_since, v_pid BIGINT;
    DECLARE v_host, v_label VARBINARY(1024);
    DECLARE v_mine TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        IF v_mine THEN DO RELEASE_LOCK(p_key); END IF;
        RESIGNAL;
    END;
    IF @@session.time_zone <> '+00:00' THEN
        SIGNAL SQLSTATE 'LK001' SET MESSAGE_TEXT = 'the session is not set up as it was';
    END IF;
    -- A session that asks for what it has is granted it again, counted: not here.
    IF IS_USED_LOCK(p_key) IS NULL THEN
        SET v_mine = COALESCE(GET_LOCK(p_key, 0), 0);
    END IF;
    IF NOT v_mine THEN
        SELECT MAX(token), MAX(since), MAX(host), MAX(pid), MAX(label) INTO v_token, v_since, v_host, v_pid, v_label
        FROM `{p}session` WHERE name = p_name
            AND IS_USED_LOCK(CONVERT(CONCAT('lk-s-', LOWER(HEX(session))) USING utf8mb4)) = IS_USED_LOCK(p_key);
        SELECT 0, v_token, v_since, v_host, v_pid, v_label;
        LEAVE take;
    END IF;
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', SYSDATE(6));
    START TRANSACTION;
    INSERT INTO `{p}session` (name, lock_key, token, holder, session, since, host, pid, label)
    VALUES (p_name, p_key, v_now, p_holder, p_session, v_now, p_host, p_pid, p_label)
    ON DUPLICATE KEY UPDATE token = GREATEST(token + 1, v_now), lock_key = p_key, holder = p_holder, session = p_session,
        since = v_now, host = p_host, pid = p_pid, label = p_label, broken = NULL;
    SELECT token INTO v_token FROM `{p}session` WHERE name = p_name FOR UPDATE;
    IF v_token > {last} THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'tokens have run out';
    END IF;
    COMMIT;
    SELECT 1, v_token, v_now, NULL, NULL, NULL;
END
