//! `tenure-fuzz DIR`: writes the seeds of every target to `DIR/TARGET/`, and prints the targets' names.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: tenure-fuzz DIR");
        return ExitCode::from(2);
    };
    for target in tenure_fuzz::TARGETS {
        let corpus = dir.join(target.name);
        let written = std::fs::create_dir_all(&corpus).and_then(|()| {
            let mut seeds = (target.seeds)().into_iter().enumerate();
            seeds.try_for_each(|(n, seed)| std::fs::write(corpus.join(format!("seed-{n:03}")), seed))
        });
        if let Err(error) = written {
            eprintln!("write the seeds of {} to {}: {error}", target.name, corpus.display());
            return ExitCode::FAILURE;
        }
        println!("{}", target.name);
    }
    ExitCode::SUCCESS
}
