//! All runs of a mesh that live, or whose end may still have to be told; and the indexes on them.
//!
//! Where they meet the rest: the caller's side is `calling.rs`, the callee's `serving.rs`. What has ended long ago is
//! the store's to tell.

pub(crate) mod callee;
pub(crate) mod caller;
pub mod record;
pub mod run;
pub mod start;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use tenure_kit::census::Count;
use tenure_kit::deadline::Deadlines;
use tenure_kit::time::Millis;
use tenure_proto::ids::{MemberKey, RunId, SessionKey};
use tenure_proto::limits::{RUN_RING_BYTES, RUN_RINGS_BYTES, RUN_WATCHERS, RUNS_PER_MESH};
use tenure_proto::log::LogName;

use crate::Mesh;
use crate::runs::run::{Feed, Run};
use crate::store::record::GroupId;

/// How long an ended run stays in memory for callers that come again; then the store tells of it.
pub(crate) const LINGER_MS: u64 = 60_000;

/// Chunks that rings have let go which the order of all may still name, besides as many as there are.
const CHUNKS_SLACK: usize = 1_024;

/// The runs of a mesh.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// Those that have not ended are bounded by [`RUNS_PER_MESH`], the others too.
    runs: BTreeMap<RunId, Run>,
    /// What each member has called that has not ended.
    callers: BTreeMap<MemberKey, BTreeSet<RunId>>,
    /// Where the messages of those are.
    places: BTreeMap<(LogName, u64), RunId>,
    /// Who answers which of those.
    serving: BTreeMap<SessionKey, BTreeSet<RunId>>,
    /// Who is streamed which.
    watching: BTreeMap<SessionKey, BTreeSet<RunId>>,
    /// What a session may be fed, in turns.
    hungry: BTreeMap<SessionKey, VecDeque<RunId>>,
    /// When a run must have ended, when the store is asked again, when it is forgotten here.
    due: Deadlines<RunId>,
    /// Runs that were taken and of which the store does not know.
    claims: Vec<RunId>,
    /// Runs whose end the store is to be told.
    ends: Vec<RunId>,
    /// How many of each member the store is about to accept, and of all.
    starting: BTreeMap<MemberKey, usize>,
    all_starting: usize,
    /// Sessions that a run was to be told to which was forgotten: what their streams lack they ask for.
    bereft: Vec<SessionKey>,
    /// Bytes of all rings, and their chunks in the order they came; those that their rings let go may still be there.
    ring_bytes: usize,
    /// Bytes of the results of those that have ended.
    result_bytes: usize,
    chunks: usize,
    oldest: VecDeque<(RunId, u64)>,
}

impl Runs {
    /// When a run is to be looked at next.
    pub(crate) fn next_deadline(&self) -> Option<Millis> {
        self.due.next()
    }

    pub(crate) fn get(&self, id: &RunId) -> Option<&Run> {
        self.runs.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: &RunId) -> Option<&mut Run> {
        self.runs.get_mut(id)
    }

    /// Those that a start took up, with how long they have left at this time of the wall clock.
    pub(crate) fn left_at(&self, wall: u64) -> Vec<(RunId, u64)> {
        let living = self.runs.iter().filter(|(_, run)| run.is_living());
        living.filter_map(|(id, run)| Some((*id, run.span?.left_ms(wall)))).collect()
    }

    /// Runs that have not ended, and that are about to begin.
    pub(crate) fn living(&self) -> usize {
        self.places.len() + self.all_starting
    }

    /// Those of a member.
    pub(crate) fn living_of(&self, member: &MemberKey) -> usize {
        let starting = self.starting.get(member).copied().unwrap_or_default();
        self.callers.get(member).map_or(0, BTreeSet::len) + starting
    }

