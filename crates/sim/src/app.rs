//! The application on top of a session: it sends, reads, works slowly, settles, changes its mind.

use tenure_kit::Now;
use tenure_link::Verb as LinkVerb;
use tenure_link::{
    Handed as LinkHanded, LinkEffect, Patience, SessionEvent, Settlement, SubEnd, SubHandle, SubItem,
};
use tenure_proto::WireError;
use tenure_proto::event::{EventBody, ReceiptState};
use tenure_proto::hello::{HelloResult, LeaseFate, Replay};
use tenure_proto::message::{Priority, SendResult, SendStatusParams, SendStatusResult};
use tenure_proto::method::Method;
use tenure_proto::peer::{ProfilePatch, Status as WireStatus};
use tenure_proto::subscribe::{AckMode, From, SubscribeParams};
use tenure_proto::topic::TopicCreateParams;

use crate::letter::{params_of, some_letter};
use crate::process::{Asked, Process, Work, answer};
use crate::scenario::TOPICS;
use crate::seen::{
    Fate, Handed, Key, Lane, Letter, Member, Place, Seen, Settled, Slot, Spot, Status, To, Verb,
};

/// Applications wait long for an answer, as those do that have nowhere else to go.
const PATIENCE_MS: u64 = 7_200_000;
/// Sends without an answer that one application lets wait.
const OUTSTANDING: usize = 24;

/// The place that a subscription is.
pub(crate) fn place(params: &SubscribeParams) -> Place {
    Place::Topic {
        topic: params.topic.to_string(),
        group: params.group.as_ref().map(ToString::to_string),
        partition: params.partition,
        auto: params.ack_mode == AckMode::Auto,
        prefetch: params.prefetch,
    }
}

impl Process {
    /// What the application does when its process begins.
    pub(crate) fn open_shop(&mut self, now: Now) {
        self.make_topics(now);
        for (id, letter) in self.memo.unanswered.clone() {
            self.send(now, id, letter, true, false);
        }
        self.call_again(now);
        self.offer_all(now);
    }

    /// Topics are made before anybody uses them: a topic that is made by its first use has one partition.
    fn make_topics(&mut self, now: Now) {
        for (index, (name, partitions)) in TOPICS.into_iter().enumerate() {
            let asked =
                self.asked.values().any(|asked| matches!(asked, Asked::Topic(other) if *other == index));
            let Ok(name) = name.parse() else { continue };
            if asked || self.topics.contains(&index) {
                continue;
            }
            let params = TopicCreateParams { name, partitions, retention_ms: None };
            if let Ok(number) = self.link.request(now, Method::TopicsCreate, &params, PATIENCE_MS) {
                self.asked.insert(number, Asked::Topic(index));
            }
        }
    }

    pub(crate) fn has_topics(&self) -> bool {
        self.topics.len() == TOPICS.len()
    }

    fn subscribe(&mut self, now: Now, params: SubscribeParams) {
        let (place, from_start) = (place(&params), params.from == From::Earliest);
        let asked = self.refused.contains(&place) || self.subs.values().any(|other| *other == place);
        if !self.has_topics() || asked {
            return;
        }
        if let Ok(handle) = self.link.subscribe(now, params, PATIENCE_MS) {
            self.seen.push(Seen::Subscribes(self.life, place.clone(), from_start));
            self.subs.insert(handle, place);
        }
    }

    /// The application's turn.
    pub(crate) fn app(&mut self, now: Now, world: u64) {
        if self.ended {
            return;
        }
        if self.desk.is_some() {
            self.desk_turn(now, world);
        } else {
            self.settle_due(world);
        }
        self.answer_runs(now, world);
        self.make_topics(now);
        if self.has_topics() && !std::mem::replace(&mut self.reading, true) {
            for params in self.role.reads.clone() {
                self.subscribe(now, params);
            }
        }
        if self.calm {
            self.calm_down(now);
        } else if self.desk.is_none() {
            self.live(now, world);
        }
        let again = self.desk.as_ref().and_then(|desk| desk.again());
        let next = self.hand.values().map(|work| work.due).chain(again).chain(self.runs_due());
        let next = next.min().unwrap_or(u64::MAX);
        let own = if self.calm { world + 1_000 } else { world + self.rng.between(50, 800) };
        self.act_at = next.max(world + 1).min(own);
    }

