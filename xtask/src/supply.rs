//! Third-party dependencies: sources, licences, build-time programs, number, duplicates.
//!
//! The policy is `deny.toml`, which cargo-deny reads as well. It is checked here without another
//! tool and without a network, except for crates of other platforms that were never downloaded.
//! Only known vulnerabilities need cargo-deny and a network.

use crate::spdx;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use toml::Table;

/// Largest number of third-party crates in the default build of `muffle`, build-time ones included.
///
/// Raise it in the commit that adds a dependency and gives the reason.
const MAX_CRATES: usize = 235;

/// The platform for which crates are counted.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Allowed procedural macros: like build scripts, they run at build time.
const PROC_MACROS: [&str; 24] = [
    "bytemuck_derive",
    "clap_derive",
    "const-random-macro",
    "curve25519-dalek-derive",
    "darling_macro",
    "derive_builder_macro",
    "dyn-stack-macros",
    "enum-as-inner",
    "equator-macro",
    "interpol",
    "macro_rules_attribute-proc_macro",
    "monostate-impl",
    "paste",
    "pastey",
    "pyo3-macros",
    "rustversion",
    "scroll_derive",
    "seq-macro",
    "serde_derive",
    "thiserror-impl",
    "wasm-bindgen-macro",
    "windows-implement",
    "windows-interface",
    "zerocopy-derive",
];

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Runs all checks, and cargo-deny if it is installed.
pub(crate) fn run() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no workspace")?;
    let read = |name: &str| {
        fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"))
    };
    let policy = Policy::parse(&read("deny.toml")?)?;
    let lock: Table =
        read("Cargo.lock")?.parse().map_err(|error| format!("Cargo.lock: {error}"))?;
    let packages = Packages::new()?;
    let mut findings = sources(&lock);
    findings.extend(packages.licences(&policy));
    findings.extend(packages.programs(&policy));
    findings.extend(
        duplicates(&packages.built, &policy)
            .into_iter()
            .filter(|finding| packages.all || !finding.starts_with("deny.toml")),
    );
    let count = count()?;
    if count > MAX_CRATES {
        findings.push(format!(
            "default build of muffle: expected at most {MAX_CRATES} third-party crates \
             (xtask/src/supply.rs), got {count}"
        ));
    }
    if !findings.is_empty() {
        return Err(findings.join("\n"));
    }
    let spare = if count < MAX_CRATES {
        format!("; MAX_CRATES could be {count} instead of {MAX_CRATES}")
    } else {
        String::new()
    };
    eprintln!(
        "xtask: {} third-party crates checked, {count} of them in the default build{spare}",
        packages.list.len()
    );
    deny(root)
}

/// The policy in `deny.toml`.
struct Policy {
    licences: Vec<String>,
    /// Additional licences that are allowed for single crates.
    exceptions: BTreeMap<String, Vec<String>>,
    /// Allowed duplicates: name and version prefix of the older version.
    older: Vec<(String, String)>,
    build_scripts: Vec<String>,
}

impl Policy {
    fn parse(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error| format!("deny.toml: {error}"))?;
        let list = |section: &[&str]| -> Result<Vec<toml::Value>, String> {
            let (last, within) =
                section.split_last().ok_or("deny.toml: expected a key, got none")?;
            let inner = within.iter().try_fold(&table, |table, key| table.get(*key)?.as_table());
            let found = inner.and_then(|table| table.get(*last)?.as_array()).cloned();
            found.ok_or_else(|| format!("deny.toml: missing list {}", section.join(".")))
        };
        let text = |value: &toml::Value| {
            value
                .as_str()
                .map(String::from)
                .ok_or_else(|| format!("deny.toml: expected a string, got {value}"))
        };
        let of = |value: &toml::Value, key: &str| {
            value.get(key).cloned().ok_or_else(|| format!("deny.toml: {value} has no {key}"))
        };
        let texts = |list: &[toml::Value]| list.iter().map(text).collect::<Result<Vec<_>, _>>();
        let mut policy = Self {
            licences: texts(&list(&["licenses", "allow"])?)?,
            exceptions: BTreeMap::new(),
            older: Vec::new(),
            build_scripts: texts(&list(&["bans", "build", "allow-build-scripts"])?)?,
        };
        for exception in list(&["licenses", "exceptions"])? {
            let allowed = of(&exception, "allow")?.as_array().cloned().unwrap_or_default();
            policy.exceptions.insert(text(&of(&exception, "crate")?)?, texts(&allowed)?);
        }
        for skip in list(&["bans", "skip"])? {
            let named = text(&of(&skip, "crate")?)?;
            let (name, version) = named
                .split_once('@')
                .ok_or_else(|| format!("deny.toml: expected name@version, got {named}"))?;
            text(&of(&skip, "reason")?)?;
            policy.older.push((name.into(), version.into()));
        }
        Ok(policy)
    }
}

