//! Requests that no honest client sends, each made from one that an honest client or a browser sends.

use serde_json::{Value, json};

/// A request before it is bytes.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: &'static str,
    pub(crate) path: &'static str,
    /// The path as it is sent.
    target: Vec<u8>,
    query: Pairs,
    headers: Vec<Vec<u8>>,
    pub(crate) body: Body,
    /// Whether its path, its method and its headers are still those of an honest client.
    pub(crate) is_plain: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    None,
    Json(Value),
    Form(Pairs),
}

type Pairs = Vec<(&'static str, Vec<u8>)>;

fn pairs(of: &[(&'static str, &str)]) -> Pairs {
    of.iter().map(|(key, value)| (*key, value.as_bytes().to_vec())).collect()
}

fn request(method: &'static str, path: &'static str, header: &str, body: Body) -> Request {
    let headers = vec![b"Host: localhost".to_vec(), header.into()];
    Request { method, path, target: path.into(), query: Vec::new(), headers, body, is_plain: true }
}

fn look(path: &'static str, query: &[(&'static str, &str)]) -> Request {
    Request { query: pairs(query), ..request("GET", path, "Accept: */*", Body::None) }
}

fn post(path: &'static str, body: Value) -> Request {
    request("POST", path, "Content-Type: application/json", Body::Json(body))
}

fn form(path: &'static str, fields: &[(&'static str, &str)]) -> Request {
    let kind = "Content-Type: application/x-www-form-urlencoded\r\nSec-Fetch-Site: same-origin";
    request("POST", path, kind, Body::Form(pairs(fields)))
}

/// What a client or a browser knows that sends requests of its own.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The id of its holders.
    pub(crate) me: String,
    /// Its lock and its key.
    pub(crate) name: String,
    /// What the forms of the pages carry.
    pub(crate) csrf: String,
    /// The name of the cookie of a log-in.
    pub(crate) cookie: String,
}

impl Known {
    /// A request to each path. They wait for nothing: that would only take time.
    pub(crate) fn honest(&self) -> Vec<Request> {
        [self.locks(), self.recipes(), self.looks(), self.pages()].concat()
    }

    fn locks(&self) -> Vec<Request> {
        let (name, me) = (&self.name, &self.me);
        let pass = json!({ "lock": name, "token": 7, "holder": me });
        let claim = json!({ "name": name, "holder": me, "mode": "exclusive", "ttl_us": 30_000_000, "stamp_us": 1,
            "queue": false, "unsettled": false, "host": "h", "pid": 1, "label": "l" });
        let permit = json!({ "name": name, "holder": me, "ttl_ms": 30_000, "mode": "permit", "limit": 3, "pid": 7 });
        vec![
            post("/v1/acquire", permit),
            post("/v1/renew", json!({ "name": name, "holder": me, "ttl_ms": 30_000 })),
            post("/v1/release", json!({ "name": name, "holder": me, "unsettled": true })),
            post("/v1/break", json!({ "name": name, "token": 7, "why": "a test" })),
            post("/v1/registers/enter", json!({ "key": name, "pass": pass })),
            post("/v1/registers/write", json!({ "key": name, "pass": pass, "value64": "MQ==", "ttl_ms": 1000 })),
            post("/v1/claims/try-acquire", json!({ "claims": [claim] })),
            post("/v1/claims/renew", json!({ "claims": [claim] })),
            post("/v1/claims/release", json!({ "claims": [claim] })),
        ]
    }

    fn recipes(&self) -> Vec<Request> {
        let (name, me) = (&self.name, &self.me);
        let once = json!({ "key": name, "holder": me, "ttl_ms": 30_000, "wait_ms": 0, "fingerprint": "f", "schema": "1",
            "label": "l", "host": "h", "pid": 1 });
        let cron = json!({ "name": name, "holder": me, "cron": "0 3 * * *", "time_zone": "UTC", "catch_up": 2,
            "wait_ms": 0, "at_least_ms": 1000, "missed": false, "keep_history": 20 });
        let finish = |how: Value| {
            let mut body = json!({ "key": name, "holder": me, "token": 7 });
            body.as_object_mut().expect("fields").extend(how.as_object().expect("fields").clone());
            post("/v1/once/finish", body)
        };
        vec![
            post("/v1/once/begin", once),
            finish(json!({ "result": { "a": 1 }, "keep_ms": 1000 })),
            finish(json!({ "failure": "f", "for_good": true })),
            post(
                "/v1/elections/campaign",
                json!({ "name": name, "holder": me, "value": "v", "wait_ms": 0, "label": "l" }),
            ),
            post("/v1/elections/proclaim", json!({ "name": name, "holder": me, "term": 7, "value": "v" })),
            post("/v1/elections/resign", json!({ "name": name, "holder": me })),
            post("/v1/jobs/begin", cron),
            post("/v1/jobs/begin", json!({ "name": "y", "holder": me, "every_ms": 60_000, "ttl_ms": 30_000 })),
            post("/v1/jobs/end", json!({ "name": name, "holder": me, "token": 7, "ended": "done", "text": "t" })),
        ]
    }

