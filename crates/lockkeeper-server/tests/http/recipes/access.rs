//! Who may use recipes: a rule for the recipe's name covers its lock and its register.

use crate::access::guarded;
use crate::holder;
use serde_json::{Value, json};

#[tokio::test]
async fn a_recipe_needs_its_lock_and_its_register() {
    let rules: &[(&str, &[&str])] = &[
        ("all", &["once/a/=acquire,register", "election/a/=acquire,register,read", "job/a/=acquire,register,read"]),
        ("locks", &["once/=acquire,read", "election/=acquire", "job/=acquire"]),
        ("values", &["once/=register,read", "election/=register", "job/=register"]),
    ];
    let (served, secrets) = guarded(rules).await;
    let [all, locks, values] = [0, 1, 2].map(|n| Some(secrets[n].as_str()));
    let me = holder();
    let steps = |name: &str, token: Value| {
        vec![
            ("/v1/once/begin", json!({ "key": name, "holder": me })),
            ("/v1/once/finish", json!({ "key": name, "holder": me, "token": token, "result": 1 })),
            ("/v1/elections/campaign", json!({ "name": name, "holder": me })),
            ("/v1/elections/proclaim", json!({ "name": name, "holder": me, "term": token, "value": "x" })),
            ("/v1/jobs/begin", json!({ "name": name, "holder": me })),
            ("/v1/jobs/end", json!({ "name": name, "holder": me, "token": token, "ended": "done" })),
        ]
    };
    for (who, name) in [(locks, "a/x"), (values, "a/x"), (all, "b"), (all, "a")] {
        for (path, body) in steps(name, json!(7)) {
            let (status, problem) = served.post_as(who, path, &body).await;
            assert_eq!((status, &problem["kind"]), (403, &json!("denied")), "{path} {body}");
        }
    }
    assert_eq!(served.post_as(values, "/v1/elections/resign", &json!({ "name": "x", "holder": me })).await.0, 403);
    for path in ["/v1/elections/leader?name=a/x", "/v1/jobs/history?name=a/x"] {
        assert_eq!(served.get_as(locks, path).await.0, 403, "{path}");
        assert_ne!(served.get_as(all, path).await.0, 403, "{path}");
    }
    let mut token = json!(7);
    for (path, _) in steps("a/x", json!(null)) {
        let body = &steps("a/x", token.clone()).into_iter().find(|(of, _)| *of == path).expect("it is there").1;
        let (status, answer) = served.post_as(all, path, body).await;
        assert_eq!(status, 200, "{path} {answer}");
        token = [&answer["token"], &answer["term"]].into_iter().find(|token| token.is_u64()).unwrap_or(&token).clone();
    }
}
