//! Fuzz target: what stands in the register of a job, also when another program wrote it.

use super::book::Book;

#[test]
fn books_are_read() {
    testkit::fuzz("recipe_values", |bytes| {
        let Ok(book) = serde_json::from_slice::<Book>(bytes) else { return };
        let _ = format!("{:?} {:?}", book.history(true), book.history(false));
        assert_eq!(serde_json::from_slice::<Book>(&serde_json::to_vec(&book).unwrap()).unwrap(), book);
    });
}
