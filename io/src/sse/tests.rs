//! Streams in every legal spelling, in every split.

use super::*;
use proptest::prelude::*;

/// A chat stream as a provider sends it when usage was asked for; `%` stands for the usage chunk.
const CHAT: &str = concat!(
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hel\"},\"finish_reason\":null}],\"usage\":null}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo 北京 🌍\"},\"finish_reason\":null}],\"usage\":null}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n",
    "%",
    "data: [DONE]\n\n",
);
const USAGE_CHUNK: &str = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":40,\"total_tokens\":140}}\n\n";

fn with_chunk(chunk: &str) -> String {
    CHAT.replace('%', chunk)
}

/// Pushes in pieces; gives back the tap and what went to the client.
fn tapped(shape: Shape, hide: bool, stream: &[u8], sizes: &[usize]) -> (SseTap, Vec<u8>) {
    let mut tap = SseTap::new(shape, hide);
    let (mut rest, mut sizes, mut out) = (stream, sizes.iter().cycle(), Vec::new());
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at((*sizes.next().unwrap()).clamp(1, rest.len()));
        rest = behind;
        let mut piece = piece.to_vec();
        let passed = tap.push(&mut piece);
        let length = passed.length;
        out.extend_from_slice(passed.held);
        out.extend_from_slice(&piece[..length]);
    }
    out.extend_from_slice(tap.finish());
    (tap, out)
}

/// The same events in each legal spelling.
fn spellings(stream: &str) -> Vec<(&'static str, String)> {
    let each_event =
        |prefix: &str| -> String { stream.split_inclusive("\n\n").map(|event| format!("{prefix}{event}")).collect() };
    let multi_line: String = stream
        .split_inclusive("\n\n")
        .map(|event| event.replace(",\"choices\"", "\ndata: ,\"choices\"").replace("},", "},\ndata:"))
        .collect();
    vec![
        ("lf", stream.to_owned()),
        ("crlf", stream.replace('\n', "\r\n")),
        ("cr", stream.replace('\n', "\r")),
        ("nospace", stream.replace("data: ", "data:")),
        ("bom", format!("\u{feff}{stream}")),
        ("comment", each_event(": keep-alive\n")),
        ("ids", each_event("id: 17\nretry: 10\n")),
        ("ids after", stream.replace("}\n\n", "}\nid: 17\n: c\n\n")),
        ("event names", each_event("event: chunk\n")),
        ("multiline", multi_line),
        ("comment crlf", each_event(": keep-alive\n").replace('\n', "\r\n")),
    ]
}

#[test]
fn usage_is_found_and_every_byte_passes_in_every_spelling_and_split() {
    for (spelling, stream) in spellings(&with_chunk(USAGE_CHUNK)) {
        for size in [1, 2, 3, 5, 64, 100_000] {
            let (tap, out) = tapped(Shape::OpenAi, false, stream.as_bytes(), &[size]);
            assert!(out == stream.as_bytes(), "{spelling} in {size}");
            let usage = tap.scan().usage().unwrap();
            assert_eq!((usage.input, usage.output), (Some(100), Some(40)), "{spelling} in {size}");
            assert_eq!(tap.scan().text_bytes(), "Hello 北京 🌍".len() as u64, "{spelling} in {size}");
            assert!(tap.is_terminated() && !tap.scan().error_seen());
        }
    }
}

#[test]
fn the_usage_chunk_is_dropped_whole_in_every_spelling_and_split() {
    let shown = spellings(&with_chunk(""));
    for ((spelling, stream), (_, shown)) in spellings(&with_chunk(USAGE_CHUNK)).into_iter().zip(shown) {
        for size in (1..40).chain([200, 100_000]) {
            let (tap, out) = tapped(Shape::OpenAi, true, stream.as_bytes(), &[size]);
            assert_eq!(String::from_utf8(out).unwrap(), shown, "{spelling} in {size}");
            assert_eq!(tap.scan().usage().unwrap().output, Some(40));
            assert!(tap.is_terminated());
        }
    }
}

