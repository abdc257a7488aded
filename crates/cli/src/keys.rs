//! Sets of keys: creation, extension, renewal, revocation. Also the reloading of keys by daemons.

use anabranch_net::identity::Identity;
use anabranch_net::keys::{
    Role, SetRequest, System, VALID_DAYS, add_to_set, holders, make_set, renew, replace_in_set, revoke,
    write_set,
};
use anabranch_net::tls::PeerIdentity;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal as HangUps, SignalKind, signal};

/// Changes of an existing set.
#[derive(clap::Subcommand)]
pub enum Change {
    /// Replace the keys of all holders in a set, or of the named holders.
    Renew(RenewArgs),
    /// Refuse all present certificates of the named holders. Renewed certificates are valid.
    Revoke(RevokeArgs),
}

/// Holders, and the validity of the certificates.
#[derive(clap::Args)]
pub struct RenewArgs {
    /// Holders, as NAME, or as ROLE:NAME if two have the same name. Without: all holders in the
    /// set.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Folder of the set, with ca.pem and ca.key. [default: this system's folder below keys/]
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
    /// Days until the certificates expire, unless the authority expires earlier.
    #[arg(long, value_name = "DAYS", default_value_t = VALID_DAYS)]
    valid_days: u32,
}

/// Holders whose keys are revoked.
#[derive(clap::Args)]
pub struct RevokeArgs {
    /// Holders, as NAME, or as ROLE:NAME if two have the same name, or if the set no longer has a
    /// certificate of a holder.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Folder of the set, with ca.pem. [default: this system's folder below keys/]
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
}

