//! A group with what surrounds it: who reads it, what of it is in memory, who is to be told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tenure_proto::event::{Receipt, ReceiptState};
use tenure_proto::ids::SessionKey;
use tenure_proto::log::LogName;
use tenure_proto::name::GroupName;

use crate::effect::Push;
use crate::messages::envelope::Entry;
use crate::messages::group::{Claim, Group, Holder, OPEN_MAX, Open};
use crate::messages::placing::Placed;
use crate::store::record::{GroupRecord, Origin, Reader};

/// A floor that the store may not know.
pub(crate) const UNTOLD: u64 = u64::MAX;
/// Stands for the settler of an entry that left without its reader's word. No session has this key: a signature under it is
/// refused as weak.
const NOBODY: SessionKey = SessionKey([0; 32]);

/// A group with what surrounds it.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) record: GroupRecord,
    pub(crate) group: Group,
    /// Who may be handed entries; takes turns.
    pub(crate) members: VecDeque<Holder>,
    /// Entries after the cursor that were read from disk; bounded by one page.
    pub(crate) page: VecDeque<Arc<Entry>>,
    /// Entries to be handed out again that were read from disk; bounded by what was asked for.
    pub(crate) again: BTreeMap<u64, Arc<Entry>>,
    /// Entries to be handed out again that are not in memory.
    pub(crate) wanted: BTreeSet<u64>,
    /// Entries after the cursor that were brought back from the dead letters: that their time is over does not count
    /// against them again, until a start forgets it. (What was read before is open, and lasting.)
    pub(crate) spared: BTreeSet<u64>,
    /// Where the lane ended when the read that is under way was asked for.
    pub(crate) loading: Option<u64>,
    /// Entries and bytes up to the cursor.
    pub(crate) passed: (u64, u64),
    pub(crate) used_at: u64,
    /// Of a shared one without readers: under which time it is listed among those.
    pub(crate) idle: Option<u64>,
    /// What the sums of all groups count of it: entries that it has passed, and open ones.
    pub(crate) counted: (u64, u64),
    /// Receipts that wait for the store to know what they say.
    pub(crate) receipts: Vec<(SessionKey, Receipt)>,
    /// Where the cursor was at the start of the broker, if it was there then.
    pub(crate) restored_at: Option<u64>,
    /// Entries of a session's inbox that were open then: what became of them since is known. As many as were open.
    pub(crate) restored_open: BTreeSet<u64>,
    /// Entries beyond the cursor that left the log since the start: nobody has them in hand, whoever says so. Not more
    /// than [`OPEN_MAX`], the last ones.
    missing: BTreeSet<u64>,
    /// Whether the store knows it; one that was asked for is not here before it does.
    pub(crate) placed: Placed,
    /// The floor that the store knows, of a private group; [`UNTOLD`] if it did not take the last one.
    pub(crate) floor_told: u64,
    /// Entries that one reader had been handed and that left without its word: moved on, expired, or dead. They are not
    /// settled, although they are not here any more. Of this run, the last [`OPEN_MAX`].
    left: BTreeSet<u64>,
}

impl Reading {
    /// An entry beyond the cursor has left the log.
    pub(crate) fn miss(&mut self, seq: u64) {
        if self.restored_at.is_some() {
            self.missing = self.missing.split_off(&(self.group.cursor() + 1));
            self.missing.insert(seq);
            if self.missing.len() > OPEN_MAX {
                self.missing.pop_first();
            }
        }
    }

    /// Believes the only reader of this place that it was handed everything up to `seq`, as far as it is there.
    pub(crate) fn assume_read(&mut self, seq: u64) {
        self.group.assume_read(seq);
        for missing in std::mem::take(&mut self.missing) {
            if missing <= seq {
                self.group.remove(missing);
            } else {
                self.missing.insert(missing);
            }
        }
    }

    pub(crate) fn new(record: GroupRecord, cursor: u64, used_at: u64) -> Reading {
        let placed = if record.reader == Reader::Inbox { Placed::No } else { Placed::Yes };
        Reading {
            record,
            group: Group::at(cursor),
            members: VecDeque::new(),
            page: VecDeque::new(),
            again: BTreeMap::new(),
            wanted: BTreeSet::new(),
            spared: BTreeSet::new(),
            loading: None,
            passed: (0, 0),
            used_at,
            idle: None,
            counted: (0, 0),
            receipts: Vec::new(),
            restored_at: None,
            restored_open: BTreeSet::new(),
            missing: BTreeSet::new(),
            placed,
            floor_told: cursor,
            left: BTreeSet::new(),
        }
    }

