//! What an engine's pages take, as the ledger knows it.

use super::Member;
use lichen_memory::{Class, Level, Reach, Reservation};
use std::sync::Arc;

/// Bytes of keys and values of one engine. Without a governor nothing is counted and nothing is short.
pub(crate) struct Account {
    kept: Option<Kept>,
}

struct Kept {
    member: Arc<Member>,
    floor: Reservation,
    surplus: Reservation,
    cache: Reservation,
}

/// What pages take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Use {
    /// What the running sequences need at the smallest precision.
    pub(crate) promised: u64,
    /// Bytes of their pages.
    pub(crate) active: u64,
    /// Bytes of pages that only the cache holds.
    pub(crate) cached: u64,
}

impl Account {
    pub(crate) fn new(member: Option<Arc<Member>>) -> Self {
        let kept = member.map(|member| {
            let empty = |class| {
                let reserved = member.ledger().reserve(&member.owner, class, 0);
                reserved.expect("nothing always has room")
            };
            let [floor, surplus, cache] = [Class::KvFloor, Class::KvSurplus, Class::PrefixCache].map(empty);
            Kept { member, floor, surplus, cache }
        });
        Self { kept }
    }

    pub(crate) fn member(&self) -> Option<&Arc<Member>> {
        self.kept.as_ref().map(|kept| &kept.member)
    }

    pub(crate) fn level(&self) -> Level {
        self.kept.as_ref().map_or(Level::Normal, |kept| kept.member.level())
    }

    /// Bytes that this engine's pages may come to.
    pub(crate) fn ceiling(&self) -> u64 {
        let Some(kept) = &self.kept else { return u64::MAX };
        let totals = kept.member.ledger().totals();
        kept.own().saturating_add(totals.within(Reach::Budget).saturating_sub(totals.mapped))
    }

    /// Bytes that pages of running sequences may come to at the smallest precision: all that nobody else is promised.
    /// The oldest sequence of the process has the right of way over the others.
    pub(crate) fn most_active(&self) -> u64 {
        let Some(Kept { member, floor, .. }) = &self.kept else { return u64::MAX };
        let totals = member.ledger().totals();
        let others = totals.kv_promised.saturating_sub(floor.bytes());
        let room = totals.within(Reach::Margin).saturating_sub(totals.stationary);
        if others > 0 && member.has_right_of_way() { room } else { room.saturating_sub(others) }
    }

    /// Brings the ledger to what pages take, or are about to take. What there is no room for stays out of it: that is
    /// only ever the one sequence that must go on, and shows as drift between ledger and process.
    pub(crate) fn settle(&mut self, used: Use) {
        let Some(Kept { floor, surplus, cache, .. }) = &mut self.kept else { return };
        let mapped = used.active.min(used.promised);
        let over = used.active - mapped;
        // First what shrinks, so that there is room for what grows.
        floor.unmap(floor.mapped().saturating_sub(mapped));
        floor.shrink(floor.bytes().saturating_sub(used.promised));
        for (reservation, bytes) in [(&mut *surplus, over), (&mut *cache, used.cached)] {
            reservation.shrink(reservation.bytes().saturating_sub(bytes));
        }
        let reach = Reach::Margin;
        let _ = floor.grow_within(used.promised.saturating_sub(floor.bytes()), reach);
        let _ = floor.map(mapped.min(floor.bytes()).saturating_sub(floor.mapped()), reach);
        for (reservation, bytes) in [(&mut *surplus, over), (&mut *cache, used.cached)] {
            let _ = reservation.grow(bytes.saturating_sub(reservation.bytes()));
        }
    }

    /// Promises so many bytes in all, if there is room for what that adds.
    pub(crate) fn promise(&mut self, bytes: u64, reach: Reach) -> bool {
        let Some(Kept { floor, .. }) = &mut self.kept else { return true };
        floor.grow_within(bytes.saturating_sub(floor.bytes()), reach).is_ok()
    }
}

impl Kept {
    /// Bytes of this engine's pages.
    fn own(&self) -> u64 {
        self.floor.mapped() + self.surplus.bytes() + self.cache.bytes()
    }
}
