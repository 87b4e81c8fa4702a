//! A provider's answer on its way to the caller: bytes as they come, with usage read beside the copy.
//!
//! Nothing is held for a parse, except an event that may still turn out to be the usage chunk we asked for and the
//! caller did not. The answer's last bytes leave after the request was settled and its row handed over: a caller that
//! has the end of its answer finds its slot free. A reader that stops reading stops us from reading the provider.

use std::rc::Rc;

use io::clock;
use io::http1::{BodyDecoder, FieldKind, Fields, Framing, Method, Version, write};
use io::runtime::{ensure_buffer, give_buffer, let_others_run, take_buffer};
use io::usage::{AnswerTap, Shape, UsageSeen};
use shards::refusal::rate_headers;
use shards::row::Outcome;
use shards::scope::Endpoint;
use shards::usage::UsageReport;

use crate::connection::{After, Client, WRITE_STALL_NS};
use crate::core::Core;
use crate::exchange::{self, Answer, Got};
use crate::request::BYTES_PER_TOKEN;
use crate::request::life::{Booking, Life};
use crate::rules::Upstream;

/// How the caller learns where the answer ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Out {
    /// By its length, as the provider gave it.
    Length,
    /// By the last chunk, which is withheld when the provider was cut.
    Chunked,
    /// By our closing: HTTP/1.0 knows nothing better.
    UntilClose,
}

/// How the answer ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Whole; the connection to the provider may be used again.
    Whole,
    /// Whole, by the provider's closing.
    WholeAtClose,
    /// The provider broke off.
    Cut,
    /// The provider fell silent.
    Silent,
    /// The caller left, or took nothing for too long.
    ClientGone,
}

/// Relays an answer to its end, books it, and says what becomes of the caller's connection.
pub async fn relay(
    core: &Rc<Core>,
    client: &mut Client,
    upstream: &Upstream,
    answer: Answer,
    life: &mut Life,
) -> After {
    let Answer { mut socket, mut buf, mut head, head_len, hides_usage } = answer;
    let status = head.status;
    life.row.status = status; // as the caller will have seen it, should the drain cut the rest
    let keeps = client.head.keep_alive && !core.drain.is_set();
    let out_framing = match head.framing {
        Framing::None | Framing::Length(_) if !hides_usage => Out::Length,
        _ if client.head.version == Version::Http10 => Out::UntilClose,
        _ => Out::Chunked,
    };
    let keeps = keeps && out_framing != Out::UntilClose;
    let mut out = take_buffer();
    let is_head = client.head.method == Method::Head;
    write_head(core, &head, &buf, is_head, out_framing, keeps, life, &mut out);
    client.release_request(life.row.stream);

    let content_encoding = head.fields.of_kind(&buf, FieldKind::ContentEncoding).next();
    let mut tap = AnswerTap::new(shape_of(life.row.endpoint), hides_usage, content_encoding);
    let mut decoder = BodyDecoder::new(head.framing);
    if life.row.stream {
        socket.expect_pieces();
        head.fields = Fields::default(); // which this answer would hold to its end
    }
    let mut from = head_len;
    let end = loop {
        let piece = buf.get_mut(from..).unwrap_or_default();
        match decoder.decode(piece) {
            Ok(decoded) => {
                let extra = piece.len() - decoded.consumed;
                let payload = piece.get_mut(..decoded.payload).unwrap_or_default();
                let passed = tap.push(payload);
                frame(&mut out, out_framing, passed.held);
                let length = passed.length;
                life.relayed_tokens = text_tokens(&tap);
                frame(&mut out, out_framing, payload.get(..length).unwrap_or_default());
                if decoded.done {
                    // Bytes behind the end belong to no request of ours: such a connection is not used again.
                    break if extra == 0 { End::Whole } else { End::WholeAtClose };
                }
            }
            Err(_) => break End::Cut,
        }
        from = 0;
        buf.clear();
        if !out.is_empty() {
            // Begun, and the provider read at once: at most one piece waits here for a caller that reads slowly.
            let begun = client.socket.send_piece(std::mem::take(&mut out), WRITE_STALL_NS).await;
            if begun.is_err() {
                break End::ClientGone;
            }
        }
        let deadline_ns = clock::tick_ns().saturating_add(upstream.idle_timeout_ns);
        match exchange::read(client, &mut socket, &mut buf, deadline_ns).await {
            Got::Bytes(count) if count >= exchange::READ_ROOM => let_others_run().await, // there is more
            Got::Bytes(_) | Got::Written(_) => {}
            Got::End if decoder.ends_at_close() => break End::WholeAtClose,
            Got::End | Got::Broken => break End::Cut,
            Got::ClientGone => break End::ClientGone,
            Got::Deadline => break End::Silent,
        }
    };
    life.last_byte();

    let whole = matches!(end, End::Whole | End::WholeAtClose);
    if whole {
        frame(&mut out, out_framing, tap.finish());
        if out_framing == Out::Chunked {
            out.extend_from_slice(write::LAST_CHUNK);
        }
    }
    if matches!(end, End::Cut | End::Silent) && (200..300).contains(&status) && life.row.stream {
        // The end is withheld, so no client takes half an answer for a whole one; the event says why.
        let (code, message) = match end {
            End::Silent => ("upstream_timeout", "the upstream fell silent before its answer was complete"),
            _ => ("upstream_cut", "the upstream closed the connection before its answer was complete"),
        };
        let mut event = Vec::new();
        if out_framing == Out::Chunked && !tap.is_terminated() && tap.append_cut_event(code, message, &mut event) {
            frame(&mut out, out_framing, &event);
        }
    }
    life.row.outcome = Some(match end {
        _ if !(200..300).contains(&status) => Outcome::UpstreamError,
        // The stream ended as it should, but what the provider said in it was that it had failed.
        End::Whole | End::WholeAtClose if life.row.stream && tap.error_seen() => Outcome::UpstreamError,
        End::Whole | End::WholeAtClose => Outcome::Completed,
        // The terminal event was relayed: who leaves then has everything.
        End::ClientGone if tap.is_terminated() => Outcome::Completed,
        End::ClientGone => Outcome::ClientGone,
        End::Cut => Outcome::UpstreamCut,
        End::Silent => Outcome::Timeout,
    });
    let booking = if (200..300).contains(&status) { booking_of(&tap) } else { Booking::Nothing };
    life.close(status, Some(booking)).await;

    if end == End::Whole && head.keep_alive {
        core.keep(upstream, socket);
    } else {
        drop(socket); // at once: a provider stops working for a caller that left
    }
    core.give_answer_head(head);
    give_buffer(buf);
    if end == End::ClientGone {
        give_buffer(out);
        return After::Close;
    }
    let keeps = keeps && client.buf.len() >= client.end; // a buffer that stayed with a driver took pipelined requests along
    if whole && keeps {
        // The next request is waited for while this leaves.
        let begun = client.socket.send(out, WRITE_STALL_NS).await;
        return if begun.is_ok() { After::KeepAlive } else { After::Close };
    }
    let written = client.socket.write_all(out, WRITE_STALL_NS).await;
    if whole && written.is_ok() { After::CloseGently } else { After::Close }
}

