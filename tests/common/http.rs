//! A small blocking HTTP/1.1 client that hides nothing: raw bytes out, status, headers, framing and an honest
//! "was it complete" in.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

/// No answer of the gateway may take longer than this; it only bounds a failure.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// One request, to be written as it stands.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Body,
}

#[derive(Clone, Debug)]
pub enum Body {
    None,
    Sized(Vec<u8>),
    Chunked(Vec<Vec<u8>>),
}

impl Request {
    pub fn new(method: &str, target: &str) -> Self {
        Self { method: method.to_owned(), target: target.to_owned(), headers: Vec::new(), body: Body::None }
    }

    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    pub fn post(target: &str) -> Self {
        Self::new("POST", target)
    }

    pub fn key(self, key: &str) -> Self {
        self.header("Authorization", &format!("Bearer {key}"))
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn json(self, body: &Value) -> Self {
        self.json_text(&body.to_string())
    }

    pub fn json_text(mut self, body: &str) -> Self {
        self.body = Body::Sized(body.as_bytes().to_vec());
        self.header("Content-Type", "application/json")
    }

    pub fn chunked(mut self, chunks: impl IntoIterator<Item = Vec<u8>>) -> Self {
        self.body = Body::Chunked(chunks.into_iter().collect());
        self.header("Content-Type", "application/json")
    }

    /// The head alone, up to and with the empty line.
    pub fn head(&self, host: &str) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nHost: {host}\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        match &self.body {
            Body::None => {}
            Body::Sized(body) => head += &format!("Content-Length: {}\r\n", body.len()),
            Body::Chunked(_) => head += "Transfer-Encoding: chunked\r\n",
        }
        (head + "\r\n").into_bytes()
    }

    pub fn bytes(&self, host: &str) -> Vec<u8> {
        let mut bytes = self.head(host);
        match &self.body {
            Body::None => {}
            Body::Sized(body) => bytes.extend_from_slice(body),
            Body::Chunked(chunks) => {
                for chunk in chunks {
                    bytes.extend_from_slice(&chunk_frame(chunk));
                }
                bytes.extend_from_slice(b"0\r\n\r\n");
            }
        }
        bytes
    }
}

pub fn chunk_frame(chunk: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat()
}

/// How the sender said where the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body at all: 204, 304, an answer to HEAD.
    Bodiless,
    Length,
    Chunked,
    /// The end of the connection is the end of the body, so a cut looks like an end.
    Close,
}

#[derive(Clone, Debug)]
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// Statuses of the interim answers before it, such as 100.
    pub interim: Vec<u16>,
}

impl Head {
    /// The value of the first header of that name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// How many headers have that name.
    pub fn count(&self, name: &str) -> usize {
        self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).count()
    }

    #[track_caller]
    pub fn request_id(&self) -> String {
        self.header("x-tt-request-id").unwrap_or_else(|| panic!("no x-tt-request-id in {:?}", self.headers)).to_owned()
    }
}

#[derive(Clone, Debug)]
pub struct Response {
    pub head: Head,
    pub body: Vec<u8>,
    pub framing: Framing,
    /// The body ended as its framing promised.
    pub complete: bool,
}

impl std::ops::Deref for Response {
    type Target = Head;
    fn deref(&self) -> &Head {
        &self.head
    }
}

impl Response {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in the body of a {}: {}", self.status, self.text()))
    }

    /// Asserts the status, with the body in the message when it is another.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "body: {}, headers: {:?}", self.text(), self.headers);
        self
    }
}

/// One connection. Reading panics when nothing comes for [`ANSWER_WITHIN`].
pub struct Conn {
    stream: TcpStream,
    pub host: String,
    unread: Vec<u8>,
    /// When the last bytes came in, by both clocks.
    pub read_at: Instant,
    pub read_at_wall: SystemTime,
}

impl Conn {
    #[track_caller]
    pub fn open(addr: SocketAddr) -> Self {
        Self::try_open(addr).unwrap_or_else(|error| panic!("cannot connect to {addr}: {error}"))
    }

