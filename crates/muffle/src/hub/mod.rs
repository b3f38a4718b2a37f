//! Models of the Hugging Face hub, in the cache that other programs for the hub use.
//!
//! The folder of a model is `models--<owner>--<name>/` with `refs/main` (a commit),
//! `snapshots/<commit>/<file>` (links) and `blobs/<etag>`: the layout of `hf-hub` and of Python's
//! `huggingface_hub`. A cached model is used without any request; another one is downloaded by
//! `download`, which does not trust the hub.

mod download;

use crate::error::Category;
use download::Downloader;
use hf_hub::{Cache, CacheRepo};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The maximum length of a JSON file in bytes. The largest known tokenizers have half of it.
const MAX_JSON: u64 = 64 << 20;

/// The hub, its cache and the access to it.
#[derive(Clone, Debug)]
pub struct Hub {
    /// The folder of all cached models, by default `~/.cache/huggingface/hub`.
    pub cache: PathBuf,
    /// The address of the hub, by default `https://huggingface.co`.
    pub endpoint: String,
    /// Whether requests are allowed.
    pub network: NetworkAccess,
    /// The access token for private and gated models.
    pub token: Option<Token>,
}

/// Whether requests to the hub are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkAccess {
    /// Models that are not in the cache are downloaded.
    Allowed,
    /// Only the cache is used.
    Forbidden,
}

/// An access token of a user of the hub. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// An error in fetching a model, displayed on one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HubError {
    /// The kind of failure.
    pub kind: HubErrorKind,
    message: String,
}

/// The kind of a failure to fetch a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubErrorKind {
    /// The text is not the name of a model.
    InvalidName,
    /// The model or one of its files does not exist.
    NotFound,
    /// The hub requires a token, or another one.
    Denied,
    /// The model is not in the cache, and requests are forbidden.
    Offline,
    /// The hub does not answer, interrupts a transfer, or is busy.
    Unreachable,
    /// The hub's answer is invalid.
    InvalidAnswer,
    /// The cache cannot be read or written.
    Disk,
}

/// Returns the folder of a model, from the cache or downloaded, with the default [`Hub`].
///
/// # Errors
/// As [`Hub::fetch`].
pub fn fetch(name: &str, report: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
    Hub::from_env()?.fetch(name, report)
}

/// Whether a text has the form of a model's name: `name` or `owner/name`.
pub fn is_model_name(text: &str) -> bool {
    // The rules of the hub. Without the rule on `--`, two models could have the same folder.
    let is_valid_part = |part: &str| {
        is_file_name(part)
            && !part.starts_with('-')
            && !part.ends_with(['-', '.'])
            && !part.contains("--")
    };
    text.len() <= 96 && text.split('/').count() <= 2 && text.split('/').all(is_valid_part)
}

impl Hub {
    /// Reads the settings from the environment, with the defaults of `huggingface_hub`.
    ///
    /// The variables are `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_HUB_OFFLINE` and `HF_TOKEN`.
    ///
    /// # Errors
    /// If there is no home directory for the cache.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_settings(|key| std::env::var_os(key).filter(|value| !value.is_empty()))
    }

    /// Returns the folder of a model, from the cache or downloaded.
    ///
    /// It has configuration, weights and tokenizer. `report` receives a line for each downloaded
    /// file.
    ///
    /// # Errors
    /// If the name is invalid, neither the cache nor the hub has the model, or the download fails.
    pub fn fetch(&self, name: &str, report: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
        if !is_model_name(name) {
            let message = format!(
                "expected a directory or the name of a model on the hub, such as gpt2 or \
                 owner/name; got {name:?}"
            );
            return Err(HubError { kind: HubErrorKind::InvalidName, message });
        }
        let cached = Cache::new(self.cache.clone()).model(name.to_string());
        if let Some(snapshot) = complete_snapshot(name, &cached)? {
            return Ok(snapshot);
        }
        if self.network == NetworkAccess::Forbidden {
            let cache = self.cache.display();
            let message = format!(
                "'{name}' is neither a directory nor in the cache at {cache}, and HF_HUB_OFFLINE \
                 is set; unset it to download"
            );
            return Err(HubError { kind: HubErrorKind::Offline, message });
        }
        Downloader::new(self, name, cached).fetch(report)
    }

    fn from_settings(setting: impl Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let path = |key: &str| setting(key).map(PathBuf::from);
        let text = |key: &str| setting(key).and_then(|value| value.into_string().ok());
        let home = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .or_else(|| std::env::home_dir().map(|home| home.join(".cache/huggingface")))
            .ok_or_else(|| HubError {
                kind: HubErrorKind::Disk,
                message: "no home directory for the cache of models; set HF_HOME".into(),
            })?;
        let default = home.join("hub");
        let token =
            text("HF_TOKEN").or_else(|| Cache::new(default.clone()).token()).map(Token::new);
        let offline = text("HF_HUB_OFFLINE").is_some_and(|value| {
            ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str())
        });
        Ok(Self {
            cache: path("HF_HUB_CACHE").unwrap_or(default),
            endpoint: text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            network: if offline { NetworkAccess::Forbidden } else { NetworkAccess::Allowed },
            token,
        })
    }
}

