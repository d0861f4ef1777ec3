//! Where a broker is, and the way there: in the clear (`ws://`), or through TLS (`wss://`).
//!
//! What TLS believes are the authorities of this system, or those that the application names instead. They are read at
//! the first dial, and then shared by all clones.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, Error as TlsError, RootCertStore};
use tokio_util::either::Either;

use crate::options::OptionsError;

/// A connection to a broker.
pub type Wire = Either<TcpStream, TlsStream<TcpStream>>;

/// Where a broker is, and how it is reached.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The authority, lower case: what is sent as `Host`.
    host: String,
    /// What is believed about who answers; `None` is a connection in the clear.
    trust: Option<Trust>,
}

/// What is believed: nothing yet, until the system's authorities are read.
type Trust = Arc<OnceLock<Arc<ClientConfig>>>;

impl Endpoint {
    /// The broker at `ws://HOST:PORT` or `wss://HOST:PORT`.
    pub fn new(url: &str) -> Result<Endpoint, OptionsError> {
        let bad = || OptionsError::Url(url.to_owned());
        let (trust, rest) = match (url.strip_prefix("ws://"), url.strip_prefix("wss://")) {
            (Some(rest), _) => (None, rest),
            (_, Some(rest)) => (Some(Trust::default()), rest),
            _ => return Err(bad()),
        };
        let host = rest.split('/').next().filter(|host| !host.is_empty() && !host.contains('@'));
        Ok(Endpoint { host: host.ok_or_else(bad)?.to_ascii_lowercase(), trust })
    }

    /// The same, believing only these authorities: certificates in PEM. Means nothing without TLS.
    pub fn believing(self, pem: &[u8]) -> Result<Endpoint, OptionsError> {
        let bad = |why: String| OptionsError::Authority(why);
        let certs = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let mut roots = RootCertStore::empty();
        for cert in certs.map_err(|error| bad(error.to_string()))? {
            roots.add(cert).map_err(|error| bad(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(bad("there is no certificate in it".to_owned()));
        }
        let config = believing(roots).map_err(|error| bad(error.to_string()))?;
        Ok(Endpoint { trust: self.trust.map(|_| Arc::new(OnceLock::from(config))), ..self })
    }

    /// Another place that is reached, and believed, the same way.
    pub(crate) fn at(&self, host: &str) -> Endpoint {
        Endpoint { host: host.to_ascii_lowercase(), trust: self.trust.clone() }
    }

    /// The `Host` that is meant.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether it names this machine: what is said to it leaves no network card.
    pub fn is_loopback(&self) -> bool {
        let name = self.name();
        let address = name.parse::<IpAddr>().map(|address| address.to_canonical().is_loopback());
        address.unwrap_or(name == "localhost")
    }

    /// Whether what is said to it can be read on the way.
    pub fn is_clear(&self) -> bool {
        self.trust.is_none()
    }

    /// A WebSocket's URL at this place.
    pub(crate) fn url(&self, path: &str) -> String {
        let scheme = if self.trust.is_some() { "wss" } else { "ws" };
        format!("{scheme}://{}{path}", self.host)
    }

    /// `HOST:PORT` to dial.
    fn address(&self) -> String {
        match (has_port(&self.host), &self.trust) {
            (true, _) => self.host.clone(),
            (false, None) => format!("{}:80", self.host),
            (false, Some(_)) => format!("{}:443", self.host),
        }
    }

    /// The name that a certificate must be for.
    fn name(&self) -> &str {
        let name = if has_port(&self.host) { self.host.rsplit_once(':').map(|(name, _)| name) } else { None };
        name.unwrap_or(&self.host).trim_start_matches('[').trim_end_matches(']')
    }

    /// Dials, and shakes hands where that is asked for.
    pub async fn dial(&self) -> io::Result<Wire> {
        let stream = TcpStream::connect(self.address()).await?;
        stream.set_nodelay(true)?;
        let Some(trust) = &self.trust else { return Ok(Either::Left(stream)) };
        let config = match trust.get() {
            Some(config) => config.clone(),
            // Hundreds of files on some systems.
            None => {
                let read = tokio::task::spawn_blocking(system).await.map_err(io::Error::other)??;
                trust.get_or_init(|| read).clone()
            }
        };
        let name = ServerName::try_from(self.name().to_owned()).map_err(io::Error::other)?;
        let shaken = TlsConnector::from(config).connect(name, stream).await;
        shaken.map(Either::Right).map_err(|error| said(&error))
    }
}

/// Why hands were not shaken, with what a person can do about it.
fn said(error: &io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    let text = match inner {
        // What `openssl req -x509` makes when nobody says otherwise. The error has no name of its own there.
        Some(TlsError::InvalidCertificate(why)) if format!("{why:?}").contains("CaUsedAsEndEntity") => {
            "the certificate of the broker is an authority's (CA:TRUE), which no server may show: make it one with \
             `openssl req -x509 -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:HOST`, or let that \
             authority sign another for it"
                .to_owned()
        }
        Some(TlsError::InvalidCertificate(why)) => {
            format!(
                "the certificate of the broker is not believed ({why}); name the authority that signed it"
            )
        }
        Some(TlsError::InvalidMessage(_)) => "the broker does not speak TLS there; try ws://".to_owned(),
        _ => format!("shake hands: {error}"),
    };
    io::Error::new(error.kind(), text)
}

/// What believes the authorities of this system. One that does not read is none.
fn system() -> io::Result<Arc<ClientConfig>> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "an authority of this system does not read");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    believing(roots).map_err(io::Error::other)
}

