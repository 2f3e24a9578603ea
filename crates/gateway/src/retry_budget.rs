//! How often a request that was told to come back may be sent to another node. Without a limit, retries keep an
//! overloaded fleet overloaded.

/// Retries that are always allowed, so that a quiet gateway retries at all.
const RESERVE: f32 = 10.0;

/// Requests pay in, retries are paid out.
#[derive(Debug, Clone)]
pub(crate) struct RetryBudget {
    share: f32,
    saved: f32,
}

impl RetryBudget {
    /// Allows retries of this share of all requests.
    pub(crate) fn new(share: f32) -> Self {
        Self { share: share.max(0.0), saved: RESERVE }
    }

    /// A request has come.
    pub(crate) fn earn(&mut self) {
        self.saved = (self.saved + self.share).min(RESERVE);
    }

    /// Whether a retry is allowed; if so it is paid for.
    pub(crate) fn spend(&mut self) -> bool {
        let allowed = self.share > 0.0 && self.saved >= 1.0;
        if allowed {
            self.saved -= 1.0;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_long_run_retries_are_a_share_of_requests() {
        let mut budget = RetryBudget::new(0.1);
        let mut retries = 0;
        for _ in 0..10_000 {
            budget.earn();
            retries += usize::from(budget.spend());
        }
        assert!((1000..=1011).contains(&retries), "{retries}");
    }

    #[test]
    fn no_share_means_no_retries() {
        assert!(!RetryBudget::new(0.0).spend());
    }
}
