//! Who gets an answer: token, host, origin, methods, sizes, paths.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::{Server, write_result, write_run};

#[test]
fn a_request_needs_the_token() {
    let place = tempfile::tempdir().unwrap();
    let server = Server::start(&[place.path()]);
    let token = &server.token;
    assert_eq!(token.len(), 32);
    let page = server.get("");
    assert_eq!(page.status, 200);
    assert!(page.body.contains("<title>Muffle board</title>"));
    let first = if token.starts_with('0') { '1' } else { '0' };
    let targets = [
        "/".to_string(),
        "/runs".into(),
        "//runs".into(),
        format!("/{token}"),
        format!("/{}/", &token[..31]),
        format!("/{token}0/"),
        format!("/{first}{}/", &token[1..]),
        format!("/{}/", token.to_uppercase() + "x"),
        format!("/x/{token}/"),
        format!("/{token}/nothing"),
        format!("/?{token}/"),
        format!("http://127.0.0.1:{}/{token}/", server.port),
    ];
    for target in targets {
        let answer = server.ask("GET", &target, &[]);
        assert_eq!((answer.status, answer.body.as_str()), (404, "not found\n"), "{target}");
    }
    // Two boards have different tokens.
    assert_ne!(Server::start(&[place.path()]).token, *token);
}

#[test]
fn other_hosts_and_origins_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let server = Server::start(&[place.path()]);
    let target = format!("/{}/runs", server.token);
    let port = server.port;
    let status = |headers: &[(&str, &str)]| server.ask("GET", &target, headers).status;
    let (local, name) = (format!("127.0.0.1:{port}"), format!("localhost:{port}"));
    let (origin, other_name) = (format!("http://{local}"), format!("http://{name}"));
    assert_eq!(status(&[("Host", &local)]), 200);
    assert_eq!(status(&[("Host", &name)]), 200);
    assert_eq!(status(&[("Origin", &origin)]), 200);
    assert_eq!(status(&[("Host", &name), ("Origin", &other_name)]), 200);
    for site in ["same-origin", "none"] {
        assert_eq!(status(&[("Sec-Fetch-Site", site)]), 200);
    }
    // A name that was rebound to this machine.
    let rebound = format!("evil.example:{port}");
    for host in [rebound.as_str(), "127.0.0.1", "localhost", "", "127.0.0.1:1", "[::1]", "0:80"] {
        assert_eq!(status(&[("Host", host)]), 404, "{host}");
    }
    assert_eq!(status(&[("Host", &local), ("Host", &rebound)]), 404);
    assert_eq!(server.raw(format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes()).status, 404);
    let secure = format!("https://{local}");
    for other in ["null", "http://evil.example", "http://127.0.0.1", &secure, &other_name] {
        assert_eq!(status(&[("Origin", other)]), 404, "{other}");
    }
    for site in ["cross-site", "same-site", "Same-Origin", ""] {
        assert_eq!(status(&[("Sec-Fetch-Site", site)]), 404, "{site}");
    }
}

#[test]
fn every_answer_has_the_security_headers() {
    let place = tempfile::tempdir().unwrap();
    write_run(&place.path().join("run"));
    write_result(&place.path().join("run"));
    let server = Server::start(&[place.path()]);
    let id = server.run("run")["id"].as_str().unwrap().to_string();
    let report = server.get(&format!("report?run={id}"));
    assert_eq!((report.status, report.body.as_str()), (200, "<!doctype html><p>report</p>"));
    // A report runs no scripts, and has an origin of its own.
    assert!(report.head.contains("; sandbox\r\n") && !report.head.contains("script-src"));
    for answer in [server.get(""), server.get("runs"), server.ask("GET", "/", &[])] {
        assert!(
            answer.head.contains(
                "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src \
                 'self'; img-src 'self' data:; connect-src 'self'; frame-src 'self'; \
                 frame-ancestors 'self'; base-uri 'none'; form-action 'none'\r\n"
            ),
            "{answer:?}"
        );
    }
    for answer in [report, server.get(""), server.get("app.js"), server.ask("GET", "/", &[])] {
        for header in [
            "X-Content-Type-Options: nosniff",
            "Referrer-Policy: no-referrer",
            "Cache-Control: no-store",
            "Cross-Origin-Resource-Policy: same-origin",
        ] {
            assert!(answer.head.contains(&format!("\r\n{header}\r\n")), "{header}: {answer:?}");
        }
    }
}

#[test]
fn methods_are_those_of_the_path() {
    let place = tempfile::tempdir().unwrap();
    let server = Server::start(&[place.path()]);
    let status = |method: &str, path: &str| {
        server.ask(method, &format!("/{}/{path}", server.token), &[]).status
    };
    for path in ["", "runs", "run?run=r1", "curves", "plan", "report?run=r1", "verification"] {
        for method in ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"] {
            assert_eq!(status(method, path), 405, "{method} {path}");
        }
    }
    assert_eq!(status("GET", "verify?run=r1"), 405);
    // The method is right, and there is no such run.
    assert_eq!(status("POST", "verify?run=r1"), 404);
}

