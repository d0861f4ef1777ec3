//! `GET /v1/events`: what comes, as it comes. A stream reads the inbox on from where it is, so that a slow reader
//! costs nobody else anything, and one that comes back with `Last-Event-ID` misses nothing.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::json;
use tenure_outbox::arrival::{Resume, resume};
use tenure_proto::error::ErrorCode;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::body::Query;
use super::document::Refusals;
use super::guard::Caller;
use super::inbox::Arrived;
use super::mesh::MeshQuery;
use super::problem::Problem;
use crate::inbox::Filter;
use crate::link::Standing;
use crate::shared::Shared;
use crate::visits::Listening;

/// Messages that are read at once.
const READ: usize = 64;

/// One stream.
struct Stream {
    shared: Arc<Shared>,
    local: Listening,
    /// The last message that was read.
    cursor: u64,
    read: VecDeque<Event>,
    arrived: watch::Receiver<u64>,
    standing: watch::Receiver<Standing>,
    rewound: watch::Receiver<Vec<String>>,
    /// What was said of the broker last.
    connected: Option<bool>,
    _permit: OwnedSemaphorePermit,
}

/// What comes, as it comes: `message` with its number as id, and `connected` or `disconnected` as the broker comes
/// and goes. `rewound` with `logs` says that the broker's store came back with another history, whose messages follow. `reset` comes first when `Last-Event-ID` is no number of this inbox, because a damaged one was put aside: all that
/// is here follows.
#[utoipa::path(get, path = "/v1/events",
    params(MeshQuery, ("Last-Event-ID" = Option<String>, Header, description = "Go on after this message")),
    responses(
        (status = 200, description = "Server-sent events", body = String, content_type = "text/event-stream"),
    Refusals))]
pub(crate) async fn events(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    headers: HeaderMap,
    Query(query): Query<MeshQuery>,
) -> Result<Response, Problem> {
    let local = caller.session(&shared, query.mesh.as_ref(), None)?;
    let permit = Arc::clone(&shared.streams).try_acquire_owned();
    let permit =
        permit.map_err(|_| Problem::of(ErrorCode::Busy, "as many streams are open as may be; close one"))?;
    let arrived = shared.arrived.subscribe();
    let last = match headers.get("last-event-id").map(|id| id.to_str().ok().and_then(|id| id.parse().ok())) {
        None => None,
        Some(Some(id)) => Some(id),
        Some(None) => {
            return Err(Problem::of(
                ErrorCode::BadRequest,
                "Last-Event-ID is the id of an event of this stream",
            ));
        }
    };
    let Resume { after: cursor, reset } = resume(last, shared.inbox.newest().await?);
    // With an id, so that whoever comes back after it does not bring the old one.
    let told = reset.then(|| Event::default().event("reset").id("0").data("{}"));
    let (standing, rewound) = (local.standing.clone(), local.rewound.clone());
    let read = told.into_iter().collect();
    let local = Listening::to(local);
    let connected = None;
    let mut stream =
        Stream { shared, local, cursor, read, arrived, standing, rewound, connected, _permit: permit };
    stream.rewound.mark_unchanged();
    let events = unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response())
}

impl Stream {
    /// The next event; none when the daemon stops or the inbox cannot be read: then the reader comes back and goes on
    /// where it was.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.read.pop_front() {
                return Some(event);
            }
            let connected = self.standing.borrow_and_update().is_attached();
            if self.connected.replace(connected) != Some(connected) {
                let name = if connected { "connected" } else { "disconnected" };
                return Some(Event::default().event(name).data("{}"));
            }
            // Before the messages of the other history.
            if self.rewound.has_changed().unwrap_or(false) {
                return self.rewound();
            }
            self.arrived.borrow_and_update();
            if self.read().await? > 0 {
                continue;
            }
            // All of these are cancel-safe.
            tokio::select! {
                () = self.shared.stopping.cancelled() => return None,
                () = self.local.leaving.cancelled() => return None,
                changed = self.arrived.changed() => changed.ok()?,
                Ok(()) = self.rewound.changed() => return self.rewound(),
                changed = self.standing.changed() => {
                    // Over: nothing comes any more but what is here.
                    if changed.is_err() {
                        // Both are cancel-safe: they only wait.
                        tokio::select! {
                            () = self.shared.stopping.cancelled() => {}
                            // Taken up again: the reader comes back to what it is now.
                            () = self.local.leaving.cancelled() => {}
                        }
                        return None;
                    }
                }
            }
        }
    }

    fn rewound(&mut self) -> Option<Event> {
        let data = json!({"logs": *self.rewound.borrow_and_update()});
        Some(Event::default().event("rewound").data(data.to_string()))
    }

    async fn read(&mut self) -> Option<usize> {
        let filter = Filter {
            mesh: self.local.mesh.to_string(),
            recipients: self.local.recipients(),
            after: self.cursor,
            limit: READ,
            ..Filter::default()
        };
        let (letters, _) = self.shared.inbox.list(filter).await.ok()?;
        for letter in letters {
            self.cursor = letter.id;
            let arrived = Arrived::from(letter);
            let data = serde_json::to_string(&arrived).ok()?;
            self.read.push_back(Event::default().event("message").id(arrived.id.to_string()).data(data));
        }
        Some(self.read.len())
    }
}
