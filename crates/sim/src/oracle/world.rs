//! What all rules lean on: who is who, what the broker went through, who carries which session.

use std::collections::BTreeMap;

use crate::seen::{Life, Member, Seen, Slot};

use super::Court;
use super::broker::{Broker, Sight};
use super::session::{Session, whose};

/// A session's name and its member's, as the wire spells them.
#[derive(Debug)]
pub(super) struct Role {
    pub(super) session: String,
    pub(super) member: Member,
    pub(super) member_key: String,
}

/// A process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Being {
    /// Since when a socket carries it, by its own word.
    pub(super) attached: Option<u64>,
    /// When it was last told that its lease was a new one: what it had in hand is not its any more.
    pub(super) fresh_at: Option<u64>,
    pub(super) gone: Option<Gone>,
    /// How often the store had gone back when the broker answered the hello by which it was last attached.
    pub(super) rewinds: usize,
    /// The same of a hello whose answer is still to come.
    knocked: Option<usize>,
    /// When the broker last let it in, which its own socket may tell it much later. Another process of its session may
    /// have been let in since.
    pub(super) admitted_at: u64,
    /// Whether the broker has answered one of its hellos with a new lease since it was last attached.
    begun: bool,
    /// Whether its lease, when it was last attached, had begun by a hello whose answer it did not hear.
    pub(super) begun_unheard: bool,
    /// How often it was told its end.
    ends: u32,
}

/// How a process went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    Killed,
    Ended,
}

/// What all rules lean on.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) now: u64,
    pub(super) broker: Broker,
    roles: BTreeMap<Slot, Role>,
    slots: BTreeMap<String, Slot>,
    pub(super) sessions: BTreeMap<Slot, Session>,
    lives: BTreeMap<Life, Being>,
    pub(super) faults_over: Option<u64>,
}

impl World {
    pub(super) fn role(&self, slot: Slot) -> Option<&Role> {
        self.roles.get(&slot)
    }

    pub(super) fn slot(&self, session: &str) -> Option<Slot> {
        self.slots.get(session).copied()
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = (Slot, &Role)> {
        self.roles.iter().map(|(slot, role)| (*slot, role))
    }

    pub(super) fn being(&self, life: Life) -> Being {
        self.lives.get(&life).copied().unwrap_or_default()
    }

    pub(super) fn ended_twice(&self, life: Life) -> bool {
        self.being(life).ends > 1
    }

    pub(super) fn session(&self, slot: Slot) -> Option<&Session> {
        self.sessions.get(&slot)
    }

    /// The log of a session's inbox.
    pub(super) fn inbox_of(&self, slot: Slot) -> Option<String> {
        self.roles.get(&slot).map(|role| format!("inbox/s/{}", role.session))
    }

    /// The log of the inbox of a session's member.
    pub(super) fn member_inbox_of(&self, slot: Slot) -> Option<String> {
        self.roles.get(&slot).map(|role| format!("inbox/m/{}", role.member_key))
    }

    /// Whether what this process hears now comes from the socket that the broker believes in. What another socket
    /// still brings may be long outdated.
    pub(super) fn is_current(&self, life: Life) -> bool {
        let session = self.sessions.get(&life.slot);
        session.is_some_and(|session| {
            session.carrier == Some(life)
                && self.being(life).attached.is_some_and(|attached| attached >= session.admitted_at)
        })
    }

    /// What this process hears now, as proof of what the store has. What was still on its way when the store went back was
    /// said before that.
    pub(super) fn sight(&self, life: Life) -> Sight {
        let rewind = self.broker.rewinds.get(self.being(life).rewinds);
        let at = rewind.map_or(self.now, |rewind| rewind.at);
        Sight { at, run: if self.is_current(life) { self.broker.run } else { 0 } }
    }

    /// Whether a session's lease may have ended since `at`; of a session that nobody knows, it may.
    pub(super) fn may_have_ended_since(&self, slot: Slot, at: u64) -> bool {
        self.sessions.get(&slot).is_none_or(|session| session.may_have_ended_since(at, &self.broker))
    }

    /// Whether crews may have taken from a session since `at` what it had in hand.
    pub(super) fn may_have_lost_since(&self, slot: Slot, at: u64) -> bool {
        let lost = |session: &Session| session.may_have_lost_since(at, self.now, &self.broker);
        self.sessions.get(&slot).is_none_or(lost)
    }

    pub(super) fn see(&mut self, at: u64, seen: &Seen, court: &mut Court) {
        self.now = at;
        self.broker.pass(at);
        self.broker.see(at, seen);
        match (seen, whose(seen)) {
            (_, Some(slot)) => {
                self.sessions.entry(slot).or_default().see(at, seen, &self.broker, court);
            }
            (Seen::Numbers(_) | Seen::BrokerDown(_) | Seen::BrokerUp(_) | Seen::Rewound { .. }, None) => {
                for session in self.sessions.values_mut() {
                    session.see(at, seen, &self.broker, court);
                }
            }
            _ => {}
        }
        match seen {
            Seen::Cast { slot, session, member, member_key } => {
                let role = Role { session: session.clone(), member: *member, member_key: member_key.clone() };
                self.slots.insert(session.clone(), *slot);
                self.roles.insert(*slot, role);
            }
            Seen::Born(life) => _ = self.lives.entry(*life).or_default(),
            Seen::Admitted(life, new, _) => {
                let rewinds = self.broker.rewinds.len();
                let being = self.lives.entry(*life).or_default();
                being.begun |= *new;
                // Who says hello again listens to no earlier socket any more.
                (being.knocked, being.admitted_at) = (Some(rewinds), at);
            }
            Seen::Attached { life, kept, .. } => {
                let rewinds = self.broker.rewinds.len();
                let being = self.lives.entry(*life).or_default();
                being.attached = Some(at);
                being.rewinds = being.knocked.take().unwrap_or(rewinds);
                being.begun_unheard = std::mem::take(&mut being.begun) && *kept;
                if !kept {
                    being.fresh_at = Some(at);
                }
            }
            Seen::Detached(life) => self.lives.entry(*life).or_default().attached = None,
            Seen::Killed(life) => self.goes(*life, Gone::Killed),
            Seen::Ended(life, _) => self.goes(*life, Gone::Ended),
            Seen::FaultsOver => self.faults_over = Some(at),
            _ => {}
        }
    }

    fn goes(&mut self, life: Life, how: Gone) {
        let being = self.lives.entry(life).or_default();
        being.ends += u32::from(how == Gone::Ended);
        (being.attached, being.gone) = (None, Some(being.gone.unwrap_or(how)));
    }
}
