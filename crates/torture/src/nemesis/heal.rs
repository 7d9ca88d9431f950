//! What ends a fault.

use super::Stage;
use crate::link::Link;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;
use testkit::{Signal, signal};

/// The end of a fault that lasts.
pub(super) enum Heal {
    Continue(Vec<i32>),
    /// As `Continue`, of a machine that was suspended since then.
    Wake(usize, Vec<i32>, Instant),
    Feed(Arc<AtomicBool>, JoinHandle<()>),
    Resume(usize),
    Start(usize),
    /// Of a node whose log is damaged.
    Mend(usize),
    SetClock(usize),
    ClearDisk,
    ThawDisk,
    /// What was held back arrives.
    Deliver(Vec<Link>),
    /// What was held back never arrives.
    Cut(Vec<Link>),
    Nothing,
}

impl Heal {
    /// Ends a fault; what is to be added to its description.
    pub(super) fn act(self, stage: &mut Stage) -> &'static str {
        match self {
            Self::Continue(pids) => pids.into_iter().for_each(|pid| signal(pid, Signal::CONT)),
            Self::Wake(slot, pids, since) => {
                stage.crew.wake(slot, since.elapsed());
                pids.into_iter().for_each(|pid| signal(pid, Signal::CONT));
            }
            Self::Feed(fed, thread) => {
                fed.store(true, Ordering::Relaxed);
                let _ = thread.join();
            }
            Self::Resume(node) => stage.rig.resume(node),
            Self::Start(node) => {
                stage.rig.start(node);
                follow(stage);
            }
            Self::Mend(node) => {
                if !stage.rig.mend(node) {
                    return "; it was noticed, and the node replaced";
                }
            }
            Self::SetClock(node) => stage.rig.step_clock(node, 0),
            Self::ClearDisk => stage.rig.clear_disk(),
            Self::ThawDisk => stage.rig.thaw_disk(),
            Self::Deliver(links) => links.iter().for_each(Link::deliver),
            Self::Cut(links) => {
                for link in &links {
                    link.reset();
                    link.deliver();
                }
            }
            Self::Nothing => {}
        }
        ""
    }
}

/// Links lead to where the nodes are now: the address of a pair moves with its primary.
pub(super) fn follow(stage: &Stage) {
    for (node, port) in stage.rig.ports().into_iter().enumerate() {
        let of_operator = stage.ways.get(node).cloned();
        for link in stage.crew.links_to(node).into_iter().chain(of_operator) {
            link.retarget(port);
        }
    }
}