    /// Faults are over: everything that comes is done, and nothing new is begun.
    fn calm_down(&mut self, now: Now) {
        if self.status != Status::Idle && !self.asked.values().any(|asked| matches!(asked, Asked::Status(_)))
        {
            self.set_status(now, Status::Idle);
        }
        for params in self.role.reads.clone() {
            self.subscribe(now, params);
        }
        self.offer_all(now);
        if !self.looks.is_empty() && self.asked.is_empty() {
            self.look_on(now);
        }
    }

    fn live(&mut self, now: Now, world: u64) {
        self.call_somebody(now, world);
        self.reconsider_offers(now);
        if self.role.sends_every_ms > 0 && world >= self.send_at && self.asked.len() < OUTSTANDING {
            self.send_at = world + self.rng.around(self.role.sends_every_ms);
            self.send_something(now);
        }
        if self.role.moody && self.rng.chance(15) {
            let status = [Status::Idle, Status::Working, Status::Dnd][self.rng.below(3) as usize];
            self.set_status(now, status);
        }
        if self.rng.chance(3) {
            let open: Vec<SubHandle> = self.subs.keys().copied().filter(|handle| handle.0 > 2).collect();
            if let Some(handle) = self.rng.pick(&open)
                && let Some(place) = self.subs.get(&handle)
            {
                self.seen.push(Seen::Unsubscribes(self.life, place.clone()));
                self.link.unsubscribe(handle);
            }
        }
        if self.rng.chance(10)
            && let Some(params) = self.rng.pick(&self.role.reads)
        {
            self.subscribe(now, params);
        }
    }

    fn set_status(&mut self, now: Now, status: Status) {
        let wire = match status {
            Status::Idle => WireStatus::Idle,
            Status::Working => WireStatus::Working,
            Status::Dnd => WireStatus::Dnd,
        };
        let patch = ProfilePatch { status: Some(wire), ..ProfilePatch::default() };
        if let Ok(number) = self.link.set_profile(now, &patch, PATIENCE_MS) {
            self.status = status;
            self.seen.push(Seen::Status(self.life, status));
            self.asked.insert(number, Asked::Status(status));
        }
    }

    // Sending.

    fn send_something(&mut self, now: Now) {
        if self.rng.chance(60)
            && let Some((id, letter)) = self.rng.pick(&self.memo.accepted)
        {
            return self.send(now, id, letter, true, false);
        }
        if self.rng.chance(25)
            && let Some((id, mut letter)) = self.rng.pick(&self.memo.accepted)
        {
            letter.body.push('!');
            return self.send(now, id, letter, false, true);
        }
        self.memo.last_id += 1;
        let id = format!("{}-{}", self.role.ordinal, self.memo.last_id);
        let letter = self.letter();
        self.memo.unanswered.insert(id.clone(), letter.clone());
        self.send(now, id.clone(), letter, false, false);
        self.inquire(now, &id);
    }

    /// Asks right behind a message what became of it.
    fn inquire(&mut self, now: Now, id: &str) {
        if !self.inquires.as_mut().is_some_and(|rng| rng.chance(200)) {
            return;
        }
        let params = SendStatusParams { client_message_ids: id.parse().into_iter().collect() };
        if let Ok(number) = self.link.request(now, Method::SendStatus, &params, PATIENCE_MS) {
            let key = Key { member: self.role.member, id: id.to_owned() };
            self.seen.push(Seen::Inquires(self.life, key.clone()));
            self.asked.insert(number, Asked::Fate(key));
        }
    }