impl Change {
    /// Applies the change to the system's set.
    ///
    /// Errors: a one-line message for the user.
    pub fn run(&self, system: System, quiet: bool) -> anyhow::Result<ExitCode> {
        let folder =
            |keys: &Option<PathBuf>| keys.clone().unwrap_or_else(|| Path::new("keys").join(system.word()));
        let said = match self {
            Self::Renew(args) => {
                let folder = folder(&args.keys);
                let known = holders(&folder, system)?;
                let chosen = choose(system, &known, &args.names)?;
                let chosen = if args.names.is_empty() { known } else { chosen };
                replace_in_set(&folder, &renew(&folder, system, &chosen, args.valid_days)?)?;
                format!(
                    "new keys for {} in {}/: copy them to their machines; daemons read them again by themselves",
                    list(&chosen),
                    folder.display()
                )
            }
            Self::Revoke(args) => {
                let folder = folder(&args.keys);
                let chosen = choose(system, &holders(&folder, system)?, &args.names)?;
                revoke(&folder, system, &chosen)?;
                let path = folder.join("revoked");
                format!(
                    "{} revoked in {}: copy it beside each ca.pem; daemons read it again by themselves",
                    list(&chosen),
                    path.display()
                )
            }
        };
        if !quiet {
            errln!("{said}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Finds the named holders.
fn choose(system: System, known: &[PeerIdentity], names: &[String]) -> anyhow::Result<Vec<PeerIdentity>> {
    let mut chosen = Vec::new();
    for name in names {
        let mut same: Vec<_> = known.iter().filter(|peer| peer.name == *name).cloned().collect();
        // A name may begin with a role's word and a colon.
        let with_role = name.split_once(':').and_then(|(word, name)| {
            let role = Role::ALL.into_iter().find(|role| system.role_name(*role) == Some(word))?;
            Some(PeerIdentity { system, role, name: name.to_owned() })
        });
        if same.is_empty() {
            same.extend(with_role);
        }
        let [one] = &same[..] else {
            let word = |peer: &PeerIdentity| system.role_name(peer.role).unwrap_or(peer.role.word());
            if same.is_empty() {
                let words: Vec<_> = Role::ALL.into_iter().filter_map(|role| system.role_name(role)).collect();
                bail_usage!(
                    "no certificate of `{name}` in the set, which has {}; to name one that is not in the set, write {}:{name}",
                    list(known),
                    words.join(&format!(":{name}, "))
                );
            }
            let ways: Vec<_> = same.iter().map(|peer| format!("{}:{name}", word(peer))).collect();
            bail_usage!("`{name}` is the name of {}: write {}", list(&same), ways.join(" or "));
        };
        chosen.push(one.clone());
    }
    Ok(chosen)
}

fn list(peers: &[PeerIdentity]) -> String {
    let names: Vec<_> = peers.iter().map(PeerIdentity::to_string).collect();
    if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
}

/// Makes the requested keys, with the authority in `out` or a new one.
///
/// Errors: a request without holders; one line for the user.
pub fn make_or_add(out: &Path, request: &SetRequest, quiet: bool) -> anyhow::Result<()> {
    let names: Vec<_> = request.sites.iter().chain(&request.operators).map(String::as_str).collect();
    ensure_usage!(!names.is_empty(), "no names: give at least one");
    let is_there = out.join("ca.key").exists();
    let set = if is_there { add_to_set(out, request)? } else { make_set(request)? };
    write_set(out, &set)?;
    if !quiet {
        errln!(
            "keys for {} in {}/: each machine needs ca.pem and its own pair",
            names.join(", "),
            out.display()
        );
    }
    Ok(())
}

/// Interval between two checks of a daemon's key files.
pub const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Time for which changed files must stay unchanged before they are read.
pub const SETTLE: Duration = Duration::from_millis(300);
/// Time before the expiry of its certificate at which a daemon begins to warn.
pub const WARN_BEFORE: Duration = Duration::from_secs(30 * DAY.as_secs());
/// Interval between two warnings.
const WARN_EVERY: Duration = DAY;
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Reloads a daemon's keys on SIGHUP, and when their files change. SIGHUP ends the process until
/// this future is first polled; afterwards SIGHUP, for instance from a closed terminal, does not.
pub async fn follow(identity: &Identity) -> std::convert::Infallible {
    tokio::select! {
        never = read_again(identity, CheckSchedule::with_hangups()) => never,
        never = warn_before_the_end(identity) => never,
    }
}

/// Reloads a command's keys when their files change, so that a running command notices revoked
/// peers. SIGHUP keeps its effect. Does not warn of an expiring certificate, because the holder's
/// daemons warn each day.
pub async fn follow_files(identity: &Identity) -> std::convert::Infallible {
    read_again(identity, CheckSchedule::without_hangups()).await
}

/// Schedule of a daemon's checks of its files.
pub struct CheckSchedule {
    hangups: Option<HangUps>,
}

impl CheckSchedule {
    /// Creates a schedule with a check every [`LOOK_EVERY`] and at each SIGHUP. SIGHUP then does
    /// not end the process.
    pub fn with_hangups() -> Self {
        let hangups = signal(SignalKind::hangup());
        Self { hangups: hangups.inspect_err(|error| tracing::warn!("SIGHUP is not heard: {error}")).ok() }
    }

    const fn without_hangups() -> Self {
        Self { hangups: None }
    }

    /// Waits for the next check. Returns true if SIGHUP asked for it.
    pub async fn next(&mut self) -> bool {
        let hangup = async {
            match &mut self.hangups {
                Some(hangups) => hangups.recv().await,
                None => std::future::pending().await,
            }
        };
        let is_asked = tokio::select! {
            _ = hangup => true,
            () = tokio::time::sleep(LOOK_EVERY) => false,
        };
        if is_asked {
            crate::process::leave_dead_terminal();
        }
        is_asked
    }
}

async fn read_again(identity: &Identity, mut looks: CheckSchedule) -> std::convert::Infallible {
    loop {
        let is_asked = looks.next().await;
        if is_asked {
            tracing::info!("SIGHUP: keys are read again, and the daemon goes on");
        }
        let shared = identity.clone();
        let reloaded = tokio::task::spawn_blocking(move || {
            if !is_asked {
                if !shared.has_changed() {
                    return None;
                }
                std::thread::sleep(SETTLE);
            }
            Some(shared.reload())
        });
        match reloaded.await {
            Ok(Some(Ok(()))) => {
                let (expires, _) = identity.expires();
                tracing::info!(%expires, revoked = identity.revoked(), "keys were read again");
            }
            Ok(Some(Err(error))) => tracing::error!("{error} (those that were read before are used on)"),
            Ok(None) => {}
            Err(error) => tracing::error!("keys could not be read: {error}"),
        }
    }
}

/// Warns each day before the certificate expires, and logs a new certificate.
async fn warn_before_the_end(identity: &Identity) -> std::convert::Infallible {
    let mut said: Option<(String, Instant)> = None;
    loop {
        let (end, left) = identity.expires();
        let is_said = said.as_ref().is_some_and(|(of, at)| *of == end && at.elapsed() < WARN_EVERY);
        if left < WARN_BEFORE && !is_said {
            let file = identity.certificate_file().unwrap_or(Path::new("the certificate"));
            tracing::warn!(
                "{}: expires on {end}, in {} days: `anabranch {} keys renew` makes a new one",
                file.display(),
                left.as_secs() / DAY.as_secs(),
                identity.own().system
            );
            said = Some((end, Instant::now()));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
