//! What the mock provider says, byte by byte.

use super::{FRAME_MARK, REPLY_MARK, Settings};

/// The bytes of every answer, made once.
pub(super) struct Answers {
    pub(super) plain: Vec<u8>,
    pub(super) stream_head: Vec<u8>,
    pub(super) frames: Vec<Vec<u8>>,
    /// Finish, usage, `[DONE]` and the last chunk, in one write.
    pub(super) stream_end: Vec<u8>,
    pub(super) delay_ns: u64,
    pub(super) gap_ns: u64,
}

/// The JSON text of a plain reply.
fn plain_body(settings: &Settings) -> String {
    let mut text = String::from_utf8_lossy(REPLY_MARK).into_owned();
    text.push(' ');
    while text.len() < settings.text_bytes {
        text.push_str("lorem ipsum dolor sit amet ");
    }
    text.truncate(settings.text_bytes.max(REPLY_MARK.len()));
    format!(
        "{{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1760000000,\"model\":\"gpt-4o-mini\",\
         \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\",\"refusal\":null}},\
         \"logprobs\":null,\"finish_reason\":\"stop\"}}],\"usage\":{},\"system_fingerprint\":\"fp_bench\"}}",
        usage(settings.tokens)
    )
}

fn usage(tokens: u32) -> String {
    let (prompt, total) = (20, 20 + tokens);
    format!("{{\"prompt_tokens\":{prompt},\"completion_tokens\":{tokens},\"total_tokens\":{total}}}")
}

fn event(choices: &str, usage: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\
         \"model\":\"gpt-4o-mini\",\"choices\":{choices},\"usage\":{usage}}}\n\n"
    )
}

fn chunked(payload: &str) -> Vec<u8> {
    format!("{:x}\r\n{payload}\r\n", payload.len()).into_bytes()
}

impl Answers {
    pub(super) fn of(settings: &Settings) -> Self {
        let body = plain_body(settings);
        let plain = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nopenai-processing-ms: 1\r\n\
             x-request-id: req_bench\r\n\r\n{body}",
            body.len()
        );
        let stream_head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                           transfer-encoding: chunked\r\nopenai-processing-ms: 1\r\nx-request-id: req_bench\r\n\r\n";
        let frame = |index: u32| {
            let mut text = format!("{}{index:05} ", String::from_utf8_lossy(FRAME_MARK));
            while text.len() < settings.chunk_bytes {
                text.push('x');
            }
            let choice = format!("[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}]");
            chunked(&event(&choice, "null"))
        };
        let end = [
            chunked(&event("[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]", "null")),
            chunked(&event("[]", &usage(settings.tokens))),
            chunked("data: [DONE]\n\n"),
            b"0\r\n\r\n".to_vec(),
        ];
        Self {
            plain: plain.into_bytes(),
            stream_head: stream_head.into(),
            frames: (0..settings.chunks).map(frame).collect(),
            stream_end: end.concat(),
            delay_ns: settings.delay_us * 1_000,
            gap_ns: settings.gap_us * 1_000,
        }
    }
}
