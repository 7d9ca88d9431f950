//! What tasks draw from: the seed of the part of the run that they are in.

use super::Worker;
use fastrand::Rng;
use std::path::{Path, PathBuf};

/// The file that says that a part of the run has begun, beside the one that ends the run.
pub(crate) fn part_mark(stop: &Path, part: usize) -> PathBuf {
    stop.with_file_name(format!("part-{part}"))
}

/// The draws of one task or thread.
pub(super) struct Draws {
    task: u32,
    part: usize,
    rng: Rng,
}

impl Draws {
    pub(super) fn new(worker: &Worker, task: u32) -> Self {
        Self { task, part: 0, rng: Self::rng(worker, task, 0) }
    }

    /// What the next section is drawn from: anew, once the next part of the run has begun.
    pub(super) fn now(&mut self, worker: &Worker) -> &mut Rng {
        let begun = |part: usize| part < worker.spec.seeds.len() && part_mark(&worker.spec.stop, part).exists();
        while begun(self.part + 1) {
            self.part += 1;
            self.rng = Self::rng(worker, self.task, self.part);
        }
        &mut self.rng
    }

    fn rng(worker: &Worker, task: u32, part: usize) -> Rng {
        let seed = worker.spec.seeds.get(part).copied().unwrap_or_default();
        Rng::with_seed(seed ^ (u64::from(worker.spec.worker) << 40) ^ (u64::from(task) << 20))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, Sections, Spec, Subject};
    use super::*;
    use crate::history::Log;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;
    use testkit::TempDir;

    fn worker(dir: &TempDir, worker: u32, seeds: &[u64]) -> Worker {
        let spec = Spec {
            worker,
            slot: 0,
            kind: Kind::Async,
            url: String::new(),
            ports: Vec::new(),
            subject: Subject::Lockkeeper,
            history: dir.path().to_owned(),
            socket: PathBuf::new(),
            stop: dir.join("stop"),
            names: Vec::new(),
            ttl: Duration::from_secs(2),
            ttls: vec![1],
            seeds: seeds.to_vec(),
            tasks: 1,
            chaos: false,
            drops: 1,
            sections: Sections::Mixed,
            program: PathBuf::new(),
        };
        Worker { spec, log: Log::open(dir.path(), "worker.jsonl").unwrap(), next: AtomicU32::new(0) }
    }

    #[test]
    fn every_part_of_a_run_has_the_draws_of_its_own_seed() {
        let dir = TempDir::new();
        let both = worker(&dir, 1, &[1, 7]);
        let draw = |draws: &mut Draws| draws.now(&both).u64(..);
        let mut draws = Draws::new(&both, 0);
        let first = draw(&mut draws);
        std::fs::write(part_mark(&both.spec.stop, 0), "").unwrap();
        assert_ne!(draw(&mut draws), first, "the same seed goes on");
        std::fs::write(part_mark(&both.spec.stop, 1), "").unwrap();
        let alone = |worker: &Worker, task| Draws::new(worker, task).now(worker).u64(..);
        let (fixed, drawn) = (worker(&dir, 1, &[1]), worker(&dir, 1, &[7]));
        assert_eq!((first, draw(&mut draws)), (alone(&fixed, 0), alone(&drawn, 0)));
        // A process that begins now begins with the seed of now, and each task has draws of its own.
        assert_eq!(alone(&both, 0), alone(&drawn, 0));
        assert_ne!(alone(&both, 0), alone(&both, 1));
        assert_ne!(alone(&fixed, 0), alone(&worker(&dir, 2, &[1]), 0));
    }
}
