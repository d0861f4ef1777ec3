//! Comparing the history that a client has read with the one in the store.
//!
//! A store can come back with another history: a memory store that starts again, a directory that was wiped, a backup that was
//! restored. New messages then have the places of old ones. A hello lists for each log the newest entries that its client
//! has; a log that ends before one of them, or has another message there, is *rewound*. One equal id proves everything before
//! it. A place whose entry is gone (expired, pruned, moved, damaged) tells nothing, and if that is all that is listed of a log it
//! counts as equal, unless the client comes with the token of another cluster: then nothing that it has read is ours.
//!
//! What is not in memory is read from the store, and the hello waits for that as others wait for a write: it is never
//! answered before the comparison is known.

use std::collections::{BTreeMap, BTreeSet};

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::close::{Closing, Reason};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::hello::{HelloReconcile, LogPosition};
use tenure_proto::ids::{ConnId, MessageId};
use tenure_proto::log::LogName;
use tenure_proto::number::U53;

use crate::Mesh;
use crate::conn::admit::{Admission, Refusal, TokenVerdict};
use crate::effect::Effect;
use crate::messages::envelope::Lane;
use crate::messages::reads::Purpose;
use crate::sessions::hello::{STORE_RETRY_MS, outrun};
use crate::sessions::lease::{Compared, Knock, SharedHistory};
use crate::store::record::{StoreFound, StoreRead};

/// A hello that waits until the store has said what is at the places that it lists.
#[derive(Debug)]
pub(crate) struct Comparison {
    knock: Knock,
    /// What is known to be rewound without the store.
    rewound: BTreeSet<LogName>,
    /// The places that were asked for, in order, and what the client has there; `None` where it has something in hand whose
    /// tag is to be proved.
    asked: Vec<((LogName, u64), Option<MessageId>)>,
}

/// What memory tells about one position.
enum Look {
    /// The client's history is ours, or it is none of this client's business.
    Equal,
    Rewound(LogName),
    /// Only the store knows.
    Ask(LogName),
}

impl Mesh {
    /// Compares the positions of a hello. Gives the hello back when that is done; else it waits for the store.
    pub(crate) fn compare(&mut self, now: Millis, mut knock: Knock) -> Option<Knock> {
        if knock.compared.is_some() {
            return Some(knock);
        }
        let (mut rewound, mut asked) = (BTreeSet::new(), Vec::new());
        // The highest place of each log that is equal: what stands before it is, too.
        let mut equal: BTreeMap<&str, U53> = BTreeMap::new();
        for position in &knock.admission.positions {
            if equal.get(position.log.as_str()).is_some_and(|seq| position.seq <= *seq) {
                continue;
            }
            match self.look_at(&knock.admission, position) {
                Look::Equal => _ = equal.insert(&position.log, position.seq),
                Look::Rewound(log) => _ = rewound.insert(log),
                Look::Ask(log) => asked.push(((log, position.seq.get()), Some(position.id))),
            }
        }
        if let Some(HelloReconcile::Now(params)) = &knock.admission.reconcile {
            let tags = params.inflight.iter().map(|listed| &listed.tag);
            let unproven = self.unproven(&knock.admission.session, tags);
            asked.extend(unproven.into_iter().map(|place| (place, None)));
        }
        if asked.is_empty() {
            knock.compared = Some(Compared { rewound: rewound.into_iter().collect(), ..Compared::default() });
            return Some(knock);
        }
        let places = asked.iter().map(|(place, _)| place.clone()).collect();
        let knock = self.make_room(knock)?;
        let (conn, session) = (knock.conn, knock.admission.session);
        if let Some(lease) = self.sessions.leases.get_mut(&session) {
            // It does not end while somebody is at the door for it.
            lease.heard(now);
            lease.granted_until = lease.granted_until.map(|until| until.max(now.plus(STORE_RETRY_MS)));
            self.reschedule(session);
        }
        let purpose = Purpose::Compare(Box::new(Comparison { knock, rewound, asked }));
        let read = self.read(purpose, StoreRead::Ids { places });
        self.sessions.comparing.insert(session, (conn, read));
        self.sessions.compared_conns.insert(conn, session);
        None
    }

    /// What is known of a position without the store.
    fn look_at(&self, hello: &Admission, position: &LogPosition) -> Look {
        let Ok(log) = position.log.parse::<LogName>() else { return Look::Equal };
        let own = match &log {
            LogName::Session(owner) => *owner == hello.session,
            LogName::Member(owner) => *owner == hello.member,
            LogName::Topic(..) => true,
        };
        if !own || mutant::on(Mutant::RewindUnnoticed) {
            return Look::Equal;
        }
        let seq = position.seq.get();
        // A deleted topic keeps its numbers: what a client has read of it is no other history.
        if self.messages.end_of(&log) < seq {
            return Look::Rewound(log);
        }
        let find = |lane: &Lane| self.messages.find(&log, *lane, seq);
        match Lane::of_log(&log).iter().find_map(find).map(|entry| entry.envelope.id == position.id) {
            Some(true) => Look::Equal,
            Some(false) => Look::Rewound(log),
            None => Look::Ask(log),
        }
    }

