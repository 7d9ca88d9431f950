//! `doctor`: whether a store can be trusted with locks, and what to do about it.
//!
//! It asks the store for its own checks, which only read. It takes locks of its own below `lk-doctor/` to see that
//! they work and how long they take.

mod probe;
mod report;
mod times;

use crate::args::DoctorArgs;
use crate::exit::Failure;
use crate::{output, store};
use lockkeeper::Keeper;
use lockkeeper::duration::short;
use lockkeeper::store::{Check, CheckState, StoreInfo};
use probe::Probe;
use report::Report;
use std::time::{Duration, Instant};

/// The TTL of a keeper that is told none.
const USUAL_TTL: Duration = Duration::from_secs(30);

/// Opening a connection takes a few round trips: a store that needs longer is far away, or has trouble.
const SLOW_CONNECT: Duration = Duration::from_secs(1);

pub(crate) async fn doctor(flag: Option<&str>, args: DoctorArgs) -> Result<u8, Failure> {
    if flag.is_some() && args.url.is_some() {
        return Err(Failure::usage("[URL] cannot be used together with --store <URL>"));
    }
    let chosen = store::choose(args.url.as_deref().or(flag))?;
    let began = Instant::now();
    let keeper = chosen.connect().await?;
    let mut checks = vec![connected(began.elapsed())];
    let info = keeper.info().clone();
    let ttl = args.ttl.unwrap_or_else(|| USUAL_TTL.clamp(info.ttl_floor, info.ttl_ceiling));
    checks.extend(ttl_allowed(ttl, &info));
    checks.extend(args.require.map(|required| promised(required, &info)));
    // A keeper of its own: a hand-over goes from one to the other.
    let other = Keeper::connect(chosen.url()).await?;
    let allowed = ttl.clamp(info.ttl_floor, info.ttl_ceiling);
    let mut probe = Probe::new(&keeper, &other, allowed)?;
    checks.extend(probe.run(args.probes, ttl).await);
    checks.extend(keeper.store().checks(ttl).await);
    let report = Report::new(checks, &info, ttl, probe);
    if args.json {
        output::print_json(&report.json())?;
    } else {
        output::print(&report.text())?;
    }
    Ok(report.exit_code())
}

fn connected(after: Duration) -> Check {
    let state = if after > SLOW_CONNECT { CheckState::Note } else { CheckState::Ok };
    Check::new("connect", state, format!("connected in {}", short(after)))
        .why("A keeper that has lost its connection needs this long before it can renew again.")
        .fix("Look at the network, at name resolution and at the server's load.")
}

/// Whether the store keeps leases of this length at all.
fn ttl_allowed(ttl: Duration, info: &StoreInfo) -> Option<Check> {
    let (floor, ceiling) = (info.ttl_floor, info.ttl_ceiling);
    let (what, limit) = match ttl {
        ttl if ttl < floor => ("shortest", floor),
        ttl if ttl > ceiling => ("longest", ceiling),
        _ => return None,
    };
    let found = format!("--ttl is {}; the {what} that this store allows is {}", short(ttl), short(limit));
    let check = Check::new("ttl-range", CheckState::Fail, found).why("A lock with such a TTL is refused.");
    Some(check.fix("Choose a TTL that the store allows."))
}

fn promised(required: lockkeeper::Guarantee, info: &StoreInfo) -> Check {
    let state = if info.guarantee < required { CheckState::Fail } else { CheckState::Ok };
    let found = format!("the store promises {}, and {} is required", info.guarantee.as_str(), required.as_str());
    Check::new("guarantee", state, found)
        .why("What protects your data was designed for a stronger promise.")
        .fix("Use a stronger store, or remedy what weakens this one.")
}
