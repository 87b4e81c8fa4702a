//! Where a request stands: the nodes of the scope tree, the endpoints, the globs a limit matches with, and the
//! shard a scope's counter lives in.
//!
//! Decides what is a well-formed node and which of its ancestors carries a level. Does not know limits or
//! counters. Called by the plan compiler, the key stores, the ledger codec and the admin pages.

use std::fmt;
use std::sync::Arc;

/// Counters live in this many cache-padded shards. 256 shards over 16 cores is 16 locks a core, so that two cores
/// resolving new scopes rarely meet, and the empty table costs 256 × 128 B = 32 KB.
pub const SHARDS: usize = 256;

/// The longest name behind `org:`, `team:` or `user:`.
pub const NAME_BYTES_MAX: usize = 64;

/// How the root of the tree is spelled in config, rows and refusals.
pub const GLOBAL: &str = "__global";

/// A depth of the scope tree. Ordered from the root downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    Global,
    Org,
    Team,
    User,
}

impl Level {
    pub const ALL: [Level; 4] = [Level::Global, Level::Org, Level::Team, Level::User];

    /// The spelling used in `attach: { level: … }`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Level::Global => "global",
            Level::Org => "org",
            Level::Team => "team",
            Level::User => "user",
        }
    }

    /// `None` for a word that names no level.
    pub fn parse(text: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.as_str() == text)
    }

    /// Segments below the root: 0 for `__global`, 3 for a user.
    pub const fn depth(self) -> usize {
        self as usize
    }
}

/// Why a text is no node. The text of each variant is what `validate` prints, so it says what is wrong, not where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    #[error("is empty")]
    Empty,
    #[error("has {found:?} where {expected}:NAME belongs")]
    WrongLevel { expected: &'static str, found: String },
    #[error("goes below user:, which is the deepest level")]
    TooDeep,
    #[error("has the name {name:?}: a name is 1 to 64 of A-Z a-z 0-9 . _ -")]
    BadName { name: String },
}

/// A point of the scope tree in its one canonical spelling: `__global`, `org:acme`, `org:acme/team:ml`,
/// `org:acme/team:ml/user:dev1`. Cloning counts a reference, it copies nothing; the root has none to count, because all
/// cores would count the same one on every request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(Option<Arc<str>>);

impl Node {
    /// The root, which is on every caller's path and is where anonymous callers stand.
    pub const fn global() -> Node {
        Node(None)
    }

    /// `org:`, `team:`, `user:` in this order; may stop early, never skips one.
    pub fn parse(text: &str) -> Result<Node, NodeError> {
        if text == GLOBAL {
            return Ok(Node::global());
        }
        if text.is_empty() {
            return Err(NodeError::Empty);
        }
        let mut levels = [Level::Org, Level::Team, Level::User].into_iter();
        for segment in text.split('/') {
            let Some(level) = levels.next() else { return Err(NodeError::TooDeep) };
            let expected = level.as_str();
            let wrong = || NodeError::WrongLevel { expected, found: shorten(segment) };
            let (word, name) = segment.split_once(':').ok_or_else(wrong)?;
            if word != expected {
                return Err(wrong());
            }
            if !is_name(name) {
                return Err(NodeError::BadName { name: shorten(name) });
            }
        }
        Ok(Node(Some(Arc::from(text))))
    }

    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or(GLOBAL)
    }

    pub fn level(&self) -> Level {
        Level::ALL.get(self.depth()).copied().unwrap_or(Level::User) // a parsed node never has more than 3 segments
    }

    /// Segments below the root: 0 for `__global`, 3 for a user.
    pub fn depth(&self) -> usize {
        self.0.as_ref().map_or(0, |text| 1 + text.bytes().filter(|&byte| byte == b'/').count())
    }

    pub fn is_global(&self) -> bool {
        self.0.is_none()
    }

    /// The node above; `None` at the root.
    pub fn parent(&self) -> Option<Node> {
        let text = self.0.as_ref()?;
        Some(Node(text.rsplit_once('/').map(|(above, _)| Arc::from(above))))
    }

    /// This node, then each node above it, up to and including `__global`.
    pub fn ancestors(&self) -> impl Iterator<Item = Node> {
        std::iter::successors(Some(self.clone()), Node::parent)
    }

    /// The node of that level on this node's path; `None` when this node stands above the level.
    pub fn at(&self, level: Level) -> Option<Node> {
        let above = self.depth().checked_sub(level.depth())?;
        self.ancestors().nth(above)
    }

    /// Whether this node is `other` or stands below it.
    pub fn is_within(&self, other: &Node) -> bool {
        other.is_global()
            || self.as_str().strip_prefix(other.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.as_str())
    }
}

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Keeps an error line short whatever was pasted into the file.
fn shorten(text: &str) -> String {
    if text.chars().count() <= 72 {
        return text.to_owned();
    }
    text.chars().take(72).chain(['…']).collect()
}

