//! Ed25519 signatures of privacy statements.
//!
//! Hashes show that files belong together; anyone who changes all of them can compute matching
//! hashes. A signature needs the secret key. The signed message is the line
//! `muffle privacy statement` and the statement's canonical form ([`Statement::canonical`]), which
//! has the hashes of ledger, configuration and weights. All files are one line of text:
//!
//! | file | line |
//! |---|---|
//! | secret key, readable by its owner only | `muffle-ed25519-secret` and 64 hexadecimal digits |
//! | public key | `muffle-ed25519-public` and 64 hexadecimal digits |
//! | `privacy.json.sig` | `muffle-ed25519-signature`, a fingerprint, 128 hexadecimal digits |
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
/// Separates these signatures from other uses of the same key.
const DOMAIN: &str = "muffle privacy statement\n";

/// Why a key was refused. The key is not shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file is not one line with the name and the digits of a key.
    #[error("expected the line \"{0} \" and 64 hexadecimal digits")]
    Malformed(&'static str),
    /// A secret key was given in place of a public one.
    #[error("expected a public key, got a secret one; the public key is in the .pub file")]
    SecretKey,
    /// The digits are not a point of the curve.
    #[error("expected a point of the curve, got another number")]
    NotOnCurve,
    /// Others than the owner can read a secret key.
    #[error("expected a key that only its owner can read (mode 600), got mode {0:o}; chmod 600 it")]
    Permissions(u32),
    /// A file that would be overwritten.
    #[error("the file exists and keys are not overwritten; choose another name")]
    Exists,
}

/// Why a signature was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The text is not one line with a fingerprint and the digits of a signature.
    #[error("expected the line \"{SIGNATURE} \", a fingerprint and 128 hexadecimal digits")]
    Malformed,
    /// The signature is of another key.
    #[error("expected a signature by the key {expected}, got one by {got:?}")]
    OtherKey {
        /// The fingerprint of the given key.
        expected: String,
        /// The fingerprint in the signature.
        got: String,
    },
    /// The signature does not match the statement.
    #[error("not a signature of this statement: the statement or the signature was changed")]
    Invalid,
    /// There is no signature.
    #[error("the statement is not signed")]
    Unsigned,
    /// The file of the signature is invalid.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<SignatureError>,
    },
    /// The file cannot be read, or the statement has no JSON form.
    #[error(transparent)]
    Library(#[from] Error),
}

/// A signing key. `Debug` does not show it, and its memory is overwritten on drop.
pub struct SecretKey(SigningKey);

/// A key that verifies signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretKey(…)")
    }
}

