//! The tokens file: who may ask for what. Secrets are kept as SHA-256 only.

use super::{Caller, Rule};
use crate::refused::{Answered, Refused};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{NaiveDate, Utc};
use lockkeeper::{Error, ErrorKind, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use subtle::ConstantTimeEq;

/// What a secret begins with, so that scanners of repositories find one that was committed.
const PREFIX: &str = "lk_";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    token: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: String,
    sha256: Hashes,
    expires: Option<toml::value::Datetime>,
    #[serde(default)]
    allow: Vec<Rule>,
}

/// Two are allowed, so that a secret can be replaced without a gap.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Hashes {
    One(String),
    Two(Vec<String>),
}

#[derive(Debug)]
struct Known {
    caller: Caller,
    hashes: Vec<[u8; 32]>,
    expires: Option<NaiveDate>,
}

/// What tells that a file was replaced or changed.
type Version = (u64, i64, i64, u64);

#[derive(Debug)]
struct Loaded {
    known: HashMap<String, Known>,
    version: Version,
}

/// All tokens, read again when the file changes.
#[derive(Debug)]
pub struct Tokens(Kind);

#[derive(Debug)]
enum Kind {
    /// No token is asked for: everything is allowed.
    Open(Caller),
    File {
        path: PathBuf,
        loaded: RwLock<Loaded>,
    },
}

impl Tokens {
    /// Asks for no token and allows everything: for loopback.
    pub fn open() -> Self {
        Self(Kind::Open(Caller { id: "local".into(), rules: [Rule::all()].into() }))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// `Denied` when other users can read it. `InvalidConfig` for what it says, in one sentence without the hashes.
    pub fn read(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let loaded = RwLock::new(load(&path)?);
        Ok(Self(Kind::File { path, loaded }))
    }

    /// Whether a token is asked for.
    pub fn is_open(&self) -> bool {
        matches!(self.0, Kind::Open(_))
    }

    /// Reads the file again if it has changed. A file that cannot be read leaves the tokens as they were.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn refresh(&self) -> Result<bool> {
        let Kind::File { path, loaded } = &self.0 else { return Ok(false) };
        let now = version(path)?;
        if loaded.read().unwrap_or_else(std::sync::PoisonError::into_inner).version == now {
            return Ok(false);
        }
        let fresh = load(path)?;
        *loaded.write().unwrap_or_else(std::sync::PoisonError::into_inner) = fresh;
        Ok(true)
    }

    /// Who sends a request with these headers.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Answered<Caller> {
        if let Some(caller) = self.everyone() {
            return Ok(caller);
        }
        let secret = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer);
        self.log_in(secret.unwrap_or_default()).map(|(caller, _)| caller)
    }

    /// Who everyone is where no token is asked for.
    pub(crate) fn everyone(&self) -> Option<Caller> {
        match &self.0 {
            Kind::Open(caller) => Some(caller.clone()),
            Kind::File { .. } => None,
        }
    }

    /// Whose secret this is, and its hash, by which [`still`](Self::still) knows it later.
    pub(crate) fn log_in(&self, secret: &str) -> Answered<(Caller, [u8; 32])> {
        // Hashed also when the id is unknown, so that the time tells nothing.
        let hash: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
        let id = secret.strip_prefix(PREFIX).and_then(|rest| rest.rsplit_once('_')).map_or("", |(id, _)| id);
        self.still(id, &hash).map(|caller| (caller, hash)).ok_or_else(Refused::unauthenticated)
    }

    /// Whether a secret with this hash still belongs to this token, and counts.
    pub(crate) fn still(&self, id: &str, hash: &[u8; 32]) -> Option<Caller> {
        let Kind::File { loaded, .. } = &self.0 else { return None };
        let loaded = loaded.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let known = loaded.known.get(id);
        let dummy = [[0; 32]];
        let hashes = known.map_or(&dummy[..], |known| &known.hashes);
        let fits = hashes.iter().fold(subtle::Choice::from(0), |fits, other| fits | other.ct_eq(hash));
        let counts = |known: &&Known| known.expires.is_none_or(|day| Utc::now().date_naive() < day);
        known.filter(|_| bool::from(fits)).filter(counts).map(|known| known.caller.clone())
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, secret) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    Error::invalid_config(format!("the tokens file {} cannot be read: {error}", path.display())).with_source(error)
}

