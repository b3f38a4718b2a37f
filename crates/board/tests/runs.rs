//! What the board says about folders of runs, well-formed and malformed ones.

#![allow(clippy::unwrap_used)]

mod support;

use accounting::{Accountant, Adjacency, Composition, Cost, Delta, Event, SamplingRate, Sigma};
use muffle::run::folder::Folder;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use support::{Server, entry, write_result, write_run};
use tempfile::TempDir;

#[test]
fn states_follow_from_lock_and_result() {
    let place = tempfile::tempdir().unwrap();
    for name in ["running", "interrupted", "finished"] {
        write_run(&place.path().join(name));
    }
    write_result(&place.path().join("finished"));
    let lock = Folder::open(&place.path().join("running")).unwrap();
    let server = Server::start(&[place.path()]);
    let running = server.run("running");
    assert_eq!(running["state"], "running");
    // 13 steps are charged; the last one is not completed.
    assert_eq!((&running["step"], &running["steps"]), (&12.into(), &60.into()));
    // ε of all charges, not that of the last evaluation.
    let step = Event::poisson(SamplingRate::new(0.01).unwrap(), Sigma::new(1.0).unwrap());
    let cost = Cost::new(&Composition::repeated(step, 13), Adjacency::AddRemove).unwrap();
    let spent = cost.epsilon(Accountant::Best, Delta::new(1e-4).unwrap()).unwrap().epsilon;
    assert_eq!(running["epsilon"], spent);
    assert!(running["epsilon_step"].is_null());
    assert_eq!(running["promised"], 3.0);
    assert_eq!(running["figures"][0]["name"], "NLL");
    assert_eq!(running["figures"][0]["value"], 3.0);
    assert_eq!((&running["private"], &running["marking"]), (&true.into(), &"public".into()));
    let interrupted = server.run("interrupted");
    assert_eq!((&interrupted["state"], &interrupted["step"]), (&"interrupted".into(), &10.into()));
    let finished = server.run("finished");
    assert_eq!((&finished["state"], &finished["step"]), (&"finished".into(), &60.into()));
    assert_eq!((&finished["epsilon"], &finished["report"]), (&2.5.into(), &true.into()));
    // The process ends, and another one resumes the run.
    drop(lock);
    assert_eq!(server.run("running")["state"], "interrupted");
    let lock = Folder::open(&place.path().join("running")).unwrap();
    assert_eq!(server.run("running")["state"], "running");
    drop(lock);
}

#[test]
fn without_a_delta_the_last_evaluation_counts() {
    let place = tempfile::tempdir().unwrap();
    write_run(&place.path().join("run"));
    fs::remove_file(place.path().join("run/plan.json")).unwrap();
    let server = Server::start(&[place.path()]);
    let run = server.run("run");
    assert_eq!((&run["epsilon"], &run["epsilon_step"]), (&1.25.into(), &10.into()));
}

#[test]
fn runs_are_found_three_levels_deep() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("root");
    let below =
        ["a", "a/reference", "a/model/nested", "b/c", "d/e/f", "g/h/i/too-deep", ".hidden/x"];
    for below in below {
        write_run(&root.join(below));
    }
    fs::create_dir_all(root.join("no-run")).unwrap();
    fs::write(root.join("no-run/config.toml"), "").unwrap();
    let names = |server: &Server| -> Vec<String> {
        server.runs().iter().map(|run| run["name"].as_str().unwrap().into()).collect()
    };
    assert_eq!(names(&Server::start(&[&root])), ["a", "a/reference", "b/c", "d/e/f"]);
    // A folder that is itself a run, and one that is given twice.
    assert_eq!(names(&Server::start(&[&root.join("a")])), ["a", "reference"]);
    let twice = Server::start(&[&root.join("d"), &root.join("d/e")]);
    assert_eq!(names(&twice), ["d/e/f"]);
    // Ids stay the same, and a run that appears later is found.
    let server = Server::start(&[&root]);
    let id = server.run("b/c")["id"].clone();
    write_run(&root.join("aa"));
    fs::remove_dir_all(root.join("a")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2100));
    assert_eq!(names(&server), ["b/c", "d/e/f", "aa"]);
    assert_eq!(server.run("b/c")["id"], id);
}

/// A change to the folder of a run.
type Change = Box<dyn Fn(&Path)>;

/// The state and problems of a run after a change to its folder.
fn after(change: impl Fn(&Path)) -> (String, String, Server, TempDir) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("run");
    write_run(&path);
    write_result(&path);
    change(&path);
    let server = Server::start(&[path.parent().unwrap()]);
    let run = server.run("run");
    (run["state"].as_str().unwrap().into(), run["problems"].to_string(), server, place)
}

