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
    let name = |pair: &str| pair.split('=').next().unwrap_or_default().to_ascii_lowercase();
    query.split('&').any(|pair| NAMES.contains(&name(pair).as_str()))
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
        for query in ["token=x", "a=b&Access_Token=x", "authorization", "admin_token=", "session_token=1"] {
            assert!(in_query(query), "{query}");
        }
        for query in ["", "limit=5", "after=token"] {
            assert!(!in_query(query), "{query}");
        }
    }
}
