//! Downloads of models from the hub into the cache.
//!
//! Names from the hub are checked before they become paths, a file must have the announced length,
//! and all files are of one commit. Version 0.5 of `hf-hub` does not check this: it writes to
//! whatever path an `ETag` gives, accepts a file of any length, and waits without a time limit.
//! Therefore only its cache is used.

use super::{
    CONFIG, Hub, HubError, HubErrorKind, INDEX, MAX_JSON, TOKENIZER, Token, WEIGHTS, is_file_name,
    shards,
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

const OPTIONAL: [&str; 5] = [
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "1_Pooling/config.json",
];
/// The maximum number of redirects: one for a renamed model, one for a file that is not in git.
const MAX_REDIRECTS: usize = 5;
/// A slower transfer is aborted.
const MIN_BYTES_PER_SECOND: u64 = 32 << 10;
/// A temporary file that was not written to for this long is removed.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// The suffix of our temporary files; those of other programs are not touched.
const TEMPORARY_SUFFIX: &str = ".muffle";

/// Downloads one model into the cache.
pub(super) struct Downloader<'a> {
    name: &'a str,
    endpoint: &'a str,
    token: Option<&'a Token>,
    cache: &'a Path,
    cached: CacheRepo,
    blobs: PathBuf,
    agent: Agent,
}

/// Checked properties of a file on the hub.
struct RemoteFile {
    file: String,
    commit: String,
    etag: String,
    size: u64,
}

impl<'a> Downloader<'a> {
    pub(super) fn new(hub: &'a Hub, name: &'a str, cached: CacheRepo) -> Self {
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
        Self { name, endpoint, token: hub.token.as_ref(), cache: &hub.cache, cached, blobs, agent }
    }

    /// Downloads all files of the model and returns the folder of its snapshot.
    ///
    /// All files are located before weights are downloaded, and `refs/main` is written last: only
    /// then does the model count as cached.
    pub(super) fn fetch(&self, report: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
        let config = self.find_required("main", CONFIG)?;
        let commit = config.commit.clone();
        let mut files = vec![config, self.find_required(&commit, TOKENIZER)?];
        for file in OPTIONAL {
            files.extend(self.find(&commit, file)?);
        }
        if let Some(weights) = self.find(&commit, WEIGHTS)? {
            files.push(weights);
        } else {
            let no_weights = || {
                self.failed(
                    HubErrorKind::NotFound,
                    format!("has neither {WEIGHTS} nor {INDEX}; choose another model"),
                )
            };
            let index = self.find(&commit, INDEX)?.ok_or_else(no_weights)?;
            self.fetch_file(&index, report)?;
            for shard in shards(self.name, &self.cached.pointer_path(&commit).join(INDEX))? {
                files.push(self.find_required(&commit, &shard)?);
            }
        }
        for file in &files {
            self.fetch_file(file, report)?;
        }
        self.cached.create_ref(&commit).map_err(|error| self.disk_error(&error))?;
        Ok(self.cached.pointer_path(&commit))
    }

    /// Requests the properties of a file that must exist.
    fn find_required(&self, revision: &str, file: &str) -> Result<RemoteFile, HubError> {
        let missing = || {
            self.failed(
                HubErrorKind::NotFound,
                format!("has no {file}, which training needs; choose another model"),
            )
        };
        self.find(revision, file)?.ok_or_else(missing)
    }

    /// Requests the properties of a file; `None` if it does not exist.
    fn find(&self, revision: &str, file: &str) -> Result<Option<RemoteFile>, HubError> {
        let answer = self.send(revision, file, |url| self.agent.head(url))?;
        let (status, headers) = (answer.status(), answer.headers());
        if status == StatusCode::NOT_FOUND
            && (revision != "main" || header(headers, "x-error-code") == Some("EntryNotFound"))
        {
            return Ok(None);
        }
        if status != StatusCode::OK && redirect_target(&answer).is_none() {
            return Err(self.refused(status, headers, file));
        }
        let linked_or_own = |linked, own| {
            header(headers, linked).or_else(|| header(headers, own)).unwrap_or_default()
        };
        let etag =
            linked_or_own("x-linked-etag", "etag").trim_start_matches("W/").trim_matches('"');
        let (size, commit) = (
            linked_or_own("x-linked-size", "content-length"),
            header(headers, "x-repo-commit").unwrap_or_default(),
        );
        let invalid = |problem: &str| {
            self.failed(
                HubErrorKind::InvalidAnswer,
                format!("answers with {problem} for {file}; choose another HF_ENDPOINT"),
            )
        };
        let is_hash = commit.len() == 40 && commit.chars().all(|digit| digit.is_ascii_hexdigit());
        if !is_hash || (revision != "main" && revision != commit) {
            return Err(invalid(&format!("the commit {commit:?}")));
        }
        if !is_file_name(etag) || etag.contains('.') || etag.len() > 128 {
            return Err(invalid(&format!("the ETag {etag:?}")));
        }
        let max_size = if file.ends_with(".json") { MAX_JSON } else { u64::MAX };
        match size.parse() {
            Ok(size) if size <= max_size => Ok(Some(RemoteFile {
                file: file.into(),
                commit: commit.into(),
                etag: etag.into(),
                size,
            })),
            _ => Err(invalid(&format!("the length {size:?}"))),
        }
    }

