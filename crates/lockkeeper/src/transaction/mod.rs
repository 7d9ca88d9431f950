//! Locks of your own database transaction: taken beside your own statements, and let go by its commit or rollback.
//!
//! Where the work is one transaction on one database, this is all the locking it needs: nothing to renew, nothing to
//! release, no token, and no way to go on working after the lock is lost. Where it reaches further (a file, another
//! service, several transactions), take a [`Guard`](crate::Guard) and a [fence](crate::fence).

pub mod postgres;