fn version(path: &Path) -> Result<Version> {
    let meta = std::fs::metadata(path).map_err(|e| unreadable(path, e))?;
    Ok((meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.size()))
}

fn load(path: &Path) -> Result<Loaded> {
    let meta = std::fs::metadata(path).map_err(|e| unreadable(path, e))?;
    // A volume of Kubernetes gives its files to root, and lets the group of the process read them.
    let others = if meta.uid() == 0 { 0o037 } else { 0o077 };
    if meta.permissions().mode() & others != 0 {
        let text = format!("other users can read the tokens file {0}: chmod 600 {0}", path.display());
        return Err(Error::new(ErrorKind::Denied, text));
    }
    let version = version(path)?;
    let text = std::fs::read_to_string(path).map_err(|e| unreadable(path, e))?;
    let known =
        parse(&text).map_err(|what| Error::invalid_config(format!("the tokens file {}: {what}", path.display())))?;
    Ok(Loaded { known, version })
}

fn parse(text: &str) -> std::result::Result<HashMap<String, Known>, String> {
    // The message alone: the lines that it quotes have hashes in them.
    let file: File = toml::from_str(text).map_err(|e| e.message().to_owned())?;
    let mut known = HashMap::new();
    for entry in file.token {
        let id = entry.id;
        check_id(&id)?;
        let texts = match entry.sha256 {
            Hashes::One(one) => vec![one],
            Hashes::Two(two) => two,
        };
        let hash = |text: &String| lockkeeper::wire::unhex(text)?.try_into().ok();
        let hashes = texts.iter().map(hash).collect::<Option<Vec<[u8; 32]>>>().filter(|h| (1..=2).contains(&h.len()));
        let hashes =
            hashes.ok_or_else(|| format!("token '{id}': 'sha256' is 64 hexadecimal digits, or two of them"))?;
        let day = |day: toml::value::Datetime| day.date.and_then(|_| day.to_string().get(..10)?.parse().ok());
        let expires = match entry.expires.map(day) {
            None => None,
            Some(Some(day)) => Some(day),
            Some(None) => return Err(format!("token '{id}': 'expires' is a day, such as 2027-06-01")),
        };
        if entry.allow.iter().any(|rule| rule.names.is_empty()) {
            return Err(format!("token '{id}': 'names' is not empty; \"*\" is every name"));
        }
        let caller = Caller { id: id.as_str().into(), rules: entry.allow.into() };
        if known.insert(id.clone(), Known { caller, hashes, expires }).is_some() {
            return Err(format!("token '{id}' is there twice"));
        }
    }
    Ok(known)
}

fn check_id(id: &str) -> std::result::Result<(), String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if (1..=64).contains(&id.len()) && id.bytes().all(plain) {
        return Ok(());
    }
    Err("the 'id' of a token has 1 to 64 letters, digits, '-' and '_'".into())
}

/// A new token. `Debug` shows what belongs into the file.
pub struct Made {
    /// What the client sends; not kept anywhere.
    pub secret: String,
    /// What belongs into the tokens file.
    pub toml: String,
}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Made").field("toml", &self.toml).finish_non_exhaustive()
    }
}

/// Makes a token.
///
/// # Errors
/// `InvalidConfig` for an id or a day that cannot be; `Unexpected` when the system has no random source.
pub fn make(id: &str, rules: &[Rule], expires: Option<&str>) -> Result<Made> {
    check_id(id).map_err(Error::invalid_config)?;
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new(ErrorKind::Unexpected, format!("the system's random source failed: {e}")))?;
    let secret = format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(bytes).replace('_', "-"));
    let hash = lockkeeper::wire::hex(&Sha256::digest(secret.as_bytes()));
    let mut toml = format!("[[token]]\nid = {:?}\nsha256 = \"{hash}\"\n", id);
    if let Some(day) = expires {
        let day: NaiveDate = day
            .parse()
            .map_err(|_| Error::invalid_config(format!("'{day}' is not a day; one looks like 2027-06-01")))?;
        toml += &format!("expires = {day}\n");
    }
    let rules: Vec<String> = rules
        .iter()
        .map(|rule| {
            let verbs = serde_json::to_string(&rule.verbs).unwrap_or_default();
            format!("  {{ names = {}, verbs = {verbs} }},\n", quoted(&rule.names))
        })
        .collect();
    toml += &format!("allow = [\n{}]\n", rules.concat());
    Ok(Made { secret, toml })
}

