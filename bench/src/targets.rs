//! What is measured: our gateway in its many configurations, other gateways, the provider itself, any URL.
//!
//! A target is written `BASE` or `BASE+NAME=VALUE+…`, such as `governed+limits=20+driver=epoll`, so that a scenario file
//! and the command line name the same thing the same way and the report needs no legend.

mod ours;
mod peers;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::process::Process;
use crate::stop;
use crate::trouble::{Result, Trouble, trouble};

pub use ours::{binary, validate};
pub use peers::{PEERS, find as find_peer, install};

/// A parsed name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    pub base: Base,
    options: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    /// The mock provider without anything between.
    Direct,
    /// Our gateway with governance off.
    Plain,
    /// Our gateway with a key and limits.
    Governed,
    /// Another gateway, by its name in [`PEERS`].
    Peer(&'static str),
    /// Something that runs already.
    Url(String),
}

/// Something about a target that its name can say.
pub struct TargetOption {
    pub name: &'static str,
    /// Where it applies, in words.
    pub whose: &'static str,
    applies: fn(&Base) -> bool,
    /// What it does.
    pub about: &'static str,
}

/// Every option: the text of `bench targets`.
pub const OPTIONS: &[TargetOption] = &[
    option("driver", OURS, Base::is_ours, "io_uring or epoll; auto when left out"),
    option("cores", "all but direct", |base| *base != Base::Direct, "data cores or workers; 1 when left out"),
    option("limits", GOVERNED, Base::is_governed, "how many local limits apply, 0 to 20; 5 when left out"),
    option("shadow", GOVERNED, Base::is_governed, "limits count and refuse nothing"),
    option("refuse", GOVERNED, Base::is_governed, "the first limit refuses every request"),
    option("store", GOVERNED, Base::is_governed, "local, share or redis for the limit on requests per minute"),
    option("sync", OURS, Base::is_ours, "ledger: interval or always"),
    option("binary", OURS, Base::is_ours, "another build of the gateway, by its path"),
    option("counting", OURS, Base::is_ours, "the build that counts allocations"),
    option("unbuffered", "nginx", |base| *base == Base::Peer("nginx"), "passes streams on as they come"),
    option("governed", "ferrogw, litellm", Base::is_llm_peer, "with a key and a limit on requests per minute"),
    option("n", "all", |_| true, "nothing; tells two cells of the same target apart, as in A against A"),
];

const OURS: &str = "plain, governed";
const GOVERNED: &str = "governed";

const fn option(
    name: &'static str,
    whose: &'static str,
    applies: fn(&Base) -> bool,
    about: &'static str,
) -> TargetOption {
    TargetOption { name, whose, applies, about }
}

impl Base {
    fn is_ours(&self) -> bool {
        matches!(self, Base::Plain | Base::Governed)
    }

    fn is_governed(&self) -> bool {
        *self == Base::Governed
    }

    /// Those that know keys and limits; the others are proxies.
    fn is_llm_peer(&self) -> bool {
        matches!(self, Base::Peer("ferrogw" | "litellm"))
    }
}

