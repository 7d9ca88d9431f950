//! Planted bugs: the torture harness (`crates/torture`) has to catch each of them.
//!
//! Only a build with `RUSTFLAGS="--cfg lockkeeper_mutants"` has them; there the environment variable `LOCKKEEPER_MUTANT`
//! chooses one by its name. In every other build [`planted`] is always false, texts and holder ids stay as they are, and
//! the compiler leaves nothing of it.
//!
//! SQL functions stay in the database that they were installed in: a mutant of them needs a database of its own.
//!
//! Failures are rows of `docs/failures.md`. Each mutant was seen to fail the test beside it. A module in front of a test's
//! name is the store's in `tests/conformance.rs`; the command's test is in `crates/lockkeeper-cli/tests/terminal.rs`.
//!
//! | name | what is planted | failure | seen red by |
//! |---|---|---|---|
//! | `plain-incr` | Redis: a token is the last one + 1, without the clock | 23 | `tokens_rise_across_flushall_and_a_restart_without_persistence` |
//! | `deadline-from-receipt` | deadlines count from the arrival of the answer | 5 | `row_05_the_deadline_counts_from_the_send` |
//! | `id-per-client` | all acquisitions of one name in one process have one holder id | 4, 16 | `row_04_no_two_acquisitions_share_a_holder`, `row_16_a_delayed_renewal_and_release_do_not_touch_the_next_hold` |
//! | `release-without-compare` | Redis: the release of a claim that holds nothing ends the lock of another | 12 | `redis::release_compares_the_holder`, `redis::stale_release_is_harmless` |
//! | `renew-creates` | Redis: a renewal takes an Exclusive lock that is gone anew | 8 | `redis::renew_never_recreates_after_expiry` |
//! | `no-write-back` | Redlock: nodes alone draw numbers; the highest reply is the token, and no node confirms it | 23 | `tokens_rise_whatever_the_callers_clocks_say` |
//! | `quorum-of-reachable` | Redlock: a majority of the nodes that answered is enough | 25 | `in_a_partition_only_the_side_with_a_majority_gets_grants` |
//! | `no-recheck-after-wait` | etcd: a waiter never looks whether its own key is there; with no claim before it, it is granted | 20 | `a_waiter_whose_lease_was_revoked_stands_in_line_anew_and_never_holds_on_a_dead_lease` |
//! | `fence-on-write-only` | registers: `enter` reads and compares, and does not raise the mark | 2 | `entering_alone_raises_the_fence` of `redis`, `postgres`, `mysql`, `sqlite` and `etcd` |
//! | `drop-does-nothing` | a dropped guard is not released, and is renewed on | 11 | `row_11_a_guard_dropped_with_no_runtime_inside_one_that_ends_or_in_a_panic_is_released` |
//! | `renewals-end-at-first-error` | after one failed renewal a guard is renewed no more | 7, 8 | `row_07_one_failed_renewal_of_three_does_not_lose_the_lock` |
//! | `no-timer-beside-push` | a waiter in line sends nothing by itself; only events wake it | 19 | `row_19_a_lost_wake_up_costs_one_keep_alive` |
//! | `no-wait-for-replicas` | Redis: with `wait_replicas` no WAIT is sent | 23 | `a_grant_that_replicas_do_not_confirm_is_given_back` |
//! | `no-tombstone` | Redis: a release of an unsettled claim leaves no tombstone | 15 | `redis::an_early_release_cancels_the_acquire` |
//! | `late-undo` | Redlock: an undo takes whatever the claim has, a later attempt's nodes too | 16 | `a_late_undo_never_ends_a_later_grant` |
//! | `heir-with-a-longer-ttl` | etcd, Consul: a claim is told its own TTL on a session with a shorter one | 27 | `etcd::a_renewal_with_a_longer_ttl_is_kept_that_long` |
//! | `give-up-while-looking` | Consul: a claim that was given up during its look is locked all the same | 15 | `a_waiter_that_gives_up_while_it_looks_takes_nothing` |
//! | `stop-in-a-pipeline` | `lockkeeper run`: a stop from outside stops `lockkeeper`, and not the command | 42 | `ctrl_z_in_a_pipeline_or_a_script_stops_the_whole_tree_and_fg_goes_on` |

use crate::name::LockName;
use crate::token::HolderId;

/// The names of all mutants. The last one is the command's: `crates/lockkeeper-cli/src/mutant.rs`.
#[cfg(any(test, lockkeeper_mutants))]
const MUTANTS: [&str; 18] = [
    "plain-incr",
    "deadline-from-receipt",
    "id-per-client",
    "release-without-compare",
    "renew-creates",
    "no-write-back",
    "quorum-of-reachable",
    "no-recheck-after-wait",
    "fence-on-write-only",
    "drop-does-nothing",
    "renewals-end-at-first-error",
    "no-timer-beside-push",
    "no-wait-for-replicas",
    "no-tombstone",
    "late-undo",
    "heir-with-a-longer-ttl",
    "give-up-while-looking",
    "stop-in-a-pipeline",
];

