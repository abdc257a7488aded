//! A site's side of its session as a machine: whether the site is registered, and which commands it has taken over.
//!
//! Leaves out: how requests travel, and when they are tried again. Read [`SiteSession`] first.

use crate::controller::Position;

/// A site's process and its registration.
#[derive(Clone, Debug, Default)]
pub struct SiteSession {
    /// Counts registrations, so that two callers that were both told to register do so once.
    times: u64,
    is_registered: bool,
    queue: Option<u64>,
    after: u64,
}

impl SiteSession {
    /// Whether the site has to register before anything else.
    pub const fn must_register(&self) -> bool {
        !self.is_registered
    }

    /// How often it has registered: which registration a request belongs to.
    pub const fn times(&self) -> u64 {
        self.times
    }

    /// Up to where commands were taken over.
    pub fn position(&self) -> Position {
        Position { queue: self.queue.unwrap_or_default(), after: self.after }
    }

    /// The controller has taken the registration, with the numbering of its commands and the last one that it knows to be taken
    /// over.
    pub fn handle_registered(&mut self, queue: u64, after: u64) {
        // The same queue goes on where this site is, a new one counts anew.
        self.after = if self.queue == Some(queue) { self.after.max(after) } else { after };
        self.queue = Some(queue);
        self.times += 1;
        self.is_registered = true;
    }

    /// A request of the registration of this number was refused: the controller does not know the site (any more).
    pub fn handle_unknown(&mut self, times: u64) {
        if self.times == times {
            self.is_registered = false;
        }
    }

    /// Commands that answer a request of the registration of this number: those that are new, in order. `None` if the site has
    /// registered since: they are of another numbering, and what matters of them comes again.
    pub fn handle_commands<M>(&mut self, times: u64, commands: Vec<(u64, M)>) -> Option<Vec<M>> {
        if self.times != times {
            return None;
        }
        let mut new = Vec::with_capacity(commands.len());
        for (number, command) in commands {
            if number > self.after {
                self.after = number;
                new.push(command);
            }
        }
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_numbering_counts_anew_and_an_old_one_goes_on() {
        let forget = |number| (number, number);
        let mut site = SiteSession::default();
        assert!(site.must_register());
        site.handle_registered(7, 0);
        assert_eq!(site.handle_commands(1, vec![forget(1), forget(2)]).map(|new| new.len()), Some(2));
        // What was not acknowledged comes again, and is not carried out again.
        assert_eq!(site.handle_commands(1, vec![forget(2), forget(3)]).map(|new| new.len()), Some(1));
        site.handle_unknown(1);
        assert!(site.must_register());
        site.handle_registered(7, 1);
        assert_eq!((site.position().after, site.times()), (3, 2));
        // Two callers were told so; the second one comes late.
        site.handle_unknown(1);
        assert!(!site.must_register());
        // The controller was started again.
        site.handle_unknown(2);
        site.handle_registered(8, 0);
        assert_eq!(site.handle_commands(2, vec![forget(4)]), None, "an answer of before");
        assert_eq!(site.handle_commands(3, vec![forget(1)]).map(|new| new.len()), Some(1));
    }
}