/// What the caller asked for. `Passthrough` is any other path an upstream was configured to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    ChatCompletions,
    Completions,
    Embeddings,
    Responses,
    Messages,
    CountTokens,
    Passthrough,
}

impl Endpoint {
    pub const ALL: [Endpoint; 7] = [
        Endpoint::ChatCompletions,
        Endpoint::Completions,
        Endpoint::Embeddings,
        Endpoint::Responses,
        Endpoint::Messages,
        Endpoint::CountTokens,
        Endpoint::Passthrough,
    ];

    /// The spelling in `match.endpoint`, rows and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Endpoint::ChatCompletions => "chat.completions",
            Endpoint::Completions => "completions",
            Endpoint::Embeddings => "embeddings",
            Endpoint::Responses => "responses",
            Endpoint::Messages => "messages",
            Endpoint::CountTokens => "messages.count_tokens",
            Endpoint::Passthrough => "passthrough",
        }
    }

    /// `None` for a word that names no endpoint.
    pub fn parse(text: &str) -> Option<Endpoint> {
        Endpoint::ALL.into_iter().find(|endpoint| endpoint.as_str() == text)
    }
}

/// A pattern over a whole string: `*` is any run of characters, also none; `?` is exactly one character; everything
/// else is itself, case included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: Arc<str>,
    shape: Shape,
}

/// The three shapes nearly every configured glob has are answered without a scan of the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Anything,
    Exact,
    Prefix,
    General,
}

impl Glob {
    /// Every text is a glob; a run of `*` means the same as one.
    pub fn new(text: &str) -> Glob {
        let wild = text.find(['*', '?']);
        let shape = match wild {
            None => Shape::Exact,
            Some(0) if text == "*" => Shape::Anything,
            Some(at) if text.len() == at + 1 && text.ends_with('*') => Shape::Prefix,
            Some(_) => Shape::General,
        };
        Glob { text: Arc::from(text), shape }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the whole of `candidate` fits. No allocation; worst case is pattern length × candidate length.
    pub fn matches(&self, candidate: &str) -> bool {
        match self.shape {
            Shape::Anything => true,
            Shape::Exact => &*self.text == candidate,
            Shape::Prefix => candidate.starts_with(self.text.trim_end_matches('*')),
            Shape::General => fits(&self.text, candidate),
        }
    }

    /// Whether some string fits both globs. Only `validate` asks, so it may be slow: pattern × pattern steps.
    pub fn overlaps(&self, other: &Glob) -> bool {
        let (left, right): (Vec<char>, Vec<char>) = (self.text.chars().collect(), other.text.chars().collect());
        // `reach[j]`: the first i characters of `left` and the first j of `right` can describe one string.
        let mut reach = vec![false; right.len() + 1];
        for i in 0..=left.len() {
            let mut next = vec![false; right.len() + 1];
            for j in 0..=right.len() {
                let (a, b) = (i.checked_sub(1).map(|i| left[i]), j.checked_sub(1).map(|j| right[j]));
                let (above, before) = (i > 0 && reach[j], j > 0 && next[j - 1]);
                let both = i > 0 && j > 0 && reach[j - 1];
                next[j] = match (a, b) {
                    (None, None) => true,
                    (Some('*'), Some('*')) => above || before || both,
                    (Some('*'), Some(_)) => above || before,
                    (Some(_), Some('*')) => before || above,
                    (Some('*'), None) => above,
                    (None, Some('*')) => before,
                    (Some(a), Some(b)) => both && (a == b || a == '?' || b == '?'),
                    (Some(_), None) | (None, Some(_)) => false,
                };
            }
            reach = next;
        }
        reach[right.len()]
    }
}

/// Greedy match that, on a mismatch, lets the last `*` take one character more.
fn fits(pattern: &str, candidate: &str) -> bool {
    let (mut pattern, mut rest) = (pattern.chars(), candidate.chars());
    let mut retry: Option<(std::str::Chars<'_>, std::str::Chars<'_>)> = None;
    loop {
        let moved = match (pattern.next(), rest.clone().next()) {
            (Some('*'), _) => {
                retry = Some((pattern.clone(), rest.clone()));
                true
            }
            (None, None) => return true,
            (Some(want), Some(got)) if want == '?' || want == got => {
                rest.next();
                true
            }
            _ => false,
        };
        if moved {
            continue;
        }
        let Some((after_star, from)) = &mut retry else { return false };
        if from.next().is_none() {
            return false; // the star already takes everything that is left
        }
        (pattern, rest) = (after_star.clone(), from.clone());
    }
}

/// The shard of a scope hash. Taken from the middle of the hash: a hash map inside the shard uses the lowest bits for
/// its bucket and the highest for its tag, and must not find them all equal.
pub const fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(text: &str) -> Node {
        Node::parse(text).expect("a well-formed node")
    }