    /// Runs that have not ended, after `after`, that `member` called or `session` answers: at most `limit`, in the order
    /// of their ids, and whether there are more. Costs what it gives, however many there are.
    pub(crate) fn under_way(
        &self,
        member: &MemberKey,
        session: &SessionKey,
        after: Option<RunId>,
        limit: usize,
    ) -> (Vec<RunId>, bool) {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let sets = [self.callers.get(member), self.serving.get(session)].into_iter().flatten();
        let firsts = sets.flat_map(|ids| ids.range(range).take(limit + 1));
        let found: BTreeSet<RunId> = firsts.copied().collect();
        let more = found.len() > limit;
        (found.into_iter().take(limit).collect(), more)
    }

    /// The store is asked to accept a run of this member.
    pub(crate) fn starts(&mut self, member: MemberKey) {
        *self.starting.entry(member).or_default() += 1;
        self.all_starting += 1;
    }

    /// It has answered.
    pub(crate) fn started(&mut self, member: &MemberKey) {
        one_less(&mut self.starting, member);
        self.all_starting = self.all_starting.saturating_sub(1);
    }

    /// Takes up a run that has not ended.
    pub(crate) fn insert(&mut self, id: RunId, run: Run, due: Millis) {
        self.callers.entry(run.caller).or_default().insert(id);
        self.places.insert((run.log.clone(), run.seq), id);
        if let Some(callee) = run.callee {
            self.serving.entry(callee).or_default().insert(id);
        }
        self.due.set(id, due);
        self.runs.insert(id, run);
    }

    /// Takes up one that has ended, to be told to who asks for it. Others make room for it.
    pub(crate) fn insert_ended(&mut self, id: RunId, run: Run, due: Millis) {
        self.make_room(1, run.result_bytes());
        self.due.set(id, due);
        self.result_bytes += run.result_bytes();
        self.runs.insert(id, run);
    }

    /// A run's end is on disk: it is none that lives any more. It is kept a while, unless too many are.
    pub(crate) fn ended(&mut self, id: RunId, due: Millis) {
        let Some(run) = self.runs.get(&id) else { return };
        let (caller, callee, place) = (run.caller, run.callee, (run.log.clone(), run.seq));
        self.places.remove(&place);
        remove(&mut self.callers, &caller, &id);
        if let Some(callee) = callee {
            remove(&mut self.serving, &callee, &id);
        }
        self.due.set(id, due);
        let watchers: Vec<SessionKey> = run.watchers().copied().collect();
        for session in watchers {
            self.starve(session, id);
        }
        self.result_bytes += self.runs.get(&id).map_or(0, Run::result_bytes);
        self.make_room(0, 0);
    }

    /// Forgets ended runs while there are too many, or their results too large, for `more` of them with so many `bytes`:
    /// the store tells of them.
    fn make_room(&mut self, more: usize, bytes: usize) {
        while (self.runs.len() - self.places.len() + more > RUNS_PER_MESH
            || self.result_bytes + bytes > RUN_RINGS_BYTES)
            && self.forget_oldest()
        {}
    }

    /// Forgets the oldest that has ended; one that is still to be told only if there is no other.
    fn forget_oldest(&mut self) -> bool {
        let ended = || self.runs.iter().filter(|(_, run)| run.has_ended());
        let told = ended().find(|(_, run)| run.watched() == 0);
        let Some((id, run)) = told.or_else(|| ended().next()) else { return false };
        let (id, bereft) = (*id, run.watchers().copied().collect::<Vec<_>>());
        self.bereft.extend(bereft);
        self.forget(id);
        true
    }

    /// Forgets an ended run here.
    pub(crate) fn forget(&mut self, id: RunId) {
        self.change(id, |run| run.drop_through(u64::MAX));
        self.forget_order();
        let Some(run) = self.runs.remove(&id) else { return };
        self.result_bytes -= run.result_bytes();
        self.due.clear(&id);
        for session in run.watchers() {
            remove(&mut self.watching, session, &id);
        }
    }

    /// The run whose message is there, if it has not ended.
    pub(crate) fn at(&self, log: &LogName, seq: u64) -> Option<RunId> {
        self.places.get(&(log.clone(), seq)).copied()
    }

