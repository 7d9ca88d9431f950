//! Pipes between the processes of one `lockkeeper`: a descriptor goes by its number to a program that is started, and is opened
//! there anew.

use crate::exit::Failure;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Result;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Lets the next started program inherit a descriptor. Returns its number, for the program's arguments.
pub(super) fn hand_down(end: &(impl AsFd + AsRawFd)) -> Result<String> {
    rustix::io::fcntl_setfd(end, rustix::io::FdFlags::empty())?;
    Ok(end.as_raw_fd().to_string())
}

/// Opens an inherited descriptor: `open` gets a path to it. The new descriptor is not inherited further, and the
/// inherited one is closed.
pub(super) fn take_up<T>(number: &OsStr, open: impl FnOnce(PathBuf) -> Result<T>) -> Result<T> {
    let number: RawFd = number.to_str().and_then(|n| n.parse().ok()).ok_or(std::io::ErrorKind::InvalidInput)?;
    let opened = open(PathBuf::from(format!("/proc/self/fd/{number}")))?;
    nix::unistd::close(number)?;
    Ok(opened)
}

/// The writing end of an inherited pipe. It never blocks: a write without a reader is dropped.
pub(super) fn writer(number: &OsStr) -> Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    take_up(number, |path| File::options().write(true).custom_flags(flags).open(path))
}

/// The path of this program, by its link in `/proc`, so that an upgrade under way does not matter.
pub(super) const OURSELVES: &str = "/proc/self/exe";

/// Fails where `/proc` does not show this process. Inherited descriptors and the command's tree are found through
/// `/proc`.
pub(crate) fn check() -> std::result::Result<(), Failure> {
    match super::processes::us() {
        Some(_) => Ok(()),
        None => Err(Failure::system(
            "/proc does not show this process; lockkeeper needs it to find what the command starts",
        )),
    }
}
