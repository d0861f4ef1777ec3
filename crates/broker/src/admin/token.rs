//! The operator's token: where it is kept, and how a request brings it.

use std::io::{self, ErrorKind, Write};
use std::path::Path;

use axum::http::{HeaderMap, header};
use tenure_mesh::access::operator_auth::Operator;

use crate::config::{Config, StoreChoice};

/// Where the token is kept, in the data directory.
const TOKEN_FILE: &str = "admin.token";

/// The token of a request; two of them are none.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (values.next()?.to_str().ok()?, values.next()) else { return None };
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Who may administer: whoever has the configured token, or the one in the data directory, which is made on first
/// start. Without either there is nobody.
pub(crate) fn operator(config: &Config) -> io::Result<Option<Operator>> {
    let token = match (&config.admin_token, &config.store) {
        (Some(token), _) => Some(token.clone()),
        (None, StoreChoice::Sqlite(dir)) => Some(token_in(dir)?),
        (None, StoreChoice::Memory) => None,
    };
    Ok(token.map(Operator::new))
}

/// The token that is kept in `dir`; the store's lock keeps two brokers from making one at once.
fn token_in(dir: &Path) -> io::Result<String> {
    let path = dir.join(TOKEN_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) if Operator::is_token(text.trim()) => return Ok(text.trim().to_owned()),
        // Half of one, from a start that was cut short, or something else that opens nothing.
        Ok(_) => tracing::warn!(event = "admin_token_replaced", "admin.token held no token"),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut secret = [0u8; 32];
    getrandom::fill(&mut secret).map_err(io::Error::other)?;
    let token = tenure_proto::text::hex(&secret);
    let aside = dir.join(format!("{TOKEN_FILE}.new"));
    let _ = std::fs::remove_file(&aside);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&aside)?;
    writeln!(file, "{token}")?;
    file.sync_all()?;
    std::fs::rename(&aside, &path)?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let token = token_in(dir.path()).unwrap();
        assert!(Operator::is_token(&token));
        assert_eq!(token_in(dir.path()).unwrap(), token);
        let path = dir.path().join(TOKEN_FILE);
        #[cfg(unix)]
        {
            let mode =
                std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
            assert_eq!(mode & 0o777, 0o600);
        }
        std::fs::write(&path, "torn").unwrap();
        assert_ne!(token_in(dir.path()).unwrap(), "torn");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_bearer_is_one_token() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            }
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(of(&["Bearer abc"]).as_deref(), Some("abc"));
        assert_eq!(of(&["bearer  abc "]).as_deref(), Some("abc"));
        for none in [&[][..], &["Basic abc"], &["abc"], &["Bearer a", "Bearer b"]] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }
}
