//! A local session of a daemon: the drain and the intake of `tenure_outbox` on an SDK session, where other processes have
//! an application. What they ask of the disk goes to the daemon (`daemon`), which all its sessions share.

use std::collections::BTreeMap;

use tenure_kit::Now;
use tenure_link::{DeliveryId, RequestNumber, Verb as LinkVerb};
use tenure_outbox::age::max_age_hours;
use tenure_outbox::arrival::Recipient;
use tenure_outbox::drain::{DiskFault, DrainEffect};
use tenure_outbox::requeue::Lookup;
use tenure_outbox::window::window;
use tenure_outbox::{Drain, FoundLane, LaneId, Outgoing, Place as Placed, Settled, intake};
use tenure_proto::WireError;
use tenure_proto::error::ErrorCode;
use tenure_proto::hello::HelloResult;
use tenure_proto::message::{Message, SendResult, SendStatus, SendStatusParams, SendStatusResult};
use tenure_proto::method::{Empty, Method};

use crate::daemon::Job;
use crate::letter::letter_of;
use crate::process::{Process, Wish, Work, answer};
use crate::seen::{Key, Place, Seen, Spot, Verb};

/// How long a daemon waits for an answer.
const REQUEST_MS: u64 = 20_000;

/// What a local session has under way.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) drain: Drain,
    sent: BTreeMap<RequestNumber, (LaneId, Key)>,
    probes: BTreeMap<RequestNumber, (LaneId, Box<WireError>)>,
    /// Rows that the broker is asked about, and how often each had been sent then.
    lookups: BTreeMap<RequestNumber, (u64, u32)>,
    keeping: BTreeMap<DeliveryId, Keeping>,
    /// What the disk is to be asked for, in order.
    pub(crate) jobs: Vec<Job>,
}

/// A message that is not in the inbox yet, or not settled.
#[derive(Debug)]
struct Keeping {
    work: Work,
    recipient: Recipient,
    message: Box<Message>,
    /// When the disk is asked again, on the world's clock.
    again: Option<u64>,
}

/// Whether an id is another program's, which did without the daemon: what the daemon sends under it is another letter.
fn is_of_another(key: &Key) -> bool {
    !key.id.starts_with('d')
}

impl Desk {
    pub(crate) fn new(seed: u64, now: Now, found: Vec<FoundLane>) -> Desk {
        let mut drain = Drain::new(seed, now);
        found.into_iter().for_each(|lane| drain.found(now, lane));
        let (sent, probes, lookups, keeping, jobs) = Default::default();
        Desk { drain, sent, probes, lookups, keeping, jobs }
    }

    /// When the disk is asked again for something.
    pub(crate) fn again(&self) -> Option<u64> {
        self.keeping.values().filter_map(|keeping| keeping.again).min()
    }

    /// What it waits for, in words.
    pub(crate) fn under_way(&self) -> Option<String> {
        let (sent, keeping) = (self.sent.len() + self.probes.len(), self.keeping.len());
        (sent + keeping > 0).then(|| format!("{sent} answers and {keeping} letters"))
    }
}

impl Process {
    // What the daemon tells it.

    /// A row is on the disk, in this lane.
    pub(crate) fn queued(&mut self, now: Now, world: u64, lane: LaneId) -> Vec<Wish> {
        self.with(now, world, |process| {
            process.drive(now, |drain, now| {
                drain.queued(lane);
                drain.tick(now);
            });
        })
    }

    pub(crate) fn taken(
        &mut self,
        now: Now,
        world: u64,
        lane: LaneId,
        rows: Result<Vec<Outgoing>, DiskFault>,
    ) -> Vec<Wish> {
        self.with(now, world, |process| process.drive(now, |drain, now| drain.taken(now, lane, rows)))
    }

    pub(crate) fn settled(
        &mut self,
        now: Now,
        world: u64,
        lane: LaneId,
        outcome: Result<Settled, DiskFault>,
    ) -> Vec<Wish> {
        self.with(now, world, |process| process.drive(now, |drain, now| drain.settled(now, lane, outcome)))
    }

