//! What operators see and do: inspect, list, break.

use super::core::Core;
use super::keys::{BROKEN, name_of, token};
use super::line::{Line, Node};
use super::nodes::who;
use super::session::Session;
use crate::error::Result;
use crate::name::LockName;
use crate::store::{Break, Cursor, Held, HolderRecord, Page, Record, WaiterRecord};
use crate::token::Token;
use std::sync::Arc;
use zookeeper_client::{Error as Driver, MultiWriteError, MultiWriteResult};

/// How many directories without a lock are passed over before a page ends.
const MOST_EMPTY: usize = 10_000;

impl Core {
    pub(super) async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        let session = self.session().await?;
        let dir = self.dir(name);
        let Some(line) = self.line(&session, &dir, true).await? else { return Ok(None) };
        let found = self.read_all(&session, &dir, &line.nodes).await?;
        Ok(record(name, &line, &found))
    }

    /// The data of these children; a child that has gone is left out.
    async fn read_all(&self, session: &Arc<Session>, dir: &str, nodes: &[Node]) -> Result<Vec<(String, Held, i64)>> {
        let paths: Vec<String> = nodes.iter().map(|node| format!("{dir}/{}", node.child)).collect();
        let asked: Vec<_> = paths.iter().map(|path| session.client.get_data(path)).collect();
        let mut found = Vec::with_capacity(nodes.len());
        for (node, asked) in nodes.iter().zip(asked) {
            match asked.await {
                Ok((data, stat)) => found.push((node.child.clone(), who(&data, &stat), stat.czxid)),
                Err(Driver::NoNode) => {}
                Err(e) => return Err(self.failed(session, e)),
            }
        }
        Ok(found)
    }

    pub(super) async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let session = self.session().await?;
        let synced = session.client.sync(self.root());
        let reading = session.client.list_children(self.root());
        synced.await.map_err(|e| self.failed(&session, e))?;
        let dirs = match reading.await {
            Err(Driver::NoNode) => return Ok(Page::default()),
            read => read.map_err(|e| self.failed(&session, e))?,
        };
        let after = cursor.map_or(&[][..], |c| &c.0);
        let mut names: Vec<LockName> = dirs.iter().filter_map(|dir| name_of(dir)).collect();
        names.retain(|name| name.as_bytes().starts_with(prefix) && name.as_bytes() > after);
        names.sort();
        let mut page = Page::default();
        for names in names.chunks(Page::SIZE).take(MOST_EMPTY / Page::SIZE) {
            page.records.extend(self.list_some(&session, names).await?);
            page.next = names.last().map(|last| Cursor(last.as_bytes().to_vec()));
            if page.records.len() >= Page::SIZE {
                break;
            }
        }
        // A cursor at the very end would be followed for nothing.
        if page.next.as_ref().map(|next| &next.0[..]) == names.last().map(LockName::as_bytes) {
            page.next = None;
        }
        Ok(page)
    }

    async fn list_some(&self, session: &Arc<Session>, names: &[LockName]) -> Result<Vec<Record>> {
        let dirs: Vec<String> = names.iter().map(|name| self.dir(name)).collect();
        let asked: Vec<_> = dirs.iter().map(|dir| session.client.get_children(dir)).collect();
        let mut records = Vec::new();
        for ((name, dir), asked) in names.iter().zip(&dirs).zip(asked) {
            let line = match asked.await {
                // A directory with other children is no lock.
                Ok((children, stat)) => match Line::read(children, stat.mzxid) {
                    Ok(line) => line,
                    Err(_) => continue,
                },
                Err(Driver::NoNode | Driver::NoAuth) => continue,
                Err(e) => return Err(self.failed(session, e)),
            };
            let found = self.read_all(session, dir, line.holders()).await?;
            records.extend(record(name, &line, &found));
        }
        Ok(records)
    }

    /// Removes the holder's child and leaves a mark, which is above every claim so far, in one step.
    pub(super) async fn break_lock(&self, name: &LockName, broken: Token) -> Result<Break> {
        let session = self.session().await?;
        let dir = self.dir(name);
        let Some(line) = self.line(&session, &dir, true).await? else { return Ok(Break::NotHeld) };
        let found = self.read_all(&session, &dir, line.holders()).await?;
        let Some((child, _, made)) = found.into_iter().find(|(_, held, _)| held.token == Some(broken)) else {
            return Ok(Break::NotHeld);
        };
        let mut writer = session.client.new_multi_writer();
        let mark = format!("{BROKEN}{made}");
        writer
            .add_delete(&format!("{dir}/{child}"), None)
            .and_then(|()| writer.add_set_data(&dir, mark.as_bytes(), None))
            .map_err(|e| self.failed(&session, e))?;
        match writer.commit().await {
            Ok(done) => match done.last() {
                Some(MultiWriteResult::SetData { stat }) => Ok(Break::Broken(token(stat.mzxid)?)),
                _ => Ok(Break::NotHeld),
            },
            Err(MultiWriteError::OperationFailed { source: Driver::NoNode, .. }) => Ok(Break::NotHeld),
            Err(e) => Err(self.failed(&session, e.into())),
        }
    }
}

/// The state for operators; `None` without holders and waiters. Waiters whose data was not read are only counted.
fn record(name: &LockName, line: &Line, found: &[(String, Held, i64)]) -> Option<Record> {
    if line.nodes.is_empty() {
        return None;
    }
    let mut record = Record::new(name.clone());
    let held = |node: &Node| found.iter().find(|(child, ..)| *child == node.child).map(|(_, held, _)| held);
    let holders = line.holders();
    for node in holders {
        if let Some(held) = held(node) {
            record.holders.push(HolderRecord {
                note: held.holder.clone(),
                token: held.token,
                since: held.since,
                ..HolderRecord::new(node.mode)
            });
        }
    }
    let waiting = &line.nodes[holders.len()..];
    record.waiters.extend(
        waiting.iter().filter_map(|node| held(node).map(|held| WaiterRecord::new(node.mode, held.holder.clone()))),
    );
    record.waiting = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
    Some(record)
}
