//! The three spellings of bytes on the wire: lower-case hex for keys, unpadded base64url for signatures and
//! tokens, padded standard base64 for bodies. Each decoder is strict: one value, one spelling.

use std::fmt::{self, Write};

use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER};
use serde::Serializer;

use crate::error::WireError;

/// Bytes that an id, a key or an address takes at most.
const SHORT: usize = 192;

/// A text that is short, where it stands.
struct Short {
    bytes: [u8; SHORT],
    len: usize,
}

impl Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// Serialises what is written as a short text. Encoders that must know how long a text is would first make a string of it.
pub(crate) fn serialize<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    let mut short = Short { bytes: [0; SHORT], len: 0 };
    let written = write!(short, "{value}").ok().and_then(|()| short.bytes.get(..short.len));
    match written.and_then(|bytes| std::str::from_utf8(bytes).ok()) {
        Some(text) => serializer.serialize_str(text),
        None => serializer.collect_str(value),
    }
}

/// Writes a key's bytes as lower-case hex.
pub(crate) fn write_key(key: &[u8; 32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut digits = [0; 64];
    HEXLOWER.encode_mut(key, &mut digits);
    f.write_str(std::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
}

/// Whether a character acts on a terminal, or on how other characters are read, instead of being read itself: a control
/// character (line breaks, tabs, ESC, DEL and the C1 controls), a line or paragraph separator, or a bidi mark.
pub const fn is_control_or_bidi(c: char) -> bool {
    matches!(
        c,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}

/// Refuses a text that others are shown and that would act on their terminals; `what` names it, as in `profile.summary`.
pub fn check_shown(what: &str, text: &str) -> Result<(), WireError> {
    let Some(c) = text.chars().find(|c| is_control_or_bidi(*c)) else { return Ok(()) };
    let field = what.rsplit('.').next().unwrap_or(what);
    let told = format!("{what} has U+{:04X}, a control character or bidi mark; leave it out", u32::from(c));
    Err(WireError::bad_request(told).about(field))
}

/// Lower-case hex of `bytes`.
pub fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// The bytes that `text` spells in lower-case hex, or `None`.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    HEXLOWER.decode(text.as_bytes()).ok()
}

/// Exactly `N` bytes from lower-case hex, or `None`.
pub fn unhex_array<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != N * 2 {
        return None;
    }
    let mut bytes = [0; N];
    HEXLOWER.decode_mut(text.as_bytes(), &mut bytes).ok()?;
    Some(bytes)
}

/// Unpadded base64url of `bytes`.
pub fn b64url(bytes: &[u8]) -> String {
    BASE64URL_NOPAD.encode(bytes)
}

/// The bytes that `text` spells in unpadded base64url, or `None`.
pub fn unb64url(text: &str) -> Option<Vec<u8>> {
    BASE64URL_NOPAD.decode(text.as_bytes()).ok()
}

/// Padded standard base64 of `bytes`, the spelling of `bodyB64`.
pub fn b64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// The bytes that `text` spells in padded standard base64, or `None`.
pub fn unb64(text: &str) -> Option<Vec<u8>> {
    // The library also reads several padded texts in a row; other languages do not.
    let before_padding = &text.as_bytes()[..text.len().saturating_sub(2)];
    if before_padding.contains(&b'=') { None } else { BASE64.decode(text.as_bytes()).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_texts_are_serialised_whole() {
        struct Text(String);
        impl serde::Serialize for Text {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serialize(&self.0, serializer)
            }
        }
        for len in [0, 1, SHORT - 1, SHORT, SHORT + 1, 1_000] {
            let text = "ä".repeat(len / 2) + &"x".repeat(len % 2);
            let read: String =
                rmp_serde::from_slice(&rmp_serde::to_vec(&Text(text.clone())).unwrap()).unwrap();
            assert_eq!(read, text);
        }
    }

    #[test]
    fn padding_ends_a_text() {
        for (text, bytes) in
            [("", Some(&b""[..])), ("eA==", Some(b"x")), ("eHg=", Some(b"xx")), ("eHh4", Some(b"xxx"))]
        {
            assert_eq!(unb64(text).as_deref(), bytes, "{text}");
        }
        for text in ["eA", "eA=", "eA==eA==", "eHg=eHh4", "eA=A", "=", "==", "====", "eB==", "eA==\n", "_-8="]
        {
            assert_eq!(unb64(text), None, "{text}");
        }
    }
}
