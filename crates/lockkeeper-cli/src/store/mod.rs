//! Which store to use: `--store`, `LOCKKEEPER_STORE`, `LOCKKEEPER_STORE_FILE`, `config.toml`, the user's own file.
//!
//! Only the user's own file, which the user did not ask for, is announced: it excludes neither other machines nor other
//! users.

mod identity;
mod local;
mod redact;

pub(crate) use identity::identity;
pub(crate) use redact::{for_child, has_secret};

use crate::exit::Failure;
use crate::output;
use lockkeeper::Keeper;
use lockkeeper::name::escape;
use serde::Deserialize;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A store that was chosen, not yet opened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    url: String,
    /// What the user should know about the choice.
    pub(crate) notices: Vec<String>,
}

impl Chosen {
    fn at(url: String) -> Self {
        Self { url, notices: Vec::new() }
    }

    fn with(mut self, notice: Option<String>) -> Self {
        self.notices.extend(notice);
        self
    }

    /// The URL, with its secret.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A connection for operators' commands.
    pub(crate) async fn connect(&self) -> Result<Keeper, Failure> {
        self.notices.iter().for_each(|notice| output::say(notice));
        Ok(Keeper::connect(&self.url).await?)
    }

    /// The URL to hand to a child: absolute, and without its secret.
    pub(crate) fn url_for_child(&self) -> String {
        for_child(&self.url)
    }
}

/// What `config.toml` may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    store: Option<String>,
}

/// Chooses the store.
pub(crate) fn choose(flag: Option<&str>) -> Result<Chosen, Failure> {
    if let Some(url) = flag {
        let warning = "--store shows its secret to every user who can list processes; use LOCKKEEPER_STORE_FILE";
        return Ok(named(url, "--store")?.with(has_secret(url).then(|| warning.to_owned())));
    }
    if let Some(url) = env("LOCKKEEPER_STORE") {
        let url = url.into_string().map_err(|_| Failure::config("LOCKKEEPER_STORE is not UTF-8"))?;
        return named(&url, "LOCKKEEPER_STORE");
    }
    if let Some(file) = env("LOCKKEEPER_STORE_FILE") {
        let file = PathBuf::from(file);
        let shown = path(&file);
        let url = read(&file)?
            .ok_or_else(|| Failure::config(format!("LOCKKEEPER_STORE_FILE names '{shown}', which does not exist")))?;
        return Ok(named(url.trim(), &format!("the file '{shown}'"))?.with(readable_by_others(&file)));
    }
    for file in config_files() {
        let Some(text) = read(&file)? else { continue };
        let config: Config = toml::from_str(&text).map_err(|e| {
            let why = escape(e.message().as_bytes());
            Failure::config(format!("'{}' is not valid: {why} (the only key is store)", path(&file)))
        })?;
        if let Some(url) = config.store {
            let warning = readable_by_others(&file).filter(|_| has_secret(&url));
            return Ok(named(&url, &format!("'{}'", path(&file)))?.with(warning));
        }
    }
    let file = local::file()?;
    let notice = format!("local store {}: excludes only this user on this machine", path(&file));
    Ok(Chosen::at(sqlite_url(&file)).with(Some(notice)))
}

fn named(url: &str, source: &str) -> Result<Chosen, Failure> {
    match url {
        "" => Err(Failure::config(format!("{source} is empty; it must be a store URL or \"local\""))),
        "local" => Ok(Chosen::at(sqlite_url(&local::file()?))),
        url if url.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("memory:")) => {
            Err(Failure::config(format!(
                "{source} is memory:, which lives inside one process and would exclude no other process; name a file: sqlite:PATH"
            )))
        }
        url => Ok(Chosen::at(url.to_owned())),
    }
}

/// A variable that is set to something.
pub(crate) fn env(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|v| !v.is_empty())
}

fn config_files() -> Vec<PathBuf> {
    let user = env("XDG_CONFIG_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let user = user.or_else(|| env("HOME").map(|home| Path::new(&home).join(".config")));
    let system = env("LOCKKEEPER_TEST_ETC").unwrap_or_else(|| "/etc".into());
    user.into_iter().chain([system.into()]).map(|dir| dir.join("lockkeeper/config.toml")).collect()
}

/// A file's text, `None` when there is no such file.
pub(crate) fn read(file: &Path) -> Result<Option<String>, Failure> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(Failure::config(format!("cannot read '{}': {e}", path(file)))),
    }
}

/// A warning when others can read a file that may hold a secret.
pub(crate) fn readable_by_others(file: &Path) -> Option<String> {
    let mode = std::fs::metadata(file).ok()?.permissions().mode() & 0o777;
    let warning =
        || format!("'{0}' has mode {mode:04o}, so others can read the store's URL; chmod 0600 '{0}'", path(file));
    (mode & 0o077 != 0).then(warning)
}

pub(crate) fn path(path: &Path) -> String {
    escape(path.as_os_str().as_encoded_bytes())
}

/// `sqlite:` with a path; what would be read as part of the URL is encoded.
fn sqlite_url(file: &Path) -> String {
    let mut url = "sqlite:".to_owned();
    for c in file.to_string_lossy().chars() {
        match c {
            '%' => url.push_str("%25"),
            '?' => url.push_str("%3F"),
            c => url.push(c),
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_its_url() {
        assert_eq!(sqlite_url(Path::new("/a?b/100%.db")), "sqlite:/a%3Fb/100%25.db");
    }

    #[test]
    fn an_unknown_key_is_named_with_the_known_one() {
        let error = toml::from_str::<Config>("stroe = 'x'").unwrap_err();
        assert!(error.message().contains("stroe") && error.message().contains("store"), "{}", error.message());
    }
}
