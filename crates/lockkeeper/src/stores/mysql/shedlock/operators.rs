//! What operators see of ShedLock's own applications.

use super::ShedLockStore;
use super::table::MySql;
use crate::error::Result;
use crate::name::{LockName, escape};
use crate::store::{HolderRecord, Mode, Record};
use crate::stores::mysql::values::{bytes, literal, number};
use crate::stores::shared::shedlock::{self, Dialect as _};
use crate::stores::shared::sql::duration;

impl ShedLockStore {
    /// The record of a lock that one of ShedLock's applications holds.
    pub(super) async fn foreign(&self, name: &LockName) -> Result<Option<Record>> {
        let text = format!(
            "SET SESSION time_zone = {}; SET @lk_now = UTC_TIMESTAMP(6); \
             SELECT TIMESTAMPDIFF(MICROSECOND, @lk_now, lock_until), CONVERT(locked_by USING utf8mb4) \
             FROM {} WHERE CONVERT(name USING utf8mb4) = CONVERT({} USING utf8mb4) AND lock_until > @lk_now; \
             SET SESSION time_zone = '+00:00'",
            self.table.zone,
            MySql.quoted(&self.table.name),
            literal(shedlock::key(name).as_bytes())
        );
        let rows = self.base.ask(text).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let mut record = Record::new(name.clone());
        let mut holder = HolderRecord::new(Mode::Exclusive);
        holder.remaining = number(row, 0)?.map(duration);
        record.holders.push(holder);
        let by = bytes(row, 1)?.unwrap_or_default();
        record.remark = Some(format!("held by '{}' in ShedLock's table", escape(&by)));
        Ok(Some(record))
    }
}
