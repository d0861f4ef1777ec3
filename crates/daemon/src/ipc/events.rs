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
use crate::rewinds::Telling;
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
    rewound: Telling,
    /// What was said of the broker last.
    connected: Option<bool>,
    _permit: OwnedSemaphorePermit,
}

/// What comes, as it comes: `message` with its number as id, and `connected` or `disconnected` as the broker comes
/// and goes. `rewound` with `logs` says that the broker's store came back with another history of these logs: each open stream tells each once,
/// before the messages that were kept after the daemon heard of it (the first of that history may have been kept just before). `more` says that
/// there were others, beyond the last 4,096. `reset` comes first when `Last-Event-ID` is no number of this inbox, because a damaged one was put aside: all that
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
    let (arrived, rewound) = (shared.arrived.subscribe(), Telling::new(local.rewound.clone()));
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
    let standing = local.standing.clone();
    let read = told.into_iter().collect();
    let local = Listening::to(local);
    let connected = None;
    let stream =
        Stream { shared, local, cursor, read, arrived, standing, rewound, connected, _permit: permit };
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
            if let Some(event) = self.rewound() {
                return Some(event);
            }
            self.arrived.borrow_and_update();
            if self.read().await? > 0 {
                // A rewind that was heard of meanwhile is told before these messages: some of them may be of the other history.
                if let Some(event) = self.rewound() {
                    self.read.push_front(event);
                }
                continue;
            }
            // All of these are cancel-safe.
            tokio::select! {
                () = self.shared.stopping.cancelled() => return None,
                () = self.local.leaving.cancelled() => return None,
                changed = self.arrived.changed() => changed.ok()?,
                Ok(()) = self.rewound.changed() => {}
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

    /// The event for logs that were rewound since the last call, if there are any.
    fn rewound(&mut self) -> Option<Event> {
        let data = serde_json::to_string(&self.rewound.take()?).ok()?;
        Some(Event::default().event("rewound").data(data))
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use serde_json::json;
    use tenure_outbox::arrival::Recipient;
    use tenure_proto::Codec;
    use tenure_proto::ids::MessageId;
    use tenure_proto::message::Message;

    use super::*;
    use crate::rewinds::Rewinds;
    use crate::{Config, Daemon, MeshChoice};

    /// A daemon whose broker is away.
    async fn daemon(dir: &std::path::Path) -> Daemon {
        let broker = "ws://127.0.0.1:9".to_owned();
        let mesh = MeshChoice { name: "default".parse().unwrap(), broker, authority: None };
        Daemon::start(Config::new(dir.to_owned(), mesh, "laptop")).await.unwrap()
    }

    /// A stream of the daemon's own session that has told how its broker is.
    async fn stream(daemon: &Daemon, rewound: &watch::Sender<Rewinds>) -> Stream {
        let shared = Arc::clone(daemon.shared());
        let local = shared.sessions.own(&"default".parse().unwrap()).unwrap();
        let mut stream = Stream {
            cursor: 0,
            read: VecDeque::new(),
            arrived: shared.arrived.subscribe(),
            standing: local.standing.clone(),
            rewound: Telling::new(rewound.subscribe()),
            connected: None,
            _permit: Arc::clone(&shared.streams).try_acquire_owned().unwrap(),
            local: Listening::to(local),
            shared,
        };
        assert!(text(&mut stream).await.contains("event: disconnected"));
        stream
    }

    fn rewind(rewound: &watch::Sender<Rewinds>, log: &str) {
        rewound.send_modify(|rewinds| rewinds.add(vec![log.to_owned()]));
    }

    async fn text(stream: &mut Stream) -> String {
        format!("{:?}", stream.next().await.unwrap())
    }

    /// What is there at once.
    async fn at_once<T>(what: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        poll_fn(|cx| match std::pin::Pin::new(&mut *what).poll(cx) {
            Poll::Ready(there) => Poll::Ready(Some(there)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test]
    async fn every_stream_tells_each_log_of_a_burst_once() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = daemon(dir.path()).await;
        let rewound = watch::channel(Rewinds::default()).0;
        let mut streams = [stream(&daemon, &rewound).await, stream(&daemon, &rewound).await];
        for log in ["topic/a/0", "topic/b/0", "topic/a/0"] {
            rewind(&rewound, log);
        }
        for stream in &mut streams {
            let told = text(stream).await;
            assert!(told.contains("event: rewound"), "{told}");
            assert_eq!(
                (told.matches("topic/a/0").count(), told.matches("topic/b/0").count()),
                (1, 1),
                "{told}"
            );
        }
        rewind(&rewound, "topic/c/0");
        for stream in &mut streams {
            let told = text(stream).await;
            assert!(told.contains("topic/c/0") && !told.contains("topic/b/0"), "{told}");
        }
    }

    fn message(daemon: &Daemon, n: u64) -> Message {
        let own = daemon.shared().sessions.own(&"default".parse().unwrap()).unwrap();
        let json = json!({
            "id": MessageId::from_parts(n, 1), "clientMessageId": format!("c{n}"), "to": "topic:a", "log": "topic/a/0", "seq": n,
            "from": {"member": own.member, "session": own.key, "name": "n"}, "priority": "next", "body": "x", "sentAt": 1,
        });
        Codec::Json.decode(json.to_string().as_bytes()).unwrap()
    }

    #[tokio::test]
    async fn a_rewind_is_told_before_messages_that_were_kept_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = daemon(dir.path()).await;
        let rewound = watch::channel(Rewinds::default()).0;
        let mut stream = stream(&daemon, &rewound).await;
        let (inbox, mine) = (&daemon.shared().inbox, Recipient::Session(stream.local.key));
        for n in 1.. {
            inbox.keep("default".parse().unwrap(), mine, &message(&daemon, n), 7).await.unwrap();
            // The inbox is asked; the rewind comes before its answer, and so perhaps before what it answers.
            let mut next = Box::pin(stream.next());
            if let Some(event) = at_once(&mut next).await {
                assert!(format!("{event:?}").contains("event: message"));
                continue;
            }
            rewind(&rewound, "topic/a/0");
            let first = format!("{:?}", next.as_mut().await.unwrap());
            drop(next);
            assert!(first.contains("event: rewound"), "{first}");
            assert!(text(&mut stream).await.contains("event: message"));
            return;
        }
    }
}