impl Spec {
    pub fn parse(text: &str) -> Result<Self> {
        if text.starts_with("http://") {
            return Ok(Self { base: Base::Url(text.to_owned()), options: BTreeMap::new() });
        }
        let mut parts = text.split('+');
        let name = parts.next().unwrap_or_default();
        let base = match name {
            "direct" => Base::Direct,
            "plain" => Base::Plain,
            "governed" => Base::Governed,
            other => match PEERS.iter().find(|peer| peer.name == other) {
                Some(peer) => Base::Peer(peer.name),
                None => {
                    let peers: Vec<&str> = PEERS.iter().map(|peer| peer.name).collect();
                    return trouble(format!(
                        "no target {other:?}; there are direct, plain, governed, {} and http://HOST:PORT[/PATH]",
                        peers.join(", ")
                    ));
                }
            },
        };
        let mut options = BTreeMap::new();
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, "yes"));
            let Some(option) = OPTIONS.iter().find(|option| option.name == name) else {
                return trouble(format!("no option {name:?} in target {text:?}; see `bench targets`"));
            };
            // A cell that is called after an option it does not have would be read as if it had.
            if !(option.applies)(&base) {
                let whose = option.whose;
                return trouble(format!("target {text:?}: the option {name:?} does not apply here; it is for {whose}"));
            }
            options.insert(name.to_owned(), value.to_owned());
        }
        Ok(Self { base, options })
    }

    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    pub fn has(&self, name: &str) -> bool {
        self.options.contains_key(name)
    }

    /// Data cores or workers.
    pub fn cores(&self) -> Result<usize> {
        self.number("cores", 1)
    }

    fn number(&self, name: &str, default: usize) -> Result<usize> {
        self.option(name).map_or(Ok(default), |text| {
            text.parse().map_err(|_| Trouble(format!("{name}={text} in a target: not a number")))
        })
    }

    /// Whether it is a build of our gateway.
    pub fn is_ours(&self) -> bool {
        self.base.is_ours()
    }

    /// Whether it runs already, so that it must be reached through the host's network.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.base, Base::Url(_))
    }
}

/// What targets are started with.
pub struct Surroundings<'a> {
    pub provider: SocketAddr,
    /// A folder of this run: configurations, logs, ledgers.
    pub folder: &'a Path,
    /// The gateway's own CPUs.
    pub cpus: &'a [usize],
    /// Our gateway.
    pub binary: &'a Path,
    /// Our gateway, built to count allocations.
    pub counting_binary: &'a Path,
    /// How many virtual keys there are.
    pub keys: usize,
    /// Keys for targets that were not started by us.
    pub given_keys: Option<Arc<[String]>>,
    /// Where peers from PyPI are installed.
    pub peers_folder: &'a Path,
    /// The shared store of targets with `store=redis`.
    pub redis: Option<SocketAddr>,
    /// Whether this process is in a network of its own.
    pub is_private_network: bool,
}

/// A target that answers.
pub struct Target {
    pub addr: SocketAddr,
    pub path: String,
    pub keys: Arc<[String]>,
    /// `None` for the provider itself and for what runs elsewhere: no CPU and no memory are known of it.
    pub process: Option<Process>,
    /// Where `/metrics` of ours is.
    pub admin: Option<SocketAddr>,
    /// Where ours keeps its ledger.
    pub data_dir: Option<PathBuf>,
    /// Whether the answer is known to be the mock provider's.
    pub is_mocked: bool,
    /// Whether it is the build that counts allocations.
    pub is_counting: bool,
}

/// Why a target is not there.
pub enum Absent {
    /// Not installed or not possible here: the run goes on without it.
    Skipped(String),
    Broken(Trouble),
}

impl From<Trouble> for Absent {
    fn from(trouble: Trouble) -> Self {
        Absent::Broken(trouble)
    }
}

/// The path of every request.
const CHAT: &str = "/v1/chat/completions";

/// Starts a target and waits until its port is open.
pub fn start(spec: &Spec, name: &str, around: &Surroundings) -> std::result::Result<Target, Absent> {
    let folder = around.folder.join(file_name(name));
    std::fs::create_dir_all(&folder)
        .map_err(|error| Trouble(format!("cannot make the folder {}: {error}", folder.display())))?;
    match &spec.base {
        Base::Direct => Ok(Target {
            addr: around.provider,
            path: CHAT.into(),
            keys: Arc::from(["sk-bench".to_owned()]),
            process: None,
            admin: None,
            data_dir: None,
            is_mocked: true,
            is_counting: false,
        }),
        Base::Url(url) => Ok(from_url(url, around)?),
        Base::Plain | Base::Governed => ours::start(spec, &folder, around),
        Base::Peer(peer) => peers::start(peer, spec, &folder, around),
    }
}

