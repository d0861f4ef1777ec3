//! Runs `tenure_bench`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tenure_bench::main()
}
