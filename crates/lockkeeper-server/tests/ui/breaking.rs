//! Breaking a lock from a page, and requests that no page of ours has sent.

use crate::Site;
use lockkeeper::LockName;

/// The token of the lock's only holder.
async fn holder(site: &Site, name: &str) -> Option<u64> {
    let name = LockName::new(name).expect("a name");
    let record = site.store.inspect(&name).await.expect("answered")?;
    record.holders.first().and_then(|holder| holder.token).map(lockkeeper::Token::get)
}

#[tokio::test]
async fn a_lock_is_broken_by_its_token_with_a_reason_and_the_next_in_line_has_it() {
    let (site, secrets) = Site::guarded(&[("ops", &["*=read,break"]), ("look", &["*=read"])]).await;
    let (me, token) = site.take("orders/42", "night").await;
    let (token, _) = (token.expect("free"), site.take("orders/42", "next").await);
    let cookie = site.log_in(&secrets[0]).await;
    let csrf = site.get("/lock?name=orders/42", &cookie).await.quoted("name=\"csrf\" value=\"");
    let text = token.to_string();
    let form = |token: &'static str, why: &'static str| {
        [("name", "orders/42"), ("token", token), ("why", why), ("csrf", csrf.as_str())]
    };
    for (form, outcome, said) in [
        (form("1", "hung"), "not-held", "no holder has that token"),
        (form("all", "hung"), "bad-token", "a token is a whole number"),
        (form("7", " "), "invalid-config", "say in 1 to 500 bytes why"),
    ] {
        let back = site.post("/break", &cookie, &form).await;
        let to = back.header("location").expect("back");
        assert!(back.status == 303 && to.ends_with(outcome), "{back:?}");
        let page = site.get(to, &cookie).await;
        assert!(page.body.contains(said), "{page:?}");
        assert_eq!(holder(&site, "orders/42").await, Some(token));
    }
    // A token that may only look is refused, and the audit says so.
    let other = site.log_in(&secrets[1]).await;
    let others = site.get("/", &other).await.quoted("name=\"csrf\" value=\"");
    let denied = [("name", "orders/42"), ("token", text.as_str()), ("why", "hung"), ("csrf", others.as_str())];
    let back = site.post("/break", &other, &denied).await;
    assert!(back.header("location").is_some_and(|to| to.ends_with("denied")), "{back:?}");
    let right = [("name", "orders/42"), ("token", text.as_str()), ("why", "hung since noon"), ("csrf", csrf.as_str())];
    let back = site.post("/break", &cookie, &right).await;
    let page = site.get(back.header("location").expect("back"), &cookie).await;
    assert!(page.body.contains("The lock was broken") && page.body.contains("next"), "{page:?}");
    assert!(page.body.contains(&format!("broken: token {token}, by ops")), "{page:?}");
    assert!(holder(&site, "orders/42").await > Some(token));
    let audit = site.audit();
    let lines: Vec<&str> = audit.lines().filter(|line| line.contains("\"verb\":\"break\"")).collect();
    let outcomes: Vec<bool> = ["not-held", "denied", "broken"].iter().zip(&lines).map(|(o, l)| l.contains(o)).collect();
    assert_eq!(outcomes, [true; 3], "{audit}");
    assert!(lines[2].contains("hung since noon") && lines[2].contains("\"token_id\":\"ops\""), "{audit}");
    assert!(!audit.contains(&me) && secrets.iter().all(|secret| !audit.contains(secret)), "{audit}");
}

#[tokio::test]
async fn a_request_of_another_site_is_refused() {
    let (site, secrets) = Site::guarded(&[("ops", &["*=read,break"])]).await;
    let token = site.take("x", "").await.1.expect("free");
    let (cookie, text) = (site.log_in(&secrets[0]).await, token.to_string());
    let other = site.log_in(&secrets[0]).await;
    let csrf = site.get("/", &cookie).await.quoted("name=\"csrf\" value=\"");
    let others = site.get("/", &other).await.quoted("name=\"csrf\" value=\"");
    assert_ne!(csrf, others, "each log-in has its own");
    let ours = "Sec-Fetch-Site: same-origin\r\n";
    for (more, csrf) in [
        ("Sec-Fetch-Site: cross-site\r\n", csrf.as_str()),
        ("Sec-Fetch-Site: same-site\r\n", &csrf),
        ("Sec-Fetch-Site: none\r\n", &csrf),
        ("Origin: http://evil.example\r\n", &csrf),
        ("Origin: null\r\n", &csrf),
        ("", &csrf),
        (ours, ""),
        (ours, "0"),
        (ours, &others),
    ] {
        let form = [("name", "x"), ("token", text.as_str()), ("why", "evil"), ("csrf", csrf)];
        let answer = site.post_with("/break", &cookie, more, &form).await;
        assert_eq!(answer.status, 403, "{more} {answer:?}");
        assert_eq!(holder(&site, "x").await, Some(token));
    }
    let answer = site.post_with("/login", "", "Sec-Fetch-Site: cross-site\r\n", &[("token", &secrets[0])]).await;
    assert_eq!((answer.status, answer.header("set-cookie")), (403, None), "another site logs no visitor in");
    assert!(!site.audit().contains("\"verb\":\"break\""), "{}", site.audit());
    // A form without a field, and one that is not a form.
    assert_eq!(site.post("/break", &cookie, &[("csrf", &csrf)]).await.status, 400);
    // An old browser says only where the page was from.
    let form = [("name", "x"), ("token", text.as_str()), ("why", "hung"), ("csrf", csrf.as_str())];
    assert_eq!(site.post_with("/break", &cookie, "Origin: http://localhost\r\n", &form).await.status, 303);
    assert_eq!(holder(&site, "x").await, None);
}
