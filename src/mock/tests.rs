//! What a client of the mock sees, over a real socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;

/// Starts a mock that answers at once, on its own thread; it ends with the test process.
fn start(options: MockOptions) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { serve(TcpListener::from_std(listener).unwrap(), options).await })
    });
    addr
}

fn at_once() -> MockOptions {
    MockOptions { latency: Duration::ZERO, chunk_delay: Duration::ZERO, ..MockOptions::default() }
}

/// The whole answer, head and body as they came, until the mock closed the connection.
fn post(addr: SocketAddr, path: &str, body: &Value) -> String {
    let body = body.to_string();
    let mut connection = TcpStream::connect(addr).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: mock\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.write_all((head + &body).as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer); // a cut answer may end in a reset
    String::from_utf8(answer).unwrap()
}

fn json_of(answer: &str) -> Value {
    serde_json::from_str(answer.split_once("\r\n\r\n").expect("a head and a body").1).unwrap()
}

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "12345678"}]})
}

#[test]
fn a_chat_answers_with_the_configured_tokens_and_matching_usage() {
    let answer = json_of(&post(start(at_once()), "/v1/chat/completions", &chat("mock")));
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text.split(' ').count(), 40);
    assert_eq!(answer["usage"]["prompt_tokens"], 2);
    assert_eq!(answer["usage"]["completion_tokens"], 40);
    assert_eq!(answer["usage"]["total_tokens"], 42);
}

#[test]
fn a_cap_in_the_request_shortens_the_answer() {
    let mut body = chat("mock");
    body["max_tokens"] = json!(3);
    let answer = json_of(&post(start(at_once()), "/v1/chat/completions", &body));
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_chat_stream_gives_usage_only_to_who_asked() {
    let addr = start(at_once());
    let mut body = chat("mock");
    body["stream"] = json!(true);
    let plain = post(addr, "/v1/chat/completions", &body);
    assert!(plain.contains("data: [DONE]") && !plain.contains("usage"), "{plain}");
    body["stream_options"] = json!({"include_usage": true});
    let asked = post(addr, "/v1/chat/completions", &body);
    assert!(asked.contains(r#""choices":[]"#) && asked.contains(r#""total_tokens":42"#), "{asked}");
}

#[test]
fn a_cut_stream_ends_without_its_closing_chunk() {
    let mut body = chat("mock+cut");
    body["stream"] = json!(true);
    let answer = post(start(at_once()), "/v1/chat/completions", &body);
    assert!(answer.contains("data: {") && !answer.contains("[DONE]"), "{answer}");
    assert!(!answer.ends_with("0\r\n\r\n"), "a clean end would pass half an answer off as whole");
}

#[test]
fn each_vendor_gets_its_own_error_shape() {
    let addr = start(at_once());
    let openai = post(addr, "/v1/chat/completions", &chat("mock+status429"));
    assert!(openai.starts_with("HTTP/1.1 429") && openai.to_lowercase().contains("retry-after: 1"), "{openai}");
    assert_eq!(json_of(&openai)["error"]["type"], "rate_limit_error");
    let anthropic = post(addr, "/v1/messages", &chat("mock+status529"));
    assert!(anthropic.starts_with("HTTP/1.1 529"), "{anthropic}");
    assert_eq!(json_of(&anthropic)["type"], "error");
    assert_eq!(json_of(&anthropic)["error"]["type"], "overloaded_error");
    assert!(post(addr, "/v1/nothing", &json!({})).starts_with("HTTP/1.1 404"));
    assert!(post(addr, "/v1/messages", &json!([1])).starts_with("HTTP/1.1 400"));
}

#[test]
fn embeddings_come_as_floats_or_as_base64() {
    let addr = start(at_once());
    let floats = json_of(&post(addr, "/v1/embeddings", &json!({"model": "mock", "input": ["a", "b"]})));
    assert_eq!(floats["data"].as_array().unwrap().len(), 2);
    assert_eq!(floats["data"][1]["embedding"][1], 1.0);
    let body = json!({"model": "mock", "input": [1, 2, 3], "encoding_format": "base64"});
    let encoded = json_of(&post(addr, "/v1/embeddings", &body));
    assert_eq!(encoded["data"].as_array().unwrap().len(), 1, "an array of tokens is one input");
    let text = encoded["data"][0]["embedding"].as_str().unwrap();
    assert_eq!((text.len(), &text[..6]), (44, "AACAPw"), "eight floats, the first 1.0 = 00 00 80 3f");
}
