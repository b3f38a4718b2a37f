//! Downloads from a test hub on loopback: the cache, errors, and invalid answers.
#![allow(clippy::unwrap_used)]

use muffle::hub::{Hub, HubError, HubErrorKind, NetworkAccess, Token};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

const NOTHING: [PathBuf; 0] = [];

/// The files and the behaviour of the server.
#[derive(Clone, Default)]
struct World {
    files: BTreeMap<String, Vec<u8>>,
    /// Header lines that replace the true ones, by file.
    lies: BTreeMap<String, Vec<(String, String)>>,
    /// The number of bytes by which the body is longer or shorter than announced.
    cut: BTreeMap<String, isize>,
    /// The answer to a request for another model.
    stranger: String,
    /// One line for each request, with its token.
    requests: Vec<String>,
    store: String,
}

/// A hub and its store of weights; both stop when it is dropped.
struct Server {
    world: Arc<Mutex<World>>,
    endpoint: String,
    doors: Vec<(u16, JoinHandle<()>)>,
    stop: Arc<Mutex<bool>>,
}

impl Server {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect();
        let world = Arc::new(Mutex::new(World {
            files,
            stranger: "404 Not Found".into(),
            ..World::default()
        }));
        let stop = Arc::new(Mutex::new(false));
        let doors: Vec<_> = [(); 2]
            .map(|()| {
                let (door, world, stop) =
                    (TcpListener::bind("127.0.0.1:0").unwrap(), world.clone(), stop.clone());
                let port = door.local_addr().unwrap().port();
                let serve = move || {
                    while let Ok((guest, _)) = door.accept()
                        && !*stop.lock().unwrap()
                    {
                        // A client may close the connection early.
                        let _ = answer(guest, &world);
                    }
                };
                (port, std::thread::spawn(serve))
            })
            .into();
        world.lock().unwrap().store = format!("http://127.0.0.1:{}", doors[1].0);
        Self { world, endpoint: format!("http://127.0.0.1:{}", doors[0].0), doors, stop }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.world().requests)
    }

    fn lie(&self, file: &str, lies: &[(&str, &str)]) {
        let lies = lies.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        self.world().lies.insert(file.into(), lies);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        *self.stop.lock().unwrap() = true;
        for (port, thread) in self.doors.drain(..) {
            drop(TcpStream::connect(("127.0.0.1", port)));
            thread.join().unwrap();
        }
    }
}

/// Answers a request.
///
/// `/org/model/resolve/<revision>/<file>` is a file; weights are redirected to `/store/<file>`;
/// `/renamed/...` is the old name of a model.
fn answer(mut guest: TcpStream, world: &Mutex<World>) -> std::io::Result<()> {
    guest.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut lines = BufReader::new(guest.try_clone()?).lines();
    let asked = lines.next().unwrap_or(Ok(String::new()))?;
    let mut token = "none".to_string();
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some(secret) = line.to_lowercase().strip_prefix("authorization: bearer ") {
            token = secret.into();
        }
    }
    let mut words = asked.split(' ');
    let (method, path) = (
        words.next().unwrap_or_default().to_string(),
        words.next().unwrap_or_default().to_string(),
    );
    let mut world = world.lock().unwrap();
    world.requests.push(format!("{method} {path} {token}"));
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let file = parts.get(4..).unwrap_or_default().join("/");
    let (status, mut headers, body): (String, _, _) = match parts[..] {
        ["store", file] => ("200 OK".into(), vec![], world.files[file].clone()),
        ["renamed", "resolve", revision, file] => {
            let place = format!("/org/model/resolve/{revision}/{file}");
            ("307 Temporary Redirect".into(), vec![("location", place)], b"moved".to_vec())
        }
        ["org", "model", "resolve", "main" | COMMIT, ..] => match world.files.get(&file) {
            None => (
                "404 Not Found".into(),
                vec![("x-error-code", "EntryNotFound".into())],
                b"no".to_vec(),
            ),
            Some(bytes) if file.ends_with(".safetensors") => {
                let (etag, size) = (format!("\"{}\"", etag(bytes)), bytes.len().to_string());
                let place = format!("{}/store/{file}", world.store);
                let more = vec![
                    ("etag", "\"of-the-pointer\"".into()),
                    ("x-linked-etag", etag),
                    ("x-linked-size", size),
                    ("location", place),
                ];
                ("302 Found".into(), more, b"elsewhere".to_vec())
            }
            Some(bytes) => {
                ("200 OK".into(), vec![("etag", format!("\"{}\"", etag(bytes)))], bytes.clone())
            }
        },
        _ => (world.stranger.clone(), vec![], b"who?".to_vec()),
    };
    headers.extend([
        ("x-repo-commit", COMMIT.into()),
        ("content-length", body.len().to_string()),
        ("connection", "close".into()),
    ]);
    let file = parts.last().copied().unwrap_or_default();
    let mut text: BTreeMap<&str, String> = headers.into_iter().collect();
    for (name, value) in world.lies.get(file).into_iter().flatten() {
        text.insert(name, value.clone());
    }
    let mut sent = body;
    match world.cut.get(file).filter(|_| status == "200 OK") {
        Some(cut) if *cut > 0 => {
            // The answer is complete, but is not the announced file.
            sent.resize(sent.len() + cut.unsigned_abs(), b'x');
            if method == "GET" {
                text.insert("content-length", sent.len().to_string());
            }
        }
        Some(cut) => sent.truncate(sent.len() - cut.unsigned_abs()),
        None => {}
    }
    write!(guest, "HTTP/1.1 {status}\r\n")?;
    for (name, value) in &text {
        write!(guest, "{name}: {value}\r\n")?;
    }
    write!(guest, "\r\n")?;
    if method == "GET" {
        guest.write_all(&sent)?;
    }
    Ok(())
}