#[test]
fn only_the_usage_chunk_is_dropped() {
    for chunk in [
        // Azure's first frame.
        "data: {\"choices\":[],\"prompt_filter_results\":[{\"prompt_index\":0}]}\n\n",
        "data: {\"choices\":[],\"usage\":null}\n\n",
        // Running totals on an ordinary chunk.
        "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\n",
        "data: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2},\"choices\":[{\"delta\":{}}]}\n\n",
        "data: {\"error\":{\"message\":\"died\"},\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\n",
        // Two documents in one event.
        "data: {\"choices\":[{}]}\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}} {\"choices\":[],\"usage\":{}}\n\n",
        "data: {\"choices\":[{}],\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n",
        ": ping\n\n",
        "\n\n",
        "id: 7\n\n",
        "data: not json\n\n",
        "data: {\"choices\":[],\"usage\":{\n\n",
        "data\n\n",
        "event: x\ndata:\n\n",
    ] {
        let stream = with_chunk(chunk);
        for size in (1..30).chain([100_000]) {
            let (_, out) = tapped(Shape::OpenAi, true, stream.as_bytes(), &[size]);
            assert_eq!(String::from_utf8(out).unwrap(), stream, "in {size}");
        }
    }
}

#[test]
fn nothing_but_a_possible_usage_chunk_waits() {
    let mut tap = SseTap::new(Shape::OpenAi, true);
    let sent = |tap: &mut SseTap, text: &str| {
        let mut piece = text.as_bytes().to_vec();
        let passed = tap.push(&mut piece);
        let length = passed.length;
        passed.held.len() + length
    };
    // Whole events go at once.
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
    assert_eq!(sent(&mut tap, event), event.len());
    // A comment goes at once, it keeps the client alive.
    assert_eq!(sent(&mut tap, ": keep-alive\n"), 13);
    assert_eq!(sent(&mut tap, ": kee"), 5);
    assert_eq!(sent(&mut tap, "p\n"), 2);
    // A half event waits until its choices have an element.
    assert_eq!(sent(&mut tap, "data: {\"id\":1,\"choices\":["), 0);
    assert_eq!(sent(&mut tap, "{"), 26);
    assert_eq!(sent(&mut tap, "\"delta\":"), 8);
    assert_eq!(sent(&mut tap, "{}}]}\n\n"), 7);
    // `[DONE]` cannot be one.
    assert_eq!(sent(&mut tap, "data: ["), 7);
    assert_eq!(sent(&mut tap, "DONE]\n\n"), 7);
    assert!(tap.is_terminated());
}

#[test]
fn an_event_that_grows_beyond_measure_is_let_go() {
    let mut stream = b"data: {\"pad\":\"".to_vec();
    stream.resize(3 << 20, b'p');
    let mut tap = SseTap::new(Shape::OpenAi, true);
    let mut out = 0;
    for piece in stream.chunks(8192) {
        let mut piece = piece.to_vec();
        let passed = tap.push(&mut piece);
        out += passed.held.len() + passed.length;
        assert!(tap.held.len() <= HELD_BYTES_MAX);
    }
    assert_eq!(out, stream.len());
}

#[test]
fn what_was_held_at_the_end_goes_out_unless_it_is_the_usage_chunk() {
    for (tail, shown) in [
        ("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}", ""),
        ("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n", ""),
        ("data: {\"choices\":[],\"us", "data: {\"choices\":[],\"us"),
        ("id: 7\n", "id: 7\n"),
    ] {
        let (_, out) = tapped(Shape::OpenAi, true, tail.as_bytes(), &[3]);
        assert_eq!(String::from_utf8(out).unwrap(), shown, "{tail}");
    }
}

