//! A stream that is encrypted from one session to the other: Noise IK, each end's key stated by its session and vouched
//! for by its member.
//!
//! The end that answers states its key first, in the clear, because IK must know it; the end that asks checks whose it
//! is, and then proves itself in the first message of the handshake. The second message carries the verdict. From there
//! on a message is two bytes of length and a ciphertext; an empty one says that its end has no more to say, so that a
//! stream that somebody cuts short is told from one that is over.

use snow::{Builder, HandshakeState, StatelessTransportState};
use tenure_mux::{read_frame, write_frame};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::name::ServiceName;
use tenure_proto::noise::{KeyStatement, NOISE, prologue};
use tenure_proto::relay::{Verdict, unframe};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::relay::identity::{Identity, RelayError, wall_ms};

/// Bytes of a message of Noise.
const MESSAGE: usize = 65_535;
/// Bytes that a message grows by: its tag.
const TAG: usize = 16;
/// Bytes that are read from the near side at once: few at first, twice as many whenever they were not enough. A thousand
/// streams that say little cost little.
const PIECE: usize = 2 * 1024;
const PIECE_MAX: usize = 32 * 1024;

/// An encrypted stream.
pub(crate) struct Sealed<S> {
    stream: S,
    state: StatelessTransportState,
}

/// Asks: checks with `accept` whose key the other end states, proves who we are, and hears the verdict.
pub(crate) async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    identity: &Identity,
    name: &ServiceName,
    accept: impl FnOnce(&KeyStatement) -> Result<(), RelayError>,
) -> Result<(Sealed<S>, KeyStatement), RelayError> {
    let theirs: KeyStatement = read_frame(&mut stream).await?;
    let key = theirs.verify(identity.mesh(), wall_ms())?;
    accept(&theirs)?;
    let prologue = prologue(identity.mesh(), name);
    let mut noise = Builder::new(NOISE.parse()?)
        .prologue(&prologue)?
        .local_private_key(identity.private_key())?
        .remote_public_key(&key)?
        .build_initiator()?;
    let ours = json(&identity.statement())?;
    send(&mut stream, &mut noise, &ours).await?;
    let verdict = receive(&mut stream, &mut noise).await?;
    unframe::<Verdict>(&verdict)?.outcome()?;
    Ok((Sealed { stream, state: noise.into_stateless_transport_mode()? }, theirs))
}

/// Answers: states our key, hears whose the other is, and says what `judge` decides about that.
pub(crate) async fn answer<S, T>(
    mut stream: S,
    identity: &Identity,
    name: &ServiceName,
    judge: impl AsyncFnOnce(&KeyStatement) -> Result<T, WireError>,
) -> Result<(Sealed<S>, T), RelayError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    write_frame(&mut stream, &identity.statement()).await?;
    let prologue = prologue(identity.mesh(), name);
    let mut noise = Builder::new(NOISE.parse()?)
        .prologue(&prologue)?
        .local_private_key(identity.private_key())?
        .build_responder()?;
    let theirs = receive(&mut stream, &mut noise).await?;
    let judged = match stated(&theirs, &noise, identity) {
        Ok(statement) => judge(&statement).await,
        Err(error) => Err(error),
    };
    let verdict = match &judged {
        Ok(_) => Verdict::yes(),
        Err(error) => Verdict::no(error.clone()),
    };
    send(&mut stream, &mut noise, &json(&verdict)?).await?;
    match judged {
        Ok(value) => Ok((Sealed { stream, state: noise.into_stateless_transport_mode()? }, value)),
        Err(error) => {
            // The verdict is on its way; the stream ends behind it.
            stream.shutdown().await?;
            Err(error.into())
        }
    }
}

/// What the other end states, if the handshake has proven it.
fn stated(payload: &[u8], noise: &HandshakeState, identity: &Identity) -> Result<KeyStatement, WireError> {
    let statement: KeyStatement = unframe(payload)?;
    let key = statement.verify(identity.mesh(), wall_ms())?;
    if noise.get_remote_static() != Some(&key[..]) {
        return Err(WireError::new(ErrorCode::Unauthorized, "you state a key that is not the one you use"));
    }
    Ok(statement)
}

