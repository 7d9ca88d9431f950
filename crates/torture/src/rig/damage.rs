//! What happens to the log of a server while it does not run.

use fastrand::Rng;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;

/// A damage to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// Its last record is torn, as when the power fails.
    Torn,
    /// Some of its bits are flipped, as on a worn disk.
    Flipped,
}

/// How long the heads of logs are at most. A server does not start with half of one, and that shows nothing.
const HEAD: usize = 16;

/// How many bits are flipped: one in a record that is read is enough.
const BITS: usize = 8;

impl Damage {
    /// Damages a log; `false` when it has no records yet.
    pub(crate) fn act(self, log: &Path, rng: &mut Rng) -> io::Result<bool> {
        let mut bytes = std::fs::read(log)?;
        // Servers reserve more than they have written; the rest is zeros.
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if used < HEAD + 8 {
            return Ok(false);
        }
        match self {
            Self::Torn => OpenOptions::new().write(true).open(log)?.set_len(used as u64 - 8)?,
            Self::Flipped => {
                for _ in 0..BITS {
                    bytes[rng.usize(HEAD..used)] ^= 1 << rng.u32(..8);
                }
                std::fs::write(log, bytes)?;
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::TempDir;

    #[test]
    fn only_what_was_written_after_the_head_is_damaged() {
        let (dir, mut rng) = (TempDir::new(), Rng::with_seed(1));
        let whole = [vec![1; 40], vec![0; 1000]].concat();
        let mut after = |damage: Damage, log: &[u8]| {
            let path = dir.join("log");
            std::fs::write(&path, log).unwrap();
            let done = damage.act(&path, &mut rng).unwrap();
            (done, std::fs::read(&path).unwrap())
        };
        assert_eq!(after(Damage::Torn, &whole), (true, vec![1; 32]));
        let (done, flipped) = after(Damage::Flipped, &whole);
        assert!(done && flipped != whole && flipped[..HEAD] == whole[..HEAD] && flipped[40..] == whole[40..]);
        for damage in [Damage::Torn, Damage::Flipped] {
            assert_eq!(after(damage, &[1; HEAD + 7]), (false, vec![1; HEAD + 7]), "nothing but a head");
        }
    }
}
