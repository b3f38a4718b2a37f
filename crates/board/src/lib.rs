//! The board: a page on this machine that shows runs while they train, plans new ones, and shows
//! and verifies reports.
//!
//! | to find | look in |
//! |---|---|
//! | who may ask: token, host, origin | `guard` |
//! | requests, responses, limits, security headers | `http` |
//! | which address gives which answer | `site` |
//! | which folders are runs, and their short names | `catalog` |
//! | which files of a run are read, and how much of them | `files` |
//! | state, progress and spent ε of a run | `state`, `pace`, `spent` |
//! | the charts of runs | `curves` |
//! | the planner | `planner` |
//! | verification in the background | `verdicts` |
//! | the page: HTML, CSS, JavaScript | `assets/` |
//!
//! # Claim
//! The board reads the files that `files` lists, and writes none. A request can neither name a path
//! nor be made by another origin, nor without the token.
//!
//! # Why
//! A request names a run by an id from the board's own list. Only `files` opens files of a run: it
//! joins names from a fixed list and refuses symbolic links. `guard` is the only way to an answer.
//!
//! # Checked by
//! `a_request_needs_the_token`, `other_hosts_and_origins_are_refused`,
//! `paths_and_links_do_not_leave_the_folders`, `the_board_writes_nothing`

#![forbid(unsafe_code)]

mod catalog;
mod curves;
mod files;
mod guard;
mod http;
mod pace;
mod planner;
mod site;
mod spent;
mod state;
mod verdicts;

use guard::{Guard, Token};
use site::Site;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The largest number of connections at a time; further ones are closed.
const MAX_CONNECTIONS: usize = 64;

/// An error when the board starts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A folder cannot be opened.
    #[error("{}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The port cannot be used.
    #[error("port {port}: {source}; choose another one (--port), or 0 for a free one")]
    Port {
        /// The port.
        port: u16,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The operating system gives no randomness for the token.
    #[error("the operating system gives no randomness: {0}")]
    Randomness(#[from] getrandom::Error),
}

/// A board that listens on the loopback interface.
pub struct Board {
    listener: TcpListener,
    address: String,
    site: Arc<Site>,
}

impl Board {
    /// Listens on 127.0.0.1 for the runs in these folders. Port 0 is one that the system chooses.
    ///
    /// # Errors
    /// If a folder does not exist, or the port cannot be used.
    pub fn open(folders: &[PathBuf], port: u16) -> Result<Self, Error> {
        let root = |path: &PathBuf| {
            let error = |source| Error::Folder { path: path.clone(), source };
            let root = path.canonicalize().map_err(error)?;
            std::fs::read_dir(&root).map_err(error)?;
            Ok(root)
        };
        let roots = folders.iter().map(root).collect::<Result<Vec<_>, Error>>()?;
        let error = |source| Error::Port { port, source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(error)?;
        let port = listener.local_addr().map_err(error)?.port();
        let token = Token::new()?;
        let address = format!("http://127.0.0.1:{port}/{}/", token.digits());
        Ok(Self { listener, address, site: Arc::new(Site::new(Guard::new(token, port), roots)) })
    }

    /// The address of the page, with its token.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Answers requests until the process ends.
    pub fn serve(self) {
        let open = Arc::new(AtomicUsize::new(0));
        for stream in self.listener.incoming() {
            // No client is there any more, or the process has too many files open.
            let Ok(stream) = stream else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            let (site, connection) = (self.site.clone(), Connection::new(&open));
            if connection.number > MAX_CONNECTIONS {
                continue;
            }
            // If no thread can be started, the connection is closed.
            let _ = std::thread::Builder::new().name("board".into()).spawn(move || {
                let _connection = connection;
                answer(&site, stream);
            });
        }
    }
}

/// Counts an open connection as long as it lives.
struct Connection {
    open: Arc<AtomicUsize>,
    /// The number of open connections, this one included.
    number: usize,
}

impl Connection {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        Self { open: open.clone(), number: open.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers the one request of a connection.
fn answer(site: &Arc<Site>, mut stream: TcpStream) {
    let (response, computed) = match http::read_request(&mut stream) {
        Ok(request) => {
            let start = Instant::now();
            (site.respond(&request), start.elapsed())
        }
        Err(Some(response)) => (response, Duration::ZERO),
        Err(None) => return,
    };
    // A client that has gone away needs no answer.
    let _ = response.write(&mut stream, computed);
}

/// The name of a path for the page.
fn display_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
