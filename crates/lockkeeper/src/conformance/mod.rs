//! The suite every store must pass, with no opting out.
//!
//! A store's test file has one line, which expands to one named test per case:
//!
//! ```
//! use lockkeeper::conformance_suite;
//! use lockkeeper::stores::memory::MemoryStore;
//! use lockkeeper::Store;
//! use std::sync::Arc;
//!
//! conformance_suite!(memory, {
//!     let root = MemoryStore::new();
//!     move || Arc::new(root.share()) as Arc<dyn Store>
//! });
//! # fn main() {}
//! ```
//!
//! [`CASES`] is the one list of cases; tests and skips both come from it. A case that needs what the store does not
//! declare in its [`StoreInfo`](crate::StoreInfo) prints `skipped: …` and passes. [`skip_table`] lists these cases, so
//! that a new skip is noticed. Cases take fresh names and never wipe a store, so they run side by side and against a store in use. A case
//! that needs time to pass asks until the answer comes, with a deadline far beyond what the contract allows. It judges
//! "too early" only by stamps, so a slow machine makes it slower, but does not make it fail.

pub mod batches;
mod detour;
pub mod dropped;
pub mod events;
pub mod exclusion;
pub mod keeper;
mod kit;
pub mod leases;
pub mod moves;
pub mod names;
pub mod operators;
pub mod queueing;
pub mod registers;
pub mod sharing;
pub mod tokens;

pub use detour::{Detour, Way};

use crate::store::{Expiry, Store};
use async_trait::async_trait;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// The store under test, as its test file provides it.
///
/// A closure that returns `Arc<dyn Store>` is one already.
#[async_trait]
pub trait Subject: Send + Sync {
    /// Another keeper's instance over the *same* locks.
    async fn open(&self) -> Arc<dyn Store>;

    /// Restarts what keeps the locks (closes the file, restarts the server) with its data kept; instances opened
    /// before are not used afterwards. Default: `None`, it cannot be restarted. Making the future does nothing yet.
    fn restart(&self) -> Option<Hook<'_>> {
        None
    }

    /// Opens two instances, one of them by a way on which its calls can be held up. Default: `None`, there is no such
    /// way. Making the future does nothing yet.
    fn detour(&self) -> Option<Hook<'_, Detour>> {
        None
    }
}

/// Something a [`Subject`] can do to its store.
pub type Hook<'a, T = ()> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

#[async_trait]
impl<F: Fn() -> Arc<dyn Store> + Send + Sync> Subject for F {
    async fn open(&self) -> Arc<dyn Store> {
        self()
    }

    fn detour(&self) -> Option<Hook<'_, Detour>> {
        Some(Box::pin(async { Detour::by_faults(self(), self()) }))
    }
}

/// What a case asks of a store beyond an Exclusive lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Each claim has a lease of its own, ended by the store's clock.
    Lease,
    /// A release that overtakes its acquire is remembered claim by claim.
    Tombstone,
    /// Waiters queue in the store.
    Queue,
    /// `Mode::Shared`.
    Shared,
    /// `Mode::Permit`.
    Permits,
    /// Hand-overs are pushed.
    Push,
    /// Registers.
    Registers,
    /// Any instance renews and releases a claim.
    Portable,
    /// The subject can restart its store.
    Restart,
    /// The subject can hold up calls on their way to its store.
    Detour,
}

impl Need {
    /// Why a case that needs this is skipped on such a store; `None` when the store has it.
    fn missing(self, store: &dyn Store, subject: &dyn Subject) -> Option<&'static str> {
        let info = store.info();
        let (there, why) = match self {
            Self::Lease => (info.expiry == Expiry::Lease, "its claims have no lease of their own that the store ends"),
            Self::Tombstone => (info.expiry != Expiry::Session, "its session ends what no claim owns"),
            Self::Queue => (info.queue, "it keeps no queue of waiters"),
            Self::Shared => (info.shared, "it has no shared mode"),
            Self::Permits => (info.permits, "it has no permits"),
            Self::Push => (info.push, "it does not push hand-overs"),
            Self::Registers => (store.registers().is_some(), "it keeps no registers"),
            Self::Portable => (info.portable, "its claims belong to the instance that took them"),
            Self::Restart => (subject.restart().is_some(), "it cannot be restarted with its data kept"),
            Self::Detour => (subject.detour().is_some(), "its calls cannot be held up on their way"),
        };
        (!there).then_some(why)
    }
}

