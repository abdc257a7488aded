//! The controller's sessions with its sites. The state machine is `anabranch_sessions`.
//!
//! Commands must not be lost, so a site's process continues its numbering of commands after a
//! silence. Read [`site_sessions`].

use crate::control::Command;
use anabranch_sessions::{OverflowRule, Rejoin, Sessions, SessionsConfig};
use anabranch_units::{Duration, SiteId};

/// Maximum number of commands that wait for one site. A site with more waiting commands must join
/// again.
const QUEUE_MAX: usize = 16_384;
/// Maximum number of commands in one answer.
const COMMANDS_TOGETHER_MAX: usize = 256;

/// The controller's side of its sites' sessions.
pub type SiteSessions = Sessions<SiteId, Command>;

/// Sessions in which a site counts as lost after a silence of `grace`. Initially no site has
/// joined.
pub const fn site_sessions(grace: Duration) -> SiteSessions {
    Sessions::new(SessionsConfig {
        silence_max: grace,
        polls_keep_alive: true,
        rejoin: Rejoin::Resumes,
        mailbox_max: QUEUE_MAX,
        overflow: OverflowRule::EndsSession,
        answer_max: COMMANDS_TOGETHER_MAX,
    })
}
