//! The command's own planted bug, for the torture harness; the library's `mutant.rs` says what this is and lists them all.

/// Whether this bug is planted.
#[cfg(lockkeeper_mutants)]
pub(crate) fn planted(name: &str) -> bool {
    std::env::var("LOCKKEEPER_MUTANT").is_ok_and(|chosen| chosen == name)
}

/// Whether this bug is planted: never.
#[cfg(not(lockkeeper_mutants))]
#[inline(always)]
pub(crate) const fn planted(_: &str) -> bool {
    false
}
