//! What a command said and how it ended: recorded on its way, kept in the store, and said again.

use crate::supervise::{Stream, write};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

/// How much of the output is kept. As base64 with all around it, this fits into the 63 KiB of a result.
pub(super) const MOST: usize = 32 * 1024;
/// Beyond so many changes between the two streams their order is not kept: the words around each part need room too.
const MOST_PARTS: usize = 200;

/// A command's output and its exit code, as the store keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Said {
    pub(super) code: u8,
    /// The bytes of all output.
    pub(super) bytes: u64,
    /// The first of them, in the order in which they came.
    output: Vec<Part>,
}

/// A part of the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Part {
    #[serde(rename = "out")]
    Out(Bytes),
    #[serde(rename = "err")]
    Err(Bytes),
}

/// Bytes as people can read them, where they are text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Bytes {
    Text(String),
    Other { base64: String },
}

impl Bytes {
    fn of(bytes: Vec<u8>) -> Self {
        let base64 = BASE64_STANDARD.encode(&bytes);
        match String::from_utf8(bytes) {
            // Text full of control characters is longer than base64, because JSON has six bytes for each.
            Ok(text) if serde_json::to_string(&text).is_ok_and(|json| json.len() <= base64.len() + 16) => {
                Self::Text(text)
            }
            _ => Self::Other { base64 },
        }
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some(text.clone().into_bytes()),
            Self::Other { base64 } => BASE64_STANDARD.decode(base64).ok(),
        }
    }
}

impl Said {
    /// How many bytes of the output are not kept.
    pub(super) fn left_out(&self) -> u64 {
        self.bytes.saturating_sub(MOST as u64)
    }

    /// Says it again; `false` when the store's text is not what this program writes.
    pub(super) fn again(&self) -> bool {
        let parts = self.output.iter().map(|part| match part {
            Part::Out(bytes) => (Stream::Stdout, bytes.bytes()),
            Part::Err(bytes) => (Stream::Stderr, bytes.bytes()),
        });
        for (stream, bytes) in parts {
            let Some(bytes) = bytes else { return false };
            // A reader that has gone needs no more of it.
            let _ = write(stream, &bytes);
        }
        true
    }
}

/// The output so far.
#[derive(Debug, Default)]
pub(super) struct Record {
    parts: Vec<(Stream, Vec<u8>)>,
    kept: usize,
    bytes: u64,
}

impl Record {
    /// Takes note of a part of the output.
    pub(super) fn hear(&mut self, stream: Stream, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let part = &bytes[..bytes.len().min(MOST - self.kept)];
        if part.is_empty() {
            return;
        }
        self.kept += part.len();
        match self.parts.last_mut() {
            Some((last, all)) if *last == stream => all.extend_from_slice(part),
            _ => self.parts.push((stream, part.to_vec())),
        }
    }

    /// What is kept, once the command has ended.
    pub(super) fn ended(mut self, code: u8) -> Said {
        if self.parts.len() > MOST_PARTS {
            let joined = |wanted: Stream| {
                let of_it = self.parts.iter().filter(|(stream, _)| *stream == wanted);
                (wanted, of_it.flat_map(|(_, bytes)| bytes.iter().copied()).collect())
            };
            self.parts = vec![joined(Stream::Stdout), joined(Stream::Stderr)];
        }
        let part = |(stream, bytes)| match stream {
            Stream::Stdout => Part::Out(Bytes::of(bytes)),
            Stream::Stderr => Part::Err(Bytes::of(bytes)),
        };
        Said { code, bytes: self.bytes, output: self.parts.into_iter().map(part).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::recipes::once::MAX_RESULT;

    fn said(parts: &[(Stream, &[u8])]) -> Said {
        let mut record = Record::default();
        parts.iter().for_each(|(stream, bytes)| record.hear(*stream, bytes));
        record.ended(3)
    }

    fn size(said: &Said) -> usize {
        serde_json::to_string(said).unwrap().len()
    }

    #[test]
    fn text_is_kept_as_text_in_its_order() {
        let said = said(&[(Stream::Stdout, b"a"), (Stream::Stdout, b"b\n"), (Stream::Stderr, b"\xff")]);
        let json = r#"{"code":3,"bytes":4,"output":[{"out":"ab\n"},{"err":{"base64":"/w=="}}]}"#;
        assert_eq!(serde_json::to_string(&said).unwrap(), json);
        assert_eq!(serde_json::from_str::<Said>(json).unwrap(), said);
        assert_eq!((said.left_out(), said.again()), (0, true));
    }

    #[test]
    fn the_most_that_is_kept_fits_in_every_shape() {
        for byte in [b'a', b'"', 0x1b, 0xff] {
            let whole = said(&[(Stream::Stdout, &vec![byte; MOST + 5])]);
            assert!(size(&whole) < MAX_RESULT, "{byte}: {}", size(&whole));
            assert_eq!(whole.left_out(), 5);
            let one = [byte];
            let torn = said(&[(Stream::Stdout, &one[..]), (Stream::Stderr, &one)].repeat(MOST));
            assert!(size(&torn) < MAX_RESULT, "{byte}: {}", size(&torn));
            assert_eq!(torn.left_out(), MOST as u64);
        }
    }
}
