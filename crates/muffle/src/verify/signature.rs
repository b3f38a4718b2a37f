//! Ed25519 signatures of privacy statements.
//!
//! Hashes show that files belong together; anyone who changes all of them can compute fitting ones.
//! A signature needs the secret key. What is signed is the line `muffle privacy statement` and the
//! statement's canonical form ([`Statement::canonical`]), which has the hashes of ledger,
//! configuration and weights. All files are one line of text:
//!
//! | file | line |
//! |---|---|
//! | secret key, readable by its owner only | `muffle-ed25519-secret` and 64 hexadecimal digits |
//! | public key | `muffle-ed25519-public` and 64 hexadecimal digits |
//! | `privacy.json.sig`, beside `privacy.json` | `muffle-ed25519-signature`, the fingerprint of the public key and 128 hexadecimal digits |
//!
//! The fingerprint is the first half of the SHA-256 of the public key's 32 bytes.

use crate::Error;
use crate::Statement;
use crate::run::disk;
use crate::run::folder;
use crate::run::snapshot::{digest, hex};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const SECRET: &str = "muffle-ed25519-secret";
const PUBLIC: &str = "muffle-ed25519-public";
const SIGNATURE: &str = "muffle-ed25519-signature";
/// What separates these signatures from those of other things with the same key.
const DOMAIN: &str = "muffle privacy statement\n";

/// A key that signs. It does not print, and is overwritten when it is dropped.
pub struct SecretKey(SigningKey);

/// A key that checks signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretKey(…)")
    }
}

impl SecretKey {
    /// A new one, from the operating system's randomness.
    ///
    /// # Errors
    /// If the system has none to give.
    pub fn generate() -> Result<Self, Error> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *bytes)?;
        Ok(Self(SigningKey::from_bytes(&bytes)))
    }

    /// Reads a file that only its owner can read.
    ///
    /// # Errors
    /// If it is something else. The message does not show it.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let at = |what: &str| Error::Key { path: path.into(), message: what.into() };
        #[cfg(unix)]
        {
            let mode = std::fs::metadata(path).map_err(Error::io(path))?;
            let mode = std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777;
            if mode & 0o077 != 0 {
                return Err(at(&format!(
                    "expected a key that only its owner can read (mode 600), got mode {mode:o}; \
                     chmod 600 it"
                )));
            }
        }
        let text = Zeroizing::new(std::fs::read_to_string(path).map_err(Error::io(path))?);
        let bytes =
            field(&text, SECRET).and_then(|digits| Some(Zeroizing::new(unhex::<32>(digits)?)));
        let bytes = bytes.ok_or_else(|| {
            at(&format!("expected the line \"{SECRET} \" and 64 hexadecimal digits"))
        })?;
        Ok(Self(SigningKey::from_bytes(&bytes)))
    }

    /// Writes it to a new file, and the public key to another with `.pub` after its name, which is
    /// returned.
    ///
    /// # Errors
    /// If one of them exists, or the system refuses.
    pub fn write(&self, path: &Path) -> Result<PathBuf, Error> {
        let mut name = path.as_os_str().to_owned();
        name.push(".pub");
        let public = PathBuf::from(name);
        for path in [path, public.as_path()] {
            if path.symlink_metadata().is_ok() {
                return Err(Error::Key {
                    path: path.into(),
                    message: "the file exists; choose another name, a key is not overwritten"
                        .into(),
                });
            }
        }
        let mut line = Zeroizing::new(String::with_capacity(SECRET.len() + 66));
        line.push_str(SECRET);
        line.push(' ');
        let bytes = Zeroizing::new(self.0.to_bytes());
        for byte in bytes.iter() {
            for digit in [byte >> 4, byte & 15] {
                line.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
            }
        }
        line.push('\n');
        disk::create_secret(path, line.as_bytes()).map_err(Error::io(path))?;
        folder::write(
            &public,
            format!("{PUBLIC} {}\n", hex(self.public().0.as_bytes())).as_bytes(),
        )?;
        Ok(public)
    }

    /// The key that checks its signatures.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs a statement; the text of `privacy.json.sig`.
    ///
    /// # Errors
    /// If the statement has no written form, which does not happen.
    pub fn sign(&self, statement: &Statement) -> Result<String, Error> {
        let signature = self.0.sign(&message(statement)?);
        Ok(format!("{SIGNATURE} {} {}\n", self.public().fingerprint(), hex(&signature.to_bytes())))
    }
}

