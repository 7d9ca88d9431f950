//! "Did you mean": the known word that looks most like a wrong one.

/// The word of `known` that is most like `word`, if one is near: two letters may differ, in a short word one. Two
/// neighbours in the wrong order count as one.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = if word.chars().count() < 5 { 1 } else { 2 };
    let near = known.into_iter().map(|candidate| (distance(word, candidate), candidate));
    near.min_by_key(|(distance, _)| *distance).filter(|(distance, _)| *distance <= most).map(|(_, candidate)| candidate)
}

/// How many letters must be added, removed, changed or swapped with a neighbour to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    // Each row has, for one more letter of `one`, what it takes to each beginning of `other`.
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let changed = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_near_when_few_letters_differ() {
        assert_eq!((distance("run", "run"), distance("rnu", "run"), distance("", "abc")), (0, 1, 3));
        assert_eq!((distance("postgre", "postgres"), distance("kitten", "sitting")), (1, 3));
        assert_eq!(nearest("rnu", ["ls", "run"]), Some("run"));
        assert_eq!(nearest("dance", ["run", "ls", "man"]), None);
        assert_eq!(nearest("übr", ["über"]), Some("über"));
    }
}