#[test]
fn large_and_malformed_requests_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let server = Server::start(&[place.path()]);
    let head =
        format!("GET /{}/runs HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n", server.token, server.port);
    let long = |length: usize| format!("{head}X: {}\r\n\r\n", "x".repeat(length));
    assert_eq!(server.raw(long(1000).as_bytes()).status, 200);
    assert_eq!(server.raw(long(9000).as_bytes()).status, 431);
    assert_eq!(server.raw(long(3_000_000).as_bytes()).status, 431);
    assert_eq!(server.raw("x".repeat(9000).as_bytes()).status, 431);
    assert_eq!(server.raw(format!("{head}{}\r\n", "X: 1\r\n".repeat(100)).as_bytes()).status, 431);
    assert_eq!(server.raw(b"\x16\x03\x01\x02\x00\x01\xff\xff\r\n\r\n").status, 400);
    assert_eq!(server.raw(format!("{head}Content-Length: 5\r\n\r\nhello").as_bytes()).status, 413);
    assert_eq!(server.raw(format!("{head}Bad\0: 5\r\n\r\n").as_bytes()).status, 400);
    // It still works.
    assert_eq!(server.get("runs").status, 200);
}

#[test]
fn slow_clients_do_not_stop_others() {
    let place = tempfile::tempdir().unwrap();
    let server = Server::start(&[place.path()]);
    let mut slow: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap()).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(b"GET /").unwrap());
    assert_eq!(server.get("runs").status, 200);
    // A client that keeps sending is cut off all the same.
    let (mut stream, start) = (slow.pop().unwrap(), Instant::now());
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut answer = Vec::new();
    while start.elapsed() < Duration::from_secs(30) && answer.is_empty() {
        let _ = stream.write_all(b"a");
        let _ = stream.read_to_end(&mut answer);
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[test]
fn paths_and_links_do_not_leave_the_folders() {
    let place = tempfile::tempdir().unwrap();
    let (inside, outside) = (place.path().join("inside"), place.path().join("outside"));
    write_run(&inside.join("run"));
    write_run(&outside.join("secret-run"));
    write_result(&outside.join("secret-run"));
    fs::write(outside.join("secret.txt"), "secret").unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        // A run, a folder of runs, and a file of a run that are links to the outside.
        symlink(outside.join("secret-run"), inside.join("linked-run")).unwrap();
        symlink(&outside, inside.join("linked")).unwrap();
        write_run(&inside.join("report-link"));
        write_result(&inside.join("report-link"));
        fs::remove_file(inside.join("report-link/report.html")).unwrap();
        symlink(outside.join("secret.txt"), inside.join("report-link/report.html")).unwrap();
        // A link as the folder `model`, through which a statement would be read.
        symlink(&outside, inside.join("run/model")).unwrap();
    }
    let server = Server::start(&[&inside]);
    let names: Vec<String> =
        server.runs().iter().map(|run| run["name"].as_str().unwrap().into()).collect();
    let expected: &[&str] = if cfg!(unix) { &["report-link", "run"] } else { &["run"] };
    assert_eq!(names, expected);
    for path in [
        "../outside/secret.txt",
        "%2e%2e/outside/secret.txt",
        "..%2foutside%2fsecret.txt",
        "/etc/passwd",
        "report?run=../outside/secret-run",
        "report?run=%2e%2e%2foutside",
        "report?run=/etc",
        "report?run=r99",
        "report?run=",
        "report",
        "run?run=secret-run",
        "curves?run=r1&run=../x",
        "assets/app.js",
        "app.js/",
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
    }
    #[cfg(unix)]
    {
        let id = server.run("report-link")["id"].as_str().unwrap().to_string();
        let answer = server.get(&format!("report?run={id}"));
        assert_eq!(answer.status, 500);
        assert!(answer.body.contains("symbolic links") && !answer.body.contains("secret"));
        assert_eq!(server.run("report-link")["report"], false);
        // A folder that becomes a link after it was found is not read either.
        let id = server.run("run")["id"].as_str().unwrap().to_string();
        fs::rename(inside.join("run"), inside.join(".old")).unwrap();
        std::os::unix::fs::symlink(outside.join("secret-run"), inside.join("run")).unwrap();
        let answer = server.get(&format!("report?run={id}"));
        assert!([404, 500].contains(&answer.status), "{answer:?}");
    }
}

#[test]
fn a_port_that_is_taken_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let server = Server::start(&[place.path()]);
    let Err(error) = board::Board::open(&[place.path().into()], server.port) else {
        panic!("the port is taken");
    };
    assert!(error.to_string().contains(&format!("port {}", server.port)), "{error}");
    let missing = place.path().join("missing");
    let Err(error) = board::Board::open(&[missing], 0) else { panic!("no such folder") };
    assert!(error.to_string().contains("missing"), "{error}");
}
