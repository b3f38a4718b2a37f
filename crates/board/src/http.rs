//! The part of HTTP/1.1 that the board needs: one request without a body, one response.
//!
//! The head of a request is limited in size and in time, so that no client holds memory or a thread
//! for long. `httparse` parses it; everything that it refuses is refused here.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The largest head of a request, in bytes.
pub(crate) const MAX_HEAD: usize = 8 * 1024;

/// The largest number of headers.
const MAX_HEADERS: usize = 64;

/// The time within which a client must send its request.
pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(5);

/// The time within which a client must read the response.
const RESPONSE_TIME: Duration = Duration::from_secs(30);

/// The time for which the rest of a request is read after the response.
const DRAIN_TIME: Duration = Duration::from_millis(500);

/// A parsed request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The target up to `?`, undecoded.
    pub(crate) path: String,
    /// The target after `?`, undecoded.
    pub(crate) query: String,
    /// Names in lower case, in order.
    headers: Vec<(String, String)>,
}

impl Request {
    /// The value of a header that occurs once; `None` if it is missing.
    ///
    /// # Errors
    /// If it occurs several times.
    pub(crate) fn header(&self, name: &str) -> Result<Option<&str>, Repeated> {
        let mut values = self.headers.iter().filter(|(known, _)| known == name);
        match (values.next(), values.next()) {
            (found, None) => Ok(found.map(|(_, value)| value.as_str())),
            _ => Err(Repeated),
        }
    }

    /// The values of a parameter of the query, undecoded.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.query
            .split('&')
            .filter_map(move |part| part.split_once('='))
            .filter_map(move |(known, value)| (known == name).then_some(value))
    }

    /// The first value of a parameter of the query.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.query
            .split('&')
            .filter_map(|part| part.split_once('='))
            .find_map(|(known, value)| (known == name).then_some(value))
    }
}

/// A header that occurs several times.
#[derive(Debug)]
pub(crate) struct Repeated;

/// Reads the head of a request.
///
/// # Errors
/// The response to a request that cannot be read; `None` if the client gave up.
pub(crate) fn read_request(stream: &mut TcpStream) -> Result<Request, Option<Response>> {
    let deadline = Instant::now() + REQUEST_TIME;
    let mut head = Vec::with_capacity(1024);
    loop {
        if let Some(request) = parse(&head).map_err(Some)? {
            return Ok(request);
        }
        if head.len() >= MAX_HEAD {
            return Err(Some(Response::error(431, "the request is too large")));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Some(Response::error(408, "the request took too long")));
        }
        // The smallest time that all systems accept.
        let left = left.max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left)).map_err(|_| None)?;
        let mut buffer = [0; 2048];
        let room = buffer.len().min(MAX_HEAD - head.len());
        match stream.read(&mut buffer[..room]) {
            Ok(0) => return Err(None),
            Ok(count) => head.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(_) => return Err(None),
        }
    }
}

/// Parses a head; `None` if it is not complete.
pub(crate) fn parse(head: &[u8]) -> Result<Option<Request>, Response> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Response::error(431, "the request has too many headers"));
        }
        Err(_) => return Err(Response::error(400, "the request is malformed")),
    }
    let target = parsed.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers = parsed
        .headers
        .iter()
        .map(|header| {
            let value = std::str::from_utf8(header.value)
                .map_err(|_| Response::error(400, "the request is malformed"))?;
            Ok((header.name.to_ascii_lowercase(), value.to_string()))
        })
        .collect::<Result<Vec<_>, Response>>()?;
    let request = Request {
        method: parsed.method.unwrap_or_default().into(),
        path: path.into(),
        query: query.into(),
        headers,
    };
    let has_body = request.headers.iter().any(|(name, value)| {
        name == "transfer-encoding" || name == "content-length" && value.trim() != "0"
    });
    if has_body {
        return Err(Response::error(413, "a request has no body here"));
    }
    Ok(Some(request))
}

/// The policy of the page: its own scripts and styles, and nothing else.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' \
    data:; connect-src 'self'; frame-src 'self'; frame-ancestors 'self'; base-uri 'none'; \
    form-action 'none'";

