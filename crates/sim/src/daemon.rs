//! A daemon: one process with several local sessions (`desk`), its two files, and the local programs that hand messages
//! to it (`local`).
//!
//! Its disk is the model of both files, `tenure_outbox::ledger` and a set of what was kept, behind a writer that shares a
//! commit as the shipped one does. A crash keeps what was synced; of what was being written it keeps nothing or all. The
//! shipped files are held to the ledger by a property test in `crates/daemon`.

use std::collections::{BTreeSet, VecDeque};

use tenure_link::DeliveryId;
use tenure_outbox::arrival::Recipient;
use tenure_outbox::drain::DiskFault;
use tenure_outbox::ledger::{Ledger, Requeued};
use tenure_outbox::requeue::Lookup;
use tenure_outbox::{Answer, LaneId, Outgoing, Settlement, Status};
use tenure_proto::message::{Message, SendParams};

use crate::desk::Desk;
use crate::local::{Local, Post};
use crate::rng::Rng;
use crate::seen::{Key, Member, Seen};
use crate::world::{Event, World};

/// Jobs of one commit.
const BATCH: usize = 1_024;

/// What the disk is asked for.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// A local program's request.
    Accept(Box<Post>),
    /// A person has the row of this number sent anew, about which the broker said this.
    Requeue(u64, Lookup),
    Take(LaneId, usize),
    Settle(Box<Settlement>),
    Expire(u64),
    Keep {
        delivery: DeliveryId,
        recipient: Recipient,
        message: Box<Message>,
    },
}

/// A job, and which process of which seat waits for it.
#[derive(Clone, Debug)]
struct Asked {
    seat: usize,
    life: u32,
    job: Job,
}

/// A daemon, across its lives.
pub(crate) struct Daemon {
    pub(crate) host: u8,
    pub(crate) member: Member,
    pub(crate) seats: Vec<usize>,
    pub(crate) outbox: Ledger,
    inbox: BTreeSet<(Recipient, String)>,
    queue: VecDeque<Asked>,
    writing: Vec<Asked>,
    /// Which start this is.
    pub(crate) boot: u64,
    pub(crate) up: bool,
    /// Writes find no room until then.
    full_until: u64,
    /// How long a sync takes, at least and at most, and until when.
    slow_sync: (u64, u64, u64),
    sync_fails: bool,
    /// A sync has failed: nothing is written until the next start, which may find what met it.
    poisoned: bool,
    unknown: Vec<Asked>,
    pub(crate) local: Local,
    rng: Rng,
}

impl Daemon {
    pub(crate) fn new(index: usize, host: u8, member: Member, rng: Rng) -> Daemon {
        Daemon {
            host,
            member,
            seats: Vec::new(),
            outbox: Ledger::default(),
            inbox: BTreeSet::new(),
            queue: VecDeque::new(),
            writing: Vec::new(),
            boot: 0,
            up: false,
            full_until: 0,
            slow_sync: (0, 0, 0),
            sync_fails: false,
            poisoned: false,
            unknown: Vec::new(),
            local: Local::new(index, rng.fork(1)),
            rng: rng.fork(2),
        }
    }

    pub(crate) fn key(&self, id: &str) -> Key {
        Key { member: self.member, id: id.to_owned() }
    }

    /// The ids that a session has sent, as its outbox says.
    pub(crate) fn done_by(&self, sender: tenure_proto::ids::SessionKey) -> Vec<String> {
        let done = self.outbox.rows().filter(|(_, row)| row.status == Status::Done && row.sender == sender);
        done.map(|(_, row)| row.params.client_message_id.to_string()).collect()
    }

    /// Sends a row anew under an id of its own; gives the lane of the new row, and what is to be told of it.
    fn requeue(&mut self, number: u64, lookup: &Lookup, wall: u64) -> (Option<LaneId>, Option<Seen>) {
        let Some(row) = self.outbox.rows().find(|(id, _)| *id == number).map(|(_, row)| row.clone()) else {
            return (None, None);
        };
        let id = self.local.next_id();
        let Ok(client_message_id) = id.parse() else { return (None, None) };
        let old = self.key(row.params.client_message_id.as_str());
        let anew = SendParams { client_message_id, key: Some(id.clone()), ..row.params.clone() };
        let came = self.outbox.requeue(number, &anew, row.fingerprint, lookup, wall);
        match came {
            Requeued::Replaced { lane, .. } => (Some(lane), Some(Seen::Requeued { old, new: self.key(&id) })),
            _ => (None, None),
        }
    }

