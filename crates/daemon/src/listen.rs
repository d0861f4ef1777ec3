//! Where the daemon listens: a Unix socket that only its owner can open, and loopback TCP if asked.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tokio::net::{TcpListener, UnixListener};

use crate::home::make_dir;

/// Listens at `path`. A socket that a crash has left is replaced: whoever calls this holds the directory, so nobody
/// listens there. The socket is made where only its owner can reach it, and put in place when its mode is right.
pub(crate) fn unix(path: &Path) -> io::Result<UnixListener> {
    let aside = path.with_extension(format!("new-{}", std::process::id()));
    let _ = fs::remove_dir_all(&aside);
    make_dir(&aside)?;
    let made = aside.join("s");
    let listener = UnixListener::bind(&made)?;
    fs::set_permissions(&made, Permissions::from_mode(0o600))?;
    fs::rename(&made, path)?;
    fs::remove_dir(&aside)?;
    Ok(listener)
}

/// Listens at a loopback address, and at no other.
pub(crate) async fn tcp(addr: SocketAddr) -> io::Result<TcpListener> {
    if !addr.ip().is_loopback() {
        let why = "the daemon listens on loopback only: its token is not encrypted";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    TcpListener::bind(addr).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixStream;

    #[tokio::test]
    async fn a_socket_left_by_a_crash_is_replaced_and_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.sock");
        drop(unix(&path).unwrap());
        assert!(UnixStream::connect(&path).await.is_err(), "the file is there, and nobody behind it");
        let listener = unix(&path).unwrap();
        let (connected, _) = tokio::join!(UnixStream::connect(&path), listener.accept());
        connected.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "not a socket").unwrap();
        unix(&path).unwrap();
    }

    #[tokio::test]
    async fn only_loopback_is_listened_on() {
        assert!(tcp("127.0.0.1:0".parse().unwrap()).await.is_ok());
        assert!(tcp("0.0.0.0:0".parse().unwrap()).await.is_err());
    }
}
