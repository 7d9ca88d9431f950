//! A directory of a test's own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A fresh directory, removed at the end.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes one.
    #[allow(clippy::new_without_default, reason = "it creates a directory: not a value to have by default")]
    pub fn new() -> Self {
        Self::inside(&std::env::temp_dir())
    }

    /// Makes one in memory where the system has such a place: for servers that write everything to disk before they
    /// answer. What is there outlives a killed server all the same.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        Self::inside(&if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() })
    }

    fn inside(parent: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("lockkeeper-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        std::fs::create_dir_all(&path).expect("the temporary directory is writable");
        Self(path.canonicalize().expect("it was just created"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A path inside it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file's text, without white space at its ends; `None` when it does not exist or is still empty.
    pub fn read(&self, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The file in one of its directories that was written last, of those with such a name.
    pub(crate) fn newest(&self, directory: &str, named: impl Fn(&str) -> bool) -> Option<PathBuf> {
        let files = std::fs::read_dir(self.join(directory)).into_iter().flatten().flatten();
        let files = files.filter(|file| file.file_name().to_str().is_some_and(&named));
        let newest = files.max_by_key(|file| file.metadata().and_then(|data| data.modified()).ok());
        newest.map(|file| file.path())
    }

    /// Writes a file.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.join(name);
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).expect("the directory is ours");
        }
        std::fs::write(&path, text).expect("the directory is ours");
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