/// One case of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The module the case is in.
    pub group: &'static str,
    /// The name of the case and of its test.
    pub name: &'static str,
    /// What it asks of the store.
    pub needs: &'static [Need],
}

impl Case {
    /// What a subject is made for when no case runs on it and only its capabilities are looked at.
    pub const LOOK: Self = Self { group: "conformance", name: "skip_table", needs: &[] };

    /// Whether it asks this of the store. A subject that can share one server among cases needs to know, for example,
    /// which of them restart it.
    pub fn asks_for(&self, need: Need) -> bool {
        self.needs.contains(&need)
    }

    /// Why it is skipped on such a store; `None` when it runs.
    fn skipped(&self, store: &dyn Store, subject: &dyn Subject) -> Option<&'static str> {
        self.needs.iter().find_map(|need| need.missing(store, subject))
    }
}

/// Cases that are left out on this store, each with the reason, in the order of [`CASES`].
pub async fn skip_table(subject: &dyn Subject) -> Vec<(&'static str, &'static str)> {
    let store = subject.open().await;
    CASES.iter().filter_map(|case| Some((case.name, case.skipped(&*store, subject)?))).collect()
}

/// A case that takes this long hangs: the slowest wait for a few leases of the slowest store.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs one case, or prints why it is skipped; what the tests of [`conformance_suite!`](crate::conformance_suite) call.
///
/// # Panics
/// When the store breaks the contract.
#[expect(clippy::print_stdout, reason = "a skip must be seen in the output of the test run")]
pub async fn run(case: &Case, subject: &dyn Subject, body: impl Future<Output = ()>) {
    let store = subject.open().await;
    let info = store.info();
    if let Some(reason) = case.skipped(&*store, subject) {
        println!("skipped: {} on {}: {reason}", case.name, info.scheme);
        return;
    }
    assert!(tokio::time::timeout(LIMIT, body).await.is_ok(), "{} was not finished after {LIMIT:?}", case.name);
}

