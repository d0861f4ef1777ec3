//! The table of the contract, row by row, under each policy, resumed or not; and what holds for any two lists.

use proptest::prelude::*;
use proptest::sample::select;
use tenure_proto::number::U53;

use super::*;
use crate::messages::reconcile_plan::ReconcileAction::{
    CloseClientSide, CloseServerSide, Keep, RecreateClientSide,
};
use crate::messages::reconcile_plan::ReconcilePolicy::{Conservative, RestoreClient};

fn sub(name: &str) -> SubId {
    name.parse().unwrap()
}

/// `name` for `topic`, of no group, all partitions, with the usual settings.
fn view(name: &str, topic: &str) -> SubView {
    SubView {
        sub: sub(name),
        topic: topic.parse().unwrap(),
        group: None,
        partition: None,
        ack_mode: AckMode::Manual,
        prefetch: 32,
        restored: false,
    }
}

fn shared(name: &str, topic: &str, group: &str) -> SubView {
    SubView { group: Some(group.parse().unwrap()), ..view(name, topic) }
}

fn listed(view: &SubView) -> ClientSubscription {
    ClientSubscription {
        sub_id: view.sub.clone(),
        topic: view.topic.clone(),
        group: view.group.clone(),
        partition: view.partition,
        ack_mode: view.ack_mode,
        prefetch: view.prefetch,
        positions: BTreeMap::new(),
    }
}

fn run(policy: ReconcilePolicy, client: &[SubView], server: &[SubView], resumed: bool) -> Plan {
    let subscriptions = client.iter().map(listed).collect();
    plan(&ReconcileParams { policy, subscriptions, inflight: Vec::new() }, server, resumed)
}

/// Made up names are `r1`, `r2` and so on.
fn plan(params: &ReconcileParams, server: &[SubView], resumed: bool) -> Plan {
    let mut made = 0;
    let mut fresh = || {
        made += 1;
        format!("r{made}").parse().ok()
    };
    reconcile(params, server, resumed, &mut fresh)
}

/// A verdict in short: action, name from here on, the client's, the server's, why.
type Row<'a> = (ReconcileAction, &'a str, &'a str, &'a str, &'a str);

fn rows(plan: &Plan) -> Vec<Row<'_>> {
    plan.verdicts
        .iter()
        .map(|v| {
            let client = v.client.as_ref().map_or("-", SubId::as_str);
            let server = v.server.as_ref().map_or("-", SubId::as_str);
            (v.action, v.sub_id.as_str(), client, server, v.reason.as_str())
        })
        .collect()
}

/// Every policy, resumed or not.
const CASES: [(ReconcilePolicy, bool); 4] =
    [(Conservative, true), (Conservative, false), (RestoreClient, true), (RestoreClient, false)];

#[test]
fn the_same_on_both_sides_is_kept() {
    for (policy, resumed) in CASES {
        let both = [view("s1", "a"), shared("s2", "a", "crew")];
        let plan = run(policy, &both, &both, resumed);
        assert_eq!(rows(&plan), [(Keep, "s1", "s1", "s1", "same"), (Keep, "s2", "s2", "s2", "same")]);
        assert!(plan.drop.is_empty() && plan.restore.is_empty());
    }
}

/// A verdict alone did not tell what the two sides had believed.
#[test]
fn a_verdict_carries_what_either_side_believed() {
    let (mine, theirs) = (view("s1", "a"), SubView { prefetch: 7, ..view("s9", "a") });
    let unlisted = shared("s3", "b", "crew");
    let plan = run(Conservative, std::slice::from_ref(&mine), &[theirs.clone(), unlisted.clone()], true);
    let views: Vec<_> =
        plan.verdicts.iter().map(|v| (v.client_view.as_deref(), v.server_view.as_deref())).collect();
    assert_eq!(views, [(Some(&mine.shown()), Some(&theirs.shown())), (None, Some(&unlisted.shown()))]);
    for (policy, resumed) in CASES {
        let plan = run(policy, std::slice::from_ref(&mine), &[], resumed);
        let verdict = &plan.verdicts[0];
        assert_eq!((verdict.client_view.as_deref(), &verdict.server_view), (Some(&mine.shown()), &None));
    }
}

#[test]
fn another_name_alone_is_taken_over_from_the_server() {
    for (policy, resumed) in CASES {
        // The names have crossed: what counts is what they name.
        let plan =
            run(policy, &[view("s1", "a"), view("s2", "b")], &[view("s1", "b"), view("s2", "a")], resumed);
        assert_eq!(rows(&plan), [(Keep, "s2", "s1", "s2", "renamed"), (Keep, "s1", "s2", "s1", "renamed")]);
        assert!(plan.drop.is_empty() && plan.restore.is_empty());
    }
}