/// What mutants change in Lua and SQL: the mutant, the text, and what stands in its place.
#[cfg(any(test, lockkeeper_mutants))]
const CHANGES: [(&str, &str, &str); 9] = [
    // The three places that draw a token: a free lock, the general case, a hand-over.
    (
        "plain-incr",
        "us = time[1] * 1000000 + time[2]\n        clock = time[1] .. string.sub('00000' .. time[2], -6)",
        "us, clock = 1, '1'",
    ),
    ("plain-incr", "if us > token then token = us end", ""),
    ("plain-incr", "local token = time[1] .. string.sub('00000' .. time[2], -6)", "local token, us = '1', 1"),
    (
        "release-without-compare",
        "if grant(me) then\n  found = 1",
        "if grant(me) or kind == 'one' and not waiter(me) then\n  found = 1",
    ),
    (
        "renew-creates",
        "  if mode then leave(me, mode) end\n  settle()",
        "  if mode then leave(me, mode) end
  if kind == 'free' and not mode and string.byte(ARGV[3]) == 120 then
    put(me, 'x', ttl, draw(), '-', note)
    return 1
  end
  settle()",
    ),
    (
        "fence-on-write-only",
        "redis.call('HSET', V, 'lock', ARGV[1], 'token', ARGV[2], 'holder', ARGV[3])",
        "if ARGV[4] == 'w' then redis.call('HSET', V, 'lock', ARGV[1], 'token', ARGV[2], 'holder', ARGV[3]) end",
    ),
    (
        "fence-on-write-only",
        "SET token = my_token, holder = me,",
        "SET token = CASE WHEN writing THEN my_token ELSE r.token END,
            holder = CASE WHEN writing THEN me ELSE r.holder END,",
    ),
    (
        "fence-on-write-only",
        "SET token = p_token, holder = p_holder,",
        "SET token = IF(p_write, p_token, v_token), holder = IF(p_write, p_holder, v_holder),",
    ),
    ("late-undo", "if ARGV[2] and ARGV[2] ~= '' then", "if false then"),
];

/// Whether this bug is planted.
#[cfg(lockkeeper_mutants)]
pub(crate) fn planted(name: &str) -> bool {
    static CHOSEN: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        let chosen = std::env::var("LOCKKEEPER_MUTANT").unwrap_or_default();
        assert!(chosen.is_empty() || MUTANTS.contains(&&*chosen), "LOCKKEEPER_MUTANT={chosen}: no such mutant");
        chosen
    });
    debug_assert!(MUTANTS.contains(&name), "{name}: no such mutant");
    *CHOSEN == name
}

/// Whether this bug is planted: never.
#[cfg(not(lockkeeper_mutants))]
#[inline(always)]
pub(crate) const fn planted(_: &str) -> bool {
    false
}

/// A script or a SQL function, as the planted bug has it.
#[cfg(all(lockkeeper_mutants, any(feature = "redis", feature = "postgres", feature = "mysql")))]
pub(crate) fn text(text: &'static str) -> &'static str {
    let changes = CHANGES.iter().filter(|(name, ..)| planted(name));
    changes.fold(text, |text, (_, before, after)| text.replace(before, after).leak())
}

/// A script or a SQL function, as it is.
#[cfg(all(not(lockkeeper_mutants), any(feature = "redis", feature = "postgres", feature = "mysql")))]
#[inline(always)]
pub(crate) const fn text(text: &'static str) -> &'static str {
    text
}

/// The holder id of an acquisition: `fresh`, unless the bug is planted that all of one name in this process have one.
#[cfg(lockkeeper_mutants)]
pub(crate) fn holder(fresh: HolderId, name: &LockName) -> HolderId {
    use std::hash::{BuildHasher as _, RandomState};
    static CLIENT: std::sync::LazyLock<(HolderId, RandomState)> =
        std::sync::LazyLock::new(|| (HolderId::random().unwrap_or(HolderId::UNKNOWN), RandomState::new()));
    if !planted("id-per-client") {
        return fresh;
    }
    // One id for each name: tables by holder id inside the keeper would break before the bug shows.
    HolderId::from_u128(CLIENT.0.to_u128() ^ u128::from(CLIENT.1.hash_one(name)))
}

/// The holder id of an acquisition: `fresh`.
#[cfg(not(lockkeeper_mutants))]
#[inline(always)]
pub(crate) const fn holder(fresh: HolderId, _: &LockName) -> HolderId {
    fresh
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: &str = concat!(
        include_str!("stores/redis/scripts/acquire_fast.lua"),
        include_str!("stores/redis/scripts/common.lua"),
        include_str!("stores/redis/scripts/release_fast.lua"),
        include_str!("stores/redis/scripts/release.lua"),
        include_str!("stores/redis/scripts/renew.lua"),
        include_str!("stores/redis/scripts/register.lua"),
        include_str!("stores/redlock/scripts/release.lua"),
        include_str!("stores/postgres/sql/register.sql"),
        include_str!("stores/mysql/sql/register.sql"),
    );

    #[test]
    fn every_change_of_a_text_finds_its_place() {
        for (name, before, _) in CHANGES {
            assert_eq!(TEXTS.matches(before).count(), 1, "{name}: {before}");
        }
    }

    #[test]
    fn every_mutant_is_in_the_table() {
        for name in MUTANTS.iter().chain(CHANGES.iter().map(|(name, ..)| name)) {
            assert!(include_str!("mutant.rs").contains(&format!("| `{name}` |")), "{name}");
        }
    }
}
