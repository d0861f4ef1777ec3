//! Streams to services, as the relay asks its mesh for them: who waits for an answer, and who must hear of cuts.
//!
//! What it promises: whoever asks is answered or gives up, and the mesh hears once that a stream is over, however it
//! ends: that is what dropping an [`Open`] says, and dropping the wait for one too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_kit::cidr::Cidr;
use tenure_mesh::Input;
use tenure_mesh::services::route::{By, RouteId, Target, Want};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::SessionKey;
use tenure_proto::name::ServiceName;
use tokio::sync::{broadcast, oneshot};

use crate::mesh_task::{MeshHandle, MeshMsg};

/// Streams that may wait for the mesh's answer at once: as many as it lets wait, and as many again on their way to it.
const ASKING: usize = 2 * tenure_proto::limits::STREAMS_WAITING;
/// Cuts that may wait for a slow listener. One that misses some is told so, and must cut all that it has.
const CUTS: usize = 4_096;

/// Streams that end now.
#[derive(Clone, Debug)]
pub(crate) enum Cut {
    /// Those of a session.
    Of {
        /// Whose, at either end.
        session: SessionKey,
        /// Only those to this service, if one is said.
        name: Option<ServiceName>,
        /// Why, in a word.
        reason: &'static str,
    },
    /// Those that somebody asked for from there, who is no session: it is banned.
    From(Cidr),
}

/// What a mesh is asked.
type Answer = Result<Target, WireError>;

/// The streams of one mesh.
#[derive(Debug)]
pub(crate) struct Routes {
    /// At most [`ASKING`]; held for a moment, never across an await.
    asking: Mutex<HashMap<RouteId, oneshot::Sender<Answer>>>,
    last: AtomicU64,
    cuts: broadcast::Sender<Cut>,
}

impl Default for Routes {
    fn default() -> Routes {
        let (cuts, _) = broadcast::channel(CUTS);
        Routes { asking: Mutex::default(), last: AtomicU64::new(0), cuts }
    }
}

impl Routes {
    fn asking(&self) -> MutexGuard<'_, HashMap<RouteId, oneshot::Sender<Answer>>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mesh has decided.
    pub(crate) fn answer(&self, route: RouteId, outcome: Answer) {
        if let Some(waiting) = self.asking().remove(&route) {
            // Whoever gave up meanwhile has said so to the mesh.
            let _ = waiting.send(outcome);
        }
    }

    /// Streams end now.
    pub(crate) fn cut(&self, cut: Cut) {
        // Nobody may be listening.
        let _ = self.cuts.send(cut);
    }

    /// Every cut from here on.
    pub(crate) fn cuts(&self) -> broadcast::Receiver<Cut> {
        self.cuts.subscribe()
    }
}

/// A stream that the mesh counts, or is being asked for, until this is dropped.
#[derive(Debug)]
struct Counted {
    route: RouteId,
    mesh: MeshHandle,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.mesh.routes().asking().remove(&self.route);
        self.mesh.tell(MeshMsg::Input(Input::RouteGone { route: self.route }));
    }
}

/// A stream that was given. It counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Open {
    /// Whom it goes to.
    pub(crate) target: Target,
    _counted: Counted,
}

/// Asks `mesh` for a stream to `name`; waits while the service is away, as long as the mesh lets it. Cancel-safe: whoever
/// stops waiting is forgotten.
pub(crate) async fn open(
    mesh: &MeshHandle,
    name: ServiceName,
    want: Want,
    by: By,
) -> Result<Open, WireError> {
    let routes: &Arc<Routes> = mesh.routes();
    let (sender, answer) = oneshot::channel();
    let route = RouteId(routes.last.fetch_add(1, Ordering::Relaxed) + 1);
    {
        let mut asking = routes.asking();
        if asking.len() >= ASKING {
            let text = "too many ask for services at once; try again in a moment";
            return Err(WireError::new(ErrorCode::Busy, text).retry_after(1_000));
        }
        asking.insert(route, sender);
    }
    let counted = Counted { route, mesh: mesh.clone() };
    let stopping = || WireError::new(ErrorCode::Draining, "this broker is stopping; try again in a moment");
    if !mesh.send(MeshMsg::Input(Input::Route { route, name, want, by })).await {
        return Err(stopping());
    }
    let target = answer.await.map_err(|_| stopping())??;
    Ok(Open { target, _counted: counted })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh_task::{self, Heard};
    use tenure_proto::ids::MemberKey;
    use tenure_proto::service::ServiceKind;

    const BY: By = By::Session(SessionKey([3; 32]));

    fn target(name: &ServiceName) -> Target {
        let (session, member) = (SessionKey([1; 32]), MemberKey([2; 32]));
        Target { session, member, name: name.clone(), kind: ServiceKind::Tcp }
    }

    #[tokio::test]
    async fn a_stream_is_over_once_whether_it_was_given_refused_or_given_up() {
        let (inputs, mut inbox) = mesh_task::channel();
        let mesh = MeshHandle::new(inputs, Heard::default());
        let name: ServiceName = "db".parse().unwrap();
        let mut asked = async || match inbox.recv().await {
            Some(MeshMsg::Input(Input::Route { route, .. })) => (route, true),
            Some(MeshMsg::Input(Input::RouteGone { route })) => (route, false),
            other => panic!("{other:?}"),
        };

        let (opened, route) = tokio::join!(open(&mesh, name.clone(), Want::Tcp, BY), async {
            let (route, _) = asked().await;
            mesh.routes().answer(route, Ok(target(&name)));
            route
        });
        assert_eq!(opened.as_ref().unwrap().target, target(&name));
        drop(opened);
        assert_eq!(asked().await, (route, false));

        let no = WireError::new(ErrorCode::NotFound, "no");
        let (refused, route) = tokio::join!(open(&mesh, name.clone(), Want::Tcp, BY), async {
            let (route, _) = asked().await;
            mesh.routes().answer(route, Err(no.clone()));
            route
        });
        assert_eq!(refused.unwrap_err(), no);
        assert_eq!(asked().await, (route, false));

        {
            let mut given_up = Box::pin(open(&mesh, name.clone(), Want::Http, BY));
            // Both are cancel-safe: an open that is dropped is forgotten, and `recv` takes nothing when it loses.
            tokio::select! {
                biased;
                _ = &mut given_up => panic!("nobody has answered"),
                (_, wanted) = asked() => assert!(wanted),
            }
        }
        assert!(!asked().await.1);
        assert!(mesh.routes().asking().is_empty());
    }

    #[tokio::test]
    async fn a_cut_reaches_everybody_who_listens() {
        let routes = Routes::default();
        let mut listener = routes.cuts();
        let whose = SessionKey([1; 32]);
        routes.cut(Cut::Of { session: whose, name: None, reason: "banned" });
        let cut = listener.recv().await.unwrap();
        assert!(matches!(cut, Cut::Of { session, name: None, reason: "banned" } if session == whose));
    }
}
