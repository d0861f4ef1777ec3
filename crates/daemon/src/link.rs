//! One local session's way to its broker: the SDK's session, and how it is.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture};
use tenure_client::{End, Events, Session, SessionEvent};
use tenure_outbox::age::{is_disputed, max_age_hours};
use tenure_outbox::revival::Over;
use tenure_outbox::window::window;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::contact::{self, Contact};
use crate::rewinds::Rewinds;

/// How long a broker may take to say how late it is.
const CLOCK: Duration = Duration::from_secs(5);

/// What the broker said when it was asked how late it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It has not answered yet.
    Asked,
    /// Its clock was so many milliseconds from ours.
    Apart(u64),
    /// It did not answer in time.
    Nothing,
}

/// How a session stands with its broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No socket carries it now; why not, if that is known.
    Away(Option<String>),
    /// A socket does, to a broker that remembers ids long enough: rows may wait so many hours.
    Attached { max_age_hours: u64, clock: Told },
    /// It is over: this daemon ended it.
    Ended,
    /// It is over: another process speaks with its key.
    TakenOver,
    /// It is over, and trying again cannot help: one sentence that says why.
    Failed(String),
}

impl Standing {
    pub(crate) fn is_attached(&self) -> bool {
        matches!(self, Standing::Attached { .. })
    }

    /// Whether the broker's clock says something else than ours.
    pub(crate) fn is_disputed(&self) -> bool {
        matches!(self, Standing::Attached { clock: Told::Apart(ms), .. } if is_disputed(*ms))
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Standing::Ended | Standing::TakenOver | Standing::Failed(_))
    }

    /// Why it is over, if this daemon did not end it.
    pub(crate) fn lost(&self) -> Option<Over> {
        match self {
            Standing::TakenOver => Some(Over::TakenOver),
            Standing::Failed(_) => Some(Over::Refused),
            Standing::Away(_) | Standing::Attached { .. } | Standing::Ended => None,
        }
    }

    /// Why no socket carries it, if that is known.
    pub(crate) fn why_not(&self) -> Option<String> {
        match self {
            Standing::Attached { .. } => None,
            Standing::Away(why) => why.clone(),
            Standing::Ended => Some("the session is over".to_owned()),
            Standing::TakenOver => Some("another process took this session over".to_owned()),
            Standing::Failed(why) => Some(why.clone()),
        }
    }
}

/// Where a session's news go.
#[derive(Debug)]
pub(crate) struct Tell {
    pub(crate) standing: watch::Sender<Standing>,
    /// Hours that its messages may wait for the broker.
    pub(crate) max_age_hours: watch::Sender<Option<u64>>,
    /// The logs of which the broker had another history.
    pub(crate) rewound: watch::Sender<Rewinds>,
}

/// Asks the broker how late it is: how far its clock is from ours, unless it does not say so soon.
async fn apart(client: Session) -> Option<u64> {
    let pong = tokio::time::timeout(CLOCK, client.ping()).await.ok()?.ok()?;
    Some(pong.ts.get().abs_diff(Clock::start().wall()))
}

/// Follows the events of a session until it is over. A broker that does not promise enough is not worked with; one that does
/// is asked how late it is.
pub(crate) async fn follow(
    client: Session,
    mut events: Events,
    wanted_hours: Option<u64>,
    tell: Tell,
    leaving: CancellationToken,
) {
    let Tell { standing, max_age_hours: tell_age, rewound } = tell;
    let mut asking: OptionFuture<BoxFuture<'static, Option<u64>>> = None.into();
    let (mut max_age, mut contact, session) = (0, Contact::default(), client.key());
    loop {
        // All of these are cancel-safe; an answer that is waited for stays here.
        let event = tokio::select! {
            event = events.next() => event,
            Some(apart_ms) = &mut asking => {
                asking = None.into();
                if apart_ms.is_some_and(is_disputed) {
                    tracing::error!(event = "clock_disputed", apart_ms, "ours or the broker's is wrong: nothing is given up");
                }
                let clock = apart_ms.map_or(Told::Nothing, Told::Apart);
                standing.send_replace(Standing::Attached { max_age_hours: max_age, clock });
                continue;
            }
            () = leaving.cancelled() => return,
        };
        let mut ask = None;
        let next = match event {
            Ok(SessionEvent::Attached(hello)) => match window(&hello.features) {
                Err(unfit) => Standing::Failed(unfit.to_string()),
                Ok(window) => match max_age_hours(window, wanted_hours) {
                    Ok(max_age_hours) => {
                        max_age = max_age_hours;
                        tell_age.send_replace(Some(max_age));
                        ask = Some(apart(client.clone()).boxed());
                        Standing::Attached { max_age_hours, clock: Told::Asked }
                    }
                    Err(above) => Standing::Failed(above.to_string()),
                },
            },
            Ok(SessionEvent::Detached { reason } | SessionEvent::Waiting { reason, .. }) => {
                contact::say(&session, contact.away(Instant::now(), &reason));
                Standing::Away(Some(reason))
            }
            Ok(SessionEvent::HistoryRewound { logs }) => {
                let text = "the broker's store came back with another history: it is read again";
                tracing::warn!(event = "history_rewound", %session, logs = logs.join(" "), "{text}");
                rewound.send_modify(|rewinds| rewinds.add(logs));
                continue;
            }
            Ok(SessionEvent::Event { .. }) => continue,
            Err(End::Bye) => Standing::Ended,
            Err(End::Replaced { .. }) => Standing::TakenOver,
            Err(end) => Standing::Failed(end.to_string()),
        };
        if next.is_attached() {
            contact::say(&session, contact.here(Instant::now()));
        }
        asking = ask.into();
        let over = next.is_over();
        standing.send_if_modified(|now| {
            let changed = *now != next;
            *now = next;
            changed
        });
        if over {
            return;
        }
    }
}