/// Expands to a module of tests, one for every case of the suite, run against a store.
///
/// `conformance_suite!(module_name, subject)`: the expression is evaluated anew for every test, inside a Tokio runtime,
/// and makes a [`Subject`](crate::conformance::Subject). A subject that depends on the case is written
/// `conformance_suite!(module_name, |case| subject)`; `case` is a [`Case`](crate::conformance::Case). The module also has
/// `skips()`, its [`skip_table`]. Attributes after the subject, such as `#[ignore = "needs a server"]`, go to every test.
#[macro_export]
macro_rules! conformance_suite {
    ($module:ident, |$of:ident| $subject:expr $(, $(#[$($attribute:tt)+])+)?) => {
        $crate::__conformance_cases! { $crate::__conformance_tests; $module, $of, $subject, [$($(#[$($attribute)+])+)?] }
    };
    ($module:ident, $subject:expr $(, $(#[$($attribute:tt)+])+)?) => {
        $crate::conformance_suite! { $module, |_case| $subject $(, $(#[$($attribute)+])+)? }
    };
}

/// The one list of cases; hands it to the macro it is given.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ($emit:path; $($args:tt)*) => {
        $emit! { $($args)*;
            exclusion::one_of_fifty_wins [];
            exclusion::never_two_inside [];
            exclusion::not_reentrant [];
            exclusion::held_says_by_whom [];
            leases::expiry_frees [Lease];
            leases::renew_keeps_beyond_the_ttl [Lease];
            leases::renew_after_loss_says_lost [Lease];
            leases::renew_never_recreates_after_release [];
            leases::renew_never_recreates_after_expiry [Lease];
            leases::renew_never_creates [];
            leases::a_late_renewal_takes_nothing_back [Lease];
            leases::a_renewal_with_a_longer_ttl_is_kept_that_long [];
            leases::a_repeat_with_a_longer_ttl_is_kept_for_its_lease [];
            leases::stale_release_is_harmless [Lease];
            leases::release_is_idempotent [];
            leases::release_compares_the_holder [];
            leases::the_shortest_and_longest_ttl_work [];
            leases::a_held_lock_survives_a_restart [Lease Restart];
            moves::a_claim_moves_between_instances [Portable];
            moves::a_clients_clock_is_only_a_number [Portable];
            tokens::token_grows_over_release [];
            tokens::token_grows_over_a_late_acquire [];
            tokens::token_grows_over_expiry [Lease];
            tokens::token_grows_over_break [];
            tokens::token_grows_over_hand_over [Queue];
            tokens::token_grows_over_restart [Restart];
            tokens::token_grows_over_shared [Shared];
            tokens::an_exclusive_token_is_above_every_earlier_shared_one [Shared];
            tokens::token_grows_over_permits [Permits];
            tokens::a_repeat_is_the_same_grant [];
            tokens::a_repeat_has_the_lease_left [Lease];
            tokens::an_early_release_cancels_the_acquire [Tombstone];
            tokens::an_unsettled_release_ends_a_held_claim [];
            tokens::a_late_first_call_is_not_granted_again [Tombstone];
            queueing::first_come_first_served [Queue];
            queueing::the_place_in_line_is_told [Queue];
            queueing::a_try_does_not_queue [];
            queueing::a_waiter_that_asks_again_keeps_its_place [Queue];
            queueing::a_hand_over_is_one_grant [Queue];
            queueing::a_handed_over_lease_is_short [Queue Lease];
            queueing::the_pick_up_makes_it_a_full_lease [Queue Lease];
            queueing::a_leaving_waiter_lets_the_next_in [Queue];
            queueing::a_kept_alive_waiter_keeps_its_place [Queue Lease];
            queueing::a_waiter_that_died_in_line_is_skipped [Queue Lease];
            queueing::a_waiter_that_died_after_its_grant_is_skipped [Queue Lease];
            queueing::an_expired_holder_is_followed_by_the_head [Queue Lease];
            queueing::an_early_release_cancels_the_waiter [Queue Tombstone];
            events::a_hand_over_is_pushed_to_its_keeper [Queue Push];
            events::a_waiter_is_told_where_it_last_asked [Queue Push Lease];
            events::a_pushed_grant_echoes_the_latest_stamp [Queue Push Lease];
            events::a_pushed_lease_is_kept_to_its_end [Queue Push Lease];
            sharing::readers_share_and_exclude_writers [Shared];
            sharing::a_writer_waits_for_the_last_reader [Shared Queue];
            sharing::a_reader_queues_behind_a_waiting_writer [Shared Queue];
            sharing::a_leaving_writer_lets_readers_in [Shared Queue];
            sharing::readers_in_line_are_let_in_together [Shared Queue];
            sharing::permits_are_exact_at_once [Permits];
            sharing::permits_are_exact_over_time [Permits];
            sharing::a_differing_limit_is_refused [Permits];
            sharing::the_limit_of_a_dead_waiter_is_forgotten [Permits Queue Lease];
            sharing::a_freed_permit_goes_to_the_head [Permits Queue];
            sharing::shared_and_permit_exclude_each_other [Shared Permits];
            sharing::exclusive_and_permit_exclude_each_other [Permits];
            batches::fifty_claims_in_one_call [];
            batches::one_lost_among_many [];
            batches::a_waiter_among_many_renewals [Queue];
            batches::releases_are_answered_one_by_one [];
            batches::an_error_stays_with_its_entry [Permits];
            batches::an_empty_batch_is_answered [];
            dropped::a_dropped_acquire_leaves_nothing [];
            dropped::a_dropped_wait_leaves_nothing [Queue];
            dropped::a_dropped_renewal_can_be_repeated [];
            dropped::a_dropped_release_can_be_repeated [];
            dropped::a_late_first_call_takes_nothing_from_its_repeat [Lease Detour];
            names::lengths_are_checked [];
            names::different_names_never_exclude_each_other [];
            names::equal_names_always_exclude [];
            names::names_come_back_exact [];
            names::the_shortest_names_work [];
            names::registers_keep_names_apart [Registers];
            operators::list_pages_show_each_lock_once [];
            operators::a_prefix_is_bytes_not_a_pattern [];
            operators::the_empty_prefix_lists_everything [];
            operators::inspect_shows_the_holder [];
            operators::inspect_shows_every_holder [Shared];
            operators::inspect_shows_the_waiters_in_order [Queue];
            operators::notes_come_back_exact [];
            operators::break_needs_the_right_token [];
            operators::break_hands_over [Queue];
            operators::a_broken_holder_is_told [];
            operators::a_broken_holder_harms_nobody [];
            registers::a_value_is_read_back [Registers];
            registers::values_are_exact_bytes [Registers];
            registers::a_stale_pass_is_refused [Registers];
            registers::entering_alone_raises_the_fence [Registers];
            registers::an_equal_token_passes_for_its_holder_only [Registers];
            registers::the_ttl_ends_the_value_not_the_fence [Registers];
            registers::a_later_write_ends_the_earlier_ttl [Registers];
            registers::a_value_too_large_is_refused [Registers];
            registers::another_locks_pass_is_refused [Registers];
            registers::racing_writes_leave_the_highest [Registers];
            registers::a_register_is_no_lock [Registers];
            registers::values_survive_a_restart [Registers Restart];
            keeper::an_acquire_dropped_at_any_poll_leaves_nothing [];
            keeper::a_wait_dropped_at_any_poll_leaves_nothing [Queue];
            keeper::a_dropped_guard_frees_the_lock [];
            keeper::tasks_of_two_keepers_never_meet_inside [];
            keeper::two_local_claims_are_never_both_granted [];
            keeper::keepers_are_served_in_order [Queue];
            keeper::a_wait_outlives_its_entry [Queue];
            keeper::a_broken_guard_is_told [];
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    (
        $module:ident, $of:ident, $subject:expr, $attributes:tt;
        $($group:ident :: $case:ident [$($need:ident)*];)*
    ) => {
        mod $module {
            #[allow(unused_imports, reason = "a subject may need nothing of its surroundings")]
            use super::*;

            /// The cases left out on this store, with the reasons.
            #[allow(dead_code, reason = "only a test that writes the skips down calls it")]
            pub(super) async fn skips() -> Vec<(&'static str, &'static str)> {
                let $of = $crate::conformance::Case::LOOK;
                $crate::conformance::skip_table(&$subject).await
            }

            $(
                $crate::__conformance_test! { $attributes
                    async fn $case() {
                        let $of = $crate::conformance::Case {
                            group: stringify!($group),
                            name: stringify!($case),
                            needs: &[$($crate::conformance::Need::$need),*],
                        };
                        let subject = $subject;
                        let body = $crate::conformance::$group::$case(&subject);
                        $crate::conformance::run(&$of, &subject, body).await;
                    }
                }
            )*
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_test {
    ([$(#[$($attribute:tt)+])*] $($body:tt)+) => {
        #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
        $(#[$($attribute)+])*
        $($body)+
    };
}

macro_rules! table {
    (; $($group:ident :: $case:ident [$($need:ident)*];)*) => {
        /// Every case of the suite, in order.
        pub const CASES: &[Case] = &[
            $(Case { group: stringify!($group), name: stringify!($case), needs: &[$(Need::$need),*] },)*
        ];
    };
}

__conformance_cases! { table; }
