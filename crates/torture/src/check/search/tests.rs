use super::*;

fn hold(asked: u64, granted: u64, free: u64, token: u64) -> Hold {
    Hold { wanted: Wanted::Exclusive, token, asked, granted, free }
}

#[test]
fn an_order_is_found_where_there_is_one() {
    // The second asks first, the third takes over at the moment of the end.
    let holds = [hold(5, 10, 20, 1), hold(0, 25, 30, 2), hold(0, 30, 40, 3)];
    assert_eq!(search(&holds), Outcome::default());
    // Ended by an operator before the answer came: its place is before the other hold.
    let holds = [hold(0, 50, 5, 1), hold(10, 20, 40, 2)];
    assert_eq!(search(&holds), Outcome::default());
    assert_eq!(search(&[]), Outcome::default());
}

#[test]
fn a_hold_inside_another_is_stuck_and_the_rest_is_judged() {
    let holds = [hold(0, 10, 50, 1), hold(20, 30, 40, 2), hold(41, 60, 70, 3), hold(61, 65, 66, 4)];
    let stuck = [Stuck { hold: 1, rivals: vec![0] }, Stuck { hold: 3, rivals: vec![2] }];
    assert_eq!(search(&holds).stuck, stuck);
}

#[test]
fn a_token_that_does_not_rise_is_stuck() {
    let holds = [hold(0, 10, 20, 7), hold(15, 30, 40, 7)];
    assert_eq!(search(&holds).stuck, [Stuck { hold: 1, rivals: vec![0] }]);
    // Only in the order of tokens, and the answers allow it.
    assert_eq!(search(&[hold(0, 10, 10, 2), hold(5, 10, 10, 1)]), Outcome::default());
    // The answers do not allow it.
    assert_eq!(search(&[hold(0, 10, 10, 2), hold(11, 20, 20, 1)]).stuck.len(), 1);
}

#[test]
fn without_tokens_all_orders_are_tried() {
    // The first answer belongs to a hold that was broken at 3: only placed last does it let the other two in.
    let holds = [hold(0, 40, 3, 0), hold(0, 41, 42, 0), hold(0, 43, 50, 0)];
    assert_eq!(search(&holds), Outcome::default());
    // Eight answers at one moment, of which seven were broken before: any of them may be first.
    let mut holds = vec![hold(0, 100, 0, 0); 7];
    holds.push(hold(0, 100, 200, 0));
    holds.push(hold(150, 160, 170, 0));
    assert_eq!(search(&holds).stuck.len(), 1);
}

#[test]
fn readers_and_permits_have_room_beside_each_other() {
    let with = |wanted, holds: &[Hold]| {
        let all: Vec<Hold> = holds.iter().map(|hold| Hold { wanted, ..*hold }).collect();
        search(&all).stuck.len()
    };
    let three = [hold(0, 10, 50, 0), hold(0, 20, 50, 0), hold(0, 30, 50, 0)];
    assert_eq!(with(Wanted::Shared, &three), 0);
    assert_eq!(with(Wanted::Permit(3), &three), 0);
    assert_eq!(with(Wanted::Permit(2), &three), 1);
    let mut all: Vec<Hold> = three.iter().map(|hold| Hold { wanted: Wanted::Shared, ..*hold }).collect();
    all.push(hold(0, 40, 60, 0));
    assert_eq!(search(&all).stuck.len(), 1);
}

#[test]
fn a_waiter_beside_thousands_of_calls_is_searched() {
    let mut holds: Vec<Hold> = (0..5_000).map(|n| hold(n * 10, n * 10 + 5, n * 10 + 9, n + 1)).collect();
    holds.push(hold(3, 50_000, 50_001, 9_000));
    assert_eq!(search(&holds), Outcome::default());
    holds.push(hold(3, 25_006, 25_007, 0));
    assert_eq!(search(&holds).stuck.len(), 1);
}

#[test]
fn the_hold_with_the_earliest_answer_need_not_be_first() {
    // The second was broken at 12. It fits before the first, and nowhere else.
    assert_eq!(search(&[hold(0, 100, 200, 0), hold(10, 110, 12, 0)]), Outcome::default());
    // It was broken at 12, and waits for its answer beside more calls than a take may span.
    let mut holds = vec![hold(0, 10_000, 12, 0), hold(50, 60, 20_000, 0)];
    holds.extend((0..40).map(|n| hold(100 + n, 20_010 + 10 * n, 20_015 + 10 * n, 0)));
    assert_eq!(search(&holds), Outcome::default());
}

#[test]
fn what_is_too_much_is_counted_and_the_rest_is_judged() {
    // Broken holds, all of them open at once: too many for one configuration.
    let mut holds: Vec<Hold> = (0..70).map(|n| hold(n, 1_000 + n, 500, 0)).collect();
    let after = [hold(2_000, 2_010, 2_100, 0), hold(2_020, 2_030, 2_040, 0)];
    holds.extend(after);
    assert_eq!(search(&holds), Outcome { stuck: vec![Stuck { hold: 71, rivals: vec![70] }], left_out: 70 });
    // With several ways open, all is left out up to the next quiet moment.
    let mut holds = vec![hold(0, 1_000, 50, 0), hold(0, 1_001, 50, 0)];
    holds.extend((0..90).map(|n| hold(100 + 10 * n, 105 + 10 * n, 108 + 10 * n, 0)));
    holds.extend(after);
    assert_eq!(search(&holds), Outcome { stuck: vec![Stuck { hold: 93, rivals: vec![92] }], left_out: 92 });
}
