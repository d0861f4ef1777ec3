//! What an exposed name stands for: something nearby that takes connections.

use std::time::Duration;

use tenure_proto::error::{ErrorCode, WireError};
use tokio::net::TcpStream;

/// How long a target may take to take a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Dials `address`, `HOST:PORT`.
pub async fn dial_target(address: &str) -> Result<TcpStream, WireError> {
    let down = |why: String| WireError::new(ErrorCode::Unavailable, format!("{address}: {why}"));
    match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => {
            // A stream that cannot be hurried is still a stream.
            let _ = stream.set_nodelay(true);
            Ok(stream)
        }
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            Err(down("connection refused".to_owned()))
        }
        Ok(Err(error)) => Err(down(error.to_string())),
        Err(_) => Err(down(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()))),
    }
}
