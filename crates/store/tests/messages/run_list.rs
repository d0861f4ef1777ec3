//! Which runs are under way, for those who called them and those who answer.

use tenure_mesh::effect::Answer;
use tenure_mesh::input::Call;
use tenure_proto::error::ErrorCode;
use tenure_proto::ids::{ConnId, RunId};
use tenure_proto::limits::SNAPSHOT_RUNS;
use tenure_proto::run::{RunState, RunsListParams, RunsListResult};

use super::runs::{chunk, ending, on_both, ring};
use super::words::*;
use super::world::{WALL, World};

impl World {
    fn list_runs(&mut self, conn: ConnId, after: Option<RunId>, limit: Option<u64>) -> RunsListResult {
        let params = RunsListParams { after, limit: limit.and_then(ms) };
        match self.call(conn, Call::RunsList(params)) {
            Ok(Answer::RunsList(result)) => *result,
            other => panic!("{other:?}"),
        }
    }

    fn listed(&mut self, conn: ConnId) -> Vec<RunId> {
        self.list_runs(conn, None, None).runs.iter().map(|run| run.run_id).collect()
    }

    fn in_snapshot(&self, conn: ConnId) -> Vec<RunId> {
        let snapshot = self.hello(conn).snapshot.as_ref().expect("a snapshot");
        snapshot.runs.iter().map(|run| run.run_id).collect()
    }
}

#[test]
fn runs_under_way_are_shown_to_who_called_and_to_who_answers() {
    on_both(|mut w| {
        let (a, b, stranger) = (w.join(11), w.join(2), w.join(21));
        let first = w.start_run(a, ring(to(2), "first")).run_id;
        w.handed(b);
        w.done(b, chunk(first, 1, "x"));
        w.drop_socket(b);
        let second = w.start_run(a, ring(to(2), "second")).run_id;
        let runs = w.list_runs(a, None, None).runs;
        let told: Vec<_> =
            runs.iter().map(|run| (run.run_id, run.state, run.callee, run.last_seq.get())).collect();
        let expected = [(first, RunState::Running, Some(session(2)), 1), (second, RunState::Queued, None, 0)];
        assert_eq!(told, expected);
        assert_eq!((&runs[0].to, runs[0].caller), (&to(2), member(11)));
        assert_eq!(runs[0].started_at.get(), WALL);
        assert_eq!(runs[0].deadline.map(|at| at.get()), Some(WALL + 600_000));
        assert_eq!(w.listed(stranger), []);
        // A new process of the caller, and of the callee, sees them at once.
        let another = w.join(12);
        assert_eq!(w.in_snapshot(another), [first, second], "runs are the member's");
        let b = w.join(2);
        assert_eq!(w.in_snapshot(b), [first], "what nobody has taken yet is a message in its inbox");
        w.restart();
        let (a, b) = (w.join(11), w.join(2));
        assert_eq!((w.in_snapshot(a), w.listed(a)), (vec![first, second], vec![first, second]));
        w.done(b, ending(first, 2));
        assert_eq!(w.listed(a), [second], "what has ended is not under way");
        assert_eq!(w.listed(b), [second], "it was handed to it");
    });
}

#[test]
fn a_list_comes_in_pages_and_a_snapshot_says_that_there_is_more() {
    on_both(|mut w| {
        let (a, _) = (w.join(11), w.join(2));
        let all: Vec<RunId> =
            (0..SNAPSHOT_RUNS + 3).map(|n| w.start_run(a, ring(to(2), &format!("k{n}"))).run_id).collect();
        let first = w.list_runs(a, None, Some(100));
        assert_eq!((first.runs.len(), first.next), (100, Some(all[99])));
        let rest = w.list_runs(a, first.next, Some(100));
        assert_eq!((rest.runs.len(), rest.next), (3, None));
        let exact = w.list_runs(a, Some(all[99]), Some(3));
        assert_eq!((exact.runs.len(), exact.next), (3, None), "no page follows that would be empty");
        let another = w.join(12);
        assert_eq!(w.in_snapshot(another).len(), SNAPSHOT_RUNS);
        assert!(w.hello(another).snapshot.as_ref().unwrap().more_runs);
        for limit in [0, 257] {
            let params = RunsListParams { after: None, limit: ms(limit) };
            assert_eq!(code(&w.call(a, Call::RunsList(params))), ErrorCode::BadRequest);
        }
    });
}