    /// Sends a request and follows redirects within the hub, as `huggingface_hub` does.
    fn send(
        &self,
        revision: &str,
        file: &str,
        request: impl Fn(&str) -> RequestBuilder<WithoutBody>,
    ) -> Result<Response<Body>, HubError> {
        let origin = origin(self.endpoint);
        let mut url = format!("{}/{}/resolve/{revision}/{file}", self.endpoint, self.name);
        let mut redirects_left = MAX_REDIRECTS;
        loop {
            let mut request = request(&url).config().max_redirects(0).build();
            if let Some(Token(secret)) = self.token {
                request = request.header("authorization", format!("Bearer {secret}"));
            }
            let answer = request.call().map_err(|error| self.network_error(&error))?;
            let Some(target) = redirect_target(&answer) else { return Ok(answer) };
            let path = target.strip_prefix(origin).unwrap_or(target);
            if !path.starts_with('/') || path.starts_with("//") {
                return Ok(answer);
            }
            url = format!("{origin}{path}");
            redirects_left = redirects_left.checked_sub(1).ok_or_else(|| {
                self.failed(
                    HubErrorKind::Unreachable,
                    format!("redirects {file} more than {MAX_REDIRECTS} times; try again later"),
                )
            })?;
        }
    }

    /// Downloads a file, unless its content is cached, and links it into the snapshot.
    fn fetch_file(
        &self,
        remote: &RemoteFile,
        report: &mut dyn FnMut(&str),
    ) -> Result<(), HubError> {
        let pointer = self.cached.pointer_path(&remote.commit).join(&remote.file);
        let is_complete = |path: &Path| {
            fs::metadata(path)
                .is_ok_and(|metadata| metadata.is_file() && metadata.len() == remote.size)
        };
        if is_complete(&pointer) {
            return Ok(());
        }
        if !is_complete(&self.blobs.join(&remote.etag)) {
            report(&format!("fetching {}/{} ({})", self.name, remote.file, bytes(remote.size)));
            self.download(remote)?;
        }
        self.link(remote, &pointer).map_err(|error| self.disk_error(&error))
    }

    /// Downloads a blob into a temporary file and renames it when it is complete.
    fn download(&self, remote: &RemoteFile) -> Result<(), HubError> {
        let timeout = Duration::from_secs(60 + remote.size / MIN_BYTES_PER_SECOND);
        let get = |url: &str| self.agent.get(url).config().timeout_recv_body(Some(timeout)).build();
        let mut answer = self.send(&remote.commit, &remote.file, get)?;
        // A file that is stored on another host is requested without the token.
        if let Some(target) = redirect_target(&answer) {
            answer = get(target).call().map_err(|error| self.network_error(&error))?;
        }
        if answer.status() != StatusCode::OK {
            return Err(self.failed(
                HubErrorKind::Unreachable,
                format!("answers {} for {}; try again later", answer.status(), remote.file),
            ));
        }
        fs::create_dir_all(&self.blobs).map_err(|error| self.disk_error(&error))?;
        self.remove_abandoned();
        let temporary = TemporaryFile(self.blobs.join(temporary_name(&remote.etag)));
        let mut file = File::create_new(&temporary.0).map_err(|error| self.disk_error(&error))?;
        let mut body = answer.into_body().into_reader().take(remote.size.saturating_add(1));
        let (mut buffer, mut received) = (vec![0; 1 << 16], 0);
        let interrupted = |received: u64, details: &str| {
            let line = format!(
                "sent {} of the {} of {}{details}; try again",
                bytes(received),
                bytes(remote.size),
                remote.file
            );
            self.failed(HubErrorKind::Unreachable, line)
        };
        loop {
            let read = body
                .read(&mut buffer)
                .map_err(|error| interrupted(received, &format!(" ({error})")))?;
            file.write_all(&buffer[..read]).map_err(|error| self.disk_error(&error))?;
            received += read as u64;
            if read == 0 {
                break;
            }
        }
        if received != remote.size {
            return Err(interrupted(
                received,
                if received > remote.size { " or more" } else { "" },
            ));
        }
        file.sync_all()
            .and_then(|()| fs::rename(&temporary.0, self.blobs.join(&remote.etag)))
            .map_err(|error| self.disk_error(&error))
    }

