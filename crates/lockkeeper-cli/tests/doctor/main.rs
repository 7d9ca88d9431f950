//! `doctor` on real servers: each fault that is planted is found, and the finding is gone when the fault is.

#[path = "../common/mod.rs"]
mod common;
mod consensus;
mod redis;
mod sql;
mod sqlite;

use common::Place;
use serde_json::Value;
use testkit::Ended;

/// What `doctor --json` said of a store.
#[derive(Debug)]
struct Report {
    code: i32,
    json: Value,
    ended: Ended,
}

impl Report {
    /// Examines the store, with few probes.
    #[track_caller]
    fn of(place: &Place, url: &str, options: &[&str]) -> Self {
        let args = [&["doctor", "--json", "--probes", "5"], options].concat();
        let ended = testkit::Proc::start(place.bare(&args).env("LOCKKEEPER_STORE", url)).wait();
        let json: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
        let report = Self { code: ended.code.unwrap_or(-1), json, ended };
        report.is_well_formed();
        report
    }

    /// The schema, which every report must keep; and every check is explained on the page.
    #[track_caller]
    fn is_well_formed(&self) {
        let page = include_str!("../../../../docs/doctor.md");
        let json = &self.json;
        assert_eq!(json["v"], 1, "{self:?}");
        for text in ["store", "servers", "guarantee", "worst"] {
            assert!(json[text].is_string(), "{text}: {self:?}");
        }
        for number in ["ttl_ms", "worst_hand_over_ms"] {
            assert!(json[number].is_u64(), "{number}: {self:?}");
        }
        let states: Vec<&str> = self.checks().iter().map(|check| check["state"].as_str().unwrap_or("?")).collect();
        let rank = |state: &str| ["fail", "warn", "note", "unknown", "ok"].iter().position(|word| *word == state);
        assert!(
            states.iter().map(|state| rank(state)).is_sorted() && states.iter().all(|s| rank(s).is_some()),
            "{states:?}"
        );
        assert_eq!(json["worst"], states[0], "{self:?}");
        assert_eq!(
            self.code,
            match states[0] {
                "fail" => 2,
                "warn" => 1,
                _ => 0,
            },
            "{self:?}"
        );
        for check in self.checks() {
            let text = |field: &str| check[field].as_str().unwrap_or_else(|| panic!("{field}: {check}")).to_owned();
            assert!(page.contains(&format!("`{}`", text("id"))), "{} is not in docs/doctor.md", text("id"));
            assert!(!text("found").is_empty() && !text("why").is_empty() && !text("fix").is_empty(), "{check}");
            text("at");
        }
    }

    fn checks(&self) -> &[Value] {
        self.json["checks"].as_array().map_or(&[], Vec::as_slice)
    }

    /// The worst finding of this id.
    #[track_caller]
    fn check(&self, id: &str) -> &Value {
        self.checks().iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("no {id} in {self:?}"))
    }

    #[track_caller]
    fn is(&self, id: &str, state: &str) {
        assert_eq!(self.check(id)["state"], state, "{}: {self:?}", self.check(id));
    }

    #[track_caller]
    fn found(&self, id: &str, part: &str) {
        let found = self.check(id)["found"].as_str().unwrap_or_default();
        assert!(found.contains(part), "{part:?} is not in {found:?}");
    }
}
