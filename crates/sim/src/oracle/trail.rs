//! What a reader has done with a message, over all its processes.

use std::collections::BTreeMap;

use crate::seen::{Life, Place, Verb};

/// Whose place in a log it is: what one of them settles is settled for all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reader {
    /// The owner of an inbox; a message that moved from one inbox to another is the same.
    Inbox,
    /// A crew, by name; a message lies in one log only.
    Crew(String),
    /// A process of its own, through the subscription to this partition or to all.
    Own(Life, Option<u32>),
}

impl Reader {
    pub(super) fn of(life: Life, place: &Place) -> Reader {
        match place {
            Place::Inbox | Place::MemberInbox => Reader::Inbox,
            Place::Topic { group: Some(group), .. } => Reader::Crew(group.clone()),
            Place::Topic { partition, .. } => Reader::Own(life, *partition),
        }
    }
}

/// What applications did with a message.
#[derive(Clone, Debug, Default)]
pub(super) struct Trail {
    /// How often it was handed to one, and when first.
    pub(super) handed: u32,
    pub(super) first_at: u64,
    /// How often one wanted it acked, tried again, buried.
    pub(super) acks: u32,
    pub(super) retries: u32,
    pub(super) burials: u32,
    /// When it was told that this counts.
    pub(super) done_at: Vec<u64>,
    /// Until when it was asked to wait.
    pub(super) waits_until: u64,
}

/// All trails.
#[derive(Debug, Default)]
pub(super) struct Trails {
    /// By the broker's id of the message.
    trails: BTreeMap<String, BTreeMap<Reader, Trail>>,
}

impl Trails {
    pub(super) fn get(&self, id: &str, reader: &Reader) -> Option<&Trail> {
        self.trails.get(id)?.get(reader)
    }

    /// What all readers did with it.
    pub(super) fn of(&self, id: &str) -> impl Iterator<Item = (&Reader, &Trail)> {
        self.trails.get(id).into_iter().flatten()
    }

    /// What became of it in inboxes.
    pub(super) fn inbox(&self, id: &str) -> Option<&Trail> {
        self.get(id, &Reader::Inbox)
    }

    pub(super) fn handed(&mut self, id: &str, reader: Reader, now: u64) {
        let of = self.trails.entry(id.to_owned()).or_default();
        let trail = of.entry(reader).or_insert_with(|| Trail { first_at: now, ..Trail::default() });
        trail.handed += 1;
    }

    /// An ack or a burial counts.
    pub(super) fn done(&mut self, id: &str, reader: &Reader, now: u64) {
        if let Some(trail) = self.trails.get_mut(id).and_then(|of| of.get_mut(reader)) {
            trail.done_at.push(now);
        }
    }

    pub(super) fn settles(&mut self, id: &str, reader: &Reader, verb: Verb, now: u64) {
        let Some(trail) = self.trails.get_mut(id).and_then(|of| of.get_mut(reader)) else { return };
        match verb {
            Verb::Ack => trail.acks += 1,
            Verb::Dead => trail.burials += 1,
            Verb::Retry(ms) => {
                trail.retries += 1;
                trail.waits_until = trail.waits_until.max(now + ms);
            }
            Verb::Progress => {}
        }
    }
}
