//! TLS from files, and reading them again.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_broker::config::TlsFiles;
use tenure_broker::{Broker, Config, StartError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::common::LONG;

fn cert(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certs").join(name)
}

/// Asks over TLS, believing only this certificate.
async fn ask(addr: SocketAddr, believed: &str) -> Result<String, String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(cert(believed)).unwrap()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = TcpStream::connect(addr).await.map_err(|error| error.to_string())?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream =
        TlsConnector::from(Arc::new(config)).connect(name, tcp).await.map_err(|error| error.to_string())?;
    let request = format!("GET /livez HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    // Whoever closes without saying so in TLS has said all the same.
    let _ = stream.read_to_end(&mut answer).await;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn a_certificate_is_used_and_read_again_and_a_broken_one_changes_nothing() {
    let dir = tempfile::tempdir().expect("dir");
    let files = TlsFiles { cert: dir.path().join("cert.pem"), key: dir.path().join("key.pem") };
    let put = |name: &str| {
        std::fs::copy(cert(&format!("{name}.pem")), &files.cert).unwrap();
        std::fs::copy(cert(&format!("{name}.key")), &files.key).unwrap();
    };
    put("first");
    let config = Config { tls: Some(files.clone()), ..Config::ephemeral(LONG) };
    let broker = Broker::start(config).await.expect("start");
    let addr = broker.addr();
    assert!(ask(addr, "first.pem").await.unwrap().starts_with("HTTP/1.1 200"));
    assert!(ask(addr, "second.pem").await.is_err(), "another's certificate is not believed");
    let mut plain = TcpStream::connect(addr).await.unwrap();
    plain.write_all(b"GET /livez HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("200 OK"), "nothing is said in the clear");

    std::fs::write(&files.cert, "torn").unwrap();
    broker.reload();
    assert!(ask(addr, "first.pem").await.unwrap().starts_with("HTTP/1.1 200"), "the old one stays");
    put("second");
    broker.reload();
    assert!(ask(addr, "second.pem").await.unwrap().starts_with("HTTP/1.1 200"));
    broker.stop("end").await;
}

#[tokio::test]
async fn files_that_do_not_go_together_are_refused_at_the_start() {
    let start = |cert_file: &str, key_file: &str| {
        let files = TlsFiles { cert: cert(cert_file), key: cert(key_file) };
        Broker::start(Config { tls: Some(files), ..Config::ephemeral(LONG) })
    };
    for (cert, key) in [("first.pem", "second.key"), ("missing.pem", "first.key"), ("first.key", "first.key")]
    {
        assert!(matches!(start(cert, key).await, Err(StartError::Tls(_))), "{cert} {key}");
    }
}

#[tokio::test]
async fn a_public_address_needs_a_mesh() {
    let listen = SocketAddr::from(([0, 0, 0, 0], 0));
    let config = Config { listen, behind_proxy: true, ..Config::ephemeral(LONG) };
    let error = Broker::start(config).await.expect_err("refused");
    assert!(error.to_string().contains("tenure mesh create"), "{error}");
}