#[test]
fn malformed_folders_are_damaged() {
    let write = |name: &'static str, text: &'static str| {
        move |path: &Path| fs::write(path.join(name), text).unwrap()
    };
    let folder = |name: &'static str| {
        move |path: &Path| {
            let _ = fs::remove_file(path.join(name));
            fs::create_dir(path.join(name)).unwrap();
        }
    };
    let huge = |name: &'static str| {
        move |path: &Path| {
            fs::File::create(path.join(name)).unwrap().set_len(1 << 40).unwrap();
        }
    };
    // Nested so deeply that a recursive parser would overflow its stack.
    let deep = |name: &'static str, start: &'static str| {
        move |path: &Path| {
            fs::write(path.join(name), format!("{start}{}", "[".repeat(500_000))).unwrap();
        }
    };
    let cases: Vec<(&str, Change)> = vec![
        ("config.toml", Box::new(write("config.toml", "[model\n"))),
        ("config.toml", Box::new(write("config.toml", "[privacy]\nepsilon = \"x\""))),
        ("config.toml", Box::new(folder("config.toml"))),
        ("config.toml", Box::new(huge("config.toml"))),
        ("history.jsonl", Box::new(write("history.jsonl", "{\"step\":1\n{}\n"))),
        ("history.jsonl", Box::new(write("history.jsonl", "{\"step\":1,\"epsilon\":NaN}\n"))),
        ("history.jsonl", Box::new(folder("history.jsonl"))),
        ("history.jsonl", Box::new(huge("history.jsonl"))),
        ("result.json", Box::new(write("result.json", "{"))),
        ("result.json", Box::new(write("result.json", "[1e999]"))),
        ("result.json", Box::new(folder("result.json"))),
        ("ledger.json", Box::new(write("ledger.json", "{\"events\":[[0,-1]]}"))),
        ("ledger.json", Box::new(huge("ledger.json"))),
        ("ledger.json", Box::new(write("ledger.json", "{\"events\":[[{},1]]}"))),
        ("plan.json", Box::new(write("plan.json", "{\"steps\":1}"))),
        ("result.json", Box::new(deep("result.json", ""))),
        ("ledger.json", Box::new(deep("ledger.json", "{\"events\":"))),
        ("config.toml", Box::new(deep("config.toml", "[data]\nlabels = "))),
        (".lock", Box::new(folder(".lock"))),
        (
            "history.jsonl",
            Box::new(|path: &Path| {
                fs::write(path.join("history.jsonl"), b"\xff\xfe\n").unwrap();
            }),
        ),
    ];
    for (file, change) in cases {
        let (state, problems, server, _place) = after(change);
        assert_eq!(state, "damaged", "{file}");
        assert!(problems.contains(file), "{file}: {problems}");
        // Everything else still answers.
        assert_eq!(server.get("curves?run=r1").status, 200);
        assert_eq!(server.get("run?run=r1").status, 200);
    }
    let (state, problems, ..) = after(|_| {});
    assert_eq!((state.as_str(), problems.as_str()), ("finished", "[]"));
}

