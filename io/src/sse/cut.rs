//! The event that ends a stream whose upstream was cut, in the words of each API, so that its SDK raises an error
//! instead of taking half an answer for a whole one.

use crate::usage::Shape;

/// Appends the event, its empty line included.
pub(super) fn append_event(shape: Shape, code: &str, message: &str, out: &mut Vec<u8>) {
    match shape {
        Shape::OpenAi => {
            out.extend_from_slice(b"data: {\"error\":{\"message\":");
            string(message, out);
            out.extend_from_slice(b",\"type\":\"upstream_error\",\"param\":null,\"code\":");
            string(code, out);
            out.extend_from_slice(b"}}\n\n");
        }
        Shape::Responses => {
            out.extend_from_slice(b"event: error\ndata: {\"type\":\"error\",\"code\":");
            string(code, out);
            out.extend_from_slice(b",\"message\":");
            string(message, out);
            out.extend_from_slice(b",\"param\":null}\n\n");
        }
        Shape::Anthropic => {
            out.extend_from_slice(
                b"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":",
            );
            string(message, out);
            out.extend_from_slice(b",\"code\":");
            string(code, out);
            out.extend_from_slice(b"}}\n\n");
        }
    }
}

/// A JSON string. No line end survives, so the event stays one line.
fn string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..0x20 => out.push(b' '),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_one_line_of_json() {
        for (shape, start) in [
            (Shape::OpenAi, "data: {\"error\":{\"message\":\"cut \\\"short\\\" \\\\ here\""),
            (Shape::Responses, "event: error\ndata: {\"type\":\"error\",\"code\":\"upstream_cut\""),
            (Shape::Anthropic, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\""),
        ] {
            let mut out = Vec::new();
            append_event(shape, "upstream_cut", "cut \"short\" \\\nhere", &mut out);
            let text = String::from_utf8(out).unwrap();
            assert!(text.starts_with(start), "{text}");
            let data = text.trim_end().rsplit_once("data: ").unwrap().1;
            let json: serde_json::Value = serde_json::from_str(data).unwrap();
            assert!(json["error"]["message"].is_string() || json["message"].is_string());
        }
    }
}
