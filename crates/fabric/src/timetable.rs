//! Timetables: states that an element takes in turns, each for a fixed time, repeated in every
//! period.
//!
//! A timetable is computed and not run: an element looks up the slot of an instant, and arms a
//! timer for the end of that slot only while it has packets to send. So an idle element costs no
//! events, and a run without packets ends. Leaves out: the meaning of a state (for example in
//! [`crate::CircuitSwitch`]). Read [`Timetable`] first.

use anabranch_units::{Duration, RunInstant};

/// A periodic sequence of slots, each with its length and its state. The first period begins at
/// [`RunInstant::ZERO`].
///
/// ```
/// use anabranch_fabric::Timetable;
/// use anabranch_units::{Duration, RunInstant};
/// let us = Duration::from_us;
/// let timetable = Timetable::new(vec![(us(180), "day"), (us(20), "night")]).expect("slots with a length");
/// let slot = timetable.at(RunInstant::from_us(385));
/// assert_eq!((*slot.state, slot.ends_at), ("night", RunInstant::from_us(400)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timetable<S> {
    /// End of each slot within the period, and the slot's state.
    slots: Vec<(Duration, S)>,
    period: Duration,
}

/// The slot that contains an instant.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Slot<'a, S> {
    /// The state during the slot.
    pub state: &'a S,
    /// The state in the following slot.
    pub next: &'a S,
    /// End of the slot. This instant belongs to the following slot.
    pub ends_at: RunInstant,
}

/// Reason why slots do not form a timetable.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimetableError {
    /// There are no slots.
    Empty,
    /// The length of a slot is zero.
    EmptySlot {
        /// Index of the slot.
        index: usize,
    },
}

impl std::fmt::Display for TimetableError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => write!(f, "timetable of 0 slots: must have at least 1"),
            Self::EmptySlot { index } => write!(f, "slot {index} of 0 s: must be at least 1 ps"),
        }
    }
}
impl std::error::Error for TimetableError {}

impl<S> Timetable<S> {
    /// Creates the timetable of these slots, which follow each other in this order.
    ///
    /// Errors: no slots, or a slot of length zero.
    /// Panics: if the period is longer than a [`Duration`] can hold.
    pub fn new(slots: Vec<(Duration, S)>) -> Result<Self, TimetableError> {
        if let Some(index) = slots.iter().position(|(length, _)| *length == Duration::ZERO) {
            return Err(TimetableError::EmptySlot { index });
        }
        let mut period = Duration::ZERO;
        let until = |(length, state)| {
            period += length;
            (period, state)
        };
        let slots: Vec<_> = slots.into_iter().map(until).collect();
        if slots.is_empty() { Err(TimetableError::Empty) } else { Ok(Self { slots, period }) }
    }

    /// Duration of a period.
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// Returns the slot that contains `now`. Cost: O(log n) for n slots.
    pub fn at(&self, now: RunInstant) -> Slot<'_, S> {
        let into = Duration::from_ps(now.as_ps() % self.period.as_ps());
        let index = self.slots.partition_point(|(until, _)| *until <= into);
        let (until, state) = &self.slots[index];
        let (_, next) = self.slots.get(index + 1).unwrap_or(&self.slots[0]);
        Slot { state, next, ends_at: now + (*until - into) }
    }

    /// Returns the length and the state of each slot, in order.
    pub fn slots(&self) -> impl Iterator<Item = (Duration, &S)> {
        let begins = std::iter::once(Duration::ZERO).chain(self.slots.iter().map(|(until, _)| *until));
        begins.zip(&self.slots).map(|(begin, (until, state))| (*until - begin, state))
    }
}

/// A timetable that a new timetable can replace at the end of a period.
#[derive(Clone, Debug)]
pub(crate) struct Replaceable<S> {
    current: Timetable<S>,
    /// Time at which the first period of `current` began.
    began_at: RunInstant,
    /// Next timetable, with the time at which its first period begins.
    next: Option<(RunInstant, Timetable<S>)>,
}