    /// What is under way, in words.
    pub(crate) fn under_way(&self) -> Option<String> {
        let rows = self.outbox.waiting();
        let jobs = self.queue.len() + self.writing.len();
        let posts = self.local.unanswered();
        (rows + jobs + posts > 0).then(|| format!("{rows} rows, {jobs} writes and {posts} posts of a daemon"))
    }

    /// Nothing is wrong with its disk any more.
    pub(crate) fn heal(&mut self) {
        (self.full_until, self.slow_sync, self.sync_fails) = (0, (0, 0, 0), false);
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned
    }
}

/// What a fault does to a daemon's disk.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DiskTrouble {
    Full,
    Slow,
    FailedSync,
}

impl World {
    /// A daemon starts, with all its sessions.
    pub(crate) fn start_daemon(&mut self, index: usize) {
        let Some(daemon) = self.daemons.get_mut(index) else { return };
        if daemon.up {
            return;
        }
        daemon.up = true;
        daemon.boot += 1;
        daemon.poisoned = false;
        let returned = daemon.outbox.restart();
        self.trace.line(self.t, format_args!("daemon {index} starts, {returned} rows were on their way"));
        for seat in self.daemons[index].seats.clone() {
            self.birth(seat);
        }
    }

    /// The desk of a session that begins.
    pub(crate) fn desk(&mut self, index: usize, seat: usize) -> Option<Desk> {
        let role = &self.seats.get(seat)?.role;
        let now = self.hosts[usize::from(role.host)].clock.now(self.t);
        let sender = self.names.session_key(role.slot)?;
        let daemon = self.daemons.get_mut(index)?;
        let found = daemon.outbox.found(sender);
        Some(Desk::new(daemon.rng.next(), now, found))
    }

    /// A daemon is killed: what was not synced is gone, and what was being written may be there.
    pub(crate) fn kill_daemon(&mut self, index: usize, rng: &mut Rng) -> bool {
        let Some(daemon) = self.daemons.get_mut(index).filter(|daemon| daemon.up) else { return false };
        daemon.up = false;
        daemon.queue.clear();
        let mut left = std::mem::take(&mut daemon.writing);
        if daemon.poisoned {
            left = std::mem::take(&mut daemon.unknown);
        }
        self.trace
            .line(self.t, format_args!("daemon {index} is killed while {} jobs are written", left.len()));
        for seat in self.daemons[index].seats.clone() {
            self.kill(seat);
        }
        if rng.chance(500) {
            self.apply(index, left, false);
        }
        let wait = rng.between(100, 20_000);
        self.at(self.t + wait, Event::DaemonStart { daemon: index });
        true
    }

    /// Something goes wrong with the disk of a daemon.
    pub(crate) fn trouble_daemon(&mut self, trouble: DiskTrouble, rng: &mut Rng) -> bool {
        let index = rng.below(self.daemons.len() as u64) as usize;
        let t = self.t;
        let Some(daemon) = self.daemons.get_mut(index).filter(|daemon| daemon.up) else { return false };
        match trouble {
            DiskTrouble::Full => daemon.full_until = t + rng.between(1_000, 30_000),
            DiskTrouble::Slow => {
                daemon.slow_sync = (50, rng.between(200, 4_000), t + rng.between(2_000, 30_000))
            }
            DiskTrouble::FailedSync => {
                daemon.sync_fails = true;
                // A person starts it again.
                let at = t + rng.between(1_000, 30_000);
                self.at(at, Event::DaemonKill { daemon: index, dice: rng.next() });
            }
        }
        true
    }

    /// The disk of a daemon is asked for something, for a session.
    pub(crate) fn ask_daemon(&mut self, index: usize, seat: usize, job: Job) {
        let life = self.seats.get(seat).and_then(|seat| seat.process.as_ref());
        let life = life.map_or(0, |process| process.life.number);
        self.ask_for_life(index, Asked { seat, life, job });
    }

