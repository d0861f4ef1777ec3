//! The end that asks: streams to one `tcp` service, each encrypted to whoever the name belongs to.

use std::time::Duration;

use tenure_mux::{Mux, MuxStream, OpenError, read_frame};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::MemberKey;
use tenure_proto::limits::RELAY_WAIT_MS;
use tenure_proto::name::ServiceName;
use tenure_proto::noise::KeyStatement;
use tenure_proto::relay::Verdict;
use tenure_proto::service::RelayRole;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};

use crate::Session;
use crate::relay::dial;
use crate::relay::identity::{Identity, RelayError};
use crate::relay::noise::{self, Sealed};
use crate::relay::pins::{PinError, Pinned, Pins};

/// How long a stream may take until its bytes flow: the service may be waited for, then the two ends shake hands.
const OPENING: Duration = Duration::from_millis(RELAY_WAIT_MS + 20_000);
/// Streams that may wait for the socket at once; more wait before that.
const WAITING: usize = 64;

/// Whom the name must belong to.
#[derive(Clone, Debug)]
pub enum Expect {
    /// This member, whatever was before.
    Member(MemberKey),
    /// Whoever it belonged to when it was first used.
    Pinned(Pins),
}

type Asked = oneshot::Sender<Result<MuxStream, WireError>>;

/// Opens streams to one service. Clones share a socket, which is dialled when it is needed.
#[derive(Clone, Debug)]
pub struct Connector {
    identity: Identity,
    name: ServiceName,
    expect: Expect,
    asked: mpsc::Sender<Asked>,
}

/// An encrypted stream to a service.
pub struct Channel {
    sealed: Sealed<MuxStream>,
    /// Who answers.
    pub peer: KeyStatement,
    /// Whether the name was used for the first time; nothing when the caller knew whom to expect.
    pub pinned: Option<Pinned>,
}

impl Connector {
    /// Will open streams to `name` as `session`.
    pub fn new(session: &Session, name: ServiceName, expect: Expect) -> Connector {
        let (asked, asking) = mpsc::channel(WAITING);
        tokio::spawn(supply(session.clone(), name.clone(), asking));
        Connector { identity: session.identity().clone(), name, expect, asked }
    }

    /// A stream, once the other end has shown whose it is.
    pub async fn open(&self) -> Result<Channel, RelayError> {
        let late = |_| RelayError::Broken(format!("{} took too long to take a stream", self.name));
        tokio::time::timeout(OPENING, self.try_open()).await.map_err(late)?
    }

    async fn try_open(&self) -> Result<Channel, RelayError> {
        let gone = || RelayError::Broken("the session is over".to_owned());
        let (answer, answered) = oneshot::channel();
        self.asked.send(answer).await.map_err(|_| gone())?;
        let mut stream = answered.await.map_err(|_| gone())??;
        stream.announce().await?;
        read_frame::<Verdict>(&mut stream).await?.outcome()?;
        let (sealed, peer, pinned) = shake(stream, &self.identity, &self.name, &self.expect).await?;
        Ok(Channel { sealed, peer, pinned })
    }
}

/// Shakes hands with whoever answers. Whose the name is, is looked at before we say who we are, and kept when the other
/// end has proven it: a key that is only shown is nobody's.
async fn shake<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    identity: &Identity,
    name: &ServiceName,
    expect: &Expect,
) -> Result<(Sealed<S>, KeyStatement, Option<Pinned>), RelayError> {
    let accept = |who: &KeyStatement| match expect {
        Expect::Member(expected) if *expected == who.member => Ok(()),
        Expect::Member(expected) => {
            let (name, expected) = (name.clone(), *expected);
            Err(PinError::Unexpected { name, expected, is: who.member }.into())
        }
        Expect::Pinned(pins) => Ok(pins.look(identity.mesh(), name, who.member).map(|_| ())?),
    };
    let (sealed, peer) = noise::ask(stream, identity, name, accept).await?;
    let pinned = match expect {
        Expect::Member(_) => None,
        Expect::Pinned(pins) => Some(pins.check(identity.mesh(), name, peer.member)?),
    };
    Ok((sealed, peer, pinned))
}