    pub(crate) fn is_private(&self) -> bool {
        matches!(self.record.reader, Reader::Private(_))
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.record.reader, Reader::Shared(_))
    }

    /// Whether the store has made it and said where it begins: until then it stands at the end of everything.
    pub(crate) fn is_made(&self) -> bool {
        self.group.cursor() != u64::MAX
    }

    /// Whether several may read it: then a claim is on disk before its entry is pushed, so that after a crash nobody
    /// else is handed what somebody has in hand.
    pub(crate) fn is_contended(&self) -> bool {
        self.is_shared() || matches!(self.record.log, LogName::Member(_))
    }

    /// An open entry leaves without its reader's word: it moved on, expired, or is a dead letter. A late settle of it is
    /// told `requeued`.
    pub(crate) fn leave(&mut self, seq: u64) -> Option<Open> {
        let open = self.group.remove(seq)?;
        if open.attempt == 0 {
            return Some(open);
        }
        if self.is_contended() {
            // As if it had been handed out once more, to nobody: that is on disk, and bounded with the others.
            self.group.note_settler(seq, open.attempt + 1, NOBODY);
        } else {
            self.left.insert(seq);
            if self.left.len() > OPEN_MAX {
                self.left.pop_first();
            }
        }
        Some(open)
    }

    /// A dead letter is back: it can be settled again.
    pub(crate) fn come_back(&mut self, seq: u64) {
        self.left.remove(&seq);
        self.group.forget_settler(seq);
    }

    /// What a tag of `session` is worth here.
    pub(crate) fn claim(&self, seq: u64, attempt: u32, session: &SessionKey) -> Claim {
        if self.left.contains(&seq) {
            return Claim::Stale("requeued");
        }
        self.group.claim(seq, attempt, session)
    }

    /// Remembers who settled an entry, if others may have had it in hand.
    pub(crate) fn note_settler(&mut self, seq: u64, attempt: u32, session: SessionKey) {
        if self.is_contended() {
            self.group.note_settler(seq, attempt, session);
        }
    }

    /// Whether nothing can be known of a delivery of an earlier lease: this inbox has no such entry in hand or waiting,
    /// because it was settled, or because it went elsewhere when that lease ended.
    pub(crate) fn is_lost_track_of(&self, seq: u64) -> bool {
        matches!(self.record.log, LogName::Session(_)) && self.group.open(seq).is_none()
    }

    /// Whether that was so at the start of the broker: the entry was read before, and was not open any more.
    pub(crate) fn was_lost_track_of(&self, seq: u64) -> bool {
        let was_read = self.restored_at.is_some_and(|cursor| seq <= cursor);
        was_read && !self.restored_open.contains(&seq) && self.is_lost_track_of(seq)
    }

    /// Whether a delivery is the last hand-out of its entry.
    pub(crate) fn is_current(&self, push: &Push) -> bool {
        self.group.open(push.entry.seq).is_some_and(|open| open.attempt == push.attempt)
    }

    /// Up to where everything is settled and stays so over a crash: what a lone reader has settled since its floor was
    /// last told would be missing when it comes again.
    pub(crate) fn kept_floor(&self) -> u64 {
        match self.floor_told {
            _ if !self.is_private() => self.group.floor(),
            UNTOLD => 0,
            told => self.group.floor().min(told),
        }
    }

    /// The crew's name, if it is one.
    pub(crate) fn crew(&self) -> Option<&GroupName> {
        match &self.record.reader {
            Reader::Shared(name) => Some(name),
            _ => None,
        }
    }

    /// An entry does not wait any more: it was read, or has left the log before it was.
    pub(crate) fn discount(&mut self, entry: &Entry) {
        let (count, bytes) = self.passed;
        self.passed = (count + 1, bytes + entry.envelope.body.as_bytes().len() as u64);
    }

    /// Lets the sender of an entry know its fate, once the store knows it.
    pub(crate) fn receipt(&mut self, origin: Option<Origin>, state: ReceiptState, reason: Option<String>) {
        let Some(Origin { session, id, client_message_id }) = origin else { return };
        if !self.record.log.is_inbox() {
            return;
        }
        let Ok(client_message_id) = client_message_id.parse() else { return };
        self.receipts.push((session, Receipt { id, client_message_id, state, reason }));
    }
}