/// A lone reader was kept under the place of a subscription of another history, and what lay between was swallowed.
#[test]
fn a_lone_readers_place_from_before_the_start_is_its_own_under_its_name_only() {
    for (policy, resumed) in CASES {
        let restored = |view: SubView| SubView { restored: true, ..view };
        let same = run(policy, &[view("s9", "a")], &[restored(view("s9", "a"))], resumed);
        assert_eq!(rows(&same), [(Keep, "s9", "s9", "s9", "same")]);
        let crew = |name| shared(name, "a", "crew");
        let renamed = run(policy, &[crew("s9")], &[restored(crew("s1"))], resumed);
        assert_eq!(rows(&renamed), [(Keep, "s1", "s9", "s1", "renamed")], "it is the crew's");
        let plan = run(policy, &[view("s9", "a")], &[restored(view("s1", "a"))], resumed);
        let verdict = match (policy, resumed) {
            (Conservative, true) => (CloseClientSide, "s9", "s9", "-", "client_only"),
            (Conservative, false) => (RecreateClientSide, "s9", "s9", "-", "client_only"),
            (RestoreClient, _) => (Keep, "s9", "s9", "-", "restored"),
        };
        assert_eq!((rows(&plan), &plan.drop), (vec![verdict], &vec![sub("s1")]));
        assert_eq!(plan.restore.len(), usize::from(policy == RestoreClient));
    }
}

#[test]
fn other_settings_close_it_on_both_sides() {
    let server = view("s1", "a");
    for client in [
        SubView { prefetch: 8, ..server.clone() },
        SubView { ack_mode: AckMode::Auto, ..server.clone() },
        SubView { sub: sub("x"), prefetch: 0, ..server.clone() },
    ] {
        for (policy, resumed) in CASES {
            let plan = run(policy, std::slice::from_ref(&client), std::slice::from_ref(&server), resumed);
            let name = client.sub.as_str();
            assert_eq!(rows(&plan), [(CloseClientSide, name, name, "s1", "settings_differ")]);
            assert_eq!(plan.drop, [sub("s1")]);
            assert!(plan.restore.is_empty());
        }
    }
}

#[test]
fn what_only_the_client_knows_depends_on_policy_and_outcome() {
    let client = [shared("s1", "a", "crew")];
    for (policy, resumed) in CASES {
        let plan = run(policy, &client, &[], resumed);
        let expected = match (policy, resumed) {
            (Conservative, true) => (CloseClientSide, "s1", "s1", "-", "client_only"),
            (Conservative, false) => (RecreateClientSide, "s1", "s1", "-", "client_only"),
            (RestoreClient, _) => (Keep, "s1", "s1", "-", "restored"),
        };
        assert_eq!(rows(&plan), [expected]);
        let restored: Vec<_> = plan.restore.iter().map(|r| (r.verdict, &r.view)).collect();
        let expected = if policy == RestoreClient { vec![(0, &client[0])] } else { vec![] };
        assert_eq!(restored, expected);
        assert!(plan.drop.is_empty());
    }
}

#[test]
fn what_only_the_server_knows_is_dropped() {
    for (policy, resumed) in CASES {
        let plan = run(policy, &[view("s2", "b")], &[view("s1", "a"), view("s2", "b")], resumed);
        assert_eq!(
            rows(&plan),
            [(Keep, "s2", "s2", "s2", "same"), (CloseServerSide, "s1", "-", "s1", "server_only")]
        );
        assert_eq!(plan.drop, [sub("s1")]);
    }
}

#[test]
fn group_and_partition_are_part_of_what_it_is() {
    let plain = view("s1", "a");
    for other in [shared("s1", "a", "crew"), SubView { partition: Some(0), ..plain.clone() }, view("s1", "b")]
    {
        let plan = run(Conservative, std::slice::from_ref(&other), std::slice::from_ref(&plain), true);
        let actions: Vec<_> = plan.verdicts.iter().map(|v| v.action).collect();
        assert_eq!(actions, [CloseClientSide, CloseServerSide]);
        assert_eq!(plan.drop, [sub("s1")]);
    }
}

#[test]
fn inboxes_are_kept_listed_or_not() {
    for (policy, resumed) in CASES {
        let server = [view("inbox", "x"), view("member", "y")];
        assert_eq!(run(policy, &[], &server, resumed), Plan::default());
        let client = [view("inbox", "a"), view("member", "a"), view("inbox", "a")];
        for server in [&server[..], &[]] {
            let plan = run(policy, &client, server, resumed);
            let inbox = (Keep, "inbox", "inbox", "inbox", "implicit");
            assert_eq!(rows(&plan), [inbox, (Keep, "member", "member", "member", "implicit"), inbox]);
            assert!(plan.drop.is_empty() && plan.restore.is_empty());
        }
    }
}

