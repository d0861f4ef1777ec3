//! What every log of ours keeps out, whatever its filter says.

use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// Libraries that print the bytes they carry, tokens among them, when they are asked for details.
const CARRIERS: [&str; 6] = ["tungstenite", "tokio_tungstenite", "hyper", "h2", "rustls", "yamux"];

/// Makes this the log of the process.
pub(crate) fn start(log: impl Subscriber + Send + Sync + 'static) -> Result<(), TryInitError> {
    guarded(log).try_init()
}

/// The same log without what carriers say below info. A filter can be made to name a part of a library, so this is none
/// of its directives.
fn guarded(log: impl Subscriber + Send + Sync + 'static) -> impl Subscriber + Send + Sync + 'static {
    log.with(filter_fn(is_fit))
}

fn is_fit(what: &Metadata<'_>) -> bool {
    let library = what.target().split("::").next().unwrap_or_default();
    *what.level() <= Level::INFO || !CARRIERS.contains(&library)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::EnvFilter;

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_filter_makes_a_library_print_what_it_carries() {
        for filter in ["trace", "tungstenite=trace", "info,tungstenite::protocol=trace,hyper=debug,h2=trace"]
        {
            let page = Page::default();
            let writer = page.clone();
            let log = tracing_subscriber::fmt()
                .with_env_filter(EnvFilter::try_new(filter).unwrap())
                .with_writer(move || writer.clone());
            tracing::subscriber::with_default(guarded(log.finish()), || {
                tracing::trace!(target: "tungstenite::protocol", "s3cret");
                tracing::debug!(target: "tokio_tungstenite", "s3cret");
                tracing::debug!(target: "hyper::proto::h1", "s3cret");
                tracing::trace!(target: "h2::codec", "s3cret");
                tracing::debug!(target: "rustls::client::hs", "s3cret");
                tracing::trace!(target: "yamux::connection", "s3cret");
                tracing::warn!(target: "tungstenite::protocol", "a warning");
                tracing::trace!(target: "tenure_broker::socket", "ours");
                tracing::trace!(target: "hyperion", "another's");
            });
            let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
            assert!(!text.contains("s3cret"), "{filter}: {text}");
            assert!(text.contains("a warning"), "{filter}: {text}");
            let all = filter == "trace";
            assert_eq!((text.contains("ours"), text.contains("another's")), (all, all), "{filter}: {text}");
        }
    }
}
