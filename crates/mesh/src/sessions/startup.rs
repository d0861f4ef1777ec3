//! A start: leases that the store remembers, and which of their sessions came back.

use std::collections::{BTreeSet, VecDeque};

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::hello::InboxChoice;
use tenure_proto::ids::{ConnId, SessionKey};
use tenure_proto::peer::Peer;

use crate::Mesh;
use crate::access::Rights;
use crate::effect::{Effect, Note};
use crate::input::{LeaseRecord, Restored};
use crate::messages::subs::Subs;
use crate::sessions::lease::{Lease, State};
use crate::sessions::stream::Stream;

/// Restored leases whose sessions have not been back, and how the others fared.
#[derive(Debug, Default)]
pub(super) struct Startup {
    waiting: BTreeSet<SessionKey>,
    resumed: usize,
    expired: usize,
    /// Why what operators had set does not hold.
    pub(super) unset: Option<String>,
}

impl Startup {
    pub(super) fn is_awaited(&self, session: &SessionKey) -> bool {
        self.waiting.contains(session)
    }

    /// Whether those that have not been back are all among these.
    #[cfg(test)]
    pub(super) fn all_in(&self, leased: &[SessionKey]) -> bool {
        self.waiting.iter().all(|session| leased.contains(session))
    }

    /// How many have not been back.
    pub(super) fn awaited(&self) -> usize {
        self.waiting.len()
    }
}

impl Mesh {
    /// Loads what the store remembers: every lease in grace, with its full time or what is left of it. The ends
    /// of those that nobody comes back for are spread by a millisecond each, up to a third of a lease.
    pub(crate) fn restore(&mut self, now: Millis, restored: Vec<Restored>) {
        let ttl = self.config.lease_ttl_ms;
        let count = restored.len() as u64;
        let spread = count.min(ttl / 3);
        for (index, Restored { record, spent_ms }) in restored.into_iter().enumerate() {
            let later = (index as u64 * spread).checked_div(count).unwrap_or(0);
            let left =
                if mutant::on(Mutant::LeaseForgottenAtStart) { 0 } else { ttl.saturating_sub(spent_ms) };
            let until = now.plus(left + later);
            let LeaseRecord { session, member, ref instance, joined_at, ref profile, .. } = record;
            self.sessions.presence.join(Peer::new(session, member, instance.clone(), joined_at, profile));
            *self.sessions.members.entry(record.member).or_default() += 1;
            self.sessions.startup.waiting.insert(record.session);
            self.sessions.deadlines.set(record.session, until);
            let lease = Lease {
                id: record.lease,
                restored: true,
                member: record.member,
                caps: record.caps,
                may: Rights::NONE,
                token: None,
                from: None,
                kicked: false,
                client: String::new(),
                instance: record.instance,
                latest: None,
                state: State::Grace,
                told: self.config.terms(),
                proof: Millis(0),
                granted_until: Some(until),
                stream: Stream::new(0, 0),
                stored: now,
                dirty: false,
                touched: false,
                inbox: InboxChoice::None,
                subs: Subs::default(),
                takeovers: VecDeque::new(),
            };
            self.sessions.leases.insert(record.session, lease);
        }
        self.sessions.flushed_version = self.sessions.presence.version();
        self.sessions.bound(self.config.max_sessions);
    }

    /// What a start has to say once there is somebody to hear it.
    pub fn startup_notes(&self) -> Vec<Note> {
        let unset = self.sessions.startup.unset.clone().map(|reason| Note::ConfigRefused { reason });
        let waiting = Some(self.sessions.startup.waiting.len()).filter(|leases| *leases > 0);
        let waiting = waiting.map(|leases| Note::StartupGraceStarted { leases });
        let doubt = self.clock_doubt().map(|doubt| Note::ClockDoubted { ms: doubt.apart_ms });
        unset.into_iter().chain(waiting).chain(doubt).collect()
    }

    /// A restored lease is back, on this socket, or gone.
    pub(super) fn settle_startup(&mut self, session: &SessionKey, back: Option<ConnId>) {
        if !self.sessions.startup.waiting.remove(session) {
            return;
        }
        if let Some(conn) = back {
            self.sessions.startup.resumed += 1;
            let count = self.sessions.leases.get(session).map_or(0, |lease| lease.subs.sizes().1);
            if count > 0 {
                self.effects.push_back(Effect::Note(Note::StartupReclaimed {
                    session: *session,
                    conn,
                    count,
                }));
            }
        } else {
            self.sessions.startup.expired += 1;
        }
        if self.sessions.startup.waiting.is_empty() {
            let Startup { resumed, expired, .. } = &self.sessions.startup;
            let (resumed, expired) = (*resumed, *expired);
            self.effects.push_back(Effect::Note(Note::StartupGraceEnded { resumed, expired }));
        }
    }
}
