//! What a delivery's tag says: which group, which entry, which handing out, to whom, and of which message.
//!
//! Spelled `group.seq.attempt.session.id`: the numbers in base 36, the session in unpadded base64url, and the last 8 characters
//! of the message's id. To everybody but the broker it is opaque; the broker reads it back, and takes no tag for
//! another's because one value has one spelling. It proves nothing by itself: who may settle is decided by the claim that
//! stands, and only for the message that the tag was given out with: a store that was wiped or restored gives the same
//! numbers to other messages.

use std::fmt;

use data_encoding::BASE64URL_NOPAD;

use crate::ids::{MessageId, SessionKey, Tag};

/// Digits of the largest group or seq, digits of the largest attempt, the session, the end of the id, and four dots.
const LONGEST: usize = 13 + 13 + 7 + SESSION + MARK + 4;
/// Characters of a session key.
const SESSION: usize = 43;
/// Characters of a message's id.
const MARK: usize = 8;

const _: () = assert!(LONGEST <= 128, "a tag must be a legal one");

/// What a tag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TagParts {
    /// The group whose delivery it is.
    pub group: u64,
    /// The entry.
    pub seq: u64,
    /// Which handing out of it.
    pub attempt: u32,
    /// Who got it.
    pub session: SessionKey,
    /// The end of the message's id.
    pub mark: IdMark,
}

/// The last 40 bits of a message's id: its last 8 characters, which are random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdMark(u64);

/// The digits of ids.
const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

impl IdMark {
    fn parse(text: &str) -> Option<IdMark> {
        let digit = |b: u8| CROCKFORD.iter().position(|digit| *digit == b);
        if text.len() != MARK {
            return None;
        }
        text.bytes().try_fold(0, |value, b| Some(value << 5 | digit(b)? as u64)).map(IdMark)
    }

    fn spell(self) -> [u8; MARK] {
        std::array::from_fn(|n| CROCKFORD[(self.0 >> (5 * (MARK - 1 - n)) & 31) as usize])
    }
}

impl From<MessageId> for IdMark {
    fn from(id: MessageId) -> IdMark {
        IdMark((id.0 & ((1 << (5 * MARK)) - 1)) as u64)
    }
}

impl TagParts {
    /// The parts that `text` spells; `None` for every text that is not exactly the spelling of some parts.
    pub fn parse(text: &str) -> Option<TagParts> {
        let mut fields = text.split('.');
        let group = number(fields.next()?)?;
        let seq = number(fields.next()?)?;
        let attempt = u32::try_from(number(fields.next()?)?).ok()?;
        let session = session(fields.next()?)?;
        let mark = IdMark::parse(fields.next()?)?;
        fields.next().is_none().then_some(TagParts { group, seq, attempt, session, mark })
    }

    /// The spelling, without an allocation.
    pub fn spell(&self) -> Spelling {
        let mut spelling = Spelling { text: [0; LONGEST], len: 0 };
        for value in [self.group, self.seq, u64::from(self.attempt)] {
            spelling.number(value);
            spelling.push(b".");
        }
        let end = spelling.len + SESSION;
        BASE64URL_NOPAD.encode_mut(&self.session.0, &mut spelling.text[spelling.len..end]);
        spelling.len = end;
        spelling.push(b".");
        spelling.push(&self.mark.spell());
        spelling
    }

    /// Appends the spelling to `out`, which is all that may allocate.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.spell().as_str().as_bytes());
    }

    /// The tag itself.
    pub fn to_tag(&self) -> Tag {
        Tag::legal(self.spell().as_str())
    }
}

impl fmt::Display for TagParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.spell().as_str())
    }
}

impl From<&TagParts> for Tag {
    fn from(parts: &TagParts) -> Tag {
        parts.to_tag()
    }
}

/// A tag's text on the stack.
#[derive(Clone, Copy)]
pub struct Spelling {
    text: [u8; LONGEST],
    len: usize,
}

impl Spelling {
    /// The text.
    pub fn as_str(&self) -> &str {
        // Only ASCII was written, so that there is always a text.
        std::str::from_utf8(&self.text[..self.len]).unwrap_or_default()
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.text[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }

    fn number(&mut self, mut value: u64) {
        const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let mut digits = [0; 13];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = DIGITS[(value % 36) as usize];
            value /= 36;
            if value == 0 {
                break;
            }
        }
        self.push(&digits[first..]);
    }
}

impl fmt::Debug for Spelling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A number in base 36: lower case, no sign, no leading zeros.
fn number(text: &str) -> Option<u64> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(u64::from(b - b'0')),
        b'a'..=b'z' => Some(u64::from(b - b'a') + 10),
        _ => None,
    };
    if text.is_empty() || text.len() > 13 || (text.len() > 1 && text.starts_with('0')) {
        return None;
    }
    text.bytes().try_fold(0u64, |value, b| value.checked_mul(36)?.checked_add(digit(b)?))
}