fn json<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, RelayError> {
    serde_json::to_vec(value).map_err(|error| RelayError::Broken(error.to_string()))
}

async fn send<S: AsyncWrite + Unpin>(
    stream: &mut S,
    noise: &mut HandshakeState,
    payload: &[u8],
) -> Result<(), RelayError> {
    let mut message = vec![0; MESSAGE + 2];
    let length = noise.write_message(payload, &mut message[2..])?;
    write(stream, &mut message, length).await
}

async fn receive<S: AsyncRead + Unpin>(
    stream: &mut S,
    noise: &mut HandshakeState,
) -> Result<Vec<u8>, RelayError> {
    let mut message = Vec::new();
    let length = read(stream, &mut message).await?;
    let mut payload = vec![0; MESSAGE];
    let length = noise.read_message(&message[..length], &mut payload)?;
    payload.truncate(length);
    Ok(payload)
}

/// Writes a message of `length` bytes that stand behind room for their length.
async fn write<S: AsyncWrite + Unpin>(
    stream: &mut S,
    message: &mut [u8],
    length: usize,
) -> Result<(), RelayError> {
    let short = u16::try_from(length).map_err(|_| RelayError::Broken("a message is too long".to_owned()))?;
    message[..2].copy_from_slice(&short.to_be_bytes());
    stream.write_all(&message[..2 + length]).await?;
    stream.flush().await?;
    Ok(())
}

/// Reads a message to the beginning of `message`, which grows if it must: to [`MESSAGE`] at most.
async fn read<S: AsyncRead + Unpin>(stream: &mut S, message: &mut Vec<u8>) -> Result<usize, RelayError> {
    let length = usize::from(stream.read_u16().await?);
    if message.len() < length {
        message.resize(length, 0);
    }
    stream.read_exact(&mut message[..length]).await?;
    Ok(length)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sealed<S> {
    /// Carries bytes between the near side and the stream until both have no more to say, or one breaks.
    pub(crate) async fn carry(
        self,
        near_in: impl AsyncRead + Unpin,
        near_out: impl AsyncWrite + Unpin,
    ) -> Result<(), RelayError> {
        let Sealed { stream, state } = self;
        let (far_in, far_out) = tokio::io::split(stream);
        tokio::try_join!(seal(&state, near_in, far_out), unseal(&state, far_in, near_out))?;
        Ok(())
    }
}

/// From the near side into the stream.
async fn seal(
    state: &StatelessTransportState,
    mut near: impl AsyncRead + Unpin,
    mut far: impl AsyncWrite + Unpin,
) -> Result<(), RelayError> {
    let (mut piece, mut message) = (vec![0; PIECE], Vec::new());
    for nonce in 0.. {
        // A near side that breaks off has not said that it is done: the stream must not say so either.
        let read = near.read(&mut piece).await?;
        message.resize(2 + piece.len() + TAG, 0);
        let length = state.write_message(nonce, &piece[..read], &mut message[2..])?;
        write(&mut far, &mut message, length).await?;
        if read == 0 {
            break;
        }
        if read == piece.len() && read < PIECE_MAX {
            piece.resize(2 * read, 0);
        }
    }
    far.shutdown().await?;
    Ok(())
}

/// From the stream to the near side.
async fn unseal(
    state: &StatelessTransportState,
    mut far: impl AsyncRead + Unpin,
    mut near: impl AsyncWrite + Unpin,
) -> Result<(), RelayError> {
    let (mut message, mut piece) = (Vec::new(), Vec::new());
    for nonce in 0.. {
        let length = read(&mut far, &mut message).await?;
        // Both have grown to the longest message so far.
        piece.resize(message.len(), 0);
        let length = state.read_message(nonce, &message[..length], &mut piece)?;
        if length == 0 {
            break;
        }
        near.write_all(&piece[..length]).await?;
        near.flush().await?;
    }
    near.shutdown().await?;
    Ok(())
}

#[cfg(test)]
#[path = "noise_tests.rs"]
mod tests;
