//! `tenure session`: hold a session and print what it sees.

use std::time::Duration;

use clap::Args as ClapArgs;
use serde_json::{Value, json};
use tenure_client::proto::event::{EventBody, PresenceKind};
use tenure_client::proto::hello::{LeaseFate, ResumeOutcome};
use tenure_client::proto::peer::{Profile, SharedPeer};
use tenure_client::{Events, Options, PeerChange, PeerMap, Session, SessionEvent};

use super::guest::rewound;
use super::{Where, hostname, leave, peers, shown};
use crate::exit::Failure;
use crate::home::Home;
use crate::output::{Colour, Paint, println, safe, sentence};
use crate::signals::{Signals, interruptible};

/// How long a broker may take to answer before we say goodbye.
const ANSWER: Duration = Duration::from_secs(2);

/// Hold a session in the foreground and print what it sees. The same name is the same session: its key is kept,
/// so stopping and starting again within the lease is a break that no peer notices. Interrupt to say goodbye.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: tenure session --name alice --summary 'reviewing the parser'")]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// What peers call it
    #[arg(long)]
    name: String,
    /// What it is doing, in a sentence
    #[arg(long)]
    summary: Option<String>,
    /// What it is for
    #[arg(long)]
    role: Option<String>,
    /// A label; may be given several times
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    interruptible(async move |mut signals| hold(args, &mut signals).await)
}

fn options(args: &Args) -> Result<Options, Failure> {
    let home = Home::find()?;
    let profile = Profile {
        summary: args.summary.clone(),
        role: args.role.clone(),
        tags: args.tags.clone(),
        host: hostname(),
        cwd: std::env::current_dir().ok().map(|dir| shown(&dir.display().to_string())),
        ..Profile::named(&args.name)
    };
    Ok(args
        .at
        .bringing(Options::new(args.at.broker(), home.member_key()?, &args.name)?)?
        .session_key(home.session_key(args.at.mesh(), &args.name)?)
        .mesh(args.at.mesh())?
        .profile(profile)?
        .client("tenure", env!("CARGO_PKG_VERSION")))
}

async fn hold(args: Args, signals: &mut Signals) -> Result<(), Failure> {
    let (session, mut events) = Session::start(options(&args)?)?;
    let mut screen = Screen {
        paint: Paint::stdout(),
        json: args.json,
        map: PeerMap::default(),
        own: session.key(),
        was_in: false,
        is_in: false,
        told: None,
    };
    screen.say("dialling", args.at.broker(), json!({"event": "dialling", "broker": args.at.broker()}));
    loop {
        // Both are cancel-safe: neither has taken anything when it loses.
        let event = tokio::select! {
            event = events.next() => event?,
            () = signals.recv() => break,
        };
        screen.show(&event);
        if screen.map.needs_fetch() && matches!(event, SessionEvent::Attached(_) | SessionEvent::Event { .. })
        {
            // The list is not read on after a signal, so `refetch` need not be cancel-safe.
            let found = tokio::select! {
                found = peers::refetch(&session, &mut screen.map) => found?,
                () = signals.recv() => break,
            };
            screen.show_found(&found);
        }
    }
    let answered = screen.is_in && answers(&session, &mut events).await;
    leave(session, events).await;
    let text = match (screen.was_in, answered) {
        (false, _) => "it never got in",
        (true, true) => "the lease is given up; peers see it at once",
        (true, false) => "the broker did not answer: peers see it when the lease has ended by itself",
    };
    screen.say("bye", text, json!({"event": "bye", "wasIn": screen.was_in, "answered": answered}));
    Ok(())
}

/// Whether the broker answers, soon. A goodbye that nobody heard ends as one that was heard.
async fn answers(session: &Session, events: &mut Events) -> bool {
    let answer = tokio::time::timeout(ANSWER, session.ping());
    tokio::pin!(answer);
    loop {
        // What happens meanwhile is of no interest, and must be taken: an answer comes behind it. Both are cancel-safe.
        tokio::select! {
            answer = &mut answer => return matches!(answer, Ok(Ok(_))),
            event = events.next() => if event.is_err() { return false },
        }
    }
}