impl SecretKey {
    /// Generates a key from the operating system's randomness.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn generate() -> Result<Self, Error> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *bytes)?;
        Ok(Self(SigningKey::from_bytes(&bytes)))
    }

    /// Reads a key from a file that only its owner can read.
    ///
    /// # Errors
    /// If it is not such a file, or not a key. The message does not show its content.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let refused = |source: KeyError| Error::Key { path: path.into(), source };
        #[cfg(unix)]
        {
            let mode = std::fs::metadata(path).map_err(Error::io(path))?;
            let mode = std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777;
            if mode & 0o077 != 0 {
                return Err(refused(KeyError::Permissions(mode)));
            }
        }
        let text = Zeroizing::new(std::fs::read_to_string(path).map_err(Error::io(path))?);
        let bytes =
            after_name(&text, SECRET).and_then(|digits| Some(Zeroizing::new(unhex::<32>(digits)?)));
        let bytes = bytes.ok_or_else(|| refused(KeyError::Malformed(SECRET)))?;
        Ok(Self(SigningKey::from_bytes(&bytes)))
    }

    /// Writes the key to a new file and the public key to `<path>.pub`, whose path is returned.
    ///
    /// # Errors
    /// If one of the files exists, or cannot be written.
    pub fn write(&self, path: &Path) -> Result<PathBuf, Error> {
        let mut name = path.as_os_str().to_owned();
        name.push(".pub");
        let public = PathBuf::from(name);
        for path in [path, public.as_path()] {
            if path.symlink_metadata().is_ok() {
                return Err(Error::Key { path: path.into(), source: KeyError::Exists });
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

    /// The key that verifies signatures of this key.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs a statement and returns the text of `privacy.json.sig`.
    ///
    /// # Errors
    /// If the statement has no JSON form, which does not happen.
    pub fn sign(&self, statement: &Statement) -> Result<String, Error> {
        let signature = self.0.sign(&message(statement)?);
        Ok(format!("{SIGNATURE} {} {}\n", self.public().fingerprint(), hex(&signature.to_bytes())))
    }
}

impl PublicKey {
    /// Reads a public key from a file.
    ///
    /// # Errors
    /// If it cannot be read, or is not a public key.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        Self::parse(&text).map_err(|source| Error::Key { path: path.into(), source })
    }

    /// Parses the text of a public key file.
    ///
    /// # Errors
    /// If it is not a public key.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        if text.starts_with(SECRET) {
            return Err(KeyError::SecretKey);
        }
        let bytes = after_name(text, PUBLIC).and_then(unhex::<32>);
        let bytes = bytes.ok_or(KeyError::Malformed(PUBLIC))?;
        VerifyingKey::from_bytes(&bytes).map(Self).map_err(|_| KeyError::NotOnCurve)
    }

    /// The first half of the key's SHA-256, in hexadecimal digits.
    pub fn fingerprint(&self) -> String {
        digest(self.0.as_bytes())[..32].into()
    }

    /// Verifies the text of a signature file against a statement.
    ///
    /// # Errors
    /// If it is malformed, of another key, or of another statement.
    pub fn check(&self, statement: &Statement, text: &str) -> Result<(), SignatureError> {
        let (fingerprint, digits) = after_name(text, SIGNATURE)
            .and_then(|rest| rest.split_once(' '))
            .ok_or(SignatureError::Malformed)?;
        let bytes = unhex::<64>(digits).ok_or(SignatureError::Malformed)?;
        if fingerprint != self.fingerprint() {
            let (expected, got) = (self.fingerprint(), fingerprint.into());
            return Err(SignatureError::OtherKey { expected, got });
        }
        let signature = Signature::from_bytes(&bytes);
        self.0.verify_strict(&message(statement)?, &signature).map_err(|_| SignatureError::Invalid)
    }
}

/// The path of the signature of a statement.
pub fn file(statement: &Path) -> PathBuf {
    statement.with_file_name(format!(
        "{}.sig",
        statement.file_name().unwrap_or_default().to_string_lossy()
    ))
}

/// Verifies that the statement at `path` is signed by a key.
///
/// # Errors
/// If it is not signed, or the signature is invalid.
pub(crate) fn check(
    path: &Path,
    statement: &Statement,
    key: &PublicKey,
) -> Result<(), SignatureError> {
    let file = file(path);
    let checked = match std::fs::read_to_string(&file) {
        Ok(text) => key.check(statement, &text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(SignatureError::Unsigned),
        Err(error) => return Err(Error::io(&file)(error).into()),
    };
    checked.map_err(|source| SignatureError::File { path: file, source: Box::new(source) })
}

/// The bytes that are signed.
fn message(statement: &Statement) -> Result<Vec<u8>, Error> {
    Ok([DOMAIN.as_bytes(), statement.canonical()?.as_bytes()].concat())
}

/// The rest of a line after a name and a space.
fn after_name<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_suffix('\n').unwrap_or(text).strip_prefix(name)?.strip_prefix(' ')
}

/// Parses lower-case hexadecimal digits.
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

    /// The public key and the signature of RFC 8032, section 7.1, test 1.
    #[test]
    fn keys_and_signatures_follow_rfc_8032() {
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
    fn keys_are_not_overwritten_and_only_readable_by_their_owner() {
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
            let message = SecretKey::read(&path).unwrap_err().to_string();
            assert!(
                message.contains("64 hexadecimal digits") && !message.contains(&text[30..50]),
                "{message}"
            );
        }
        // A public key without its secret is not overwritten either.
        std::fs::remove_file(&path).unwrap();
        assert!(key.write(&path).is_err() && !path.exists());
    }

    #[test]
    fn malformed_keys_are_refused() {
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