    /// Links a blob into its snapshot, by a rename, because another process may do the same.
    fn link(&self, remote: &RemoteFile, pointer: &Path) -> io::Result<()> {
        let temporary = TemporaryFile(self.blobs.join(temporary_name(&remote.etag)));
        if let Some(snapshot) = pointer.parent() {
            fs::create_dir_all(snapshot)?;
        }
        // The link is relative, so that the cache can be moved; it is valid in the snapshot only.
        #[cfg(unix)]
        {
            let up = "../".repeat(2 + remote.file.matches('/').count());
            let blob = Path::new(&up).join("blobs").join(&remote.etag);
            std::os::unix::fs::symlink(blob, &temporary.0)?;
        }
        #[cfg(not(unix))]
        fs::copy(self.blobs.join(&remote.etag), &temporary.0)?;
        fs::rename(&temporary.0, pointer)
    }

    /// Removes temporary files of killed processes.
    fn remove_abandoned(&self) {
        for entry in fs::read_dir(&self.blobs).into_iter().flatten().flatten() {
            let age = entry
                .metadata()
                .and_then(|metadata| metadata.modified())
                .ok()
                .and_then(|time| time.elapsed().ok());
            if entry.file_name().to_string_lossy().ends_with(TEMPORARY_SUFFIX)
                && age.is_some_and(|age| age > ABANDONED_AFTER)
            {
                // If it fails, the next download tries again.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Makes an error from an answer that is neither a file nor the lack of one.
    fn refused(&self, status: StatusCode, headers: &HeaderMap, file: &str) -> HubError {
        let Self { name, endpoint, .. } = self;
        let token = if self.token.is_some() {
            "the token in use has no access to it"
        } else {
            "set HF_TOKEN if it is private"
        };
        let (kind, message) = match (status.as_u16(), header(headers, "x-error-code")) {
            (401 | 403, Some("GatedRepo")) => (
                HubErrorKind::Denied,
                format!(
                    "'{name}' is gated: accept its terms at {endpoint}/{name}, then set HF_TOKEN \
                     ({status})"
                ),
            ),
            // Without a valid token, the hub does not reveal whether a model exists.
            (401 | 403, _) => (
                HubErrorKind::Denied,
                format!(
                    "{endpoint} has no public model '{name}', and there is no directory of that \
                     name; {token} ({status})"
                ),
            ),
            (404, _) => (
                HubErrorKind::NotFound,
                format!("{endpoint} has no model '{name}', and there is no directory of that name"),
            ),
            _ => (
                HubErrorKind::Unreachable,
                format!("{endpoint} answers {status} for {name}/{file}; try again later"),
            ),
        };
        HubError { kind, message }
    }

    fn network_error(&self, error: &ureq::Error) -> HubError {
        let Self { name, endpoint, cache, .. } = self;
        let cache = cache.display();
        let message = format!(
            "'{name}' is neither a directory nor in the cache at {cache}, and {endpoint} cannot be \
             reached ({error}); check the network"
        );
        HubError { kind: HubErrorKind::Unreachable, message }
    }

    fn disk_error(&self, error: &io::Error) -> HubError {
        let line = format!(
            "cannot be written to the cache at {}: {error}; set HF_HOME to another folder",
            self.cache.display()
        );
        self.failed(HubErrorKind::Disk, line)
    }

    fn failed(&self, kind: HubErrorKind, problem: String) -> HubError {
        HubError { kind, message: format!("'{}' on {} {problem}", self.name, self.endpoint) }
    }
}

/// A temporary file, which is removed when it is dropped without having been renamed.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // After the rename it does not exist.
        let _ = fs::remove_file(&self.0);
    }
}

/// A name for a temporary file that no other download uses.
fn temporary_name(etag: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!(
        "{etag}.{}-{}{TEMPORARY_SUFFIX}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Scheme and host of an address.
fn origin(address: &str) -> &str {
    let host = address.find("://").map_or(0, |at| at + 3);
    address[host..].find('/').map_or(address, |path| &address[..host + path])
}

/// The target of a redirect.
fn redirect_target(answer: &Response<Body>) -> Option<&str> {
    header(answer.headers(), "location").filter(|_| answer.status().is_redirection())
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// A size with a unit, such as `548 MB`.
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
    fn the_origin_is_scheme_and_host() {
        for address in ["http://a:1", "http://a:1/", "http://a:1/b/c"] {
            assert_eq!(origin(address), "http://a:1");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(
            [999, 1_000, 548_105_171, 4_976_698_672].map(bytes),
            ["999 bytes", "1 kB", "548 MB", "5.0 GB"]
        );
    }
}
