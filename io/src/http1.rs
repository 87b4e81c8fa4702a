//! HTTP/1.1 as bytes: heads in, bodies in, heads and chunks out. No socket, no clock, no limit but sizes it is told.
//!
//! [`head`] reads request and reply heads and refuses every ambiguous one, [`fields`] tells what a header field is
//! for, [`target`] brings a path to its one spelling, [`body`] and [`chunked`] take the framing off, [`mod@write`] puts
//! it on again. Called by the listener loop in `src/request.rs` and by the upstream side; nothing here may wait.

pub mod body;
mod byte_set;
pub mod chunked;
pub mod fields;
pub mod head;
pub mod target;
pub mod write;

pub use body::{BodyDecoder, Decoded, Framing};
pub use fields::{FieldKind, Fields};
pub use head::{HeadError, HeadLimits, Method, RequestHead, ResponseHead, Version};