impl Token {
    /// Wraps a token, without surrounding white space.
    pub fn new(secret: String) -> Self {
        Self(secret.trim().into())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl HubErrorKind {
    /// The category of the error: input, or a fault.
    pub(crate) fn category(self) -> Category {
        match self {
            Self::InvalidName | Self::NotFound | Self::Denied | Self::Offline => Category::Input,
            Self::Unreachable | Self::InvalidAnswer | Self::Disk => Category::Fault,
        }
    }
}

/// The cached snapshot of `refs/main`, if it has all needed files.
fn complete_snapshot(name: &str, cached: &CacheRepo) -> Result<Option<PathBuf>, HubError> {
    let Some(snapshot) =
        cached.get(CONFIG).and_then(|config| config.parent().map(Path::to_path_buf))
    else {
        return Ok(None);
    };
    let exists = |file: &str| snapshot.join(file).is_file();
    let is_complete = exists(TOKENIZER)
        && (exists(WEIGHTS)
            || (exists(INDEX)
                && shards(name, &snapshot.join(INDEX))?.iter().all(|shard| exists(shard))));
    Ok(is_complete.then_some(snapshot))
}

/// Reads the names of the weight files from an index.
fn shards(name: &str, index: &Path) -> Result<BTreeSet<String>, HubError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let invalid = |problem: String| HubError {
        kind: HubErrorKind::InvalidAnswer,
        message: format!("'{name}': {}: {problem}; choose another model", index.display()),
    };
    let mut text = Vec::new();
    File::open(index)
        .and_then(|file| file.take(MAX_JSON).read_to_end(&mut text))
        .map_err(|error| invalid(error.to_string()))?;
    let Index { weight_map } =
        serde_json::from_slice(&text).map_err(|error| invalid(format!("invalid JSON: {error}")))?;
    let names: BTreeSet<String> = weight_map.into_values().collect();
    if let Some(wrong) =
        names.iter().find(|name| !is_file_name(name) || !name.ends_with(".safetensors"))
    {
        return Err(invalid(format!(
            "expected the name of a .safetensors file without a folder, got {wrong:?}"
        )));
    }
    match names.is_empty() {
        true => Err(invalid("expected at least 1 file, got 0".into())),
        false => Ok(names),
    }
}

/// Whether a text is a valid file name on every system, and not a path.
fn is_file_name(name: &str) -> bool {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    !name.is_empty()
        && name.chars().all(is_allowed)
        && !name.starts_with('.')
        && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(settings: &[(&str, &str)]) -> Hub {
        let settings: BTreeMap<&str, &str> = settings.iter().copied().collect();
        Hub::from_settings(|key| settings.get(key).map(OsString::from)).unwrap()
    }

    #[test]
    fn names_and_paths_are_distinguished() {
        for name in ["gpt2", "HuggingFaceTB/SmolLM2-135M", "a/b_c.d", &"x".repeat(96)] {
            assert!(is_model_name(name), "{name}");
        }
        for path in [
            "", "/", "a/", "/a", "a/b/c", "..", "../a", "a/..", "./a", "a..b", ".a", "a b", "a\\b",
            "é", "-a", "a.", "a--b", "C:a",
        ] {
            assert!(!is_model_name(path), "{path}");
        }
        assert!(!is_model_name(&"x".repeat(97)));
    }

    #[test]
    fn the_environment_is_honoured() {
        let home = std::env::home_dir().unwrap();
        // With a token, so that the one of the user who runs the test is not read.
        let usual = hub(&[("HF_TOKEN", "t")]);
        assert_eq!(
            (usual.cache, usual.network),
            (home.join(".cache/huggingface/hub"), NetworkAccess::Allowed)
        );
        assert_eq!(usual.endpoint, "https://huggingface.co");
        assert_eq!(hub(&[("XDG_CACHE_HOME", "/x")]).cache, Path::new("/x/huggingface/hub"));
        assert_eq!(hub(&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/h")]).cache, Path::new("/h/hub"));
        assert_eq!(hub(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h")]).cache, Path::new("/c"));
        assert_eq!(
            hub(&[("HF_HOME", "/h"), ("HF_ENDPOINT", "http://mirror")]).endpoint,
            "http://mirror"
        );
        for (value, network) in [
            ("1", NetworkAccess::Forbidden),
            ("TRUE", NetworkAccess::Forbidden),
            ("0", NetworkAccess::Allowed),
        ] {
            assert_eq!(
                hub(&[("HF_HOME", "/h"), ("HF_HUB_OFFLINE", value)]).network,
                network,
                "{value}"
            );
        }
    }

    #[test]
    fn a_token_is_read_and_never_shown() {
        let with = hub(&[("HF_HOME", "/nowhere"), ("HF_TOKEN", "hf_secret\n")]);
        assert_eq!(with.token, Some(Token::new("hf_secret".into())));
        assert!(!format!("{with:?}").contains("secret"));
        assert_eq!(hub(&[("HF_HOME", "/nowhere")]).token, None);
    }
}
