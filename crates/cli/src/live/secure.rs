//! Listeners for viewers of `anabranch live node` and `source`, and files that a daemon reloads
//! while it runs.

use crate::clients::ClientArgs;
use crate::exit::OrUsage as _;
use crate::keys::CheckSchedule;
use anabranch_http::plain::{Clients, PROTOCOLS, Proxies};
use anabranch_live::SecureListener;
use anabranch_net::public::{CertificateFiles, ServerCertificate, ServerTrust};
use anyhow::Context as _;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Paths of the list of authorities: on Debian and Alpine, on Fedora, on openSUSE.
const SYSTEM_AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// Loads authorities of TLS servers from `file`, the value of the option `option`, or from the
/// system's list.
///
/// Errors: a file that cannot be used; a system without a list of authorities.
pub(super) fn trust(file: Option<&Path>, option: &str) -> anyhow::Result<ServerTrust> {
    let of_system = || SYSTEM_AUTHORITIES.iter().map(Path::new).find(|path| path.exists());
    let file = file.or_else(of_system);
    let missing = || format!("this system has no list of authorities: name a file by {option}");
    let file = file.with_context(missing).or_usage()?;
    ServerTrust::load(file, &["http/1.1"]).context("authorities").or_usage()
}

/// Settings of the listeners for viewers: trusted proxies and origins, and the listener over TLS.
#[derive(clap::Args)]
pub struct SecureArgs {
    #[command(flatten)]
    clients: ClientArgs,
    /// Further address, for viewers over TLS with HTTP/1.1 and HTTP/2. By default there is none.
    #[arg(long, value_name = "IP:PORT", requires_all = ["certificate", "certificate_key"], value_parser = crate::network::listen_address)]
    tls: Option<SocketAddr>,
    /// Certificate for --tls and the certificates of its authorities, in PEM. It is read again on
    /// SIGHUP and when it changes.
    #[arg(long, value_name = "FILE", requires = "tls")]
    certificate: Option<PathBuf>,
    /// Private key of the certificate, in PEM; only its owner and group may read it.
    #[arg(long, value_name = "FILE", requires = "tls")]
    certificate_key: Option<PathBuf>,
}

impl SecureArgs {
    /// Trusted proxies and origins of all listeners.
    pub(super) fn clients(&self) -> anyhow::Result<Clients> {
        self.clients.clients(Proxies::default())
    }

    /// The listener over TLS, if the options ask for one.
    ///
    /// Errors: files that cannot be used.
    pub(super) fn listener(&self) -> anyhow::Result<Option<SecureListener>> {
        let (Some(address), Some(chain), Some(key)) = (self.tls, &self.certificate, &self.certificate_key)
        else {
            return Ok(None);
        };
        let files = CertificateFiles { chain: chain.clone(), key: key.clone() };
        let certificate = ServerCertificate::load(files, PROTOCOLS).context("--tls").or_usage()?;
        Ok(Some(SecureListener { address, certificate }))
    }
}

/// Contents of files that a daemon reloads when the files change.
pub(super) trait ReloadableFiles: Send + Sync {
    /// Returns true if the files have changed since they were read. Blocks while it checks.
    fn has_changed(&self) -> bool;
    /// Reads the files and returns the line for the log. Blocks while it reads.
    ///
    /// Errors: one line for the log; the previous contents stay in use.
    fn reload(&self) -> Result<String, String>;
}

impl ReloadableFiles for ServerCertificate {
    fn has_changed(&self) -> bool {
        Self::has_changed(self)
    }

    fn reload(&self) -> Result<String, String> {
        Self::reload(self).map_err(|error| error.to_string())?;
        Ok(format!("the certificate was read again: it expires on {}", self.expires()))
    }
}

/// Reloads files on SIGHUP and when they change. Without files, SIGHUP keeps its effect.
pub(super) async fn follow(files: Vec<Arc<dyn ReloadableFiles>>) -> Infallible {
    if files.is_empty() {
        return std::future::pending().await;
    }
    let mut looks = CheckSchedule::with_hangups();
    loop {
        let is_asked = looks.next().await;
        for file in &files {
            let file = Arc::clone(file);
            let read = tokio::task::spawn_blocking(move || {
                (is_asked || file.has_changed()).then(|| {
                    std::thread::sleep(crate::keys::SETTLE);
                    file.reload()
                })
            });
            match read.await {
                Ok(Some(Ok(line))) => tracing::info!("{line}"),
                Ok(Some(Err(error))) => tracing::error!("{error} (the one read before is used on)"),
                Ok(None) | Err(_) => {}
            }
        }
    }
}