    pub(crate) fn expired(&mut self, now: Now, world: u64, rows: Result<u64, DiskFault>) -> Vec<Wish> {
        self.with(now, world, |process| process.drive(now, |drain, now| drain.expired(now, rows)))
    }

    /// The inbox has a message, for the first time if so; or could not take it.
    pub(crate) fn kept(
        &mut self,
        now: Now,
        world: u64,
        id: DeliveryId,
        new: Result<bool, DiskFault>,
    ) -> Vec<Wish> {
        self.with(now, world, |process| process.next_step(world, id, intake::kept(new)))
    }

    // What the link tells it.

    /// A socket carries the session.
    pub(crate) fn desk_attached(&mut self, now: Now, hello: &HelloResult) {
        let window = window(&hello.features).ok();
        if let Some(hours) = window.and_then(|window| max_age_hours(window, None).ok()) {
            self.drive(now, |drain, now| drain.attached(now, hours));
        }
    }

    pub(crate) fn desk_detached(&mut self) {
        if let Some(desk) = &mut self.desk {
            desk.drain.detached();
        }
    }

    /// An answer to a request of the desk's; says whether it was one.
    pub(crate) fn desk_answered(
        &mut self,
        now: Now,
        number: RequestNumber,
        outcome: &Result<Vec<u8>, WireError>,
    ) -> bool {
        let (life, codec) = (self.life, self.role.codec());
        let Some(desk) = &mut self.desk else { return false };
        if let Some((lane, refusal)) = desk.probes.remove(&number) {
            let pong = outcome.clone().and_then(|frame| answer::<serde_json::Value>(codec, &frame));
            let over = pong.is_err_and(|error| error.code == ErrorCode::LeaseExpired);
            self.drive(now, |drain, now| drain.probed(now, lane, &refusal, over));
            return true;
        }
        if let Some((row, attempts)) = desk.lookups.remove(&number) {
            let found = outcome.clone().and_then(|frame| answer::<SendStatusResult>(codec, &frame));
            let status = found.ok().and_then(|found| found.statuses.into_iter().next());
            let lookup = match status {
                Some(SendStatus { id: Some(id), fingerprint_prefix, .. }) => {
                    Lookup::Known { place: Placed { id, seq: None }, prefix: fingerprint_prefix }
                }
                Some(_) => Lookup::Unknown { attempts },
                None => Lookup::Unreachable,
            };
            desk.jobs.push(Job::Requeue(row, lookup));
            return true;
        }
        let Some((lane, key)) = desk.sent.remove(&number) else { return false };
        let result = outcome.clone().and_then(|frame| answer::<SendResult>(codec, &frame));
        let told = match &result {
            Ok(sent) => {
                let spot = Spot { log: sent.log.clone(), seq: sent.seq.get(), id: sent.id.to_string() };
                Ok((spot, sent.duplicate))
            }
            Err(error) => Err(error.code.as_str().to_owned()),
        };
        let contradicts = is_of_another(&key);
        self.seen.push(Seen::Answered { life, key, contradicts, outcome: told });
        self.drive(now, |drain, now| drain.answered(now, lane, result.as_ref()));
        true
    }

    /// A message has come.
    pub(crate) fn arrived(&mut self, world: u64, id: DeliveryId, work: Work, message: Message) {
        let recipient = match work.place {
            Place::MemberInbox => self.names.member_key(self.role.member).map(Recipient::Member),
            _ => self.names.session_key(self.role.slot).map(Recipient::Session),
        };
        let (Some(recipient), Some(desk)) = (recipient, &mut self.desk) else { return };
        let todo = intake::came(&recipient, &message);
        let keeping = Keeping { work, recipient, message: Box::new(message), again: None };
        desk.keeping.insert(id, keeping);
        self.next_step(world, id, todo);
    }

    /// Its turn: what the disk could not take is tried again.
    pub(crate) fn desk_turn(&mut self, now: Now, world: u64) {
        let Some(desk) = &mut self.desk else { return };
        for (id, keeping) in &mut desk.keeping {
            if keeping.again.take_if(|due| *due <= world).is_some() {
                let (recipient, message) = (keeping.recipient, keeping.message.clone());
                desk.jobs.push(Job::Keep { delivery: *id, recipient, message });
            }
        }
        self.drive(now, |drain, now| drain.tick(now));
    }