#[test]
fn a_line_feed_behind_a_dropped_carriage_return_goes_with_it() {
    let stream = with_chunk(USAGE_CHUNK).replace('\n', "\r\n");
    let shown = with_chunk("").replace('\n', "\r\n");
    let chunk_end = stream.find("data: [DONE]").unwrap();
    for cut in [chunk_end - 1, chunk_end - 2, chunk_end - 3, chunk_end] {
        let (_, out) = tapped(Shape::OpenAi, true, stream.as_bytes(), &[cut, 1, 100_000]);
        assert_eq!(String::from_utf8(out).unwrap(), shown, "cut at {cut}");
    }
}

#[test]
fn each_api_ends_its_streams_its_own_way() {
    for (stream, terminated, error) in [
        ("data: [DONE]\n\n", true, false),
        ("data:[DONE]\n", true, false),
        ("data: [DONE] \n\n", false, false),
        ("data: [DONE\n\n", false, false),
        ("data: [DO\ndata: NE]\n\n", false, false),
        ("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", true, false),
        ("data: {\"type\":\"message_stop\"}\n\n", true, false),
        ("data: {\"type\":\"response.completed\",\"response\":{}}\n\n", true, false),
        ("data: {\"type\":\"response.incomplete\",\"response\":{}}\n\n", true, false),
        ("data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"x\"}}}\n\n", true, true),
        ("data: {\"type\":\"response.created\",\"response\":{\"error\":null}}\n\n", false, false),
        ("data: {\"type\":\"message_stop\"", false, false),
        ("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n", false, true),
        ("data: {\"error\":{\"message\":\"worker died\"}}\n\n", false, true),
        ("data: {\"choices\":[{\"delta\":{\"content\":\"[DONE] message_stop\"}}]}\n\n", false, false),
    ] {
        for size in [1, 4, 1000] {
            let (tap, _) = tapped(Shape::OpenAi, false, stream.as_bytes(), &[size]);
            assert_eq!((tap.is_terminated(), tap.scan().error_seen()), (terminated, error), "{stream:?}");
        }
    }
}

#[test]
fn anthropic_totals_replace_each_other() {
    let stream = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"m\",\"usage\":{\"input_tokens\":25,\"cache_creation_input_tokens\":200,\"cache_read_input_tokens\":1000,\"output_tokens\":1}}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"input_tokens\":25,\"cache_creation_input_tokens\":200,\"cache_read_input_tokens\":1000,\"output_tokens\":40}}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    );
    for size in [1, 10, 10_000] {
        let (tap, _) = tapped(Shape::Anthropic, false, stream.as_bytes(), &[size]);
        let usage = tap.scan().usage().unwrap();
        assert_eq!(
            (usage.input, usage.cache_write, usage.cached_input, usage.output),
            (Some(25), Some(200), Some(1000), Some(40))
        );
        assert_eq!((tap.scan().text_bytes(), tap.scan().model(), tap.is_terminated()), (5, Some("m"), true));
    }
}

#[test]
fn running_totals_are_not_summed_and_a_missing_report_is_none() {
    let chunk = |n: u32| {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"ab\"}}}}],\"usage\":{{\"prompt_tokens\":100,\"completion_tokens\":{n}}}}}\n\n"
        )
    };
    let stream: String = (1..=40).map(chunk).collect();
    let usage = tapped(Shape::OpenAi, false, stream.as_bytes(), &[33]).0.scan().usage().unwrap();
    assert_eq!((usage.input, usage.output), (Some(100), Some(40)));
    assert_eq!(tapped(Shape::OpenAi, false, with_chunk("").as_bytes(), &[33]).0.scan().usage(), None);
}

/// The data of the events of a stream, as an SDK would read it.
fn read_events(stream: &str) -> Vec<String> {
    let (mut events, mut data): (Vec<String>, Vec<&str>) = (Vec::new(), Vec::new());
    let text = stream.trim_start_matches('\u{feff}').replace("\r\n", "\n").replace('\r', "\n");
    for line in text.split('\n') {
        if line.is_empty() && !data.is_empty() {
            events.push(data.join("\n"));
            data.clear();
        } else if let Some(value) = line.strip_prefix("data:") {
            data.push(value.strip_prefix(' ').unwrap_or(value));
        }
    }
    events
}

