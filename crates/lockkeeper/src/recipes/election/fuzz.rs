//! Fuzz target: what stands in the register of an election, also when another program wrote it.

use super::proclaimed::{Proclaimed, latest};
use crate::token::Token;

#[test]
fn proclamations_are_read() {
    testkit::fuzz("recipe_values", |bytes| {
        let Ok(found) = serde_json::from_slice::<Proclaimed>(bytes) else { return };
        assert!(
            latest(None, Some(&found)) == found.term && found.leads(Token::MAX) == (found.term >= Token::MAX.get())
        );
        let _ = found.leader().map_err(|e| e.to_string());
    });
}
