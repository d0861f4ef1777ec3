//! The messages of one mesh, and what each write does to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_mesh::messages::accept::{Accept, Accepted, Decision, Remembered, decide};
use tenure_mesh::messages::envelope::{Entry, Envelope, Lane};
use tenure_mesh::store::record::{
    Burial, GroupId, GroupRecord, GroupWrite, LaneRecord, Moved, OpenRecord, Placed, Reader, RunRecord,
    ServiceRecord, SettlerRecord, StoreOutcome, StoreWrite, SubRecord, TopicRecord,
};
use tenure_proto::fingerprint::Fingerprint;
use tenure_proto::ids::{MemberKey, MessageId, RunId, SessionKey, SubId};
use tenure_proto::log::LogName;
use tenure_proto::message::Fallback;
use tenure_proto::name::{GroupName, ServiceName, TopicName};
use tenure_proto::subscribe::From;

/// All messages of a mesh.
#[derive(Clone, Debug, Default)]
pub(super) struct Messages {
    pub(super) topics: BTreeMap<TopicName, TopicRecord>,
    pub(super) subs: BTreeMap<(SessionKey, SubId), SubRecord>,
    pub(super) logs: BTreeMap<LogName, Log>,
    pub(super) groups: BTreeMap<GroupId, Group>,
    /// By sender and the sender's id.
    pub(super) records: BTreeMap<(MemberKey, Arc<str>), Record>,
    pub(super) dead: BTreeMap<LetterKey, Letter>,
    pub(super) runs: BTreeMap<RunId, RunRecord>,
    pub(super) services: BTreeMap<ServiceName, ServiceRecord>,
    sessions: BTreeMap<SessionKey, Session>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    pub(super) lanes: [LaneRecord; 3],
    pub(super) entries: BTreeMap<u64, Kept>,
    /// An inbox whose owner is forgotten, or a log of a deleted topic.
    pub(super) hidden: bool,
    /// Of the latter: whether somebody deleted it.
    pub(super) told: bool,
}

/// An entry with the count and bytes of its lane up to and with it.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) entry: Arc<Entry>,
    pub(super) count: u64,
    pub(super) bytes: u64,
    /// Whether its sender's time for it counts no more.
    pub(super) timeless: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) record: GroupRecord,
    pub(super) cursor: u64,
    pub(super) used_at: u64,
    pub(super) open: BTreeMap<u64, OpenRecord>,
    pub(super) settlers: BTreeMap<u64, SettlerRecord>,
}

#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) id: MessageId,
    pub(super) fingerprint: Fingerprint,
    pub(super) log: LogName,
    pub(super) seq: u64,
    first_seen_at: u64,
    expires_at: Option<u64>,
    pub(super) lost: Option<String>,
}

/// Which entry, and who could not settle it.
pub(super) type LetterKey = (LogName, u64, Option<GroupName>);

#[derive(Clone, Debug)]
pub(super) struct Letter {
    pub(super) kept: Kept,
    pub(super) attempts: u32,
    pub(super) reason: String,
    pub(super) at: u64,
}

#[derive(Clone, Debug)]
struct Session {
    member: MemberKey,
    ended_at: Option<u64>,
    /// Whether what it left when its lease ended has moved on.
    cleared: bool,
}

impl Log {
    fn end(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.end).max().unwrap_or_default()
    }

    /// The entries of a lane after a seq, in order.
    pub(super) fn lane(&self, lane: Lane, after: u64) -> impl Iterator<Item = &Kept> {
        let later = self.entries.range(after.saturating_add(1)..).map(|(_, kept)| kept);
        later.filter(move |kept| kept.entry.lane == lane)
    }
}

