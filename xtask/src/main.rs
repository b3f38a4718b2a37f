//! `cargo xtask check`: everything that must hold before a change lands.

mod spdx;
mod supply;
mod tidy;

use std::process::{Command, ExitCode};

const USAGE: &str =
    "usage: cargo xtask check [--skip-tests] | cargo xtask tidy | cargo xtask supply

check   format, lints, documentation, tests, supply and tidy; the first failure ends it
tidy    only what no other tool looks at: the crate graph, file lengths, links, stubs, the list of \
what the compiler does not check
supply  what of others is built in: sources, licences, build scripts, versions, how many; \
cargo-deny if it is there";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["check"] => check(true),
        ["check", "--skip-tests"] => check(false),
        ["tidy"] => tidy::run(),
        ["supply"] => supply::run(),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn check(tests: bool) -> Result<(), String> {
    cargo("format", &["fmt", "--all", "--check"], &[])?;
    cargo(
        "lints",
        &["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"],
        &[],
    )?;
    cargo(
        "documentation",
        &["doc", "--locked", "--workspace", "--no-deps", "--document-private-items"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )?;
    if tests {
        cargo("tests", &["test", "--locked", "--workspace"], &[])?;
    }
    eprintln!("xtask: supply");
    supply::run()?;
    eprintln!("xtask: tidy");
    tidy::run()
}

fn cargo(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    eprintln!("xtask: {name}: cargo {}", arguments.join(" "));
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let status = Command::new(program).args(arguments).envs(environment.iter().copied()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("xtask: {name} failed")),
        Err(error) => Err(format!("xtask: cargo cannot be started: {error}")),
    }
}
