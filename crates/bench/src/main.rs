//! Runs `tenure_bench`.

use std::process::ExitCode;

/// As in `tenure`, so that the floors have nothing that it has not, and no less.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tenure_bench::main()
}
