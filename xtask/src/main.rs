//! Checks of the project: `cargo xtask check` runs all of them.

mod spdx;
mod stubs;
mod supply;
mod tidy;

use std::process::{Command, ExitCode};

const USAGE: &str =
    "usage: cargo xtask check [--skip-tests] | cargo xtask tidy | cargo xtask supply | cargo xtask stubs

check   format, lints, documentation, tests, stubs, supply and tidy; stops at the first failure
tidy    checks without another tool: crate graph, file lengths, links, stubs, inventory of `unsafe`
supply  third-party dependencies: sources, licences, build scripts, versions, number; \
cargo-deny if it is installed
stubs   writes the types of the Python module";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["check"] => check(true),
        ["check", "--skip-tests"] => check(false),
        ["tidy"] => tidy::run(),
        ["supply"] => supply::run(),
        ["stubs"] => stubs::run(stubs::Mode::Write),
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

/// Runs all checks, with or without the tests.
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
    eprintln!("xtask: stubs");
    stubs::run(stubs::Mode::Check)?;
    eprintln!("xtask: supply");
    supply::run()?;
    eprintln!("xtask: tidy");
    tidy::run()
}

/// Runs cargo for a check of this name.
fn cargo(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    eprintln!("xtask: {name}: cargo {}", arguments.join(" "));
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let status = Command::new(program).args(arguments).envs(environment.iter().copied()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("xtask: {name} failed")),
        Err(error) => Err(format!("xtask: cannot start cargo: {error}")),
    }
}
