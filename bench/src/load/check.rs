//! What an answer must be, and whether it was: its status, its mark, every frame of a stream in order.

use memchr::{memchr, memmem};
use serde::{Deserialize, Serialize};

use crate::provider::{FRAME_MARK, REPLY_MARK};
use crate::wire::Fault;

/// How much of a plain body is kept to look for the mark.
const KEPT_BYTES: usize = 64 * 1024;

/// What every answer of a load must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expect {
    /// A reply of the mock provider.
    Reply,
    /// A stream of the mock provider with so many frames.
    Stream { frames: u32 },
    /// Just this status, whatever its body.
    Status(u16),
    /// Any answer of a provider that is not ours: 200 and complete.
    Complete,
}

/// Looks at one answer as it comes.
#[derive(Debug)]
pub struct Check {
    expect: Expect,
    /// The beginning of a plain body, or the line of a stream that has not come whole.
    kept: Vec<u8>,
    /// Frames seen, which is also the number that the next one must have.
    frames: u32,
    has_ended: bool,
    fault: Option<Fault>,
}

impl Check {
    pub fn new(expect: Expect) -> Self {
        Self { expect, kept: Vec::new(), frames: 0, has_ended: false, fault: None }
    }

    pub fn reset(&mut self) {
        self.kept.clear();
        self.frames = 0;
        self.has_ended = false;
        self.fault = None;
    }

    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// A piece of the body.
    pub fn take(&mut self, piece: &[u8]) {
        match self.expect {
            Expect::Status(_) | Expect::Complete => {}
            Expect::Reply => {
                let room = KEPT_BYTES - self.kept.len().min(KEPT_BYTES);
                self.kept.extend_from_slice(&piece[..piece.len().min(room)]);
            }
            Expect::Stream { .. } => self.take_lines(piece),
        }
    }

    fn take_lines(&mut self, mut piece: &[u8]) {
        while let Some(end) = memchr(b'\n', piece) {
            if self.kept.is_empty() {
                self.line(&piece[..end]);
            } else {
                self.kept.extend_from_slice(&piece[..end]);
                let line = std::mem::take(&mut self.kept);
                self.line(&line);
                self.kept = line;
                self.kept.clear();
            }
            piece = &piece[end + 1..];
        }
        self.kept.extend_from_slice(piece);
    }

    fn line(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data:") else {
            if line.starts_with(b"event: error") {
                self.fault = Some("an error event in a stream");
            }
            return;
        };
        if let Some(at) = memmem::find(data, FRAME_MARK) {
            let number = data.get(at + FRAME_MARK.len()..).and_then(|rest| rest.get(..5)).and_then(number);
            match number {
                Some(number) if number == self.frames => self.frames += 1,
                Some(number) if number < self.frames => self.fault = Some("a frame that came twice"),
                _ => self.fault = Some("a lost frame"),
            }
        } else if data.trim_ascii() == b"[DONE]" {
            self.has_ended = true;
        }
    }

    /// The answer is complete: what is wrong with it.
    pub fn verdict(&self, status: u16) -> Result<(), Fault> {
        let wanted = match self.expect {
            Expect::Status(status) => status,
            Expect::Reply | Expect::Stream { .. } | Expect::Complete => 200,
        };
        if status != wanted {
            return Err(match status {
                200 => "a 200 where a refusal was expected",
                401 | 403 => "status 401 or 403: the key is not accepted",
                404 => "status 404",
                429 => "status 429: refused",
                400..500 => "another status 4xx",
                502 => "status 502: the provider was not reached",
                503 => "status 503: overloaded",
                504 => "status 504: the provider took too long",
                500..600 => "another status 5xx",
                _ => "an unexpected status",
            });
        }
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        match self.expect {
            Expect::Reply if memmem::find(&self.kept, REPLY_MARK).is_none() => {
                Err("an answer that is not the provider's")
            }
            Expect::Stream { frames } if self.frames < frames => Err("a stream that ended early"),
            Expect::Stream { frames } if self.frames > frames => Err("a stream with too many frames"),
            Expect::Stream { .. } if !self.has_ended => Err("a stream without [DONE]"),
            _ => Ok(()),
        }
    }
}

fn number(digits: &[u8]) -> Option<u32> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(frames: u32, text: &str, step: usize) -> Result<(), Fault> {
        let mut check = Check::new(Expect::Stream { frames });
        text.as_bytes().chunks(step).for_each(|piece| check.take(piece));
        check.verdict(200)
    }

    #[test]
    fn a_stream_is_whole_only_with_every_frame_once_in_order_and_its_end() {
        for step in [1, 7, 1000] {
            let whole = "data: {tt-frame-00000}\n\ndata:{tt-frame-00001}\r\n\r\ndata: {}\n\ndata: [DONE]\n\n";
            assert_eq!(stream(2, whole, step), Ok(()));
            assert_eq!(stream(3, whole, step), Err("a stream that ended early"));
            assert_eq!(stream(1, whole, step), Err("a stream with too many frames"));
            assert_eq!(stream(2, &whole.replace("[DONE]", ""), step), Err("a stream without [DONE]"));
            assert_eq!(stream(2, &whole.replace("00001", "00002"), step), Err("a lost frame"));
            assert_eq!(stream(2, &whole.replace("00001", "00000"), step), Err("a frame that came twice"));
        }
    }

    #[test]
    fn a_reply_of_somebody_else_is_no_reply() {
        let mut check = Check::new(Expect::Reply);
        check.take(b"{\"content\":\"tt-re");
        assert!(check.verdict(200).is_err());
        check.take(b"ply\"}");
        assert_eq!(check.verdict(200), Ok(()));
        assert_eq!(check.verdict(429), Err("status 429: refused"));
        assert_eq!(Check::new(Expect::Status(429)).verdict(429), Ok(()));
        assert!(Check::new(Expect::Status(429)).verdict(200).is_err());
    }
}
