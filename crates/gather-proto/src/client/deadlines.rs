//! Deadlines after which a silent pull is given up.
//!
//! Leaves out: the reassignment of its ranges (`client`), and slow pulls (`balance`).

use super::{Client, Pull, PullId, State};
use anabranch_codes::Symbol;
use anabranch_units::{Duration, Instant};

/// Factor by which the deadline grows while the server's other pulls receive packets: on a lossy
/// path, each packet of this pull may have been lost.
const UNHEARD_MAX: u64 = 4;
/// Maximum wait for the first packet of a pull before shorter packets are requested.
const FIRST_MAX: Duration = Duration::from_secs(2);

impl<S: Symbol> Client<S> {
    /// All pulls, each with its deadline if no further packet arrives.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = (PullId, &Pull<S>, Instant)> {
        // A server sends one pull after the other, so each waits while packets of the earlier ones
        // arrive.
        let mut turns: Vec<Option<Instant>> = vec![None; self.servers.len()];
        self.pulls.iter().map(move |(id, pull)| {
            let turn = &mut turns[pull.server.0 as usize];
            let dead_at = self.dead_at(pull, *turn);
            if let State::Receiving(receiver) = &pull.state {
                *turn = receiver.heard_at().max(*turn);
            }
            (*id, pull, dead_at)
        })
    }

    /// Whether the pull's packets may exceed the MTU of a link on the path.
    pub(super) fn may_be_too_long(&self, pull: &Pull<S>) -> bool {
        let came = self.servers[pull.server.0 as usize].came_block_bytes;
        pull.block_bytes > self.config.block_bytes_safe.max(came)
    }

    /// Deadline of a pull whose server sent other pulls until `turn_at`.
    fn dead_at(&self, pull: &Pull<S>, turn_at: Option<Instant>) -> Instant {
        let (heard_at, is_accepted) = match &pull.state {
            State::Receiving(receiver) => (receiver.heard_at(), true),
            State::Asked { .. } => (None, false),
        };
        let of_pull = heard_at.unwrap_or(pull.asked_at);
        let of_pull = of_pull.max(turn_at.unwrap_or(of_pull));
        let give_up = self.config.give_up;
        match heard_at {
            None if !is_accepted => pull.asked_at + give_up,
            None if self.may_be_too_long(pull) => of_pull + give_up.min(FIRST_MAX),
            _ => {
                let of_server = self.servers[pull.server.0 as usize].heard_at.unwrap_or(of_pull);
                (of_server + give_up).clamp(of_pull + give_up, of_pull + give_up * UNHEARD_MAX)
            }
        }
    }
}
