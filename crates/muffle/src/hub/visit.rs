//! A visit to the hub, which brings a model into the cache.
//!
//! What the hub says becomes a path only after it was checked, a file is as long as was announced
//! or it is no file, and all files are of one commit. This is why the requests are not left to
//! `hf-hub`, whose 0.5 writes to wherever an `ETag` points, keeps a file of any length, and waits
//! for ever. Its cache is ours.

use super::{
    CONFIG, Hub, HubError, INDEX, LONGEST_JSON, Reason, TOKENIZER, Token, WEIGHTS, is_plain, shards,
};
use hf_hub::{CacheRepo, Repo};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::typestate::WithoutBody;
use ureq::{Agent, Body, RequestBuilder};

const OPTIONAL: [&str; 3] =
    ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json"];
/// A renamed model costs one, a file that is not in git another.
const MOST_REDIRECTS: usize = 5;
/// Bytes in a second: a slower transfer is given up.
const SLOWEST: u64 = 32 << 10;
/// A download that was not written to for so long is abandoned.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);
/// Our unfinished downloads end in this; those of other programs are left to them.
const UNFINISHED: &str = ".muffle";

/// One model at the hub, on its way into the cache.
pub(super) struct Visit<'a> {
    name: &'a str,
    endpoint: &'a str,
    token: Option<&'a Token>,
    cache: &'a Path,
    kept: CacheRepo,
    blobs: PathBuf,
    agent: Agent,
}

/// What the hub says of a file, checked.
struct Found {
    file: String,
    commit: String,
    etag: String,
    size: u64,
}

