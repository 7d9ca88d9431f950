//! What a gateway says of the store behind it.

use super::micros;
use crate::store::{Guarantee, StoreInfo};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The answer to `GET /v1/info`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `StoreInfo`")]
pub struct Info {
    pub v: u32,
    pub gateway: String,
    pub store: String,
    pub tokens: String,
    pub guarantee: String,
    pub queue: bool,
    pub shared: bool,
    pub permits: bool,
    pub push: bool,
    pub decisive: bool,
    pub registers: bool,
    pub ttl_floor_us: u64,
    pub ttl_ceiling_us: u64,
    pub ttl_factor: u32,
    pub hand_over_slack_us: u64,
}

impl Info {
    /// Of a store.
    pub fn of(info: &StoreInfo, gateway: String, registers: bool) -> Self {
        Self {
            v: super::VERSION,
            gateway,
            store: info.scheme.into(),
            tokens: info.tokens.to_string(),
            guarantee: info.guarantee.as_str().into(),
            queue: info.queue,
            shared: info.shared,
            permits: info.permits,
            push: info.push,
            decisive: info.decisive,
            registers,
            ttl_floor_us: micros(info.ttl_floor),
            ttl_ceiling_us: micros(info.ttl_ceiling),
            ttl_factor: info.ttl_factor,
            hand_over_slack_us: micros(info.hand_over_slack),
        }
    }

    /// What a store behind this gateway can do and promise, under a scheme of its own.
    pub fn store_info(&self, scheme: &'static str) -> StoreInfo {
        let us = Duration::from_micros;
        // A gateway that is newer may know a guarantee that this version does not: then nothing is promised.
        let guarantee = Guarantee::from_word(&self.guarantee).unwrap_or(Guarantee::BestEffort);
        StoreInfo {
            queue: self.queue,
            shared: self.shared,
            permits: self.permits,
            push: self.push,
            decisive: self.decisive,
            tokens: self.tokens.clone().into(),
            ttl_floor: us(self.ttl_floor_us),
            ttl_ceiling: us(self.ttl_ceiling_us),
            ttl_factor: self.ttl_factor,
            hand_over_slack: us(self.hand_over_slack_us),
            ..StoreInfo::new(scheme, guarantee)
        }
    }
}
