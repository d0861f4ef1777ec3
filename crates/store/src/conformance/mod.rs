//! One suite for every engine: what a store promises, as tests.
//!
//! `cases` holds one function for each promise; `model` runs random operations and restarts against an engine
//! and the memory model side by side. An engine joins by implementing [`Engine`] and naming itself in `suite!`.

pub(crate) mod accepts;
pub(crate) mod access;
pub(crate) mod cases;
pub(crate) mod lease_ends;
pub(crate) mod messages;
pub(crate) mod model;
pub(crate) mod programs;
pub(crate) mod readers;
pub(crate) mod removals;
pub(crate) mod retries;
pub(crate) mod runs;
pub(crate) mod services;
pub(crate) mod topics;

use tenure_mesh::input::LeaseRecord;
use tenure_mesh::store::record::{LeaseEnd, StoreWrite};
use tenure_proto::peer::Profile;
use tenure_proto::{MemberKey, SessionKey};

use crate::{Identity, LeaseRow, Store, Write};

/// What the suite needs of an engine: somewhere to keep data, and a store on it that can be opened again.
pub(crate) trait Engine {
    /// The store under test.
    type Store: Store + 'static;

    /// A place without data.
    fn new() -> Self;

    /// Opens the store at this place; the one opened before must be dropped.
    fn open(&self) -> Self::Store;

    /// Takes the room for further data away, or gives it back. A batch of [`cases::BULK`] leases does not fit.
    fn starve(store: &mut Self::Store, starving: bool);
}

/// Makes a test of each case, for one engine.
macro_rules! suite {
    ($engine:ty) => {
        $crate::conformance::suite!($engine, cases:
            identity_is_made_once,
            runs_are_numbered,
            a_run_is_told_when_the_clock_was_last_believed,
            a_lease_reads_as_it_was_put,
            a_put_replaces,
            leases_come_in_order,
            an_end_names_its_lease,
            a_touch_names_its_lease,
            uptime_is_spent_between_runs,
            every_start_counts_a_second,
            a_touch_restores_the_full_time,
            heartbeats_never_go_down,
            a_batch_is_all_or_nothing,
            writes_of_a_batch_see_each_other,
            a_lease_of_an_impossible_run_is_a_finding,
        );
        $crate::conformance::suite!($engine, lease_ends:
            the_end_of_a_lease_is_kept_with_it,
            ends_of_leases_are_forgotten_in_slices,
        );
        $crate::conformance::suite!($engine, accepts:
            an_accept_answers_by_the_table,
            a_twin_in_the_same_batch_is_a_duplicate,
            a_known_id_is_answered_before_any_refusal,
            a_refused_accept_leaves_no_trace,
            an_absent_session_is_looked_up,
            an_absent_member_is_looked_up,
            ids_belong_to_a_sender_in_a_mesh,
            lanes_share_the_numbers_of_a_log,
            a_message_reads_as_it_was_sent,
            a_starved_store_numbers_on_without_a_gap,
        );
        $crate::conformance::suite!($engine, readers:
            a_group_begins_where_it_was_told,
            a_group_keeps_its_place_and_what_is_open,
            a_lease_takes_its_subscriptions_with_it,
            a_start_learns_topics_and_logs,
            a_page_is_bounded_but_never_empty,
            history_reads_all_lanes_in_order,
            fates_are_told,
            settlers_are_kept_with_their_group,
            expired_is_what_nobody_settled_in_time,
            a_reader_sees_what_is_committed,
        );
        $crate::conformance::suite!($engine, removals:
            a_dead_letter_outlives_its_entry_and_can_return,
            each_group_has_its_own_dead_letters,
            what_is_gone_for_good_stays_dead,
            pruning_goes_in_slices_and_ids_stay_known,
            a_cap_lets_the_oldest_go_and_buries_what_somebody_has_not_read,
            an_inbox_is_evacuated_in_slices,
            a_sweep_forgets_what_has_outlived_its_time,
        );

        $crate::conformance::suite!($engine, topics:
            a_topic_goes_in_slices_and_its_numbers_go_on,
            only_an_empty_topic_goes_if_it_must_be,
        );
        $crate::conformance::suite!($engine, retries:
            only_the_letters_of_named_crews_are_taken_out,
            what_was_settled_late_does_not_expire,
        );
        $crate::conformance::suite!($engine, access:
            access_reads_as_it_was_written,
            the_audit_log_is_read_by_pages_and_newest_first,
            a_change_and_its_row_are_one,
        );
        $crate::conformance::suite!($engine, runs:
            a_run_is_kept_with_its_message_and_reads_as_it_was,
            a_refused_run_leaves_no_trace,
            a_sweep_forgets_runs_that_ended_long_ago,
        );
        $crate::conformance::suite!($engine, services:
            a_service_reads_as_it_was_put,
            a_lease_takes_its_services_with_it,
            a_name_has_one_row_and_only_its_holder_drops_it,
        );

        #[test]
        fn agrees_with_the_model() {
            $crate::conformance::model::agree::<$engine>();
        }

        #[test]
        fn agrees_with_the_model_about_messages() {
            $crate::conformance::programs::agree::<$engine>();
        }
    };
    ($engine:ty, $cases:ident: $($case:ident,)*) => {
        $(
            #[test]
            fn $case() {
                $crate::conformance::$cases::$case::<$engine>();
            }
        )*
    };
}
pub(crate) use suite;

/// An identity told from others by `n`.
pub(crate) fn identity(n: u8) -> Identity {
    Identity { cluster_id: format!("cluster-{n}").parse().unwrap(), broker_key: [n; 32] }
}

/// A lease of session `n`, named `lease-n`, touched in run 1.
pub(crate) fn lease(mesh: &str, n: u8) -> LeaseRow {
    LeaseRow {
        mesh: mesh.parse().unwrap(),
        session: SessionKey([n; 32]),
        lease: format!("lease-{n}").parse().unwrap(),
        member: MemberKey([n.wrapping_add(100); 32]),
        instance: format!("instance-{n}").parse().unwrap(),
        profile: Profile::named(format!("name {n}")),
        caps: None,
        joined_at: 1_700_000_000_000 + u64::from(n),
        touched_run: 1,
    }
}

/// The write that stores `row`.
pub(crate) fn put(row: &LeaseRow) -> Write {
    let LeaseRow { mesh, session, lease, member, instance, profile, caps, joined_at, touched_run } =
        row.clone();
    let record = LeaseRecord { session, lease, member, instance, profile, caps, joined_at };
    Write::Mesh { mesh, run: touched_run, write: StoreWrite::PutLease(Box::new(record)) }
}

/// The write that ends `row`'s lease.
pub(crate) fn end(row: &LeaseRow) -> Write {
    let LeaseRow { session, lease, member, .. } = row.clone();
    let (name, why) = (row.profile.name.clone(), "expired".to_owned());
    let write = StoreWrite::EndLease(Box::new(LeaseEnd { session, lease, member, name, why, at: 1_000 }));
    Write::Mesh { mesh: row.mesh.clone(), run: row.touched_run, write }
}

/// The write that says `row`'s lease was attached in `run`.
pub(crate) fn touch(row: &LeaseRow, run: u64) -> Write {
    let write = StoreWrite::TouchLease(row.session, row.lease.clone());
    Write::Mesh { mesh: row.mesh.clone(), run, write }
}

/// Every trait object of a store can be handed to the thread that will own it.
#[test]
fn a_store_is_an_object_that_can_be_sent() {
    fn assert_send<T: Send + ?Sized>() {}
    assert_send::<dyn Store>();
    assert_send::<Box<dyn Store>>();
}
