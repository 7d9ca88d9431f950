//! Any bytes as text that servers, URLs and terminals take, and back; where a prefix ends.
#![cfg_attr(
    not(all(feature = "consul", feature = "etcd", feature = "sqlite")),
    allow(dead_code, reason = "a build without these stores uses part of it")
)]

/// Writes each byte that is not `plain` as `sign` and two upper-case hexadecimal digits. `sign` itself must not be plain.
pub(crate) fn encode(bytes: &[u8], sign: u8, plain: impl Fn(u8) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    bytes.iter().for_each(|byte| push(&mut text, *byte, sign, plain(*byte)));
    text
}

/// Writes one byte, as it is when it is `plain`.
pub(crate) fn push(text: &mut String, byte: u8, sign: u8, plain: bool) {
    if plain {
        text.push(byte.into());
    } else {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        text.push(sign.into());
        text.push(DIGITS[usize::from(byte >> 4)].into());
        text.push(DIGITS[usize::from(byte & 15)].into());
    }
}

/// The bytes that [`encode`] wrote with this `sign`; `None` where the sign is not followed by two hexadecimal digits.
pub(crate) fn decode(text: &[u8], sign: u8) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != sign {
            bytes.push(byte);
            continue;
        }
        let digit = |i: usize| char::from(*rest.get(i)?).to_digit(16);
        bytes.push(u8::try_from(digit(0)? << 4 | digit(1)?).ok()?);
        rest = &rest[2..];
    }
    Some(bytes)
}

/// The first name after all those that begin with `prefix`; `None` when there is no end.
pub(crate) fn upper_bound(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|b| *b != 0xff)?;
    let mut bound = prefix[..=kept].to_vec();
    bound[kept] += 1;
    Some(bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_comes_back_and_what_is_not_is_refused() {
        let all: Vec<u8> = (0..=255).collect();
        let text = encode(&all, b'%', |byte| byte.is_ascii_alphanumeric());
        assert_eq!(decode(text.as_bytes(), b'%'), Some(all));
        assert_eq!(encode(b"a/b", b'~', |byte| byte != b'/'), "a~2Fb");
        for bad in ["%", "%2", "%+1", "%zz"] {
            assert_eq!(decode(bad.as_bytes(), b'%'), None, "{bad}");
        }
    }

    #[test]
    fn a_prefix_ends_where_its_last_byte_can_rise() {
        assert_eq!(upper_bound(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(upper_bound(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(upper_bound(b"\xff"), None);
        assert_eq!(upper_bound(b""), None);
    }
}
