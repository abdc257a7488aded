//! The share of a server that one client has over all its connections: pulls, memory, turns at hashing.

use super::hashes::{Turns, turns};
use anabranch_gather_proto::Usage;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A client's share. Its connections are numbered.
pub struct Share {
    parts: Mutex<BTreeMap<u64, Part>>,
    /// Its turns at hashing.
    pub turns: Turns,
}

/// What one of its connections has, or several together.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Memory.
    pub usage: Usage,
    /// Pulls, each with a file.
    pub pulls: usize,
}

impl Share {
    /// Of a client that has just come.
    pub fn new() -> Self {
        Self { parts: Mutex::default(), turns: turns() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Part>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection take something, which is shown what the others have and says what it has then. Nobody else takes
    /// something meanwhile.
    pub fn take<T>(&self, connection: u64, f: impl FnOnce(Part) -> (Part, T)) -> T {
        let mut parts = self.lock();
        let others = parts.iter().filter(|(number, _)| **number != connection).fold(
            Part::default(),
            |sum, (_, part)| Part { usage: sum.usage + part.usage, pulls: sum.pulls + part.pulls },
        );
        let (part, result) = f(others);
        parts.insert(connection, part);
        result
    }

    /// A connection is gone.
    pub fn leave(&self, connection: u64) {
        self.lock().remove(&connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_sees_what_the_others_have() {
        let share = Share::new();
        let part = |pulls| Part { pulls, ..Part::default() };
        assert_eq!(share.take(1, |others| (part(3), others.pulls)), 0);
        assert_eq!(share.take(2, |others| (part(4), others.pulls)), 3);
        assert_eq!(share.take(1, |others| (part(5), others.pulls)), 4);
        share.leave(2);
        assert_eq!(share.take(3, |others| (part(0), others.pulls)), 5);
    }
}