/// A name that depends on the content.
fn etag(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// A temporary folder with a cache.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("muffle-hub-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn hub(&self, endpoint: &str) -> Hub {
        Hub {
            cache: self.0.join("a/b/c/cache"),
            endpoint: endpoint.into(),
            network: NetworkAccess::Allowed,
            token: None,
        }
    }

    /// All files in the folder.
    fn files(&self) -> Vec<PathBuf> {
        fn below(path: &Path, found: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(path).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    below(&entry.path(), found);
                } else {
                    found.push(entry.path());
                }
            }
        }
        let mut found = Vec::new();
        below(&self.0, &mut found);
        found
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn fetch(hub: &Hub) -> Result<PathBuf, HubError> {
    hub.fetch("org/model", &mut |_| {})
}

/// The kind and the message of a failure. The message is one line that names the model.
fn refusal(hub: &Hub, name: &str) -> (HubErrorKind, String) {
    let failed = hub.fetch(name, &mut |_| {}).unwrap_err();
    let line = failed.to_string();
    assert!(line.contains(name) && !line.contains('\n'), "{line}");
    (failed.kind, line)
}

const SMALL: [(&str, &[u8]); 5] = [
    ("config.json", b"{\"model_type\": \"gpt2\"}"),
    ("tokenizer.json", b"{\"version\": \"1.0\"}"),
    ("generation_config.json", b"{}"),
    ("model.safetensors", &[7; 300_000]),
    ("pytorch_model.bin", b"not wanted"),
];

const SHARDED: [(&str, &[u8]); 5] = [
    ("config.json", b"{}"),
    ("tokenizer.json", b"{ }"),
    (
        "model.safetensors.index.json",
        br#"{"weight_map": {
            "a": "model-1-of-2.safetensors",
            "b": "model-2-of-2.safetensors",
            "c": "model-1-of-2.safetensors"
        }}"#,
    ),
    ("model-1-of-2.safetensors", &[1; 1000]),
    ("model-2-of-2.safetensors", &[2; 2000]),
];

/// How a sentence encoder is pooled is stated in a folder of the model.
#[test]
fn a_file_in_a_folder_is_linked() {
    let files = [&SMALL[..4], &[("1_Pooling/config.json", b"{ }")]].concat();
    let (folder, server) = (Folder::new("folder"), Server::new(&files));
    let snapshot = fetch(&folder.hub(&server.endpoint)).unwrap();
    assert_eq!(fs::read(snapshot.join("1_Pooling/config.json")).unwrap(), b"{ }");
}

