//! What a consumer of the relay is told when there is nothing to pass on: a status, one of our codes, a sentence.

use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::name::ServiceName;

/// What a consumer is told instead of an answer of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of HTTP.
    pub status: u16,
    /// Our code.
    pub code: ErrorCode,
    /// What to do, in a sentence.
    pub message: String,
    /// Seconds after which trying again may help, at least one.
    pub retry_after_s: Option<u64>,
}

impl Refusal {
    fn new(status: u16, code: ErrorCode, message: impl Into<String>) -> Refusal {
        Refusal { status, code, message: message.into(), retry_after_s: None }
    }

    /// The request can be read in more than one way, or in none.
    pub fn bad(message: impl Into<String>) -> Refusal {
        Refusal::new(400, ErrorCode::BadRequest, message)
    }

    /// The Host names no service; `domain` is where one would be.
    pub fn unknown_host(domain: &str) -> Refusal {
        let message =
            format!("no service has this Host; ask for NAME.{domain}, as `tenure services` lists them");
        Refusal::new(404, ErrorCode::NotFound, message)
    }

    /// The method is of no use here.
    pub fn method() -> Refusal {
        Refusal::new(
            405,
            ErrorCode::BadRequest,
            "CONNECT is not passed on; use `tenure connect` for byte streams",
        )
    }

    /// The body is longer than the operator allows.
    pub fn body_too_large(most: u64) -> Refusal {
        Refusal::new(413, ErrorCode::TooLarge, format!("a body may have {most} bytes here"))
    }

    /// The consumer did not go on with its body.
    pub fn body_stalled() -> Refusal {
        Refusal::new(408, ErrorCode::Expired, "the rest of the body did not come; send it in one go")
    }

    /// The request has been here before.
    pub fn loop_detected(name: &ServiceName) -> Refusal {
        let message = format!("{name} leads back to this relay; expose the service itself");
        Refusal::new(508, ErrorCode::BadRequest, message)
    }

    /// No stream could be had, for this reason.
    pub fn no_stream(name: &ServiceName, error: &WireError) -> Refusal {
        let status = match error.code {
            ErrorCode::NotFound => 404,
            ErrorCode::Busy | ErrorCode::Unavailable | ErrorCode::Draining | ErrorCode::RateLimited => 503,
            ErrorCode::Forbidden | ErrorCode::Banned => 403,
            _ => 502,
        };
        let message = match error.code {
            ErrorCode::NotFound => {
                format!("no service is named {name}; `tenure services` lists those that are")
            }
            _ => format!("{name}: {}", error.message),
        };
        let retry_after_s = (status == 503).then(|| match error.retry_after_ms {
            Some(ms) => ms.get().div_ceil(1_000).max(1),
            None => 1,
        });
        Refusal { retry_after_s, ..Refusal::new(status, error.code, message) }
    }

    /// The publisher is there, but what it stands for is not. Why, and where that is, is for the publisher's own log, and not
    /// for whoever asks here.
    pub fn dead_target(name: &ServiceName) -> Refusal {
        let message = format!("{name} is exposed, but its target does not answer");
        Refusal::new(502, ErrorCode::Unavailable, message)
    }

    /// The service broke off before it had answered.
    pub fn broke_off(name: &ServiceName, why: &str) -> Refusal {
        Refusal::new(502, ErrorCode::Unavailable, format!("{name} broke off before it had answered: {why}"))
    }

    /// The service took too long to begin its answer.
    pub fn too_slow(name: &ServiceName, ms: u64) -> Refusal {
        let message = format!("{name} took the request and did not begin to answer it within {ms} ms");
        Refusal::new(504, ErrorCode::Unavailable, message)
    }

    /// Streams of the service were cut.
    pub fn cut(name: &ServiceName, reason: &str) -> Refusal {
        Refusal::new(502, ErrorCode::Unavailable, format!("{name} was cut off: {reason}"))
    }

    /// The refusal as the body of an answer, `application/problem+json`.
    pub fn body(&self) -> String {
        let Refusal { status, code, message, .. } = self;
        let body = serde_json::json!({"status": status, "code": code.as_str(), "detail": message});
        format!("{body}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_wrong_decides_the_status() {
        let name: ServiceName = "web".parse().unwrap();
        let of = |code| Refusal::no_stream(&name, &WireError::new(code, "a reason"));
        assert_eq!(of(ErrorCode::NotFound).status, 404);
        assert_eq!((of(ErrorCode::Busy).status, of(ErrorCode::Busy).retry_after_s), (503, Some(1)));
        assert_eq!(of(ErrorCode::Internal).status, 502);
        assert_eq!(of(ErrorCode::Internal).retry_after_s, None);
        let stale = WireError::new(ErrorCode::Unavailable, "stale").retry_after(1_500);
        assert_eq!(Refusal::no_stream(&name, &stale).retry_after_s, Some(2));
    }

    #[test]
    fn a_dead_target_is_named_and_nothing_else_is_told() {
        let name: ServiceName = "web".parse().unwrap();
        let refused = Refusal::dead_target(&name);
        assert_eq!(refused.status, 502);
        let body: serde_json::Value = serde_json::from_str(&refused.body()).unwrap();
        assert_eq!(body["code"], "unavailable");
        assert_eq!(body["detail"], "web is exposed, but its target does not answer");
    }
}
