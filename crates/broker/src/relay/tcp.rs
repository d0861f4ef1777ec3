//! Streams of sessions that ask: each is led to the service that its socket's ticket names. What passes is encrypted
//! between the two ends.

use std::sync::Arc;

use tenure_mesh::services::route::{By, Want};
use tenure_mux::{Incoming, MuxStream, write_frame};
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::name::{MeshName, ServiceName};
use tenure_proto::relay::{Asker, Verdict};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use crate::relay::open;
use crate::relay::streams::Streams;
use crate::shared::Shared;

/// Carries the streams of one socket until it ends. They end with it.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    at: (MeshName, ServiceName),
    who: (SessionKey, MemberKey),
    mut incoming: Incoming,
) {
    let mut streams = JoinSet::new();
    loop {
        // Both are cancel-safe: neither has taken anything when it loses.
        tokio::select! {
            stream = incoming.recv() => match stream {
                Some(stream) => _ = streams.spawn(carry(shared.clone(), at.clone(), who, stream)),
                None => return,
            },
            Some(_) = streams.join_next() => {}
        }
    }
}

async fn carry(
    shared: Arc<Shared>,
    at: (MeshName, ServiceName),
    (session, member): (SessionKey, MemberKey),
    mut near: MuxStream,
) {
    let (asker, by) = (Asker::session(session, member), By::Session(session));
    let waiting = Streams::wait(&shared, near.load());
    // Both are cancel-safe: what they have taken ends with them.
    let opened = tokio::select! {
        opened = open::open(&shared, &at, Want::Tcp, asker, by) => opened,
        reason = waiting.line.is_cut() => Err(open::cut_off(reason)),
    };
    match opened {
        Ok((mut far, held)) => {
            held.joins(&near);
            drop(waiting);
            // Whichever ends first ends the other: both ends see that the stream broke off, and not that it is over.
            // The copy is not cancel-safe, and it is not resumed.
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                _ = held.line().is_cut() => {}
            }
        }
        Err(error) => {
            shared.metrics.refusal(error.code.as_str());
            let _ = write_frame(&mut near, &Verdict::no(error)).await;
            let _ = near.shutdown().await;
        }
    }
}