    fn letter(&mut self) -> Letter {
        let body = format!("{}.{}.{}:", self.life.slot.0, self.life.number, self.memo.last_id);
        let topics = self.has_topics();
        some_letter(&mut self.rng, &self.names, topics, body)
    }

    fn send(&mut self, now: Now, id: String, letter: Letter, again: bool, contradicts: bool) {
        let key = Key { member: self.role.member, id: id.clone() };
        let Some(params) = params_of(&self.names, &id, &letter) else { return };
        let receipt_ms = (!matches!(letter.to, To::Topic(_)) && !contradicts).then_some(PATIENCE_MS);
        let patience = Patience { answer_ms: PATIENCE_MS, receipt_ms };
        if let Ok(number) = self.link.send(now, &params, patience) {
            let (life, key, letter) = (self.life, key, letter);
            self.seen.push(Seen::Sends {
                life,
                key: key.clone(),
                letter: letter.clone(),
                again,
                contradicts,
            });
            if receipt_ms.is_some() {
                self.receipts.insert(number, key.clone());
            }
            self.asked.insert(number, Asked::Send(key, letter, contradicts));
        }
    }

    // Hearing.

    /// Something for the application. `ending`: the session is about to be over, and errors say only that.
    pub(crate) fn hear(&mut self, now: Now, world: u64, effect: LinkEffect, ending: bool) {
        match effect {
            LinkEffect::Deliver(event) => self.event(now, event),
            LinkEffect::Answer(number, outcome) => {
                if self.desk_answered(now, number, &outcome) {
                    return;
                }
                if let Some(asked) = self.asked.remove(&number) {
                    self.answered(asked, outcome, ending);
                }
            }
            LinkEffect::Receipt(number, outcome) => {
                if let Some(key) = self.receipts.remove(&number)
                    && !ending
                {
                    let outcome = match outcome {
                        Ok(receipt) => Ok(match receipt.state {
                            ReceiptState::Delivered => Fate::Delivered,
                            ReceiptState::Dead => Fate::Dead,
                            ReceiptState::Expired => Fate::Expired,
                        }),
                        Err(error) => Err(error.code.as_str().to_owned()),
                    };
                    self.seen.push(Seen::Receipt { life: self.life, key, outcome });
                }
            }
            LinkEffect::Sub(handle, item) => self.item(world, handle, item),
            LinkEffect::Settled(number, settlement) => {
                if let Some((place, spot, lane, verb)) = self.settling.remove(&number) {
                    let settled = match settlement {
                        Settlement::Settled => Settled::Yes,
                        Settlement::Stale { reason } => Settled::Stale(reason),
                        Settlement::Refused(error) => Settled::Refused(error.code.as_str().to_owned()),
                        Settlement::SessionOver => Settled::Over,
                    };
                    self.seen.push(Seen::Settled(self.life, place, spot, lane, verb, settled));
                }
            }
            LinkEffect::Call(handle, item) => self.call_item(handle, item),
            LinkEffect::Served(handle, item) => self.served_item(world, handle, item),
            LinkEffect::Offer(handle, item) => self.offer_item(handle, item),
            // Nothing is fetched here, and the rest is the shell's.
            _ => {}
        }
    }

