//! `anabranch live sign`: signs URLs, which edges with the same secrets serve until they expire.

use super::secure::ReloadableFiles;
use crate::exit::OrUsage as _;
use anabranch_live::signing::{Grant, SigningSecrets};
use anabranch_live_proto::directory::AddressPrefix;
use anabranch_units::Duration;
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Maximum bytes of a file of secrets.
const SECRET_FILE_BYTES_MAX: u64 = 64 << 10;

/// Permitted validity of a signature, in seconds.
const VALID_S: std::ops::RangeInclusive<u64> = 1..=18_000_000;

/// URLs to sign, and the scope of their signatures.
#[derive(clap::Args)]
pub struct Args {
    /// URLs to sign, as https://edge.example/news/index.m3u8, or their paths.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
    /// The edges' file of secrets; its first line signs.
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,
    /// Time for which the URL is good, from 1 s to 5000 h. A viewer plays no longer than that.
    #[arg(long, value_name = "TIME", default_value = "6h")]
    valid: Duration,
    /// Path that the signature covers, with everything below. By default the URL's channel.
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// Addresses that may use the URL, as 192.0.2.0/24. By default all.
    #[arg(long, value_name = "PREFIX")]
    client: Option<AddressPrefix>,
}

/// Prints the signed URLs.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let valid_s = args.valid.to_std().as_secs();
    if !VALID_S.contains(&valid_s) {
        let error = anyhow::anyhow!("--valid {}: must be from 1 s to 5000 h", args.valid);
        return Err(error).or_usage();
    }
    let secrets = secrets(&args.secret_file)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let signed = args.urls.iter().map(|url| sign(&secrets, url, args, now + valid_s));
    let signed = signed.collect::<anyhow::Result<Vec<_>>>()?;
    signed.iter().for_each(|url| outln!("{url}"));
    Ok(ExitCode::SUCCESS)
}

fn sign(secrets: &SigningSecrets, url: &str, args: &Args, expires_unix_s: u64) -> anyhow::Result<String> {
    let path_at = match url.split_once("://") {
        Some((scheme, rest)) => rest.find('/').map(|at| scheme.len() + 3 + at),
        None => url.starts_with('/').then_some(0),
    };
    let path_at = path_at.with_context(|| format!("URL `{url}`: has no path: name a playlist")).or_usage()?;
    let (server, target) = url.split_at(path_at);
    let channel = target.split(['/', '?']).nth(1).map(|name| format!("/{name}"));
    let path = args.path.clone().or(channel).unwrap_or_default();
    let covered = path.trim_end_matches('/');
    let is_below = |rest: &str| rest.is_empty() || rest.starts_with(['/', '?']);
    let covers = target.strip_prefix(covered).is_some_and(is_below);
    ensure_usage!(covers, "URL `{url}`: is not below the path `{path}`: name another --path");
    let grant = Grant { path, expires_unix_s, clients: args.client };
    Ok(format!("{server}{}{target}", secrets.sign(&grant).or_usage()?))
}

fn secrets(path: &Path) -> anyhow::Result<SigningSecrets> {
    let shown = || format!("secret file {}", path.display());
    let text = super::read_text(path, SECRET_FILE_BYTES_MAX).with_context(shown).or_usage()?;
    SigningSecrets::read(&text).with_context(shown).or_usage()
}

/// A file of secrets that an edge reads again when it changes.
pub(super) struct SecretFile {
    path: PathBuf,
    secrets: SigningSecrets,
    /// Text of the file at its last reading.
    seen: Mutex<String>,
}

impl SecretFile {
    /// Reads a file.
    ///
    /// Errors: a one-line message for the user.
    pub(super) fn open(path: &Path) -> anyhow::Result<Arc<Self>> {
        let secrets = secrets(path)?;
        let seen = Mutex::new(super::read_text(path, SECRET_FILE_BYTES_MAX)?);
        Ok(Arc::new(Self { path: path.to_owned(), secrets, seen }))
    }

    pub(super) fn secrets(&self) -> SigningSecrets {
        self.secrets.clone()
    }

    fn text(&self) -> Result<String, String> {
        let text = super::read_text(&self.path, SECRET_FILE_BYTES_MAX);
        text.map_err(|error| format!("secret file {}: {error}", self.path.display()))
    }
}

impl ReloadableFiles for SecretFile {
    fn has_changed(&self) -> bool {
        // A missing file counts as empty, so its removal is one change.
        let text = self.text().unwrap_or_default();
        text != *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reload(&self) -> Result<String, String> {
        let text = self.text();
        let seen = text.clone().unwrap_or_default();
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        let path = self.path.display();
        self.secrets.replace(&text?).map_err(|error| format!("secret file {path}: {error}"))?;
        Ok(format!("secret file {path}: read again"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn signed(url: &str, path: Option<&str>) -> anyhow::Result<String> {
        let args = Args {
            urls: Vec::new(),
            secret_file: PathBuf::new(),
            valid: Duration::from_secs(1),
            path: path.map(str::to_owned),
            client: None,
        };
        sign(&SigningSecrets::read(SECRET).expect("a secret"), url, &args, 10)
    }

    #[test]
    fn signed_urls_keep_server_and_path() {
        for url in
            ["https://edge.example:7443/news/index.m3u8", "http://10.0.0.1/news", "/news/index.m3u8?x=1"]
        {
            let signed = signed(url, None).expect("a URL");
            let (server, rest) = signed.split_once("/~").expect("it is signed");
            let target = &url[server.len()..];
            let secrets = SigningSecrets::read(SECRET).expect("a secret");
            let checked = secrets.check(&signed[server.len()..], 9, IpAddr::from([192, 0, 2, 1]));
            assert_eq!(checked, Ok(target), "{rest}");
        }
        assert!(signed("/news/main/index.m3u8", Some("/news/main/")).is_ok());
        assert!(signed("/news/index.m3u8", Some("/")).is_ok());
        for (url, path) in
            [("/news/x", Some("/new")), ("news/x", None), ("http://edge", None), ("/news", Some("x"))]
        {
            assert!(signed(url, path).is_err(), "{url}");
        }
    }
}
