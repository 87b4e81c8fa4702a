//! Heads that are read, and every form that is refused.

use super::super::body::Framing;
use super::*;
use proptest::prelude::*;

const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 65_536 };

fn request(head: &str) -> Result<(RequestHead, usize), HeadError> {
    let mut parsed = RequestHead::default();
    let length = parsed.parse(head.as_bytes(), &LIMITS)?.expect("the head under test is complete");
    Ok((parsed, length))
}

fn reply_to(asked: Method, head: &str) -> Result<(ResponseHead, usize), HeadError> {
    let mut parsed = ResponseHead::default();
    let length = parsed.parse(head.as_bytes(), &LIMITS, asked)?.expect("the head under test is complete");
    Ok((parsed, length))
}

fn status(head: &str) -> u16 {
    request(head).map_or_else(|error| error.status, |_| 200)
}

/// A POST with these lines between the request line and the end.
fn with_lines(lines: &str) -> String {
    format!("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{lines}\r\n")
}

#[test]
fn a_plain_request_is_read_and_what_follows_is_left() {
    let wire = "POST /v1/chat/completions?a=1 HTTP/1.1\r\nHost: gw.test:8790\r\nContent-Length: 5\r\n\
                X-Api-Key:  k \r\nEmpty:\r\n\r\nhello";
    let (head, length) = request(wire).unwrap();
    let buf = wire.as_bytes();
    assert_eq!(&wire[length..], "hello");
    assert_eq!((head.method, head.version, head.framing), (Method::Post, Version::Http11, Framing::Length(5)));
    assert_eq!(head.path(buf), b"/v1/chat/completions");
    assert_eq!(head.query(buf), Some(&b"a=1"[..]));
    assert_eq!(head.fields.get(buf, "x-api-key"), Some(&b"k"[..]));
    assert_eq!(head.fields.get(buf, "EMPTY"), Some(&b""[..]));
    assert_eq!(head.fields.get(buf, "absent"), None);
    assert!(head.keep_alive && !head.expect_continue);
}

#[test]
fn every_ambiguous_framing_is_a_400() {
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5.0\r\n",
        "Content-Length: \"5\"\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length:\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding:\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding:\x0bchunked\r\n",
    ] {
        assert_eq!(status(&with_lines(lines)), 400, "{lines:?}");
    }
}

#[test]
fn every_malformed_line_is_a_400() {
    for lines in [
        "X: a\r\n b\r\n",
        "X: a\r\n\tb\r\n",
        " X: a\r\n",
        "X: a\nY: b\r\n",
        "X: a\rY: b\r\n",
        "X: a\r\r\n",
        "X: a\0b\r\n",
        "X: a\x01b\r\n",
        "X: a\x7fb\r\n",
        "X : a\r\n",
        "X\t: a\r\n",
        ": a\r\n",
        "X\r\n",
        "X@Y: a\r\n",
        "X\0: a\r\n",
        "H\u{f6}st: a\r\n",
        "Host: b\r\n",
        "HOST: a\r\n",
    ] {
        assert_eq!(status(&with_lines(lines)), 400, "{lines:?}");
    }
    assert_eq!(status("GET / HTTP/1.1\nHost: a\n\n"), 400);
    assert_eq!(status("GET / HTTP/1.1\r\nHost: a\r\n\n"), 400);
    assert_eq!(status("GET / HTTP/1.1\r\nHost: a\n\r\n"), 400);
    assert_eq!(status("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
}

#[test]
fn host_is_there_once_and_is_a_host() {
    assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), 400);
    assert_eq!(status("GET / HTTP/1.0\r\n\r\n"), 200);
    assert_eq!(status("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n"), 400);
    for host in ["a b", "a,b", "a/b", "u@a", "a?b", "a\\b"] {
        assert_eq!(status(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), 400, "{host}");
    }
    for host in ["a", "a:80", "[::1]:80", "127.0.0.1:8790", ""] {
        assert_eq!(status(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), 200, "{host}");
    }
}

