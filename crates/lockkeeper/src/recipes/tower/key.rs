//! The header's value, and the names that come from it.

use crate::recipes::once::hex;
use http::HeaderMap;
use http::request::Parts;
use sha2::{Digest as _, Sha256};

const HEADER: &str = "idempotency-key";
/// Longer than any UUID or hash, and short enough for a log line.
const MAX_KEY: usize = 255;

/// The key of a request. The draft has a quoted string; many clients send the bare text, which means the same here.
pub(super) fn read(headers: &HeaderMap) -> Result<Option<String>, String> {
    let mut values = headers.get_all(HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("the request has more than one Idempotency-Key".into());
    }
    let text = value.to_str().map_or("", str::trim);
    let key = match text.strip_prefix('"') {
        Some(rest) => unquoted(rest),
        None => text.bytes().all(|b| b.is_ascii_graphic() && !b"\",;\\".contains(&b)).then(|| text.to_owned()),
    };
    key.filter(|key| (1..=MAX_KEY).contains(&key.len())).map(Some).ok_or_else(|| {
        format!(
            "the Idempotency-Key is malformed; it must be a quoted string of 1 to {MAX_KEY} printable ASCII characters"
        )
    })
}

/// What stands before the closing quote, which must be the last character.
fn unquoted(rest: &str) -> Option<String> {
    let mut key = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return chars.next().is_none().then_some(key),
            '\\' => key.push(chars.next().filter(|c| ['"', '\\'].contains(c))?),
            c if c == ' ' || c.is_ascii_graphic() => key.push(c),
            _ => return None,
        }
    }
}

/// Which key of `once` it is. A hash, because scope and key may be long and may contain anything.
pub(super) fn name(scope: &str, key: &str) -> String {
    let length = u64::try_from(scope.len()).unwrap_or(u64::MAX).to_be_bytes();
    let hash = Sha256::new().chain_update(length).chain_update(scope).chain_update(key).finalize();
    format!("http/{}", hex(&hash))
}

/// What makes the request this one. Neither a method nor a path can contain the zero byte.
pub(super) fn fingerprint(request: &Parts, body: &[u8]) -> [u8; 32] {
    let path = request.uri.path_and_query().map_or("", |path| path.as_str());
    let head = Sha256::new().chain_update(request.method.as_str()).chain_update([0]).chain_update(path);
    head.chain_update([0]).chain_update(body).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn of(values: &[&[u8]]) -> Result<Option<String>, String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, HeaderValue::from_bytes(value).unwrap());
        }
        read(&headers)
    }

    #[test]
    fn quoted_and_bare_keys_are_the_same_key() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[b"8e03978e-40d5"]), of(&[br#""8e03978e-40d5""#]));
        assert_eq!(of(&[br#""a \"b\\ c""#]), Ok(Some(r#"a "b\ c"#.into())));
        let long = "k".repeat(256);
        let bad: [&[&[u8]]; 11] = [
            &[b""],
            &[b"\"\""],
            &[b"\"a"],
            &[b"\"a\"b"],
            &[b"\"a\";p=1"],
            &[b"\"a\\b\""],
            &[b"a, b"],
            &[b"a b"],
            &[b"caf\xe9"],
            &[long.as_bytes()],
            &[b"a", b"a"],
        ];
        for bad in bad {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn scope_and_key_do_not_run_together() {
        assert_ne!(name("a", "bc"), name("ab", "c"));
        assert_eq!(name("a", "b"), name("a", "b"));
    }
}
