//! Answers whole and in pieces.

use super::*;
use proptest::prelude::*;

const CHAT: &str = r#"{"id":"c1","object":"chat.completion","created":1,"model":"mock-2026-01-01","service_tier":"default","choices":[{"index":0,"message":{"role":"assistant","content":"Hello, w\u00f6rld \"北京\"!"},"finish_reason":"stop","logprobs":{"content":[{"token":"Hello","bytes":[72]}]}}],"usage":{"prompt_tokens":100,"completion_tokens":40,"total_tokens":140,"prompt_tokens_details":{"cached_tokens":60}}}"#;

fn scanned(shape: Shape, body: &str, piece: usize) -> BodyScan {
    let mut scan = BodyScan::new(shape);
    for part in body.as_bytes().chunks(piece.max(1)) {
        scan.feed(part);
    }
    scan
}

#[test]
fn a_chat_answer_says_what_it_used_in_any_pieces() {
    for piece in 1..CHAT.len() {
        let scan = scanned(Shape::OpenAi, CHAT, piece);
        let usage = scan.usage().unwrap();
        assert_eq!(
            (usage.input, usage.output, usage.cached_input),
            (Some(100), Some(40), Some(60)),
            "pieces of {piece}"
        );
        assert_eq!((scan.model(), usage.tier.as_deref()), (Some("mock-2026-01-01"), Some("default")));
        // `Hello, w` 8, `\u00f6` as 3, `rld ` 4, two quotes 2, two ideographs 6, `!` 1.
        assert_eq!(scan.text_bytes(), 24);
        assert!(!scan.error_seen() && scan.has_finish_reason() && scan.document().complete);
    }
}

