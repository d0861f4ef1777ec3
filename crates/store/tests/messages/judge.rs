//! The end of a program: everything works again, and every promise is looked at.

use tenure_mesh::store::record::{Fate, StoreFound, StoreRead};
use tenure_proto::ids::{MemberKey, MessageId};
use tenure_proto::log::LogName;
use tenure_proto::message::{SendParams, SendState};
use tenure_proto::peer::Status;
use tenure_proto::reconcile::ReconcilePolicy;
use tenure_proto::subscribe::AckMode;

use super::person::{Reader, Return};
use super::sim::{PEOPLE, Sim};
use super::words::*;
use super::world::Disk;

impl Sim {
    /// Everything works again and everybody settles what comes, until nothing does.
    pub(crate) fn quiesce(&mut self) {
        self.world.set_disk(Disk::Commits);
        self.world.commit(usize::MAX);
        for round in 0..40 {
            for n in 1..=PEOPLE {
                if self.person(n).deaf {
                    self.drop_socket(n);
                }
                self.unblock(n);
                if self.conn(n).is_none() {
                    self.dial(n, Return::Knowing(ReconcilePolicy::Conservative));
                }
                self.set_status(n, Status::Idle);
                for index in 0..self.sent.len() {
                    if self.sent[index].from == n && self.sent[index].accepted.is_none() && round < 20 {
                        self.resend(index);
                    }
                }
                while self.conn(n).is_some() && !self.person(n).hand().is_empty() {
                    self.ack(n, 0);
                }
            }
            self.pass(10_000);
        }
        self.judge();
    }

    fn judge(&mut self) {
        for person in &self.people {
            let socket = self.world.socket(person.conn.expect("a socket"));
            assert!(socket.asked.is_empty(), "{} waits for {:?}", person.n, socket.asked);
        }
        for index in 0..self.sent.len() {
            let Some((id, log, seq)) = self.sent[index].accepted.clone() else { continue };
            let params = self.sent[index].params.clone();
            if log.is_inbox() {
                self.judge_inbox(&params, member(self.sent[index].from), id);
            } else if params.ttl_ms.is_none() {
                self.judge_topic(id, &log, seq, params.delay_ms.is_some());
            }
        }
        assert_eq!(self.world.store().check().unwrap(), Vec::<String>::new());
    }

    fn judge_inbox(&mut self, params: &SendParams, member: MemberKey, id: MessageId) {
        let ids = vec![params.client_message_id.clone()];
        let StoreFound::Fates(fates) = self.world.read(&StoreRead::Fates { member, ids }) else { panic!() };
        let Fate { accepted, state, reason } = fates[0].clone();
        assert_eq!(accepted.map(|(id, _)| id), Some(id), "{params:?}");
        let reached = self.reached.contains(&(Reader::Inbox, id));
        match state {
            SendState::Delivered => assert!(reached, "settled, but it reached nobody: {params:?}"),
            SendState::Dead => assert!(reason.is_some()),
            SendState::Expired => assert!(params.ttl_ms.is_some() && reason.is_some()),
            SendState::Accepted | SendState::Unknown => panic!("lost or stuck: {params:?}"),
        }
    }

    fn judge_topic(&mut self, id: MessageId, log: &LogName, seq: u64, delayed: bool) {
        let dead = match self.world.read(&StoreRead::Dead {
            log: log.clone(),
            after: seq - 1,
            limit: 1,
            bytes: 1,
        }) {
            StoreFound::Dead { letters, .. } => letters.iter().any(|letter| letter.entry.seq == seq),
            other => panic!("{other:?}"),
        };
        for ((of, reader), start) in &self.crews {
            let place = (of.clone(), reader.clone());
            let read = self.people.iter().any(|person| {
                person.subs.values().any(|sub| {
                    let LogName::Topic(topic, partition) = of else { return false };
                    let crew = sub.params.group.clone().map(Reader::Crew);
                    sub.params.topic == *topic
                        && crew.as_ref() == Some(reader)
                        && sub.params.partition.is_none_or(|p| p == *partition)
                })
            });
            if of == log && *start <= seq && read && !dead && !self.careless.contains(&place) {
                assert!(self.reached.contains(&(reader.clone(), id)), "{reader:?} never got {log} {seq}");
            }
        }
        for person in &self.people {
            for sub in person.subs.values().filter(|sub| sub.params.group.is_none()) {
                let LogName::Topic(topic, partition) = log else { continue };
                let manual = sub.params.ack_mode == AckMode::Manual && sub.params.topic == *topic;
                let start = sub.start.get(partition).filter(|start| manual && **start <= seq);
                let key = (Reader::Private(person.n, sub.params.partition), log.clone(), seq);
                // A position says nothing of an entry that was yet to come when its lease ended.
                let got = person.received.contains(&key) || dead || delayed;
                assert!(start.is_none() || got, "{} never got {log} {seq}", person.n);
            }
        }
    }
}
