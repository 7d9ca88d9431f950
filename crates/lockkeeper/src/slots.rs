//! Redis Cluster's slots: what is kept beside a key must have a key of the same slot, or no script may touch both.

/// A key that lives in the same Cluster slot as `lock`, different for every lock and letter.
pub(crate) fn companion(letter: u8, lock: &[u8]) -> Vec<u8> {
    let mut key = vec![b'l', b'k', b':', letter];
    if tag(lock).is_some() {
        key.push(b'/');
        key.extend_from_slice(lock);
    } else if lock.contains(&b'}') {
        // Wrapping it would cut the tag short: the lowest number with the same slot is the tag.
        let wanted = crc16(lock) % SLOTS;
        let number = (0..).map(|n: u64| n.to_string()).find(|n| crc16(n.as_bytes()) % SLOTS == wanted);
        key.extend_from_slice(b"!{");
        key.extend_from_slice(number.unwrap_or_default().as_bytes());
        key.push(b'}');
        key.extend_from_slice(lock);
    } else {
        key.extend_from_slice(b":{");
        key.extend_from_slice(lock);
        key.push(b'}');
    }
    key
}

/// How many slots a Cluster has.
pub(crate) const SLOTS: u16 = 16384;

/// The part of a key that decides its slot, if it is not the whole key.
pub(crate) fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|b| *b == b'{')? + 1;
    let length = key[open..].iter().position(|b| *b == b'}')?;
    (length > 0).then(|| &key[open..open + length])
}

/// CRC-16/XMODEM, the checksum Redis Cluster uses.
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(
            crc ^ (u16::from(*byte) << 8),
            |crc: u16, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            },
        )
    })
}
