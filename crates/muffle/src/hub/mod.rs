//! Models by their name on the Hugging Face hub, kept where the hub's other programs keep them.
//!
//! A model is `models--<owner>--<name>/` with `refs/main` (a commit), `snapshots/<commit>/<file>`
//! (links) and `blobs/<etag>`, the layout of `hf-hub` and of the `huggingface_hub` of Python. What
//! is there is used as it is, without any request.
//!
//! What is not is brought by a `visit` to the hub, which is not trusted.

mod visit;

use crate::error::Category;
use hf_hub::{Cache, CacheRepo};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use visit::Visit;

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The largest tokenizers take half of it.
const LONGEST_JSON: u64 = 64 << 20;

/// Where models come from.
#[derive(Clone, Debug)]
pub struct Hub {
    /// The folder of all models, as a rule `~/.cache/huggingface/hub`.
    pub cache: PathBuf,
    /// The address of the hub, `https://huggingface.co` unless there is a mirror.
    pub endpoint: String,
    /// Whether the hub may be asked.
    pub online: Network,
    /// Opens private and gated models.
    pub token: Option<Token>,
}

/// Whether there may be requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// For what is not in the cache.
    Allowed,
    /// Only the cache is used.
    Forbidden,
}

/// A secret that the hub gave to a user. It never prints.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Why a model cannot be fetched, on one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HubError {
    /// The kind of failure.
    pub reason: Reason,
    message: String,
}

/// The kind of a failure to fetch a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is no name of a model.
    Name,
    /// There is no such model, or it lacks a file.
    Absent,
    /// The hub wants a token, or another one.
    Denied,
    /// It would take the network, which is forbidden.
    Offline,
    /// The hub does not answer, or breaks off, or is busy.
    Unreachable,
    /// The hub's answer cannot be right.
    Unsound,
    /// The cache cannot be read or written.
    Disk,
}

/// A directory with the model's configuration, weights and tokenizer: from the cache if it is
/// there, else fetched. `said` hears of every file that is downloaded.
///
/// # Errors
/// As [`Hub::fetch`].
pub fn fetch(name: &str, said: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
    Hub::from_env()?.fetch(name, said)
}

/// Whether this may be a model on the hub: `name` or `owner/name`. It says nothing of whether there
/// is one.
pub fn looks_like_a_name(text: &str) -> bool {
    // The hub's own rules. Without the one on `--` two models could have one folder.
    let part = |part: &str| {
        is_plain(part)
            && !part.starts_with('-')
            && !part.ends_with(['-', '.'])
            && !part.contains("--")
    };
    text.len() <= 96 && text.split('/').count() <= 2 && text.split('/').all(part)
}

impl Hub {
    /// The hub and the cache that `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_HUB_OFFLINE` and
    /// `HF_TOKEN` name, or the usual ones.
    ///
    /// # Errors
    /// If there is no home directory to keep a cache in.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_settings(|key| std::env::var_os(key).filter(|value| !value.is_empty()))
    }

    /// A directory with the model's configuration, weights and tokenizer: from the cache if it is
    /// there, else fetched. `said` hears of every file that is downloaded.
    ///
    /// # Errors
    /// If it is no name, neither the cache nor the hub has the model, or it cannot be brought here
    /// whole.
    pub fn fetch(&self, name: &str, said: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
        if !looks_like_a_name(name) {
            let message = format!(
                "{name:?} is neither a directory nor the name of a model on a hub, like 'gpt2' or \
                 'owner/name'"
            );
            return Err(HubError { reason: Reason::Name, message });
        }
        let kept = Cache::new(self.cache.clone()).model(name.to_string());
        if let Some(snapshot) = complete(name, &kept)? {
            return Ok(snapshot);
        }
        if self.online == Network::Forbidden {
            let cache = self.cache.display();
            let message = format!(
                "'{name}' is no directory, not in the cache at {cache}, and HF_HUB_OFFLINE forbids \
                 to fetch it: unset that"
            );
            return Err(HubError { reason: Reason::Offline, message });
        }
        Visit::new(self, name, kept).fetch(said)
    }

    fn from_settings(setting: impl Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let path = |key: &str| setting(key).map(PathBuf::from);
        let text = |key: &str| setting(key).and_then(|value| value.into_string().ok());
        let home = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .or_else(|| std::env::home_dir().map(|home| home.join(".cache/huggingface")))
            .ok_or_else(|| HubError {
                reason: Reason::Disk,
                message: "there is no home directory for models: set HF_HOME".into(),
            })?;
        let usual = home.join("hub");
        let token = text("HF_TOKEN").or_else(|| Cache::new(usual.clone()).token()).map(Token::new);
        let offline = text("HF_HUB_OFFLINE").is_some_and(|value| {
            ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str())
        });
        Ok(Self {
            cache: path("HF_HUB_CACHE").unwrap_or(usual),
            endpoint: text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            online: if offline { Network::Forbidden } else { Network::Allowed },
            token,
        })
    }
}

