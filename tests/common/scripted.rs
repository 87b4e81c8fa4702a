//! An upstream whose answers a test writes itself, for replies the Python mock does not know and for counting
//! what is in flight. One thread per connection.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub fn model(&self) -> String {
        self.json()["model"].as_str().unwrap_or_default().to_owned()
    }
}

pub enum Answer {
    /// These bytes; the connection stays open.
    Keep(Vec<u8>),
    /// These bytes, then the end of the connection.
    Close(Vec<u8>),
}

type Handler = dyn Fn(&Asked) -> Answer + Send + Sync;

pub struct Scripted {
    pub addr: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    stopped: Arc<AtomicBool>,
}

impl Scripted {
    pub fn start(handler: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let stopped = Arc::new(AtomicBool::new(false));
        let handler: Arc<Handler> = Arc::new(handler);
        let (log, stop) = (asked.clone(), stopped.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (log, handler) = (log.clone(), handler.clone());
                std::thread::spawn(move || serve(stream, &log, &*handler));
            }
        });
        Self { addr, asked, stopped }
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed); // the connection below carries the news
        let _ = TcpStream::connect(self.addr); // wakes the accept; the listener is closed with its thread
    }
}

fn serve(stream: TcpStream, log: &Mutex<Vec<Asked>>, handler: &Handler) {
    let _ = stream.set_nodelay(true);
    let mut writer = stream.try_clone().expect("a socket can be cloned");
    let mut reader = BufReader::new(stream);
    while let Some(asked) = read_request(&mut reader) {
        log.lock().unwrap().push(asked.clone());
        match handler(&asked) {
            Answer::Keep(bytes) if writer.write_all(&bytes).is_ok() => {}
            Answer::Keep(_) => return,
            Answer::Close(bytes) => {
                let _ = writer.write_all(&bytes);
                return;
            }
        }
    }
}

/// The gateway writes well-formed requests; anything else ends the connection and fails the test that waits.
fn read_request(reader: &mut impl BufRead) -> Option<Asked> {
    let mut line = String::new();
    let mut next = |reader: &mut dyn BufRead| {
        line.clear();
        reader.read_line(&mut line).ok().filter(|count| *count > 0).map(|_| line.trim_end().to_owned())
    };
    let first = next(reader)?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let line = next(reader)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let mut asked = Asked { method, path, headers, body: Vec::new() };
    if asked.header("transfer-encoding").is_some_and(|te| te.eq_ignore_ascii_case("chunked")) {
        loop {
            let size = usize::from_str_radix(next(reader)?.split(';').next()?, 16).ok()?;
            let mut chunk = vec![0; size + 2]; // with the line end behind it
            if size == 0 {
                while !next(reader)?.is_empty() {}
                break;
            }
            reader.read_exact(&mut chunk).ok()?;
            asked.body.extend_from_slice(&chunk[..size]);
        }
    } else if let Some(length) = asked.header("content-length") {
        asked.body = vec![0; length.parse().ok()?];
        reader.read_exact(&mut asked.body).ok()?;
    }
    Some(asked)
}

pub fn json_answer(status: u16, body: &Value) -> Vec<u8> {
    raw_answer(status, "Content-Type: application/json\r\n", body.to_string().as_bytes())
}

/// `headers` as lines, each with its CRLF.
pub fn raw_answer(status: u16, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A whole chunked stream of events, each given as `(event name, data)`.
pub fn sse_answer(events: &[(&str, String)]) -> Vec<u8> {
    let mut answer =
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for (name, data) in events {
        let name = if name.is_empty() { String::new() } else { format!("event: {name}\n") };
        answer.extend_from_slice(&super::http::chunk_frame(format!("{name}data: {data}\n\n").as_bytes()));
    }
    answer.extend_from_slice(b"0\r\n\r\n");
    answer
}

/// A chat reply with the usage a test wants to see handled.
pub fn chat_reply(model: &str, usage: &Value) -> Value {
    json!({"id": "c1", "object": "chat.completion", "created": 1, "model": model, "usage": usage,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello"}}]})
}

/// The healthy reply: 100 in of which 60 cached, 40 out.
pub fn healthy_chat(model: &str) -> Answer {
    let usage = json!({"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140,
        "prompt_tokens_details": {"cached_tokens": 60}});
    Answer::Keep(json_answer(200, &chat_reply(model, &usage)))
}
