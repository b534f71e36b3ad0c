//! GPT-2's map between bytes and printable characters, by which byte-level vocabularies are written.
//!
//! Bytes that print stand for themselves; the others, in order, for U+0100 and up. Source: `bytes_to_unicode` of GPT-2's encoder.

/// Whether a byte stands for the character of its own number.
const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character that stands for `byte`.
pub(crate) fn byte_to_char(byte: u8) -> char {
    if stands_for_itself(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !stands_for_itself(other)).count();
    let before = u32::try_from(before).expect("BUG: more than 255 bytes before a byte");
    char::from_u32(0x100 + before).expect("BUG: U+0100 to U+0143 are characters")
}

/// The byte that `character` stands for, if it stands for one.
pub(crate) fn char_to_byte(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ 0..=0xFF => u8::try_from(code).ok().filter(|&byte| stands_for_itself(byte)),
        code @ 0x100..=0x143 => (0..=u8::MAX)
            .filter(|&byte| !stands_for_itself(byte))
            .nth(usize::try_from(code - 0x100).ok()?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_one_to_one_and_has_gpt2s_known_points() {
        for byte in 0..=u8::MAX {
            assert_eq!(char_to_byte(byte_to_char(byte)), Some(byte));
        }
        assert_eq!(
            (byte_to_char(b' '), byte_to_char(b'\n'), byte_to_char(0), byte_to_char(0xAD)),
            ('Ġ', 'Ċ', 'Ā', 'Ń')
        );
        assert_eq!(char_to_byte('č'), Some(b'\r'));
        assert_eq!(
            (char_to_byte(' '), char_to_byte('\u{144}'), char_to_byte('▁')),
            (None, None, None)
        );
    }
}
