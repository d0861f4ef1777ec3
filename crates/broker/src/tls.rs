//! TLS from files: what encrypts connections, and reading it again.
//!
//! A certificate that is renewed in place is taken up without a restart: when a file has changed, or when a person says
//! so. One that cannot be used leaves the old one in place and is logged, once for each change.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

use crate::config::TlsFiles;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsProblem {
    /// A file does not read as what it should be.
    #[error("read {0}: {1}")]
    File(PathBuf, String),
    /// They do not go together, or are of a kind that is not known.
    #[error("{0} and its key: {1}")]
    Pair(PathBuf, String),
}

/// What a file looked like when it was last read.
type Look = [Option<(SystemTime, u64)>; 2];

/// The certificate in use.
#[derive(Debug)]
pub(crate) struct Tls {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
    look: Mutex<Look>,
}

impl Tls {
    /// Reads both files.
    pub(crate) fn load(files: TlsFiles) -> Result<Tls, TlsProblem> {
        let look = look(&files);
        let config = RwLock::new(read(&files)?);
        Ok(Tls { files, config, look: Mutex::new(look) })
    }

    /// What a connection that comes now is accepted with.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Reads the files again. Connections that there are go on as they were.
    pub(crate) fn reload(&self) {
        *self.look.lock().unwrap_or_else(PoisonError::into_inner) = look(&self.files);
        match read(&self.files) {
            Ok(config) => {
                *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
                tracing::info!(event = "tls_reloaded", cert = %self.files.cert.display());
            }
            Err(error) => {
                tracing::error!(event = "tls_reload_failed", %error, "the old certificate stays in use")
            }
        }
    }

    /// Reads the files again if they have changed.
    fn look(&self) {
        let changed = look(&self.files) != *self.look.lock().unwrap_or_else(PoisonError::into_inner);
        if changed {
            self.reload();
        }
    }
}

/// Looks at the files until the broker stops.
pub(crate) async fn watch(tls: Arc<Tls>, stop: CancellationToken) {
    loop {
        // Both are cancel-safe: they only wait.
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = stop.cancelled() => return,
        }
        let tls = tls.clone();
        // A disk may be slow; what panics there is its own problem.
        let _ = tokio::task::spawn_blocking(move || tls.look()).await;
    }
}

fn look(files: &TlsFiles) -> Look {
    let seen = |metadata: Metadata| Some((metadata.modified().ok()?, metadata.len()));
    [&files.cert, &files.key].map(|path| std::fs::metadata(path).ok().and_then(seen))
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsProblem> {
    let bad = |path: &Path, why: String| TlsProblem::File(path.to_owned(), why);
    let chain = CertificateDer::pem_file_iter(&files.cert)
        .and_then(|certs| certs.collect::<Result<Vec<_>, _>>())
        .map_err(|error| bad(&files.cert, error.to_string()))?;
    if chain.is_empty() {
        return Err(bad(&files.cert, "there is no certificate in it".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| bad(&files.key, error.to_string()))?;
    let pair = |error: tokio_rustls::rustls::Error| TlsProblem::Pair(files.cert.clone(), error.to_string());
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
