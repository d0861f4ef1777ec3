//! What reads find in the messages of one mesh, and what a start needs to know of them.

use std::sync::Arc;

use tenure_mesh::messages::envelope::{Entry, Lane};
use tenure_mesh::store::record::{
    DeadEntry, DeletedLog, Fate, GroupRecord, GroupState, LogRecord, OpenRecord, Origin, Reader,
    RestoredMessages, StoreFound, StoreRead,
};
use tenure_proto::ids::{ClientMessageId, MemberKey};
use tenure_proto::log::LogName;

use super::messages::{Group, Kept, Messages};
use crate::fate;

impl Messages {
    pub(super) fn read(&self, read: &StoreRead) -> StoreFound {
        match read {
            StoreRead::Page { log, lane, after, limit, bytes } => {
                let lane = self.lane(log, *lane, *after).map(|kept| kept.entry.clone());
                let (entries, _) = page(lane, *limit, *bytes);
                StoreFound::Page { entries, damaged: Vec::new() }
            }
            StoreRead::Entries { log, lane, seqs } => {
                let wanted = self.lane(log, *lane, 0).filter(|kept| seqs.contains(&kept.entry.seq));
                StoreFound::Page {
                    entries: wanted.map(|kept| kept.entry.clone()).collect(),
                    damaged: Vec::new(),
                }
            }
            StoreRead::History { log, from, limit, bytes } => {
                let entries = self.logs.get(log).into_iter().flat_map(|log| log.entries.range(*from..));
                let (entries, next) = page(entries.map(|(_, kept)| kept.entry.clone()), *limit, *bytes);
                StoreFound::History { entries, damaged: Vec::new(), next: next.map(|entry| entry.seq) }
            }
            StoreRead::Fates { member, ids } => {
                StoreFound::Fates(ids.iter().map(|id| self.fate(member, id)).collect())
            }
            StoreRead::Dead { log, after, limit, bytes } => self.letters(log, *after, *limit, *bytes),
            StoreRead::Expired { now, limit } => {
                let found = self.expired(*now).take(*limit as usize);
                StoreFound::Expired(found.cloned().collect())
            }
            StoreRead::Oldest { places } => {
                let sent = places.iter().map(|(log, lane, after)| {
                    self.lane(log, *lane, *after).next().map(|kept| kept.entry.envelope.sent_at)
                });
                StoreFound::Oldest(sent.collect())
            }
            StoreRead::Ids { places } => {
                let id =
                    |(log, seq): &(LogName, u64)| self.kept(log, *seq).map(|kept| kept.entry.envelope.id);
                StoreFound::Ids(places.iter().map(id).collect())
            }
            // No message's: the store itself reads it.
            StoreRead::Audit { .. } | StoreRead::LeaseEnds { .. } => StoreFound::Unavailable,
            StoreRead::Run(run) => StoreFound::Run(self.run(*run).map(Box::new)),
        }
    }

    fn lane(&self, log: &LogName, lane: Lane, after: u64) -> impl Iterator<Item = &Kept> {
        self.logs.get(log).into_iter().flat_map(move |log| log.lane(lane, after))
    }

    fn fate(&self, member: &MemberKey, id: &ClientMessageId) -> Fate {
        let Some(record) = self.records.get(&(*member, id.as_str().into())) else { return Fate::UNKNOWN };
        let letters = self.dead.iter().filter(|((log, seq, _), _)| (log, *seq) == (&record.log, record.seq));
        // That it expired concerns everybody, whoever gave it up before.
        let dead =
            letters.map(|(_, letter)| letter.reason.clone()).min_by_key(|reason| reason != fate::EXPIRED);
        let entry = self.kept(&record.log, record.seq).map(|kept| &kept.entry);
        let lost = if entry.is_some() { None } else { record.lost.clone() };
        let settled = entry.is_none_or(|entry| self.is_settled(entry));
        let (state, reason) = fate::of(dead.or(lost), record.log.is_inbox(), settled);
        Fate { accepted: Some((record.id, record.fingerprint)), state, reason }
    }

    /// Whether the owner of an inbox has settled an entry.
    fn is_settled(&self, entry: &Entry) -> bool {
        let group = self.owner(&entry.log, entry.lane);
        group.is_some_and(|group| entry.seq <= group.cursor && !group.open.contains_key(&entry.seq))
    }