    /// The disk of a daemon is asked for something, for a process that may be over.
    fn ask_for_life(&mut self, index: usize, asked: Asked) {
        let Some(daemon) = self.daemons.get_mut(index).filter(|daemon| daemon.up) else { return };
        daemon.queue.push_back(asked);
        self.write_daemon(index);
    }

    fn write_daemon(&mut self, index: usize) {
        let t = self.t;
        let Some(daemon) = self.daemons.get_mut(index) else { return };
        if !daemon.writing.is_empty() || daemon.queue.is_empty() {
            return;
        }
        let count = daemon.queue.len().min(BATCH);
        daemon.writing = daemon.queue.drain(..count).collect();
        let (low, high, until) = daemon.slow_sync;
        let wait = if until > t { daemon.rng.between(low, high) } else { daemon.rng.between(1, 4) };
        let boot = daemon.boot;
        self.at(t + wait, Event::DaemonWritten { daemon: index, boot });
    }

    /// What was being written is on the disk, or is not.
    pub(crate) fn daemon_written(&mut self, index: usize, boot: u64) {
        let t = self.t;
        let Some(daemon) = self.daemons.get_mut(index).filter(|daemon| daemon.up && daemon.boot == boot)
        else {
            return;
        };
        let batch = std::mem::take(&mut daemon.writing);
        let fault = if daemon.poisoned {
            Some(DiskFault::ForGood)
        } else if std::mem::take(&mut daemon.sync_fails) {
            daemon.poisoned = true;
            daemon.unknown = batch.clone();
            Some(DiskFault::ForGood)
        } else if daemon.full_until > t {
            Some(DiskFault::ForNow)
        } else {
            None
        };
        match fault {
            None => self.apply(index, batch, true),
            Some(fault) => batch.into_iter().for_each(|asked| self.refuse(index, asked, fault)),
        }
        self.write_daemon(index);
    }

    /// A transaction is on the disk; `told`: whoever asked is there to be told.
    fn apply(&mut self, index: usize, batch: Vec<Asked>, told: bool) {
        let Some(daemon) = self.daemons.get_mut(index) else { return };
        let wall = self.hosts[usize::from(daemon.host)].clock.now(self.t).wall;
        // First all is done, then everybody is told: nobody hears of half a commit.
        let mut tell: Vec<(Asked, Done)> = Vec::new();
        let mut facts = Vec::new();
        for asked in batch {
            let done = match &asked.job {
                Job::Accept(post) => {
                    let (answer, row) =
                        daemon.outbox.accept(post.sender, &post.params, post.fingerprint, wall);
                    Done::Accepted(answer, row.map(|(_, lane)| lane))
                }
                Job::Requeue(number, lookup) => {
                    let (lane, fact) = daemon.requeue(*number, lookup, wall);
                    facts.extend(fact);
                    Done::Requeued(lane)
                }
                Job::Take(lane, limit) => Done::Taken(*lane, daemon.outbox.take(*lane, *limit)),
                Job::Settle(settlement) => Done::Settled(settlement.lane, daemon.outbox.settle(settlement)),
                Job::Expire(cutoff) => {
                    let waiting = |row: &tenure_outbox::ledger::Row| row.status == Status::Pending;
                    let before: Vec<u64> =
                        daemon.outbox.rows().filter(|(_, row)| waiting(row)).map(|(id, _)| id).collect();
                    let count = daemon.outbox.expire(*cutoff);
                    let given_up =
                        daemon.outbox.rows().filter(|(id, row)| !waiting(row) && before.contains(id));
                    facts.extend(given_up.map(|(_, row)| Seen::GivenUp {
                        key: daemon.key(row.params.client_message_id.as_str()),
                        waited_ms: wall.saturating_sub(row.enqueued_at),
                        days: self.broker.config.dedupe_days,
                    }));
                    Done::Expired(count)
                }
                Job::Keep { delivery, recipient, message } => {
                    let new = daemon.inbox.insert((*recipient, message.id.to_string()));
                    if new {
                        facts.push(Seen::Kept {
                            recipient: recipient.to_string(),
                            id: message.id.to_string(),
                            body: message.body.clone().unwrap_or_default(),
                        });
                    }
                    Done::Kept(*delivery, new)
                }
            };
            tell.push((asked, done));
        }
        facts.iter().for_each(|seen| self.see(seen));
        for (asked, done) in tell.into_iter().filter(|_| told) {
            self.tell_desk(index, asked, done);
        }
    }

