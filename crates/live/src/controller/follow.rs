//! The controller's directory in another process, for DNS servers and steering.
//!
//! While no controller answers, the last directory stays in force. Read [`FollowedDirectory`].

use super::client::{ControllerClient, TaggedDirectory};
use anabranch_http::ClientError;
use anabranch_live_proto::directory::Directory;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Longest time that a request waits at the controller for a changed directory.
const WAIT: Duration = Duration::from_secs(10);
/// Pause after a request without an answer.
const PAUSE: Duration = Duration::from_secs(1);

/// A directory that follows the controllers. Requests go to a controller that answers.
pub struct FollowedDirectory {
    clients: Vec<ControllerClient>,
    etag: String,
    sender: watch::Sender<Arc<Directory>>,
}

impl FollowedDirectory {
    /// Fetches the directory from the first controller that answers.
    ///
    /// Errors: the error of the last controller; [`ClientError::Settings`] without a controller.
    pub async fn start(clients: Vec<ControllerClient>) -> Result<Self, ClientError> {
        let mut last = ClientError::Settings("no controller is given".to_owned());
        for client in &clients {
            match client.directory(None, Duration::ZERO).await {
                Ok(Some(TaggedDirectory { directory, etag })) => {
                    return Ok(Self { clients, etag, sender: watch::Sender::new(Arc::new(directory)) });
                }
                Ok(None) => last = ClientError::Garbled(format!("{}: no directory", client.address())),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Receiver of the last directory.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Directory>> {
        self.sender.subscribe()
    }

    /// Follows changes of the directory. Never returns; stops when dropped.
    pub async fn run(mut self) -> Infallible {
        let (mut asked, mut is_heard) = (0, true);
        loop {
            let client = &self.clients[asked % self.clients.len()];
            match client.directory(Some(&self.etag), WAIT).await {
                Ok(found) => {
                    if !std::mem::replace(&mut is_heard, true) {
                        tracing::info!("controller at {}: answers again", client.address());
                    }
                    if let Some(TaggedDirectory { directory, etag }) = found {
                        self.etag = etag;
                        self.sender.send_replace(Arc::new(directory));
                    }
                }
                Err(error) => {
                    if std::mem::replace(&mut is_heard, false) {
                        tracing::warn!("{error}: the last directory stays");
                    }
                    asked += 1;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}
