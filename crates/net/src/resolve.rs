//! Lookups of host names in which a slow name does not delay others.
//!
//! The system's lookup blocks a thread for many seconds while a name server does not respond, and
//! cannot be cancelled. So the number of running lookups is limited, in total and for each owner
//! (the party that chose the name). Requests of the same owner for the same name share one lookup.
//! Leaves out: connecting to the address. Read [`Resolver`] first.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Maximum number of concurrent lookups, each on a separate thread.
pub const LOOKUPS_MAX: usize = 64;
/// Maximum number of concurrent lookups of one owner's names.
pub const OWNER_LOOKUPS_MAX: usize = 2;
/// Lifetime of a cached address.
const KEEP: Duration = Duration::from_secs(30);
/// Maximum number of cached addresses.
const KEPT_MAX: usize = 1_024;

type Lookup = dyn Fn(String) -> Pin<Box<dyn Future<Output = io::Result<SocketAddr>> + Send>> + Send + Sync;
type Answer = Result<SocketAddr, (io::ErrorKind, String)>;

/// Resolves host names; clones share running lookups and cached addresses.
#[derive(Clone)]
pub struct Resolver {
    shared: Arc<Shared>,
}

struct Shared {
    lookup: Box<Lookup>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Running lookups by owner and address.
    running: BTreeMap<(String, String), watch::Receiver<Option<Answer>>>,
    known: BTreeMap<String, (Instant, SocketAddr)>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new(|address| async move {
            let found = crate::address::lookup(&address).await?;
            found
                .first()
                .copied()
                .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{address}: no address")))
        })
    }
}

impl Resolver {
    /// Creates a resolver that uses `lookup`.
    pub fn new<F>(lookup: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<SocketAddr>> + Send + 'static,
    {
        let lookup =
            Box::new(move |address| -> Pin<Box<dyn Future<Output = _> + Send>> { Box::pin(lookup(address)) });
        Self { shared: Arc::new(Shared { lookup, table: Mutex::default() }) }
    }

    /// Returns the first address of `host:port`, which `owner` chose. The future may be dropped at
    /// any time; a running lookup continues, and counts towards the limits until it ends.
    ///
    /// Errors: too many lookups are running, of this owner or in total (`WouldBlock`: try again
    /// later); the system's. Must be called inside the runtime.
    pub async fn resolve(&self, owner: &str, address: &str) -> io::Result<SocketAddr> {
        if let Ok(address) = address.parse() {
            return Ok(address);
        }
        let mut answer = match self.known_or_running(owner, address)? {
            Ok(address) => return Ok(address),
            Err(answer) => answer,
        };
        let answer = answer.wait_for(Option::is_some).await.map_err(io::Error::other)?.clone();
        answer.expect("it was waited for").map_err(|(kind, text)| io::Error::new(kind, text))
    }

    /// Returns the address if it is cached, or else a receiver of the running lookup's result.
    fn known_or_running(
        &self,
        owner: &str,
        address: &str,
    ) -> io::Result<Result<SocketAddr, watch::Receiver<Option<Answer>>>> {
        let mut table = self.shared.lock();
        if let Some((_, found)) = table.known.get(address).filter(|(at, _)| at.elapsed() < KEEP) {
            return Ok(Ok(*found));
        }
        let key = (owner.to_owned(), address.to_owned());
        if let Some(running) = table.running.get(&key) {
            return Ok(Err(running.clone()));
        }
        let own = table.running.keys().filter(|(o, _)| o == owner).count();
        if own >= OWNER_LOOKUPS_MAX || table.running.len() >= LOOKUPS_MAX {
            let text = format!("{address}: not looked up, as other names are and the name server is slow");
            return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
        }
        let (tell, answer) = watch::channel(None);
        table.running.insert(key.clone(), answer.clone());
        let (shared, lookup) = (Arc::clone(&self.shared), (self.shared.lookup)(address.to_owned()));
        drop(table);
        tokio::spawn(async move {
            let found = lookup.await.map_err(|e| (e.kind(), e.to_string()));
            let mut table = shared.lock();
            table.running.remove(&key);
            if let Ok(address) = found {
                table.known.retain(|_, (at, _)| at.elapsed() < KEEP);
                if table.known.len() >= KEPT_MAX {
                    table.known.pop_first();
                }
                table.known.insert(key.1, (Instant::now(), address));
            }
            let _ = tell.send(Some(found));
        });
        Ok(Err(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use tokio::time::timeout;

    const LONG: Duration = Duration::from_secs(60);

    /// Never answers for names that begin with `slow`; all other names resolve to 10.0.0.1.
    fn resolver() -> (Resolver, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let resolver = Resolver::new(move |address: String| {
            count.fetch_add(1, Relaxed);
            async move {
                if address.starts_with("slow") {
                    std::future::pending::<()>().await;
                }
                if address.starts_with("none") {
                    return Err(io::Error::other("failed to lookup address information: none"));
                }
                Ok(([10, 0, 0, 1], 7).into())
            }
        });
        (resolver, asked)
    }

    /// #17: one site's name that no name server answered stopped all transfers of the sites that
    /// looked it up.
    #[tokio::test]
    async fn slow_lookups_of_one_owner_delay_no_other_owner() {
        let (resolver, asked) = resolver();
        for owner in 0..40 {
            for name in 0..20 {
                let (owner, address) = (format!("rogue-{owner}"), format!("slow-{name}.example:7"));
                let waiting = resolver.clone();
                tokio::spawn(async move { waiting.resolve(&owner, &address).await });
            }
            tokio::task::yield_now().await;
            if owner < 10 {
                let found = timeout(LONG, resolver.resolve("honest", &format!("good-{owner}:7"))).await;
                assert_eq!(found.expect("at once").expect("it is known"), ([10, 0, 0, 1], 7).into());
            }
        }
        // Each task runs once between two turns of this one.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let running = resolver.shared.lock().running.len();
        assert_eq!(running, LOOKUPS_MAX, "threads are bounded");
        assert!(asked.load(Relaxed) <= LOOKUPS_MAX + 10);
        let error = resolver.resolve("rogue-0", "another:7").await.expect_err("it has its share");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        // An IP address needs no lookup.
        assert!(resolver.resolve("rogue-0", "[::1]:7").await.is_ok());
    }

    #[tokio::test]
    async fn requests_for_the_same_name_share_one_lookup() {
        let (resolver, asked) = resolver();
        let all = (0..16).map(|_| resolver.resolve("d", "good:7"));
        let all: Vec<_> = all.map(|f| timeout(LONG, f)).collect();
        for one in all {
            assert!(one.await.expect("in time").is_ok());
        }
        assert_eq!(asked.load(Relaxed), 1);
        for _ in 0..2 {
            let error = resolver.resolve("d", "none:7").await.expect_err("no such host");
            assert!(error.to_string().contains("failed to lookup"), "{error}");
        }
        assert_eq!(asked.load(Relaxed), 3, "what failed is asked again");
    }
}