    #[test]
    fn a_user_has_four_nodes_on_its_path() {
        let path: Vec<String> = node("org:acme/team:ml/user:dev1").ancestors().map(|node| node.to_string()).collect();
        assert_eq!(path, ["org:acme/team:ml/user:dev1", "org:acme/team:ml", "org:acme", "__global"]);
        assert_eq!(Node::global().ancestors().count(), 1);
    }

    #[test]
    fn a_level_is_found_on_the_path_or_not_at_all() {
        let team = node("org:acme/team:ml");
        assert_eq!((team.level(), team.depth()), (Level::Team, 2));
        assert_eq!(team.at(Level::Org), Some(node("org:acme")));
        assert_eq!(team.at(Level::Team), Some(team.clone()));
        assert_eq!(team.at(Level::Global), Some(Node::global()));
        assert_eq!(team.at(Level::User), None);
    }

    #[test]
    fn a_malformed_node_says_what_is_wrong_with_it() {
        let says = |text: &str| Node::parse(text).expect_err("malformed").to_string();
        assert_eq!(says(""), "is empty");
        assert_eq!(says("team:ml"), "has \"team:ml\" where org:NAME belongs");
        assert_eq!(says("org:acme/user:dev1"), "has \"user:dev1\" where team:NAME belongs");
        assert_eq!(says("org:acme/"), "has \"\" where team:NAME belongs");
        assert_eq!(says("acme"), "has \"acme\" where org:NAME belongs");
        assert_eq!(says("org:"), "has the name \"\": a name is 1 to 64 of A-Z a-z 0-9 . _ -");
        assert_eq!(says("org:a b"), "has the name \"a b\": a name is 1 to 64 of A-Z a-z 0-9 . _ -");
        assert_eq!(says("org:a/team:b/user:c/key:d"), "goes below user:, which is the deepest level");
        assert!(Node::parse(&format!("org:{}", "x".repeat(64))).is_ok());
        assert!(Node::parse(&format!("org:{}", "x".repeat(65))).is_err());
    }

    #[test]
    fn a_node_is_within_itself_and_what_is_above_it_but_not_within_a_namesake() {
        let team = node("org:acme/team:ml");
        assert!(team.is_within(&team) && team.is_within(&node("org:acme")) && team.is_within(&Node::global()));
        assert!(!team.is_within(&node("org:acme/team:m")));
        assert!(!node("org:acme").is_within(&team));
    }

    #[test]
    fn globs_match_whole_strings() {
        let fits = |glob: &str, text: &str| Glob::new(glob).matches(text);
        assert!(fits("*", "") && fits("gpt-*", "gpt-4o") && fits("gpt-*", "gpt-") && fits("gpt-4o", "gpt-4o"));
        assert!(!fits("gpt-*", "xgpt-4o") && !fits("gpt-4o", "gpt-4o-mini") && !fits("gpt-4o", "GPT-4o"));
        assert!(fits("*-mini", "gpt-4o-mini") && fits("gpt-?o*", "gpt-4o-mini") && fits("a**b", "ab"));
        assert!(fits("*ab*ab", "abxabab") && !fits("*ab*ab", "ab") && fits("?", "é") && !fits("??", "é"));
    }

    #[test]
    fn globs_overlap_when_one_string_fits_both() {
        let meet = |a: &str, b: &str| Glob::new(a).overlaps(&Glob::new(b));
        assert!(meet("gpt-*", "*") && meet("gpt-*", "*-mini") && meet("a?c", "ab*") && meet("", "*"));
        assert!(!meet("gpt-*", "claude-*") && !meet("o1", "o3") && !meet("?", "") && !meet("a*b", "a*c"));
    }

    proptest! {
        #[test]
        fn a_glob_answers_as_a_plain_recursive_definition_does(glob in "[ab*?]{0,8}", text in "[ab]{0,8}") {
            fn plain(glob: &[u8], text: &[u8]) -> bool {
                match (glob.split_first(), text.split_first()) {
                    (None, rest) => rest.is_none(),
                    (Some((b'*', glob)), rest) => {
                        plain(glob, text) || rest.is_some_and(|(_, rest)| plain(&[b"*", glob].concat(), rest))
                    }
                    (Some((want, glob)), Some((got, text))) => (*want == b'?' || want == got) && plain(glob, text),
                    (Some(_), None) => false,
                }
            }
            prop_assert_eq!(Glob::new(&glob).matches(&text), plain(glob.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn globs_that_share_a_string_overlap(a in "[ab*?]{0,6}", b in "[ab*?]{0,6}", text in "[ab]{0,6}") {
            let (a, b) = (Glob::new(&a), Glob::new(&b));
            if a.matches(&text) && b.matches(&text) {
                prop_assert!(a.overlaps(&b));
            }
            prop_assert_eq!(a.overlaps(&b), b.overlaps(&a));
        }

        #[test]
        fn no_text_makes_node_parsing_panic(text in ".{0,40}") {
            if let Ok(node) = Node::parse(&text) {
                prop_assert_eq!(node.as_str(), text);
            }
        }
    }
}
