//! When the next report is due: pure but for the dice.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// The longest pause while a gateway is away. A gateway that starts anew hears of its nodes no later than this.
const LONGEST: Duration = Duration::from_secs(5);
/// The shortest period that a gateway can ask for.
const SHORTEST: Duration = Duration::from_millis(20);

/// The pace of reports to one gateway.
#[derive(Debug)]
pub(super) struct Pace {
    period: Duration,
    /// What the gateway wants instead.
    wanted: Option<Duration>,
    /// Reports in a row that did not arrive.
    misses: u32,
    heard_once: bool,
}

impl Pace {
    pub(super) fn new(period: Duration) -> Self {
        Self { period, wanted: None, misses: 0, heard_once: false }
    }

    /// A report has arrived. Returns whether that is news.
    pub(super) fn heard(&mut self, wanted: Duration) -> bool {
        self.wanted =
            Some(wanted).filter(|wanted| !wanted.is_zero()).map(|wanted| wanted.clamp(SHORTEST, LONGEST));
        let news = self.misses > 0 || !self.heard_once;
        (self.misses, self.heard_once) = (0, true);
        news
    }

    /// A report has not arrived. Returns whether that is news.
    pub(super) fn missed(&mut self) -> bool {
        self.misses = self.misses.saturating_add(1);
        self.misses == 1
    }

    /// Whether the last report did not arrive.
    pub(super) fn is_away(&self) -> bool {
        self.misses > 0
    }

    /// The time until the next report. While the gateway is away it doubles, and is drawn at random, so that nodes don't
    /// come back all at once.
    pub(super) fn pause(&self) -> Duration {
        let random = RandomState::new().build_hasher().finish();
        self.pause_with(random as f64 / u64::MAX as f64)
    }

    /// The same for a throw of the dice from 0 to 1.
    fn pause_with(&self, dice: f64) -> Duration {
        let period = self.wanted.unwrap_or(self.period);
        match self.misses {
            0 => period,
            misses => {
                let doubled = period.saturating_mul(2u32.saturating_pow(misses)).min(LONGEST.max(period));
                doubled.mul_f64(0.5 + 0.5 * dice)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_gateway_may_set_the_pace() {
        let mut pace = Pace::new(SECOND);
        assert_eq!(pace.pause_with(0.5), SECOND);
        pace.heard(Duration::from_millis(250));
        assert_eq!(pace.pause_with(0.5), Duration::from_millis(250));
        pace.heard(Duration::ZERO);
        assert_eq!(pace.pause_with(0.5), SECOND);
    }

    #[test]
    fn only_changes_between_heard_and_missed_are_news() {
        let mut pace = Pace::new(SECOND);
        let news = [pace.heard(SECOND), pace.heard(SECOND), pace.missed(), pace.missed(), pace.heard(SECOND)];
        assert_eq!(news, [true, false, true, false, true]);
    }

    #[test]
    fn pauses_grow_while_nobody_answers_and_end_with_an_answer() {
        let mut pace = Pace::new(SECOND);
        let mut pauses = Vec::new();
        for _ in 0..4 {
            pace.missed();
            pauses.push(pace.pause_with(1.0).as_secs());
        }
        assert_eq!(pauses, [2, 4, 5, 5]);
        pace.heard(Duration::ZERO);
        assert_eq!(pace.pause_with(1.0), SECOND);
    }

    proptest! {
        #[test]
        fn no_pause_is_longer_than_the_longest_or_shorter_than_half_a_period(
            period in 20u64..10_000, misses in 0u32..100, dice in 0.0..=1.0f64,
        ) {
            let period = Duration::from_millis(period);
            let mut pace = Pace::new(period);
            (0..misses).for_each(|_| _ = pace.missed());
            let pause = pace.pause_with(dice);
            prop_assert!(pause >= period.mul_f64(0.5) && pause <= LONGEST.max(period), "{pause:?}");
        }
    }
}