#[test]
fn request_lines_are_strict() {
    for (line, expected) in [
        ("GET / HTTP/1.1", 200),
        ("BREW / HTTP/1.1", 501),
        ("get / HTTP/1.1", 501),
        ("CONNECT a:443 HTTP/1.1", 501),
        ("TRACE / HTTP/1.1", 501),
        ("G@T / HTTP/1.1", 400),
        ("GE(T / HTTP/1.1", 400),
        ("GET / HTTP/2.0", 505),
        ("PRI * HTTP/2.0", 505),
        ("GET / HTTP/1.2", 505),
        ("GET / HTTP/0.9", 505),
        ("GET / http/1.1", 400),
        ("GET / HTTP/1.10", 400),
        ("GET / HTTP/11", 400),
        ("GET / XTTP/1.1", 400),
        ("GET /", 400),
        ("GET", 400),
        ("GET  / HTTP/1.1", 400),
        ("GET /  HTTP/1.1", 400),
        ("GET / HTTP/1.1 ", 400),
        ("GET\t/ HTTP/1.1", 400),
        ("GET /a b HTTP/1.1", 400),
        ("GET /a\tb HTTP/1.1", 400),
        ("GET /a#b HTTP/1.1", 400),
        ("GET /\u{e4} HTTP/1.1", 400),
        ("GET /a\rb HTTP/1.1", 400),
        ("GET a HTTP/1.1", 400),
        ("GET a:80 HTTP/1.1", 400),
        ("GET * HTTP/1.1", 400),
        ("OPTIONS * HTTP/1.1", 200),
        ("OPTIONS *x HTTP/1.1", 400),
        ("GET ftp://a/b HTTP/1.1", 400),
        ("GET http:///b HTTP/1.1", 400),
        ("GET http://u:p@a/b HTTP/1.1", 400),
    ] {
        assert_eq!(status(&format!("{line}\r\nHost: a\r\n\r\n")), expected, "{line:?}");
    }
}

#[test]
fn an_absolute_target_is_its_path() {
    for (target, path, query) in [
        ("http://a/v1/x?y=1", "/v1/x", Some("y=1")),
        ("HTTPS://a:8790/v1/x", "/v1/x", None),
        ("http://a", "/", None),
        ("http://a?y", "/", Some("y")),
        ("/?", "/", Some("")),
        ("//evil/v1/x", "//evil/v1/x", None),
    ] {
        let wire = format!("GET {target} HTTP/1.1\r\nHost: b\r\n\r\n");
        let (head, _) = request(&wire).unwrap();
        assert_eq!(head.path(wire.as_bytes()), path.as_bytes(), "{target}");
        assert_eq!(head.query(wire.as_bytes()), query.map(str::as_bytes), "{target}");
    }
}

