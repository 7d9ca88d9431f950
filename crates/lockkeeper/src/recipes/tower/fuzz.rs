//! Fuzz targets: the header, the request and the response of the idempotency layer.

use super::key::{fingerprint, name, read};
use super::response::Stored;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};

#[test]
fn headers_with_keys_are_read() {
    testkit::fuzz("idempotency_keys", |bytes| {
        let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
        let mut headers = HeaderMap::new();
        headers.append("idempotency-key", value);
        let Ok(Some(key)) = read(&headers) else { return };
        assert!((1..=255).contains(&key.len()) && key.is_ascii(), "{key}");
        assert_ne!(name("scope", &key), name("scop", &format!("e{key}")));
        // The quoted form of a key is the same key.
        let quoted = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
        headers.insert("idempotency-key", HeaderValue::from_str(&quoted).unwrap());
        assert_eq!(read(&headers), Ok(Some(key)));
    });
}

#[test]
fn stored_responses_are_read_and_come_back() {
    testkit::fuzz("stored_responses", |bytes| {
        if let Ok(stored) = serde_json::from_slice::<Stored>(bytes) {
            let _ = stored.response::<Bytes>(true);
        }
        let half = bytes.len() / 2;
        let mut response = Response::new(Bytes::copy_from_slice(bytes));
        let named = HeaderName::from_bytes(&bytes[..half]).ok().zip(HeaderValue::from_bytes(&bytes[half..]).ok());
        response.headers_mut().extend(named);
        let (head, body) = response.into_parts();
        let Some(stored) = Stored::of(&head, &body) else { return };
        let text = serde_json::to_vec(&stored).unwrap();
        let back = serde_json::from_slice::<Stored>(&text).unwrap().response::<Bytes>(false).unwrap();
        assert_eq!((back.status(), back.body()), (head.status, &body));
        assert!(back.headers().iter().all(|(name, value)| head.headers.get_all(name).iter().any(|v| v == value)));
    });
}

#[test]
fn requests_have_fingerprints_of_their_own() {
    testkit::fuzz("stored_responses", |bytes| {
        let of = |path: &str, body: &[u8]| {
            let uri = path.parse::<Uri>().ok()?;
            let (head, ()) = Request::builder().uri(uri).body(()).ok()?.into_parts();
            Some(fingerprint(&head, body))
        };
        let Some(one) = of("/a", bytes) else { return };
        assert_ne!(Some(one), of("/b", bytes), "the path counts");
        assert_ne!(Some(one), of("/a", &[bytes, b"x"].concat()), "the body counts");
        let path = format!("/{}", String::from_utf8_lossy(bytes));
        assert!(of(&path, b"").is_none_or(|other| other != one));
    });
}
