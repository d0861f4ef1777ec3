//! The store as the broker's own keeps leases, with a disk that can hold writes back or fail them.

use crate::input::{LeaseRecord, Restored};
use std::collections::{BTreeMap, VecDeque};
use tenure_proto::ids::SessionKey;

use tenure_proto::name::ServiceName;

use crate::access::AccessWrite;
use crate::effect::WriteId;
use crate::sessions::lease::unattended_ms;
use crate::store::record::{ServiceRecord, StoreWrite};
use crate::*;

/// What happens to writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Disk {
    #[default]
    Commits,
    Holds,
    Fails,
}

/// The store, as the broker's own keeps leases: see its `touched_run` and `spent_ms`.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) disk: Disk,
    /// By session: the lease, and the last run in which it was attached.
    pub(crate) leases: BTreeMap<SessionKey, (LeaseRecord, u64)>,
    pub(crate) services: BTreeMap<ServiceName, ServiceRecord>,
    /// Writes about services that reached the disk.
    pub(crate) service_writes: usize,
    /// Beginnings (`true`) and ends of leases, in the order of their commits.
    pub(crate) log: Vec<(SessionKey, bool)>,
    /// Who ended, what it was called, and why.
    pub(crate) ends: Vec<(SessionKey, String, String)>,
    /// Changes of access, in the order of their commits.
    pub(crate) access: Vec<AccessWrite>,
    open: VecDeque<(WriteId, StoreWrite)>,
    last: u64,
    /// How long the broker was awake in each run that has ended.
    uptimes: Vec<u64>,
}

impl Store {
    /// Which start of the broker this is.
    pub(crate) fn run(&self) -> u64 {
        self.uptimes.len() as u64 + 1
    }

    /// The services that a start finds.
    pub(crate) fn services(&self) -> Vec<ServiceRecord> {
        self.services.values().cloned().collect()
    }

    /// A write begins to wait for the disk.
    pub(crate) fn push(&mut self, id: WriteId, write: StoreWrite) {
        self.last += 1;
        assert_eq!(id, WriteId(self.last), "writes are numbered by ones");
        self.open.push_back((id, write));
    }

    /// Whether no write waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// The first `count` writes that wait reach the disk; the last of them.
    pub(crate) fn land(&mut self, count: usize) -> Option<WriteId> {
        let mut through = None;
        for _ in 0..count {
            let Some((id, write)) = self.open.pop_front() else { break };
            self.apply(write);
            through = Some(id);
        }
        through
    }

    /// What the broker hears of the writes that wait, as the disk is now.
    pub(crate) fn answer(&mut self) -> Option<Input> {
        let through = self.open.back()?.0;
        match self.disk {
            Disk::Holds => return None,
            Disk::Fails => {
                self.open.clear();
                return Some(Input::Failed { through });
            }
            Disk::Commits => {}
        }
        self.land(usize::MAX).map(|through| Input::Committed { through, outcomes: Vec::new() })
    }

    /// A run ends after the broker was awake for `uptime_ms`; what waited is lost. What the next start finds:
    /// for each lease the uptimes of the runs since it was attached, that one left out.
    pub(crate) fn next_run(&mut self, uptime_ms: u64) -> Vec<Restored> {
        self.open.clear();
        self.last = 0;
        self.uptimes.push(uptime_ms);
        let counted = self.uptimes.iter().map(|uptime_ms| unattended_ms(*uptime_ms));
        let spent = |touched: u64| counted.clone().skip(touched as usize).sum();
        let found = self.leases.values();
        found.map(|(record, run)| Restored { record: record.clone(), spent_ms: spent(*run) }).collect()
    }

    fn apply(&mut self, write: StoreWrite) {
        let run = self.run();
        match write {
            StoreWrite::PutLease(record) => {
                let (session, lease) = (record.session, record.lease.clone());
                let old = self.leases.insert(session, (*record, run));
                if old.is_none_or(|(old, _)| old.lease != lease) {
                    self.log.push((session, true));
                }
            }
            StoreWrite::TouchLease(session, lease) => {
                if let Some((_, touched)) = self.leases.get_mut(&session).filter(|(r, _)| r.lease == lease) {
                    *touched = run;
                }
            }
            StoreWrite::EndLease(end)
                if self.leases.get(&end.session).is_some_and(|(record, _)| record.lease == end.lease) =>
            {
                let session = end.session;
                self.leases.remove(&session);
                self.services.retain(|_, record| record.session != session);
                self.log.push((session, false));
                self.ends.push((session, end.name, end.why));
            }
            StoreWrite::PutServices(records) => {
                self.service_writes += 1;
                for record in records {
                    self.services.insert(record.name.clone(), record);
                }
            }
            StoreWrite::DropServices(session, names) => {
                self.service_writes += 1;
                self.services.retain(|name, record| record.session != session || !names.contains(name));
            }
            StoreWrite::Access(write) => self.access.push(*write),
            // This store keeps leases; messages are tested on a real one.
            _ => {}
        }
    }
}