/// The policy of a report, which has no scripts and an origin of its own.
const REPORT_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; \
    frame-ancestors 'self'; base-uri 'none'; form-action 'none'; sandbox";

/// A response. Every response has the same headers for security.
#[derive(Debug)]
pub(crate) struct Response {
    status: u16,
    content_type: &'static str,
    policy: &'static str,
    body: Vec<u8>,
}

impl Response {
    /// A successful response.
    pub(crate) fn new(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, content_type, policy: PAGE_POLICY, body: body.into() }
    }

    /// The page of a report, which gets an origin of its own.
    pub(crate) fn report(body: Vec<u8>) -> Self {
        Self { policy: REPORT_POLICY, ..Self::new("text/html; charset=utf-8", body) }
    }

    /// A JSON document.
    pub(crate) fn json(document: &impl serde::Serialize) -> Self {
        match serde_json::to_vec(document) {
            Ok(body) => Self::new("application/json", body),
            Err(error) => Self::error(500, &error.to_string()),
        }
    }

    /// An error, as a JSON document with its message.
    pub(crate) fn error(status: u16, message: &str) -> Self {
        let body = serde_json::json!({ "error": message }).to_string().into_bytes();
        Self { status, ..Self::new("application/json", body) }
    }

    /// The answer to every request that is not allowed to know more.
    pub(crate) fn not_found() -> Self {
        Self { status: 404, ..Self::new("text/plain; charset=utf-8", "not found\n") }
    }

    /// Writes the response and closes the connection. `computed` is the time of its computation.
    pub(crate) fn write(&self, stream: &mut TcpStream, computed: Duration) -> io::Result<()> {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            413 => "Content Too Large",
            431 => "Request Header Fields Too Large",
            503 => "Service Unavailable",
            _ => "Internal Server Error",
        };
        let head = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: \
             close\r\nContent-Security-Policy: {}\r\nX-Content-Type-Options: \
             nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: \
             no-store\r\nCross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: \
             same-origin\r\nServer-Timing: board;dur={:.3}\r\n\r\n",
            self.status,
            self.content_type,
            self.body.len(),
            self.policy,
            computed.as_secs_f64() * 1000.0
        );
        let deadline = Instant::now() + RESPONSE_TIME;
        let mut rest: Vec<u8> = head.into_bytes();
        rest.extend_from_slice(&self.body);
        let mut rest = rest.as_slice();
        while !rest.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
            match stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        stream.flush()?;
        // Bytes that the client still sends would reset the connection before it has read the
        // response: they are read, for a short time.
        stream.shutdown(std::net::Shutdown::Write)?;
        let (deadline, mut rest) = (Instant::now() + DRAIN_TIME, [0; 4096]);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            if stream.read(&mut rest)? == 0 {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &str) -> Request {
        parse(head.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn heads_are_parsed() {
        let request =
            parsed("GET /a/b?run=r1&run=r2&x=1 HTTP/1.1\r\nHost: h\r\nA: 1\r\na: 2\r\n\r\n");
        assert_eq!((request.method.as_str(), request.path.as_str()), ("GET", "/a/b"));
        assert_eq!(request.values("run").collect::<Vec<_>>(), ["r1", "r2"]);
        assert_eq!((request.value("x"), request.value("y")), (Some("1"), None));
        assert_eq!(request.header("host").unwrap(), Some("h"));
        assert!(request.header("a").is_err());
        assert_eq!(request.header("b").unwrap(), None);
        assert!(parse(b"GET / HTTP/1.1\r\nHost:").unwrap().is_none());
    }

    #[test]
    fn malformed_heads_and_bodies_are_refused() {
        let status = |head: &str| parse(head.as_bytes()).unwrap_err().status;
        assert_eq!(status("GET\r\n\r\n"), 400);
        assert_eq!(status("GET / HTTP/1.1\r\nno colon\r\n\r\n"), 400);
        assert_eq!(status("POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n"), 413);
        assert_eq!(status("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), 413);
        let many = "A: 1\r\n".repeat(MAX_HEADERS + 1);
        assert_eq!(status(&format!("GET / HTTP/1.1\r\n{many}\r\n")), 431);
        assert!(parse(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n").unwrap().is_some());
    }
}
