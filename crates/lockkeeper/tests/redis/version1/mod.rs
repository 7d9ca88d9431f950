//! A client of the first version, by its own scripts, for as long as a fleet may be upgraded machine by machine.

use redis::Value;
use std::time::{Duration, Instant};
use testkit::RedisServer;

const ACQUIRE: &str =
    concat!(include_str!("acquire_fast.lua"), include_str!("common.lua"), include_str!("acquire.lua"));
const RENEW: &str = concat!(include_str!("renew_fast.lua"), include_str!("common.lua"), include_str!("renew.lua"));
const RELEASE: &str =
    concat!(include_str!("release_fast.lua"), include_str!("common.lua"), include_str!("release.lua"));

/// One claim of such a client.
pub(crate) struct Old {
    connection: redis::Connection,
    name: String,
    holder: String,
    ttl: Duration,
}

/// What its scripts answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Granted(u64),
    Held,
    Renewed,
    Lost,
}

impl Old {
    pub(crate) fn new(server: &RedisServer, name: &str, number: u32, ttl: Duration) -> Self {
        let client = redis::Client::open(server.url()).expect("a URL");
        let connection = client.get_connection().expect("connected");
        Self { connection, name: name.to_owned(), holder: format!("{number:032x}"), ttl }
    }

    fn run(&mut self, text: &str, args: &[String]) -> Vec<Value> {
        let script = redis::Script::new(text);
        let mut call = script.prepare_invoke();
        call.key(&self.name).key(format!("lk:f:{{{}}}", self.name)).key(format!("lk:q:{{{}}}", self.name));
        for arg in args {
            call.arg(arg);
        }
        call.invoke(&mut self.connection).expect("answered")
    }

    fn args(&self, waits: bool) -> [String; 8] {
        let ttl = self.ttl.as_millis().to_string();
        let waits = if waits { "1" } else { "0" };
        // Channels of the first version are hexadecimal.
        let channel = format!("{:032x}", 0xabc);
        [&self.holder, "x", &ttl, waits, &ttl, "1", &channel, "host:1:old"].map(ToString::to_string)
    }

    pub(crate) fn acquire(&mut self, waits: bool) -> Said {
        let args = self.args(waits);
        let reply = self.run(ACQUIRE, &args);
        match reply[0] {
            Value::Int(1) => Said::Granted(number(&reply[1])),
            Value::Int(0) => Said::Held,
            _ => panic!("{reply:?}"),
        }
    }

    pub(crate) fn renew(&mut self) -> Said {
        let args = self.args(true);
        let reply = self.run(RENEW, &args);
        match reply[0] {
            Value::Int(1) => Said::Renewed,
            Value::Int(2) => Said::Granted(number(&reply[1])),
            Value::Int(0) => Said::Held,
            Value::Int(3) => Said::Lost,
            _ => panic!("{reply:?}"),
        }
    }

    /// Asks as a waiter does until it holds the lock; its token.
    pub(crate) fn wait(&mut self, limit: Duration) -> u64 {
        let end = Instant::now() + limit;
        let mut said = self.acquire(true);
        loop {
            match said {
                Said::Granted(token) => return token,
                Said::Lost => said = self.acquire(true),
                _ => said = self.renew(),
            }
            assert!(Instant::now() < end, "never granted");
        }
    }

    /// Whether the claim was there.
    pub(crate) fn release(&mut self) -> bool {
        let args = [self.holder.clone(), "0".to_owned()];
        self.run(RELEASE, &args)[0] == Value::Int(1)
    }
}

fn number(value: &Value) -> u64 {
    redis::from_redis_value_ref::<String>(value).ok().and_then(|text| text.parse().ok()).expect("a number")
}
