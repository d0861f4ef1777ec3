//! What stands before a stream's bytes: small frames of JSON, see [`tenure_proto::relay`].

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_proto::WireError;
use tenure_proto::relay::{self, LENGTH_BYTES};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Why a frame was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream ended or broke.
    #[error("the stream broke off: {0}")]
    Io(#[from] std::io::Error),
    /// What came is no frame.
    #[error("{0}")]
    Bad(String),
}

impl From<WireError> for FrameError {
    fn from(error: WireError) -> FrameError {
        FrameError::Bad(error.message)
    }
}

/// Reads one frame, and not a byte more.
pub async fn read_frame<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> Result<T, FrameError> {
    let mut length = [0; LENGTH_BYTES];
    stream.read_exact(&mut length).await?;
    let too_long = || FrameError::Bad("a frame of this length is none of ours".to_owned());
    let mut json = vec![0; relay::length(length).ok_or_else(too_long)?];
    stream.read_exact(&mut json).await?;
    Ok(relay::unframe(&json)?)
}

/// Writes one frame.
pub async fn write_frame<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    value: &T,
) -> Result<(), FrameError> {
    let frame =
        relay::frame(value).ok_or_else(|| FrameError::Bad("this is too long for a frame".to_owned()))?;
    stream.write_all(&frame).await?;
    stream.flush().await?;
    Ok(())
}