#[test]
fn of_a_subscription_listed_twice_the_first_counts() {
    for (policy, resumed) in CASES {
        let client = [view("s1", "a"), view("s9", "a"), SubView { prefetch: 1, ..view("s8", "a") }];
        let plan = run(policy, &client, &[view("s1", "a")], resumed);
        let twice = |name| (CloseClientSide, name, name, "-", "duplicate");
        assert_eq!(rows(&plan), [(Keep, "s1", "s1", "s1", "same"), twice("s9"), twice("s8")]);
        assert!(plan.drop.is_empty() && plan.restore.is_empty());
        // A name that stands for two things stands for the first.
        let plan =
            run(policy, &[view("s1", "a"), view("s1", "b")], &[view("s1", "a"), view("s2", "b")], resumed);
        let gone = (CloseServerSide, "s2", "-", "s2", "server_only");
        assert_eq!(rows(&plan), [(Keep, "s1", "s1", "s1", "same"), twice("s1"), gone]);
    }
}

#[test]
fn a_restored_one_keeps_its_name_where_that_is_free() {
    let client = [view("s1", "b"), view("r1", "c"), view("s2", "d")];
    let plan = run(RestoreClient, &client, &[view("s1", "a"), view("s2", "x")], true);
    let names: Vec<_> = plan.restore.iter().map(|r| (r.verdict, r.view.sub.as_str())).collect();
    assert_eq!(names, [(0, "r2"), (1, "r1"), (2, "r3")]);
    let told =
        |n: usize| (plan.verdicts[n].sub_id.as_str(), plan.verdicts[n].client.as_ref().unwrap().as_str());
    assert_eq!([told(0), told(1), told(2)], [("r2", "s1"), ("r1", "r1"), ("r3", "s2")]);
}

#[test]
fn positions_are_numbers_of_partitions() {
    let at = |positions: &[(&str, u64)], change: fn(&mut ClientSubscription)| {
        let positions = positions.iter().map(|(p, seq)| ((*p).to_owned(), U53::saturating(*seq))).collect();
        let mut one = ClientSubscription { positions, ..listed(&view("s1", "a")) };
        change(&mut one);
        let params =
            ReconcileParams { policy: RestoreClient, subscriptions: vec![one], inflight: Vec::new() };
        plan(&params, &[], false)
    };
    let plan = at(&[("0", 5), ("255", 0)], |_| ());
    assert_eq!(plan.restore[0].positions, BTreeMap::from([(0, 5), (255, 0)]));
    let bad: [Plan; 6] = [
        at(&[("0", 5), ("256", 0)], |_| ()),
        at(&[("00", 5)], |_| ()),
        at(&[("+1", 5)], |_| ()),
        at(&[("x", 5)], |_| ()),
        at(&[], |one| one.prefetch = 0),
        at(&[], |one| one.partition = Some(256)),
    ];
    for plan in bad {
        assert_eq!(rows(&plan), [(CloseClientSide, "s1", "s1", "-", "invalid")]);
        assert!(plan.restore.is_empty());
    }
}

#[test]
fn a_session_is_restored_up_to_its_bound() {
    let many = |n: usize| -> Vec<SubView> {
        (0..n)
            .map(|n| SubView { topic: format!("t{n}").parse().unwrap(), ..view(&format!("s{n}"), "a") })
            .collect()
    };
    let client = many(SUBSCRIPTIONS_PER_SESSION + 2);
    let plan = run(RestoreClient, &client, &client[..10], false);
    assert_eq!(plan.restore.len(), SUBSCRIPTIONS_PER_SESSION - 10);
    assert_eq!(plan.verdicts.iter().filter(|v| v.reason == "too_many").count(), 2);
    assert_eq!(plan.verdicts.last().map(|v| v.action), Some(CloseClientSide));
    // One that the server has and that is listed last still has its place.
    let plan = run(RestoreClient, &client, &client[SUBSCRIPTIONS_PER_SESSION..], false);
    assert_eq!(plan.verdicts.iter().filter(|v| v.reason == "same").count(), 2);
    assert_eq!(plan.restore.len(), SUBSCRIPTIONS_PER_SESSION - 2);
}

#[test]
fn one_that_could_not_be_made_is_closed() {
    let mut plan = run(RestoreClient, &[view("s1", "a")], &[view("s1", "b")], true);
    assert_eq!(plan.verdicts[0].sub_id, sub("r1"));
    plan.give_up(plan.restore[0].verdict, NotMade::Closed("no_such_partition"));
    assert_eq!(rows(&plan)[0], (CloseClientSide, "s1", "s1", "-", "no_such_partition"));
    plan.give_up(99, NotMade::Closed("nothing"));
    plan.give_up(0, NotMade::Rewound);
    assert_eq!(rows(&plan)[0], (RecreateClientSide, "s1", "s1", "-", "rewound"));
}

