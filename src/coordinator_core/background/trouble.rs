//! Why the store does not do what it is asked, and when that is news: the log tells an outage once, not with every call.

use io::redis::{Reply as Answer, Trouble};

/// Why a call came to nothing.
#[derive(Debug, PartialEq, Eq)]
pub enum Failed {
    /// No answer: the way there, or a server that hangs.
    Silent(String),
    /// An answer, and it is an error: a full memory, a wrong password, a server that is loading.
    Refused(String),
    /// An answer in words we do not know.
    Malformed,
}

impl Failed {
    pub fn of(trouble: &Trouble) -> Failed {
        match trouble {
            Trouble::Refused(error) => Failed::Refused(error.clone()),
            trouble => Failed::Silent(trouble.to_string()),
        }
    }

    pub fn answered(answer: &Answer) -> Failed {
        answer.error().map_or(Failed::Malformed, Failed::Refused)
    }

    pub fn words(&self) -> &str {
        match self {
            Failed::Silent(error) | Failed::Refused(error) => error,
            Failed::Malformed => "a malformed reply",
        }
    }

    /// What the operator looks for next: the network, or what the server says.
    fn headline(&self) -> &'static str {
        match self {
            Failed::Silent(_) => "the shared store does not answer",
            Failed::Refused(_) => "the shared store answers with an error",
            Failed::Malformed => "the shared store answers in words we do not know",
        }
    }
}

/// What was said of an outage: once when it begins, once when it becomes another one, once when it ends.
#[derive(Default)]
pub struct Said(Option<&'static str>);

impl Said {
    /// What is to be said now, if anything: `Ok` for an end.
    pub fn outcome(&mut self, failed: Option<&Failed>) -> Option<Result<(), &'static str>> {
        let now = failed.map(Failed::headline);
        let before = std::mem::replace(&mut self.0, now);
        (now != before).then(|| now.map_or(Ok(()), Err))
    }

    /// Whether an outage was said and not yet its end.
    pub fn is_out(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_said_once_for_each_kind_and_in_the_words_of_the_server() {
        let mut said = Said::default();
        let full =
            Failed::answered(&Answer::Error(b"OOM command not allowed when used memory > 'maxmemory'.".to_vec()));
        assert_eq!(full.words(), "OOM command not allowed when used memory > 'maxmemory'.");
        assert_eq!(said.outcome(Some(&full)), Some(Err("the shared store answers with an error")));
        assert_eq!(said.outcome(Some(&full)), None);
        let gone = Failed::of(&Trouble::Closed);
        assert_eq!(said.outcome(Some(&gone)), Some(Err("the shared store does not answer")));
        assert_eq!((said.outcome(None), said.outcome(None)), (Some(Ok(())), None));
        assert_eq!(Failed::answered(&Answer::Nil).words(), "a malformed reply");
    }
}
