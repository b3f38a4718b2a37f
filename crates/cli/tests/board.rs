//! `muffle board`: its output, its numbers beside those of other commands, and real runs.

#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use program::{muffle, run_toml, wait_for_charges};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

/// A board as a process.
struct Board {
    child: Child,
    port: u16,
    token: String,
    second_line: String,
}

impl Board {
    fn start(folder: &Path) -> Self {
        let mut child = muffle(&["board", "--port", "0"]).current_dir(folder).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.next().unwrap().unwrap();
        let second_line = lines.next().unwrap().unwrap();
        let rest = address.strip_prefix("http://127.0.0.1:").unwrap();
        let (port, token) = rest.trim_end_matches('/').split_once('/').unwrap();
        Self { child, port: port.parse().unwrap(), token: token.into(), second_line }
    }

    fn ask(&self, method: &str, path: &str) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let (port, token) = (self.port, &self.token);
        let head = format!("{method} /{token}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        serde_json::from_str(body).unwrap()
    }

    /// The run in the folder `run`, once it has this state.
    fn run_in_state(&self, state: &str) -> Value {
        let patience = Instant::now();
        loop {
            let runs = self.ask("GET", "runs");
            let run = runs["runs"].as_array().unwrap().iter().find(|run| run["name"] == "run");
            match run {
                Some(run) if run["state"] == state => return run.clone(),
                _ => assert!(patience.elapsed() < Duration::from_secs(60), "no {state}: {runs}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn json(arguments: &str) -> Value {
    let arguments: Vec<&str> = arguments.split(' ').chain(["--json"]).collect();
    let output = muffle(&arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_planner_agrees_with_calibrate_and_account() {
    let place = tempfile::tempdir().unwrap();
    let board = Board::start(place.path());
    assert!(board.second_line.contains("Only this machine"), "{}", board.second_line);
    for (sampling, adjacency, rows, blocks) in [
        ("poisson", "add-remove", 1, 1),
        ("poisson", "replace-one", 1, 7),
        ("poisson", "add-remove", 3, 1),
        ("fixed", "add-remove", 1, 1),
        ("shuffled", "add-remove", 1, 2),
        ("full", "add-remove", 1, 1),
    ] {
        let answer = board.ask(
            "GET",
            &format!(
                "plan?records=42043&lot=1024&epochs=7.5&epsilon=2&delta=1e-6&blocks={blocks}\
                 &rows={rows}&adjacency={adjacency}&sampling={sampling}"
            ),
        );
        let run = format!(
            "--dataset-size 42043 --lot-size 1024 --epochs 7.5 --delta 1e-6 --blocks {blocks} \
             --rows-per-person {rows} --adjacency {adjacency} --sampling {sampling}"
        );
        let calibrated = json(&format!("calibrate --epsilon 2 {run}"));
        assert_eq!(answer["sigma"], calibrated["noise_multiplier"], "{run}");
        assert_eq!(answer["epsilon"], calibrated["epsilon"], "{run}");
        assert_eq!(answer["steps"], calibrated["steps"], "{run}");
        // The command line that the page shows has the same price.
        let shown = answer["account"].as_str().unwrap().strip_prefix("muffle ").unwrap();
        assert_eq!(json(shown)["epsilon"], answer["epsilon"], "{shown}");
    }
}

#[test]
fn a_run_is_followed_from_its_start_to_its_verification() {
    let place = tempfile::tempdir().unwrap();
    let config = run_toml(place.path(), 30);
    let out = place.path().join("run");
    let board = Board::start(place.path());
    let arguments = ["train", config.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let mut child = muffle(&arguments).spawn().unwrap();
    assert!(wait_for_charges(&mut child, &out, 3));
    let running = board.run_in_state("running");
    assert_eq!((&running["steps"], &running["promised"]), (&30.into(), &8.0.into()));
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    let interrupted = board.run_in_state("interrupted");
    assert!(killed.elapsed() < Duration::from_secs(5));
    assert!(interrupted["epsilon"].as_f64().unwrap() > 0.0, "{interrupted}");
    let mut child = muffle(&["resume", out.to_str().unwrap()]).spawn().unwrap();
    board.run_in_state("running");
    assert!(child.wait().unwrap().success());
    let finished = board.run_in_state("finished");
    assert_eq!(finished["report"], true);
    let id = finished["id"].as_str().unwrap();
    assert_eq!(board.ask("GET", &format!("run?run={id}"))["samples"].as_array().unwrap().len(), 1);
    board.ask("POST", &format!("verify?run={id}"));
    let verdict = loop {
        let verdict = board.ask("GET", &format!("verification?run={id}"));
        if verdict["state"] != "running" {
            break verdict;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(verdict["conclusion"], "consistent", "{verdict}");
    assert!(verdict["sentence"].as_str().unwrap().starts_with("Consistent: ε = "), "{verdict}");
}

#[test]
fn a_port_that_is_taken_is_explained() {
    let place = tempfile::tempdir().unwrap();
    let board = Board::start(place.path());
    let port = board.port.to_string();
    let second = muffle(&["board", "--port", &port]).current_dir(place.path()).output().unwrap();
    assert_eq!(second.status.code(), Some(2));
    let message = String::from_utf8(second.stderr).unwrap();
    assert!(message.starts_with(&format!("muffle: port {port}: ")), "{message}");
    assert!(message.contains("--port") && second.stdout.is_empty(), "{message}");
}