    fn answered(&mut self, asked: Asked, outcome: Result<Vec<u8>, WireError>, ending: bool) {
        let (codec, life) = (self.role.codec(), self.life);
        match asked {
            Asked::Send(key, letter, contradicts) => {
                let outcome = outcome.and_then(|frame| answer::<SendResult>(codec, &frame));
                // An end says nothing of what became of it: the next process asks again.
                let unknown = ending && outcome.is_err();
                if !contradicts && !unknown {
                    self.memo.unanswered.remove(&key.id);
                    if outcome.is_ok() && !self.memo.all.contains(&key.id) {
                        self.memo.all.push(key.id.clone());
                        if self.memo.accepted.len() < 64 {
                            self.memo.accepted.push((key.id.clone(), letter));
                        }
                    }
                }
                let outcome = match outcome {
                    Ok(sent) => {
                        let spot = Spot { log: sent.log, seq: sent.seq.get(), id: sent.id.to_string() };
                        Ok((spot, sent.duplicate))
                    }
                    Err(error) => Err(error.code.as_str().to_owned()),
                };
                self.seen.push(Seen::Answered { life, key, contradicts, outcome });
            }
            Asked::Status(status) => {
                let yes = outcome.and_then(|frame| answer::<tenure_proto::method::Empty>(codec, &frame));
                // With others under way it is not known which one holds.
                let last = !self.asked.values().any(|asked| matches!(asked, Asked::Status(_)));
                if yes.is_ok() && last {
                    self.seen.push(Seen::StatusTaken(life, status));
                }
            }
            Asked::Topic(index) => {
                let made = outcome.and_then(|frame| answer::<tenure_proto::method::Empty>(codec, &frame));
                // One that somebody's first use made has other partitions, and is there.
                if made.is_ok() || self.wary && made.is_err_and(|error| !error.retryable) {
                    self.topics.insert(index);
                }
            }
            Asked::Look(look) => self.looked(look, outcome),
            Asked::Fate(key) => {
                let found = outcome.and_then(|frame| answer::<SendStatusResult>(codec, &frame));
                if let Some(status) = found.ok().and_then(|found| found.statuses.into_iter().next()) {
                    self.seen.push(Seen::Inquired(life, key, crate::look::fate(status.state)));
                }
            }
            // What it came to is told by the end of the run.
            Asked::Cancel => {}
        }
    }

    fn event(&mut self, now: Now, event: SessionEvent) {
        let life = self.life;
        match event {
            SessionEvent::Attached(hello) => {
                self.attached(&hello);
                self.desk_attached(now, &hello);
            }
            SessionEvent::Detached { .. } => {
                self.seen.push(Seen::Detached(life));
                self.desk_detached();
            }
            SessionEvent::Waiting { .. } => {}
            SessionEvent::HistoryRewound { logs } => self.seen.push(Seen::HistoryRewound(life, logs)),
            SessionEvent::Event { seq, body } => match *body {
                EventBody::Presence(event) => self.seen.push(Seen::Presence {
                    life,
                    seq,
                    kind: event.kind.as_str(),
                    session: event.peer.get().session.to_string(),
                    versions: (event.base.get(), event.version.get()),
                }),
                EventBody::Service(event) => self.seen.push(Seen::Service {
                    life,
                    seq,
                    kind: event.kind.as_str(),
                    name: event.service.name.to_string(),
                    session: event.service.session.to_string(),
                    versions: (event.base.get(), event.version.get()),
                }),
                body => self.seen.push(Seen::Event(life, seq, body.name().to_owned())),
            },
        }
    }

    fn attached(&mut self, hello: &HelloResult) {
        self.token = Some(hello.resume.token.clone());
        self.refused.clear();
        if self.wary && hello.lease == LeaseFate::New {
            self.topics.clear();
        }
        let snapshot = hello.snapshot.as_ref().map(|snapshot| {
            let all = snapshot.presence.iter().map(|peer| peer.get().session.to_string()).collect();
            (all, !snapshot.more)
        });
        self.seen.push(Seen::Attached {
            life: self.life,
            kept: hello.lease == LeaseFate::Kept,
            complete: hello.events.replay == Replay::Complete,
            snapshot,
            epoch: (hello.events.epoch.to_string(), hello.events.next_seq.get()),
        });
    }

    // Reading.

    fn item(&mut self, world: u64, handle: SubHandle, item: SubItem) {
        let Some(place) = self.subs.get(&handle).cloned() else { return };
        let life = self.life;
        match item {
            SubItem::Opened(result) => {
                let start = result.start_seq.iter();
                let start = start.filter_map(|(p, seq)| Some((p.parse().ok()?, seq.get()))).collect();
                self.seen.push(Seen::Opened(life, place, start));
            }
            SubItem::Gap { partition, from, to } => {
                self.seen.push(Seen::Gap(life, place, partition, (from, to)));
            }
            SubItem::Ended(end) => {
                self.subs.remove(&handle);
                self.hand.retain(|_, work| work.place != place);
                if matches!(&end, SubEnd::BrokerError { code, .. } if code == "bad_request") {
                    self.refused.insert(place.clone());
                }
                self.seen.push(Seen::SubEnded(life, place, end.to_string()));
            }
            SubItem::Message(handed) => self.handed(world, place, handed),
        }
    }

