//! Who asks: the credentials of a request, the virtual key among them, and the node it stands for.
//!
//! `x-tt-key` is read first, so that a caller can send its own provider credential beside its key. A token that
//! begins with `ttk_` is ours: an unknown, revoked or expired one is a 401 whatever the posture, and it is never
//! forwarded. Two different keys on one request are a 401, because only one could be charged.
//!
//! Where keys are followed in Postgres, a 401 is said only of what is known: while they were never read a key's holder is
//! anonymous, or is told to come again (503) where anonymous callers are not served; and a key that is missing from a
//! stale snapshot may have been minted elsewhere since, so that is a 503 as well.

use std::rc::Rc;
use std::sync::Arc;

use io::http1::{FieldKind, RequestHead, target};
use shards::scope::Node;
use shards::units::WallMs;

use crate::config::{Anonymous, RequireKey};
use crate::core::View;
use crate::keys::{self, Standing};
use crate::respond::Fault;

/// The holder of a valid key, or somebody without one.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Whose limits apply; the root for an anonymous caller.
    pub node: Node,
    /// `None`: anonymous.
    pub key_id: Option<Arc<str>>,
    /// The key's name and end, for `/tt/v1/me`.
    pub key_name: Option<Arc<str>>,
    /// When the key ends.
    pub key_expires: Option<WallMs>,
    /// A key was sent and nothing can be said of it: served as anonymous, which is no reason for a 401.
    pub is_unverified: bool,
}

/// Why a request has no caller. The words say nothing that would help to guess a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// A key is required and none was sent.
    NoKey,
    /// A key was sent that opens nothing: unknown, revoked and expired sound alike.
    BadKey,
    /// Two different keys.
    TwoKeys,
    /// A key was sent that the store has yet to tell us about.
    Unverifiable,
}

impl Unknown {
    /// The word metrics count it by.
    pub fn as_str(self) -> &'static str {
        match self {
            Unknown::NoKey => "no_key",
            Unknown::BadKey => "bad_key",
            Unknown::TwoKeys => "two_keys",
            Unknown::Unverifiable => "unverifiable",
        }
    }

    /// The message of the 401.
    pub fn message(self) -> &'static str {
        match self {
            Unknown::NoKey => "a key is required: send it as `Authorization: Bearer ttk_...` or `x-api-key: ttk_...`",
            Unknown::BadKey => "the key is not valid",
            Unknown::TwoKeys => "the request carries two different keys; send one",
            Unknown::Unverifiable => "the key cannot be verified, because the key store cannot be reached; try again",
        }
    }

    /// Whose fault it is: a key that nobody can judge is no failed authentication.
    pub fn fault(self) -> Fault {
        match self {
            Unknown::NoKey | Unknown::BadKey | Unknown::TwoKeys => Fault::Authentication,
            Unknown::Unverifiable => Fault::IdentityUnavailable,
        }
    }
}

/// The key a connection used last. The next request with the same bytes is the same caller, without a hash.
#[derive(Default)]
pub struct Memo {
    token: Vec<u8>,
    generation: u64,
    /// By a count of this core alone: what a caller is made of is shared by all cores.
    caller: Option<Rc<Caller>>,
}

impl Caller {
    fn anonymous() -> Self {
        Caller { node: Node::global(), key_id: None, key_name: None, key_expires: None, is_unverified: false }
    }

    /// Whether no valid key was sent.
    pub fn is_anonymous(&self) -> bool {
        self.key_id.is_none()
    }

    /// Whether this caller may reach an upstream that the operator pays for.
    pub fn may_use_our_credential(&self, view: &View) -> bool {
        !self.is_anonymous() || view.rules.config.governance.keys.anonymous == Anonymous::Allow
    }
}

