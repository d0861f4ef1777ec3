//! A stream to a service, from whoever asks: the mesh says to whom, the publisher's socket carries it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tenure_mesh::services::route::{By, Want};
use tenure_mux::{Load, MuxStream, OpenError, write_frame};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::name::{MeshName, ServiceName};
use tenure_proto::relay::{Asker, StreamOpen};

use crate::relay::streams::{CutLine, Entered, Streams};
use crate::routes::{self, Open};
use crate::shared::Shared;

/// How long the socket of a publisher that the mesh calls online may take to come, and to take a stream: it dials after its
/// session is back.
const SOCKET_WAIT: Duration = Duration::from_secs(5);
/// How long to leave a socket alone that would not take a stream.
const AGAIN: Duration = Duration::from_millis(50);

/// What a stream holds on to until it is over.
#[derive(Debug)]
pub(crate) struct Held {
    _open: Open,
    entered: Entered,
    /// What the stream holds.
    load: Arc<Load>,
}

impl Held {
    /// Where more is counted that it holds.
    pub(crate) fn load(&self) -> &Arc<Load> {
        &self.load
    }

    /// Its other end is a stream as well.
    pub(crate) fn joins(&self, near: &MuxStream) {
        self.entered.holds(near.load());
    }

    /// What ends it from outside.
    pub(crate) fn line(&self) -> &CutLine {
        &self.entered.line
    }
}

/// Gets a stream to a service that is in one of these places, for somebody at `address` who is no session: the first that
/// has one of this name. Where none has, the first says so.
pub(crate) async fn find(
    shared: &Arc<Shared>,
    places: &[(MeshName, ServiceName)],
    want: Want,
    from: Asker,
    address: IpAddr,
) -> Result<(MuxStream, Held), WireError> {
    let mut unknown = None;
    for at in places {
        match open(shared, at, want, from.clone(), By::Address(address)).await {
            Err(error) if error.code == ErrorCode::NotFound => _ = unknown.get_or_insert(error),
            outcome => return outcome,
        }
    }
    Err(unknown.unwrap_or_else(draining))
}

fn draining() -> WireError {
    WireError::new(ErrorCode::Draining, "this broker is stopping; try again in a moment")
}

/// It was ended from outside.
pub(super) fn cut_off(reason: &str) -> WireError {
    WireError::new(ErrorCode::Unavailable, format!("it was cut off: {reason}"))
}

/// Gets a stream to a service of a mesh; its first frame, which says who asks, is on its way.
pub(crate) async fn open(
    shared: &Arc<Shared>,
    at: &(MeshName, ServiceName),
    want: Want,
    from: Asker,
    by: By,
) -> Result<(MuxStream, Held), WireError> {
    let (mesh, name) = at;
    let (handle, _) = shared.meshes.room(mesh).ok_or_else(draining)?;
    let open = routes::open(&handle, name.clone(), want, by).await?;
    let publisher = (mesh.clone(), open.target.session);
    let entered = Streams::enter(shared, &publisher, by, name);
    let first = StreamOpen { name: name.clone(), kind: want.kind(), from };
    let opening = async {
        loop {
            let mux = shared.relay.streams.publisher(&publisher).await;
            match mux.open().await {
                Ok(mut stream) => {
                    if write_frame(&mut stream, &first).await.is_ok() {
                        return Ok(stream);
                    }
                }
                Err(error @ OpenError::Full) => {
                    return Err(WireError::new(ErrorCode::Busy, error.to_string()).retry_after(1_000));
                }
                Err(OpenError::Gone) => {}
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    let away = || {
        WireError::new(ErrorCode::Unavailable, "its publisher takes no streams just now").retry_after(1_000)
    };
    // Both are cancel-safe: what they have taken ends with them.
    let stream = tokio::select! {
        opened = tokio::time::timeout(SOCKET_WAIT, opening) => opened.map_err(|_| away())??,
        reason = entered.line.is_cut() => {
            return Err(cut_off(reason));
        }
    };
    let load = stream.load();
    entered.holds(load.clone());
    Ok((stream, Held { _open: open, entered, load }))
}