impl Messages {
    pub(super) fn apply(&mut self, write: &StoreWrite) -> StoreOutcome {
        match write {
            StoreWrite::PutLease(record) => {
                self.sessions.insert(
                    record.session,
                    Session { member: record.member, ended_at: None, cleared: false },
                );
            }
            // The caller has seen to it that the lease was this one.
            StoreWrite::EndLease(end) => self.end(&end.session, end.at),
            StoreWrite::Accept(accept) => return StoreOutcome::Accepted(self.accept(accept)),
            StoreWrite::PutServices(records) => {
                let named = |record: &ServiceRecord| (record.name.clone(), record.clone());
                self.services.extend(records.iter().map(named));
            }
            StoreWrite::DropServices(session, names) => {
                self.services.retain(|name, service| service.session != *session || !names.contains(name));
            }
            StoreWrite::PutTopic(topic) => _ = self.topics.insert(topic.name.clone(), topic.clone()),
            StoreWrite::EndTopic { record, if_empty } => {
                let ends = !*if_empty || self.is_empty(record);
                if ends {
                    self.topics.insert(record.name.clone(), TopicRecord::clone(record));
                }
                return StoreOutcome::Ended(ends);
            }
            StoreWrite::ClearTopic { record, limit } => return self.clear(record, *limit as usize),
            StoreWrite::OpenGroup { record, from, used_at } => {
                return StoreOutcome::Opened(self.open(record, *from, *used_at));
            }
            StoreWrite::Group(write) => self.group(write),
            StoreWrite::DropGroup(id) => _ = self.groups.remove(id),
            StoreWrite::PutSub(sub) => {
                self.subs.insert((sub.session, sub.sub.clone()), SubRecord::clone(sub));
            }
            StoreWrite::DropSub(session, sub) => _ = self.subs.remove(&(*session, sub.clone())),
            StoreWrite::Bury(burial) => self.bury(burial),
            StoreWrite::Revive { log, seqs, crews } => {
                let letters = self.exhume(log, seqs, crews.as_deref()).into_iter();
                let revived = letters.map(|((log, seq, group), letter)| {
                    let (lane, attempts) = (letter.kept.entry.lane, letter.attempts);
                    let log = self.logs.entry(log).or_default();
                    log.hidden = false;
                    log.entries.entry(seq).or_insert(letter.kept);
                    (lane, seq, group, attempts)
                });
                let revived: Vec<_> = revived.collect();
                revived.iter().for_each(|letter| self.reopen(log, letter));
                return StoreOutcome::Revived(revived);
            }
            StoreWrite::DropDead { log, seqs } => {
                let letters = self.exhume(log, seqs, None);
                letters.iter().for_each(|(_, letter)| self.note_loss(letter));
                return StoreOutcome::Count { rows: letters.len() as u64, more: false };
            }
            StoreWrite::Evacuate { session, member, limit, after, through, at } => {
                let outcome = self.evacuate(session, member, *limit, (*after, *through), *at);
                if let (StoreOutcome::Evacuated { next: None, .. }, Some(session)) =
                    (&outcome, self.sessions.get_mut(session))
                {
                    session.cleared = session.ended_at.is_some();
                }
                return outcome;
            }
            StoreWrite::Prune { log, lane, through, before, keep_bytes, at, limit } => {
                let old = self.oldest(log, *lane, (*through, *before, *keep_bytes, *limit));
                return self.prune(log, *lane, &old, (*through, *at, *limit));
            }
            StoreWrite::Unexpire { log, lane, seqs } => {
                let entries = self.logs.get_mut(log).into_iter().flat_map(|log| log.entries.values_mut());
                entries
                    .filter(|kept| kept.entry.lane == *lane && seqs.contains(&kept.entry.seq))
                    .for_each(|kept| kept.timeless = true);
            }
            StoreWrite::ClaimRun { run, callee, member } => self.claim_run(*run, *callee, *member),
            StoreWrite::CancelRun(run) => self.cancel_run(*run),
            StoreWrite::EndRun(ending) => self.end_run(ending),
            // Touching a lease is the leases' business; a sweep concerns all meshes.
            // Of no message.
            StoreWrite::TouchLease(..) | StoreWrite::Sweep { .. } | StoreWrite::Access(_) => {}
        }
        StoreOutcome::Done
    }

    fn end(&mut self, session: &SessionKey, at: u64) {
        if let Some(session) = self.sessions.get_mut(session) {
            session.ended_at = Some(at);
        }
        self.subs.retain(|(owner, _), _| owner != session);
        self.services.retain(|_, service| service.session != *session);
        self.groups.retain(|_, group| group.record.reader != Reader::Private(*session));
    }