impl Token {
    /// As the hub gave it.
    pub fn new(secret: String) -> Self {
        Self(secret.trim().into())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Reason {
    /// Whether the request was wrong, or something on the way failed.
    pub(crate) fn category(self) -> Category {
        match self {
            Self::Name | Self::Absent | Self::Denied | Self::Offline => Category::Input,
            Self::Unreachable | Self::Unsound | Self::Disk => Category::Fault,
        }
    }
}

/// The snapshot of `refs/main`, if it has all that is needed.
fn complete(name: &str, kept: &CacheRepo) -> Result<Option<PathBuf>, HubError> {
    let Some(snapshot) = kept.get(CONFIG).and_then(|config| config.parent().map(Path::to_path_buf))
    else {
        return Ok(None);
    };
    let there = |file: &str| snapshot.join(file).is_file();
    let whole = there(TOKENIZER)
        && (there(WEIGHTS)
            || (there(INDEX)
                && shards(name, &snapshot.join(INDEX))?.iter().all(|shard| there(shard))));
    Ok(whole.then_some(snapshot))
}

/// The files that an index names.
fn shards(name: &str, index: &Path) -> Result<BTreeSet<String>, HubError> {
    #[derive(serde::Deserialize)]
    struct Text {
        weight_map: BTreeMap<String, String>,
    }
    let said = |what: String| {
        format!("'{name}' has the index {}, but {what}: take another model", index.display())
    };
    let unsound = |what: String| HubError { reason: Reason::Unsound, message: said(what) };
    let mut text = Vec::new();
    File::open(index)
        .and_then(|file| file.take(LONGEST_JSON).read_to_end(&mut text))
        .map_err(|error| unsound(error.to_string()))?;
    let Text { weight_map } =
        serde_json::from_slice(&text).map_err(|error| unsound(format!("it is none: {error}")))?;
    let names: BTreeSet<String> = weight_map.into_values().collect();
    if let Some(wrong) =
        names.iter().find(|name| !is_plain(name) || !name.ends_with(".safetensors"))
    {
        return Err(unsound(format!("it names {wrong:?}, which is no file of weights beside it")));
    }
    if names.is_empty() { Err(unsound("it names no file".into())) } else { Ok(names) }
}

/// Whether this is the name of a file on every system, and no path.
fn is_plain(name: &str) -> bool {
    let letter = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    !name.is_empty() && name.chars().all(letter) && !name.starts_with('.') && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(settings: &[(&str, &str)]) -> Hub {
        let settings: BTreeMap<&str, &str> = settings.iter().copied().collect();
        Hub::from_settings(|key| settings.get(key).map(OsString::from)).unwrap()
    }

    #[test]
    fn names_are_told_from_paths() {
        for name in ["gpt2", "HuggingFaceTB/SmolLM2-135M", "a/b_c.d", &"x".repeat(96)] {
            assert!(looks_like_a_name(name), "{name}");
        }
        for path in [
            "", "/", "a/", "/a", "a/b/c", "..", "../a", "a/..", "./a", "a..b", ".a", "a b", "a\\b",
            "é", "-a", "a.", "a--b", "C:a",
        ] {
            assert!(!looks_like_a_name(path), "{path}");
        }
        assert!(!looks_like_a_name(&"x".repeat(97)));
    }

    #[test]
    fn the_environment_is_honoured() {
        let home = std::env::home_dir().unwrap();
        // With a token, so that the tester's own is not read.
        let usual = hub(&[("HF_TOKEN", "t")]);
        assert_eq!(
            (usual.cache, usual.online),
            (home.join(".cache/huggingface/hub"), Network::Allowed)
        );
        assert_eq!(usual.endpoint, "https://huggingface.co");
        assert_eq!(hub(&[("XDG_CACHE_HOME", "/x")]).cache, Path::new("/x/huggingface/hub"));
        assert_eq!(hub(&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/h")]).cache, Path::new("/h/hub"));
        assert_eq!(hub(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h")]).cache, Path::new("/c"));
        assert_eq!(
            hub(&[("HF_HOME", "/h"), ("HF_ENDPOINT", "http://mirror")]).endpoint,
            "http://mirror"
        );
        for (value, online) in
            [("1", Network::Forbidden), ("TRUE", Network::Forbidden), ("0", Network::Allowed)]
        {
            assert_eq!(
                hub(&[("HF_HOME", "/h"), ("HF_HUB_OFFLINE", value)]).online,
                online,
                "{value}"
            );
        }
    }

    #[test]
    fn a_token_is_taken_and_never_shown() {
        let with = hub(&[("HF_HOME", "/nowhere"), ("HF_TOKEN", "hf_secret\n")]);
        assert_eq!(with.token, Some(Token::new("hf_secret".into())));
        assert!(!format!("{with:?}").contains("secret"));
        assert_eq!(hub(&[("HF_HOME", "/nowhere")]).token, None);
    }
}
