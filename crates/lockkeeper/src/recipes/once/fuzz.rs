//! Fuzz target: what stands in the register of a key, also when another program wrote it.

use super::record::{Record, Terms, Verdict, judge};

#[test]
fn records_are_judged() {
    let terms = [Terms::default(), Terms { fingerprint: Some("00".to_owned()), schema: Some("1".to_owned()) }];
    testkit::fuzz("once_records", |bytes| {
        let Ok(record) = serde_json::from_slice::<Record>(bytes) else { return };
        let _ = (record.settles(), record.life(std::time::Duration::MAX));
        for terms in &terms {
            match judge::<String>(Some(&record), terms) {
                Verdict::Settled(answer) => drop(answer.map_err(|e| e.to_string())),
                Verdict::Open { attempt, .. } => assert!(attempt > 0),
            }
        }
        let written = serde_json::to_vec(&record).unwrap();
        let again: Record = serde_json::from_slice(&written).unwrap();
        assert_eq!(serde_json::to_vec(&again).unwrap(), written);
    });
}
