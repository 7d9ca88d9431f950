//! Fuzz targets of the `https://` store: its URLs, what gateways answer and tell, and claims as gateways read them.

use super::calls::Broken;
use super::events::told;
use super::options::Options;
use crate::store::{Claim, Page, Record};
use crate::stores::shared::fuzz::urls;
use crate::wire::{Answers, Claims, Entered, Info, Problem, WireClaim, WireLock, WirePage};

#[test]
fn urls_are_read_and_keep_their_secrets() {
    urls("remote_urls", |url| {
        let url = crate::url::parse(url)?;
        Options::parse(&url.scheme, &url.raw_place, &url.options)
    });
}

#[test]
fn answers_of_gateways_are_read() {
    testkit::fuzz("gateway_answers", |body| {
        for answer in serde_json::from_slice::<Answers>(body).into_iter().flat_map(|all| all.answers) {
            let _ = format!("{:?}", answer.clone().attempt());
            let _ = format!("{:?} {:?}", answer.clone().renewal(), answer.release());
        }
        let _ = serde_json::from_slice::<Info>(body).map(|info| info.store_info("https"));
        let _ = serde_json::from_slice::<Problem>(body).map(|problem| problem.error().to_string());
        let _ = serde_json::from_slice::<Entered>(body).map(|entered| entered.bytes().map_err(|e| e.to_string()));
        let _ = serde_json::from_slice::<Broken>(body);
        let _ = serde_json::from_slice::<WireLock>(body).map(|lock| Record::try_from(lock).map_err(|e| e.to_string()));
        let _ = serde_json::from_slice::<WirePage>(body).map(|page| Page::try_from(page).map_err(|e| e.to_string()));
    });
}

#[test]
fn lines_of_a_stream_are_read() {
    testkit::fuzz("gateway_events", |line| drop(told(line)));
}

#[test]
fn claims_are_read_as_they_were_sent() {
    testkit::fuzz("gateway_claims", |body| {
        let Ok(Claims { claims }) = serde_json::from_slice(body) else { return };
        for wire in claims {
            let Ok(claim) = Claim::try_from(wire) else { continue };
            let sent = serde_json::to_vec(&WireClaim::from(&claim)).unwrap();
            let read = Claim::try_from(serde_json::from_slice::<WireClaim>(&sent).unwrap()).unwrap();
            assert_eq!(format!("{read:?}"), format!("{claim:?}"));
            assert_eq!(read.holder, claim.holder, "which Debug does not show");
        }
    });
}
