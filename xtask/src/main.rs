//! The chores of the repository: `cargo xtask <command>`.
//!
//! One command, one module. A command takes the rest of the line and answers with an exit code; an error is
//! one sentence on stderr and code 1. Nothing here is needed to build or run `tenure`.

mod apt;
mod autobahn;
mod bench;
mod browser;
mod deps;
mod fuzz;
mod peers;
mod run;
mod schemathesis;
mod sim;
mod soak;
mod test;
mod tidy;
mod vectors;

use std::process::ExitCode;

use anyhow::{Result, bail};

/// One chore: its name, what it takes, what it is for, and how to start it.
struct Command {
    name: &'static str,
    takes: &'static str,
    about: &'static str,
    start: fn(&[String]) -> Result<ExitCode>,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "test",
        takes: "[-- ARGS]",
        about: "format, lints, tidy, every test, doc tests; ARGS go to the test runner",
        start: test::start,
    },
    Command {
        name: "tidy",
        takes: "",
        about: "the rules of the house: pure crates, licences, dependency direction, sizes, leftovers",
        start: tidy::start,
    },
    Command {
        name: "deps",
        takes: "",
        about: "licences, bans and sources of the dependencies, by cargo-deny",
        start: deps::start,
    },
    Command {
        name: "vectors",
        takes: "[--check]",
        about: "write vectors/ and schemas/ anew, or check that they are current",
        start: vectors::start,
    },
    Command {
        name: "bench",
        takes: "MEASUREMENT [ARGS]",
        about: "measure a release build: sessions, services, relay, storm, accept, growth, fanout, slow, daemon, offline; compare (setup installs peers, test tests it)",
        start: bench::start,
    },
    Command {
        name: "soak",
        takes: "[kill|daemon|restart|drops|attack] [ARGS]",
        about: "the six scenarios at the real 90/75/30 s; or under load: kill -9, a drained restart, readers cut off, hoarders",
        start: soak::start,
    },
    Command {
        name: "sim",
        takes: "[--seeds A..B] [ARGS]",
        about: "whole meshes in virtual time with every fault; --shrink, --forever, --mutants, --help",
        start: sim::start,
    },
    Command {
        name: "fuzz",
        takes: "[--minutes N] [TARGET …]",
        about: "every parser that reads bytes from outside, by libFuzzer (nightly toolchain)",
        start: fuzz::start,
    },
    Command {
        name: "autobahn",
        takes: "",
        about: "the Autobahn WebSocket suite against a release broker",
        start: autobahn::start,
    },
    Command {
        name: "browser",
        takes: "",
        about: "a page, a file and a WebSocket through the relay with Chromium and curl, and a publisher that sleeps",
        start: browser::start,
    },
    Command {
        name: "schemathesis",
        takes: "[--examples N]",
        about: "the OpenAPI documents of a release daemon and broker, by schemathesis from PyPI",
        start: schemathesis::start,
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &[String]) -> Result<ExitCode> {
    let Some((name, rest)) = args.split_first() else {
        print!("{}", help());
        return Ok(ExitCode::SUCCESS);
    };
    if matches!(name.as_str(), "help" | "--help" | "-h") {
        print!("{}", help());
        return Ok(ExitCode::SUCCESS);
    }
    match COMMANDS.iter().find(|command| command.name == name.as_str()) {
        Some(command) => (command.start)(rest),
        None => bail!("there is no command `{name}`; `cargo xtask help` lists them"),
    }
}

fn help() -> String {
    let mut text = String::from("cargo xtask <command>\n\n");
    for Command { name, takes, about, .. } in COMMANDS {
        text.push_str(&format!("  {:<30}  {about}\n", format!("{name} {takes}")));
    }
    text.push_str("  help                            this list\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_gives_every_command_one_line() {
        let text = help();
        for command in COMMANDS {
            let lines = text.lines().filter(|line| line.trim_start().starts_with(command.name)).count();
            assert_eq!(lines, 1, "{}", command.name);
        }
    }

    #[test]
    fn an_unknown_command_is_named_in_the_error() {
        let error = dispatch(&["tset".to_owned()]).expect_err("no such command");
        assert!(error.to_string().contains("`tset`"), "{error}");
    }
}
