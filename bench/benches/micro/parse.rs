//! What is read of a request and of its answer: a head, a JSON body, a stream of events.

use std::hint::black_box;

use divan::Bencher;
use divan::counter::BytesCount;
use io::http1::head::{HeadLimits, RequestHead};
use io::json::Inspector;
use io::sse::SseTap;
use io::usage::Shape;

/// The head of a chat completion as the OpenAI SDK for Python sends it: 15 headers.
const HEAD: &str = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8790\r\nAccept-Encoding: gzip, deflate\r\n\
    Connection: keep-alive\r\nAccept: application/json\r\nContent-Type: application/json\r\n\
    User-Agent: OpenAI/Python 2.8.0\r\nX-Stainless-Lang: python\r\nX-Stainless-Package-Version: 2.8.0\r\n\
    X-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n\
    X-Stainless-Runtime-Version: 3.11.2\r\nX-Stainless-Async: false\r\nx-stainless-retry-count: 0\r\n\
    Content-Length: 600\r\nAuthorization: Bearer ttk_bench00000000000000000000000000000XXXXXX\r\n\r\n";

#[divan::bench]
fn request_head(bencher: Bencher) {
    let limits = HeadLimits { head_bytes_max: 65_536 };
    let mut head = RequestHead::default();
    bencher.counter(BytesCount::of_str(HEAD)).bench_local(|| {
        head.clear();
        black_box(head.parse(HEAD.as_bytes(), &limits)).is_ok()
    });
}

/// A chat request of about so many bytes, in messages of 500.
fn body(bytes: usize) -> Vec<u8> {
    let text = "the quick brown fox jumps over the lazy dog and asks what happened. ".repeat(7);
    let message = format!("{{\"role\":\"user\",\"content\":\"{text}\"}}");
    let count = (bytes / (message.len() + 1)).max(1);
    let messages = vec![message; count].join(",");
    format!("{{\"model\":\"gpt-4o-mini\",\"max_tokens\":200,\"temperature\":0.7,\"messages\":[{messages}]}}")
        .into_bytes()
}

#[divan::bench(args = [500, 10_000, 1_000_000, 10_000_000])]
fn request_json(bencher: Bencher, bytes: usize) {
    inspect(bencher, &body(bytes));
}

/// The same of other kinds of text: a picture, text that is not ASCII, token numbers, and nothing but structure.
#[divan::bench(args = ["base64", "chinese", "tokens", "structure"])]
fn request_json_of_64_kb(bencher: Bencher, kind: &str) {
    let filler = match kind {
        "base64" => format!("\"{}\"", "QUJDRA+/".repeat(8_000)),
        "chinese" => format!("\"{}\"", "敏捷的棕色狐狸跳过懒狗。".repeat(1_777)),
        "tokens" => vec!["31845"; 10_666].join(","),
        _ => vec!["{\"a\":[]}"; 6_400].join(","),
    };
    inspect(bencher, format!("{{\"model\":\"gpt-4o-mini\",\"input\":[{filler}]}}").as_bytes());
}

fn inspect(bencher: Bencher, body: &[u8]) {
    let mut inspector = Inspector::default();
    assert!(inspector.inspect(body).is_ok());
    bencher.counter(BytesCount::of_slice(body)).bench_local(|| black_box(inspector.inspect(body)).is_ok());
}

/// A megabyte of chat chunks, in reads of 16 KB.
#[divan::bench(args = [false, true])]
fn sse_tap_per_mb(bencher: Bencher, hide: bool) {
    let event = "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\
                 \"model\":\"gpt-4o-mini\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\
                 \"finish_reason\":null}]}\n\n";
    let stream = event.repeat(1_000_000 / event.len()).into_bytes();
    bencher.counter(BytesCount::of_slice(&stream)).with_inputs(|| stream.clone()).bench_local_values(|mut stream| {
        let mut tap = SseTap::new(Shape::OpenAi, hide);
        for piece in stream.chunks_mut(16 * 1024) {
            black_box(tap.push(piece));
        }
        tap.is_terminated()
    });
}