/// Whether a version has this prefix: 0.13 is a prefix of 0.13.1, not of 0.131.
fn has_prefix(version: &str, prefix: &str) -> bool {
    version.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Checks that every package is ours, or from crates.io with a checksum.
fn sources(lock: &Table) -> Vec<String> {
    let mut findings = Vec::new();
    for package in packages(lock) {
        let of = |key: &str| package.get(key).and_then(toml::Value::as_str).unwrap_or_default();
        let (name, source, sum) = (of("name"), of("source"), of("checksum"));
        let ours = name == "xtask" || name == "muffle" || name.starts_with("muffle-");
        match (source, ours) {
            ("", true) => {}
            ("", false) => findings.push(format!(
                "Cargo.lock: {name} has a local path, but is not a crate of this workspace"
            )),
            (_, true) => findings.push(format!(
                "Cargo.lock: {name} has the name of a crate of this workspace, but is from {source}"
            )),
            (CRATES_IO, false) if sum.len() == 64 && sum.chars().all(|c| c.is_ascii_hexdigit()) => {
            }
            (CRATES_IO, false) => findings.push(format!("Cargo.lock: {name} has no checksum")),
            (other, false) => {
                findings.push(format!("Cargo.lock: {name}: expected crates.io, got {other}"))
            }
        }
    }
    if packages(lock).next().is_none() {
        findings.push("Cargo.lock: expected packages, got none".into());
    }
    findings
}

/// The packages of a lock file.
fn packages(lock: &Table) -> impl Iterator<Item = &toml::Value> {
    lock.get("package").and_then(toml::Value::as_array).into_iter().flatten()
}

/// Checks that duplicate versions are listed, and that every listed one is a duplicate.
fn duplicates(built: &BTreeSet<(String, String)>, policy: &Policy) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, version) in built {
        versions.entry(name).or_default().push(version);
    }
    let mut findings = Vec::new();
    for (name, all) in &versions {
        let skipped = |version: &&&str| {
            policy.older.iter().any(|(older, prefix)| older == name && has_prefix(version, prefix))
        };
        let kept: Vec<&&str> = all.iter().filter(|version| !skipped(version)).collect();
        if kept.len() > 1 {
            let list = kept.iter().map(|version| **version).collect::<Vec<_>>().join(" and ");
            findings.push(format!(
                "{name}: expected one version, got {list}; remove one, or give the reason in \
                 deny.toml (bans.skip)"
            ));
        }
    }
    for (name, prefix) in &policy.older {
        let all = versions.get(name.as_str()).map_or(&[][..], Vec::as_slice);
        if all.len() < 2 || !all.iter().any(|version| has_prefix(version, prefix)) {
            findings.push(format!(
                "deny.toml: {name}@{prefix} is no longer a duplicate; remove the line"
            ));
        }
    }
    findings
}

/// Third-party packages, from `cargo metadata`.
struct Packages {
    list: Vec<Value>,
    /// Names and versions of the packages that are built; the lock file has more.
    built: BTreeSet<(String, String)>,
    /// Whether packages of all platforms are included, or only of this one.
    all: bool,
}

