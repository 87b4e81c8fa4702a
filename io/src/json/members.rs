//! The members of a request body that the gateway decides by, and their one spelling.
//!
//! Each may appear once. A second one, under any escape or any case, is refused: the gateway would govern one and the
//! provider obey the other (some JSON readers match names without regard to case, and fold `ſ` to `s`).

/// A member whose value the gateway reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Member {
    Model,
    Stream,
    StreamOptions,
    MaxTokens,
    MaxCompletionTokens,
    MaxOutputTokens,
    N,
    BestOf,
    Messages,
    Prompt,
    Input,
    System,
    Instructions,
    Suffix,
    Tools,
    Functions,
    ServiceTier,
}

const NAMES: [(&str, Member); 17] = [
    ("model", Member::Model),
    ("stream", Member::Stream),
    ("stream_options", Member::StreamOptions),
    ("max_tokens", Member::MaxTokens),
    ("max_completion_tokens", Member::MaxCompletionTokens),
    ("max_output_tokens", Member::MaxOutputTokens),
    ("n", Member::N),
    ("best_of", Member::BestOf),
    ("messages", Member::Messages),
    ("prompt", Member::Prompt),
    ("input", Member::Input),
    ("system", Member::System),
    ("instructions", Member::Instructions),
    ("suffix", Member::Suffix),
    ("tools", Member::Tools),
    ("functions", Member::Functions),
    ("service_tier", Member::ServiceTier),
];
const LONGEST_NAME: usize = "max_completion_tokens".len();
/// No spelling that could be mistaken for a member has more bytes: the Kelvin sign takes three.
pub(crate) const LONGEST_SPELLING: usize = 3 * LONGEST_NAME;

impl Member {
    pub(crate) fn name(self) -> &'static str {
        NAMES[self as usize].0
    }

    /// The member of exactly this name.
    pub(crate) fn of(key: &[u8]) -> Option<Member> {
        Some(match key {
            b"model" => Member::Model,
            b"stream" => Member::Stream,
            b"stream_options" => Member::StreamOptions,
            b"max_tokens" => Member::MaxTokens,
            b"max_completion_tokens" => Member::MaxCompletionTokens,
            b"max_output_tokens" => Member::MaxOutputTokens,
            b"n" => Member::N,
            b"best_of" => Member::BestOf,
            b"messages" => Member::Messages,
            b"prompt" => Member::Prompt,
            b"input" => Member::Input,
            b"system" => Member::System,
            b"instructions" => Member::Instructions,
            b"suffix" => Member::Suffix,
            b"tools" => Member::Tools,
            b"functions" => Member::Functions,
            b"service_tier" => Member::ServiceTier,
            _ => return None,
        })
    }

    /// The member that a careless reader would take `key` for, though it is spelled differently.
    pub(crate) fn mistaken(key: &[u8]) -> Option<Member> {
        // A name in its plain spelling is what `of` is for; nearly every key ends here.
        if key.iter().all(|b| b.is_ascii() && !b.is_ascii_uppercase()) {
            return None;
        }
        let key = std::str::from_utf8(key).ok()?;
        let mut folded = [0u8; LONGEST_NAME];
        let mut length = 0;
        for letter in key.chars() {
            let plain = match letter {
                'ſ' => b's',
                '\u{212a}' => b'k', // the Kelvin sign
                ascii if ascii.is_ascii() => ascii.to_ascii_lowercase() as u8,
                _ => return None,
            };
            *folded.get_mut(length)? = plain;
            length += 1;
        }
        Member::of(&folded[..length])
    }
}

/// Members met so far, to find the second of its kind.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen(u32);

impl Seen {
    /// Whether `member` was new.
    pub(crate) fn insert(&mut self, member: Member) -> bool {
        let bit = 1 << member as u8;
        let new = self.0 & bit == 0;
        self.0 |= bit;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_has_its_name_and_only_that() {
        for (index, (name, member)) in NAMES.iter().enumerate() {
            assert_eq!(*member as usize, index);
            assert_eq!(
                (Member::of(name.as_bytes()), member.name(), Member::mistaken(name.as_bytes())),
                (Some(*member), *name, None)
            );
            assert_eq!(Member::mistaken(name.to_uppercase().as_bytes()), Some(*member));
        }
        assert_eq!(Member::of(b"Model"), None);
        assert_eq!(Member::mistaken("meſſages".as_bytes()), Some(Member::Messages));
        assert_eq!(Member::mistaken("max_to\u{212a}ens".as_bytes()), Some(Member::MaxTokens));
        assert_eq!(Member::mistaken("Metadata".as_bytes()), None);
        assert_eq!(Member::mistaken("MAX_COMPLETION_TOKENS_X".as_bytes()), None);
        assert_eq!(Member::mistaken("mödel".as_bytes()), None);
    }
}
