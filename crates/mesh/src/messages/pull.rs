//! Pulling: what a reader takes when its turn comes, and in which order.

use tenure_kit::mutant::{self, Mutant};
use tenure_proto::ids::{SessionKey, SubId};
use tenure_proto::peer::Status;
use tenure_proto::subscribe::AckMode;

use crate::effect::Push;
use crate::messages::envelope::Lane;
use crate::messages::group::Holder;
use crate::messages::subs::Sub;
use crate::messages::{Handed, Messages, Moment};
use crate::sessions::lease::Lease;
use crate::store::record::GroupId;

/// Deliveries in one batch.
pub(crate) const PUSHES: usize = 128;
/// Bytes in one batch, unless the first delivery alone is more.
const PUSH_BYTES: usize = 256 * 1024;
/// Entries that one subscription may have in hand, fetched ones included.
const IN_HAND: usize = 8_192;

/// What a session's socket is given next: first what it may never have read, then new entries.
pub(crate) fn pull(
    messages: &mut Messages,
    session: SessionKey,
    lease: &mut Lease,
    status: Status,
    moment: Moment,
) -> Vec<Push> {
    let mut batch = Pushes { pushes: Vec::new(), bytes: 0 };
    while !batch.is_full()
        && let Some(push) = lease.subs.cleared.pop_front()
    {
        // Not what was settled, given back or handed out anew meanwhile, or will be pushed as unread anyway.
        let current = messages.readings.get(&push.group).is_some_and(|reading| reading.is_current(&push));
        let Some(sub) = lease.subs.get_mut(&push.sub) else { continue };
        let place = (push.group, push.entry.seq);
        if sub.claiming.remove(&place) && current {
            batch.add(push);
        }
    }
    for id in std::mem::take(&mut lease.subs.eager) {
        let Some(sub) = lease.subs.get_mut(&id) else { continue };
        if sub.opening.is_some() {
            continue;
        }
        let more = pull_unread(messages, session, &id, sub, moment, &mut batch)
            && pull_new(messages, session, &id, sub, status, moment, &mut batch);
        if more || !sub.fetches.is_empty() {
            lease.subs.eager.insert(id);
        }
    }
    batch.pushes
}

struct Pushes {
    pushes: Vec<Push>,
    bytes: usize,
}

impl Pushes {
    fn is_full(&self) -> bool {
        self.pushes.len() >= PUSHES || self.bytes >= PUSH_BYTES
    }

    fn add(&mut self, push: Push) {
        self.bytes += push.entry.envelope.weight();
        self.pushes.push(push);
    }
}

/// Pushes again what may never have been read; says whether newer entries may follow.
fn pull_unread(
    messages: &mut Messages,
    session: SessionKey,
    id: &SubId,
    sub: &mut Sub,
    moment: Moment,
    batch: &mut Pushes,
) -> bool {
    for (group, seq) in sub.unread.clone() {
        if batch.is_full() {
            return true;
        }
        if messages.readings.get(&group).and_then(|r| r.group.open(seq)).is_none() {
            sub.release(group, seq);
            continue;
        }
        // What is on disk comes first all the same: newer entries wait for it.
        let Some(handed) = messages.again(group, seq) else { return false };
        sub.unread.remove(&(group, seq));
        messages.pushed_again(group, seq, moment);
        let Handed { attempt, entry, redelivered } = handed;
        let (sub, cleared) = (id.clone(), false);
        batch.add(Push { sub, group, attempt, session, redelivered, entry, cleared });
    }
    true
}

/// Takes new entries as far as credit allows; says whether there may be more.
fn pull_new(
    messages: &mut Messages,
    session: SessionKey,
    id: &SubId,
    sub: &mut Sub,
    status: Status,
    moment: Moment,
    batch: &mut Pushes,
) -> bool {
    let holder = Holder { session, sub: id.clone() };
    if sub.is_inbox() {
        // However far the last batch came, what is urgent goes first.
        sub.turn = 0;
    }
    let mut idle = 0;
    while idle < sub.groups.len() {
        if batch.is_full() {
            return true;
        }
        sub.turn %= sub.groups.len();
        let group = sub.groups[sub.turn];
        let open = messages
            .readings
            .get(&group)
            .is_some_and(|reading| !sub.is_inbox() || lane_is_open(reading.record.lane, status));
        if !open || sub.credit(group) == 0 {
            (idle, sub.turn) = (idle + 1, sub.turn + 1);
            continue;
        }
        let handed = messages.hand_out(group, &holder, moment);
        messages.touch(group);
        let Some(handed) = handed else {
            (idle, sub.turn) = (idle + 1, sub.turn + 1);
            continue;
        };
        idle = 0;
        let Handed { attempt, entry, redelivered } = handed;
        sub.hold(group, entry.seq);
        let (name, cleared) = (id.clone(), false);
        batch.add(Push { sub: name, group, attempt, session, redelivered, entry, cleared });
        if !sub.is_inbox() {
            // Partitions take turns; the lanes of an inbox do not: the urgent one goes first.
            sub.turn += 1;
        }
    }
    sub.turn = 0;
    false
}

/// Takes entries whatever their priority and the reader's credit; says whether there are some that cannot be handed
/// out yet: they are still on disk, or their place is not, or too much is owed.
pub(crate) fn fetch_from(
    messages: &mut Messages,
    session: SessionKey,
    id: &SubId,
    sub: &mut Sub,
    limit: usize,
    moment: Moment,
) -> (Vec<Push>, bool) {
    let holder = Holder { session, sub: id.clone() };
    let mut batch = Pushes { pushes: Vec::new(), bytes: 0 };
    let mut loading = false;
    for group in sub.groups.clone() {
        while batch.pushes.len() < limit && batch.bytes < PUSH_BYTES && sub.in_hand() < IN_HAND {
            let Some(handed) = messages.hand_out(group, &holder, moment) else { break };
            let Handed { attempt, entry, redelivered } = handed;
            sub.hold_freely(group, entry.seq);
            let (name, cleared) = (id.clone(), false);
            batch.add(Push { sub: name, group, attempt, session, redelivered, entry, cleared });
        }
        messages.touch(group);
        loading |= messages.is_hungry(group) || messages.is_unplaced(group) || messages.is_overdrawn();
    }
    (batch.pushes, loading)
}

/// Whether a reader of that status takes entries of that lane without asking for them.
fn lane_is_open(lane: Lane, status: Status) -> bool {
    match lane.index() {
        _ if mutant::on(Mutant::DndIgnored) => true,
        0 => true,
        1 => !matches!(status, Status::Working | Status::Dnd),
        _ => status == Status::Idle,
    }
}

/// Deliveries that count as settled once they have left.
pub(crate) fn auto_settled(lease: &Lease, pushes: &[Push]) -> Vec<(GroupId, u64, u32)> {
    let auto = |push: &&Push| lease.subs.get(&push.sub).is_some_and(|sub| sub.ack_mode == AckMode::Auto);
    pushes.iter().filter(auto).map(|push| (push.group, push.entry.seq, push.attempt)).collect()
}