    fn handed(&mut self, world: u64, place: Place, handed: LinkHanded) {
        let delivery = handed.delivery;
        if self.tags.len() >= 8 {
            self.tags.pop_front();
        }
        self.tags.push_back(delivery.tag.to_string());
        let letter = self.desk.is_some().then(|| delivery.message.clone());
        let message = delivery.message;
        let lane = match (message.log.starts_with("inbox/"), message.priority) {
            (true, Priority::Next) => Lane::Next,
            (true, Priority::Low) => Lane::Low,
            _ => Lane::Now,
        };
        let spot = Spot { log: message.log, seq: message.seq.get(), id: message.id.to_string() };
        let (member, slot) =
            (self.names.voucher(&message.from.member), self.names.slot(&message.from.session));
        self.seen.push(Seen::Handed(
            self.life,
            Handed {
                place: place.clone(),
                spot: spot.clone(),
                lane,
                key: Key { member: member.unwrap_or(Member(u8::MAX)), id: message.client_message_id },
                from: slot.unwrap_or(Slot(u8::MAX)),
                body: message.body.unwrap_or_default(),
                attempt: delivery.attempt,
                redelivered: delivery.redelivered,
            },
        ));
        if let (Some(id), Some(letter)) = (handed.id, letter) {
            return self.arrived(world, id, Work { place, spot, lane, due: world }, letter);
        }
        if let Some(id) = handed.id {
            let work = if self.calm { 0 } else { self.rng.around(self.role.work_ms) };
            // It works on one copy at a time: an earlier one was taken from it.
            self.hand.retain(|_, work| work.place != place || work.spot != spot);
            self.hand.insert(id, Work { place, spot, lane, due: world + work });
            self.act_at = self.act_at.min(world + work.max(1));
        }
    }

    fn settle_due(&mut self, world: u64) {
        let due: Vec<_> = self.hand.iter().filter(|(_, work)| work.due <= world).map(|(id, _)| *id).collect();
        for id in due {
            let dice = if self.calm { 0 } else { self.rng.below(100) };
            let verb = match dice {
                0..=85 => Verb::Ack,
                86..=91 => Verb::Retry(self.rng.below(3) * 1_000),
                92..=93 => Verb::Dead,
                94..=97 => Verb::Progress,
                // It forgets about it for a long time.
                _ => {
                    if let Some(work) = self.hand.get_mut(&id) {
                        work.due = world + 90_000;
                    }
                    continue;
                }
            };
            let link = match verb {
                Verb::Ack => LinkVerb::Ack,
                Verb::Retry(ms) => {
                    LinkVerb::Nack { delay_ms: (ms > 0).then_some(ms), dead: false, reason: None }
                }
                Verb::Dead => {
                    LinkVerb::Nack { delay_ms: None, dead: true, reason: Some("hopeless".to_owned()) }
                }
                Verb::Progress => LinkVerb::Progress,
            };
            let work = if verb == Verb::Progress {
                let wait = self.rng.around(self.role.work_ms.max(50));
                let Some(work) = self.hand.get_mut(&id) else { continue };
                work.due = world + wait;
                work.clone()
            } else {
                let Some(work) = self.hand.remove(&id) else { continue };
                work
            };
            let Work { place, spot, lane, .. } = work;
            self.seen.push(Seen::Settles(self.life, place.clone(), spot.clone(), lane, verb));
            let number = self.link.settle(id, link);
            self.settling.insert(number, (place, spot, lane, verb));
        }
    }
}