    /// Makes room for a hello that has to wait: one of each session, and no more than there may be sessions.
    fn make_room(&mut self, knock: Knock) -> Option<Knock> {
        let session = knock.admission.session;
        if let Some((conn, read)) = self.sessions.comparing.get(&session).copied() {
            let same = matches!(self.store.purpose(read), Some(Purpose::Compare(older))
                if older.knock.admission.instance == knock.admission.instance);
            if same && conn > knock.conn {
                let refusal = outrun(&knock.admission);
                self.refuse_hello(knock, refusal);
                return None;
            }
            self.stop_comparing(conn);
            let instance_id = Some(knock.admission.instance.clone());
            let closing = Closing { instance_id, ..Closing::new(Reason::SessionReplaced) };
            self.effects.push_back(Effect::Close { conn, closing });
        }
        if self.sessions.comparing.len() >= self.sessions.lease_bound.max(self.config.max_sessions) {
            let text = "as many hellos wait for the store as may; try again in a moment";
            let error = WireError::new(ErrorCode::Busy, text).retry_after(STORE_RETRY_MS);
            self.refuse_hello(knock, Refusal::new(error, Reason::Busy));
            return None;
        }
        Some(knock)
    }

    /// The store has said what is at the places of a hello, or cannot read: then the client is asked to try again.
    pub(crate) fn compared(&mut self, comparison: Comparison, found: Option<Vec<Option<MessageId>>>) {
        let Comparison { mut knock, rewound, asked } = comparison;
        self.sessions.comparing.remove(&knock.admission.session);
        self.sessions.compared_conns.remove(&knock.conn);
        let Some(found) = found else { return self.refuse_hello(knock, self.store_refusal()) };
        let (mut proven, mut other) = (BTreeMap::new(), rewound);
        let (mut equal, mut gone) = (BTreeSet::new(), BTreeSet::new());
        // Nothing that another cluster's client has read is ours: what is gone at its place proves nothing.
        let foreign = knock.admission.token == TokenVerdict::Rejected("other_cluster");
        for (((log, seq), had), is) in asked.into_iter().zip(found) {
            match (had, is) {
                (Some(had), Some(is)) if had != is => _ = other.insert(log),
                (Some(_), Some(_)) => _ = equal.insert(log),
                (Some(_), None) => _ = gone.insert(log),
                (None, Some(is)) => _ = proven.insert((log, seq), is),
                (None, None) => {}
            }
        }
        if foreign {
            other.extend(gone.difference(&equal).cloned());
        }
        knock.compared = Some(Compared { rewound: other.into_iter().collect(), proven });
        self.knock(self.clock.now(), knock);
    }

    /// The socket of a hello that waits is gone.
    pub(crate) fn stop_comparing(&mut self, conn: ConnId) {
        let Some(session) = self.sessions.compared_conns.remove(&conn) else { return };
        if let Some((_, read)) = self.sessions.comparing.remove(&session) {
            self.store.take_read(read);
        }
    }

    /// Refuses every hello that waits: the broker stops.
    pub(crate) fn refuse_compared(&mut self, now: Millis) {
        self.sessions.compared_conns.clear();
        for (session, (_, read)) in std::mem::take(&mut self.sessions.comparing) {
            let Some(drain) = &self.drain else { return };
            let refusal = drain.refusal(now, &session);
            if let Some(Purpose::Compare(waiting)) = self.store.take_read(read) {
                self.refuse_hello(waiting.knock, refusal);
            }
        }
    }
}

/// The logs whose history a client shares, given those that are `rewound` for it. If there are any, a log that its hello does not
/// list counts as rewound too: nothing shows that it is not.
pub(crate) fn shared_history(hello: &Admission, rewound: &[LogName]) -> SharedHistory {
    if matches!(hello.token, TokenVerdict::Rejected("bad_signature" | "other_cluster")) {
        return SharedHistory::None;
    }
    if rewound.is_empty() {
        return SharedHistory::All;
    }
    let listed = hello.positions.iter().filter_map(|position| position.log.parse().ok());
    SharedHistory::Only(listed.filter(|log| !rewound.contains(log)).collect())
}

/// The ids that a read found, if it could.
pub(crate) fn ids(found: StoreFound) -> Option<Vec<Option<MessageId>>> {
    match found {
        StoreFound::Ids(ids) => Some(ids),
        _ => None,
    }
}
