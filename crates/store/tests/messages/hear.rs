//! What people hear, and what must be true of every delivery.

use std::collections::BTreeMap;

use tenure_mesh::effect::{Answer, Push};
use tenure_mesh::input::Call;
use tenure_proto::error::ErrorCode;
use tenure_proto::event::EventBody;
use tenure_proto::ids::{ConnId, RequestId};
use tenure_proto::log::LogName;
use tenure_proto::reconcile::{InflightResult, ReconcileAction, ReconcileResult};
use tenure_proto::subscribe::{
    AckMode, DEFAULT_PREFETCH, SubscribeParams, SubscribeResult, SubscriptionEventKind, UnsubscribeParams,
};

use super::person::{Asked, Key, Known, Reader, Sub, lane};
use super::sim::{ACK_TIMEOUT, PEOPLE, Sim};
use super::words::*;
use super::world::Outcome;

impl Sim {
    /// Lets everybody take notice of what has come.
    pub(crate) fn hear(&mut self) {
        for n in 1..=PEOPLE {
            let Some(conn) = self.person(n).conn else { continue };
            let deaf = self.person(n).deaf;
            if deaf || self.world.socket(conn).unflushed {
                if self.world.socket(conn).open {
                    continue;
                }
                // It was closed before anything arrived.
                self.silence(conn);
            }
            let socket = self.world.sockets.get_mut(&conn).unwrap();
            let (frames, open) = (std::mem::take(&mut socket.frames), socket.open);
            for frame in frames {
                let socket = self.world.sockets.get_mut(&conn).unwrap();
                match frame {
                    // Gone if somebody has looked at it before.
                    Some(request) => {
                        if let Some(outcome) = socket.answers.remove(&request) {
                            self.answered(n, conn, &request, outcome);
                        }
                    }
                    None => {
                        let push = socket.pushes.pop_front().unwrap();
                        self.pushed(n, conn, push, false);
                    }
                }
            }
            for event in std::mem::take(&mut self.world.sockets.get_mut(&conn).unwrap().events) {
                if let EventBody::Subscription(event) = event
                    && event.kind == SubscriptionEventKind::Closed
                {
                    let ended = self.person(n).subs.remove(&event.sub_id);
                    self.recreated.extend(ended.map(|sub| (n, sub.params)));
                }
            }
            if !open {
                self.person(n).cut();
            }
        }
        // Only now: what comes of it is heard after what came before it.
        for (n, key, tag) in std::mem::take(&mut self.repeats) {
            if self.conn(n).is_some() {
                self.ack_now(n, key, tag);
            }
        }
        for (n, sub_id) in std::mem::take(&mut self.unwanted) {
            self.ask(n, Asked::Other, Call::Unsubscribe(UnsubscribeParams { sub_id }));
        }
        for (n, params) in std::mem::take(&mut self.recreated) {
            self.subscribe(n, params);
        }
    }

    fn answered(&mut self, n: u8, conn: ConnId, request: &RequestId, outcome: Outcome) {
        let asked = self.person(n).asked.remove(request);
        match (asked, outcome) {
            (None, Ok(Answer::Hello(answer))) => self.greeted(n, *answer),
            (_, Ok(Answer::Reconcile(result))) => self.reconciled(n, *result),
            (Some(Asked::Send(index)), Ok(Answer::Send(result))) => {
                let place = (result.id, result.log.parse().unwrap(), result.seq.get());
                let sent = &mut self.sent[index];
                if let Some((id, ..)) = &sent.accepted {
                    assert_eq!((*id, true), (result.id, result.duplicate), "one id, one message");
                }
                sent.accepted.get_or_insert(place);
            }
            (Some(Asked::Subscribe(params)), Ok(Answer::Subscribe(result))) => {
                self.subscribed(n, params, &result);
            }
            (Some(Asked::Ack(keys)), Ok(Answer::Settle(result))) => {
                assert_eq!(result.settled.len() + result.stale.len(), keys.len());
                if result.stale.is_empty() {
                    keys.iter().for_each(|key| self.is_settled(n, key));
                }
            }
            (Some(Asked::Nack(key, true)), Ok(Answer::Settle(result))) if result.stale.is_empty() => {
                self.is_settled(n, &key);
            }
            (Some(Asked::Steal), Ok(Answer::Settle(result))) => {
                assert_eq!(result.stale[0].reason, "not_owner");
            }
            (Some(Asked::Fetch(limit)), Ok(Answer::Fetch(pushes))) => {
                self.person(n).slack -= limit;
                for push in pushes {
                    self.pushed(n, conn, push, true);
                }
            }
            (Some(Asked::Reconcile), Err(_)) => {
                // Nobody has said what is left of them.
                let subs = std::mem::take(&mut self.person(n).subs).into_values();
                self.recreated.extend(subs.map(|sub| (n, sub.params)));
            }
            (_, Err(error)) => assert!(!error.code.as_str().is_empty() && error.code != ErrorCode::Internal),
            _ => {}
        }
    }

    pub(super) fn is_settled(&mut self, n: u8, key: &Key) {
        if let Some(Known::Acked(_, sure)) = self.person(n).memory.get_mut(key) {
            *sure = true;
        }
        if !matches!(key.0, Reader::Private(..)) {
            self.settled.insert(key.clone());
        }
    }

