//! The process that a keeper belongs to.

/// The process that made the keeper. A child forked from it has copies of the tables, whose locks may be taken for ever, and
/// of the connections, which are its parent's.
///
/// The C library tells of a fork, so a look is no system call. Unlike a process id it also tells in a child that is the
/// first of a new PID namespace, as its parent was. A child made by the system call itself, past the C library, is not noticed.
#[derive(Debug)]
pub(super) enum Home {
    /// Told by the C library.
    Told(forkguard::Guard),
    /// The process id, where the C library had no memory to note that it has to tell.
    Id(u32),
}

impl Home {
    pub(super) fn here() -> Self {
        forkguard::Guard::try_new().map_or_else(|_| Self::Id(std::process::id()), Self::Told)
    }

    /// Whether this is another process.
    pub(super) fn is_left(&self) -> bool {
        match self {
            // The guard tells only once; its copy is asked.
            Self::Told(guard) => guard.clone().detected_fork(),
            Self::Id(id) => *id != std::process::id(),
        }
    }
}
