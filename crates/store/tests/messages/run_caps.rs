//! Runs of those whose caps are narrowed while they are under way: they may do nothing more about them, and nobody waits
//! for that in vain.

use tenure_mesh::access::admin::{Act, OperateId, Operation};
use tenure_mesh::conn::admit::{Admission, Voucher};
use tenure_mesh::input::{Call, Input};
use tenure_proto::Cap;
use tenure_proto::error::ErrorCode;
use tenure_proto::run::{RunIdParams, RunState};

use super::runs::{called, chunk, ending, from, on_both, ring};
use super::words::*;
use super::world::{Disk, World};

fn caps(names: &[&str]) -> Option<Vec<Cap>> {
    Some(names.iter().map(|name| name.parse().unwrap()).collect())
}

impl World {
    pub(crate) fn operate(&mut self, act: Act) {
        let (who, from) = ("operator".to_owned(), "127.0.0.1".to_owned());
        let operation = Box::new(Operation { who, from, act });
        self.tell(Input::Operate { id: OperateId(1), operation });
    }

    /// The member of session `n` may do this, and nothing else.
    fn narrow(&mut self, n: u8, names: &[&str]) {
        let (role, name) = (None, None);
        self.operate(Act::PutMember { member: member(n), role, caps: Some(caps(names)), name });
    }

    /// A mesh with members: its owner, and those of sessions 2 and 11.
    fn found(&mut self) {
        self.operate(Act::Found(member(99)));
        for n in [2, 11] {
            self.narrow(n, &["send", "read", "run"]);
        }
    }
}

#[test]
fn a_callee_that_may_not_answer_any_more_fails_its_runs() {
    on_both(|mut w| {
        w.found();
        let (a, b, run) = called(&mut w);
        w.done(b, chunk(run, 1, "x"));
        assert_eq!(w.told(a), ["1 x"]);
        w.narrow(2, &["send", "read"]);
        assert_eq!(w.told(a), ["end 2 error unavailable"], "nobody else could end it");
        for call in [chunk(run, 2, "y"), ending(run, 2)] {
            assert_eq!(code(&w.call(b, call)), ErrorCode::Forbidden);
        }
        assert_eq!(w.reasons(b, &inbox(2)), ["forbidden"]);
        w.restart();
        let a = w.join(11);
        assert_eq!(w.run(a, run).state, RunState::Error);
    });
}

#[test]
fn a_caller_that_may_not_run_any_more_hears_that_it_may_not() {
    on_both(|mut w| {
        w.found();
        let (a, b, run) = called(&mut w);
        w.narrow(11, &["send", "read"]);
        assert!(!w.socket(a).open, "its stream breaks off, so that it asks for the run again");
        w.done(b, chunk(run, 1, "x"));
        let a = w.resume(11, a);
        assert_eq!(code(&w.try_start(a, from(ring(to(2), "k"), 1))), ErrorCode::Forbidden);
        assert_eq!(code(&w.try_start(a, ring(to(2), "other"))), ErrorCode::Forbidden);
        for call in [Call::RunGet(RunIdParams { run_id: run }), Call::RunCancel(RunIdParams { run_id: run })]
        {
            assert_eq!(code(&w.call(a, call)), ErrorCode::Forbidden);
        }
        w.done(b, ending(run, 2));
        assert_eq!(w.told(a), Vec::<String>::new(), "nor is it told anything");
        w.narrow(11, &["send", "read", "run"]);
        assert_eq!(w.start_run(a, from(ring(to(2), "k"), 1)).run_id, run);
        assert_eq!(w.told(a), ["1 x", "end 2 ok"], "what it had started is still there");
    });
}

#[test]
fn a_run_that_the_disk_accepts_after_the_cap_is_gone_is_refused() {
    let mut w = world();
    w.found();
    let (a, _b) = (w.join(11), w.join(2));
    w.set_disk(Disk::Holds);
    let call = w.starting(ring(to(2), "k")).unwrap();
    let request = w.ask(a, call);
    w.narrow(11, &["send", "read"]);
    w.set_disk(Disk::Commits);
    w.commit(usize::MAX);
    assert_eq!(code(&w.answered(a, &request).unwrap()), ErrorCode::Forbidden);
}

#[test]
fn who_comes_back_attested_for_less_has_no_runs_any_more() {
    let less = |admission| Admission { voucher: Voucher::Attested(caps(&["send", "read"])), ..admission };
    on_both(|mut w| {
        let (a, b, _) = called(&mut w);
        w.drop_socket(b);
        let admission = less(w.resuming(2, b));
        let b = w.dial(admission);
        w.hello(b);
        assert_eq!(w.told(a), ["end 1 error unavailable"]);
    });
    on_both(|mut w| {
        let (a, b, run) = called(&mut w);
        w.drop_socket(a);
        let admission = less(w.resuming(11, a));
        let a = w.dial(admission);
        w.hello(a);
        w.done(b, ending(run, 1));
        assert_eq!(w.told(a), Vec::<String>::new());
        assert!(!w.socket(a).open, "it is to ask again, and be refused");
    });
}

#[test]
fn a_run_for_who_may_not_answer_fails_at_once() {
    on_both(|mut w| {
        w.found();
        w.narrow(2, &["send", "read"]);
        let (a, b) = (w.join(11), w.join(2));
        let run = w.start_run(a, ring(to(2), "k")).run_id;
        assert_eq!(w.told(a), ["end 1 error unavailable"]);
        assert_eq!(code(&w.call(b, ending(run, 1))), ErrorCode::Forbidden);
        assert_eq!(w.reasons(b, &inbox(2)), ["forbidden"]);
    });
}