    fn letters(&self, log: &LogName, after: u64, limit: u32, bytes: usize) -> StoreFound {
        let (mut letters, mut last, mut size): (Vec<DeadEntry>, u64, usize) = (Vec::new(), after, 0);
        for ((_, seq, group), letter) in
            self.dead.iter().filter(|((of, seq, _), _)| of == log && *seq > after)
        {
            let length = letter.kept.entry.envelope.body.as_bytes().len();
            let full = letters.len() >= limit as usize || size + length > bytes;
            if *seq != last && full && !letters.is_empty() {
                return StoreFound::Dead { letters, next: Some(last) };
            }
            (last, size) = (*seq, size + length);
            letters.push(DeadEntry {
                entry: letter.kept.entry.clone(),
                group: group.clone(),
                attempts: letter.attempts,
                reason: letter.reason.clone(),
                at: letter.at,
            });
        }
        StoreFound::Dead { letters, next: None }
    }

    /// Entries whose time has run out. What the owner of an inbox has settled in time is none of them.
    fn expired(&self, now: u64) -> impl Iterator<Item = &Arc<Entry>> {
        let logs = self.logs.values().filter(|log| !log.hidden);
        let entries = logs
            .flat_map(|log| log.entries.values())
            .filter(|kept| !(kept.timeless && kept.entry.envelope.expires_at.is_some()));
        let late = entries
            .map(|kept| &kept.entry)
            .filter(move |entry| entry.expires_at().is_some_and(|at| at <= now));
        late.filter(|entry| !(entry.log.is_inbox() && self.is_settled(entry)))
    }

    pub(super) fn restore(&self) -> RestoredMessages {
        let logs = self.logs.iter().filter(|(_, log)| !log.hidden);
        RestoredMessages {
            topics: self.topics.values().cloned().collect(),
            deleted: self.deleted(),
            logs: logs.map(|(name, log)| LogRecord { log: name.clone(), lanes: log.lanes.clone() }).collect(),
            groups: self.groups.values().map(|group| self.state(group)).collect(),
            subs: self.subs.values().cloned().collect(),
            left: self.left(),
            runs: self.living_runs(),
            services: self.services.values().cloned().collect(),
        }
    }

    /// Logs of deleted topics.
    fn deleted(&self) -> Vec<DeletedLog> {
        let hidden = self.logs.iter().filter(|(name, log)| log.hidden && !name.is_inbox());
        let deleted = hidden.map(|(name, log)| {
            let record = LogRecord { log: name.clone(), lanes: log.lanes.clone() };
            DeletedLog { record, told: log.told }
        });
        deleted.collect()
    }

    /// The totals of a lane before the next entry that is there after `cursor`, or of all there ever was.
    pub(super) fn passed(&self, record: &GroupRecord, cursor: u64) -> (u64, u64) {
        let totals = self.logs.get(&record.log).map(|log| &log.lanes[record.lane.index()]);
        let totals = totals.map_or((0, 0), |lane| (lane.count, lane.bytes));
        let before =
            |kept: &Kept| (kept.count - 1, kept.bytes - kept.entry.envelope.body.as_bytes().len() as u64);
        self.lane(&record.log, record.lane, cursor).next().map_or(totals, before)
    }

    fn state(&self, group: &Group) -> GroupState {
        let Group { record, cursor, used_at, open, settlers } = group;
        let origin = |open: &OpenRecord| {
            let kept = self.kept(&record.log, open.seq).filter(|_| record.reader == Reader::Inbox)?;
            let envelope = &kept.entry.envelope;
            let client_message_id = envelope.client_message_id.clone();
            Some(Origin { session: envelope.from.session, id: envelope.id, client_message_id })
        };
        GroupState {
            record: record.clone(),
            cursor: *cursor,
            used_at: *used_at,
            passed: self.passed(record, *cursor),
            open: open.values().map(|open| (open.clone(), origin(open))).collect(),
            settlers: settlers.values().cloned().collect(),
        }
    }
}

/// As many entries as fit, but at least one, and the first that did not fit.
fn page(
    entries: impl Iterator<Item = Arc<Entry>>,
    limit: u32,
    bytes: usize,
) -> (Vec<Arc<Entry>>, Option<Arc<Entry>>) {
    let (mut fitting, mut size): (Vec<_>, usize) = (Vec::new(), 0);
    for entry in entries {
        size += entry.envelope.body.as_bytes().len();
        if fitting.len() >= limit as usize || (size > bytes && !fitting.is_empty()) {
            return (fitting, Some(entry));
        }
        fitting.push(entry);
    }
    (fitting, None)
}
