//! Why a run ended without a result.

use crate::plan::Unplanned;
use protocol::Refused;
use std::path::Path;

/// One line that says what was expected and what was there.
#[derive(Debug)]
pub enum Failed {
    /// The configuration, a file, or what is in it is no good; or the system refused.
    Input(String),
    /// A promise cannot be kept, or the budget is spent.
    Promise(String),
    /// Somebody asked it to stop. What was done is put away.
    Stopped,
}

impl Failed {
    /// What is wrong with a file or a folder.
    pub(crate) fn at(path: &Path) -> impl Fn(std::io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |error| Self::Input(format!("{}: {error}", path.display()))
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // Some of it was read from files: on one line, and without what a terminal obeys.
            Self::Input(what) | Self::Promise(what) => {
                f.write_str(&what.replace(char::is_control, "\u{fffd}"))
            }
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for Failed {}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Budget(what) => Self::Promise(what),
            other => Self::Input(other.to_string()),
        }
    }
}

impl From<Unplanned> for Failed {
    fn from(unplanned: Unplanned) -> Self {
        match unplanned {
            Unplanned::Input(what) => Self::Input(what),
            Unplanned::Promise(error) => Self::Promise(error.to_string()),
        }
    }
}

impl From<accounting::Error> for Failed {
    fn from(error: accounting::Error) -> Self {
        Unplanned::from(error).into()
    }
}

macro_rules! input {
    ($($error:ty),+) => {
        $(impl From<$error> for Failed {
            fn from(error: $error) -> Self {
                Self::Input(error.to_string())
            }
        })+
    };
}
input!(model::Error, data::Error, text::Error);

impl From<audit::Error> for Failed {
    fn from(error: audit::Error) -> Self {
        match error {
            audit::Error::Accounting(error) => error.into(),
            audit::Error::Refused(refused) => refused.into(),
            other => Self::Input(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_cannot_move_the_cursor() {
        assert_eq!(
            Failed::Input("x: unknown field `\u{1b}[2J`\n".into()).to_string(),
            "x: unknown field `\u{fffd}[2J`\u{fffd}"
        );
    }
}
