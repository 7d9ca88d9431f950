//! Checks that hold beside every other library; each library runs in its real version.

use super::{Kind, Peer, Place, Section, now, section};
use crate::keepers::taken;
use lockkeeper::{Keeper, LossReason, Phase};
use std::time::Duration;
use testkit::{SOON, TempDir, eventually};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(10);

/// Our keepers and their processes in the mix, and how many critical sections each of them has.
const OURS: usize = 4;
const OUR_SECTIONS: usize = 140;
const THEIRS: usize = 2;
const THEIR_SECTIONS: usize = 280;
pub(crate) const TOTAL: usize = OURS * OUR_SECTIONS + THEIRS * THEIR_SECTIONS;

/// How often a wake-up is measured.
const ROUNDS: usize = 20;

/// The limit for the median wake-up, with room for a busy machine.
const PROMPT: i64 = 250_000_000;

/// Times are measured here: one test at a time.
pub(crate) static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The tests beside one library.
macro_rules! beside {
    ($($(#[$gate:meta])* $name:ident: $kind:ident;)*) => {$(
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            $(#[$gate])*
            async fn a_thousand_mixed_sections_never_overlap() {
                peers::mixed(Kind::$kind).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            $(#[$gate])*
            async fn each_keeps_the_other_out() {
                peers::keep_out(Kind::$kind).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            $(#[$gate])*
            async fn each_comes_in_when_the_other_leaves() {
                peers::take_turns(Kind::$kind).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            $(#[$gate])*
            async fn a_late_holder_touches_nothing() {
                peers::late(Kind::$kind).await;
            }
        }
    )*};
}
pub(crate) use beside;

async fn keeper(place: &Place) -> Keeper {
    // A label that is not ASCII: their clients read our values as text.
    Keeper::builder().ttl(TTL).label("Gerät").connect(&place.url).await.expect("connected")
}

/// Sorts times in ns and shows them in ms.
fn shown(times: &mut [i64]) -> String {
    times.sort_unstable();
    let ms = |i: usize| times[i] as f64 / 1e6;
    format!("p50 {:.2} ms, max {:.2} ms of {}", ms(times.len() / 2), ms(times.len() - 1), times.len())
}

/// The result of a mix: every section in the order of their beginnings, overlaps seen from inside and by the times, and
/// the shared counter.
pub(crate) struct Mix {
    sections: Vec<Section>,
    pub(crate) seen: u64,
    pub(crate) crossed: usize,
    pub(crate) counted: usize,
}

/// Our keepers and their processes at the same work, each side under a lock of its key.
pub(crate) async fn mix(kind: Kind, place: &Place, ours: &str, theirs: &str) -> Mix {
    let dir = TempDir::new();
    dir.write("count", "0");
    let order = format!("storm {theirs} {} {THEIR_SECTIONS} {}", TTL.as_millis(), dir.path().display());
    let mut peers: Vec<Peer> = (0..THEIRS).map(|_| Peer::start(kind, place)).collect();
    for peer in &mut peers {
        let ready = format!("{} 1000", kind.key("ready"));
        assert!(peer.ask(&format!("wait {ready}")).0 && peer.ask("free").0, "it runs");
        peer.order(&order);
    }
    let mut tasks = JoinSet::new();
    for _ in 0..OURS {
        let (keeper, key, place) = (keeper(place).await, ours.to_owned(), dir.path().to_owned());
        tasks.spawn(async move {
            let mut sections = Vec::new();
            for _ in 0..OUR_SECTIONS {
                let guard = taken(&keeper, &key).await;
                sections.push(section(&place, guard.token().get()));
                guard.release().await.expect("released");
                // While keepers wait in line, a peer that polls never gets in: so every client pauses between its
                // turns.
                tokio::time::sleep(Duration::from_millis(fastrand::u64(0..20))).await;
            }
            sections
        });
    }
    let mut sections: Vec<Section> = tasks.join_all().await.into_iter().flatten().collect();
    let mut seen = sections.iter().map(|section| section.overlaps).sum();
    for peer in &peers {
        let numbers: Vec<i64> = peer.answer().iter().map(|word| word.parse().expect("a number")).collect();
        seen += numbers[0].unsigned_abs();
        let theirs = numbers[1..].chunks_exact(if kind.fenced() { 3 } else { 2 });
        let token = |section: &[i64]| section.get(2).map_or(0, |token| token.unsigned_abs());
        let read = |s: &[i64]| Section { begin: s[0], end: s[1], token: token(s), ..Section::default() };
        sections.extend(theirs.map(read));
    }
    sections.sort_by_key(|section| section.begin);
    assert_eq!(sections.len(), TOTAL);
    let crossed = sections.windows(2).filter(|pair| pair[1].begin < pair[0].end).count();
    let counted = dir.read("count").and_then(|text| text.parse().ok()).expect("a number");
    Mix { sections, seen, crossed, counted }
}

pub(crate) async fn mixed(kind: Kind) {
    mixed_at(kind, Place::of(kind)).await;
}

pub(crate) async fn mixed_at(kind: Kind, place: Place) {
    let _alone = ALONE.lock().await;
    let key = kind.key("mix");
    let Mix { sections, seen, crossed, counted } = mix(kind, &place, &kind.ours("mix"), &key).await;
    let turns = sections.windows(2).filter(|pair| pair[0].ours != pair[1].ours).count();
    let took = (sections[TOTAL - 1].end - sections[0].begin) / 1_000_000;
    println!(
        "{kind:?} on {}: {TOTAL} sections in {took} ms, {turns} turns between sides, {seen} + {crossed} overlaps",
        place.servers.len()
    );
    assert_eq!((seen, crossed, counted), (0, 0, TOTAL), "no overlap, and no section's write was lost");
    // How often depends on the machine; a few show that both sides were there at the same time.
    assert!(turns >= 4, "{turns}");
    let tokens: Vec<u64> = sections.iter().map(|section| section.token).filter(|token| *token > 0).collect();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens rise in the order of the sections");
    // A release to several servers is over when most have answered.
    eventually(SOON, "nothing is left", || place.servers.iter().all(|server| server.cli(&["EXISTS", &key]) != "1"));
}

/// Each side, while it holds, excludes the other; after its release the other gets the lock.
pub(crate) async fn exclude_at(kind: Kind, place: Place) {
    let _alone = ALONE.lock().await;
    let (key, name) = (kind.key("job"), kind.ours("job"));
    let (keeper, mut peer) = (keeper(&place).await, Peer::start(kind, &place));
    for _ in 0..ROUNDS {
        assert!(peer.ask(&format!("take {key} 20000")).0, "free");
        assert!(keeper.lock(&name).try_acquire().await.expect("answered").is_none(), "theirs");
        assert!(peer.ask("extend 20000").0 && peer.ask("free").0, "still theirs");
        let guard = keeper.lock(&name).try_acquire().await.expect("answered").expect("free");
        assert!(!peer.ask(&format!("take {key} 20000")).0, "ours");
        guard.check().expect("still ours");
        guard.release().await.expect("released");
    }
}

/// A waiting peer gets the lock soon after our release.
pub(crate) async fn wake_them_at(kind: Kind, place: Place) {
    let _alone = ALONE.lock().await;
    let (key, name) = (kind.key("job"), kind.ours("job"));
    let (keeper, mut peer) = (keeper(&place).await, Peer::start(kind, &place));
    let mut theirs = Vec::new();
    for _ in 0..ROUNDS {
        let guard = taken(&keeper, &name).await;
        peer.order(&format!("wait {key} 20000"));
        eventually(SOON, "they wait", || place.servers.iter().any(|server| kind.they_wait(server, &key, 0)));
        let asked = now();
        guard.release().await.expect("released");
        let (granted, when) = peer.yes();
        assert!(granted, "free");
        theirs.push(when - asked);
        assert!(peer.ask("free").0, "still theirs");
    }
    println!("{kind:?} on {}: they after ours: {}", place.servers.len(), shown(&mut theirs));
    assert!(theirs[ROUNDS / 2] < PROMPT, "{theirs:?}");
}

pub(crate) async fn keep_out(kind: Kind) {
    let _alone = ALONE.lock().await;
    let (place, key, name) = (Place::of(kind), kind.key("job"), kind.ours("job"));
    let (keeper, mut peer, server) = (keeper(&place).await, Peer::start(kind, &place), place.server());
    let (lock, line) = (keeper.lock(&name), format!("lk:q:{{{key}}}"));
    let mut modes = vec![lock.clone()];
    if kind.all_modes() {
        modes.extend([lock.clone().shared(), lock.clone().permits(2)]);
    }
    for ttl in if kind.endless() { [20_000, 0] } else { [20_000, 20_000] } {
        for lock in &modes {
            assert!(peer.ask(&format!("take {key} {ttl}")).0, "free");
            // Not a short wait: on a busy machine that ends without an answer, which is an outage and not a holder.
            let held = lock.try_acquire_or_held().await.expect("answered").map(drop).expect_err("theirs");
            assert_eq!(server.cli(&["EXISTS", &line]), "0", "a try does not queue");
            assert!(held.holder.is_none() && held.token.is_none() && held.since.is_none(), "{held:?}");
            let record = keeper.inspect(&name).await.expect("answered").expect("held");
            assert!(record.holders.len() == 1 && record.holders[0].note.is_none(), "{record:?}");
            for left in [held.remaining, record.holders[0].remaining] {
                let right = left.map_or(ttl == 0, |left| {
                    ttl > 0 && left <= Duration::from_millis(ttl) && left > Duration::from_millis(ttl / 2)
                });
                assert!(right, "{left:?} of {ttl} ms");
            }
            assert!(peer.ask("free").0, "still theirs");

            let guard = lock.try_acquire().await.expect("answered").expect("free");
            assert!(!peer.ask(&format!("take {key} {ttl}")).0, "ours");
            guard.check().expect("still ours");
            guard.release().await.expect("released");
        }
    }
    if kind == Kind::NodeRedlock {
        // All of its resources or none.
        let guard = taken(&keeper, "b").await;
        assert!(!peer.ask("take a,b,c 20000").0, "one is ours");
        assert_eq!(server.cli(&["EXISTS", "a", "b", "c"]), "1");
        guard.release().await.expect("released");
        assert!(peer.ask("take a,b,c 20000").0, "all are free");
        for key in ["a", "b", "c"] {
            assert!(keeper.lock(key).try_acquire().await.expect("answered").is_none());
        }
    }
}

pub(crate) async fn take_turns(kind: Kind) {
    let _alone = ALONE.lock().await;
    let (place, key, name) = (Place::of(kind), kind.key("job"), kind.ours("job"));
    let (keeper, mut peer, server) = (keeper(&place).await, Peer::start(kind, &place), place.server());
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let ttl = if kind.endless() && round % 2 == 1 { 0 } else { 20_000 };
        assert!(peer.ask(&format!("take {key} {ttl}")).0, "free");
        let waiting = tokio::spawn({
            let (keeper, name) = (keeper.clone(), name.clone());
            async move { (taken(&keeper, &name).await, now()) }
        });
        eventually(SOON, "we wait", || kind.we_wait(server, &key));
        // Each of these changes the key: our waiter looks, and must go on watching.
        for _ in 0..if ttl > 0 { round % 3 } else { 0 } {
            assert!(peer.ask("extend 20000").0, "still theirs");
        }
        let (freed, asked) = peer.ask("free");
        assert!(freed, "still theirs");
        let (guard, granted) = waiting.await.expect("granted");
        ours.push(granted - asked);

        let tries = kind.tries(server);
        peer.order(&format!("wait {key} 20000"));
        eventually(SOON, "they wait", || kind.they_wait(server, &key, tries));
        let asked = now();
        guard.release().await.expect("released");
        let (granted, when) = peer.yes();
        assert!(granted, "free");
        theirs.push(when - asked);
        assert!(peer.ask("free").0, "still theirs");
    }
    println!("{kind:?}: we after their release: {}; they after ours: {}", shown(&mut ours), shown(&mut theirs));
    assert!(ours[ROUNDS / 2] < PROMPT, "{ours:?}");
    assert!(theirs[ROUNDS / 2] < PROMPT, "{theirs:?}");
}

pub(crate) async fn late(kind: Kind) {
    let _alone = ALONE.lock().await;
    let (place, key, name) = (Place::of(kind), kind.key("job"), kind.ours("job"));
    let (keeper, mut peer, server) = (keeper(&place).await, Peer::start(kind, &place), place.server());

    // A peer holds past its lease: we get the lock when the lease ends, and the peer's later calls have no effect.
    assert!(peer.ask(&format!("take {key} {}", kind.short().as_millis())).0, "free");
    let asked = now();
    let guard = taken(&keeper, &name).await;
    println!(
        "{kind:?}: in {} ms after a lease of {:?} that its holder did not end",
        (now() - asked) / 1_000_000,
        kind.short()
    );
    let holder = || kind.holder(server, &key);
    let before = holder();
    for order in ["extend 600000", "free", "extend 600000", "free"] {
        assert!(!peer.ask(order).0, "{order}: not theirs any more");
        assert_eq!(holder(), before, "{order}");
        let left: u128 = server.cli(&["PTTL", &key]).parse().expect("a number");
        assert!(left <= TTL.as_millis(), "{order}: {left}");
    }
    guard.check().expect("still ours");
    assert_eq!(guard.phase(), Phase::Held);

    // Our release is late: an operator has freed the lock, and a peer holds it by now.
    server.cli(&["DEL", &key]);
    assert!(peer.ask(&format!("take {key} 20000")).0, "free");
    let theirs = holder();
    let _ = guard.release().await;
    assert_eq!(holder(), theirs, "our release is in vain");
    assert!(peer.ask("extend 30000").0, "still theirs");
    assert!(peer.ask("free").0, "still theirs");

    // Here our guard stays open: it is told of the loss, and our renewals do not prolong the peer's lock.
    // The next renewal tells it, after two seconds; on a busy machine that may take two more.
    let hasty = Keeper::builder().ttl(Duration::from_secs(6)).connect(&place.url).await.expect("connected");
    let guard = taken(&hasty, &name).await;
    server.cli(&["DEL", &key]);
    assert!(peer.ask(&format!("take {key} 20000")).0, "free");
    assert_eq!(guard.lost().await, LossReason::Gone);
    drop(guard);
    assert!(server.cli(&["PTTL", &key]).parse::<u64>().expect("a number") > 10_000);
    assert!(peer.ask("free").0, "still theirs");
    assert_eq!(server.cli(&["EXISTS", &key]), "0");
}