    fn subscribed(&mut self, n: u8, params: SubscribeParams, result: &SubscribeResult) {
        let start: BTreeMap<u32, u64> =
            result.start_seq.iter().map(|(p, seq)| (p.parse().unwrap(), seq.get())).collect();
        let expected = if params.topic.as_str() == "parts" && params.partition.is_none() { 3 } else { 1 };
        assert_eq!(start.len(), expected, "{result:?}");
        if let Some(group) = &params.group {
            for (partition, seq) in &start {
                let log = LogName::Topic(params.topic.clone(), *partition);
                self.crews.entry((log, Reader::Crew(group.clone()))).or_insert(*seq);
            }
        }
        if (params.ack_mode, &params.group) == (AckMode::Auto, &None) {
            // Made anew, it may begin before what was read, and bring what was lost on the way and counted as settled.
            let place = Reader::Private(n, params.partition);
            self.person(n).last.retain(|(reader, log, _), last| match log {
                LogName::Topic(topic, partition) if *reader == place && *topic == params.topic => {
                    start.get(partition).is_none_or(|start| *last < *start)
                }
                _ => true,
            });
        }
        let sub = Sub { params, start, seen: BTreeMap::new() };
        self.person(n).subs.insert(result.sub_id.clone(), sub);
    }

    pub(super) fn reconciled(&mut self, n: u8, result: ReconcileResult) {
        let mut again = Vec::new();
        for verdict in result.results {
            let person = self.person(n);
            match (verdict.action, &verdict.client) {
                (ReconcileAction::Keep, Some(client)) if *client != verdict.sub_id => {
                    let sub = person.subs.remove(client).unwrap();
                    person.subs.insert(verdict.sub_id, sub);
                }
                (ReconcileAction::CloseClientSide, Some(client)) => _ = person.subs.remove(client),
                (ReconcileAction::RecreateClientSide, Some(client)) => {
                    again.extend(person.subs.remove(client).map(|sub| sub.params));
                }
                _ => {}
            }
        }
        for verdict in result.inflight {
            let person = self.person(n);
            let of =
                |known: &Known| matches!(known, Known::Acked(t, _) | Known::Hand(t) if *t == verdict.tag);
            let Some((key, known)) = person.memory.iter().find(|(_, known)| of(known)) else { continue };
            let (key, is_acked) = (key.clone(), matches!(known, Known::Acked(..)));
            match verdict.result {
                InflightResult::Settled if is_acked => self.is_settled(n, &key),
                // In its hand by its own word, whatever its credit.
                InflightResult::Kept => _ = person.fetched.insert(key),
                _ => {}
            }
        }
        self.recreated.extend(again.into_iter().map(|params| (n, params)));
    }

    fn pushed(&mut self, n: u8, conn: ConnId, push: Push, fetched: bool) {
        let since = self.since;
        let Some(reader) = self.person(n).reader(&push) else {
            return self.unwanted.push((n, push.sub));
        };
        let key: Key = (reader.clone(), push.entry.log.clone(), push.entry.seq);
        assert!(!self.settled.contains(&key), "handed to {n} after it was settled: {push:?}");
        self.check_order(n, &key, &push);
        self.check_claim(n, conn, &key);
        if fetched {
            self.person(n).fetched.insert(key.clone());
        }
        if !self.person(n).is_auto(&push) && !self.person(n).fetched.contains(&key) {
            self.check_prefetch(n, &key, &push);
        }
        let (tag, auto) = (tag(&push), self.person(n).is_auto(&push));
        if let (LogName::Topic(_, partition), Some(sub)) = (&key.1, self.person(n).subs.get_mut(&push.sub)) {
            let seen = sub.seen.entry(*partition).or_default();
            *seen = (*seen).max(push.entry.seq);
        }
        match self.person(n).memory.get(&key) {
            Some(Known::Acked(..)) if !auto => {
                self.person(n).memory.insert(key.clone(), Known::Acked(tag.clone(), false));
                return self.repeats.push((n, key, tag));
            }
            Some(_) => {}
            None => {
                self.person(n).received.insert(key.clone());
                self.reached.insert((reader, push.entry.envelope.id));
            }
        }
        if !auto {
            self.person(n).memory.insert(key.clone(), Known::Hand(tag));
            self.holders.insert(key, (conn, since));
        }
    }

    /// First deliveries come in order.
    fn check_order(&mut self, n: u8, key: &Key, push: &Push) {
        let before = self.reached.contains(&(key.0.clone(), push.entry.envelope.id));
        let person = self.person(n);
        let delayed = push.entry.envelope.not_before.is_some();
        let unordered = person.nacked.contains(key) || person.swallowed.contains(key);
        if before || delayed || push.attempt > 1 || unordered {
            return;
        }
        let place = (key.0.clone(), key.1.clone(), lane(push));
        let last = person.last.insert(place, key.2);
        assert!(last.is_none_or(|last| last < key.2), "{n}: {push:?} after {last:?}");
    }

    /// Nobody else has it in hand.
    fn check_claim(&mut self, n: u8, conn: ConnId, key: &Key) {
        if let Some((holder, since)) = self.holders.get(key)
            && !matches!(key.0, Reader::Private(..))
        {
            let other = *holder != conn && self.world.socket(*holder).open;
            let lively = self.people.iter().any(|person| person.conn == Some(*holder) && person.n != n);
            assert!(!(other && lively) || self.time - since >= ACK_TIMEOUT, "{key:?} is in two hands");
        }
    }

    fn check_prefetch(&mut self, n: u8, key: &Key, push: &Push) {
        let (time, since) = (self.time, self.since);
        let prefetch = self.person(n).subs.get(&push.sub).map_or(DEFAULT_PREFETCH, |sub| sub.params.prefetch);
        let place = (push.sub.clone(), lane(push));
        let pushed = self.person(n).unsettled.entry(place).or_default();
        pushed.retain(|_, since| time - *since < ACK_TIMEOUT);
        pushed.insert(key.clone(), since);
        let count = pushed.len();
        assert!(count <= prefetch as usize + self.person(n).slack, "{n} was pushed {count} at once");
    }
}
