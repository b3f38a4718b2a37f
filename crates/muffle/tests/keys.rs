//! The reference of keys, `docs/keys.md`, is current. With MUFFLE_WRITE_DOCS=1 it is written.

#![allow(clippy::unwrap_used)]

use std::path::Path;

#[test]
fn the_reference_of_keys_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/keys.md");
    let reference = muffle::config::reference().unwrap();
    if std::env::var_os("MUFFLE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &reference).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == reference,
        "docs/keys.md is not current; write it with: MUFFLE_WRITE_DOCS=1 cargo test -p muffle \
         --test keys"
    );
}
