//! How commands fail, and with which exit code.

use std::process::ExitCode;

use tenure_client::proto::WireError;
use tenure_client::{ConnectError, End, OptionsError, SubEnd};

/// Why a command failed; each kind has its own exit code.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something went wrong here. Exit code 1.
    #[error("{0}")]
    Failed(String),
    /// The command was asked for something it cannot do. Exit code 2.
    #[error("{0}")]
    Usage(String),
    /// Another process took the session over. Exit code 3.
    #[error("{0}")]
    Replaced(String),
    /// The broker or the daemon refused. Exit code 4.
    #[error("{0}")]
    Refused(String),
    /// The broker or the daemon cannot be reached. Exit code 5.
    #[error("{0}")]
    Unreachable(String),
    /// What was waited for did not happen in time, and may still. Exit code 6.
    #[error("{0}")]
    Late(String),
    /// The run failed, or was cancelled. Exit code 7.
    #[error("{0}")]
    Run(String),
    /// It was asked to end a second time, by this signal, before it had ended. Exit code 128 and the signal's number.
    #[error("ended at once, as the second signal asks")]
    Interrupted(i32),
}

impl Failure {
    /// The exit code.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.number())
    }

    /// Its number.
    pub fn number(&self) -> u8 {
        match self {
            Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Replaced(_) => 3,
            Failure::Refused(_) => 4,
            Failure::Unreachable(_) => 5,
            Failure::Late(_) => 6,
            Failure::Run(_) => 7,
            Failure::Interrupted(signal) => u8::try_from(128 + signal).unwrap_or(1),
        }
    }
}

impl From<OptionsError> for Failure {
    fn from(error: OptionsError) -> Failure {
        Failure::Usage(error.to_string())
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Failure {
        Failure::Refused(error.to_string())
    }
}

impl From<End> for Failure {
    fn from(end: End) -> Failure {
        match end {
            End::Replaced { .. } => Failure::Replaced(end.to_string()),
            End::Bye | End::Stopped { .. } => Failure::Refused(end.to_string()),
        }
    }
}

impl From<SubEnd> for Failure {
    fn from(end: SubEnd) -> Failure {
        match end {
            SubEnd::Replaced => Failure::Replaced(end.to_string()),
            SubEnd::Disconnected => Failure::Unreachable("the broker cannot be reached any more".to_owned()),
            _ => Failure::Refused(end.to_string()),
        }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        match error {
            ConnectError::Options(error) => error.into(),
            ConnectError::Ended(end) => end.into(),
        }
    }
}
