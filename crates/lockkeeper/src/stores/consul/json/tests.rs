use super::*;
use crate::ErrorKind;
use proptest::prelude::*;

fn answer(status: u16, body: &str) -> Answer {
    Answer::of(status, body)
}

#[test]
fn answers_are_read() {
    let text = r#"[{"LockIndex":1,"Key":"a/.lock","Flags":3304740253564472344,"Value":"bGs=","Session":"s",
        "CreateIndex":7,"ModifyIndex":9}]"#;
    let (found, _) = entry(&answer(200, text)).unwrap();
    let found = found.unwrap();
    assert_eq!(
        (found.value.as_slice(), found.flags, found.modify_index),
        (&b"lk"[..], super::super::keys::LOCK_FLAGS, 9)
    );
    assert_eq!(entry(&answer(404, "")).unwrap().0, None);
    let done =
        transaction(&answer(200, r#"{"Results":[{"KV":{"Key":"k","ModifyIndex":5,"Value":null}}],"Errors":null}"#));
    assert_eq!(done.unwrap().index_of("k"), Some(5));
    let not = transaction(&answer(409, r#"{"Results":null,"Errors":[{"OpIndex":2,"What":"no"}]}"#)).unwrap();
    assert!(matches!(&not, Txn::Not(why) if why[..] == [(2, "no".to_owned())]), "{not:?}");
    let denied = transaction(&answer(409, r#"{"Errors":[{"OpIndex":0,"What":"Permission denied: x"}]}"#));
    assert_eq!(denied.unwrap_err().kind(), ErrorKind::Denied);
}

#[test]
fn what_no_consul_says_is_an_error() {
    for body in [
        "",
        "null",
        "{}",
        "[]",
        "[{}]",
        "<html>",
        r#"[{"Key":"k","ModifyIndex":-1}]"#,
        r#"[{"Key":"k","ModifyIndex":1,"Value":"*"}]"#,
    ] {
        assert_eq!(entry(&answer(200, body)).unwrap_err().kind(), ErrorKind::Unexpected, "{body}");
    }
    assert!(entry(&answer(404, "404 page not found")).is_err());
    for (status, body) in [(200, "x"), (409, "{}"), (200, r#"{"Errors":[{"What":"x"}]}"#)] {
        assert_eq!(transaction(&answer(status, body)).unwrap_err().kind(), ErrorKind::Unexpected, "{body}");
    }
    for id in ["", "a/b", "x y", &"a".repeat(65)] {
        assert!(session_id(&answer(200, &format!("{{\"ID\":\"{id}\"}}"))).is_err(), "{id}");
    }
}

proptest! {
    #[test]
    fn no_answer_makes_it_panic(status in prop_oneof![Just(200u16), Just(404), Just(409), Just(500)], body in ".{0,80}") {
        let answer = answer(status, &body);
        let _ = (entry(&answer).is_ok(), transaction(&answer).is_ok(), session_id(&answer).is_ok());
    }
}
