//! The three spellings of bytes on the wire: lower-case hex for keys, unpadded base64url for signatures and
//! tokens, padded standard base64 for bodies. Each decoder is strict: one value, one spelling.

use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER};

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
    unhex(text)?.try_into().ok()
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