impl<'a> Visit<'a> {
    pub(super) fn new(hub: &'a Hub, name: &'a str, kept: CacheRepo) -> Self {
        let endpoint = hub.endpoint.trim_end_matches('/');
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .accept_encoding("identity")
            .https_only(endpoint.starts_with("https://"))
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .user_agent(concat!("muffle/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let blobs = hub.cache.join(Repo::model(name.to_string()).folder_name()).join("blobs");
        Self { name, endpoint, token: hub.token.as_ref(), cache: &hub.cache, kept, blobs, agent }
    }

    /// Nothing large is brought before everything was found, and the model counts as cached only
    /// when all of it is there.
    pub(super) fn fetch(&self, said: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
        let config = self.needed("main", CONFIG)?;
        let commit = config.commit.clone();
        let mut files = vec![config, self.needed(&commit, TOKENIZER)?];
        for file in OPTIONAL {
            files.extend(self.find(&commit, file)?);
        }
        if let Some(weights) = self.find(&commit, WEIGHTS)? {
            files.push(weights);
        } else {
            let neither = || {
                self.failed(
                    Reason::Absent,
                    format!("has neither {WEIGHTS} nor {INDEX}: take another model"),
                )
            };
            let index = self.find(&commit, INDEX)?.ok_or_else(neither)?;
            self.bring(&index, said)?;
            for shard in shards(self.name, &self.kept.pointer_path(&commit).join(INDEX))? {
                files.push(self.needed(&commit, &shard)?);
            }
        }
        for file in &files {
            self.bring(file, said)?;
        }
        self.kept.create_ref(&commit).map_err(|error| self.disk(&error))?;
        Ok(self.kept.pointer_path(&commit))
    }

    fn needed(&self, revision: &str, file: &str) -> Result<Found, HubError> {
        let missing = || {
            self.failed(
                Reason::Absent,
                format!("has no {file}, so it cannot be trained: take another model"),
            )
        };
        self.find(revision, file)?.ok_or_else(missing)
    }

    /// Asks for a file without its content; it may be missing.
    fn find(&self, revision: &str, file: &str) -> Result<Option<Found>, HubError> {
        let answer = self.ask(revision, file, |url| self.agent.head(url))?;
        let (status, headers) = (answer.status(), answer.headers());
        if status == StatusCode::NOT_FOUND
            && (revision != "main" || header(headers, "x-error-code") == Some("EntryNotFound"))
        {
            return Ok(None);
        }
        if status != StatusCode::OK && elsewhere(&answer).is_none() {
            return Err(self.refused(status, headers, file));
        }
        let either = |linked, own| {
            header(headers, linked).or_else(|| header(headers, own)).unwrap_or_default()
        };
        let etag = either("x-linked-etag", "etag").trim_start_matches("W/").trim_matches('"');
        let (size, commit) = (
            either("x-linked-size", "content-length"),
            header(headers, "x-repo-commit").unwrap_or_default(),
        );
        let unsound = |what: &str| {
            self.failed(
                Reason::Unsound,
                format!("gives {what} for {file}: ask another HF_ENDPOINT"),
            )
        };
        let hash = commit.len() == 40 && commit.chars().all(|digit| digit.is_ascii_hexdigit());
        if !hash || (revision != "main" && revision != commit) {
            return Err(unsound(&format!("the commit {commit:?}")));
        }
        if !is_plain(etag) || etag.contains('.') || etag.len() > 128 {
            return Err(unsound(&format!("the ETag {etag:?}")));
        }
        let longest = if file.ends_with(".json") { LONGEST_JSON } else { u64::MAX };
        match size.parse() {
            Ok(size) if size <= longest => Ok(Some(Found {
                file: file.into(),
                commit: commit.into(),
                etag: etag.into(),
                size,
            })),
            _ => Err(unsound(&format!("the length {size:?}"))),
        }
    }

    /// The last answer that is the hub's own: redirects within the hub are followed, as
    /// `huggingface_hub` does.
    fn ask(
        &self,
        revision: &str,
        file: &str,
        request: impl Fn(&str) -> RequestBuilder<WithoutBody>,
    ) -> Result<Response<Body>, HubError> {
        let origin = origin(self.endpoint);
        let mut url = format!("{}/{}/resolve/{revision}/{file}", self.endpoint, self.name);
        let mut left = MOST_REDIRECTS;
        loop {
            let mut request = request(&url).config().max_redirects(0).build();
            if let Some(Token(secret)) = self.token {
                request = request.header("authorization", format!("Bearer {secret}"));
            }
            let answer = request.call().map_err(|error| self.unreachable(&error))?;
            let Some(place) = elsewhere(&answer) else { return Ok(answer) };
            let path = place.strip_prefix(origin).unwrap_or(place);
            if !path.starts_with('/') || path.starts_with("//") {
                return Ok(answer);
            }
            url = format!("{origin}{path}");
            left = left.checked_sub(1).ok_or_else(|| {
                self.failed(
                    Reason::Unreachable,
                    format!("redirects {file} without end: try again later"),
                )
            })?;
        }
    }

    /// Downloads a file unless its content is there, and puts it into the snapshot.
    fn bring(&self, found: &Found, said: &mut dyn FnMut(&str)) -> Result<(), HubError> {
        let pointer = self.kept.pointer_path(&found.commit).join(&found.file);
        let whole = |path: &Path| {
            fs::metadata(path).is_ok_and(|there| there.is_file() && there.len() == found.size)
        };
        if whole(&pointer) {
            return Ok(());
        }
        if !whole(&self.blobs.join(&found.etag)) {
            said(&format!("fetching {}/{} ({})", self.name, found.file, bytes(found.size)));
            self.download(found)?;
        }
        self.link(found, &pointer).map_err(|error| self.disk(&error))
    }

    /// Into a file of another name first: what has the name of a blob is whole.
    fn download(&self, found: &Found) -> Result<(), HubError> {
        let patience = Duration::from_secs(60 + found.size / SLOWEST);
        let get =
            |url: &str| self.agent.get(url).config().timeout_recv_body(Some(patience)).build();
        let mut answer = self.ask(&found.commit, &found.file, get)?;
        // What is stored elsewhere is asked for without the token.
        if let Some(place) = elsewhere(&answer) {
            answer = get(place).call().map_err(|error| self.unreachable(&error))?;
        }
        if answer.status() != StatusCode::OK {
            return Err(self.failed(
                Reason::Unreachable,
                format!("answers {} for {}: try again later", answer.status(), found.file),
            ));
        }
        fs::create_dir_all(&self.blobs).map_err(|error| self.disk(&error))?;
        self.sweep();
        let unfinished = Unfinished(self.blobs.join(scratch(&found.etag)));
        let mut file = File::create_new(&unfinished.0).map_err(|error| self.disk(&error))?;
        let mut body = answer.into_body().into_reader().take(found.size.saturating_add(1));
        let (mut buffer, mut got) = (vec![0; 1 << 16], 0);
        let broken = |got: u64, how: &str| {
            let line = format!(
                "sent {} of the {} of {}{how}: try again",
                bytes(got),
                bytes(found.size),
                found.file
            );
            self.failed(Reason::Unreachable, line)
        };
        loop {
            let more =
                body.read(&mut buffer).map_err(|error| broken(got, &format!(" ({error})")))?;
            file.write_all(&buffer[..more]).map_err(|error| self.disk(&error))?;
            got += more as u64;
            if more == 0 {
                break;
            }
        }
        if got != found.size {
            return Err(broken(got, if got > found.size { " or more" } else { "" }));
        }
        file.sync_all()
            .and_then(|()| fs::rename(&unfinished.0, self.blobs.join(&found.etag)))
            .map_err(|error| self.disk(&error))
    }

    /// Puts a blob into its snapshot. By way of a rename, since another process may do the same.
    fn link(&self, found: &Found, pointer: &Path) -> io::Result<()> {
        let fresh = Unfinished(self.blobs.join(scratch(&found.etag)));
        if let Some(snapshot) = pointer.parent() {
            fs::create_dir_all(snapshot)?;
        }
        // Relative, so that the cache can be moved; it is only looked up once it lies in the
        // snapshot.
        #[cfg(unix)]
        std::os::unix::fs::symlink(Path::new("../../blobs").join(&found.etag), &fresh.0)?;
        #[cfg(not(unix))]
        fs::copy(self.blobs.join(&found.etag), &fresh.0)?;
        fs::rename(&fresh.0, pointer)
    }

    /// Removes what a killed process could not.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.blobs).into_iter().flatten().flatten() {
            let age = entry
                .metadata()
                .and_then(|there| there.modified())
                .ok()
                .and_then(|time| time.elapsed().ok());
            if entry.file_name().to_string_lossy().ends_with(UNFINISHED)
                && age.is_some_and(|age| age > ABANDONED)
            {
                // If it fails, the next download tries again.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The hub answered, with neither a file nor the lack of one.
    fn refused(&self, status: StatusCode, headers: &HeaderMap, file: &str) -> HubError {
        let Self { name, endpoint, .. } = self;
        let token = if self.token.is_some() {
            "the token is not good for it"
        } else {
            "set HF_TOKEN if it is private"
        };
        let (reason, message) = match (status.as_u16(), header(headers, "x-error-code")) {
            (401 | 403, Some("GatedRepo")) => (
                Reason::Denied,
                format!(
                    "'{name}' is gated: accept its terms at {endpoint}/{name}, then set HF_TOKEN \
                     ({status})"
                ),
            ),
            // The hub does not tell strangers which models there are not.
            (401 | 403, _) => (
                Reason::Denied,
                format!(
                    "there is no public model '{name}' on {endpoint}, and no directory of that \
                     name; {token} ({status})"
                ),
            ),
            (404, _) => (
                Reason::Absent,
                format!("there is no model '{name}' on {endpoint}, and no directory of that name"),
            ),
            _ => (
                Reason::Unreachable,
                format!("{endpoint} answers {status} for {name}/{file}: try again later"),
            ),
        };
        HubError { reason, message }
    }

    fn unreachable(&self, error: &ureq::Error) -> HubError {
        let Self { name, endpoint, cache, .. } = self;
        let cache = cache.display();
        let message = format!(
            "'{name}' is no directory, not in the cache at {cache}, and {endpoint} cannot be \
             reached ({error}): go online"
        );
        HubError { reason: Reason::Unreachable, message }
    }

    fn disk(&self, error: &io::Error) -> HubError {
        let line = format!(
            "cannot be written to the cache at {}: {error}; set HF_HOME to another folder",
            self.cache.display()
        );
        self.failed(Reason::Disk, line)
    }

    fn failed(&self, reason: Reason, what: String) -> HubError {
        HubError { reason, message: format!("'{}' on {} {what}", self.name, self.endpoint) }
    }
}

/// A file under another name than its own, which goes when it is not renamed.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After the rename there is none.
        let _ = fs::remove_file(&self.0);
    }
}

/// A name that no other download has.
fn scratch(etag: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{etag}.{}-{}{UNFINISHED}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Scheme and host of an address.
fn origin(address: &str) -> &str {
    let host = address.find("://").map_or(0, |at| at + 3);
    address[host..].find('/').map_or(address, |path| &address[..host + path])
}

/// Where a redirection leads to.
fn elsewhere(answer: &Response<Body>) -> Option<&str> {
    header(answer.headers(), "location").filter(|_| answer.status().is_redirection())
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// A size as users read it: `548 MB`.
fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} bytes"),
        1_000..1_000_000 => format!("{} kB", count / 1_000),
        1_000_000..1_000_000_000 => format!("{} MB", count / 1_000_000),
        _ => format!("{:.1} GB", count as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_an_origin() {
        for address in ["http://a:1", "http://a:1/", "http://a:1/b/c"] {
            assert_eq!(origin(address), "http://a:1");
        }
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(
            [999, 1_000, 548_105_171, 4_976_698_672].map(bytes),
            ["999 bytes", "1 kB", "548 MB", "5.0 GB"]
        );
    }
}