    fn tell_desk(&mut self, index: usize, asked: Asked, done: Done) {
        let Asked { seat, life, job } = asked;
        if let (Job::Accept(post), Done::Accepted(answer, lane)) = (&job, &done) {
            self.post_answered(index, post, Ok(answer));
            if let Some(lane) = *lane {
                self.with(seat, |process, now, world| process.queued(now, world, lane));
            }
            return;
        }
        if let Done::Requeued(lane) = done {
            if let Some(lane) = lane {
                self.with(seat, |process, now, world| process.queued(now, world, lane));
            }
            return;
        }
        let here = self.seats.get(seat).and_then(|seat| seat.process.as_ref());
        if here.is_none_or(|process| process.life.number != life) {
            // The last words of a session that is over: what it has taken is given back.
            let taken = match done {
                Done::Taken(lane, rows) => (lane, rows),
                Done::Settled(lane, settled) => (lane, settled.taken),
                _ => return,
            };
            let unsent = taken.1.iter().map(|row| row.id).collect::<Vec<_>>();
            if !unsent.is_empty() {
                let (lane, verdicts) = (taken.0, Vec::new());
                let settlement = Settlement { lane, verdicts, unsent, next_attempt_at: 0, take: 0 };
                self.ask_for_life(index, Asked { seat, life, job: Job::Settle(Box::new(settlement)) });
            }
            return;
        }
        self.with(seat, |process, now, world| match done {
            Done::Taken(lane, rows) => process.taken(now, world, lane, Ok(rows)),
            Done::Settled(lane, settled) => process.settled(now, world, lane, Ok(settled)),
            Done::Expired(rows) => process.expired(now, world, Ok(rows)),
            Done::Kept(delivery, new) => process.kept(now, world, delivery, Ok(new)),
            Done::Accepted(..) | Done::Requeued(_) => Vec::new(),
        });
    }

    fn refuse(&mut self, index: usize, asked: Asked, fault: DiskFault) {
        let Asked { seat, life, job } = asked;
        if let Job::Accept(post) = &job {
            return self.post_answered(index, post, Err(fault));
        }
        let here = self.seats.get(seat).and_then(|seat| seat.process.as_ref());
        if here.is_none_or(|process| process.life.number != life) {
            // Last words are said until the disk has heard them.
            if let (Job::Settle(_), DiskFault::ForNow) = (&job, fault)
                && let Some(daemon) = self.daemons.get_mut(index)
            {
                daemon.queue.push_back(Asked { seat, life, job });
            }
            return;
        }
        self.with(seat, |process, now, world| match job {
            Job::Take(lane, _) => process.taken(now, world, lane, Err(fault)),
            Job::Settle(settlement) => process.settled(now, world, settlement.lane, Err(fault)),
            Job::Expire(_) => process.expired(now, world, Err(fault)),
            Job::Keep { delivery, .. } => process.kept(now, world, delivery, Err(fault)),
            Job::Accept(_) | Job::Requeue(..) => Vec::new(),
        });
    }

    /// The last look: what is in the files.
    pub(crate) fn look_at_daemons(&mut self) {
        let mut facts = Vec::new();
        for daemon in &self.daemons {
            let rows = daemon.outbox.rows().map(|(_, row)| {
                let key = daemon.key(row.params.client_message_id.as_str());
                (key, row.status.as_str().to_owned(), row.last_error.clone())
            });
            facts.push(Seen::Outbox(daemon.member, rows.collect()));
            let kept = daemon.inbox.iter().map(|(recipient, id)| (recipient.to_string(), id.clone()));
            facts.push(Seen::Inbox(daemon.member, kept.collect()));
        }
        facts.iter().for_each(|seen| self.see(seen));
    }
}

/// What a job came to.
enum Done {
    Accepted(Answer, Option<LaneId>),
    Requeued(Option<LaneId>),
    Taken(LaneId, Vec<Outgoing>),
    Settled(LaneId, tenure_outbox::Settled),
    Expired(u64),
    Kept(DeliveryId, bool),
}