struct Screen {
    paint: Paint,
    json: bool,
    map: PeerMap,
    own: tenure_client::proto::SessionKey,
    /// Whether it was ever attached.
    was_in: bool,
    /// Whether it is now.
    is_in: bool,
    /// The reason last told for not being attached.
    told: Option<String>,
}

impl Screen {
    fn say(&self, what: &str, text: &str, value: Value) {
        if self.json {
            println(&value.to_string());
        } else {
            println(&format!("{} {text}", self.paint.paint(Colour::Strong, &format!("{what:<8}"))));
        }
    }

    fn show(&mut self, event: &SessionEvent) {
        let change = self.map.apply(event);
        match event {
            SessionEvent::Attached(hello) => {
                (self.was_in, self.is_in, self.told) = (true, true, None);
                // A large mesh does not fit into the hello: the rest is still to be read.
                let cut = self.map.needs_fetch();
                let least = if cut { "at least " } else { "" };
                let others = self.map.peers().filter(|peer| peer.get().session != self.own).count();
                let how = match (hello.lease, hello.resume.outcome) {
                    (LeaseFate::New, ResumeOutcome::New) => "a new lease",
                    (LeaseFate::New, _) => "a new lease; the old one had ended",
                    (LeaseFate::Kept, ResumeOutcome::Resumed) => "resumed; nobody noticed",
                    (LeaseFate::Kept, _) => "the lease was still there",
                };
                let text = format!("{how}; {least}{others} others are here ({})", hello.session_id);
                let (lease, outcome) = (hello.lease, hello.resume.outcome);
                let value = json!({"event": "attached", "session": hello.session_id, "lease": lease, "outcome": outcome,
                    "replay": hello.events.replay, "leaseTtlMs": hello.lease_ttl_ms, "peers": others, "morePeers": cut});
                self.say("attached", &text, value);
                if let PeerChange::Replaced(found) = &change {
                    self.show_found(found);
                }
            }
            SessionEvent::Detached { reason } => {
                (self.is_in, self.told) = (false, Some(reason.clone()));
                self.say("detached", &safe(reason), json!({"event": "detached", "reason": reason}));
            }
            SessionEvent::Waiting { ms, reason, .. } => {
                if self.told.as_ref() != Some(reason) {
                    let value = json!({"event": "waiting", "ms": ms, "reason": reason});
                    self.say("waiting", &sentence(reason), value);
                    self.told = Some(reason.clone());
                }
            }
            SessionEvent::HistoryRewound { logs } => eprintln!("{}", rewound(logs)),
            SessionEvent::Event { seq, body } => self.show_event(*seq, body, change),
        }
    }

    /// What a reading of the whole map found, which no event had told.
    fn show_found(&self, found: &[(PresenceKind, SharedPeer)]) {
        for (kind, peer) in found.iter().filter(|(_, peer)| peer.get().session != self.own) {
            if self.json {
                let data = json!({"kind": kind, "peer": peer.get()});
                println(&json!({"event": "presence", "found": true, "data": data}).to_string());
            } else {
                println(&peers::change(self.paint, *kind, peer.get()));
            }
        }
    }

    fn show_event(&self, seq: u64, body: &EventBody, change: PeerChange) {
        if self.json {
            let value = match body {
                EventBody::Presence(event) => json!({"event": "presence", "seq": seq, "data": event}),
                EventBody::Shutdown(event) => json!({"event": "shutdown", "seq": seq, "data": event}),
                EventBody::Notice(event) => json!({"event": "notice", "seq": seq, "data": event}),
                EventBody::Health(event) => json!({"event": "health", "seq": seq, "data": event}),
                other => json!({"event": other.name(), "seq": seq}),
            };
            return println(&value.to_string());
        }
        match (body, change) {
            (EventBody::Presence(_), PeerChange::Peer(kind, peer)) if peer.get().session != self.own => {
                println(&peers::change(self.paint, kind, peer.get()));
            }
            (EventBody::Shutdown(shutdown), _) => {
                let wait = shutdown.reconnect_after_ms.get();
                println(&format!(
                    "shutdown the broker is stopping ({}); dialling again in {wait} ms",
                    safe(&shutdown.reason)
                ));
            }
            (EventBody::Notice(notice), _) => {
                println(&format!("notice   {}: {}", safe(&notice.code), safe(&notice.message)))
            }
            _ => {}
        }
    }
}