#[test]
fn usage_is_found_where_each_api_puts_it() {
    for (shape, body) in [
        (Shape::OpenAi, r#"{"usage":{"prompt_tokens":1,"completion_tokens":2}}"#),
        (Shape::OpenAi, r#"{"choices":[{"delta":{},"usage":{"prompt_tokens":1,"completion_tokens":2}}]}"#),
        (
            Shape::Responses,
            r#"{"type":"response.completed","response":{"usage":{"input_tokens":1,"output_tokens":2}}}"#,
        ),
        (Shape::Responses, r#"{"type":"x","message":{"usage":{"input_tokens":1,"output_tokens":2}}}"#),
        (Shape::Anthropic, r#"{"type":"message_delta","delta":{"x":[]},"usage":{"input_tokens":1,"output_tokens":2}}"#),
        (Shape::OpenAi, r#" {"a" : [ {} , [ ] ] , "usage" : { "prompt_tokens" : 1 , "completion_tokens" : 2 } } "#),
    ] {
        for piece in [1, 2, 7, 1000] {
            let usage = scanned(shape, body, piece).usage().unwrap();
            assert_eq!((usage.input, usage.output, usage.anomaly), (Some(1), Some(2), false), "{body}");
        }
    }
}

#[test]
fn the_start_of_an_anthropic_stream_reports_input_alone() {
    let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":1,"output_tokens":2}}}"#;
    for piece in [1, 2, 7, 1000] {
        let usage = scanned(Shape::Anthropic, start, piece).usage().unwrap();
        assert_eq!((usage.input, usage.output), (Some(1), None));
    }
}

#[test]
fn usage_anywhere_else_is_not_usage() {
    for body in [
        r#"{"a":{"usage":{"prompt_tokens":1}}}"#,
        r#"{"response":{"a":{"usage":{"input_tokens":1}}}}"#,
        r#"[{"usage":{"prompt_tokens":1}}]"#,
        r#"{"a":"\"usage\":{\"prompt_tokens\":1}"}"#,
        r#"{"a":["usage",{"prompt_tokens":1}]}"#,
        r#"{"output":[{"usage":{"prompt_tokens":1}}]}"#,
        r#"{"usage":null}"#,
        r#"{"response":{"usage":null}}"#,
        "",
        "<h1>oops</h1>",
    ] {
        for piece in [1, 1000] {
            assert_eq!(scanned(Shape::OpenAi, body, piece).usage(), None, "{body}");
        }
    }
}

#[test]
fn something_else_in_the_place_of_usage_is_an_anomaly() {
    let large = format!(r#"{{"usage":{{"prompt_tokens":1,"x":"{}"}}}}"#, "y".repeat(9000));
    for body in
        [r#"{"usage":"none"}"#, r#"{"usage":[{"prompt_tokens":1}]}"#, r#"{"usage":7}"#, r#"{"usage":true}"#, &large]
    {
        for piece in [1, 100, 100_000] {
            let usage = scanned(Shape::OpenAi, body, piece).usage().unwrap();
            assert_eq!((usage.input, usage.output, usage.anomaly), (None, None, true), "{}", &body[..15]);
        }
    }
}

#[test]
fn generated_text_is_counted_once() {
    for (body, bytes) in [
        (r#"{"choices":[{"delta":{"content":"12345"}}]}"#, 5),
        (r#"{"choices":[{"text":"12345","logprobs":null}]}"#, 5),
        (
            r#"{"choices":[{"delta":{"tool_calls":[{"id":"call_1","function":{"name":"f","arguments":"{\"a\":1}"}}]}}]}"#,
            7,
        ),
        (r#"{"choices":[{"delta":{"reasoning_content":"123","content":"45","refusal":null}}]}"#, 5),
        (r#"{"choices":[{"message":{"content":["12","345"]}}]}"#, 5),
        (r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"12345"}}"#, 5),
        (r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\"a\""}}"#, 4),
        (
            r#"{"content":[{"type":"text","text":"123"},{"type":"tool_use","id":"t","name":"f","input":{"a":["45"],"b":{"c":"6"}}},{"type":"text","text":"78"}]}"#,
            3 + 1 + 2 + 1 + 1 + 1 + 2,
        ),
        (r#"{"type":"response.output_text.delta","item_id":"m1","delta":"12345"}"#, 5),
        (r#"{"type":"response.output_text.done","item_id":"m1","text":"12345"}"#, 0),
        (r#"{"type":"response.completed","response":{"output":[{"content":[{"text":"12345"}]}]}}"#, 0),
        (
            r#"{"output":[{"type":"message","id":"m1","content":[{"type":"output_text","text":"12345"}]},{"type":"function_call","arguments":"67"}]}"#,
            7,
        ),
        (r#"{"object":"list","data":[{"embedding":[0.1,0.2]}]}"#, 0),
        (r#"{"error":{"message":"no","text":"12345"}}"#, 0),
    ] {
        for piece in [1, 3, 1000] {
            assert_eq!(scanned(Shape::OpenAi, body, piece).text_bytes(), bytes, "{body}");
        }
    }
}

#[test]
fn errors_are_seen_where_an_api_puts_them() {
    for (body, error) in [
        (r#"{"error":{"message":"x"}}"#, true),
        (r#"{"error":"x"}"#, true),
        (r#"{"type":"error","code":"x","message":"y"}"#, true),
        (r#"{"type":"response.failed","response":{"error":{"code":"x"}}}"#, true),
        (r#"{"response":{"error":null}}"#, false),
        (r#"{"error":null}"#, false),
        (r#"{"choices":[{"message":{"content":"error"}}]}"#, false),
        (r#"{"output":[{"type":"error","error":"in a tool"}]}"#, false),
    ] {
        for piece in [1, 1000] {
            assert_eq!(scanned(Shape::OpenAi, body, piece).error_seen(), error, "{body}");
        }
    }
}

#[test]
fn choices_are_told_apart() {
    for (body, choices) in [
        (r#"{"choices":[],"usage":{}}"#, Choices::Empty),
        (r#"{"choices": [ ] }"#, Choices::Empty),
        (r#"{"choices":[{"index":0}]}"#, Choices::Some),
        (r#"{"choices":[{}]}"#, Choices::Some),
        (r#"{"a":{"choices":[{}]}}"#, Choices::Absent),
        (r#"{"choices":null}"#, Choices::Absent),
    ] {
        for piece in [1, 1000] {
            assert_eq!(scanned(Shape::OpenAi, body, piece).document().choices, choices, "{body}");
        }
    }
}

#[test]
fn a_long_line_takes_no_memory_and_a_long_name_is_no_trap() {
    let body = format!(
        r#"{{"{}":1,"pad":"{}","model":"{}","deep":{}{},"usage":{{"prompt_tokens":1,"completion_tokens":2}}}}"#,
        "usage".repeat(1000),
        "p".repeat(3 << 20),
        "m".repeat(1000),
        "[{\"a\":".repeat(300),
        "1".to_owned() + &"}]".repeat(300),
    );
    for piece in [1, 4096, usize::MAX] {
        let scan = scanned(Shape::OpenAi, &body, piece);
        let usage = scan.usage().unwrap();
        assert_eq!((usage.input, usage.output, scan.model()), (Some(1), Some(2), None));
        assert!(scan.capture.capacity() < 1024);
    }
}

#[test]
fn a_kind_too_long_to_be_known_changes_nothing_whole_or_in_pieces() {
    for length in [0, 64, 65, 300] {
        let text = format!(r#"{{"type":"message_stop"}} {{"type":"{}"}}"#, "m".repeat(length));
        for size in [1, 30, text.len()] {
            let mut scan = BodyScan::new(Shape::Anthropic);
            text.as_bytes().chunks(size).for_each(|piece| scan.feed(piece));
            let expected = if length > 64 { EventKind::End } else { EventKind::Other };
            assert_eq!(scan.document().kind, expected, "{length} in {size}");
        }
    }
}

proptest! {
    #[test]
    fn every_split_says_the_same(cuts in proptest::collection::vec(1usize..40, 1..20), shape in 0usize..3) {
        let shape = [Shape::OpenAi, Shape::Responses, Shape::Anthropic][shape];
        let whole = scanned(shape, CHAT, CHAT.len());
        let mut split = BodyScan::new(shape);
        let (mut rest, mut cuts) = (CHAT.as_bytes(), cuts.iter().cycle());
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            split.feed(piece);
            rest = behind;
        }
        prop_assert_eq!(whole.usage(), split.usage());
        prop_assert_eq!(whole.text_bytes(), split.text_bytes());
    }

    #[test]
    fn no_text_panics_and_every_split_agrees(
        text in r#"([\[\]{}",:\\1n ]|usage|choices|delta|content|error|response|input|"prompt_tokens":){0,40}"#,
        piece in 1usize..12,
    ) {
        let (whole, split) = (scanned(Shape::OpenAi, &text, usize::MAX), scanned(Shape::OpenAi, &text, piece));
        prop_assert_eq!(whole.usage(), split.usage());
        prop_assert_eq!(whole.error_seen(), split.error_seen());
        prop_assert_eq!(whole.document().choices, split.document().choices);
        prop_assert_eq!(whole.text_bytes(), split.text_bytes());
    }
}