/// Finds the caller of a request. At most one SHA-256, none when the connection's last key comes again. Never waits.
/// `standing` is that of the view's keys.
pub fn identify(
    view: &View,
    head: &RequestHead,
    buf: &[u8],
    now: WallMs,
    standing: Standing,
    memo: &mut Memo,
) -> Result<Rc<Caller>, Unknown> {
    let keys = &view.rules.config.governance.keys;
    let serves_anonymous = keys.require_key != RequireKey::Required && keys.anonymous != Anonymous::Refuse;
    let token = match virtual_token(head, buf, &memo.token)? {
        Some(token) => token,
        None => return if serves_anonymous { Ok(Rc::new(Caller::anonymous())) } else { Err(Unknown::NoKey) },
    };
    if let Some(caller) = &memo.caller
        && memo.generation == view.generation
        && memo.token == token
        && caller.key_expires.is_none_or(|expires| now < expires)
    {
        return Ok(caller.clone());
    }
    let holder = match view.keys.find(token, now) {
        Some(holder) => holder,
        None if standing == Standing::Fresh || !view.keys.is_unheard_of(token) => return Err(Unknown::BadKey),
        None if standing == Standing::NeverSeeded && serves_anonymous => {
            return Ok(Rc::new(Caller { is_unverified: true, ..Caller::anonymous() }));
        }
        None => return Err(Unknown::Unverifiable),
    };
    let caller = Rc::new(Caller {
        node: holder.node.clone(),
        key_id: Some(holder.key_id.clone()),
        key_name: holder.name.clone(),
        key_expires: holder.expires,
        is_unverified: false,
    });
    memo.token.clear();
    memo.token.extend_from_slice(token);
    memo.generation = view.generation;
    memo.caller = Some(caller.clone());
    Ok(caller)
}

/// The one virtual key of a request, wherever it stands. `known` is the one that is expected, without a blank in it.
fn virtual_token<'b>(head: &RequestHead, buf: &'b [u8], known: &[u8]) -> Result<Option<&'b [u8]>, Unknown> {
    let mut found: Option<&[u8]> = None;
    let mut see = |token: &'b [u8]| match found {
        Some(other) if other != token => Err(Unknown::TwoKeys),
        _ => {
            found = Some(token);
            Ok(())
        }
    };
    for (name, value) in head.fields.named_of_kind(buf, FieldKind::Credential) {
        let token = token_if(value, known).unwrap_or_else(|| token_of(value));
        // The header made for our keys holds nothing else.
        if name.eq_ignore_ascii_case(b"x-tt-key") || keys::is_virtual(token) {
            see(token)?;
        }
    }
    for (_, value) in head.query(buf).into_iter().flat_map(target::parameters) {
        if keys::is_virtual(value) {
            see(value)?;
        }
    }
    Ok(found)
}

/// The credential itself, if it is this one: told by its last bytes, where [`token_of`] looks at each of them.
fn token_if<'b>(value: &'b [u8], known: &[u8]) -> Option<&'b [u8]> {
    let at = value.len().checked_sub(known.len()).filter(|_| !known.is_empty())?;
    let (before, token) = value.split_at_checked(at)?;
    (token == known && before.last().is_none_or(u8::is_ascii_whitespace)).then_some(token)
}

/// The credential itself: what follows the scheme (`Bearer`, `Token`, …), if there is one.
fn token_of(value: &[u8]) -> &[u8] {
    value.rsplit(u8::is_ascii_whitespace).find(|word| !word.is_empty()).unwrap_or_default()
}

/// `%74tk_` is `ttk_`.
pub fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let escape = (byte == b'%').then(|| tail.split_first_chunk::<2>()).flatten();
        let digits = escape.and_then(|(digits, _)| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(decoded) => {
                plain.push(decoded);
                rest = &tail[2..];
            }
            None => {
                plain.push(byte);
                rest = tail;
            }
        }
    }
    plain
}

/// Whether a credential header may go to an upstream that the caller pays for: anything but a key of ours.
pub fn is_forwardable(name: &[u8], value: &[u8]) -> bool {
    let token = token_of(value);
    !name.eq_ignore_ascii_case(b"x-tt-key") && !keys::is_virtual(token)
}