    /// Somebody has a run's message in hand: if nobody has had it, it answers.
    pub(crate) fn claim(&mut self, id: RunId, session: SessionKey) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.callee.is_none() && run.is_living()) else {
            return;
        };
        run.callee = Some(session);
        self.serving.entry(session).or_default().insert(id);
        self.claims.push(id);
    }

    /// The runs that a session answers.
    pub(crate) fn served_by(&self, session: &SessionKey) -> Vec<RunId> {
        self.serving.get(session).into_iter().flatten().copied().collect()
    }

    /// Adds a chunk to its run. When all rings together are full, the oldest chunk of all goes.
    pub(crate) fn keep(&mut self, id: RunId, seq: u64, data: serde_json::Value) {
        self.change(id, |run| run.keep(seq, data));
        self.oldest.push_back((id, seq));
        while self.ring_bytes > RUN_RINGS_BYTES
            && let Some((id, seq)) = self.oldest.pop_front()
        {
            self.change(id, |run| run.drop_through(seq));
        }
        self.forget_order();
        let watchers = self.runs.get(&id).map(|run| run.watchers().copied().collect::<Vec<_>>());
        for session in watchers.unwrap_or_default() {
            self.starve(session, id);
        }
    }

    /// Forgets the order of chunks that are gone, when they are many.
    fn forget_order(&mut self) {
        if self.oldest.len() > 2 * self.chunks + CHUNKS_SLACK {
            let runs = &self.runs;
            let kept = |(id, seq): &(RunId, u64)| {
                runs.get(id).and_then(Run::oldest).is_some_and(|oldest| oldest <= *seq)
            };
            self.oldest.retain(kept);
        }
    }

    /// Changes a run's ring, and the sums with it.
    fn change(&mut self, id: RunId, change: impl FnOnce(&mut Run)) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        let (bytes, chunks) = (run.ring_bytes(), run.chunks());
        change(run);
        self.ring_bytes = self.ring_bytes - bytes + run.ring_bytes();
        self.chunks = self.chunks - chunks + run.chunks();
    }

    /// Streams a run to a session. `false`: to as many as may be.
    pub(crate) fn watch(&mut self, id: RunId, session: SessionKey, from: Option<u64>) -> bool {
        let Some(run) = self.runs.get_mut(&id) else { return false };
        if !run.watch(session, from) {
            return false;
        }
        self.watching.entry(session).or_default().insert(id);
        self.starve(session, id);
        true
    }

    /// A session is streamed nothing any more.
    pub(crate) fn unwatch(&mut self, session: &SessionKey) {
        self.hungry.remove(session);
        for id in self.watching.remove(session).unwrap_or_default() {
            if let Some(run) = self.runs.get_mut(&id) {
                run.unwatch(session);
            }
        }
    }

    /// Whether a session is streamed any.
    pub(crate) fn is_watching(&self, session: &SessionKey) -> bool {
        self.watching.contains_key(session)
    }

    /// Lets a run's turn come for a session, if it has something.
    fn starve(&mut self, session: SessionKey, id: RunId) {
        if self.runs.get(&id).is_some_and(|run| run.has_for(&session)) {
            let turns = self.hungry.entry(session).or_default();
            if !turns.contains(&id) {
                turns.push_back(id);
            }
        }
    }

    /// Whether there is something to feed to a session.
    pub(crate) fn has_for(&self, session: &SessionKey) -> bool {
        self.hungry.contains_key(session)
    }

    /// The next event of the runs that a session watches; they take turns.
    pub(crate) fn feed(&mut self, session: &SessionKey) -> Option<Feed> {
        loop {
            let id = self.hungry.get_mut(session)?.pop_front();
            let Some(id) = id else {
                self.hungry.remove(session);
                return None;
            };
            let Some(run) = self.runs.get_mut(&id) else { continue };
            let feed = run.feed(session);
            if !run.watchers().any(|watcher| watcher == session) {
                remove(&mut self.watching, session, &id);
            }
            if run.has_for(session)
                && let Some(turns) = self.hungry.get_mut(session)
            {
                turns.push_back(id);
            }
            if self.hungry.get(session).is_some_and(VecDeque::is_empty) {
                self.hungry.remove(session);
            }
            if feed.is_some() {
                return feed;
            }
        }
    }

    /// How full everything is.
    pub(crate) fn count(&self, counts: &mut Vec<Count>) {
        let count = |what, size, bound| Count { what, size, bound };
        let ended = self.runs.len() - self.places.len();
        // What a member has is bounded where it is started; what a start finds may be more.
        counts.extend([
            count("runs", self.places.len(), RUNS_PER_MESH),
            count("ended runs that are kept", ended, RUNS_PER_MESH),
            count("bytes of the results of ended runs", self.result_bytes, RUN_RINGS_BYTES),
            count("deadlines of runs", self.due.len(), self.runs.len()),
            count("bytes of the rings of runs", self.ring_bytes, RUN_RINGS_BYTES),
            count("chunks of runs in their order", self.oldest.len(), 2 * self.chunks + CHUNKS_SLACK),
            count(
                "runs that are answered",
                self.serving.values().map(BTreeSet::len).sum(),
                self.places.len(),
            ),
            Count::fullest(
                "sessions that a run streams to",
                self.runs.values().map(|run| (run.watched(), RUN_WATCHERS)),
            ),
            Count::fullest(
                "bytes of the ring of a run",
                self.runs
                    .values()
                    .filter(|run| run.chunks() > 1)
                    .map(|run| (run.ring_bytes(), RUN_RING_BYTES)),
            ),
        ]);
    }
}

