//! Redis Cluster's slots: what is kept beside a key must have a key of the same slot, or no script may touch both.

use std::sync::LazyLock;

/// A key that lives in the same Cluster slot as `lock`, different for every lock and letter.
pub(crate) fn companion(letter: u8, lock: &[u8]) -> Vec<u8> {
    let mut key = vec![b'l', b'k', b':', letter];
    if tag(lock).is_some() {
        key.push(b'/');
        key.extend_from_slice(lock);
    } else if lock.contains(&b'}') {
        // Wrapping it would cut the tag short: the lowest number with the same slot is the tag.
        key.extend_from_slice(b"!{");
        key.extend_from_slice(LOWEST[usize::from(crc16(lock) % SLOTS)].to_string().as_bytes());
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

/// The lowest number of every slot. Found once for all names: looking for one takes up to 110,000 tries, and a name that
/// a user chose must not cost that at every renewal.
static LOWEST: LazyLock<Box<[u32]>> = LazyLock::new(|| {
    let mut lowest = vec![None; usize::from(SLOTS)];
    // The checksum of every number so far: that of 123 goes on from that of 12.
    let mut sums: Vec<u16> = Vec::new();
    let mut missing = lowest.len();
    for number in 0_u32.. {
        let before = if number < 10 { 0 } else { sums[number as usize / 10] };
        let sum = crc16_step(before, b'0' + (number % 10) as u8);
        sums.push(sum);
        let place = &mut lowest[usize::from(sum % SLOTS)];
        if place.is_none() {
            *place = Some(number);
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
    }
    lowest.into_iter().flatten().collect()
});

/// CRC-16/XMODEM, the checksum Redis Cluster uses.
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| crc16_step(crc, *byte))
}

fn crc16_step(crc: u16, byte: u8) -> u16 {
    (0..8).fold(
        crc ^ (u16::from(byte) << 8),
        |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_the_lowest_number_that_falls_into_it_at_hand() {
        assert_eq!(LOWEST.len(), usize::from(SLOTS));
        let last = *LOWEST.iter().max().unwrap();
        let mut seen = vec![false; usize::from(SLOTS)];
        for number in 0..=last {
            let slot = usize::from(crc16(number.to_string().as_bytes()) % SLOTS);
            // The first that comes along, and no other.
            assert_eq!(LOWEST[slot] == number, !seen[slot], "{number}");
            seen[slot] = true;
        }
        assert!(seen.into_iter().all(|seen| seen));
    }

    #[test]
    fn keys_of_names_with_a_brace_are_where_they_always_were() {
        for (name, key) in [
            ("}", "lk:f!{5305}}"),
            ("a}b", "lk:f!{20658}a}b"),
            ("job}", "lk:f!{19147}job}"),
            ("{}x", "lk:f!{19354}{}x"),
        ] {
            assert_eq!(String::from_utf8(companion(b'f', name.as_bytes())).unwrap(), key);
        }
    }
}