fn from_url(url: &str, around: &Surroundings) -> Result<Target> {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let (authority, path) = rest.split_once('/').map_or((rest, ""), |(authority, path)| (authority, path));
    let authority = if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
    let mut addrs =
        authority.to_socket_addrs().map_err(|error| Trouble(format!("no address for {authority}: {error}")))?;
    let addr = addrs.next().ok_or_else(|| Trouble(format!("no address for {authority}")))?;
    let path = match path.trim_end_matches('/') {
        "" => CHAT.to_owned(),
        "v1" => CHAT.to_owned(),
        path => format!("/{path}"),
    };
    let keys = around.given_keys.clone().unwrap_or_else(|| Arc::from(["sk-bench".to_owned()]));
    Ok(Target { addr, path, keys, process: None, admin: None, data_dir: None, is_mocked: false, is_counting: false })
}

fn file_name(name: &str) -> String {
    name.chars().map(|char| if char.is_ascii_alphanumeric() { char } else { '-' }).collect()
}

/// A port nobody has at this moment, for programs that cannot take one themselves.
pub fn free_addr() -> Result<SocketAddr> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let found = TcpListener::bind(any).and_then(|listener| listener.local_addr());
    found.map_err(|error| Trouble(format!("no free port: {error}")))
}

/// Waits until a process accepts connections.
fn wait_open(process: &mut Process, addr: SocketAddr, within: Duration) -> Result<()> {
    wait_until(process, within, |_| TcpStream::connect(addr).ok().map(drop))
}

/// Waits until something is there, and tells what the process said if it ends first or takes too long.
fn wait_until<T>(
    process: &mut Process,
    within: Duration,
    mut look: impl FnMut(&mut Process) -> Option<T>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = look(process) {
            return Ok(found);
        }
        stop::check()?;
        if process.has_exited() {
            return trouble(format!("it ended at once and said:\n{}", process.log_tail()));
        }
        if began.elapsed() > within {
            return trouble(format!("it did not listen within {within:?} and said:\n{}", process.log_tail()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Puts values in the places of a checked-in configuration, written `{{name}}`.
fn fill(template: &str, values: &[(&str, String)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(&format!("{{{{{name}}}}}"), value))
}

fn write(path: PathBuf, text: &str) -> Result<PathBuf> {
    std::fs::write(&path, text).map_err(|error| Trouble(format!("cannot write {}: {error}", path.display())))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_named_by_its_base_and_options() {
        let spec = Spec::parse("governed+limits=20+driver=epoll+shadow").unwrap();
        assert_eq!(spec.base, Base::Governed);
        assert_eq!(
            (spec.option("limits"), spec.option("driver"), spec.has("shadow")),
            (Some("20"), Some("epoll"), true)
        );
        assert_eq!(spec.cores().unwrap(), 1);
        assert!(Spec::parse("nginx+workers=2").unwrap_err().to_string().contains("no option \"workers\""));
        assert!(Spec::parse("caddy").unwrap_err().to_string().contains("no target \"caddy\""));
        assert!(Spec::parse("nginx+cores=two").unwrap().cores().is_err());
    }

    #[test]
    fn an_option_that_does_not_apply_to_a_target_is_refused() {
        let refused = |text: &str| Spec::parse(text).unwrap_err().to_string();
        assert_eq!(
            refused("nginx+limits=3"),
            "target \"nginx+limits=3\": the option \"limits\" does not apply here; it is for governed"
        );
        for target in ["direct+driver=epoll", "plain+refuse", "haproxy+unbuffered", "nginx+governed", "direct+cores=2"]
        {
            assert!(refused(target).contains("does not apply here"), "{target}");
        }
        for target in ["plain+sync=always", "nginx+unbuffered+cores=2", "litellm+governed", "direct+n=2"] {
            assert!(Spec::parse(target).is_ok(), "{target}");
        }
    }

    #[test]
    fn no_place_of_a_checked_in_configuration_stays_unfilled() {
        assert_eq!(fill("listen {{a}}; {{b}} {{a}}", &[("a", "1".into()), ("b", "2".into())]), "listen 1; 2 1");
    }
}