    fn accept(&mut self, accept: &Accept) -> Accepted {
        let envelope = &accept.envelope;
        let key = (envelope.scope(), envelope.client_message_id.clone());
        let found = self.records.get(&key).map(|record| Remembered {
            id: record.id,
            fingerprint: record.fingerprint,
            log: record.log.clone(),
            seq: record.seq,
            first_seen_at: record.first_seen_at,
            available: self.kept(&record.log, record.seq).is_some(),
        });
        let member_of = |session: &SessionKey| self.sessions.get(session).map(|session| session.member);
        let was_seen = |member: &MemberKey| self.sessions.values().any(|session| session.member == *member);
        let decision = decide(
            accept,
            found,
            |session| Ok::<_, std::convert::Infallible>(member_of(session)),
            |member| Ok(was_seen(member)),
        );
        let log = match decision {
            Ok(Decision::Append(log)) => log,
            Ok(Decision::Answer(answer)) => return answer,
        };
        let (lane, seq) = self.append(&log, envelope.clone());
        let record = Record {
            id: envelope.id,
            fingerprint: accept.fingerprint,
            log: log.clone(),
            seq,
            first_seen_at: envelope.sent_at,
            expires_at: accept.remember_until,
            lost: None,
        };
        self.records.insert(key, record);
        if let Some(deadline) = accept.run {
            self.start_run(envelope, (&log, lane, seq), deadline);
        }
        Accepted::Fresh { log, lane, seq }
    }

    fn append(&mut self, name: &LogName, envelope: Arc<Envelope>) -> (Lane, u64) {
        let log = self.logs.entry(name.clone()).or_default();
        log.hidden = false;
        let (lane, seq) = (Lane::of(name, envelope.priority), log.end() + 1);
        let totals = &mut log.lanes[lane.index()];
        totals.end = seq;
        totals.count += 1;
        totals.bytes += envelope.body.as_bytes().len() as u64;
        let (count, bytes) = (totals.count, totals.bytes);
        let entry = Arc::new(Entry::new(name.clone(), lane, seq, envelope));
        log.entries.insert(seq, Kept { entry, count, bytes, timeless: false });
        (lane, seq)
    }

    pub(super) fn kept(&self, log: &LogName, seq: u64) -> Option<&Kept> {
        self.logs.get(log)?.entries.get(&seq)
    }

    fn open(&mut self, record: &GroupRecord, from: From, used_at: u64) -> Result<Placed, u64> {
        let placed = |cursor| Placed { cursor, passed: self.passed(record, cursor) };
        if let Some(group) = self.groups.get(&record.id) {
            return Ok(placed(group.cursor));
        }
        let log = self.logs.get(&record.log);
        let end = log.map_or(0, Log::end);
        let first = log.and_then(|log| log.lane(record.lane, 0).next());
        let cursor = match from {
            From::New => end,
            From::Earliest => first.map_or(end, |kept| kept.entry.seq - 1),
            From::Seq(seq) if seq.get() > end + 1 => return Err(end),
            From::Seq(seq) => seq.get().saturating_sub(1),
        };
        let placed = placed(cursor);
        self.put_group(record, cursor, used_at);
        Ok(placed)
    }

    /// Opens an entry again for the reader whose dead letter it was, if that has read past it.
    fn reopen(&mut self, log: &LogName, letter: &(Lane, u64, Option<GroupName>, u32)) {
        let (lane, seq, name, attempt) = letter;
        let reader = name.clone().map_or(Reader::Inbox, Reader::Shared);
        let open = OpenRecord {
            seq: *seq,
            attempt: *attempt,
            tries: 0,
            holder: None,
            ready_at: None,
            lasting: true,
        };
        for group in self.groups.values_mut() {
            let GroupRecord { log: of, lane: at, reader: who, .. } = &group.record;
            if (of, at, who) == (log, lane, &reader) && *seq <= group.cursor {
                group.open.insert(*seq, open.clone());
            }
        }
    }

    fn put_group(&mut self, record: &GroupRecord, cursor: u64, used_at: u64) -> &mut Group {
        self.logs.entry(record.log.clone()).or_default().hidden = false;
        let group = self.groups.entry(record.id).or_insert_with(|| Group {
            record: record.clone(),
            cursor,
            used_at,
            open: BTreeMap::new(),
            settlers: BTreeMap::new(),
        });
        (group.cursor, group.used_at) = (cursor, used_at);
        group
    }

    fn group(&mut self, write: &GroupWrite) {
        let group = self.put_group(&write.record, write.cursor, write.used_at);
        if write.replace {
            group.open.clear();
            group.settlers.clear();
        }
        write.del.iter().for_each(|seq| _ = group.open.remove(seq));
        group.open.extend(write.put.iter().map(|open| (open.seq, open.clone())));
        write.settlers.del.iter().for_each(|seq| _ = group.settlers.remove(seq));
        group.settlers.extend(write.settlers.put.iter().map(|settler| (settler.seq, settler.clone())));
    }

