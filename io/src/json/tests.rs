//! Bodies as clients send them, and as clients should not.

use super::members::Member;
use super::*;
use proptest::prelude::*;

mod oracle;

fn inspect(body: &str) -> Result<Asked, BadBody> {
    Inspector::default().inspect(body.as_bytes())
}

fn usage_asked(body: &str) -> String {
    let mut out = Vec::new();
    let splice = inspect(body).unwrap().usage_splice;
    splice.apply(body.as_bytes(), &mut out);
    assert_eq!(out.len(), splice.changed_len(body.len()));
    String::from_utf8(out).unwrap()
}

fn input(body: &str) -> (u64, u32) {
    let asked = inspect(body).unwrap();
    (asked.input_bytes, asked.images)
}

#[test]
fn a_plain_chat_says_what_it_asks_for() {
    let question = "What is the capital of Iceland?";
    assert_eq!(question.len(), 31);
    let body = format!(r#"{{"model":"mock","messages":[{{"role":"user","content":"{question}"}}]}}"#);
    let asked = inspect(&body).unwrap();
    assert_eq!((asked.model.as_str(), asked.stream, asked.output_cap, asked.choices), ("mock", false, None, 1));
    assert_eq!((asked.input_bytes, asked.images, asked.include_usage), (31, 0, false));
}

#[test]
fn one_inspector_reads_many_bodies_and_errors_leave_no_trace() {
    let mut inspector = Inspector::default();
    let body = br#"{"model":"a","messages":[{"role":"user","content":"hi"}],"stream":true}"#;
    let first = inspector.inspect(body).unwrap();
    assert!(inspector.inspect(b"{\"model\":").is_err());
    assert!(inspector.inspect(b"[1,2,3]").is_err());
    let large = format!(r#"{{"model":"b","prompt":"{}"}}"#, "x".repeat(3 << 20));
    assert_eq!(inspector.inspect(large.as_bytes()).unwrap().input_bytes, 3 << 20);
    assert_eq!(inspector.inspect(body).unwrap(), first);
}

#[test]
fn the_model_is_a_name() {
    for (body, error) in [
        (r#"{"messages":[]}"#, BadBody::NoModel),
        (r#"{}"#, BadBody::NoModel),
        (r#"{"model":""}"#, BadBody::ModelNotAName),
        (r#"{"model":null}"#, BadBody::ModelNotAName),
        (r#"{"model":7}"#, BadBody::ModelNotAName),
        (r#"{"model":["a"]}"#, BadBody::ModelNotAName),
        (r#"[{"model":"a"}]"#, BadBody::NotAnObject),
        (r#""model""#, BadBody::NotAnObject),
        ("7", BadBody::NotAnObject),
    ] {
        assert_eq!(inspect(body), Err(error), "{body}");
    }
    assert_eq!(inspect(&format!(r#"{{"model":"{}"}}"#, "m".repeat(513))), Err(BadBody::ModelNotAName));
    assert_eq!(inspect(r#"{"model":"caf\u00e9\/x"}"#).unwrap().model, "café/x");
}

#[test]
fn what_is_not_json_is_said_to_be_so() {
    let deep = format!(r#"{{"model":"m","x":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    for body in [
        "",
        " ",
        "{",
        "{\"model\":\"a\"",
        "{\"model\":\"a\"}}",
        "{'model':'a'}",
        "{\"model\":\"a\",}",
        "nul",
        "\u{feff}{}",
        &deep,
    ] {
        assert!(matches!(inspect(body), Err(BadBody::NotJson { .. })), "{body:?}: {:?}", inspect(body));
    }
    assert!(matches!(Inspector::default().inspect(b"{\"model\":\"\xff\"}"), Err(BadBody::NotJson { .. })));
}

#[test]
fn a_governed_member_appears_once_in_any_spelling() {
    for member in [
        "model",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "n",
        "messages",
        "input",
        "prompt",
        "system",
        "tools",
    ] {
        let escaped: String = member.chars().map(|c| format!("\\u{:04x}", c as u32)).collect();
        for second in [member, &escaped] {
            let body = format!(r#"{{"x":1,"{member}":null,"y":"m","{second}":null}}"#);
            let expected = if member == "model" {
                BadBody::ModelNotAName // the first one is refused before the second is met
            } else {
                BadBody::Duplicate { member }
            };
            assert_eq!(inspect(&body), Err(expected), "{body}");
        }
        let body = format!(r#"{{"model":"m","{}":null}}"#, member.to_uppercase());
        assert_eq!(inspect(&body), Err(BadBody::Misspelled { member }), "{body}");
    }
    for body in
        [r#"{"model":"a","model":"b"}"#, r#"{"model":"a","m\u006fdel":"b"}"#, r#"{"m\u006fdel":"a","model":"a"}"#]
    {
        assert_eq!(inspect(body), Err(BadBody::Duplicate { member: "model" }), "{body}");
    }
    // Inside something else these are ordinary names.
    assert!(inspect(r#"{"model":"a","metadata":{"model":"x","stream":1,"N":2}}"#).is_ok());
    let twice = r#"{"model":"a","stream_options":{"include_usage":true,"include\u005fusage":false}}"#;
    assert_eq!(inspect(twice), Err(BadBody::Duplicate { member: "stream_options.include_usage" }));
}

#[test]
fn the_largest_cap_counts_in_either_order() {
    for (caps, expected) in [
        (r#""max_tokens":1,"max_completion_tokens":4000"#, Some(4000)),
        (r#""max_completion_tokens":4000,"max_tokens":1"#, Some(4000)),
        (r#""max_output_tokens":7"#, Some(7)),
        (r#""max_tokens":null"#, None),
        (r#""max_tokens":null,"max_output_tokens":5"#, Some(5)),
        (r#""max_tokens":0"#, Some(0)),
        (r#""max_tokens":-0"#, Some(0)),
        (r#""max_tokens":1e3"#, Some(1000)),
        (r#""max_tokens":64.0"#, Some(64)),
        (r#""max_tokens":1e18"#, Some(1_000_000_000_000_000_000)),
        (r#""max_tokens":1e300"#, Some(u64::MAX)),
        (r#""max_tokens":18446744073709551615"#, Some(u64::MAX)),
        (r#""max_tokens":99999999999999999999999"#, Some(u64::MAX)),
    ] {
        assert_eq!(
            inspect(&format!(r#"{{"model":"m",{caps}}}"#)).map(|asked| asked.output_cap),
            Ok(expected),
            "{caps}"
        );
    }
}

#[test]
fn a_cap_that_is_no_count_is_refused_by_name() {
    for value in ["-1", "1.5", "\"100\"", "true", "[]", "{}", "-1e300", "-0.5", "-99999999999999999999999"] {
        for member in ["max_tokens", "max_completion_tokens", "max_output_tokens", "n"] {
            let body = format!(r#"{{"model":"m","{member}":{value}}}"#);
            let error = inspect(&body).unwrap_err();
            assert_eq!(error, BadBody::NotACount { member }, "{body}");
            assert_eq!(error.member(), Some(member));
        }
    }
}

#[test]
fn stream_is_a_boolean_and_choices_are_at_least_one() {
    for (stream, expected) in [("true", Ok(true)), ("false", Ok(false)), ("null", Ok(false))] {
        assert_eq!(inspect(&format!(r#"{{"model":"m","stream":{stream}}}"#)).map(|asked| asked.stream), expected);
    }
    for stream in ["1", "\"true\"", "[]", "{}"] {
        let error = BadBody::NotABoolean { member: "stream" };
        assert_eq!(inspect(&format!(r#"{{"model":"m","stream":{stream}}}"#)), Err(error));
    }
    for (n, expected) in [(r#""n":3"#, 3), (r#""n":null"#, 1), (r#""n":0"#, 1), (r#""n":2,"best_of":5"#, 5)] {
        assert_eq!(inspect(&format!(r#"{{"model":"m",{n}}}"#)).unwrap().choices, expected, "{n}");
    }
}

#[test]
fn each_prompt_of_a_list_is_answered() {
    for (asked, expected) in [
        (r#""prompt":"a""#, 1),
        (r#""prompt":[]"#, 1),
        (r#""prompt":["a"]"#, 1),
        (r#""prompt":["a","b","c"]"#, 3),
        (r#""pro\u006dpt":["a","b"]"#, 2),
        (r#""prompt":[1212,318]"#, 1),
        (r#""prompt":[[1212,318],[7],[]]"#, 3),
        (r#""n":2,"prompt":["a",[1,2],"c"],"x":["d"]"#, 6),
        (r#""prompt":["a","b"],"best_of":4,"n":2"#, 8),
        (r#""prompt":["a","b"],"n":18446744073709551615"#, u64::MAX),
        // Nothing else is a list of prompts.
        (r#""prompt":{"id":"p","variables":{"v":["a","b"]}}"#, 1),
        (r#""prompt":"a","stop":["b","c"],"input":["d","e"]"#, 1),
        (r#""messages":[{"role":"user","prompt":["a","b"]},{"content":["c","d"]}]"#, 1),
    ] {
        assert_eq!(inspect(&format!(r#"{{"model":"m",{asked}}}"#)).unwrap().choices, expected, "{asked}");
    }
}

#[test]
fn usage_is_asked_for_and_nothing_else_changes() {
    for (options, expected) in [
        (r#", "stream_options": {"include_usage": true}"#, r#", "stream_options": {"include_usage": true}"#),
        (r#", "stream_options": {"include_usage":false}"#, r#", "stream_options": {"include_usage":true}"#),
        (
            r#", "stream_options": {"include_usage":null , "a":1}"#,
            r#", "stream_options": {"include_usage":true , "a":1}"#,
        ),
        (
            r#", "stream_options": {"a":[1,"}"],"include_usage": false }"#,
            r#", "stream_options": {"a":[1,"}"],"include_usage": true }"#,
        ),
        (r#", "stream_options":{"include\u005fusage":false}"#, r#", "stream_options":{"include\u005fusage":true}"#),
        (r#", "stream_options" : null"#, r#", "stream_options" : {"include_usage":true}"#),
        (r#", "stream_options":{}"#, r#", "stream_options":{"include_usage":true}"#),
        (r#", "stream_options":{ }"#, r#", "stream_options":{"include_usage":true }"#),
        (
            r#", "stream_options":{"include_obfuscation":false}"#,
            r#", "stream_options":{"include_usage":true,"include_obfuscation":false}"#,
        ),
        (
            r#", "stream_options":{"continuous_usage_stats":true}"#,
            r#", "stream_options":{"include_usage":true,"continuous_usage_stats":true}"#,
        ),
        (r#", "stream\u005foptions":{"a":1}"#, r#", "stream\u005foptions":{"include_usage":true,"a":1}"#),
    ] {
        let around = |options: &str| {
            format!(" {{\"messages\":[{{\"content\":\"\\u00e9 \\\"{{\"}}]{options}, \"model\":\"m\" }}\n")
        };
        assert_eq!(usage_asked(&around(options)), around(expected), "{options}");
    }
    let absent = usage_asked(" \n{ \"model\":\"m\" }");
    assert_eq!(absent, " \n{\"stream_options\":{\"include_usage\":true}, \"model\":\"m\" }");
}

#[test]
fn what_the_caller_asked_of_usage_is_known() {
    for (options, expected) in [
        (r#"{"include_usage":true}"#, Ok(true)),
        (r#"{"include_usage":false}"#, Ok(false)),
        (r#"{"include_usage":null}"#, Ok(false)),
        ("null", Ok(false)),
        ("{}", Ok(false)),
        (r#"{"include_usage":"yes"}"#, Err(BadBody::NotABoolean { member: "stream_options.include_usage" })),
        (r#"{"Include_Usage":true}"#, Err(BadBody::Misspelled { member: "stream_options.include_usage" })),
        ("[]", Err(BadBody::NotAnObjectMember { member: "stream_options" })),
        ("true", Err(BadBody::NotAnObjectMember { member: "stream_options" })),
    ] {
        let body = format!(r#"{{"model":"m","stream":true,"stream_options":{options}}}"#);
        assert_eq!(inspect(&body).map(|asked| asked.include_usage), expected, "{options}");
    }
}

#[test]
fn a_picture_counts_as_one_and_its_bytes_do_not() {
    let payload = "QUJD".repeat(500_000); // 2 MB of base64
    for part in [
        format!(r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{payload}","detail":"high"}}}}"#),
        format!(r#"{{"type":"input_image","image_url":"data:image/png;base64,{payload}"}}"#),
        format!(r#"{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{payload}"}}}}"#),
        format!(r#"{{"inlineData":{{"mimeType":"image/png","data":"{payload}"}}}}"#),
        r#"{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}"#.to_owned(),
        r#"{"type":"image","source":{"type":"url","url":"https://example.com/a.png"}}"#.to_owned(),
        format!(
            r#"{{"type":"tool_result","tool_use_id":"t","content":[{{"type":"image","source":{{"type":"base64","data":"{payload}"}}}}]}}"#
        ),
    ] {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"text","text":"four"}},{part}]}}]}}"#
        );
        assert_eq!(input(&body), (4, 1), "{}", &part[..40]);
    }
    let sound = format!(
        r#"{{"model":"m","input":[{{"role":"user","content":[{{"type":"input_audio","input_audio":{{"data":"{payload}","format":"wav"}}}},{{"type":"input_file","file_data":"data:application/pdf;base64,{payload}"}}]}}]}}"#
    );
    assert_eq!(input(&sound), (0, 0));
    let text_source = r#"{"model":"m","messages":[{"content":[{"type":"document","source":{"type":"text","media_type":"text/plain","data":"plain words"}}]}]}"#;
    assert_eq!(input(text_source), (11, 0));
}

#[test]
fn prompt_text_is_counted_wherever_it_stands() {
    for (members, bytes) in [
        (r#""prompt":"12345""#, 5),
        (r#""prompt":["12","345"]"#, 5),
        (r#""prompt":[1,2,3]"#, 12),
        (r#""input":[[1,2],[3]]"#, 12),
        (r#""input":"12345","instructions":"678""#, 8),
        (r#""system":"12345""#, 5),
        (r#""system":[{"type":"text","text":"12345","cache_control":{"type":"ephemeral"}}]"#, 5),
        (
            r#""messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}]"#,
            8,
        ),
        (r#""messages":[{"role":"tool","tool_call_id":"call_1","content":"12345"}]"#, 5),
        (
            r#""messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"city":"Paris","days":3}}]}]"#,
            6,
        ),
        (r#""messages":[{"role":"user","content":"\u00e9\n"}]"#, 3),
        (r#""tools":[{"type":"function","function":{"name":"f"}}]"#, 4 + 8 + 8 + 4 + 1),
        (r#""metadata":{"a":"not prompt"},"user":"nor this""#, 0),
    ] {
        assert_eq!(input(&format!(r#"{{"model":"m",{members}}}"#)), (bytes, 0), "{members}");
    }
}

#[test]
fn a_body_of_nothing_but_structure_is_refused_where_it_goes_too_far() {
    let body = |filler: &str| format!(r#"{{"model":"m","x":[{}"#, filler.repeat(2_000_000));
    for filler in ["[],", "1,"] {
        assert_eq!(inspect(&body(filler)), Err(BadBody::TooManyValues), "{filler}");
    }
    for filler in ["[", "{\"\":"] {
        assert!(matches!(inspect(&body(filler)), Err(BadBody::NotJson { near_byte: 0..1_000 })), "{filler}");
    }
}

/// Reads a body that comes in pieces that end at these places.
fn in_pieces(body: &[u8], ends: impl IntoIterator<Item = usize>) -> Result<Asked, BadBody> {
    let mut inspector = Inspector::default();
    ends.into_iter().for_each(|end| inspector.read(&body[..end.min(body.len())]));
    inspector.read(body);
    inspector.finish(body)
}

/// What both readers say, apart from where a body that is not JSON goes wrong.
fn agreed(asked: Result<Asked, BadBody>) -> Result<Asked, BadBody> {
    asked.map_err(|bad| match bad {
        BadBody::NotJson { .. } => BadBody::NotJson { near_byte: 0 },
        bad => bad,
    })
}

fn hold_against_the_oracle(body: &[u8]) {
    let whole = Inspector::default().inspect(body);
    assert_eq!(agreed(whole.clone()), agreed(oracle::inspect(body)), "{}", String::from_utf8_lossy(body));
    if let Err(BadBody::NotJson { near_byte }) = whole {
        assert!(near_byte <= body.len());
    }
}

/// A JSON text that is likely to mean something: keys that are governed or count, values of all kinds.
fn text(keys: &'static [&'static str]) -> impl Strategy<Value = String> {
    let string = prop_oneof![
        4 => "[a-z ]{0,12}",
        1 => "[A-Za-z0-9+/]{60,70}",
        1 => prop::sample::select(vec!["image", "image_url", "input_image", "data:x", "café", "漢字", "😀"])
            .prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    let string = (string, 0_u8..4).prop_map(|(text, escaped)| match escaped {
        0 => text.encode_utf16().fold("\"".to_owned(), |json, unit| json + &format!("\\u{unit:04x}")) + "\"",
        1 => serde_json::to_string(&text).unwrap().replace('/', "\\/"),
        _ => serde_json::to_string(&text).unwrap(),
    });
    let number = prop_oneof![
        any::<i32>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| serde_json::json!(number).to_string()),
        "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,4})?([eE][-+]?[0-9]{1,3})?",
    ];
    let word = prop::sample::select(vec!["true", "false", "null", "{}", "[]", "[ ]", "{ }"]).prop_map(str::to_owned);
    let key = prop_oneof![
        8 => prop::sample::select(keys).prop_map(|key| serde_json::to_string(key).unwrap()),
        1 => prop::sample::select(keys)
            .prop_map(|key| key.encode_utf16().fold("\"".to_owned(), |json, unit| json + &format!("\\u{unit:04x}")) + "\""),
        1 => prop::sample::select(keys).prop_map(|key| serde_json::to_string(&key.to_uppercase()).unwrap()),
        1 => string.clone(),
    ];
    let space = prop::sample::select(vec!["", "", "", " ", "\n", "\t ", "\r\n"]);
    prop_oneof![3 => string, 2 => number, 2 => word].prop_recursive(4, 40, 6, move |inner| {
        let members = prop::collection::vec((key.clone(), space.clone(), inner.clone()), 0..6);
        let elements = prop::collection::vec((inner, space.clone()), 0..6);
        prop_oneof![
            3 => members.prop_map(|members| {
                let members: Vec<_> = members.iter().map(|(key, space, value)| format!("{space}{key}{space}:{space}{value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
            1 => elements.prop_map(|elements| {
                let elements: Vec<_> = elements.iter().map(|(value, space)| format!("{space}{value}{space}")).collect();
                format!("[{}]", elements.join(","))
            }),
        ]
    })
}

const KEYS: &[&str] = &[
    "model",
    "stream",
    "stream_options",
    "include_usage",
    "max_tokens",
    "max_output_tokens",
    "n",
    "best_of",
    "messages",
    "prompt",
    "input",
    "system",
    "tools",
    "functions",
    "service_tier",
    "type",
    "role",
    "content",
    "image_url",
    "url",
    "data",
    "source",
    "text",
    "id",
    "x",
];

/// A body with the members that are governed, in any order, each maybe there, some maybe twice.
fn governed_body() -> impl Strategy<Value = String> {
    let options = prop::collection::vec(
        (prop::sample::select(vec!["include_usage", "a", "Include_usage", "include\\u005fusage"]), text(KEYS)),
        0..3,
    );
    let usage = prop::sample::select(vec!["true", "false", "null", "1"]);
    let options = (options, usage).prop_map(|(options, usage)| {
        let options: Vec<_> = options
            .iter()
            .map(|(key, value)| format!("\"{key}\": {}", if key.starts_with("include") { usage } else { value }))
            .collect();
        format!("{{{}}}", options.join(" ,"))
    });
    let member = prop_oneof![
        2 => Just(r#""model":"m""#.to_owned()),
        1 => prop::sample::select(vec!["true", "false", "null", "0"]).prop_map(|value| format!("\"stream\" :{value}")),
        3 => options.prop_map(|options| format!("\"stream_options\" : {options}")),
        2 => (prop::sample::select(vec!["messages", "input", "prompt", "tools", "n", "max_tokens"]), text(KEYS))
            .prop_map(|(key, value)| format!("\"{key}\":{value}")),
        1 => ("[a-z]{1,4}", text(KEYS)).prop_map(|(key, value)| format!("\"{key}\":{value}")),
    ];
    prop::collection::vec(member, 0..6).prop_map(|members| format!(" {{{}}} ", members.join(",")))
}

#[test]
fn what_is_seeded_for_the_fuzzer_is_read_as_the_oracle_reads_it() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/seeds/request_json");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let body = std::fs::read(entry.unwrap().path()).unwrap();
        hold_against_the_oracle(&body);
        let whole = Inspector::default().inspect(&body);
        for at in 0..body.len() {
            assert_eq!(in_pieces(&body, [at]), whole);
            // Cut off anywhere, it is no JSON any more.
            hold_against_the_oracle(&body[..at]);
        }
        assert_eq!(in_pieces(&body, 0..body.len()), whole, "byte by byte");
        count += 1;
    }
    assert!(count > 0, "no seeds in {folder}");
}

#[test]
fn nesting_numbers_and_words_end_where_the_oracle_ends_them() {
    let nested = |depth: usize| format!(r#"{{"model":"m","x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    let mut bodies = vec![nested(126), nested(127), nested(128), nested(129)];
    for value in [
        "0",
        "-0",
        "00",
        "01",
        "-",
        "--1",
        "1.",
        ".5",
        "1.5",
        "-0.0",
        "1e",
        "1e+",
        "1e5",
        "1E-5",
        "1e400",
        "-1e400",
        "1e-400",
        "1e308",
        "1.7976931348623159e308",
        "+1",
        "1x",
        "0x1",
        "1_0",
        "Infinity",
        "NaN",
        "tru",
        "true",
        "truex",
        "nul",
        "null",
        "nullx",
        "False",
        "\"a\"",
        "\"a",
        "a",
        "'a'",
        "\u{b}1",
        "1\u{c}",
        "1\0",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{,}",
        "{1:2}",
        "[}",
        "{]",
        "[1}",
        "{\"a\":1]",
        "]",
        "}",
        ":",
        ",",
    ] {
        bodies.extend([value.to_owned(), format!(" {value} ")]);
        for member in ["x", "max_tokens", "stream", "messages", "stream_options"] {
            bodies.push(format!(r#"{{"model":"m","{member}":{value}}}"#));
            bodies.push(format!(r#"{{"{member}":[{value}],"model":"m"}}"#));
        }
    }
    let long = format!(r#"{{"model":"m","n":{},"x":{}}}"#, "9".repeat(309), "9".repeat(310));
    bodies.push(format!(r#"{{"model":"m","n":{}}}"#, "9".repeat(308)));
    bodies.push(long);
    for body in &bodies {
        hold_against_the_oracle(body.as_bytes());
        let whole = inspect(body);
        assert_eq!(in_pieces(body.as_bytes(), 0..body.len()), whole, "{body}");
    }
    // The one place where they differ: a number of this length is nobody's.
    let endless = format!(r#"{{"model":"m","x":0.{}1}}"#, "0".repeat(2_000));
    assert!(matches!(inspect(&endless), Err(BadBody::NotJson { near_byte: 17 })));
    assert_eq!(in_pieces(endless.as_bytes(), 0..endless.len()), inspect(&endless));
}

#[test]
fn a_large_body_is_the_same_in_pieces_as_they_come_from_a_socket() {
    let picture = "QUJD".repeat(100_000);
    let prose = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 漢字 \\n".repeat(5_000);
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":[{{"type":"text","text":"{prose}"}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{picture}"}}}},{{"type":"file","data":"{picture}"}}]}}],"model":"m","stream":true}}"#
    );
    let whole = inspect(&body).unwrap();
    assert_eq!((whole.input_bytes, whole.images), ((prose.len() - 5_000) as u64, 1));
    for step in [1_000, 4_096, 65_536, 131_072] {
        assert_eq!(in_pieces(body.as_bytes(), (0..body.len()).step_by(step)), Ok(whole.clone()), "{step}");
    }
    hold_against_the_oracle(body.as_bytes());
}

proptest! {
    #[test]
    fn asking_for_usage_changes_only_that(
        before in prop::collection::btree_map("[a-l]{1,6}", any::<i32>(), 0..4),
        options in prop::option::of(prop::collection::btree_map("[a-h]{1,6}", any::<Option<bool>>(), 0..3)),
        asked_by_caller in any::<Option<bool>>(),
        pretty in any::<bool>(),
    ) {
        let mut body = serde_json::to_value(&before).unwrap();
        let object = body.as_object_mut().unwrap();
        object.remove("n");
        object.insert("model".into(), "m".into());
        if let Some(options) = &options {
            let mut options = serde_json::to_value(options).unwrap();
            if let Some(value) = asked_by_caller {
                options.as_object_mut().unwrap().insert("include_usage".into(), value.into());
            }
            object.insert("stream_options".into(), options);
        }
        prop_assume!(object.keys().all(|key| key == "model" || key == "stream_options" || Member::of(key.as_bytes()).is_none()));
        let text = if pretty { serde_json::to_string_pretty(&body).unwrap() } else { body.to_string() };
        let out = usage_asked(&text);
        let mut expected = body.clone();
        let object = expected.as_object_mut().unwrap();
        object.entry("stream_options").or_insert_with(|| serde_json::json!({}))["include_usage"] = true.into();
        prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap(), expected);
    }

    #[test]
    fn any_json_is_read_as_the_oracle_reads_it_and_the_same_in_any_pieces(
        body in prop_oneof![text(KEYS), governed_body()],
        step in 1_usize..40,
        change in prop::option::of((any::<prop::sample::Index>(), any::<u8>(), 0_u8..3)),
    ) {
        let mut body = body.into_bytes();
        if let Some((at, byte, how)) = change && !body.is_empty() {
            let at = at.index(body.len());
            match how {
                0 => body[at] = byte,
                1 => body.insert(at, byte),
                _ => drop(body.remove(at)),
            }
        }
        hold_against_the_oracle(&body);
        let whole = Inspector::default().inspect(&body);
        prop_assert_eq!(in_pieces(&body, (0..body.len()).step_by(step)), whole.clone());
        prop_assert_eq!(in_pieces(&body, 0..body.len()), whole);
    }

    #[test]
    fn no_body_panics(body in "[\\[\\]{}\",:\\\\mn1ul. ]{0,60}") {
        let mut inspector = Inspector::default();
        let _ = inspector.inspect(body.as_bytes());
        let wrapped = format!(r#"{{"model":"m","stream_options":{body}}}"#);
        if let Ok(asked) = inspector.inspect(wrapped.as_bytes()) {
            asked.usage_splice.apply(wrapped.as_bytes(), &mut Vec::new());
        }
    }

    #[test]
    fn what_we_accept_others_can_read(body in proptest::collection::vec(any::<u8>(), 0..80)) {
        if Inspector::default().inspect(&body).is_ok() {
            prop_assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
        }
    }
}
