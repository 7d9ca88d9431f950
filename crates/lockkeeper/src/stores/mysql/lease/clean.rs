//! Removes what was unused for a day: the clock is above its token by then, so the next one is higher without it.

use super::MysqlStore;
use super::procedure;
use crate::error::Result;
use crate::name::LockName;
use crate::stores::mysql::values::{NOW, bytes, literal, literals, number};
use crate::stores::shared::clean::CLEAN_EVERY;
use crate::stores::shared::timing::ASK_LIMIT;
use std::convert::Infallible;
use std::time::Duration;

/// How many rows one round looks at.
const ROWS: usize = 1_000;

/// A day, in microseconds.
const DAY: &str = "86400000000";

/// The pause when there is more to remove than one round does.
const MORE: Duration = Duration::from_secs(1);

impl MysqlStore {
    /// Removes unused rows whenever it is due; never ends. Nothing depends on it.
    pub(in crate::stores::mysql) async fn tidy(&self) -> Infallible {
        self.due.tidy(MORE, || self.remove_unused()).await
    }

    /// One round of what `tend` does now and then; whether there may be more to remove.
    ///
    /// # Errors
    /// What the server answers.
    #[cfg(feature = "internals")]
    pub async fn clean(&self) -> Result<bool> {
        self.remove_unused().await
    }

    /// One round, unless another keeper has had one lately; whether there may be more to remove.
    async fn remove_unused(&self) -> Result<bool> {
        let p = self.prefix();
        let ask = format!(
            "SET @lk_now = {NOW}; UPDATE `{p}layout` SET cleaned = @lk_now WHERE cleaned < @lk_now - {} OR cleaned > @lk_now; \
             SELECT ROW_COUNT(), NULL UNION ALL SELECT 0, reached FROM `{p}layout`",
            CLEAN_EVERY.as_micros()
        );
        let rows = self.ask(ask).await?;
        if rows.first().map_or(Ok(None), |row| number(row, 0))? != Some(1) {
            return Ok(false);
        }
        let reached = rows.get(1).map_or(Ok(None), |row| bytes(row, 1))?.unwrap_or_default();
        let (last, removed) = self.clean_locks(&reached).await?;
        let unused = format!("< @lk_now - {DAY}");
        let others = self.ask(format!(
            "SET @lk_now = {NOW}; \
             DELETE FROM `{p}register` WHERE used {unused} AND (value IS NULL OR ends < @lk_now) LIMIT {ROWS}; \
             SELECT ROW_COUNT() >= {ROWS}; \
             DELETE FROM `{p}session` WHERE token {unused} AND IS_USED_LOCK(lock_key) IS NULL LIMIT {ROWS}; \
             SELECT ROW_COUNT() >= {ROWS}"
        ));
        // Names used once each would otherwise pile up faster than rows are looked at.
        let mut more = last.is_some() && removed >= ROWS / 10;
        for row in others.await? {
            more |= number(&row, 0)? == Some(1);
        }
        let again = if more { ", cleaned = 0" } else { "" };
        self.ask(format!("UPDATE `{p}layout` SET reached = {}{again}", literal(&last.unwrap_or_default()))).await?;
        Ok(more)
    }

    /// Looks at the rows after `reached`: where to go on (`None` at the end), and how many were removed.
    async fn clean_locks(&self, reached: &[u8]) -> Result<(Option<Vec<u8>>, usize)> {
        let p = self.prefix();
        let unused = format!("token < @lk_now - {DAY} AND (expires IS NULL OR expires < @lk_now)");
        let text = format!(
            "SET @lk_now = {NOW}; SELECT name, {unused}, others FROM `{p}lock` WHERE name > {} ORDER BY name LIMIT {ROWS}",
            literal(reached)
        );
        let rows = self.ask(text).await?;
        let (mut old, mut crowded) = (Vec::new(), Vec::new());
        for row in &rows {
            if number(row, 1)? == Some(1) {
                let name = LockName::new(bytes(row, 0)?.unwrap_or_default())?;
                if number(row, 2)? != Some(0) {
                    crowded.push(procedure::sweep(p, self.is_shed(), &name));
                }
                old.push(name);
            }
        }
        if !crowded.is_empty() {
            self.connections.steps(crowded, ASK_LIMIT).await?;
        }
        let last =
            (rows.len() == ROWS).then(|| rows.last().map_or(Ok(None), |row| bytes(row, 0))).transpose()?.flatten();
        if old.is_empty() {
            return Ok((last, 0));
        }
        let names = literals(old.iter().map(LockName::as_bytes));
        let text =
            format!("SET @lk_now = {NOW}; DELETE FROM `{p}lock` WHERE others = 0 AND {unused} AND name IN ({names})");
        self.ask(text).await?;
        Ok((last, old.len()))
    }
}