impl<S> Replaceable<S> {
    /// Creates the value with `timetable` in force from the beginning of the run.
    pub(crate) const fn new(timetable: Timetable<S>) -> Self {
        Self { current: timetable, began_at: RunInstant::ZERO, next: None }
    }

    /// The timetable in force.
    pub(crate) const fn current(&self) -> &Timetable<S> {
        &self.current
    }

    /// Returns the time since the current period began.
    pub(crate) fn time_in_period(&self, now: RunInstant) -> Duration {
        Duration::from_ps((now.as_ps() - self.began_at.as_ps()) % self.current.period().as_ps())
    }

    /// Returns the slot that contains `now`. `now` must be before the beginning of the next
    /// timetable.
    pub(crate) fn at(&self, now: RunInstant) -> Slot<'_, S> {
        let since = RunInstant::from_ps(now.as_ps() - self.began_at.as_ps());
        let slot = self.current.at(since);
        Slot { ends_at: now + (slot.ends_at - since), ..slot }
    }

    /// Schedules `timetable` to replace the current one at the first period that begins at `from`
    /// or later. A timetable that was scheduled before is discarded.
    pub(crate) fn replace(&mut self, from: RunInstant, timetable: Timetable<S>) {
        let into = self.time_in_period(from);
        let begin = if into == Duration::ZERO { from } else { from + (self.current.period() - into) };
        self.next = Some((begin, timetable));
    }

    /// Puts the next timetable into force if its first period has begun. Returns true if it did.
    pub(crate) fn turn(&mut self, now: RunInstant) -> bool {
        let Some((begin, timetable)) = self.next.take_if(|(begin, _)| *begin <= now) else { return false };
        (self.current, self.began_at) = (timetable, begin);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_without_length_are_refused() {
        let slots = |lengths: &[u64]| lengths.iter().map(|ps| (Duration::from_ps(*ps), ())).collect();
        assert_eq!(Timetable::<()>::new(slots(&[])), Err(TimetableError::Empty));
        assert_eq!(Timetable::new(slots(&[1, 0])), Err(TimetableError::EmptySlot { index: 1 }));
        assert_eq!(Timetable::new(slots(&[1, 1])).map(|t| t.period()), Ok(Duration::from_ps(2)));
    }

    #[test]
    fn new_timetable_begins_at_the_end_of_a_period() {
        let us = RunInstant::from_us;
        let timetable = |length, name| Timetable::new(vec![(Duration::from_us(length), name)]).unwrap();
        let mut both = Replaceable::new(timetable(10, "a"));
        both.replace(us(0), timetable(7, "b"));
        assert!(both.turn(us(0)), "a period begins now");
        both.replace(us(8), timetable(3, "c"));
        assert!(!both.turn(us(13)));
        assert_eq!((*both.at(us(13)).state, both.at(us(13)).ends_at), ("b", us(14)));
        assert!(both.turn(us(15)), "it began at 14");
        assert!(!both.turn(us(15)));
        assert_eq!((*both.at(us(15)).state, both.at(us(15)).ends_at), ("c", us(17)));
        assert_eq!(both.time_in_period(us(18)), Duration::from_us(1));
    }

    proptest! {
        /// The plain counterpart walks through the slots from the beginning.
        #[test]
        fn slot_of_an_instant_equals_a_walk(lengths in prop::collection::vec(1u64..9, 1..7), now in 0u64..99) {
            let slots = lengths.iter().enumerate().map(|(n, ps)| (Duration::from_ps(*ps), n)).collect();
            let timetable = Timetable::new(slots).expect("slots with a length");
            let mut walk = lengths.iter().enumerate().cycle();
            let (mut ends, mut state) = (0, 0);
            while ends <= now {
                let (n, length) = walk.next().expect("a cycle has no end");
                (ends, state) = (ends + length, n);
            }
            let slot = timetable.at(RunInstant::from_ps(now));
            prop_assert_eq!((*slot.state, slot.ends_at), (state, RunInstant::from_ps(ends)));
            prop_assert_eq!(*slot.next, (state + 1) % lengths.len());
            let back: Vec<u64> = timetable.slots().map(|(length, _)| length.as_ps()).collect();
            prop_assert_eq!(back, lengths);
        }
    }
}