fn believing(roots: RootCertStore) -> Result<Arc<ClientConfig>, TlsError> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':')
        .is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::client::WebPkiServerVerifier;
    use tokio_rustls::rustls::client::danger::ServerCertVerifier as _;
    use tokio_rustls::rustls::pki_types::UnixTime;

    use super::*;

    #[test]
    fn an_address_is_a_scheme_and_an_authority() {
        for (url, host, address, name) in [
            ("ws://LocalHost:7400/", "localhost:7400", "localhost:7400", "localhost"),
            ("ws://[::1]:7400", "[::1]:7400", "[::1]:7400", "::1"),
            ("ws://[::1]", "[::1]", "[::1]:80", "::1"),
            ("ws://mesh.example/v1", "mesh.example", "mesh.example:80", "mesh.example"),
            ("wss://Mesh.Example", "mesh.example", "mesh.example:443", "mesh.example"),
            ("wss://10.0.0.5:7400", "10.0.0.5:7400", "10.0.0.5:7400", "10.0.0.5"),
        ] {
            let endpoint = Endpoint::new(url).unwrap();
            assert_eq!(
                (endpoint.host(), &*endpoint.address(), endpoint.name()),
                (host, address, name),
                "{url}"
            );
            assert_eq!(endpoint.trust.is_some(), url.starts_with("wss"), "{url}");
        }
        for bad in ["localhost:7400", "http://x", "ws://", "wss://", "ws://user@host:1"] {
            assert!(Endpoint::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_authoritys_own_certificate_says_what_to_make_instead() {
        let pem = include_bytes!("../../cli/tests/certs/ca.pem");
        let cert = CertificateDer::from_pem_slice(pem).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let why = verifier.verify_server_cert(&cert, &[], &name, &[], UnixTime::now()).unwrap_err();
        let told = said(&io::Error::new(io::ErrorKind::InvalidData, why)).to_string();
        assert!(told.contains("CA:FALSE"), "{told}");
    }

    #[test]
    fn this_machine_is_told_from_others() {
        for here in ["ws://127.0.0.1:7400", "ws://[::1]", "wss://LocalHost:1", "ws://[::ffff:127.0.0.1]:7"] {
            assert!(Endpoint::new(here).unwrap().is_loopback(), "{here}");
        }
        for away in
            ["ws://10.0.0.1:7400", "wss://localhost.example", "ws://127.0.0.1.example:1", "ws://[::2]"]
        {
            assert!(!Endpoint::new(away).unwrap().is_loopback(), "{away}");
        }
        assert!(Endpoint::new("ws://x").unwrap().is_clear() && !Endpoint::new("wss://x").unwrap().is_clear());
    }

    #[test]
    fn an_authority_that_is_none_is_refused() {
        let endpoint = Endpoint::new("wss://mesh.example").unwrap();
        let torn = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for bad in ["", "nothing", torn] {
            assert!(endpoint.clone().believing(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
