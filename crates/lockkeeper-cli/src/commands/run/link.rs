//! Pipes between the processes of one `run`: a descriptor goes by its number to a program that is started, and is opened
//! there anew.

use crate::exit::Failure;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Result;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Lets the next program that is started have a descriptor; its number, for the program's arguments.
pub(super) fn hand_down(end: &(impl AsFd + AsRawFd)) -> Result<String> {
    rustix::io::fcntl_setfd(end, rustix::io::FdFlags::empty())?;
    Ok(end.as_raw_fd().to_string())
}

/// Opens what was handed down: `open` gets a path to it. What is opened anew goes to no further program, and the
/// descriptor that would go is closed.
pub(super) fn take_up<T>(number: &OsStr, open: impl FnOnce(PathBuf) -> Result<T>) -> Result<T> {
    let number: RawFd = number.to_str().and_then(|n| n.parse().ok()).ok_or(std::io::ErrorKind::InvalidInput)?;
    let opened = open(PathBuf::from(format!("/proc/self/fd/{number}")))?;
    nix::unistd::close(number)?;
    Ok(opened)
}

/// The writing end of what was handed down. It never blocks: without a reader there is nothing to tell.
pub(super) fn writer(number: &OsStr) -> Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    take_up(number, |path| File::options().write(true).custom_flags(flags).open(path))
}

/// This program; by its own link, so that an upgrade under way does not matter.
pub(super) const OURSELVES: &str = "/proc/self/exe";

/// Fails where there is no `/proc` that shows us: descriptors are handed down and the command's tree is found through it.
pub(super) fn check() -> std::result::Result<(), Failure> {
    match super::processes::us() {
        Some(_) => Ok(()),
        None => Err(Failure::system("/proc does not show this process; run needs it to find what the command starts")),
    }
}