    pub fn try_open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, ANSWER_WITHIN)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        Ok(Self {
            stream,
            host: addr.to_string(),
            unread: Vec::new(),
            read_at: Instant::now(),
            read_at_wall: SystemTime::now(),
        })
    }

    #[track_caller]
    pub fn send(&mut self, request: &Request) {
        let bytes = request.bytes(&self.host);
        self.send_raw(&bytes);
    }

    #[track_caller]
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.try_send_raw(bytes).unwrap_or_else(|error| panic!("cannot write to {}: {error}", self.host));
    }

    /// For a peer that may answer and close before it has read everything.
    pub fn try_send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Says that no more will be sent; answers still come.
    pub fn finish_sending(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Closes with a reset instead of an orderly end.
    pub fn reset(self) {
        let socket = socket2::SockRef::from(&self.stream);
        socket.set_linger(Some(Duration::ZERO)).expect("an open socket takes the option");
    }

    /// A small receive window, for a reader that stops reading. Must be called before anything was read.
    pub fn shrink_receive_buffer(&self, bytes: usize) {
        socket2::SockRef::from(&self.stream).set_recv_buffer_size(bytes).expect("an open socket takes the option");
    }

    /// Reads some bytes; 0 is the end of the stream, an orderly one or a reset.
    #[track_caller]
    fn fill(&mut self) -> usize {
        let mut block = [0; 16 * 1024];
        loop {
            return match self.stream.read(&mut block) {
                Ok(count) => {
                    self.read_at = Instant::now();
                    self.read_at_wall = SystemTime::now();
                    self.unread.extend_from_slice(&block[..count]);
                    count
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    panic!("nothing from {} for {ANSWER_WITHIN:?}; unread: {:?}", self.host, self.unread_text())
                }
                Err(_) => 0,
            };
        }
    }

    fn unread_text(&self) -> String {
        String::from_utf8_lossy(&self.unread).into_owned()
    }

    /// Whether the peer has closed, or closes within `within`. Bytes that still come are an error of the test.
    pub fn is_closed(&mut self, within: Duration) -> bool {
        let _ = self.stream.set_read_timeout(Some(within));
        let closed = match self.stream.read(&mut [0; 1]) {
            Ok(0) => true,
            Ok(_) => panic!("more bytes from {} where the end was expected", self.host),
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
        };
        let _ = self.stream.set_read_timeout(Some(ANSWER_WITHIN));
        closed
    }

    /// Waits until there is something to read, at most `within`, without taking it.
    pub fn has_bytes(&mut self, within: Duration) -> bool {
        if !self.unread.is_empty() {
            return true;
        }
        let _ = self.stream.set_read_timeout(Some(within));
        let some = self.stream.peek(&mut [0; 1]).is_ok_and(|count| count > 0);
        let _ = self.stream.set_read_timeout(Some(ANSWER_WITHIN));
        some
    }

    /// The next head that is no interim answer, or `None` when the connection ended before one came.
    #[track_caller]
    pub fn try_read_head(&mut self) -> Option<Head> {
        let mut interim = Vec::new();
        loop {
            let end = loop {
                if let Some(at) = find(&self.unread, b"\r\n\r\n") {
                    break at + 4;
                }
                if self.fill() == 0 {
                    return None;
                }
            };
            let head: Vec<u8> = self.unread.drain(..end).collect();
            let (status, headers) = parse_head(&head);
            if !(100..200).contains(&status) {
                return Some(Head { status, headers, interim });
            }
            interim.push(status);
        }
    }

    #[track_caller]
    pub fn read_head(&mut self) -> Head {
        self.try_read_head().unwrap_or_else(|| panic!("{} closed without an answer", self.host))
    }

    #[track_caller]
    pub fn read_response(&mut self) -> Response {
        self.read_response_to("POST")
    }

    /// An answer to HEAD has the headers of a body and no body.
    #[track_caller]
    pub fn read_response_to(&mut self, method: &str) -> Response {
        let head = self.read_head();
        let mut decoder = Decoder::of(&head, method);
        let framing = decoder.framing;
        let mut body = Vec::new();
        let complete = loop {
            match self.read_body(&mut decoder, &mut body) {
                Progress::More => {}
                Progress::Complete => break true,
                Progress::Cut => break false,
            }
        };
        Response { head, body, framing, complete }
    }

    /// Moves what has arrived of the body to `out`, reading once when nothing had.
    #[track_caller]
    pub fn read_body(&mut self, decoder: &mut Decoder, out: &mut Vec<u8>) -> Progress {
        let before = out.len();
        if decoder.decode(&mut self.unread, out) {
            return Progress::Complete;
        }
        if out.len() > before || self.fill() > 0 {
            return Progress::More;
        }
        if decoder.framing == Framing::Close { Progress::Complete } else { Progress::Cut }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    More,
    Complete,
    /// The connection ended before the body did.
    Cut,
}

/// Takes a body out of its framing.
pub struct Decoder {
    pub framing: Framing,
    /// Bytes of the body, or of the current chunk, still to come.
    left: usize,
    chunk_open: bool,
    last_chunk_seen: bool,
}

impl Decoder {
    pub fn of(head: &Head, method: &str) -> Self {
        let length = head.header("content-length").map(|text| text.parse().expect("a content-length is a number"));
        let chunked = head.header("transfer-encoding").is_some_and(|te| te.eq_ignore_ascii_case("chunked"));
        assert!(!(chunked && length.is_some()), "an answer with both framings: {:?}", head.headers);
        let framing = match head.status {
            _ if method == "HEAD" => Framing::Bodiless,
            204 | 304 => Framing::Bodiless,
            _ if chunked => Framing::Chunked,
            _ if length.is_some() => Framing::Length,
            _ => Framing::Close,
        };
        Self { framing, left: length.unwrap_or(0), chunk_open: false, last_chunk_seen: false }
    }

    /// Moves payload from `raw` to `out`; true when the body is complete.
    fn decode(&mut self, raw: &mut Vec<u8>, out: &mut Vec<u8>) -> bool {
        match self.framing {
            Framing::Bodiless => true,
            Framing::Close => {
                out.append(raw);
                false
            }
            Framing::Length => {
                self.take(raw, out);
                self.left == 0
            }
            Framing::Chunked => self.decode_chunks(raw, out),
        }
    }

    fn decode_chunks(&mut self, raw: &mut Vec<u8>, out: &mut Vec<u8>) -> bool {
        loop {
            if self.last_chunk_seen {
                // trailers, ended by an empty line
                let Some(line) = take_line(raw) else { return false };
                if line.is_empty() {
                    return true;
                }
            } else if self.left > 0 {
                self.take(raw, out);
                if self.left > 0 {
                    return false;
                }
            } else if self.chunk_open {
                let Some(line) = take_line(raw) else { return false };
                assert!(line.is_empty(), "a chunk is followed by an empty line, not {line:?}");
                self.chunk_open = false;
            } else {
                let Some(line) = take_line(raw) else { return false };
                let size = line.split(';').next().unwrap_or_default().trim();
                self.left = usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("`{line}` is no chunk size"));
                self.last_chunk_seen = self.left == 0;
                self.chunk_open = true;
            }
        }
    }

    fn take(&mut self, raw: &mut Vec<u8>, out: &mut Vec<u8>) {
        let count = self.left.min(raw.len());
        out.extend(raw.drain(..count));
        self.left -= count;
    }
}

