//! Starts boards on made-up runs and asks them over sockets.

#![allow(dead_code, clippy::unwrap_used)]

use board::Board;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A board that is served by a thread.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) token: String,
}

/// An answer of a board.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        serde_json::from_str(&self.body).unwrap()
    }
}

impl Server {
    pub(crate) fn start(folders: &[&Path]) -> Self {
        let folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
        let board = Board::open(&folders, 0).unwrap();
        let address = board.address().to_string();
        std::thread::spawn(|| board.serve());
        let rest = address.strip_prefix("http://127.0.0.1:").unwrap();
        let (port, token) = rest.split_once('/').unwrap();
        Self { port: port.parse().unwrap(), token: token.trim_end_matches('/').into() }
    }

    /// Sends bytes as they are.
    pub(crate) fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        // A board that does not answer fails the test.
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // The board may close the connection before it has read everything.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        Answer { status, head: head.into(), body: body.into() }
    }

    /// Sends a request for a whole target with further headers.
    pub(crate) fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
        let host = format!("127.0.0.1:{}", self.port);
        let mut request = format!("{method} {target} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            request += &format!("Host: {host}\r\n");
        }
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        self.raw((request + "\r\n").as_bytes())
    }

    /// Asks for a path after the token.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", &format!("/{}/{path}", self.token), &[])
    }

    /// The runs that the board lists.
    pub(crate) fn runs(&self) -> Vec<Value> {
        self.get("runs").json()["runs"].as_array().unwrap().clone()
    }

    /// The run with this name.
    pub(crate) fn run(&self, name: &str) -> Value {
        let runs = self.runs();
        runs.iter().find(|run| run["name"] == name).unwrap_or_else(|| panic!("{runs:?}")).clone()
    }
}

/// A line of a history.
pub(crate) fn entry(step: u64, epsilon: f64, nll: f64) -> String {
    format!(
        "{{\"step\":{step},\"epsilon\":{epsilon},\"learning_rate\":0.1,\"figures\":\"public\",\
         \"nll\":{nll},\"accuracy\":0.5,\"bleu\":null}}\n"
    )
}

/// Writes the folder of an interrupted run.
pub(crate) fn write_run(path: &Path) {
    fs::create_dir_all(path).unwrap();
    fs::write(path.join("config.toml"), muffle::Config::embedded().print()).unwrap();
    fs::write(path.join(".lock"), "").unwrap();
    let step = "{\"gaussian\":{\"lots\":{\"poisson\":{\"rate\":0.01}},\"release\":[[1.0,1]]}}";
    fs::write(path.join("ledger.json"), format!("{{\"events\":[[{step},13]]}}")).unwrap();
    fs::write(path.join("history.jsonl"), entry(0, 0.0, 4.0) + &entry(10, 1.25, 3.0)).unwrap();
    let plan = "{\"records\":1000,\"lot_size\":10.0,\"steps\":60,\"charges\":60,\
        \"noise_multiplier\":1.0,\"promised_epsilon\":3.0,\"delta\":1e-4}";
    fs::write(path.join("plan.json"), plan).unwrap();
}

/// Adds the result of a finished run.
pub(crate) fn write_result(path: &Path) {
    let result = "{\"epsilon\":2.5,\"delta\":1e-4,\"sigma\":1.0,\"steps\":60,\"model_step\":60,\
        \"records\":1000,\"lot_size\":10.0,\"optimizer\":\"dp-adam\",\"out\":\"x\",\
        \"metrics\":{\"nll\":2.0},\"private\":true,\"run_id\":\"0\",\"sessions\":1,\
        \"ledger_head\":\"0\",\"weights_sha256\":[],\"statement_sha256\":null,\
        \"figures\":\"public\"}";
    fs::write(path.join("result.json"), result).unwrap();
    fs::write(path.join("samples.json"), "[]").unwrap();
    fs::write(path.join("report.html"), "<!doctype html><p>report</p>").unwrap();
}