impl PublicKey {
    /// Reads a file.
    ///
    /// # Errors
    /// If it is something else.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        Self::parse(&text).map_err(|message| Error::Key { path: path.into(), message })
    }

    /// From the line of a file.
    ///
    /// # Errors
    /// If it is something else.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with(SECRET) {
            return Err("expected a public key, got a secret one; the public key is in the file \
                that ends in .pub"
                .into());
        }
        let bytes = field(text, PUBLIC).and_then(unhex::<32>);
        let bytes = bytes
            .ok_or_else(|| format!("expected the line \"{PUBLIC} \" and 64 hexadecimal digits"))?;
        VerifyingKey::from_bytes(&bytes)
            .map(Self)
            .map_err(|_| "expected a point of the curve, got another number".into())
    }

    /// The first half of its SHA-256, in hexadecimal digits.
    pub fn fingerprint(&self) -> String {
        digest(self.0.as_bytes())[..32].into()
    }

    /// Whether this text is its signature of a statement.
    ///
    /// # Errors
    /// One line: what is wrong.
    pub fn check(&self, statement: &Statement, text: &str) -> Result<(), String> {
        let malformed = || {
            format!("expected the line \"{SIGNATURE} \", a fingerprint and 128 hexadecimal digits")
        };
        let (fingerprint, digits) =
            field(text, SIGNATURE).and_then(|rest| rest.split_once(' ')).ok_or_else(malformed)?;
        let bytes = unhex::<64>(digits).ok_or_else(malformed)?;
        if fingerprint != self.fingerprint() {
            return Err(format!(
                "expected a signature by the key {}, got one by {fingerprint:?}",
                self.fingerprint()
            ));
        }
        let message = message(statement).map_err(|failed| failed.to_string())?;
        let signature = Signature::from_bytes(&bytes);
        self.0.verify_strict(&message, &signature).map_err(|_| {
            "it is not of this statement: the statement or the signature was changed".into()
        })
    }
}

/// Where the signature of a statement is.
pub fn file(statement: &Path) -> PathBuf {
    statement.with_file_name(format!(
        "{}.sig",
        statement.file_name().unwrap_or_default().to_string_lossy()
    ))
}

/// Whether the statement of this file was signed by a key.
///
/// # Errors
/// One line: what is wrong.
pub(crate) fn check(path: &Path, statement: &Statement, key: &PublicKey) -> Result<(), String> {
    let file = file(path);
    match std::fs::read_to_string(&file) {
        Ok(text) => {
            key.check(statement, &text).map_err(|what| format!("{}: {what}", file.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(format!("{}: the statement is not signed", file.display()))
        }
        Err(error) => Err(format!("{}: {error}", file.display())),
    }
}

fn message(statement: &Statement) -> Result<Vec<u8>, Error> {
    Ok([DOMAIN.as_bytes(), statement.canonical()?.as_bytes()].concat())
}

/// What comes after the name on a line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_suffix('\n').unwrap_or(text).strip_prefix(name)?.strip_prefix(' ')
}

/// Bytes from lower-case hexadecimal digits.
fn unhex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let digits = digits.as_bytes();
    if digits.len() != 2 * N || digits.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let digit = |index: usize| char::from(pair[index]).to_digit(16);
        *byte = (digit(0)? * 16 + digit(1)?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8032, section 7.1, test 1: the public key of that secret.
    #[test]
    fn the_keys_are_those_of_the_standard() {
        let secret =
            unhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60").unwrap();
        let public = SecretKey(SigningKey::from_bytes(&secret)).public();
        assert_eq!(
            hex(public.0.as_bytes()),
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        );
        let signature = SigningKey::from_bytes(&secret).sign(b"");
        assert!(
            hex(&signature.to_bytes())
                .starts_with("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155")
        );
    }

    #[test]
    fn keys_are_written_once_and_for_their_owner() {
        let place = tempfile::tempdir().unwrap();
        let (path, key) = (place.path().join("key"), SecretKey::generate().unwrap());
        let public = key.write(&path).unwrap();
        assert_eq!(public, place.path().join("key.pub"));
        assert_eq!(SecretKey::read(&path).unwrap().public(), key.public());
        assert_eq!(PublicKey::read(&public).unwrap(), key.public());
        assert!(key.write(&path).unwrap_err().to_string().contains("exists"));
        assert!(PublicKey::read(&path).unwrap_err().to_string().contains("secret one"));
        assert!(SecretKey::read(&public).is_err());
        assert_ne!(SecretKey::generate().unwrap().public(), key.public());
        assert_eq!(format!("{key:?}"), "SecretKey(…)");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
            assert!(SecretKey::read(&path).unwrap_err().to_string().contains("mode 640"));
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for damaged in [
            "",
            SECRET,
            &text[..40],
            &text.to_uppercase(),
            &text.replace(SECRET, PUBLIC),
            &format!("{text}x"),
        ] {
            std::fs::write(&path, damaged).unwrap();
            let said = SecretKey::read(&path).unwrap_err().to_string();
            assert!(
                said.contains("64 hexadecimal digits") && !said.contains(&text[30..50]),
                "{said}"
            );
        }
        // A public key without its secret is not overwritten either.
        std::fs::remove_file(&path).unwrap();
        assert!(key.write(&path).is_err() && !path.exists());
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in [
            "",
            "muffle-ed25519-public",
            "muffle-ed25519-public 00",
            &format!("{PUBLIC} {}", "g".repeat(64)),
        ] {
            assert!(PublicKey::parse(text).is_err(), "{text}");
        }
    }
}
