//! Secrets that programs show to each other: compared so that time tells nothing, and never taken from a URL.

use subtle::ConstantTimeEq;

/// What a token is called by those who put it into a URL.
const NAMES: [&str; 5] = ["token", "access_token", "admin_token", "session_token", "authorization"];

/// Whether two secrets are one, in a time that does not tell where they differ.
pub fn same(ours: &str, theirs: &str) -> bool {
    bool::from(ours.as_bytes().ct_eq(theirs.as_bytes()))
}

/// Whether the query of a URL names a token: logs and histories would keep it.
pub fn in_query(query: &str) -> bool {
    let name = |pair: &str| decoded(pair.split('=').next().unwrap_or_default()).to_ascii_lowercase();
    query.split('&').any(|pair| NAMES.contains(&name(pair).as_str()))
}

/// Whether the query of a URL has this secret in it, whatever it is called there. Every part is compared.
pub fn shown_in_query(ours: &str, query: &str) -> bool {
    let parts = query.split('&').flat_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        [pair, name, value]
    });
    parts.fold(false, |shown, part| shown | same(ours, part) | same(ours, &decoded(part)))
}

/// A part of a query without its percent signs. What stands behind one and is no hex stays as it is; so does a `+`, which
/// a secret may have.
fn decoded(part: &str) -> String {
    let hex = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let (bytes, mut out, mut at) = (part.as_bytes(), Vec::with_capacity(part.len()), 0);
    while let Some(byte) = bytes.get(at) {
        match (byte, hex(bytes.get(at + 1)), hex(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_only_itself() {
        assert!(same("abc", "abc") && same("", ""));
        assert!(!same("abc", "abd") && !same("abc", "ab") && !same("", "a"));
    }

    #[test]
    fn a_token_in_a_url_is_seen_whatever_it_is_called() {
        for query in [
            "token=x",
            "a=b&Access_Token=x",
            "authorization",
            "admin_token=",
            "session_token=1",
            "%74oken=x",
            "a&access%5Ftoken=x",
            "TOKE%4e",
        ] {
            assert!(in_query(query), "{query}");
        }
        for query in ["", "limit=5", "after=token", "%74=1", "%", "%7", "%zz=%"] {
            assert!(!in_query(query), "{query}");
        }
    }

    #[test]
    fn a_secret_in_a_url_is_seen_under_any_name() {
        let ours = "s3cret+of%it";
        for query in [
            "x=s3cret+of%it",
            "a=b&c=s3cret%2Bof%25it",
            "s3cret+of%it",
            "s3cret%2bof%25it=",
            "x=%733cret+of%25it",
        ] {
            assert!(shown_in_query(ours, query), "{query}");
        }
        for query in ["", "x=s3cret", "x=s3cret+of%itt", "s3cret=+of%it"] {
            assert!(!shown_in_query(ours, query), "{query}");
        }
    }
}