    fn looks(&self) -> Vec<Request> {
        let name = ("name", self.name.as_str());
        let mut events = look("/v1/events", &[]);
        events.headers.push(format!("Lockkeeper-Keeper: {}", self.me).into());
        vec![
            look("/v1/info", &[]),
            look("/v1/lock", &[name]),
            look("/v1/locks", &[("prefix", ""), ("cursor", "78")]),
            look("/v1/registers", &[("key", &self.name)]),
            look("/v1/elections/leader", &[name]),
            look("/v1/jobs/history", &[name]),
            events,
            look("/v1/watch", &[("prefix", "")]),
            look("/v1/openapi.json", &[]),
            look("/metrics", &[]),
            look("/healthz", &[]),
            look("/readyz", &[]),
        ]
    }

    fn pages(&self) -> Vec<Request> {
        let (name, csrf) = (("name", self.name.as_str()), ("csrf", self.csrf.as_str()));
        let list = [("prefix", ""), ("sort", "held"), ("page", "0")];
        vec![
            look("/", &list),
            look("/lock", &[name, ("outcome", "broken")]),
            look("/health", &[]),
            look("/events", &[]),
            look("/live/locks", &list),
            look("/live/lock", &[name]),
            look("/live/health", &[]),
            look("/live/events", &[]),
            look("/login", &[]),
            look("/assets/style.css", &[]),
            look("/assets/live.js", &[]),
            form("/login", &[("token", "lk_ci_wrong")]),
            form("/logout", &[csrf]),
            form("/break", &[name, ("token", "7"), ("why", "a test"), csrf]),
        ]
    }
}

/// Values at the edges of what JSON, numbers and names can be.
fn odd(random: &mut fastrand::Rng) -> Value {
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    let all = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e308),
        json!(0.5),
        json!(""),
        json!("\0"),
        json!("\r\nX: y"),
        json!("\u{202e}\u{1b}[31m<script>"),
        json!("x".repeat(5000)),
        json!("f".repeat(32)),
        json!("%00%2F..%2F"),
        json!([]),
        json!({}),
        deep,
    ];
    random.choice(all).unwrap_or_default()
}

/// Values at the edges of what a query or a form can have.
fn odd_text(random: &mut fastrand::Rng) -> Vec<u8> {
    let all: [&[u8]; 20] = [
        b"",
        b"%",
        b"%f",
        b"%ff",
        b"%00",
        b"%F0%9F",
        b"%e2%80%ae%1b%5b31m%3Cscript%3E",
        b"%0d%0aX:%20y",
        b"\xff\xfe",
        b"\xe2\x80\xae<script>",
        b"0",
        b"-1",
        b"1e9",
        b"18446744073709551615",
        b"36893488147419104",
        b"18446744073709551616",
        b"../../etc/passwd",
        b"x=y&=&&;",
        &[b'7'; 5000],
        &[b'%'; 600],
    ];
    random.choice(all).unwrap_or_default().to_vec()
}

