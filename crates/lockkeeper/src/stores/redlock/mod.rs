//! Locks on a majority of independent Redis primaries.

#[doc(hidden)]
pub mod quorum;