fn session(text: &str) -> Option<SessionKey> {
    if text.len() != SESSION {
        return None;
    }
    let mut key = [0; 32];
    // Refuses bits after the last byte, so that no two texts are one key.
    BASE64URL_NOPAD.decode_mut(text.as_bytes(), &mut key).ok()?;
    Some(SessionKey(key))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts() -> TagParts {
        TagParts { group: 7, seq: 36, attempt: 1, session: SessionKey([0; 32]), mark: IdMark(1) }
    }

    #[test]
    fn a_tag_is_short_and_readable() {
        assert_eq!(parts().to_tag().as_str(), format!("7.10.1.{}.00000001", "A".repeat(43)));
        let longest = TagParts {
            group: u64::MAX,
            seq: u64::MAX,
            attempt: u32::MAX,
            session: SessionKey([255; 32]),
            mark: MessageId(u128::MAX).into(),
        };
        assert_eq!(longest.spell().as_str().len(), LONGEST);
        assert_eq!(TagParts::parse(longest.to_tag().as_str()), Some(longest));
    }

    #[test]
    fn a_mark_is_the_last_eight_characters_of_an_id() {
        for id in [
            MessageId::from_parts(1_700_000_000_000, 0x1234_5678_9abc_def0),
            MessageId(0),
            MessageId(u128::MAX),
        ] {
            let text = id.to_string();
            assert_eq!(IdMark::from(id).spell(), text.as_bytes()[18..]);
            assert_eq!(IdMark::parse(&text[18..]), Some(IdMark::from(id)));
        }
    }

    #[test]
    fn what_is_not_the_spelling_of_parts_is_nothing() {
        let good = parts().to_string();
        assert_eq!(TagParts::parse(&good), Some(parts()));
        let key = format!("{}.00000001", "A".repeat(43));
        for bad in [
            String::new(),
            ".".into(),
            "tag-1".into(),
            key.clone(),
            format!("7.10.{key}"),
            format!("7.10.1.1.{key}"),
            format!("{good}."),
            format!(".{good}"),
            format!("{good}A"),
            format!("7.10.1.{}", &key[1..]),
            format!("7.10.1.{}B.00000001", &key[1..43]),
            format!("7.10.1.{}+.00000001", &key[1..43]),
            format!("7.10.1.{}é.00000001", &key[2..43]),
            format!("7.10.1.{}", &key[..43]),
            format!("7.10.1.{}.0000001", &key[..43]),
            format!("7.10.1.{}.0000000U", &key[..43]),
            format!("7.10.1.{}.0000000a", &key[..43]),
            format!("7.10.1.{}.000000é", &key[..43]),
            format!("07.10.1.{key}"),
            format!("7.+10.1.{key}"),
            format!("7.-1.1.{key}"),
            format!("7. 10.1.{key}"),
            format!("Z.10.1.{key}"),
            format!("..1.{key}"),
            format!("7.10.1z141z4.{key}"),
            format!("3w5e11264sgsg.10.1.{key}"),
            format!("zzzzzzzzzzzzz.10.1.{key}"),
            format!("10000000000000.10.1.{key}"),
        ] {
            assert_eq!(TagParts::parse(&bad), None, "{bad}");
        }
        let most = format!("3w5e11264sgsf.0.1z141z3.{key}");
        assert_eq!(
            TagParts::parse(&most).map(|p| (p.group, p.seq, p.attempt)),
            Some((u64::MAX, 0, u32::MAX))
        );
    }

    fn config() -> ProptestConfig {
        ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn parts_survive_their_spelling(
            group in any::<u64>(), seq in any::<u64>(), attempt in any::<u32>(), key in any::<[u8; 32]>(),
            id in any::<u128>(),
        ) {
            let parts = TagParts { group, seq, attempt, session: SessionKey(key), mark: MessageId(id).into() };
            let tag = parts.to_tag();
            prop_assert_eq!(TagParts::parse(tag.as_str()), Some(parts));
            prop_assert_eq!(tag.as_str().parse::<Tag>(), Ok(tag.clone()));
            let mut written = b"before ".to_vec();
            parts.write(&mut written);
            prop_assert_eq!(written, format!("before {tag}").into_bytes());
        }

        #[test]
        fn one_value_has_one_spelling(text in "[0-9a-z]{0,14}\\.[0-9a-z]{0,2}\\.[0-9a-z]{0,8}\\.[A-Za-z0-9_-]{42,43}[AEIMQUYcgkosw048]?\\.[0-9A-Z]{7,8}") {
            if let Some(parts) = TagParts::parse(&text) {
                prop_assert_eq!(parts.to_string(), text);
            }
        }

        #[test]
        fn no_text_is_too_odd(text in "\\PC{0,100}") {
            if let Some(parts) = TagParts::parse(&text) {
                prop_assert_eq!(parts.to_string(), text);
            }
        }
    }
}