impl Packages {
    /// Reads the packages: offline, then online, then only those of this platform.
    ///
    /// All three refuse a lock file that is not up to date.
    fn new() -> Result<Self, String> {
        let ask = |more: &[&str]| {
            let output = cargo(
                &[&["metadata", "--format-version", "1", "--locked", "--all-features"], more]
                    .concat(),
            )?;
            serde_json::from_str::<Value>(&output)
                .map_err(|error| format!("cargo metadata: {error}"))
        };
        let host = host()?;
        let (found, platform) = match ask(&["--offline"]).or_else(|_| ask(&[])) {
            Ok(found) => (found, "all"),
            Err(_) => (ask(&["--offline", "--filter-platform", &host])?, host.as_str()),
        };
        let all = platform == "all";
        let built =
            tree(&["--workspace", "-e", "normal,build,dev", "--target", platform, "--offline"])?;
        let list = found["packages"].as_array().ok_or("cargo metadata: no packages")?;
        let packages: Vec<Value> =
            list.iter().filter(|package| !package["source"].is_null()).cloned().collect();
        if !all {
            eprintln!(
                "xtask: ONLY THE {} CRATES FOR {host} WERE CHECKED: those of other platforms are \
                 not downloaded, and there is no network",
                packages.len()
            );
        }
        Ok(Self { list: packages, built, all })
    }

    /// Checks the licences of all packages, and that every exception is needed.
    fn licences(&self, policy: &Policy) -> Vec<String> {
        let mut findings = Vec::new();
        let mut used = BTreeSet::new();
        for package in &self.list {
            let name = package["name"].as_str().unwrap_or_default();
            let excepted = policy.exceptions.get(name).map_or(&[][..], Vec::as_slice);
            let allowed = |licence: &str| policy.licences.iter().any(|known| known == licence);
            let also =
                |licence: &str| allowed(licence) || excepted.iter().any(|known| known == licence);
            let Some(expression) = package["license"].as_str() else {
                findings.push(format!("{name}: expected a licence, got none"));
                continue;
            };
            match (spdx::allowed(expression, &allowed), spdx::allowed(expression, &also)) {
                (Ok(true), _) => {}
                (_, Ok(true)) => drop(used.insert(name)),
                (_, Ok(false)) => findings
                    .push(format!("{name}: {expression} is not among the licences of deny.toml")),
                (_, Err(what)) => findings.push(format!("{name}: {what}")),
            }
        }
        let unused =
            policy.exceptions.keys().filter(|name| self.all && !used.contains(name.as_str()));
        findings
            .extend(unused.map(|name| format!("deny.toml: {name} needs no exception; remove it")));
        findings
    }

    /// Checks that exactly the listed build scripts and procedural macros exist.
    fn programs(&self, policy: &Policy) -> Vec<String> {
        let of = |kind: &str| -> BTreeSet<String> {
            let is = |target: &Value| {
                target["kind"]
                    .as_array()
                    .is_some_and(|kinds| kinds.iter().any(|known| known == kind))
            };
            let has = |package: &&Value| {
                package["targets"].as_array().is_some_and(|targets| targets.iter().any(is))
            };
            self.list
                .iter()
                .filter(has)
                .filter_map(|package| Some(package["name"].as_str()?.to_string()))
                .collect()
        };
        let listed =
            |list: &[&str]| list.iter().map(ToString::to_string).collect::<BTreeSet<String>>();
        let scripts: Vec<&str> = policy.build_scripts.iter().map(String::as_str).collect();
        let mut findings = Vec::new();
        for (what, place, there, expected) in [
            (
                "build script",
                "deny.toml (bans.build.allow-build-scripts)",
                of("custom-build"),
                listed(&scripts),
            ),
            ("procedural macro", "xtask/src/supply.rs", of("proc-macro"), listed(&PROC_MACROS)),
        ] {
            let new = there.difference(&expected);
            findings.extend(new.map(|name| {
                format!(
                    "{name} has a {what}, which runs when Muffle is built; review it, then list it \
                     in {place}"
                )
            }));
            let gone = expected.difference(&there).filter(|_| self.all);
            findings.extend(
                gone.map(|name| format!("{place}: {name} no longer has a {what}; remove it")),
            );
        }
        findings
    }
}