/// The answer's head as the caller is to see it.
#[allow(clippy::too_many_arguments)]
fn write_head(
    core: &Core,
    head: &io::http1::ResponseHead,
    buf: &[u8],
    is_head: bool,
    framing: Out,
    keeps: bool,
    life: &Life,
    out: &mut Vec<u8>,
) {
    let discloses = core.view().rules.config.governance.keys.disclose_limits;
    let renames = discloses && !life.passed.facts.is_empty();
    write::status_line(out, head.status);
    let named_by_connection = head.fields.connection_options(buf).next().is_some();
    for (field, name, value) in head.fields.iter(buf) {
        match field.kind {
            FieldKind::HopByHop
            | FieldKind::ContentLength
            | FieldKind::TransferEncoding
            | FieldKind::Connection
            | FieldKind::Ours => continue,
            // Two truths under one name would be none: the provider's figures go by another name beside ours.
            FieldKind::RateLimit if renames => out.extend_from_slice(b"x-upstream-"),
            _ => {}
        }
        if named_by_connection && head.fields.is_connection_named(buf, name) {
            continue;
        }
        if life.cors.is_on() && name.len() > 15 && name[..15].eq_ignore_ascii_case(b"access-control-") {
            continue;
        }
        write::raw_field(out, name, value);
    }
    write::field(out, "x-tt-request-id", life.request_id().as_str().as_bytes());
    life.cors.append_to(out);
    if discloses {
        rate_headers(&life.passed.facts, life.family, life.now, out);
    }
    if life.passed.suspended.iter().any(|(_, reason)| reason.is_shared_store()) {
        out.extend_from_slice(b"x-tt-coordination: suspended\r\n");
    }
    // The answer to HEAD says how long the body would be.
    if is_head && let Some(length) = head.fields.get(buf, "content-length") {
        write::field(out, "content-length", length);
        write_connection(keeps, out);
        return;
    }
    match (framing, head.framing) {
        (Out::Length, Framing::Length(length)) => write::number_field(out, "content-length", length),
        // A body-less status says nothing of a length; an empty body says so.
        (Out::Length, _) if !matches!(head.status, 204 | 304) => write::number_field(out, "content-length", 0),
        (Out::Chunked, _) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        _ => {}
    }
    write_connection(keeps, out);
}

fn write_connection(keeps: bool, out: &mut Vec<u8>) {
    if !keeps {
        out.extend_from_slice(b"connection: close\r\n");
    }
    write::line_end(out);
}

/// How the endpoint's answers are built.
fn shape_of(endpoint: Endpoint) -> Shape {
    match endpoint {
        Endpoint::Messages | Endpoint::CountTokens => Shape::Anthropic,
        Endpoint::Responses => Shape::Responses,
        _ => Shape::OpenAi,
    }
}

/// What to book: the provider's report, and beside it what the relayed text amounts to.
fn booking_of(tap: &AnswerTap) -> Booking {
    Booking::Used { report: tap.usage().map(report_of), estimated_output: text_tokens(tap) }
}

/// What was generated so far, estimated; a begun token is a token.
fn text_tokens(tap: &AnswerTap) -> u64 {
    tap.text_bytes().div_ceil(BYTES_PER_TOKEN)
}

fn report_of(seen: UsageSeen) -> UsageReport {
    UsageReport {
        input: seen.input,
        output: seen.output,
        cached_input: seen.cached_input,
        cache_write: seen.cache_write,
        cache_write_long: seen.cache_write_long,
        reasoning: seen.reasoning,
        input_excludes_cache: seen.input_excludes_cache,
        anomaly: seen.anomaly,
        tier: seen.tier,
        unpriced_fee: seen.unpriced_fee,
    }
}

/// Appends a part of the answer. Between two parts nothing is held for the next one.
fn frame(out: &mut Vec<u8>, framing: Out, payload: &[u8]) {
    if payload.is_empty() {
        return;
    }
    ensure_buffer(out);
    match framing {
        Out::Chunked => write::chunk(out, payload),
        Out::Length | Out::UntilClose => out.extend_from_slice(payload),
    }
}
