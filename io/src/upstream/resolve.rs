//! Host names to addresses, on a thread of its own: a core never waits for DNS.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

/// The system resolver tells no TTL, so names are asked again at this pace.
const REFRESH: Duration = Duration::from_secs(30);
/// A name that has no address yet is asked again sooner.
const RETRY: Duration = Duration::from_secs(3);

/// The addresses of one host name, as last resolved. Shared by all cores.
#[derive(Clone)]
pub struct Addresses(Arc<RwLock<Arc<[SocketAddr]>>>);

impl Addresses {
    /// A fixed address that needs no resolver.
    pub fn fixed(address: SocketAddr) -> Self {
        Addresses(Arc::new(RwLock::new(Arc::from([address]))))
    }

    fn unresolved() -> Self {
        Addresses(Arc::new(RwLock::new(Arc::from([]))))
    }

    /// What the name stands for now; empty while it does not resolve. Read once per new connection.
    pub fn current(&self) -> Arc<[SocketAddr]> {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn set(&self, addresses: Arc<[SocketAddr]>) {
        *self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner) = addresses;
    }
}

struct Name {
    host: String,
    port: u16,
    addresses: Addresses,
}

/// Addresses in use, by host and port, so that a reload goes on with what is known.
type Living = Mutex<HashMap<(String, u16), Weak<RwLock<Arc<[SocketAddr]>>>>>;

/// The resolving thread. It ends when the last handle is dropped.
#[derive(Clone)]
pub struct Resolver {
    names: Sender<Name>,
    living: Arc<Living>,
}

impl Resolver {
    /// Starts the thread.
    pub fn start() -> std::io::Result<Self> {
        let (sender, names) = channel();
        std::thread::Builder::new().name("tt-resolve".into()).spawn(move || resolve_for_ever(&names))?;
        Ok(Resolver { names: sender, living: Arc::default() })
    }

    /// Follows a name. A literal address is fixed; any other name is resolved soon, in the background.
    pub fn follow(&self, host: &str, port: u16) -> Addresses {
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if let Ok(ip) = literal {
            return Addresses::fixed(SocketAddr::new(ip, port));
        }
        let mut living = self.living.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        living.retain(|_, addresses| addresses.strong_count() > 0);
        if let Some(known) = living.get(&(host.to_owned(), port)).and_then(Weak::upgrade) {
            return Addresses(known);
        }
        let addresses = Addresses::unresolved();
        living.insert((host.to_owned(), port), Arc::downgrade(&addresses.0));
        let name = Name { host: host.to_owned(), port, addresses: addresses.clone() };
        // The thread only ends with the last handle, so it is there to receive.
        let _ = self.names.send(name);
        addresses
    }
}

fn resolve_for_ever(names: &Receiver<Name>) {
    let mut known: Vec<Name> = Vec::new();
    let mut pause = REFRESH;
    loop {
        match names.recv_timeout(pause) {
            Ok(name) => {
                resolve(&name);
                known.push(name);
            }
            Err(RecvTimeoutError::Timeout) => {
                // A name nobody uses any more (its upstream left the config) is forgotten.
                known.retain(|name| Arc::strong_count(&name.addresses.0) > 1);
                known.iter().for_each(resolve);
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let missing = known.iter().any(|name| name.addresses.current().is_empty());
        pause = if missing { RETRY } else { REFRESH };
    }
}

/// Keeps the last good answer when the resolver fails: an old address beats none.
fn resolve(name: &Name) {
    match (name.host.as_str(), name.port).to_socket_addrs() {
        Ok(found) => {
            let found: Arc<[SocketAddr]> = found.collect();
            if !found.is_empty() {
                name.addresses.set(found);
            }
        }
        Err(error) => tracing::warn!(host = name.host, %error, "upstream host name did not resolve"),
    }
}