/// The number of third-party crates in the default build.
fn count() -> Result<usize, String> {
    let ask = |more: &[&str]| {
        tree(&[&["-p", "muffle-cli", "-e", "normal,build", "--target", PLATFORM], more].concat())
    };
    Ok(ask(&["--offline"]).or_else(|_| ask(&[]))?.len())
}

/// Names and versions of third-party crates, from `cargo tree`.
fn tree(more: &[&str]) -> Result<BTreeSet<(String, String)>, String> {
    let output =
        cargo(&[&["tree", "--locked", "--prefix", "none", "--format", "{p}"], more].concat())?;
    let parse = |line: &str| {
        let mut words = line.split(' ');
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        // Our crates are printed with their path.
        let place =
            words.find(|word| word.starts_with('(') && !["(proc-macro)", "(*)"].contains(word));
        place.is_none().then(|| (name.to_string(), version.to_string()))
    };
    Ok(output.lines().filter_map(parse).collect())
}

/// The host platform.
fn host() -> Result<String, String> {
    let output = cargo(&["-vV"])?;
    output
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(String::from)
        .ok_or_else(|| "cargo -vV prints no host".into())
}

/// The output of cargo; an error if it fails.
fn cargo(arguments: &[&str]) -> Result<String, String> {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "cargo {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// Runs cargo-deny, if it is installed: the same policy, and known vulnerabilities.
fn deny(root: &Path) -> Result<(), String> {
    if cargo(&["deny", "--version"]).is_err() {
        eprintln!(
            "xtask: ADVISORIES WERE NOT CHECKED: cargo-deny is not installed (cargo install \
             --locked cargo-deny)"
        );
        return Ok(());
    }
    let manifest = root.join("Cargo.toml");
    let manifest = manifest.to_string_lossy();
    let check = |what: &[&str], how: &[&str]| {
        let begin =
            [&["deny", "--manifest-path", &manifest, "--locked", "--color", "never"], how].concat();
        cargo(&[&begin[..], &["check", "--hide-inclusion-graph"], what].concat())
    };
    check(&["bans", "licenses", "sources"], &[])?;
    let found = match check(&["advisories"], &[]) {
        Err(what) if what.contains("failed to fetch advisory database") => {
            check(&["advisories"], &["--offline"])
                .map(|_| " in the downloaded list, which may be outdated")
        }
        other => other.map(|_| ""),
    };
    match found {
        Ok(which) => eprintln!("xtask: cargo-deny passed, without advisories{which}"),
        // A list that cannot be fetched is not a failure.
        Err(what) if what.contains("FETCH_HEAD") => {
            eprintln!("xtask: ADVISORIES WERE NOT CHECKED: cargo-deny cannot fetch them")
        }
        Err(what) => return Err(what),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use serde_json::json;

    const POLICY: &str = r#"
        [licenses]
        allow = ["MIT"]
        exceptions = [{ crate = "odd", allow = ["MPL-2.0"] }]
        [bans]
        skip = [{ crate = "two@0.1", reason = "x" }]
        [bans.build]
        allow-build-scripts = ["scripted"]
    "#;

    fn packages_of(packages: Vec<Value>, all: bool) -> Packages {
        Packages { list: packages, built: BTreeSet::new(), all }
    }

    fn package(name: &str, licence: Value, kind: &str) -> Value {
        let targets = json!([{ "kind": ["lib"] }, { "kind": [kind] }]);
        json!({ "name": name, "license": licence, "targets": targets })
    }

    #[test]
    fn only_listed_licences_pass() {
        let policy = Policy::parse(POLICY).unwrap();
        let of = |name: &str, licence: Value| {
            packages_of(vec![package(name, licence, "lib")], false).licences(&policy).len()
        };
        assert_eq!((of("a", json!("MIT OR GPL-3.0-only")), of("odd", json!("MPL-2.0"))), (0, 0));
        assert_eq!(
            (
                of("a", json!("MPL-2.0")),
                of("a", json!("GPL-3.0-only")),
                of("a", Value::Null),
                of("a", json!("MIT or so"))
            ),
            (1, 1, 1, 1)
        );
        // An unused exception is reported only if all platforms are included.
        assert_eq!(
            packages_of(vec![package("odd", json!("MIT"), "lib")], true).licences(&policy).len(),
            1
        );
    }

    #[test]
    fn only_listed_build_time_programs_pass() {
        let policy = Policy::parse(POLICY).unwrap();
        let of = |name: &str, kind: &str| {
            packages_of(vec![package(name, json!("MIT"), kind)], false).programs(&policy).len()
        };
        assert_eq!(
            (of("scripted", "custom-build"), of("serde_derive", "proc-macro"), of("other", "lib")),
            (0, 0, 0)
        );
        assert_eq!(
            (of("other", "custom-build"), of("other", "proc-macro"), of("scripted", "proc-macro")),
            (1, 1, 1)
        );
        let gone = packages_of(vec![], true).programs(&policy);
        assert_eq!(gone.len(), 1 + PROC_MACROS.len());
    }

    #[test]
    fn only_crates_io_with_checksums_passes() {
        let sum = "a".repeat(64);
        let of = |lines: &str| sources(&format!("[[package]]\n{lines}").parse().unwrap()).len();
        assert_eq!(of(&format!("name = \"a\"\nsource = \"{CRATES_IO}\"\nchecksum = \"{sum}\"")), 0);
        assert_eq!(of("name = \"muffle-model\""), 0);
        assert_eq!(of("name = \"a\""), 1);
        assert_eq!(of(&format!("name = \"a\"\nsource = \"{CRATES_IO}\"")), 1);
        assert_eq!(
            of(&format!("name = \"muffle\"\nsource = \"{CRATES_IO}\"\nchecksum = \"{sum}\"")),
            1
        );
        assert_eq!(
            of(&format!(
                "name = \"a\"\nsource = \"git+https://example.org/a\"\nchecksum = \"{sum}\""
            )),
            1
        );
        assert_eq!(sources(&Table::new()).len(), 1);
    }

    #[test]
    fn unlisted_duplicates_are_reported() {
        let policy = Policy::parse(POLICY).unwrap();
        let of = |list: &[(&str, &str)]| {
            duplicates(
                &list
                    .iter()
                    .map(|(name, version)| (name.to_string(), version.to_string()))
                    .collect(),
                &policy,
            )
            .len()
        };
        assert_eq!(of(&[("two", "0.1.5"), ("two", "0.2.0"), ("one", "1.0.0")]), 0);
        // Another duplicate, another version, and an unused line.
        assert_eq!(of(&[("two", "0.1.5"), ("two", "0.2.0"), ("two", "0.3.0")]), 1);
        assert_eq!(of(&[("two", "0.11.5"), ("two", "0.2.0")]), 2);
        assert_eq!(of(&[("two", "0.1.5")]), 1);
        assert_eq!(
            of(&[("two", "0.1.5"), ("two", "0.2.0"), ("one", "1.0.0"), ("one", "2.0.0")]),
            1
        );
    }

    #[test]
    fn incomplete_policies_are_refused() {
        for key in
            ["allow = [\"MIT\"]", "exceptions", "skip", "allow-build-scripts", ", reason = \"x\""]
        {
            assert!(
                Policy::parse(&POLICY.replacen(
                    key,
                    if key.starts_with(',') { "" } else { "other = []\n#" },
                    1
                ))
                .is_err(),
                "{key}"
            );
        }
    }
}