    fn bury(&mut self, burial: &Burial) {
        let found = self.kept(&burial.log, burial.seq).filter(|kept| kept.entry.lane == burial.lane);
        let Some(kept) = found.cloned() else { return };
        let letter = Letter { kept, attempts: burial.attempts, reason: burial.reason.clone(), at: burial.at };
        self.dead.insert((burial.log.clone(), burial.seq, burial.group.clone()), letter);
        if burial.remove {
            self.remove(&burial.log, burial.seq);
        }
    }

    /// Takes an entry out of its log and out of everybody's hands.
    fn remove(&mut self, log: &LogName, seq: u64) {
        let Some(kept) = self.logs.get_mut(log).and_then(|log| log.entries.remove(&seq)) else { return };
        let readers = self.groups.values_mut();
        readers
            .filter(|group| group.record.log == *log && group.record.lane == kept.entry.lane)
            .for_each(|group| _ = group.open.remove(&seq));
    }

    /// Takes the dead letters of these entries out, in order; only those of these groups, if said.
    fn exhume(
        &mut self,
        log: &LogName,
        seqs: &[u64],
        crews: Option<&[GroupName]>,
    ) -> Vec<(LetterKey, Letter)> {
        let meant = |group: &Option<GroupName>| {
            crews.is_none_or(|crews| group.as_ref().is_some_and(|group| crews.contains(group)))
        };
        self.dead
            .extract_if(.., |(of, seq, group), _| of == log && seqs.contains(seq) && meant(group))
            .collect()
    }

    /// Notes why a message is nowhere any more, when its last dead letter has gone.
    pub(super) fn note_loss(&mut self, letter: &Letter) {
        let entry = &letter.kept.entry;
        let others = self.dead.keys().any(|(log, seq, _)| *log == entry.log && *seq == entry.seq);
        if others || self.kept(&entry.log, entry.seq).is_some() {
            return;
        }
        let key = (entry.envelope.scope(), entry.envelope.client_message_id.clone());
        let record = self.records.get_mut(&key).filter(|record| record.id == entry.envelope.id);
        if let Some(record) = record {
            record.lost.get_or_insert_with(|| letter.reason.clone());
        }
    }

    fn evacuate(
        &mut self,
        session: &SessionKey,
        member: &MemberKey,
        limit: u32,
        (after, through): ((Lane, u64), u64),
        at: u64,
    ) -> StoreOutcome {
        let (inbox, target) = (LogName::Session(*session), LogName::Member(*member));
        let mut places = self.unsettled(&inbox);
        places.retain(|(lane, seq, _)| (*lane, *seq) > after && *seq <= through);
        places.truncate(limit as usize);
        let (mut moved, mut failed) = (Vec::new(), Vec::new());
        for (lane, seq, attempts) in &places {
            // What a reader is believed to have been handed may be of another lane, and settled there.
            let kept = self.kept(&inbox, *seq).filter(|kept| kept.entry.lane == *lane).cloned();
            let Some(kept) = kept else { continue };
            let envelope = &kept.entry.envelope;
            match envelope.fallback {
                Fallback::Hold => {}
                Fallback::Member => {
                    let (lane, seq) = self.append(&target, envelope.clone());
                    let key = (envelope.scope(), envelope.client_message_id.clone());
                    let record = self.records.get_mut(&key).filter(|record| record.id == envelope.id);
                    if let Some(record) = record {
                        (record.log, record.seq) = (target.clone(), seq);
                    }
                    self.remove(&inbox, kept.entry.seq);
                    let entry = Arc::new(Entry::new(target.clone(), lane, seq, envelope.clone()));
                    moved.push(Moved { from: kept.entry.seq, entry });
                }
                Fallback::Fail => {
                    let reason = crate::fate::LEASE_EXPIRED.to_owned();
                    let (log, lane, seq, attempts) = (inbox.clone(), *lane, *seq, *attempts);
                    self.bury(&Burial { log, lane, seq, group: None, attempts, reason, at, remove: true });
                    failed.push(kept.entry);
                }
            }
        }
        let last = places.last().filter(|_| places.len() >= limit as usize);
        StoreOutcome::Evacuated { moved, failed, next: last.map(|(lane, seq, _)| (*lane, *seq)) }
    }

