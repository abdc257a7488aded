//! Client of a server's object list.

use crate::connection::{ConnectError, GreetedServer, greet};
use crate::control::farewell;
use anabranch_gather_proto::msg::Control;
use anabranch_net::identity::Identity;
use anabranch_units::text::printable;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;

/// Maximum time for each page of a list.
const PAGE_TIME: Duration = Duration::from_secs(60);

/// An object offered by a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name as sent by the server, which is not safe to print unescaped.
    pub object: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Time of the last change, in nanoseconds since 1970.
    pub modified_ns: i64,
}

/// The reason why a server's objects cannot be listed. Displays as one line without the server's
/// name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// The server cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No answer within this many seconds.
    #[error("no answer in {0} s")]
    Silent(u64),
    /// The server cannot list its objects; its reason.
    #[error("{0}")]
    Refused(String),
    /// The server closed the connection, with its reason.
    #[error("it closed the connection: {0}")]
    Goodbye(String),
    /// The server closed the connection without a reason.
    #[error("it closed the connection")]
    Closed,
    /// The connection ended; the reason as the server's action.
    #[error("it {0}")]
    Gone(String),
    /// The server's next page would start at a name that was listed before.
    #[error("it lists the same names again")]
    Again,
    /// The caller's function failed for an object.
    #[error("{0}")]
    Each(io::Error),
}

fn gone(error: io::Error) -> ListError {
    ListError::Gone(farewell(&error))
}

/// Passes all objects of a server whose names begin with `prefix` to `each`, in order. Returns the
/// number of further objects whose names cannot be listed.
///
/// Errors: see [`ListError`]; or the first error of `each`.
pub async fn list(
    identity: &Identity,
    holder: &str,
    prefix: &str,
    mut each: impl FnMut(Entry) -> io::Result<()>,
) -> Result<u64, ListError> {
    let GreetedServer { mut reader, .. } = greet(identity, holder).await?;
    let (mut after, mut unlisted) = (String::new(), 0_u64);
    loop {
        let ask = Control::List { prefix: prefix.to_owned(), after: after.clone() };
        reader.write([ask]).await.map_err(gone)?;
        let next = loop {
            let message = timeout(PAGE_TIME, reader.next()).await;
            let message = message.map_err(|_| ListError::Silent(PAGE_TIME.as_secs()))?;
            match message.map_err(gone)? {
                Some(Control::Listed { object, bytes, modified_ns }) => {
                    each(Entry { object, bytes, modified_ns }).map_err(ListError::Each)?;
                }
                Some(Control::Unlisted { names }) => unlisted = unlisted.saturating_add(names),
                Some(Control::ListEnd { next }) => {
                    break next.map_err(|reason| ListError::Refused(printable(&reason).into_owned()))?;
                }
                Some(Control::Goodbye { reason }) => {
                    return Err(ListError::Goodbye(printable(&reason).into_owned()));
                }
                Some(_) => {}
                None => return Err(ListError::Closed),
            }
        };
        match next {
            // A server that repeats a position would keep this loop running forever.
            Some(next) if Path::new(&next) > Path::new(&after) => after = next,
            Some(_) => return Err(ListError::Again),
            None => return Ok(unlisted),
        }
    }
}
