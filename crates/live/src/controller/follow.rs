//! The controller's directory, followed by another process: DNS servers, steering.
//!
//! A controller that does not answer leaves the last directory in force. Read [`FollowedDirectory`].

use super::client::{ControllerClient, TaggedDirectory};
use anabranch_http::ClientError;
use anabranch_live_proto::directory::Directory;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Time for which one question waits at the controller.
const WAIT: Duration = Duration::from_secs(10);
/// Pause after a question without an answer.
const PAUSE: Duration = Duration::from_secs(1);

/// A directory that follows the controllers: the first that answers is asked.
pub struct FollowedDirectory {
    clients: Vec<ControllerClient>,
    etag: String,
    sender: watch::Sender<Arc<Directory>>,
}

impl FollowedDirectory {
    /// Takes the directory of the first controller that answers.
    ///
    /// Errors: the last controller's; no controller at all is [`ClientError::Settings`].
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

    /// The last directory.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Directory>> {
        self.sender.subscribe()
    }

    /// Follows changes. Never returns; drop it to stop.
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
