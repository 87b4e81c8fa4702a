//! A TCP proxy in front of a store, which can be slow, silent, deaf, a liar, or point elsewhere.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// What it does to the server's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Pass,
    /// Each answer this much later. A network's delay, not an order of events.
    Slow(Duration),
    /// Takes everything and says nothing, on open connections and on new ones.
    Blackhole,
    /// Answers each command with this, and passes nothing on.
    Answer(&'static [u8]),
    /// Passes half of each answer on and closes.
    CutMidReply,
    /// Closes whatever is open and whatever comes.
    Refuse,
}

struct State {
    mood: Mutex<Mood>,
    target: Mutex<SocketAddr>,
    open: Mutex<Vec<TcpStream>>,
    accepted: AtomicUsize,
    is_over: AtomicBool,
}

pub struct TcpProxy {
    pub addr: SocketAddr,
    state: Arc<State>,
    /// Of one that is unreachable: what fills its queue, and what has it begin.
    deaf: Mutex<Option<(Vec<TcpStream>, Sender<()>)>>,
}

impl TcpProxy {
    pub fn to(target: SocketAddr) -> Self {
        let proxy = Self::new(TcpListener::bind("127.0.0.1:0").expect("loopback has free ports"), target);
        proxy.hear();
        proxy
    }

    /// Until [`TcpProxy::hear`] connecting to it hangs, as to a host that drops what it is sent: its queue is full, and so
    /// the kernel says nothing to whoever knocks.
    pub fn unreachable(target: SocketAddr) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("loopback has free ports");
        socket.listen(0).expect("a bound socket listens");
        let proxy = Self::new(socket.into(), target);
        let knock = || TcpStream::connect_timeout(&proxy.addr, Duration::from_millis(300));
        let filling: Vec<TcpStream> = std::iter::from_fn(|| knock().ok()).take(64).collect();
        assert!(filling.len() < 64, "its queue does not fill");
        if let Some((kept, _)) = &mut *proxy.deaf.lock().unwrap() {
            *kept = filling;
        }
        proxy
    }

    /// It takes connections from now on.
    pub fn hear(&self) {
        if let Some((filling, begin)) = self.deaf.lock().unwrap().take() {
            drop(filling);
            begin.send(()).expect("its thread waits for this");
        }
    }

    fn new(listener: TcpListener, target: SocketAddr) -> Self {
        let addr = listener.local_addr().expect("a bound socket has an address");
        let state = Arc::new(State {
            mood: Mutex::new(Mood::Pass),
            target: Mutex::new(target),
            open: Mutex::default(),
            accepted: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        let accepting = state.clone();
        let (begin, begun) = channel();
        std::thread::spawn(move || {
            if begun.recv().is_err() {
                return; // it never began
            }
            for stream in listener.incoming() {
                if accepting.is_over.load(Ordering::Acquire) {
                    return;
                }
                if let Ok(stream) = stream {
                    accepting.accepted.fetch_add(1, Ordering::AcqRel);
                    let state = accepting.clone();
                    std::thread::spawn(move || serve(&state, stream));
                }
            }
        });
        Self { addr, state, deaf: Mutex::new(Some((Vec::new(), begin))) }
    }

    /// `host:port`, as the config wants it.
    pub fn address(&self) -> String {
        self.addr.to_string()
    }

    pub fn set(&self, mood: Mood) {
        *self.state.mood.lock().unwrap() = mood;
        if mood == Mood::Refuse {
            self.cut();
        }
    }

    /// New connections go to another server; those that are open stay where they are.
    pub fn point_at(&self, target: SocketAddr) {
        *self.state.target.lock().unwrap() = target;
    }

    /// Closes what is open.
    pub fn cut(&self) {
        for stream in self.state.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Connections made to it so far.
    pub fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::Acquire)
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Release);
        self.cut();
        if self.deaf.lock().unwrap().take().is_none() {
            let _ = TcpStream::connect(self.addr); // so that it looks
        }
    }
}

impl State {
    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap()
    }

    fn keep(&self, stream: &TcpStream) {
        if let Ok(stream) = stream.try_clone() {
            self.open.lock().unwrap().push(stream);
        }
    }
}

fn serve(state: &Arc<State>, client: TcpStream) {
    if state.mood() == Mood::Refuse {
        return;
    }
    let target = *state.target.lock().unwrap();
    let Ok(server) = TcpStream::connect(target) else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    state.keep(&client);
    state.keep(&server);
    let (Ok(mut from_client), Ok(mut to_server)) = (client.try_clone(), server.try_clone()) else { return };
    let asking = state.clone();
    let mut to_client_too = client.try_clone().ok();
    std::thread::spawn(move || {
        let mut bytes = [0; 16 << 10];
        while let Ok(count @ 1..) = from_client.read(&mut bytes) {
            let written = match asking.mood() {
                Mood::Blackhole => Ok(()),
                Mood::Answer(answer) => match &mut to_client_too {
                    Some(client) => client.write_all(answer),
                    None => Ok(()),
                },
                Mood::Refuse => break,
                Mood::Pass | Mood::Slow(_) | Mood::CutMidReply => to_server.write_all(&bytes[..count]),
            };
            if written.is_err() {
                break;
            }
        }
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let (mut from_server, mut to_client) = (server, client);
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from_server.read(&mut bytes) {
        let written = match state.mood() {
            Mood::Pass => to_client.write_all(&bytes[..count]),
            Mood::Slow(delay) => {
                std::thread::sleep(delay);
                to_client.write_all(&bytes[..count])
            }
            Mood::Blackhole | Mood::Answer(_) => Ok(()),
            Mood::CutMidReply => {
                let _ = to_client.write_all(&bytes[..count / 2]);
                break;
            }
            Mood::Refuse => break,
        };
        if written.is_err() {
            break;
        }
    }
    let _ = to_client.shutdown(Shutdown::Both);
}
