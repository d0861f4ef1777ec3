//! The `tenure` command.

use std::process::ExitCode;

/// Messages are allocated by the thread that reads their socket and freed by the one that wrote them, which is what the
/// system's allocator is slowest at: `docs/profile.md` has the figures.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tenure_cli::main()
}