impl Channel {
    /// Carries bytes between the near side and the service until both have no more to say, or one breaks.
    pub async fn carry(
        self,
        near_in: impl AsyncRead + Unpin,
        near_out: impl AsyncWrite + Unpin,
    ) -> Result<(), RelayError> {
        self.sealed.carry(near_in, near_out).await
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("peer", &self.peer.member).finish_non_exhaustive()
    }
}

/// Keeps a socket and opens streams on it for whoever asks, until nobody can any more.
async fn supply(session: Session, name: ServiceName, mut asking: mpsc::Receiver<Asked>) {
    let mut socket = None;
    while let Some(asked) = asking.recv().await {
        let gone = |socket: &dial::RelaySocket| socket.mux.is_gone();
        if socket.as_ref().is_none_or(gone) {
            socket = match dial::open(&session, RelayRole::Connect, Some(name.clone())).await {
                Ok(socket) => Some(socket),
                Err(error) => {
                    let _ = asked.send(Err(error));
                    continue;
                }
            };
        }
        if let Some(socket) = &socket {
            // One that waits for its turn keeps nobody else from asking.
            tokio::spawn(open(socket.mux.clone(), asked));
        }
    }
}

async fn open(mux: Mux, asked: Asked) {
    let outcome = mux.open().await.map_err(|error| match error {
        OpenError::Full => WireError::new(ErrorCode::Busy, error.to_string()),
        OpenError::Gone => WireError::new(ErrorCode::Unavailable, error.to_string()),
    });
    let _ = asked.send(outcome);
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::SigningKey;
    use tenure_mux::write_frame;
    use tokio::io::duplex;

    use super::*;
    use crate::Options;

    fn identity(n: u8) -> Identity {
        let options = Options::new("ws://127.0.0.1:1", SigningKey::from_bytes(&[n; 32]), "x").unwrap();
        let options = options.session_key(SigningKey::from_bytes(&[n + 1; 32])).mesh("m").unwrap();
        Identity::new(&options.link).unwrap()
    }

    #[tokio::test]
    async fn a_name_is_pinned_when_its_key_is_proven_and_not_before() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("known-services");
        let expect = Expect::Pinned(Pins::new(&file));
        let web: ServiceName = "web".parse().unwrap();
        // Somebody shows another's statement, and cannot go on.
        let (near, mut far) = duplex(4_096);
        let shown = identity(3).statement();
        let showing = tokio::spawn(async move { write_frame(&mut far, &shown).await.unwrap() });
        assert!(shake(near, &identity(1), &web, &expect).await.is_err());
        showing.await.unwrap();
        assert!(!file.exists(), "nothing was proven");
        // Nor does one count that turns us away.
        for (verdict, pinned) in [
            (Err(WireError::new(ErrorCode::Forbidden, "not you")), None),
            (Ok(()), Some(Pinned::First)),
            (Ok(()), Some(Pinned::Known)),
        ] {
            let ((near, far), name) = (duplex(4_096), web.clone());
            let answering = tokio::spawn(async move {
                noise::answer(far, &identity(5), &name, async |_: &KeyStatement| verdict).await.map(|_| ())
            });
            let shaken = shake(near, &identity(1), &web, &expect).await;
            assert_eq!(shaken.ok().and_then(|(_, _, pinned)| pinned), pinned);
            assert_eq!(file.exists(), pinned.is_some());
            let _ = answering.await.unwrap();
        }
        // And whoever shows another key is refused before we say who we are.
        let (near, mut far) = duplex(4_096);
        let shown = identity(3).statement();
        let showing = tokio::spawn(async move { write_frame(&mut far, &shown).await.unwrap() });
        let refused = shake(near, &identity(1), &web, &expect).await.map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("was offered by member"), "{refused}");
        showing.await.unwrap();
    }
}
