//! How often and how soon a dead child is replaced.

use std::time::{Duration, Instant};

/// A child that worked for this long has earned a fresh budget.
const FORGIVEN: Duration = Duration::from_secs(600);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// One child's budget.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    used: u32,
    ready_since: Option<Instant>,
}

impl Restarts {
    pub(crate) fn ready(&mut self, now: Instant) {
        self.ready_since.get_or_insert(now);
    }

    /// The child died: the pause before its successor, or `None` if the budget is used up.
    ///
    /// The first death costs no pause: clients wait.
    pub(crate) fn next(&mut self, now: Instant, most: u32) -> Option<Duration> {
        if self.ready_since.take().is_some_and(|since| now.duration_since(since) >= FORGIVEN) {
            self.used = 0;
        }
        if self.used >= most {
            return None;
        }
        self.used += 1;
        Some(match self.used {
            1 => Duration::ZERO,
            more => FIRST_PAUSE.saturating_mul(1 << (more - 2).min(16)).min(LONGEST_PAUSE),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_the_budget_ends() {
        let now = Instant::now();
        let mut restarts = Restarts::default();
        let pauses: Vec<_> = (0..10).map(|_| restarts.next(now, 9).map(|pause| pause.as_millis())).collect();
        let expected = [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000].map(Some);
        assert_eq!(pauses[..9], expected);
        assert_eq!(pauses[9], None);
        assert_eq!(Restarts::default().next(now, 0), None);
    }

    #[test]
    fn a_long_good_life_is_forgiven_and_a_short_one_is_not() {
        let now = Instant::now();
        let mut restarts = Restarts::default();
        assert_eq!(restarts.next(now, 1), Some(Duration::ZERO));
        restarts.ready(now);
        assert_eq!(restarts.next(now + FORGIVEN / 2, 1), None);
        restarts.ready(now);
        assert_eq!(restarts.next(now + FORGIVEN, 1), Some(Duration::ZERO));
    }
}
