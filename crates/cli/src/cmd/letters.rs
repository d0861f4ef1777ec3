//! What the daemon has kept for a session: what was printed is marked as seen, and not printed again.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_client::proto::log::LogName;
use tenure_client::proto::message::Message;
use tenure_client::proto::name::TopicName;

use super::guest::rewound;
use super::show::Show;
use super::way::Through;
use crate::events::Stream;
use crate::exit::Failure;
use crate::local::escaped;
use crate::output::{emit, unread};
use crate::signals::Signals;

/// How long to wait before a daemon that went away is asked again.
const AGAIN: Duration = Duration::from_millis(500);

/// How long a command that was told to end may still mark what it has printed.
const LAST_MARKS: Duration = Duration::from_secs(5);

/// What is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Want {
    pub(crate) show: Show,
    /// Whether to stay for what comes.
    pub(crate) follow: bool,
    /// Whether what is printed is marked as seen.
    pub(crate) marks: bool,
    /// At most so many.
    pub(crate) limit: Option<u64>,
    /// Only what was sent to the member.
    pub(crate) member: bool,
    /// Only what was posted to this topic.
    pub(crate) topic: Option<TopicName>,
}

/// What has been printed.
struct Printed<'a> {
    through: &'a Through,
    want: &'a Want,
    /// The number of the last one.
    last: u64,
    /// How many more to print.
    left: u64,
    /// Whether nothing was.
    fresh: bool,
    /// The numbers of messages that were printed and are not marked as seen yet, at most a page of them.
    unmarked: Vec<u64>,
}

/// Whether to go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    More,
    Enough,
}

/// Prints what nobody has seen, and what comes if that is wanted. What is left of the limit is what `want` says then.
pub(crate) async fn read(through: &Through, want: &mut Want, signals: &mut Signals) -> Result<(), Failure> {
    let left = want.limit.unwrap_or(u64::MAX);
    let mut printed = Printed { through, want, last: 0, left, fresh: true, unmarked: Vec::new() };
    let work = async {
        if !want.follow {
            printed.unseen().await?;
            if printed.fresh {
                eprintln!("nothing waits");
            }
            return Ok(());
        }
        printed.follow().await
    };
    // The work is not resumed after a signal. What it had printed and not marked is marked below.
    // Waiting for a signal is cancel-safe.
    let done = tokio::select! {
        done = work => done,
        () = signals.recv() => Ok(()),
    };
    // A daemon that does not answer is not waited for: then the next command prints these once more.
    let _ = tokio::time::timeout(LAST_MARKS, printed.mark()).await;
    let left = printed.left;
    want.limit = want.limit.map(|_| left);
    done
}

impl Printed<'_> {
    /// Prints everything that nobody has seen, page by page.
    async fn unseen(&mut self) -> Result<On, Failure> {
        let mut after = self.last;
        loop {
            let topic = self.want.topic.as_ref().map(|topic| format!("&topic={}", escaped(topic.as_str())));
            let (topic, mesh) = (topic.unwrap_or_default(), self.through.and_mesh());
            let path = format!("/v1/inbox?unseen=true&after={after}{topic}{mesh}");
            let page = self.through.local.get(&path).await?;
            if page["newest"].as_u64().is_some_and(|newest| newest < self.last) {
                eprintln!("the daemon has a new inbox, because its old one was damaged");
                (self.last, after) = (0, 0);
                // Their numbers are other messages' now.
                self.unmarked.clear();
                continue;
            }
            let mut on = On::More;
            for letter in page["messages"].as_array().into_iter().flatten() {
                on = self.print(letter)?;
                if on == On::Enough {
                    break;
                }
            }
            self.mark().await?;
            match page["next"].as_u64() {
                Some(next) if on == On::More => after = next,
                _ => return Ok(on),
            }
        }
    }

    /// Prints what comes until nobody wants more, also while the daemon comes and goes.
    async fn follow(&mut self) -> Result<(), Failure> {
        let path = format!("/v1/events?{}", self.through.and_mesh().trim_start_matches('&'));
        let mut told = false;
        loop {
            match self.stream(&path, &mut told).await {
                Ok(On::Enough) => return Ok(()),
                Ok(On::More) | Err(Failure::Unreachable(_)) => {}
                Err(failure) => return Err(failure),
            }
            if !std::mem::replace(&mut told, true) {
                eprintln!("waiting for the daemon");
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Follows one stream to its end.
    async fn stream(&mut self, path: &str, told: &mut bool) -> Result<On, Failure> {
        // First the stream, then what is there: what comes in between is in both, and printed once.
        let mut stream = Stream::open(&self.through.local, path).await?;
        if std::mem::take(told) {
            eprintln!("the daemon is back");
        }
        if self.unseen().await? == On::Enough {
            return Ok(On::Enough);
        }
        while let Some(event) = stream.next().await {
            let letter = event.json();
            if event.name == "rewound" {
                let logs = letter["logs"].as_array().into_iter().flatten();
                let logs: Vec<String> = logs.filter_map(|log| log.as_str().map(str::to_owned)).collect();
                eprintln!("{}", rewound(&logs));
            }
            if event.name != "message" || letter["id"].as_u64().is_none_or(|id| id <= self.last) {
                continue;
            }
            let on = self.print(&letter)?;
            self.mark().await?;
            if on == On::Enough {
                return Ok(on);
            }
        }
        Ok(On::More)
    }

    /// Prints one message, if it is wanted; notes that it was.
    fn print(&mut self, letter: &Value) -> Result<On, Failure> {
        let recipient = letter["recipient"].as_str().unwrap_or_default();
        if self.want.member && !recipient.starts_with("member:") {
            return Ok(On::More);
        }
        let message: Message = serde_json::from_value(letter["message"].clone())
            .map_err(|error| Failure::Failed(format!("the daemon's answer is not a message: {error}")))?;
        if let Some(topic) = &self.want.topic
            && !matches!(message.log.parse(), Ok(LogName::Topic(posted, _)) if posted == *topic)
        {
            return Ok(On::More);
        }
        let facts =
            json!({"inboxId": letter["id"], "recipient": recipient, "receivedAt": letter["receivedAt"]});
        if let Err(error) = emit(&self.want.show.line(&message, facts)) {
            return unread(&error).map(|()| On::Enough);
        }
        let id = letter["id"].as_u64().unwrap_or_default();
        self.last = self.last.max(id);
        self.fresh = false;
        self.unmarked.push(id);
        self.left -= 1;
        Ok(if self.left == 0 { On::Enough } else { On::More })
    }

    /// Marks what was printed as seen. Not cancel-safe, but nothing is lost: what is dropped on its way stays unmarked here.
    async fn mark(&mut self) -> Result<(), Failure> {
        if !self.want.marks {
            self.unmarked.clear();
        }
        if self.unmarked.is_empty() {
            return Ok(());
        }
        let mut request = json!({"ids": self.unmarked});
        if let Some(mesh) = &self.through.mesh {
            request["mesh"] = json!(mesh);
        }
        self.through.local.post("/v1/inbox/seen", &request).await?;
        self.unmarked.clear();
        Ok(())
    }
}
