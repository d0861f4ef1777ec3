//! Times of delivery: nothing before its delay is over, nothing after it expired, nothing into a closed lane.

use std::collections::BTreeMap;

use crate::seen::{Handed, Key, Lane, Life, Place, Seen, Status};

use super::hands::Hands;
use super::letters::Letters;
use super::session::SLACK_MS;
use super::world::World;
use super::{Court, who};

/// How long an entry may take from the broker's decision to its push: a slow disk is asked first.
const MARGIN_MS: u64 = 10_000;

/// What a process said it is up to.
#[derive(Debug)]
struct Said {
    asked: Status,
    /// Since when the broker has it.
    taken: Option<(Status, u64)>,
}

/// What processes said they are up to.
#[derive(Debug, Default)]
pub(super) struct Timing {
    said: BTreeMap<Life, Said>,
}

impl Timing {
    /// Whether a lane is open for a process, as far as is known; in doubt it is not.
    pub(super) fn is_open(&self, life: Life, lane: Lane) -> bool {
        let idle = self.said.get(&life).is_none_or(|said| {
            said.asked == Status::Idle && said.taken.is_none_or(|(status, _)| status == Status::Idle)
        });
        idle || lane == Lane::Now
    }

    pub(super) fn see(
        &mut self,
        seen: &Seen,
        hands: &Hands,
        letters: &Letters,
        world: &World,
        court: &mut Court,
    ) {
        match seen {
            Seen::Status(life, status) => {
                let said = self.said.entry(*life).or_insert(Said { asked: *status, taken: None });
                (said.asked, said.taken) = (*status, None);
            }
            Seen::StatusTaken(life, status) => {
                let said = self.said.entry(*life).or_insert(Said { asked: *status, taken: None });
                if said.asked == *status {
                    said.taken = Some((*status, world.now));
                }
            }
            Seen::Handed(life, handed) => {
                self.check_status(*life, handed, letters, world, court);
                if !world.broker.clock_jumped {
                    check_early(*life, handed, letters, world, court);
                    check_late(*life, handed, hands, letters, world, court);
                }
            }
            _ => {}
        }
    }

    /// Only entries that were sent when the broker knew: others may have been on their way.
    fn check_status(&self, life: Life, handed: &Handed, letters: &Letters, world: &World, court: &mut Court) {
        let Handed { place, key, lane, .. } = handed;
        let Some((status, since)) = self.said.get(&life).and_then(|said| said.taken) else { return };
        let closed = status != Status::Idle && *lane != Lane::Now;
        let inbox = matches!(place, Place::Inbox | Place::MemberInbox);
        let later = letters.sent_at(key) > since;
        let attached = world.being(life).attached.is_some_and(|attached| attached < since);
        if closed && inbox && later && attached {
            let text = format!(
                "{} was handed {} of lane {lane:?} although it is {status:?} since {since} ms",
                who(life),
                key.id
            );
            court.accuse("status", text);
        }
    }
}

fn check_early(life: Life, handed: &Handed, letters: &Letters, world: &World, court: &mut Court) {
    let key = &handed.key;
    let Some(record) = letters.get(key).filter(|record| record.letter.body == handed.body) else { return };
    let Some(delay) = record.letter.delay_ms else { return };
    // It was accepted at the earliest when it was first asked for.
    let due = record.first_at + delay;
    if world.now + SLACK_MS < due {
        let text = format!("{} was handed {} {} ms too early", who(life), key.id, due - world.now);
        court.accuse("early", text);
    }
}

/// What somebody had in hand when it expired stays in hand, and a socket may have held it; so only what came for
/// the first time, over a socket that is younger than its end.
fn check_late(
    life: Life,
    handed: &Handed,
    hands: &Hands,
    letters: &Letters,
    world: &World,
    court: &mut Court,
) {
    let key = &handed.key;
    let Some(record) = letters.get(key).filter(|record| record.letter.body == handed.body) else { return };
    let message = record.messages().iter().find(|message| message.id == handed.spot.id);
    let accepted = message.and_then(|message| message.accepted.as_ref());
    let (Some(ttl), Some(accepted)) = (record.letter.ttl_ms, accepted) else { return };
    let first = handed.attempt == 1 && !handed.redelivered;
    let end = accepted.at + ttl + MARGIN_MS;
    // The broker's welcome may have been on its way for as long as the entry.
    let being = world.being(life);
    let young = being.admitted_at > end && being.attached.is_some_and(|attached| attached > end);
    if first
        && young
        && hands.trails.get(&handed.spot.id, &super::trail::Reader::of(life, &handed.place)).is_none()
    {
        let text = format!("{} was handed {}, which had expired by {end} ms", who(life), key.id);
        court.accuse("late", text);
    }
}

/// Whether the time of a message may be over.
pub(super) fn may_have_expired(key: &Key, id: &str, letters: &Letters, world: &World) -> bool {
    let Some(record) = letters.get(key) else { return true };
    let over = |ttl: u64| world.broker.clock_jumped || world.now + SLACK_MS >= record.first_at + ttl;
    record.may_be(id, |letter| letter.ttl_ms.is_some_and(over))
}
