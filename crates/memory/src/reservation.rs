//! One reservation of a ledger.

use crate::ledger::{Bytes, Charge, charge};
use crate::{Class, Ledger, OverBudget, Owner, Reach};

/// Bytes of a ledger that are somebody's until this value is dropped.
#[derive(Debug)]
#[must_use = "the bytes are given back at once when the reservation is dropped"]
pub struct Reservation {
    ledger: Ledger,
    owner: Owner,
    class: Class,
    bytes: Bytes,
}

impl Reservation {
    pub(crate) fn empty(ledger: Ledger, owner: Owner, class: Class) -> Self {
        Self { ledger, owner, class, bytes: Bytes::default() }
    }

    /// Bytes reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes.reserved
    }

    /// Bytes with memory behind them. Only a [`Class::KvFloor`] can have fewer than it has reserved.
    pub fn mapped(&self) -> u64 {
        self.bytes.mapped
    }

    /// What it is for.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Whose it is.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Reserves more, and leaves the margin alone.
    ///
    /// # Errors
    /// If there is no room. The reservation stays as it was.
    pub fn grow(&mut self, bytes: u64) -> Result<(), OverBudget> {
        self.grow_within(bytes, Reach::Budget)
    }

    /// Reserves more within the budget, or within the margin too.
    ///
    /// # Errors
    /// If there is no room. The reservation stays as it was.
    pub fn grow_within(&mut self, bytes: u64, reach: Reach) -> Result<(), OverBudget> {
        let mapped = if self.class == Class::KvFloor { 0 } else { bytes };
        let more = Bytes { reserved: bytes, mapped };
        let wanted = Bytes {
            reserved: self.bytes.reserved.saturating_add(bytes),
            mapped: self.bytes.mapped.saturating_add(mapped),
        };
        self.change(self.class, wanted, charge(self.class, more), reach)
    }

    /// Gives bytes back, at most all, those without memory behind them first. Returns how many.
    pub fn shrink(&mut self, bytes: u64) -> u64 {
        let reserved = self.bytes.reserved.saturating_sub(bytes);
        let released = self.bytes.reserved - reserved;
        self.set(Bytes { reserved, mapped: self.bytes.mapped.min(reserved) });
        released
    }

    /// Puts memory behind more bytes of a [`Class::KvFloor`]; everything else has it from the start. To be
    /// called before the memory is touched.
    ///
    /// # Errors
    /// If so much isn't reserved, or if revocable bytes fill the room: the error's `need` less its
    /// `available` is what has to be revoked first.
    pub fn map(&mut self, bytes: u64, reach: Reach) -> Result<(), OverBudget> {
        let unmapped = self.bytes.reserved - self.bytes.mapped;
        if bytes > unmapped {
            return Err(self.ledger.lock().refusal(&self.owner, self.class, bytes, unmapped));
        }
        let wanted = Bytes { mapped: self.bytes.mapped + bytes, ..self.bytes };
        self.change(self.class, wanted, Charge { promised: 0, mapped: bytes }, reach)
    }

    /// Says that bytes of a [`Class::KvFloor`] have no memory behind them any more; they stay promised.
    /// Returns how many, which is none for every other class: those are given back with
    /// [`Reservation::shrink`].
    pub fn unmap(&mut self, bytes: u64) -> u64 {
        if self.class != Class::KvFloor {
            return 0;
        }
        let unmapped = bytes.min(self.bytes.mapped);
        self.set(Bytes { mapped: self.bytes.mapped - unmapped, ..self.bytes });
        unmapped
    }

    /// Splits off a reservation of at most so many bytes, those with memory behind them first.
    pub fn split(&mut self, bytes: u64) -> Self {
        let reserved = bytes.min(self.bytes.reserved);
        let part = Bytes { reserved, mapped: reserved.min(self.bytes.mapped) };
        // The sums of the account don't change, so it needn't know.
        self.bytes = self.bytes.less(part);
        Self { ledger: self.ledger.clone(), owner: self.owner.clone(), class: self.class, bytes: part }
    }

    /// Moves it to another class. A [`Class::KvFloor`] is mapped in full by that.
    ///
    /// # Errors
    /// If it would become a promise, or get memory, that there is no room for. It stays as it was then.
    pub fn convert(&mut self, class: Class) -> Result<(), OverBudget> {
        let mapped = if class == Class::KvFloor { self.bytes.mapped } else { self.bytes.reserved };
        let wanted = Bytes { mapped, ..self.bytes };
        let (old, new) = (charge(self.class, self.bytes), charge(class, wanted));
        let added = Charge {
            promised: new.promised.saturating_sub(old.promised),
            mapped: new.mapped.saturating_sub(old.mapped),
        };
        self.change(class, wanted, added, Reach::Budget)
    }

    /// Takes on new bytes and class if there is room for what that adds.
    fn change(&mut self, class: Class, wanted: Bytes, added: Charge, reach: Reach) -> Result<(), OverBudget> {
        if (class, wanted) == (self.class, self.bytes) {
            return Ok(());
        }
        let mut account = self.ledger.lock();
        account.check(&self.owner, class, added, reach)?;
        account.replace(&self.owner, (self.class, self.bytes), (class, wanted));
        drop(account);
        (self.class, self.bytes) = (class, wanted);
        Ok(())
    }

    /// Takes on fewer bytes.
    fn set(&mut self, fewer: Bytes) {
        if fewer == self.bytes {
            return;
        }
        self.ledger.lock().replace(&self.owner, (self.class, self.bytes), (self.class, fewer));
        self.bytes = fewer;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set(Bytes::default());
    }
}
