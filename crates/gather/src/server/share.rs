//! Resources that one client uses over all its connections: pulls, memory, and turns at hashing.

use super::hashes::{ClientTurns, turns};
use anabranch_gather_proto::Usage;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A client's resources, with the usage of each of its connections by connection number.
pub struct Share {
    parts: Mutex<BTreeMap<u64, UsagePart>>,
    /// The client's turns at hashing.
    pub turns: ClientTurns,
}

/// Usage of one connection, or of several together.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct UsagePart {
    /// Memory in use.
    pub usage: Usage,
    /// Number of pulls under way, each with an open file.
    pub pulls: usize,
}

impl Share {
    /// Creates the share of a new client, which uses no resources yet.
    pub fn new() -> Self {
        Self { parts: Mutex::default(), turns: turns() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, UsagePart>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates a connection's usage under the lock. `f` receives the total usage of the client's
    /// other connections, and returns the new usage of this connection.
    pub fn take<T>(&self, connection: u64, f: impl FnOnce(UsagePart) -> (UsagePart, T)) -> T {
        let mut parts = self.lock();
        let others = parts.iter().filter(|(number, _)| **number != connection).fold(
            UsagePart::default(),
            |sum, (_, part)| UsagePart { usage: sum.usage + part.usage, pulls: sum.pulls + part.pulls },
        );
        let (part, result) = f(others);
        parts.insert(connection, part);
        result
    }

    /// Removes the usage of a closed connection.
    pub fn leave(&self, connection: u64) {
        self.lock().remove(&connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_sees_the_usage_of_other_connections() {
        let share = Share::new();
        let part = |pulls| UsagePart { pulls, ..UsagePart::default() };
        assert_eq!(share.take(1, |others| (part(3), others.pulls)), 0);
        assert_eq!(share.take(2, |others| (part(4), others.pulls)), 3);
        assert_eq!(share.take(1, |others| (part(5), others.pulls)), 4);
        share.leave(2);
        assert_eq!(share.take(3, |others| (part(0), others.pulls)), 5);
    }
}
