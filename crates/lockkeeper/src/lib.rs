//! Placeholder.
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod duration;
pub mod error;
pub mod name;
pub mod register;
pub mod store;
pub mod stores;
pub mod token;
pub use error::{Error, ErrorKind, Result};
pub use name::LockName;
pub use store::{Mode, Store};
pub use token::{HolderId, Token};