fn take_line(raw: &mut Vec<u8>) -> Option<String> {
    let end = find(raw, b"\r\n")?;
    let line = String::from_utf8_lossy(&raw[..end]).into_owned();
    raw.drain(..end + 2);
    Some(line)
}

#[track_caller]
fn parse_head(head: &[u8]) -> (u16, Vec<(String, String)>) {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.trim_end_matches("\r\n").split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.unwrap_or_else(|| panic!("`{status_line}` is no status line"));
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("`{line}` is no header"));
        (name.to_owned(), value.trim().to_owned())
    });
    (status, headers.collect())
}

pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::find(haystack, needle)
}

/// One request on a connection of its own.
#[track_caller]
pub fn exchange(addr: SocketAddr, request: &Request) -> Response {
    let mut conn = Conn::open(addr);
    conn.send(request);
    conn.read_response_to(&request.method)
}

/// Like [`exchange`], for a peer that may be gone: `None` when it did not answer in full.
pub fn try_exchange(addr: SocketAddr, request: &Request) -> Option<Response> {
    let mut conn = Conn::try_open(addr).ok()?;
    conn.try_send_raw(&request.bytes(&addr.to_string())).ok()?;
    let head = conn.try_read_head()?;
    let mut decoder = Decoder::of(&head, &request.method);
    let (framing, mut body) = (decoder.framing, Vec::new());
    loop {
        match conn.read_body(&mut decoder, &mut body) {
            Progress::More => {}
            Progress::Complete => return Some(Response { head, body, framing, complete: true }),
            Progress::Cut => return None,
        }
    }
}