    /// Sessions whose lease ended before what they left had moved on, if they have an inbox at all.
    pub(super) fn left(&self) -> Vec<(SessionKey, MemberKey)> {
        let gone = self.sessions.iter().filter(|(_, session)| session.ended_at.is_some() && !session.cleared);
        let has_inbox =
            |session: &SessionKey| self.logs.get(&LogName::Session(*session)).is_some_and(|log| !log.hidden);
        gone.filter(|(key, _)| has_inbox(key)).map(|(key, session)| (*key, session.member)).collect()
    }

    /// Everything of an inbox that is open, or after the owner's cursor: lane, seq, attempts; in order.
    pub(super) fn unsettled(&self, inbox: &LogName) -> Vec<(Lane, u64, u32)> {
        let mut places = Vec::new();
        for lane in Lane::ALL {
            let group = self.owner(inbox, lane);
            let open = group.into_iter().flat_map(|group| group.open.values());
            places.extend(open.map(|open| (lane, open.seq, open.attempt)));
            let unread = self.logs.get(inbox).into_iter();
            let unread = unread.flat_map(|log| log.lane(lane, group.map_or(0, |group| group.cursor)));
            places.extend(unread.map(|kept| (lane, kept.entry.seq, 0)));
        }
        places
    }

    /// The group of an inbox's owner in a lane.
    pub(super) fn owner(&self, inbox: &LogName, lane: Lane) -> Option<&Group> {
        self.groups.values().find(|group| {
            let GroupRecord { log, lane: of, reader, .. } = &group.record;
            log == inbox && *of == lane && *reader == Reader::Inbox
        })
    }

    /// The first entries of a lane that may go, without a gap.
    fn oldest(
        &self,
        log: &LogName,
        lane: Lane,
        (through, before, keep_bytes, limit): (u64, u64, Option<u64>, u32),
    ) -> Vec<u64> {
        let Some(log) = self.logs.get(log) else { return Vec::new() };
        let total = log.lanes[lane.index()].bytes;
        let may_go = |kept: &&Kept| {
            let old = kept.entry.seq <= through && kept.entry.envelope.sent_at < before;
            old || keep_bytes.is_some_and(|keep| total.saturating_sub(kept.bytes) >= keep)
        };
        log.lane(lane, 0).take_while(may_go).take(limit as usize).map(|kept| kept.entry.seq).collect()
    }

    fn prune(
        &mut self,
        name: &LogName,
        lane: Lane,
        old: &[u64],
        (through, at, limit): (u64, u64, u32),
    ) -> StoreOutcome {
        for seq in old.iter().copied().filter(|seq| *seq > through) {
            let reason = crate::fate::RETENTION.to_owned();
            let (log, group, attempts, remove) = (name.clone(), None, 0, false);
            self.bury(&Burial { log, lane, seq, group, attempts, reason, at, remove });
        }
        let last = old.last().copied().unwrap_or_default();
        if let Some(log) = self.logs.get_mut(name) {
            let totals = &mut log.lanes[lane.index()];
            totals.pruned = totals.pruned.max(last);
            old.iter().for_each(|seq| _ = log.entries.remove(seq));
        }
        StoreOutcome::Pruned { through: last, more: last > 0 && old.len() >= limit as usize }
    }

    /// Forgets what has outlived its time; how many rows of it.
    pub(super) fn sweep(&mut self, now: u64, dead_before: u64) -> u64 {
        let old = self.dead.iter().filter(|(_, letter)| letter.at < dead_before);
        let mut dead: Vec<_> = old.map(|(key, letter)| (key.clone(), letter.clone())).collect();
        dead.sort_by_key(|(_, letter)| letter.at);
        for (key, letter) in &dead {
            self.dead.remove(key);
            self.note_loss(letter);
        }
        let ended = |session: &Session| session.ended_at.is_some_and(|at| at < dead_before);
        let logs = &mut self.logs;
        let gone: Vec<_> = self
            .sessions
            .extract_if(.., |key, session| {
                let inbox = logs.get(&LogName::Session(*key));
                ended(session) && inbox.is_none_or(|log| log.entries.is_empty())
            })
            .collect();
        for (session, _) in &gone {
            let inbox = LogName::Session(*session);
            self.groups.retain(|_, group| group.record.log != inbox);
            self.logs.entry(inbox).and_modify(|log| log.hidden = true);
        }
        let records = self.records.len();
        self.records.retain(|_, record| record.expires_at.is_none_or(|at| at > now));
        (dead.len() + gone.len() + records - self.records.len()) as u64
    }
}
