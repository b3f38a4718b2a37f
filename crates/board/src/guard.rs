//! Who may ask: the secret in the address, and the origin of a request.
//!
//! Other programs on the machine, and pages of other origins in the same browser, can reach the
//! port. They do not know the token. `Host` refuses names that were rebound to this machine, and
//! `Origin` and `Sec-Fetch-Site` refuse requests that other pages cause.

use crate::http::Request;

/// The secret first segment of every path: 128 random bits in hexadecimal digits.
pub(crate) struct Token(String);

impl Token {
    /// Draws a token from the randomness of the operating system.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        let mut bytes = [0u8; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The digits, for the address that is printed.
    pub(crate) fn digits(&self) -> &str {
        &self.0
    }

    /// Whether a text is the token, in a time that does not depend on where they differ.
    fn is(&self, text: &str) -> bool {
        let (known, given) = (self.0.as_bytes(), text.as_bytes());
        known.len() == given.len()
            && known
                .iter()
                .zip(given)
                .fold(0u8, |different, (a, b)| std::hint::black_box(different | (a ^ b)))
                == 0
    }
}

/// Decides which requests are answered.
pub(crate) struct Guard {
    token: Token,
    /// The values of `Host` that are accepted.
    hosts: [String; 2],
}

impl Guard {
    /// A guard for this token on this port.
    pub(crate) fn new(token: Token, port: u16) -> Self {
        Self { token, hosts: [format!("127.0.0.1:{port}"), format!("localhost:{port}")] }
    }

    /// The path of an allowed request after the token; `None` if it is not allowed.
    pub(crate) fn admit<'a>(&self, request: &'a Request) -> Option<&'a str> {
        let host = request.header("host").ok()??;
        if !self.hosts.iter().any(|known| known == host) {
            return None;
        }
        if let Some(origin) = request.header("origin").ok()?
            && origin != format!("http://{host}")
        {
            return None;
        }
        if let Some(site) = request.header("sec-fetch-site").ok()?
            && !matches!(site, "same-origin" | "none")
        {
            return None;
        }
        let (token, path) = request.path.strip_prefix('/')?.split_once('/')?;
        self.token.is(token).then_some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::parse;

    #[test]
    fn tokens_are_random_and_compared_whole() {
        let (a, b) = (Token::new().unwrap(), Token::new().unwrap());
        assert_eq!(a.digits().len(), 32);
        assert!(a.is(a.digits()) && !a.is(b.digits()));
        assert!(!a.is("") && !a.is(&a.digits()[..31]) && !a.is(&format!("{}0", a.digits())));
        for at in [0, 15, 31] {
            let mut other = a.digits().to_string().into_bytes();
            other[at] ^= 1;
            assert!(!a.is(std::str::from_utf8(&other).unwrap()));
        }
    }
    #[test]
    fn every_changed_bit_of_token_and_host_is_refused() {
        let guard = Guard::new(Token("0123456789abcdef".repeat(2)), 8123);
        let head =
            "GET /0123456789abcdef0123456789abcdef/runs HTTP/1.1\r\nHost: 127.0.0.1:8123\r\n\r\n";
        let admitted = |head: &[u8]| {
            let request = parse(head).ok().flatten();
            request.as_ref().and_then(|request| guard.admit(request).map(String::from))
        };
        assert_eq!(admitted(head.as_bytes()).as_deref(), Some("runs"));
        let ranges = ["/0123456789abcdef0123456789abcdef/", "127.0.0.1:8123"].map(|part| {
            let start = head.find(part).unwrap();
            start..start + part.len()
        });
        for at in ranges.into_iter().flatten() {
            for bit in 0..8 {
                let mut changed = head.as_bytes().to_vec();
                changed[at] ^= 1 << bit;
                assert_eq!(admitted(&changed), None, "{}", String::from_utf8_lossy(&changed));
            }
        }
    }
}
