//! Exit codes of all commands.
//!
//! 0 done; 1 failed; 2 wrong usage; 3 some destinations failed; 4 corrupt data was refused; 5
//! cancelled; 124 timeout; 130 interrupted. A transfer ends with 0, 1, 3, 4 or 5
//! ([`anabranch_replicate_proto::coordinator::Outcome::exit_code`]).

use anabranch_http::ClientError;
use std::process::ExitCode;

/// The command failed.
pub const FAILED: u8 = 1;
/// Wrong usage: an invalid argument, or a file, site or transfer that does not exist.
pub const USAGE: u8 = 2;
/// `replicate wait --timeout` has expired before the end of a transfer; the code of `timeout` (GNU
/// coreutils).
pub const TIMEOUT: u8 = 124;
/// The user interrupted the command.
pub const INTERRUPTED: u8 = 130;

/// An error in the command line rather than in its execution.
#[derive(Debug)]
struct Usage(anyhow::Error);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}
impl std::error::Error for Usage {}

/// Marks errors as wrong usage.
pub trait OrUsage<T> {
    /// Marks the error as wrong usage, which only changes the exit code.
    fn or_usage(self) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrUsage<T> for Result<T, E> {
    fn or_usage(self) -> anyhow::Result<T> {
        self.map_err(|error| Usage(error.into()).into())
    }
}

/// Exit code of a command that ends with this error.
pub fn code(error: &anyhow::Error) -> ExitCode {
    let usage = error.chain().any(|e| {
        let refused = e.downcast_ref::<ClientError>();
        let is_refused = |e: &ClientError| {
            matches!(e, ClientError::Settings(_) | ClientError::Refused { status: 400 | 404 | 412, .. })
        };
        e.is::<Usage>() || refused.is_some_and(is_refused)
    });
    ExitCode::from(if usage { USAGE } else { FAILED })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    /// #17: an unknown site ended `send` with 1, a missing scenario `simulate` with 2.
    #[test]
    fn wrong_usage_is_told_from_failure_however_it_is_wrapped() {
        let io = || Err::<(), _>(std::io::Error::other("no such file"));
        let shown = |e: &anyhow::Error| (format!("{e:#}"), format!("{:?}", code(e)));
        let usage = io().or_usage().context("reading").expect_err("it is one");
        assert_eq!(shown(&usage), ("reading: no such file".into(), format!("{:?}", ExitCode::from(2))));
        let failed = io().context("reading").expect_err("it is one");
        assert_eq!(shown(&failed), ("reading: no such file".into(), format!("{:?}", ExitCode::from(1))));
        let refused = |status| ClientError::Refused { status, error: "no".into() }.into();
        assert_eq!(shown(&refused(404)).1, format!("{:?}", ExitCode::from(2)));
        assert_eq!(shown(&refused(423)).1, format!("{:?}", ExitCode::from(1)));
        let address = ClientError::Settings("no port".into()).into();
        assert_eq!(shown(&address).1, format!("{:?}", ExitCode::from(2)));
    }
}