/// As TOML writes a string; JSON's escapes are among those that it has.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Verb;
    use lockkeeper::LockName;

    fn headers(secret: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, format!("Bearer {secret}").parse().expect("a header"))])
    }

    fn file(text: &str) -> (testkit::TempDir, PathBuf) {
        let dir = testkit::TempDir::new();
        let path = dir.write("tokens.toml", text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("ours");
        (dir, path)
    }

    #[test]
    fn a_token_that_was_made_is_known_until_it_ends() {
        let rules = ["ci/=acquire,read".parse().expect("a rule")];
        let made = make("ci_1", &rules, None).expect("made");
        let ended = make("old", &rules, Some("2020-01-01")).expect("made");
        let (_dir, path) = file(&(made.toml.clone() + &ended.toml));
        let tokens = Tokens::read(&path).expect("read");
        let caller = tokens.caller(&headers(&made.secret)).expect("known");
        let name = |text| LockName::new(text).expect("a name");
        assert!(caller.may(Verb::Acquire, &name("ci/x")) && !caller.may(Verb::Break, &name("ci/x")));
        assert!(!caller.may(Verb::Read, &name("prod")));
        let mut other = made.secret.clone();
        other.replace_range(other.len() - 1.., if other.ends_with('A') { "B" } else { "A" });
        for wrong in [other.as_str(), &ended.secret, "", "lk_ci_1_", "lk_other_x", &made.secret[3..]] {
            let refused = tokens.caller(&headers(wrong)).expect_err(wrong);
            assert_eq!(refused.problem.title, Refused::unauthenticated().problem.title);
        }
        assert!(tokens.caller(&HeaderMap::new()).is_err());
        // Taken out of the file, it is refused at once.
        std::fs::write(&path, ended.toml).expect("ours");
        assert!(tokens.refresh().expect("read again"));
        assert!(tokens.caller(&headers(&made.secret)).is_err());
        assert!(!tokens.refresh().expect("the same"));
        // A mistake leaves what was there.
        std::fs::write(&path, "[[token]]\nid = 7").expect("ours");
        assert!(tokens.refresh().is_err());
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let (_dir, path) = file("");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("ours");
        assert_eq!(Tokens::read(&path).expect_err("readable").kind(), ErrorKind::Denied);
    }

    #[test]
    fn mistakes_are_named_and_hashes_are_not() {
        let hash = "ab".repeat(32);
        for wrong in [
            format!("[[token]]\nid = \"a b\"\nsha256 = \"{hash}\""),
            format!("[[token]]\nid = \"a\"\nsha256 = \"{hash}00\""),
            format!("[[token]]\nid = \"a\"\nsha256 = []\n# {hash}"),
            format!("[[token]]\nid = \"a\"\nsha256 = \"{hash}\"\nexpires = 12:00:00"),
            format!("[[token]]\nid = \"a\"\nsha256 = \"{hash}\"\ncolour = 1"),
            format!("[[token]]\nid = \"a\"\nsha256 = \"{hash}\"\nallow = [{{ names = \"\", verbs = [] }}]"),
            format!("[[token]]\nid = \"a\"\nsha256 = \"{hash}\"\nallow = [{{ names = \"x\", verbs = [\"fly\"] }}]"),
            format!("[[token]]\nid = \"a\"\nsha256 = \"{hash}\"\n[[token]]\nid = \"a\"\nsha256 = \"{hash}\""),
        ] {
            let said = parse(&wrong).expect_err(&wrong);
            assert!(!said.contains("abab"), "{said}");
        }
    }
}
