//! Where a schedule takes its decisions from: random numbers that are kept, or the kept ones again.

/// A schedule is the list of numbers that were drawn for it. After the end of a repeated list every draw is 0, so each
/// list is a schedule, also one that was cut.
pub struct Choices {
    rng: Option<fastrand::Rng>,
    pub drawn: Vec<u32>,
    at: usize,
}

impl Choices {
    pub fn random(seed: u64) -> Self {
        Self { rng: Some(fastrand::Rng::with_seed(seed)), drawn: Vec::with_capacity(256), at: 0 }
    }

    pub fn again(drawn: Vec<u32>) -> Self {
        Self { rng: None, drawn, at: 0 }
    }

    /// A number below `n`.
    pub fn pick(&mut self, n: usize) -> usize {
        let most = u32::try_from(n.max(1)).unwrap_or(u32::MAX);
        let drawn = match &mut self.rng {
            Some(rng) => {
                let drawn = rng.u32(..most);
                self.drawn.push(drawn);
                drawn
            }
            None => self.drawn.get(self.at).map_or(0, |drawn| drawn % most),
        };
        self.at += 1;
        drawn as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.pick(n) == n - 1
    }

    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.pick(all.len())]
    }
}

/// Makes a failing list shorter and smaller while it still fails, within so many runs.
pub fn shrink(mut list: Vec<u32>, mut runs: usize, fails: impl Fn(&[u32]) -> bool) -> Vec<u32> {
    let mut attempt = |list: &mut Vec<u32>, changed: Vec<u32>| {
        runs = runs.saturating_sub(1);
        let better = runs > 0 && fails(&changed);
        if better {
            *list = changed;
        }
        better
    };
    let mut size = list.len() / 2;
    while size > 0 {
        let mut from = 0;
        while from < list.len() {
            let rest = list.get(from + size..).unwrap_or_default();
            let changed = [&list[..from], rest].concat();
            if !attempt(&mut list, changed) {
                from += size;
            }
        }
        size /= 2;
    }
    for at in 0..list.len() {
        let (mut low, mut high) = (0, list[at]);
        while low < high {
            let mut changed = list.clone();
            changed[at] = low;
            if attempt(&mut list, changed) {
                high = low;
            } else {
                low += (high - low).div_ceil(2);
            }
        }
    }
    list
}
