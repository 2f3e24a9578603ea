//! Numbers by chance, and the memory that others take.

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// From `first` to `last`, both included.
    pub(crate) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.next() % (last - first + 1)
    }

    /// From 0 to 1.
    pub(crate) fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// How another process of the control group takes memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Curve {
    Steady,
    /// 35 % of the limit over a minute.
    Ramp,
    /// 30 % within 3 seconds, held for 40, every 80.
    Steps,
    /// 30 % within 1 second, held for 40, every 80.
    Shocks,
    /// Up to 40 %, at random.
    Walk,
    /// From nothing to 30 % and back every 20 seconds.
    SawTooth,
}

impl Curve {
    pub(crate) const ALL: [Self; 6] =
        [Self::Steady, Self::Ramp, Self::Steps, Self::Shocks, Self::Walk, Self::SawTooth];
}

/// The memory that the other process has, by tenths of a second.
pub(crate) struct Pressure {
    pub(crate) curve: Curve,
    pub(crate) limit: u64,
    /// Where in its period the curve starts.
    pub(crate) phase: u64,
    /// After this tenth it is gone.
    pub(crate) end: u64,
    pub(crate) walk: f64,
}

impl Pressure {
    pub(crate) fn bytes(&mut self, tenth: u64, random: &mut Random) -> u64 {
        if tenth >= self.end {
            return 0;
        }
        let time = tenth + self.phase;
        let step = |rise: u64| match time % 800 {
            at if at < 400 => 0.0,
            at => 0.30 * ((at - 400) as f64 / rise as f64).min(1.0),
        };
        let part = match self.curve {
            Curve::Steady => 0.0,
            Curve::Ramp => 0.35 * (tenth as f64 / 600.0).min(1.0),
            Curve::Steps => step(30),
            Curve::Shocks => step(10),
            Curve::Walk => {
                self.walk = (self.walk + (random.part() - 0.5) * 0.02).clamp(0.0, 0.4);
                self.walk
            }
            Curve::SawTooth => 0.003 * (time % 200).min(200 - time % 200) as f64,
        };
        (self.limit as f64 * part) as u64
    }
}
