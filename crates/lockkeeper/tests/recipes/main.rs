//! The recipes on every store: each case of `on!` runs on each place.
//!
//! A recipe that needs registers, on a store that keeps none, is refused in one sentence; that is checked instead.

#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod election;
mod job;
mod lock_all;
mod lock_any;
mod once;
mod places;
mod stall_limit;

use lockkeeper::{ErrorKind, Keeper};
use std::time::Duration;

/// One test for each case, on one store.
macro_rules! on {
    ($place:ident $(, $ignored:meta)?) => {
        mod $place {
            on!(@$place [$($ignored)?] registers election:
                a_candidate_leads_proclaims_and_resigns
                a_term_that_was_broken_is_over
                a_held_lock_without_a_proclamation_names_no_leader
                bodies_take_turns_and_never_overlap
                another_candidate_wins_when_a_leader_steps_down
                an_observer_tells_rising_terms_and_ends_with_the_latest
                the_blocking_face_leads
            );
            on!(@$place [$($ignored)?] registers job:
                twenty_machines_run_each_window_once
                the_report_and_the_history_tell_the_result
                a_run_under_way_is_told_apart_from_an_overlap
                a_runner_that_dies_is_found_by_the_next_one
                a_runner_that_lost_its_lock_cannot_write_the_history
                missed_and_interrupted_windows_are_caught_up_with
                a_window_of_a_wrong_clock_can_be_forgotten
                at_least_keeps_starts_apart_by_the_stores_clock
                the_blocking_face_does_the_same);
            on!(@$place [$($ignored)?] registers once:
                all_callers_get_the_first_result
                a_stored_result_needs_no_lock
                a_caller_may_be_told_that_it_is_in_progress
                another_request_under_the_key_is_refused
                a_cancelled_runner_is_taken_over
                a_runner_that_panics_is_taken_over
                a_late_result_is_refused
                a_result_after_the_lease_counts_while_no_caller_has_taken_over
                work_that_loses_its_lock_is_cancelled
                a_failure_is_tried_again_or_kept
                a_result_over_the_limit_is_the_same_error_for_all
                a_result_of_another_version_is_never_a_second_run
                a_result_is_kept_for_as_long_as_was_asked
                settings_that_cannot_work_are_one_sentence
                the_blocking_face_shares_its_keys);
            on!(@$place [$($ignored)?] locks lock_all:
                all_are_taken_or_none
                overlapping_sets_never_deadlock
                a_broken_one_ends_the_work_under_all
                lists_that_cannot_work_are_refused_in_one_sentence);
            on!(@$place [$($ignored)?] locks lock_any:
                a_free_one_is_taken_and_any_is_waited_for
                never_two_on_one_name_and_no_name_is_left_out
                lists_that_cannot_work_are_refused_in_one_sentence);
            on!(@$place [$($ignored)?] locks stall_limit: a_hung_holder_loses_the_lock);
        }
    };
    (@$place:ident [] $needs:ident $recipe:ident: $($case:ident)*) => {
        mod $recipe {
            $(#[test]
            fn $case() {
                crate::$needs(crate::places::$place(), stringify!($place), crate::$recipe::$case);
            })*
        }
    };
    (@$place:ident [$ignored:meta] $needs:ident $recipe:ident: $($case:ident)*) => {
        mod $recipe {
            $(#[test]
            #[$ignored]
            fn $case() {
                crate::$needs(crate::places::$place(), stringify!($place), crate::$recipe::$case);
            })*
        }
    };
}

on!(memory);
#[cfg(feature = "sqlite")]
on!(sqlite);
#[cfg(feature = "redis")]
on!(redis);
#[cfg(feature = "redis")]
on!(redis_cluster);
#[cfg(feature = "redlock")]
on!(redlock);
#[cfg(feature = "postgres")]
on!(postgres);
#[cfg(feature = "postgres")]
on!(postgres_advisory);
#[cfg(feature = "postgres")]
on!(postgres_shedlock);
#[cfg(feature = "mysql")]
on!(mysql);
#[cfg(feature = "mysql")]
on!(mysql_get_lock);
#[cfg(feature = "mysql")]
on!(mysql_shedlock);
#[cfg(feature = "etcd")]
on!(etcd);
#[cfg(feature = "zookeeper")]
on!(zookeeper);
#[cfg(feature = "consul")]
on!(consul, ignore = "needs Consul agents: scripts/test-extended builds one");

/// The places that keep no registers: what `docs/recipes/README.md` says too.
const WITHOUT_REGISTERS: &[&str] = &["redlock"];

/// A store that a case runs on.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) url: String,
    /// A name that no other case uses on this server.
    pub(crate) name: String,
}

impl Place {
    /// A keeper with a TTL that every store allows, and that a busy machine can keep up with.
    pub(crate) async fn keeper(&self) -> Keeper {
        // Consul allows no less than this.
        let ttl = if self.url.starts_with("consul") { 10 } else { 5 };
        self.keeper_with(Duration::from_secs(ttl)).await
    }

    pub(crate) async fn keeper_with(&self, ttl: Duration) -> Keeper {
        Keeper::builder().ttl(ttl).connect(&self.url).await.unwrap_or_else(|e| panic!("{}: {e}", self.url))
    }
}

/// Runs a case that needs locks alone.
fn locks<F: Future<Output = ()>>(url: String, _: &str, case: impl FnOnce(Place) -> F) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(case(Place { url, name: places::unique() }));
}

/// Runs a case that needs registers; where there are none, checks the refusal.
fn registers<F: Future<Output = ()>>(url: String, place: &str, case: impl FnOnce(Place) -> F) {
    if !WITHOUT_REGISTERS.contains(&place) {
        return locks(url, place, case);
    }
    locks(url, place, |place| async move {
        let keeper = place.keeper().await;
        assert!(keeper.store().registers().is_none());
        assert_eq!(keeper.election("x").campaign("v").await.expect_err("no registers").kind(), ErrorKind::Unsupported);
        let once = keeper.once(&place.name);
        let refused = once.run(async |_| Ok::<u32, lockkeeper::Error>(1)).await.expect_err("no registers");
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.message().starts_with("once needs registers, and ") && refused.message().contains("redis://"));
        let job =
            keeper.job(&place.name).run(async |_| Ok::<_, lockkeeper::Error>(())).await.expect_err("no registers");
        assert_eq!(job.kind(), ErrorKind::Unsupported);
    });
}