/// One value somewhere in it becomes another one, goes away or comes twice.
fn changed_json(value: &mut Value, random: &mut fastrand::Rng) {
    match value {
        Value::Object(fields) if !fields.is_empty() && random.u8(..) < 250 => {
            let key = random.choice(fields.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
            match random.u8(0..10) {
                0 => _ = fields.remove(&key),
                1 => {
                    let new = random.choice(["name_hex", "key_hex", "__proto__", ""]).unwrap_or_default();
                    fields.insert(new.to_owned(), odd(random));
                }
                _ => changed_json(&mut fields[&key], random),
            }
        }
        Value::Array(items) if !items.is_empty() && random.bool() => {
            let at = random.usize(0..items.len());
            changed_json(&mut items[at], random);
        }
        other => *other = odd(random),
    }
}

/// The same for a query or a form.
fn changed_pairs(pairs: &mut Pairs, random: &mut fastrand::Rng) {
    let at = random.usize(0..=pairs.len());
    match random.u8(0..10) {
        0 if at < pairs.len() => _ = pairs.remove(at),
        1 if at < pairs.len() => pairs.push(pairs[at].clone()),
        2..8 if at < pairs.len() => pairs[at].1 = odd_text(random),
        _ => {
            let all = ["name", "name_hex", "prefix_hex", "key", "key_hex", "page", "sort", "outcome", "csrf", "%", ""];
            pairs.insert(at, (random.choice(all).unwrap_or_default(), odd_text(random)));
        }
    }
}

/// A line of a head. None says that a body is to come: the gateway would wait for it.
fn odd_header(cookie: &str, random: &mut fastrand::Rng) -> Vec<u8> {
    let all: [&[u8]; 25] = [
        b"Cookie: ;;;=;=",
        b"Cookie: \xff\xfe=\x80",
        b"Authorization: Bearer",
        b"Authorization: Bearer lk__",
        b"Authorization: Basic \xff",
        b"Lockkeeper-Keeper: zz",
        b"Lockkeeper-Keeper: 00000000000000000000000000000000",
        b"Host: evil.example",
        b"Host:",
        b"Host: [::",
        b"Content-Type: application/json; charset=\xff",
        b"Content-Type: multipart/form-data",
        b"Content-Length: -1",
        b"Content-Length: 18446744073709551616",
        b"Transfer-Encoding: gzip",
        b"Connection: upgrade\r\nUpgrade: websocket",
        b"Expect: 100-continue",
        b"Origin: null",
        b"Sec-Fetch-Site: cross-site",
        b"Range: bytes=9-1",
        b"Last-Event-ID: \x01",
        b"X-Forwarded-For: 127.0.0.1, ::",
        b"No colon",
        b": no name",
        b" folded: x",
    ];
    match random.u8(0..10) {
        0 => format!("Cookie: {cookie}={}", "0".repeat(64)).into(),
        1 => [format!("Cookie: {cookie}=").as_bytes(), &odd_text(random)].concat(),
        2 => format!("Cookie: {}", "a=b; ".repeat(1500)).into(),
        3 => "X: y\r\n".repeat(120).trim_end().into(),
        _ => random.choice(all).unwrap_or_default().to_vec(),
    }
}

impl Request {
    /// Makes one that no honest client sends.
    pub(crate) fn change(&mut self, known: &Known, random: &mut fastrand::Rng) {
        match &mut self.body {
            Body::Json(value) => changed_json(value, random),
            Body::Form(fields) => changed_pairs(fields, random),
            Body::None => changed_pairs(&mut self.query, random),
        }
        if random.u8(0..4) != 0 {
            return;
        }
        self.is_plain = false;
        match random.u8(0..8) {
            0 => self.method = random.choice(["HEAD", "PUT", "OPTIONS", "TRACE", "get", "~"]).unwrap_or_default(),
            1 => self.change_target(random),
            2 => _ = self.headers.remove(random.usize(0..self.headers.len())),
            _ => self.headers.insert(random.usize(0..=self.headers.len()), odd_header(&known.cookie, random)),
        }
    }

    fn change_target(&mut self, random: &mut fastrand::Rng) {
        let at = random.usize(0..=self.target.len());
        let all: [&[u8]; 10] =
            [b"/", b"//", b"/../", b"%00", b"%2e%2e%2f", b";", b"\xff", b" ", b"\0", b"http://evil.example"];
        self.target.splice(at..at, random.choice(all).unwrap_or_default().iter().copied());
    }

    /// As it is sent. Now and then a byte of the body is another one, so that it is no JSON and no form.
    pub(crate) fn bytes(&self, token: Option<&str>, random: &mut fastrand::Rng) -> Vec<u8> {
        let mut target = self.target.clone();
        if !self.query.is_empty() {
            target.push(b'?');
            target.extend(joined(&self.query));
        }
        let mut body = match &self.body {
            Body::None => Vec::new(),
            Body::Json(value) => value.to_string().into_bytes(),
            Body::Form(fields) => joined(fields),
        };
        let mut headers = self.headers.clone();
        headers.extend(token.map(|token| format!("Authorization: Bearer {token}").into_bytes()));
        if self.body != Body::None {
            headers.push(format!("Content-Length: {}", body.len()).into());
        }
        headers.push(b"Connection: close\r\n\r\n".to_vec());
        if !body.is_empty() && random.u8(0..4) == 0 {
            let at = random.usize(0..body.len());
            body[at] = random.u8(..);
        }
        [self.method.as_bytes(), b" ", &target, b" HTTP/1.1\r\n", &headers.join(&b"\r\n"[..]), &body].concat()
    }
}

fn joined(pairs: &Pairs) -> Vec<u8> {
    let pairs: Vec<Vec<u8>> = pairs.iter().map(|(key, value)| [key.as_bytes(), b"=", value].concat()).collect();
    pairs.join(&b'&')
}