#[test]
fn an_empty_or_unfinished_history_is_not_damage() {
    let unfinished = entry(0, 0.0, 4.0) + &entry(10, 1.0, 3.0)[..40];
    for (text, points) in [(String::new(), 0), (unfinished, 1)] {
        let (state, _, server, _place) =
            after(|path| fs::write(path.join("history.jsonl"), &text).unwrap());
        assert_eq!(state, "finished");
        let panels = server.get("curves?run=r1").json();
        let nll = panels.as_array().unwrap().iter().find(|panel| panel["title"] == "NLL");
        let drawn =
            nll.map_or(0, |panel| panel["svg"].as_str().unwrap().matches("</path>").count());
        assert!(if points == 0 { drawn == 0 } else { drawn >= points }, "{drawn}");
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_file_does_not_block() {
    let (state, problems, server, _place) = after(|path| {
        fs::remove_file(path.join("history.jsonl")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(path.join("history.jsonl")).status();
        assert!(made.unwrap().success());
    });
    assert_eq!(state, "damaged");
    assert!(problems.contains("expected a file"), "{problems}");
    assert_eq!(server.get("curves?run=r1").status, 200);
}

#[test]
fn texts_of_runs_are_escaped_in_charts() {
    let place = tempfile::tempdir().unwrap();
    let name = "<script>alert(1)<&script>\"'";
    write_run(&place.path().join(name));
    let server = Server::start(&[place.path()]);
    let id = server.run(name)["id"].as_str().unwrap().to_string();
    let panels = server.get(&format!("curves?run={id}")).json();
    for panel in panels.as_array().unwrap() {
        let svg = panel["svg"].as_str().unwrap();
        assert!(!svg.contains("<script") && svg.contains("&lt;script&gt;"), "{svg}");
    }
}

#[test]
fn figures_outside_the_guarantee_are_marked() {
    let place = tempfile::tempdir().unwrap();
    write_run(&place.path().join("public"));
    write_run(&place.path().join("private-figures"));
    let path = place.path().join("private-figures/history.jsonl");
    let marked = fs::read_to_string(&path).unwrap().replace("\"public\"", "\"NON-PRIVATE\"");
    fs::write(&path, marked).unwrap();
    // A fixed seed, and an optimizer without noise.
    for name in ["seed", "no-noise"] {
        write_run(&place.path().join(name));
        let mut config = muffle::Config::embedded();
        match name {
            "seed" => config.privacy.seed = Some(1),
            _ => config = config.with_optimizer("adam").unwrap(),
        }
        fs::write(place.path().join(name).join("config.toml"), config.print()).unwrap();
    }
    let server = Server::start(&[place.path()]);
    let run = |name: &str| server.run(name);
    assert_eq!(run("public")["marking"], "public");
    assert_eq!(run("private-figures")["marking"], "NON-PRIVATE");
    assert_eq!(run("private-figures")["private"], true);
    for name in ["seed", "no-noise"] {
        assert_eq!(run(name)["private"], false, "{name}");
        assert_eq!(run(name)["marking"], "NON-PRIVATE", "{name}");
    }
    let curves = |names: &[&str]| {
        let ids: Vec<String> =
            names.iter().map(|name| format!("run={}", run(name)["id"].as_str().unwrap())).collect();
        server.get(&format!("curves?{}", ids.join("&"))).json().as_array().unwrap().clone()
    };
    let marked = |panels: &[serde_json::Value]| -> BTreeMap<String, String> {
        let pair = |panel: &serde_json::Value| {
            let text = |key: &str| panel[key].as_str().unwrap().to_string();
            (text("title"), text("marking"))
        };
        panels.iter().map(pair).collect()
    };
    assert!(marked(&curves(&["public"])).values().all(|marking| marking == "public"));
    let both = curves(&["public", "private-figures"]);
    assert_eq!(marked(&both)["NLL"], "NON-PRIVATE");
    assert_eq!(marked(&both)["Privacy cost"], "public");
    assert!(both[0]["caption"].as_str().unwrap().contains("guarantee: private-figures."));
}

#[test]
fn epsilon_is_never_drawn_below_its_value() {
    let place = tempfile::tempdir().unwrap();
    write_run(&place.path().join("run"));
    let history = entry(0, 0.0, 4.0) + &entry(10, 1.0, 3.0) + &entry(20, 1.5, 2.0);
    fs::write(place.path().join("run/history.jsonl"), history).unwrap();
    let server = Server::start(&[place.path()]);
    let id = server.run("run")["id"].as_str().unwrap().to_string();
    let panels = server.get(&format!("curves?run={id}")).json();
    let cost = panels.as_array().unwrap().iter().find(|p| p["title"] == "Privacy cost").unwrap();
    let svg = cost["svg"].as_str().unwrap();
    let line = svg.split("<polyline").nth(1).unwrap().split("points=\"").nth(1).unwrap();
    let points: Vec<(f64, f64)> = line
        .split('"')
        .next()
        .unwrap()
        .split(' ')
        .map(|pair| {
            let (x, y) = pair.split_once(',').unwrap();
            (x.parse().unwrap(), y.parse().unwrap())
        })
        .collect();
    // Up at the old step, then across: five corners for three points.
    assert_eq!(points.len(), 5);
    assert!(points[1].0 == points[0].0 && points[1].1 == points[2].1, "{points:?}");
    assert!(points[3].0 == points[2].0 && points[3].1 == points[4].1, "{points:?}");
}

/// All files below a folder with their content.
fn content(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(content(&path));
            all.insert(path, None);
        } else {
            let bytes = fs::read(&path).unwrap();
            all.insert(path, Some(bytes));
        }
    }
    all
}

#[test]
fn the_board_writes_nothing() {
    let place = tempfile::tempdir().unwrap();
    write_run(&place.path().join("interrupted"));
    write_run(&place.path().join("finished"));
    write_result(&place.path().join("finished"));
    // Private state that cannot be read must not be needed.
    fs::create_dir(place.path().join("interrupted/sealed")).unwrap();
    let before = content(place.path());
    let server = Server::start(&[place.path()]);
    let id = server.run("finished")["id"].as_str().unwrap().to_string();
    for path in ["run", "curves", "report", "verification"] {
        assert_eq!(server.get(&format!("{path}?run={id}")).status, 200, "{path}");
    }
    let target = format!("/{}/verify?run={id}", server.token);
    assert_eq!(server.ask("POST", &target, &[]).json()["state"], "running");
    let outcome = loop {
        let answer = server.get(&format!("verification?run={id}")).json();
        if answer["state"] != "running" {
            break answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    // There is no statement in this folder.
    assert_eq!(outcome["state"], "failed");
    assert!(outcome["error"].as_str().unwrap().contains("no statement yet"), "{outcome}");
    assert_eq!(content(place.path()), before);
}
