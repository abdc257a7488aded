//! The socket on which programs in emulated hosts announce demand, through the libraries of
//! `shuffle`.
//!
//! A Unix socket belongs to no network namespace, so programs of all hosts reach it by its path.
//! The path is in their environment. Leaves out: the protocol and its server
//! ([`anabranch_shuffle::agent::announce`]), the demand ([`EmulationHandle::announce`]). Read
//! [`Announcements`] first.

use anabranch_emu::EmulationHandle;
use anabranch_net::local::listen;
use anabranch_shuffle::agent::announce::{IDLE_MAX, answer};
use anabranch_shuffle_proto::announcement::Announcement;
use anabranch_units::ByteCount;
use std::any::Any;
use std::path::PathBuf;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Environment variables of the libraries: path of the socket, and coflow of all flows of a
/// program.
const VARIABLES: [&str; 2] = ["ANABRANCH_SHUFFLE_SOCKET", "ANABRANCH_COFLOW"];
/// Coflow of programs whose environment does not name one. Demand is counted by connection.
const COFLOW: &str = "circuit";

/// A socket's path for announcements.
pub(super) struct Announcements {
    folder: TempDir,
}

impl Announcements {
    /// Creates a path in a new temporary folder.
    ///
    /// Errors: no writable temporary folder.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { folder: tempfile::Builder::new().prefix("anabranch-emulate-").tempdir()? })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("announce.sock")
    }

    /// Environment variables for programs in the hosts.
    pub(super) fn variables(&self) -> impl Iterator<Item = (String, String)> {
        let coflow = std::env::var(VARIABLES[1]).unwrap_or_else(|_| COFLOW.to_owned());
        VARIABLES.map(str::to_owned).into_iter().zip([self.socket().display().to_string(), coflow])
    }

    /// Forwards announcements to this emulation until the result is dropped.
    ///
    /// Errors: an error of the operating system.
    pub(super) fn serve(&self, emulation: EmulationHandle) -> std::io::Result<Box<dyn Any>> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .on_thread_start(|| {
                anabranch_emu::elevate();
            })
            .enable_all()
            .build()?;
        let socket = self.socket();
        let listener = {
            let _inside = runtime.enter();
            listen(&socket, None).map_err(std::io::Error::other)?
        };
        let take = move |said: &Announcement, _: u32| match said {
            Announcement::Flow { flow, coflow, size_bytes } => emulation
                .announce(*flow, coflow, ByteCount::new(*size_bytes))
                .map_err(|error| error.to_string()),
            // The emulator sees the end of the connection itself.
            Announcement::Ended { .. } => Ok(()),
        };
        runtime.spawn(answer(listener, take, IDLE_MAX));
        Ok(Box::new(AnnouncementServer { runtime: Some(runtime), socket }))
    }
}

/// A server that receives announcements.
struct AnnouncementServer {
    /// `None` after the server has ended.
    runtime: Option<Runtime>,
    socket: PathBuf,
}

impl Drop for AnnouncementServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        // The temporary folder is removed later, whatever happens here.
        let _ = std::fs::remove_file(&self.socket);
    }
}
