//! The end that answers: one socket to the broker, through which streams come; each is led to its target.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_mux::{MuxStream, read_frame, write_frame};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::MemberKey;
use tenure_proto::name::ServiceName;
use tenure_proto::noise::KeyStatement;
use tenure_proto::relay::{StreamOpen, Verdict};
use tenure_proto::service::{RelayRole, ServiceKind};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::Session;
use crate::relay::dial::{self, RelaySocket};
use crate::relay::identity::{Identity, RelayError};
use crate::relay::noise;
use crate::relay::target::dial_target;

/// How long a stream may take until its bytes flow: what it says first, the handshake, the target.
const OPENING: Duration = Duration::from_secs(15);
/// The wait before a socket is dialled again, at first and at most; half of each is left to chance by what else happens.
const AGAIN: Duration = Duration::from_millis(250);
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `HOST:PORT`, dialled for each stream.
    pub address: String,
    /// How it is spoken to: [`ServiceKind::Http`] or [`ServiceKind::Tcp`].
    pub kind: ServiceKind,
    /// Whose sessions may open streams to a [`ServiceKind::Tcp`] target; nobody named is everybody in the mesh.
    pub allow: Vec<MemberKey>,
}

/// What names stand for.
pub type Targets = BTreeMap<ServiceName, Target>;

/// The end that answers, of all names that a session exposes.
#[derive(Clone, Debug)]
pub struct Exposure {
    session: Session,
    identity: Identity,
    targets: Arc<Targets>,
}

impl Exposure {
    /// Will answer for `targets` as `session`.
    pub fn new(session: &Session, targets: Targets) -> Exposure {
        Exposure {
            session: session.clone(),
            identity: session.identity().clone(),
            targets: Arc::new(targets),
        }
    }

    /// Carries streams until the broker will not have this session any more; gives the reason. `opened` is called each time
    /// a socket is there, with where HTTP services are found, if the broker says so. Sockets that break are dialled again.
    pub async fn run(&self, mut opened: impl FnMut(Option<&str>) + Send) -> WireError {
        let mut wait = AGAIN;
        loop {
            match dial::open(&self.session, RelayRole::Publish, None).await {
                Ok(socket) => {
                    opened(socket.opened.public.as_deref());
                    wait = AGAIN;
                    let why = self.carry(socket).await;
                    tracing::debug!(%why, "the relay's socket ended");
                }
                Err(error) if is_final(&error) => return error,
                Err(error) => tracing::debug!(%error.message, "no socket to the relay"),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(AGAIN_MAX);
        }
    }

    /// Streams of one socket, until it ends. They end with it.
    async fn carry(&self, mut socket: RelaySocket) -> String {
        let mut streams = JoinSet::new();
        loop {
            // Both are cancel-safe: neither has taken anything when it loses.
            tokio::select! {
                stream = socket.incoming.recv() => match stream {
                    Some(stream) => {
                        let this = self.clone();
                        streams.spawn(async move {
                            if let Err(error) = this.serve(stream).await {
                                tracing::debug!(%error, "a stream ended early");
                            }
                        });
                    }
                    None => break,
                },
                Some(_) = streams.join_next() => {}
            }
        }
        match socket.carrying.await {
            Ok(end) => end.to_string(),
            Err(error) => error.to_string(),
        }
    }

    async fn serve(&self, mut stream: MuxStream) -> Result<(), RelayError> {
        let late = |_| RelayError::Broken("a stream took too long to begin".to_owned());
        let open: StreamOpen =
            tokio::time::timeout(OPENING, read_frame(&mut stream)).await.map_err(late)??;
        let Some(target) = self.targets.get(&open.name).filter(|target| target.kind == open.kind) else {
            let error = WireError::new(ErrorCode::NotFound, format!("{} is not exposed here", open.name));
            write_frame(&mut stream, &Verdict::no(error.clone())).await?;
            return Err(error.into());
        };
        match target.kind {
            ServiceKind::Http => {
                let near = match dial_target(&target.address).await {
                    Ok(near) => near,
                    Err(error) => {
                        write_frame(&mut stream, &Verdict::no(error.clone())).await?;
                        return Err(error.into());
                    }
                };
                write_frame(&mut stream, &Verdict::yes()).await?;
                exchange(stream, near).await?;
                Ok(())
            }
            _ => {
                write_frame(&mut stream, &Verdict::yes()).await?;
                let judge = async |who: &KeyStatement| {
                    admit(target, who.member)?;
                    dial_target(&target.address).await
                };
                let answering = noise::answer(stream, &self.identity, &open.name, judge);
                let (sealed, near) = tokio::time::timeout(OPENING, answering).await.map_err(late)??;
                let (near_in, near_out) = near.into_split();
                sealed.carry(near_in, near_out).await
            }
        }
    }
}

/// Carries one request and its answer. It is over when the broker says so: a target that keeps its connection open for another
/// request waits for none here.
async fn exchange(stream: MuxStream, mut near: TcpStream) -> std::io::Result<()> {
    let (mut far_in, mut far_out) = tokio::io::split(stream);
    let (mut near_in, mut near_out) = near.split();
    let there = tokio::io::copy(&mut far_in, &mut near_out);
    let back = async {
        tokio::io::copy(&mut near_in, &mut far_out).await?;
        far_out.shutdown().await
    };
    tokio::pin!(there);
    // The copies are not cancel-safe: what loses is dropped together with both connections, or awaited.
    tokio::select! {
        done = &mut there => done.map(|_| ()),
        done = back => {
            done?;
            there.await.map(|_| ())
        }
    }
}

fn admit(target: &Target, member: MemberKey) -> Result<(), WireError> {
    if target.allow.is_empty() || target.allow.contains(&member) {
        return Ok(());
    }
    let text = format!("member {member} may not use this service; its publisher can allow that");
    Err(WireError::new(ErrorCode::Forbidden, text))
}

/// Whether asking again cannot help. A lease that ended can be had anew, so that is not it.
fn is_final(error: &WireError) -> bool {
    use ErrorCode::{Banned, Forbidden, Unauthorized, UnknownMethod};
    matches!(error.code, Banned | Forbidden | Unauthorized | UnknownMethod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_named_is_everybody_and_somebody_named_is_nobody_else() {
        let target = |allow| Target { address: String::new(), kind: ServiceKind::Tcp, allow };
        assert!(admit(&target(vec![]), MemberKey([1; 32])).is_ok());
        assert!(admit(&target(vec![MemberKey([1; 32])]), MemberKey([1; 32])).is_ok());
        let error = admit(&target(vec![MemberKey([1; 32])]), MemberKey([2; 32])).unwrap_err();
        assert_eq!(error.code, ErrorCode::Forbidden);
    }
}
