//! Messages about wrong input. `messages.txt` has the commands, and what each must say.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

/// A command with the content of its `RUN.toml`, and what it must say.
#[derive(Default)]
struct Case {
    arguments: Vec<String>,
    config: String,
    code: i32,
    message: String,
}

/// Reads `messages.txt`: `$ arguments`, `| line of RUN.toml`, and `> message` or `CODE> message`.
fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/messages.txt");
    let (mut list, mut case) = (Vec::new(), Case::default());
    for line in fs::read_to_string(path).unwrap().lines() {
        if let Some(arguments) = line.strip_prefix("$ ") {
            case.arguments = arguments.split(' ').map(String::from).collect();
        } else if let Some(config) = line.strip_prefix("| ") {
            case.config += config;
            case.config.push('\n');
        } else if let Some((code, message)) = line.split_once("> ") {
            case.code = if code.is_empty() { 2 } else { code.parse().unwrap() };
            case.message = message.into();
            list.push(std::mem::take(&mut case));
        } else {
            assert!(line.is_empty() || line.starts_with('#'), "{line}");
        }
    }
    list
}

/// Words of the program that say nothing to its users.
const INTERNAL: [&str; 12] = [
    "u64",
    "u32",
    "usize",
    "f64",
    "i64",
    "invalid type:",
    "invalid value:",
    "unknown variant",
    "struct ",
    "Some(",
    "panicked",
    "internal error",
];

#[test]
fn wrong_input_is_explained() {
    let place = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| fs::write(place.path().join(name), text).unwrap();
    let lines: String = (0..40).map(|i| format!("the {i}. line of the data\n")).collect();
    write("train.txt", lines.as_bytes());
    write("public.txt", b"another line\nand one more\n");
    write("none.txt", b"");
    write("reviews.csv", b"text,label\na,good\nb,bad\n");
    write("reviews-test.csv", b"text,label\na,good\nb,bad\nc,unknown\n");
    write("empty.toml", b"");
    write("broken.toml", b"[privacy\nepsilon = 3\n");
    write("binary.toml", b"\xff\xfe\x00");
    fs::create_dir(place.path().join("folder")).unwrap();
    fs::create_dir(place.path().join("unfinished")).unwrap();
    write("unfinished/config.toml", b"");
    let (mut wrong, cases) = (Vec::new(), cases());
    assert!(cases.len() >= 60, "{}", cases.len());
    for case in &cases {
        write("RUN.toml", case.config.as_bytes());
        let output = Command::new(env!("CARGO_BIN_EXE_muffle"))
            .args(&case.arguments)
            .current_dir(place.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let internal = INTERNAL.iter().find(|word| said.contains(**word));
        if output.status.code() != Some(case.code)
            || !said.contains(&case.message)
            || internal.is_some()
            || !output.stdout.is_empty()
        {
            wrong.push(format!(
                "$ {}\n{}expected {}> {}\ngot      {:?}> {said}",
                case.arguments.join(" "),
                case.config,
                case.code,
                case.message,
                output.status.code()
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}\n\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    // No command has created a run.
    assert!(!place.path().join("muffle-run").exists());
}
