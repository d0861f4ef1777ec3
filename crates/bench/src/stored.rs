//! What a store has before a measurement begins, and accepts made by hand.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow};
use tenure_client::proto::canonical::{member_key, session_key};
use tenure_client::proto::fingerprint::{Fingerprint, fingerprint};
use tenure_client::proto::limits::PREFETCH_MAX;
use tenure_client::proto::message::{Address, Fallback, MessageKind, Priority, Sender};
use tenure_client::proto::peer::Profile;
use tenure_client::proto::subscribe::{AckMode, From};
use tenure_client::proto::{GroupName, LogName, MeshName, MessageId, SessionKey, TopicName, U53};
use tenure_mesh::input::LeaseRecord;
use tenure_mesh::messages::accept::{Accept, Route};
use tenure_mesh::messages::envelope::{Body, Envelope, Lane};
use tenure_mesh::store::record::{
    GroupId, GroupRecord, GroupWrite, OpenRecord, Reader, StoreWrite, SubRecord, TopicRecord,
};
use tenure_store::{Sqlite, Store, Write};

use crate::ids::{Dice, ULID, sender_key, spell, wall_ms};

/// Accepts in one transaction of a preload.
const BATCH: u64 = 8_192;
/// How far back what is stored was sent: less than settled entries are kept.
const BACK_MS: u64 = 24 * 3600 * 1000;
/// How long ids are remembered.
const REMEMBER_MS: u64 = 30 * 24 * 3600 * 1000;
/// Sessions that hold the open claims of a preload.
const HOLDERS: u64 = 10;

/// Makes accepts as the broker would for the load's senders.
#[derive(Debug)]
pub(crate) struct Maker {
    mesh: MeshName,
    run: u64,
    topic: TopicName,
    log: LogName,
    to: Address,
    senders: Vec<Sender>,
    body: String,
    /// All are the same request but for their ids.
    fingerprint: Fingerprint,
    dice: Dice,
    next: usize,
}

impl Maker {
    /// For messages of `body` characters to `topic` by so many senders, in the run that this begins.
    pub(crate) fn new(store: &mut Sqlite, topic: &str, body: usize, senders: usize) -> Result<Maker> {
        let mesh: MeshName = "default".parse().map_err(|_| anyhow!("no name of a mesh"))?;
        let topic: TopicName = topic.parse().map_err(|_| anyhow!("{topic} is no name of a topic"))?;
        let run = store.begin_run(wall_ms()).map_err(failed)?.number;
        let record = TopicRecord {
            name: topic.clone(),
            partitions: 1,
            retention_ms: None,
            created_at: wall_ms(),
            owner: None,
            state: Default::default(),
        };
        let write = StoreWrite::PutTopic(record);
        store.apply(&[Write::Mesh { mesh: mesh.clone(), run, write }]).map_err(failed)?;
        let senders = (0..senders).map(|index| {
            let key = sender_key(index);
            Sender { member: member_key(&key), session: session_key(&key), name: format!("load-{index}") }
        });
        let mut dice = Dice::new(1);
        let (to, body) = (Address::Topic(topic.clone()), dice.text(body));
        let fingerprint = fingerprint(&to, None, Priority::Next, None, body.as_bytes())
            .map_err(|error| anyhow!("hash the body: {}", error.message))?;
        Ok(Maker {
            mesh,
            run,
            log: LogName::Topic(topic.clone(), 0),
            to,
            topic,
            senders: senders.collect(),
            body,
            fingerprint,
            dice,
            next: 0,
        })
    }

    /// An accept of now.
    pub(crate) fn accept(&mut self) -> Write {
        self.accept_at(wall_ms())
    }

    fn accept_at(&mut self, sent_at: u64) -> Write {
        let mut client_id = [0; ULID];
        spell(sent_at, self.dice.entropy(), &mut client_id);
        self.next = (self.next + 1) % self.senders.len();
        let envelope = Envelope {
            id: MessageId::from_parts(sent_at, self.dice.entropy()),
            client_message_id: String::from_utf8_lossy(&client_id).into(),
            from: self.senders[self.next].clone(),
            to: self.to.clone(),
            key: None,
            priority: Priority::Next,
            reply_to: None,
            meta: None,
            body: Body::Text(self.body.clone()),
            content_type: None,
            sent_at,
            expires_at: None,
            not_before: None,
            fallback: Fallback::Hold,
            kind: MessageKind::Message,
        };
        self.write(StoreWrite::Accept(Arc::new(Accept {
            envelope: Arc::new(envelope),
            fingerprint: self.fingerprint,
            route: Route::Log(self.log.clone()),
            refusal: None,
            remember_until: Some(sent_at + REMEMBER_MS),
            full: Vec::new(),
            run: None,
        })))
    }

    fn write(&self, write: StoreWrite) -> Write {
        Write::Mesh { mesh: self.mesh.clone(), run: self.run, write }
    }
}