fn any_view() -> impl Strategy<Value = SubView> {
    let names = select(vec!["s1", "s2", "s3", "r1", "inbox", "member"]);
    let group = select(vec![None, Some("crew")]);
    let partition = select(vec![None, Some(0)]);
    let ack_mode = select(vec![AckMode::Manual, AckMode::Auto]);
    (names, select(vec!["a", "b"]), group, partition, ack_mode, 31u32..33).prop_map(
        |(name, topic, group, partition, ack_mode, prefetch)| SubView {
            group: group.map(|group| group.parse().unwrap()),
            partition,
            ack_mode,
            prefetch,
            ..view(name, topic)
        },
    )
}

/// What a server can know: no name and no identity twice.
fn any_server() -> impl Strategy<Value = Vec<SubView>> {
    prop::collection::vec(any_view(), 0..6).prop_map(|views| {
        let mut kept: Vec<SubView> = Vec::new();
        for view in views {
            if !kept.iter().any(|other| other.sub == view.sub || identity(other) == identity(&view)) {
                kept.push(view);
            }
        }
        kept
    })
}

fn identity(view: &SubView) -> Identity<'_> {
    (&view.topic, view.group.as_ref(), view.partition)
}

fn settings(view: &SubView) -> (AckMode, u32) {
    (view.ack_mode, view.prefetch)
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, cases: 1024, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn each_side_hears_once_of_each_and_ends_with_the_same_set(
        client in prop::collection::vec(any_view(), 0..8),
        server in any_server(),
        case in select(CASES.to_vec()),
    ) {
        let (policy, resumed) = case;
        let plan = run(policy, &client, &server, resumed);
        prop_assert_eq!(&plan, &run(policy, &client, &server, resumed));

        // One verdict for each listing, in its place; one for each of the server's that is no inbox.
        for (listing, verdict) in client.iter().zip(&plan.verdicts) {
            prop_assert_eq!(verdict.client.as_ref(), Some(&listing.sub));
        }
        prop_assert!(plan.verdicts[client.len()..].iter().all(|v| v.client.is_none()));
        for view in server.iter().filter(|view| !is_implicit(&view.sub)) {
            let of = plan.verdicts.iter().filter(|v| v.server.as_ref() == Some(&view.sub)).count();
            prop_assert_eq!(of, 1, "{}", view.sub);
        }
        let known = |view: &&SubView| !is_implicit(&view.sub);
        let matched = plan.verdicts.iter().filter(|v| v.client.is_some() && v.server.is_some() && v.reason != "implicit").count();
        prop_assert_eq!(plan.verdicts.len(), client.len() + server.iter().filter(known).count() - matched);

        // Kept if and only if it is the first of its listing and equal to what the server has, or was made again.
        for (n, (listing, verdict)) in client.iter().zip(&plan.verdicts).enumerate() {
            let twice = client[..n].iter().zip(&plan.verdicts).filter(|(earlier, _)| known(earlier)).any(
                |(earlier, said)| earlier.sub == listing.sub
                    || (said.reason != "duplicate" && identity(earlier) == identity(listing)),
            );
            prop_assert_eq!(verdict.reason == "duplicate", twice && !is_implicit(&listing.sub));
            let equal = server.iter().filter(known)
                .any(|view| identity(view) == identity(listing) && settings(view) == settings(listing));
            let kept = verdict.action == Keep;
            if is_implicit(&listing.sub) {
                prop_assert!(kept);
            } else if equal && !twice {
                prop_assert!(kept && verdict.server.as_ref() == Some(&verdict.sub_id));
            } else if kept {
                prop_assert_eq!(policy, RestoreClient);
                prop_assert_eq!(&verdict.reason, "restored");
            }
        }

        // What the mesh is told to do leaves it with exactly what was kept, each under a name of its own.
        let mut left: Vec<SubView> = server.iter().filter(known)
            .filter(|view| !plan.drop.contains(&view.sub)).cloned().collect();
        left.extend(plan.restore.iter().map(|r| r.view.clone()));
        let mut left: Vec<_> = left.iter().map(|view| view.sub.as_str()).collect();
        let mut kept: Vec<_> = plan.verdicts.iter()
            .filter(|v| v.action == Keep && v.reason != "implicit").map(|v| v.sub_id.as_str()).collect();
        left.sort_unstable();
        kept.sort_unstable();
        prop_assert_eq!(&left, &kept);
        left.dedup();
        prop_assert_eq!(left.len(), kept.len());
        prop_assert!(plan.drop.iter().all(|name| !is_implicit(name)));

        // Whatever a subscription is called from here on, its client is told what it called it itself.
        prop_assert!(plan.verdicts.iter().filter(|v| v.action == Keep).all(|v| v.client.is_some()));
    }
}