#[test]
fn a_model_is_fetched_once() {
    let (folder, server) = (Folder::new("once"), Server::new(&SMALL));
    let hub = folder.hub(&server.endpoint);
    let mut lines = Vec::new();
    let snapshot = hub.fetch("org/model", &mut |line| lines.push(line.to_string())).unwrap();
    for (file, bytes) in &SMALL[..4] {
        assert!(fs::read(snapshot.join(file)).unwrap() == *bytes, "{file}");
    }
    assert_eq!(fs::read_dir(&snapshot).unwrap().count(), 4);
    assert_eq!(
        lines,
        [
            "fetching org/model/config.json (22 bytes)",
            "fetching org/model/tokenizer.json (18 bytes)",
            "fetching org/model/generation_config.json (2 bytes)",
            "fetching org/model/model.safetensors (300 kB)",
        ]
    );
    // The layout that other programs use.
    let root = hub.cache.join("models--org--model");
    assert_eq!(snapshot, root.join("snapshots").join(COMMIT));
    assert_eq!(fs::read_to_string(root.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(fs::read_dir(root.join("blobs")).unwrap().count(), 4);
    assert!(!server.requests().is_empty());

    let mut silence = |line: &str| panic!("{line}");
    assert_eq!(hub.fetch("org/model", &mut silence).unwrap(), snapshot);
    assert_eq!(server.requests(), [""; 0]);
    drop(server);
    assert_eq!(hub.fetch("org/model", &mut silence).unwrap(), snapshot);
    assert_eq!(
        Hub { network: NetworkAccess::Forbidden, ..hub }.fetch("org/model", &mut silence).unwrap(),
        snapshot
    );
}

#[test]
fn all_files_are_of_one_commit() {
    let (folder, server) = (Folder::new("commit"), Server::new(&SMALL));
    fetch(&folder.hub(&server.endpoint)).unwrap();
    let at_main: Vec<String> = server
        .requests()
        .into_iter()
        .filter(|request| request.contains("/resolve/main/"))
        .collect();
    assert_eq!(at_main, ["HEAD /org/model/resolve/main/config.json none"]);
}

#[test]
fn sharded_models_are_downloaded() {
    let (folder, server) = (Folder::new("shards"), Server::new(&SHARDED));
    let hub = folder.hub(&server.endpoint);
    let snapshot = fetch(&hub).unwrap();
    for (file, bytes) in SHARDED {
        assert!(fs::read(snapshot.join(file)).unwrap() == bytes, "{file}");
    }
    server.requests();
    assert_eq!(fetch(&hub).unwrap(), snapshot);
    assert_eq!(server.requests(), [""; 0]);
    // If one shard is missing, only that one is downloaded again.
    let shard = snapshot.join("model-2-of-2.safetensors");
    fs::remove_file(fs::canonicalize(&shard).unwrap()).unwrap();
    fetch(&hub).unwrap();
    assert_eq!(fs::read(&shard).unwrap(), [2; 2000]);
    let brought: Vec<String> =
        server.requests().into_iter().filter(|request| request.starts_with("GET /store")).collect();
    assert_eq!(brought, ["GET /store/model-2-of-2.safetensors none"]);
}

#[test]
fn cached_files_are_not_downloaded_again() {
    let (folder, server) = (Folder::new("there"), Server::new(&SMALL));
    let hub = folder.hub(&server.endpoint);
    let snapshot = fetch(&hub).unwrap();
    let (config, weights) = (snapshot.join("config.json"), snapshot.join("model.safetensors"));
    let tokenizer = snapshot.join("tokenizer.json");
    // A file instead of a link, a blob without its link, and a missing file.
    fs::rename(fs::canonicalize(&config).unwrap(), &config).unwrap();
    fs::remove_file(&weights).unwrap();
    fs::remove_file(fs::canonicalize(&tokenizer).unwrap()).unwrap();
    let mut lines = Vec::new();
    assert_eq!(hub.fetch("org/model", &mut |line| lines.push(line.to_string())).unwrap(), snapshot);
    assert_eq!(lines, ["fetching org/model/tokenizer.json (18 bytes)"]);
    for (file, bytes) in &SMALL[..4] {
        assert!(fs::read(snapshot.join(file)).unwrap() == *bytes, "{file}");
    }
}

#[test]
fn a_renamed_model_is_found() {
    let (folder, server) = (Folder::new("renamed"), Server::new(&SMALL));
    let snapshot = folder.hub(&server.endpoint).fetch("renamed", &mut |_| {}).unwrap();
    assert!(snapshot.ends_with(Path::new("models--renamed/snapshots").join(COMMIT)));
    assert_eq!(fs::read(snapshot.join("config.json")).unwrap(), SMALL[0].1);
}

#[test]
fn without_network_only_the_cache_is_used() {
    let (folder, server) = (Folder::new("offline"), Server::new(&SMALL));
    let hub = Hub { network: NetworkAccess::Forbidden, ..folder.hub(&server.endpoint) };
    let (kind, line) = refusal(&hub, "org/model");
    assert_eq!(kind, HubErrorKind::Offline);
    assert!(
        line.contains(hub.cache.to_str().unwrap()) && line.contains("HF_HUB_OFFLINE"),
        "{line}"
    );
    assert_eq!(server.requests(), [""; 0]);
    assert_eq!(folder.files(), NOTHING);
}

#[test]
fn hub_errors_have_distinct_kinds() {
    let (folder, server) = (Folder::new("apart"), Server::new(&SMALL));
    let hub = folder.hub(&server.endpoint);
    let (kind, line) = refusal(&hub, "gpt3");
    assert_eq!(kind, HubErrorKind::NotFound);
    assert_eq!(
        line,
        format!("{} has no model 'gpt3', and there is no directory of that name", server.endpoint)
    );
    for (status, kind) in [
        ("401 Unauthorized", HubErrorKind::Denied),
        ("403 Forbidden", HubErrorKind::Denied),
        ("503 Busy", HubErrorKind::Unreachable),
    ] {
        server.world().stranger = status.into();
        assert_eq!(refusal(&hub, "gpt3").0, kind, "{status}");
    }
    server.world().stranger = "401 Unauthorized".into();
    assert!(refusal(&hub, "gpt3").1.contains("set HF_TOKEN"));
    server.lie("config.json", &[("x-error-code", "GatedRepo")]);
    assert!(refusal(&hub, "gpt3").1.contains("accept its terms"));
    assert_eq!(refusal(&hub, "../gpt3").0, HubErrorKind::InvalidName);

    drop(server);
    let (kind, line) = refusal(&hub, "gpt3");
    assert_eq!(kind, HubErrorKind::Unreachable);
    assert!(line.contains(&hub.endpoint) && line.contains("in the cache"), "{line}");
    assert_eq!(folder.files(), NOTHING);
}

#[test]
fn missing_files_of_a_model_are_named() {
    let folder = Folder::new("lacks");
    for (lacks, named) in [
        ("config.json", "no config.json"),
        ("tokenizer.json", "no tokenizer.json"),
        ("model.safetensors", "neither"),
    ] {
        let server = Server::new(&SMALL);
        server.world().files.remove(lacks);
        let (kind, line) = refusal(&folder.hub(&server.endpoint), "org/model");
        assert_eq!(kind, HubErrorKind::NotFound);
        assert!(line.contains(named), "{line}");
    }
    let server = Server::new(&SHARDED);
    server.world().files.remove("model-2-of-2.safetensors");
    assert!(
        refusal(&folder.hub(&server.endpoint), "org/model")
            .1
            .contains("no model-2-of-2.safetensors")
    );
}

#[test]
fn an_index_names_only_files_of_its_folder() {
    for (at, evil) in [
        "../evil.safetensors",
        "../../../../../../../evil.safetensors",
        "/evil.safetensors",
        "a/evil.safetensors",
        "evil",
        "",
    ]
    .into_iter()
    .enumerate()
    {
        let (folder, server) = (Folder::new(&format!("evil-{at}")), Server::new(&SHARDED));
        let index = format!(
            "{{\"weight_map\": {{\"a\": \"model-1-of-2.safetensors\", \"b\": \"{evil}\"}}}}"
        );
        server.world().files.insert("model.safetensors.index.json".into(), index.into_bytes());
        server.world().files.insert("evil.safetensors".into(), b"evil".to_vec());
        let hub = folder.hub(&server.endpoint);
        for _ in 0..2 {
            let (kind, line) = refusal(&hub, "org/model");
            assert_eq!(kind, HubErrorKind::InvalidAnswer);
            assert!(line.contains(&format!("{evil:?}")), "{line}");
        }
        let asked = server.requests();
        assert!(
            !asked.iter().any(|request| request.contains("evil") || request.contains("of-2")),
            "{asked:?}"
        );
        assert!(
            folder
                .files()
                .iter()
                .all(|file| file.starts_with(&hub.cache) && fs::read(file).unwrap() != b"evil"),
            "{evil}"
        );
    }
}

#[test]
fn a_broken_index_is_refused() {
    for (at, text) in ["", "{}", "[1]", "{\"weight_map\": {}}", "{\"weight_map\": {\"a\": 1}}"]
        .into_iter()
        .enumerate()
    {
        let (folder, server) = (Folder::new(&format!("index-{at}")), Server::new(&SHARDED));
        server.world().files.insert("model.safetensors.index.json".into(), text.into());
        assert_eq!(
            refusal(&folder.hub(&server.endpoint), "org/model").0,
            HubErrorKind::InvalidAnswer,
            "{text}"
        );
    }
}

#[test]
fn incomplete_downloads_are_refused() {
    for cut in [-1, -150_000, 1, 150_000] {
        let (folder, server) = (Folder::new(&format!("half-{cut}")), Server::new(&SMALL));
        let hub = folder.hub(&server.endpoint);
        server.world().cut.insert("model.safetensors".into(), cut);
        let (kind, line) = refusal(&hub, "org/model");
        assert_eq!(kind, HubErrorKind::Unreachable);
        assert!(line.contains("model.safetensors") && line.contains("try again"), "{line}");
        // No file is left under another name, and the model does not count as cached.
        assert!(
            folder.files().iter().all(|file| fs::metadata(file).unwrap().len() < 1000),
            "{:?}",
            folder.files()
        );
        assert_eq!(
            refusal(&Hub { network: NetworkAccess::Forbidden, ..hub.clone() }, "org/model").0,
            HubErrorKind::Offline
        );

        server.world().cut.clear();
        let mut lines = Vec::new();
        let snapshot = hub.fetch("org/model", &mut |line| lines.push(line.to_string())).unwrap();
        assert!(fs::read(snapshot.join("model.safetensors")).unwrap() == SMALL[3].1);
        assert_eq!(lines, ["fetching org/model/model.safetensors (300 kB)"]);
    }
}

#[test]
fn invalid_answers_of_the_hub_are_refused() {
    let outside = Folder::new("unbelieved-outside");
    let absolute = outside.0.join("evil");
    let lies = [
        ("tokenizer.json", "etag", "\"../../../../../evil\""),
        ("tokenizer.json", "etag", absolute.to_str().unwrap()),
        ("tokenizer.json", "etag", "\"..\""),
        ("tokenizer.json", "etag", ""),
        ("tokenizer.json", "x-linked-etag", "a/b"),
        ("config.json", "x-repo-commit", "../../../../evil"),
        ("config.json", "x-repo-commit", ""),
        ("tokenizer.json", "x-repo-commit", "1111111111111111111111111111111111111111"),
        ("tokenizer.json", "x-linked-size", "67108865"),
        ("tokenizer.json", "x-linked-size", "-1"),
        ("model.safetensors", "x-linked-size", "many"),
    ];
    for (at, (file, header, value)) in lies.into_iter().enumerate() {
        let (folder, server) = (Folder::new(&format!("unbelieved-{at}")), Server::new(&SMALL));
        server.lie(file, &[(header, value)]);
        let (kind, line) = refusal(&folder.hub(&server.endpoint), "org/model");
        assert_eq!(kind, HubErrorKind::InvalidAnswer, "{header}: {value}: {line}");
        assert!(line.contains(file), "{line}");
        assert_eq!(folder.files(), NOTHING, "{header}: {value}");
    }
    assert_eq!(outside.files(), NOTHING);
}

#[test]
fn redirects_are_limited() {
    let (folder, server) = (Folder::new("redirects"), Server::new(&SMALL));
    server.world().stranger = "307 Temporary Redirect".into();
    server.lie("config.json", &[("location", "/round/config.json")]);
    assert_eq!(refusal(&folder.hub(&server.endpoint), "gpt3").0, HubErrorKind::Unreachable);
    assert!(server.requests().len() < 20);
}

#[test]
fn a_token_is_sent_to_the_hub_only() {
    let (folder, server) = (Folder::new("token"), Server::new(&SMALL));
    fetch(&Hub { token: Some(Token::new("hf_secret".into())), ..folder.hub(&server.endpoint) })
        .unwrap();
    let asked = server.requests();
    assert!(asked.iter().any(|request| request.starts_with("GET /store/")));
    for request in asked {
        assert_eq!(request.ends_with(" hf_secret"), !request.contains("/store/"), "{request}");
    }
}

#[test]
fn abandoned_downloads_are_removed() {
    let (folder, server) = (Folder::new("killed"), Server::new(&SMALL));
    let hub = folder.hub(&server.endpoint);
    let blobs = hub.cache.join("models--org--model/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let days_ago = SystemTime::now() - Duration::from_secs(3 * 24 * 3600);
    for (name, time) in [
        ("a.1-1.muffle", days_ago),
        ("a.incomplete", days_ago),
        ("b.1-1.muffle", SystemTime::now()),
    ] {
        fs::File::create(blobs.join(name)).unwrap().set_modified(time).unwrap();
    }
    fetch(&hub).unwrap();
    let left =
        ["a.1-1.muffle", "a.incomplete", "b.1-1.muffle"].map(|name| blobs.join(name).exists());
    assert_eq!(left, [false, true, true]);
}