    fn next_step(&mut self, world: u64, id: DeliveryId, todo: intake::Todo) {
        let Some(desk) = &mut self.desk else { return };
        let Some(keeping) = desk.keeping.get_mut(&id) else { return };
        if todo.settle {
            let Work { place, spot, lane, .. } = keeping.work.clone();
            self.seen.push(Seen::Settles(self.life, place.clone(), spot.clone(), lane, Verb::Ack));
            let number = self.link.settle(id, LinkVerb::Ack);
            self.settling.insert(number, (place, spot, lane, Verb::Ack));
        }
        match todo.keep_after_ms {
            Some(0) => {
                let (recipient, message) = (keeping.recipient, keeping.message.clone());
                desk.jobs.push(Job::Keep { delivery: id, recipient, message });
            }
            Some(ms) => {
                keeping.again = Some(world + ms);
                self.act_at = self.act_at.min(world + ms);
            }
            None => _ = desk.keeping.remove(&id),
        }
    }

    /// Lets the drain act, and does what it wants done.
    fn drive(&mut self, now: Now, act: impl FnOnce(&mut Drain, Now)) {
        let Some(desk) = &mut self.desk else { return };
        act(&mut desk.drain, now);
        while let Some(desk) = &mut self.desk
            && let Some(effect) = desk.drain.poll_effect()
        {
            match effect {
                DrainEffect::Take(lane, limit) => desk.jobs.push(Job::Take(lane, limit)),
                DrainEffect::Settle(settlement) => desk.jobs.push(Job::Settle(settlement)),
                DrainEffect::Expire(cutoff) => desk.jobs.push(Job::Expire(cutoff)),
                DrainEffect::Send(lane, row) => self.send_row(now, lane, &row),
                DrainEffect::Probe(lane, refusal) => self.probe(now, lane, refusal),
            }
        }
    }

    fn send_row(&mut self, now: Now, lane: LaneId, row: &Outgoing) {
        let key = Key { member: self.role.member, id: row.params.client_message_id.to_string() };
        let asked = self.link.request(now, Method::Send, &row.params, REQUEST_MS);
        match (asked, letter_of(&self.names, &row.params)) {
            (Ok(number), Some(letter)) => {
                let (life, again) = (self.life, row.attempts > 1);
                let contradicts = is_of_another(&key);
                self.seen.push(Seen::Sends { life, key: key.clone(), letter, again, contradicts });
                if let Some(desk) = &mut self.desk {
                    desk.sent.insert(number, (lane, key));
                }
            }
            (Ok(_), None) => {}
            (Err(error), _) => self.drive(now, |drain, now| drain.answered(now, lane, Err(&error))),
        }
    }

    /// Asks the broker about a row that a person wants sent anew.
    pub(crate) fn look_up(&mut self, now: Now, world: u64, row: u64, id: &str, attempts: u32) -> Vec<Wish> {
        let params = SendStatusParams { client_message_ids: id.parse().into_iter().collect() };
        self.with(now, world, |process| {
            let asked = process.link.request(now, Method::SendStatus, &params, REQUEST_MS);
            if let (Ok(number), Some(desk)) = (asked, &mut process.desk) {
                desk.lookups.insert(number, (row, attempts));
            }
        })
    }

    fn probe(&mut self, now: Now, lane: LaneId, refusal: Box<WireError>) {
        let asked = self.link.request(now, Method::Ping, &Empty {}, REQUEST_MS);
        match (asked, &mut self.desk) {
            (Ok(number), Some(desk)) => _ = desk.probes.insert(number, (lane, refusal)),
            (Ok(_), None) => {}
            (Err(error), _) => {
                let over = error.code == ErrorCode::LeaseExpired;
                self.drive(now, |drain, now| drain.probed(now, lane, &refusal, over));
            }
        }
    }
}
