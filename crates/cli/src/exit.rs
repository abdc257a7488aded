//! Exit codes of all commands.
//!
//! docs/operations.md lists them for users. A mistake in the command line, or in a file that it
//! names, is [`USAGE`] for every verb; [`is_mistake`] lists the errors of other crates that are
//! such mistakes. A transfer ends with 0, 1, 3, 4 or 5
//! ([`anabranch_replicate_proto::coordinator::Outcome::exit_code`]).

use anabranch_broker::{FileError, NetworkAgentError, OpenError};
use anabranch_graph::TopologyError;
use anabranch_graph::file::LoadError;
use anabranch_http::lease::EtcdConfigError;
use anabranch_http::{ClientError, ServeError};
use anabranch_linux::bpf::retcp::AttachError;
use anabranch_live::controller::ControllerError;
use anabranch_live::{NodeError, SourceError};
use anabranch_net::keys::KeysError;
use anabranch_net::public::PublicTlsError;
use anabranch_net::tls::TlsError;
use anabranch_replicate::RelayError;
use anabranch_replicate_proto::plan::schemes::SchemeError;
use anabranch_replicate_proto::plan::{PlanError, UnknownScheme};
use anabranch_shuffle::AgentError as ShuffleError;
use anabranch_spray::AgentError as SprayError;
use std::error::Error;
use std::process::ExitCode;

/// The command failed.
pub const FAILED: u8 = 1;
/// Wrong usage: a mistake in the command line, or in a file that it names.
pub const USAGE: u8 = 2;
/// Some destinations, objects or entries of a directory failed.
pub const SOME_FAILED: u8 = 3;
/// Received data was wrong and was refused. (The code is also for a copy that differs from its
/// source.)
pub const CORRUPT: u8 = 4;
/// The emulator ran too late for its figures to be trusted. (The code 5 is for a cancelled
/// transfer.)
pub const UNTRUSTED: u8 = 6;
/// `replicate wait --timeout` has expired before the end of a transfer; the code of `timeout` (GNU
/// coreutils).
pub const TIMEOUT: u8 = 124;
/// The user interrupted the command before its end.
pub const INTERRUPTED: u8 = 130;

/// An error in the command line rather than in its execution.
#[derive(Debug)]
struct Usage(anyhow::Error);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}
impl Error for Usage {}

/// Marks errors as wrong usage.
pub trait OrUsage<T> {
    /// Marks the error as wrong usage. The mark changes only the exit code.
    fn or_usage(self) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrUsage<T> for Result<T, E> {
    fn or_usage(self) -> anyhow::Result<T> {
        self.map_err(usage)
    }
}

/// Marks an error as wrong usage.
pub fn usage(error: impl Into<anyhow::Error>) -> anyhow::Error {
    Usage(error.into()).into()
}

/// As `anyhow::bail!`, for wrong usage.
macro_rules! bail_usage {
    ($($line:tt)+) => {
        return Err($crate::exit::usage(anyhow::anyhow!($($line)+)))
    };
}

/// As `anyhow::ensure!`, for wrong usage.
macro_rules! ensure_usage {
    ($holds:expr, $($line:tt)+) => {
        if !$holds {
            bail_usage!($($line)+);
        }
    };
}

/// Returns true if an error of another crate means a mistake in the command line, or in a file that
/// it names. Errors that the system can cause, such as a port in use, are no mistakes.
fn is_mistake(error: &(dyn Error + 'static)) -> bool {
    fn of<E: Error + 'static>(error: &(dyn Error + 'static), is_one: impl Fn(&E) -> bool) -> bool {
        error.downcast_ref::<E>().is_some_and(is_one)
    }
    let of_client = |error: &ClientError| {
        matches!(error, ClientError::Settings(_) | ClientError::Refused { status: 400 | 404 | 412, .. })
    };
    let is_credentials = error.is::<TlsError>()
        || error.is::<PublicTlsError>()
        || of(error, |error| !matches!(error, KeysError::Unwritable { .. } | KeysError::Generator(_)));
    let is_network = error.is::<LoadError>()
        || error.is::<TopologyError>()
        || error.is::<PlanError>()
        || error.is::<SchemeError>()
        || error.is::<UnknownScheme>();
    let is_setting = error.is::<Usage>()
        || of(error, of_client)
        || of(error, |error| matches!(error, ServeError::WrongHolder { .. }))
        || of(error, |error| !matches!(error, EtcdConfigError::NoRandom(_)))
        || of(error, |error| matches!(error, AttachError::EceWithEcn | AttachError::Dscp { .. }));
    is_credentials
        || error.is::<FileError>()
        || is_network
        || is_setting
        || of(error, |error| match error {
            RelayError::Wildcard { .. } => true,
            RelayError::Client(error) => of_client(error),
            _ => false,
        })
        || of(error, |error| match error {
            NetworkAgentError::NoBroker | NetworkAgentError::Files(_) => true,
            NetworkAgentError::Client(error) => of_client(error),
            _ => false,
        })
        || of(error, |error| matches!(error, OpenError::Etcd(_)))
        || of(error, |error| match error {
            ShuffleError::Name(_) | ShuffleError::TooManyAddresses(_) => true,
            ShuffleError::Link(_) | ShuffleError::ZeroLink => true,
            ShuffleError::Coordinator(error) => of_client(error),
            _ => false,
        })
        || of(error, |error| matches!(error, SprayError::Setting(_) | SprayError::Config(_)))
        || of(error, |error| !matches!(error, NodeError::Bind(_)))
        || of(error, |error| !matches!(error, SourceError::Bind { .. }))
        || of(error, |error| !matches!(error, ControllerError::Store(_)))
}

/// Exit code of a command that ends with this error.
pub fn code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(if error.chain().any(is_mistake) { USAGE } else { FAILED })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    /// #17: an unknown site ended `send` with 1, a missing scenario `simulate` with 2.
    #[test]
    fn wrapped_errors_keep_the_exit_code_of_wrong_usage() {
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

    #[test]
    fn transfers_and_objects_share_exit_codes() {
        use anabranch_replicate_proto::coordinator::Outcome;
        let codes = [Outcome::Failed, Outcome::SomeFailed, Outcome::Integrity].map(Outcome::exit_code);
        assert_eq!(codes, [FAILED, SOME_FAILED, CORRUPT]);
    }
}