#[test]
fn the_cut_event_can_be_read_wherever_the_stream_was_cut() {
    for (spelling, stream) in spellings(&with_chunk(USAGE_CHUNK)) {
        for hide in [false, true] {
            for cut in (0..stream.len()).filter(|&cut| stream.is_char_boundary(cut)) {
                let mut tap = SseTap::new(Shape::OpenAi, hide);
                let mut piece = stream.as_bytes()[..cut].to_vec();
                let length = tap.push(&mut piece).length;
                piece.truncate(length);
                let sent = piece.len();
                tap.append_cut_event("upstream_cut", "the upstream closed early", &mut piece);
                let text = String::from_utf8(piece).unwrap();
                let events = read_events(&text);
                let last = events.last().expect("there is an event");
                let json: serde_json::Value = serde_json::from_str(last).expect(last);
                assert_eq!(json["error"]["code"], "upstream_cut", "{spelling} cut at {cut}");
                // Nothing is put between whole events, and never an empty event behind a comment.
                if text[..sent].is_empty() || text[..sent].ends_with("\n\n") {
                    assert!(text[sent..].starts_with("data: "), "{spelling} cut at {cut}");
                }
            }
        }
    }
}

#[test]
fn a_cut_between_comments_adds_no_empty_line() {
    for (sent, appended) in [
        (": ping\n", "data: "),
        (": pi", "\ndata: "),
        ("id: 7\n", "\ndata: "),
        ("id: 7\r", "\n\ndata: "),
        ("data: {}\n\n", "data: "),
        ("data: {}\r\r", "data: "),
        ("data: {", "\n\ndata: "),
    ] {
        let mut tap = SseTap::new(Shape::OpenAi, false);
        tap.push(&mut sent.as_bytes().to_vec());
        let mut out = Vec::new();
        tap.append_cut_event("x", "y", &mut out);
        assert!(out.starts_with(appended.as_bytes()), "{sent:?}");
    }
}

proptest! {
    #[test]
    fn any_split_gives_the_same(sizes in proptest::collection::vec(1usize..60, 1..12), which in 0usize..11, hide in any::<bool>()) {
        let (_, stream) = spellings(&with_chunk(USAGE_CHUNK)).swap_remove(which);
        let (whole, whole_out) = tapped(Shape::OpenAi, hide, stream.as_bytes(), &[stream.len()]);
        let (split, split_out) = tapped(Shape::OpenAi, hide, stream.as_bytes(), &sizes);
        prop_assert_eq!(whole_out, split_out);
        prop_assert_eq!(whole.scan().usage(), split.scan().usage());
        prop_assert_eq!(whole.scan().text_bytes(), split.scan().text_bytes());
    }

    #[test]
    fn no_bytes_panic_and_without_hiding_all_pass(
        text in r#"(data|data:|: |id:|event: x|[\r\n\x{feff}]|\[DONE\]|\{"choices":\[\],"usage":\{\}\}|[\[\]{}",:\\ ]|"choices":|"usage":){0,30}"#,
        sizes in proptest::collection::vec(1usize..12, 1..5),
    ) {
        // Once a choice has ended, a comment waits for its event, and only the split decided that before.
        let text = format!("data: {{\"choices\":[{{\"finish_reason\":\"stop\"}}]}}\n\n{text}");
        let (_, out) = tapped(Shape::OpenAi, false, text.as_bytes(), &sizes);
        prop_assert_eq!(out, text.as_bytes());
        let (split, split_out) = tapped(Shape::OpenAi, true, text.as_bytes(), &sizes);
        let (whole, whole_out) = tapped(Shape::OpenAi, true, text.as_bytes(), &[text.len().max(1)]);
        prop_assert_eq!(split.is_terminated(), whole.is_terminated());
        prop_assert_eq!(split.scan().usage(), whole.scan().usage());
        prop_assert_eq!(String::from_utf8_lossy(&split_out), String::from_utf8_lossy(&whole_out));
    }
}