/// What to put into a store before a broker starts on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preload {
    /// Messages in the topic.
    pub(crate) messages: u64,
    /// Whether a shared group follows it, without anybody who reads.
    pub(crate) crew: bool,
    /// How many of the messages, the newest, that group has not settled.
    pub(crate) unsettled: u64,
    /// How many of those are in somebody's hands.
    pub(crate) claims: u64,
    /// Characters of a body.
    pub(crate) body: usize,
    /// Senders that they come from.
    pub(crate) senders: usize,
}

impl Preload {
    /// Fills the store in `dir`, in large transactions, without a broker.
    pub(crate) fn fill(&self, dir: &Path, topic: &str) -> Result<()> {
        let mut store = Sqlite::open(dir).map_err(failed)?;
        let mut maker = Maker::new(&mut store, topic, self.body, self.senders)?;
        let began = wall_ms() - BACK_MS;
        let (started, mut shown) = (Instant::now(), Instant::now());
        let mut stored = 0;
        while stored < self.messages {
            let upto = self.messages.min(stored + BATCH);
            let at = |n: u64| {
                began + (u128::from(BACK_MS - 60_000) * u128::from(n) / u128::from(self.messages)) as u64
            };
            let batch: Vec<Write> = (stored..upto).map(|n| maker.accept_at(at(n))).collect();
            store.apply(&batch).map_err(failed)?;
            stored = upto;
            if shown.elapsed().as_secs() >= 10 {
                shown = Instant::now();
                eprintln!("{stored} of {} stored after {} s", self.messages, started.elapsed().as_secs());
            }
        }
        if self.crew {
            self.group(&mut store, &maker)?;
        }
        Ok(())
    }

    /// A shared group that is behind, with claims in the hands of sessions that have leases.
    fn group(&self, store: &mut Sqlite, maker: &Maker) -> Result<()> {
        let settled = self.messages.saturating_sub(self.unsettled);
        let crew: GroupName = "crew".parse().map_err(|_| anyhow!("no name of a group"))?;
        let holders: Vec<SessionKey> =
            (0..HOLDERS).map(|index| session_key(&sender_key(1_000 + index as usize))).collect();
        let mut writes = Vec::new();
        for (index, session) in holders.iter().enumerate() {
            let key = sender_key(1_000 + index);
            let record = LeaseRecord {
                session: *session,
                lease: format!("l1-{index}").parse().map_err(|_| anyhow!("no id of a lease"))?,
                member: member_key(&key),
                instance: "bench".parse().map_err(|_| anyhow!("no id of an instance"))?,
                profile: Profile::named(format!("holder-{index}")),
                caps: None,
                joined_at: wall_ms(),
            };
            writes.push(maker.write(StoreWrite::PutLease(Box::new(record))));
            let sub = SubRecord {
                session: *session,
                sub: "s1".parse().map_err(|_| anyhow!("no id of a subscription"))?,
                topic: maker.topic.clone(),
                group: Some(crew.clone()),
                partition: None,
                ack_mode: AckMode::Manual,
                prefetch: PREFETCH_MAX,
            };
            writes.push(maker.write(StoreWrite::PutSub(Box::new(sub))));
        }
        let record = GroupRecord {
            id: GroupId(1),
            log: maker.log.clone(),
            lane: Lane(0),
            reader: Reader::Shared(crew),
            owner: None,
        };
        let (from, used_at) = (From::Seq(U53::saturating(settled + 1)), wall_ms());
        writes.push(maker.write(StoreWrite::OpenGroup { record: record.clone(), from, used_at }));
        let claims = self.claims.min(self.unsettled);
        let put = (0..claims).map(|n| OpenRecord {
            seq: settled + 1 + n,
            attempt: 1,
            tries: 0,
            holder: holders.get((n % HOLDERS) as usize).copied(),
            ready_at: None,
            lasting: false,
        });
        let group = GroupWrite {
            record,
            cursor: settled + claims,
            used_at,
            replace: false,
            put: put.collect(),
            del: Vec::new(),
            settlers: Default::default(),
        };
        writes.push(maker.write(StoreWrite::Group(Box::new(group))));
        store.apply(&writes).map_err(failed)?;
        Ok(())
    }
}

fn failed(error: tenure_store::StoreError) -> anyhow::Error {
    anyhow!("the store: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preload_is_a_sound_store_with_a_group_that_is_behind() {
        let dir = tempfile::tempdir().unwrap();
        let preload = Preload { messages: 300, crew: true, unsettled: 100, claims: 20, body: 64, senders: 4 };
        preload.fill(dir.path(), "load").unwrap();
        let mut store = Sqlite::open(dir.path()).unwrap();
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
        let restored = store.restore(&"default".parse().unwrap()).unwrap();
        assert_eq!(restored.logs[0].lanes[0].end, 300);
        let group = &restored.groups[0];
        assert_eq!((group.cursor, group.open.len(), group.passed.0), (220, 20, 220));
        assert_eq!(store.leases().unwrap().len(), 10);
    }
}
