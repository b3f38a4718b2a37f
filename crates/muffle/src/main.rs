//! The `muffle` program.

fn main() -> std::process::ExitCode {
    muffle::cli::main()
}