#[test]
fn connection_and_expect_say_how_it_goes_on() {
    let (head, _) =
        request(&with_lines("Content-Length: 1\r\nConnection: Foo, CLOSE\r\nExpect: 100-Continue\r\n")).unwrap();
    assert!(!head.keep_alive && head.expect_continue);
    let (head, _) = request(&with_lines("Expect: 100-continue\r\n")).unwrap();
    assert!(head.keep_alive && !head.expect_continue, "without a body there is nothing to wait with");
    let wire = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    assert!(!request(wire).unwrap().0.keep_alive, "HTTP/1.0 is answered and closed");
    assert_eq!(status(&with_lines("Expect: the-moon\r\n")), 417);
    assert_eq!(status("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);

    let wire = with_lines("Connection: x-mine , te\r\nConnection: X-Other\r\n");
    let (head, _) = request(&wire).unwrap();
    for (name, named) in [("X-Mine", true), ("x-other", true), ("te", true), ("x-third", false), ("", false)] {
        assert_eq!(head.fields.is_connection_named(wire.as_bytes(), name.as_bytes()), named, "{name}");
    }
}

#[test]
fn an_empty_body_is_no_body_and_chunked_is_read_in_any_case() {
    assert_eq!(request(&with_lines("Content-Length: 0\r\n")).unwrap().0.framing, Framing::None);
    assert_eq!(request(&with_lines("Transfer-Encoding: Chunked\r\n")).unwrap().0.framing, Framing::Chunked);
    assert_eq!(request(&with_lines("Content-Length: 007\r\n")).unwrap().0.framing, Framing::Length(7));
}

#[test]
fn a_head_over_the_limit_is_a_431_whether_it_ends_or_not() {
    let small = HeadLimits { head_bytes_max: 64 };
    let mut head = RequestHead::default();
    let endless = "GET / HTTP/1.1\r\nHost: a\r\nX: ".to_owned() + &"x".repeat(64);
    assert_eq!(head.parse(endless.as_bytes(), &small).unwrap_err().status, 431);
    let mut head = RequestHead::default();
    let ended = endless + "\r\n\r\n";
    assert_eq!(head.parse(ended.as_bytes(), &small).unwrap_err().status, 431);
    let many = with_lines(&"X: y\r\n".repeat(200));
    assert_eq!(status(&many), 431);
    assert_eq!(status(&with_lines(&"X: y\r\n".repeat(100))), 200);
    // Exactly the limit is allowed.
    let exact = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let limits = HeadLimits { head_bytes_max: exact.len() as u32 };
    assert_eq!(RequestHead::default().parse(exact.as_bytes(), &limits), Ok(Some(exact.len())));
}

#[test]
fn what_is_not_http_is_told_at_once() {
    for start in [&b"\x16\x03\x01"[..], b"{", b"\0", b" GET"] {
        assert_eq!(RequestHead::default().parse(start, &LIMITS).map_err(|e| e.status), Err(400), "{start:?}");
    }
    assert_eq!(RequestHead::default().parse(b"\r", &LIMITS), Ok(None));
    assert_eq!(RequestHead::default().parse(b"", &LIMITS), Ok(None));
}

#[test]
fn a_bad_first_line_is_told_before_the_head_is_complete() {
    for (start, status) in [("GET / HTTP/2.0\r\n", 505), ("BREW / HTTP/1.1\r\nHo", 501), ("GET /\r\n", 400)] {
        assert_eq!(RequestHead::default().parse(start.as_bytes(), &LIMITS).map_err(|e| e.status), Err(status));
    }
    let not_http = ResponseHead::default().parse(b"SSH-2.0-x\r\n", &LIMITS, Method::Post);
    assert_eq!(not_http.map_err(|error| error.status), Err(502));
}

#[test]
fn a_stray_empty_line_before_a_request_is_skipped_but_not_many() {
    assert_eq!(status("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), 200);
    assert_eq!(status("\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
}

#[test]
fn a_head_that_trickles_in_is_read_the_same_and_scanned_once() {
    let wire = with_lines("Content-Length: 5\r\nX-Api-Key: k\r\n") + "hello";
    let end = wire.len() - 5;
    let mut head = RequestHead::default();
    for upto in 0..end {
        assert_eq!(head.parse(&wire.as_bytes()[..upto], &LIMITS), Ok(None));
        assert_eq!(head.scan.next, upto, "nothing before this is looked at again");
    }
    assert_eq!(head.parse(wire.as_bytes(), &LIMITS), Ok(Some(end)));
    assert_eq!(head.framing, Framing::Length(5));
    // The same value reads the next request of the connection.
    let next = "GET /b HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(head.parse(next.as_bytes(), &LIMITS), Ok(Some(next.len())));
    assert_eq!((head.path(next.as_bytes()), head.framing), (&b"/b"[..], Framing::None));
}

#[test]
fn a_reply_says_where_its_body_ends() {
    for (head, asked, framing, keep_alive) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", Method::Post, Framing::Length(3), true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", Method::Head, Framing::None, true),
        ("HTTP/1.1 204 No Content\r\n\r\n", Method::Post, Framing::None, true),
        ("HTTP/1.1 304 X\r\nContent-Length: 3\r\n\r\n", Method::Get, Framing::None, true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Method::Post, Framing::Chunked, true),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
            Method::Post,
            Framing::Chunked,
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
            Method::Post,
            Framing::Chunked,
            false,
        ),
        ("HTTP/1.1 200 OK\r\n\r\n", Method::Post, Framing::UntilClose, false),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\nContent-Length: 3\r\n\r\n",
            Method::Post,
            Framing::Length(3),
            true,
        ),
        ("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", Method::Post, Framing::Length(3), false),
        (
            "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\n",
            Method::Post,
            Framing::Length(3),
            true,
        ),
        ("HTTP/1.1 200\r\nContent-Length: 3\r\n\r\n", Method::Post, Framing::Length(3), true),
        ("HTTP/1.1 529 \r\nContent-Length: 0\r\n\r\n", Method::Post, Framing::None, true),
        ("HTTP/1.1 200 OK\nContent-Length: 3\n\n", Method::Post, Framing::Length(3), true),
    ] {
        let (parsed, length) = reply_to(asked, head).unwrap();
        assert_eq!((parsed.framing, parsed.keep_alive, length), (framing, keep_alive, head.len()), "{head:?}");
    }
}

#[test]
fn a_reply_that_leaves_its_end_open_is_refused() {
    for lines in [
        "Content-Length: 3\r\nContent-Length: 4\r\n",
        "Content-Length: 3, 4\r\n",
        "Content-Length: -3\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "X: a\r\n b\r\n",
        "X: a\0\r\n",
    ] {
        let head = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
        assert_eq!(reply_to(Method::Post, &head).map_err(|e| e.status).err(), Some(502), "{lines:?}");
    }
    for line in [
        "HTTP/2 200 OK",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 099 OK",
        "HTTP/1.1  200 OK",
        "SSH-2.0",
        "HTTP/1.1 101 X",
    ] {
        let head = format!("{line}\r\n\r\n");
        assert_eq!(reply_to(Method::Post, &head).map_err(|e| e.status).err(), Some(502), "{line:?}");
    }
}

#[test]
fn interim_replies_are_skipped_also_in_pieces() {
    let wire = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n\
                HTTP/1.1 200 Fine\r\nContent-Length: 3\r\n\r\n";
    let mut head = ResponseHead::default();
    for upto in 0..wire.len() {
        assert_eq!(head.parse(&wire.as_bytes()[..upto], &LIMITS, Method::Post), Ok(None));
    }
    assert_eq!(head.parse(wire.as_bytes(), &LIMITS, Method::Post), Ok(Some(wire.len())));
    assert_eq!((head.status, head.reason(wire.as_bytes()), head.fields.len()), (200, &b"Fine"[..], 1));
}

#[test]
fn interim_replies_without_end_are_cut_off_at_the_limit() {
    let wire = "HTTP/1.1 100 Continue\r\n\r\n".repeat(3000);
    let parsed = ResponseHead::default().parse(wire.as_bytes(), &LIMITS, Method::Post);
    assert_eq!(parsed.map_err(|error| error.status), Err(502));
}

/// Bytes that look enough like a head to get far.
fn headish() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"GET / HTTP/1.1\r\n".to_vec()),
        Just(b"HTTP/1.1 200 OK\r\n".to_vec()),
        Just(b"HTTP/1.1 100 X\r\n\r\n".to_vec()),
        Just(b"Host: a\r\n".to_vec()),
        Just(b"Content-Length: 5\r\n".to_vec()),
        Just(b"Transfer-Encoding: chunked\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..6),
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

/// Whether a head that came at once and one that trickled in are taken alike. What is wrong in a head without its end
/// may be told at once or only when the end has come.
fn agree(whole: &Result<Option<usize>, HeadError>, trickled: &Result<Option<usize>, HeadError>) -> bool {
    match (whole, trickled) {
        (Err(_), Ok(None)) => true,
        (Err(whole), Err(trickled)) => whole.status == trickled.status,
        _ => whole == trickled,
    }
}

proptest! {
    #[test]
    fn no_bytes_panic_and_trickling_changes_nothing(wire in headish(), step in 1usize..9) {
        let whole = RequestHead::default().parse(&wire, &LIMITS);
        let mut head = RequestHead::default();
        let mut trickled = Ok(None);
        for upto in (0..wire.len()).step_by(step).chain([wire.len()]) {
            trickled = head.parse(&wire[..upto], &LIMITS);
            if !matches!(trickled, Ok(None)) {
                break;
            }
        }
        prop_assert!(agree(&whole, &trickled), "{:?} {:?}", whole, trickled);

        let whole = ResponseHead::default().parse(&wire, &LIMITS, Method::Post);
        let mut head = ResponseHead::default();
        let mut trickled = Ok(None);
        for upto in (0..wire.len()).step_by(step).chain([wire.len()]) {
            trickled = head.parse(&wire[..upto], &LIMITS, Method::Post);
            if !matches!(trickled, Ok(None)) {
                break;
            }
        }
        prop_assert!(agree(&whole, &trickled), "{:?} {:?}", whole, trickled);
    }
}