fn one_less(counts: &mut BTreeMap<MemberKey, usize>, member: &MemberKey) {
    if let Some(count) = counts.get_mut(member) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(member);
        }
    }
}

fn remove<K: Ord>(index: &mut BTreeMap<K, BTreeSet<RunId>>, key: &K, id: &RunId) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

impl Mesh {
    /// The run whose message this is, if it has not ended.
    pub(crate) fn run_at(&self, id: GroupId, seq: u64) -> Option<RunId> {
        self.runs.at(self.messages.log_of(id)?, seq)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tenure_proto::error::{ErrorCode, WireError};
    use tenure_proto::run::RunState;

    use super::*;

    fn ended(runs: &mut Runs, n: u128, error: Option<WireError>) {
        let id = RunId(n);
        let mut run = Run::new(id, MemberKey([1; 32]), LogName::Session(SessionKey([2; 32])), n as u64, 0);
        run.decide(RunState::Error, None, error, 0, None);
        run.end();
        runs.insert_ended(id, run, Millis(0));
    }

    #[test]
    fn ended_runs_are_bounded_and_whoever_was_not_told_is_known() {
        let mut runs = Runs::default();
        let [away, other] = [3, 4].map(|n| SessionKey([n; 32]));
        for n in 0..RUNS_PER_MESH as u128 {
            ended(&mut runs, n, None);
            assert!(runs.watch(RunId(n), if n == 0 { away } else { other }, None));
        }
        assert_eq!(runs.bereft, []);
        ended(&mut runs, RUNS_PER_MESH as u128, None);
        assert_eq!(runs.bereft, [away], "there was no other to forget");
        assert!(runs.get(&RunId(0)).is_none() && runs.runs.len() == RUNS_PER_MESH);
        ended(&mut runs, RUNS_PER_MESH as u128 + 1, None);
        assert_eq!(runs.bereft, [away], "one that nobody waits for goes first");
        ended(&mut runs, 0, None);
        assert!(runs.get(&RunId(0)).is_some(), "however old, whoever is asked for is kept");
    }

    #[test]
    fn an_error_weighs_what_it_holds() {
        let mut runs = Runs::default();
        let details = json!(vec![0; 1_000]);
        ended(&mut runs, 1, Some(WireError::new(ErrorCode::Internal, "x".repeat(500)).with_details(details)));
        assert!(runs.result_bytes > 32_000 + 500, "{}", runs.result_bytes);
        runs.forget(RunId(1));
        assert_eq!(runs.result_bytes, 0);
    }
}
