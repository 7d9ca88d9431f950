//! What is in `packaging/`: linted by the tools of each format, and every command line in it run with the program.

mod common;

use common::Place;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::{Ended, Proc, SOON, found};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join("packaging").join(path)).expect(path)
}

/// A program that `scripts/peers` has installed.
fn linter(name: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Path::new(&std::env::var_os("HOME").expect("HOME or XDG_CACHE_HOME is set")).join(".cache");
    let folder = cache.unwrap_or_else(home).join("lockkeeper/peers/packaging");
    let found = std::fs::read_to_string(folder.join("requirements.txt")).ok();
    assert!(found == Some(text("requirements.txt")), "{} is not up to date: run scripts/peers", folder.display());
    folder.join("bin").join(name)
}

#[track_caller]
fn passes(command: &mut Command, package: &str) -> Ended {
    let name = command.get_program().to_owned();
    let found = Command::new("which").arg(&name).output().is_ok_and(|found| found.status.success());
    assert!(found, "{} is missing: {package}", name.display());
    let ended = Proc::start(command).wait();
    assert_eq!(ended.code, Some(0), "{} {:?}: {ended:?}", name.display(), command.get_args());
    ended
}

/// The values of a key of a unit, in order.
fn values(unit: &str, key: &str) -> Vec<String> {
    let prefix = format!("{key}=");
    text(&format!("systemd/{unit}")).lines().filter_map(|line| Some(line.strip_prefix(&prefix)?.to_owned())).collect()
}

/// The words of `ExecStart` after the program, with the variables that the unit sets.
fn exec_start() -> Vec<String> {
    let line = values("lockkeeper.service", "ExecStart").pop().expect("one");
    let mut words = line.split(' ').map(str::to_owned);
    assert_eq!(words.next().as_deref(), Some("/usr/bin/lockkeeper"));
    let options = "$SERVE_OPTIONS";
    assert!(values("lockkeeper.service", "Environment").contains(&"SERVE_OPTIONS=".to_owned()));
    words.filter(|word| word != options).collect()
}

#[test]
fn the_units_are_valid_and_leave_little_open() {
    let place = Place::new();
    // The program is not installed on the machine that tests it.
    place.dir.write("lockkeeper.service", &text("systemd/lockkeeper.service").replace("/usr/bin/lockkeeper", PROGRAM));
    place.dir.write("lockkeeper.socket", &text("systemd/lockkeeper.socket"));
    let units = ["lockkeeper.socket", "lockkeeper.service"].map(|unit| place.dir.join(unit));
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]).args(&units);
    let said = passes(&mut verify, "apt-get install systemd");
    assert!(!said.stderr.contains("lockkeeper"), "{said:?}");
    // Of 100, where 0 is a program that can do nothing. Connections need a network, and SQLite the number of the boot.
    let mut security = Command::new("systemd-analyze");
    passes(security.args(["security", "--offline=yes", "--threshold=20"]).arg(&units[1]), "apt-get install systemd");
    let users = text("systemd/lockkeeper.sysusers");
    assert_eq!(values("lockkeeper.service", "User"), [users.split_whitespace().nth(1).expect("a name")]);
}

/// As systemd starts it: with a socket that is open already, and told to say when it serves.
#[test]
fn the_service_starts_on_a_socket_of_systemd_and_says_so() {
    let place = Place::new();
    let port = testkit::free_port();
    let notify = place.dir.join("notify");
    let told = std::os::unix::net::UnixDatagram::bind(&notify).expect("a socket");
    told.set_read_timeout(Some(SOON)).expect("a limit");
    let mut activate = Command::new("systemd-socket-activate");
    activate.arg("--listen").arg(format!("127.0.0.1:{port}"));
    activate.arg(format!("--setenv=LOCKKEEPER_STORE=sqlite:{}", place.file().display()));
    activate.arg(format!("--setenv=NOTIFY_SOCKET={}", notify.display())).arg(PROGRAM).args(exec_start());
    let service = Proc::start(activate.current_dir(place.dir.path()).env("HOME", place.dir.path()));
    found(SOON, "it listens", || service.stderr().contains("Listening on").then_some(()));
    // The first client starts it, and is answered.
    let mut curl = Command::new("curl");
    let answer = Proc::start(curl.args(["-sS", &format!("http://127.0.0.1:{port}/readyz")])).wait();
    assert_eq!(answer.stdout, "ready\n", "{answer:?} {}", service.stderr());
    let mut message = [0; 64];
    let read = told.recv(&mut message).expect("it says that it is ready");
    assert_eq!(&message[..read], b"READY=1\n");
    service.signal(testkit::Signal::TERM);
    let read = told.recv(&mut message).expect("it says that it ends");
    assert_eq!(&message[..read], b"STOPPING=1\n");
    service.signal(testkit::Signal::TERM);
    assert_eq!(service.wait().code, Some(0));
}

#[test]
fn the_image_and_the_manifest_are_valid() {
    let folder = Path::new(ROOT).join("packaging");
    passes(Command::new(linter("hadolint")).arg(folder.join("docker/Dockerfile")), "scripts/peers");
    let mut validate = Command::new(linter("kubernetes-validate"));
    passes(validate.arg("--strict").arg(folder.join("kubernetes/lockkeeper.yaml")), "scripts/peers");
    let pinned = std::fs::read_to_string(Path::new(ROOT).join("rust-toolchain.toml")).expect("it is there");
    let compiler = pinned.split('"').nth(1).expect("a version").to_owned();
    assert!(text("docker/Dockerfile").contains(&format!("rust:{compiler}-")), "the image has another compiler");
    let version = format!("image: lockkeeper:{}", env!("CARGO_PKG_VERSION"));
    assert!(text("kubernetes/lockkeeper.yaml").contains(&version), "{version}");
}

/// The command lines of the image and of the manifest, on a port and with files of the test's own.
#[test]
fn a_container_serves_with_its_arguments() {
    let place = Place::new();
    testkit::certificates(&place.dir);
    place.dir.write("tokens.toml", "");
    let chmod = Command::new("chmod").arg("600").arg(place.dir.join("tokens.toml")).status();
    assert!(chmod.is_ok_and(|status| status.success()));
    let image = text("docker/Dockerfile").replace("\\\n", "");
    let image = image.lines().find_map(|line| line.strip_prefix("CMD ")).expect("a command");
    let image: Vec<String> = serde_json::from_str(image).expect("a JSON array");
    let manifest = text("kubernetes/lockkeeper.yaml");
    let args = manifest.split("args:\n").nth(1).and_then(|rest| rest.split("env:").next()).expect("arguments");
    let manifest = args.lines().filter_map(|line| Some(line.trim().strip_prefix("- ")?.to_owned())).collect();
    for args in [image, manifest] {
        let files = [("/tls/tls.crt", "server.crt"), ("/tls/tls.key", "server.key"), ("/tokens/", "")];
        let ours = |word: &String| {
            files.iter().fold(word.replace("0.0.0.0:7420", "0.0.0.0:0"), |word, (theirs, ours)| {
                word.replace(theirs, &place.dir.join(ours).display().to_string())
            })
        };
        let args: Vec<String> = args.iter().map(ours).collect();
        let gateway = place.start(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let port = found(SOON, "it serves", || {
            let said = gateway.stderr();
            Some(said.split("https://0.0.0.0:").nth(1)?.split_whitespace().next()?.to_owned())
        });
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--cacert"]).arg(place.dir.join("ca.crt"));
        let answer = Proc::start(curl.arg(format!("https://127.0.0.1:{port}/readyz"))).wait();
        assert_eq!(answer.stdout, "ready\n", "{answer:?}");
    }
}

#[test]
fn every_command_has_a_manual_page_and_shells_complete() {
    let place = Place::new();
    let to = place.dir.join("share");
    let pages = Path::new(ROOT).join("packaging/pages");
    passes(Command::new(pages).arg(&to).arg(PROGRAM), "part of the repository");
    let mut man: Vec<_> = std::fs::read_dir(to.join("man/man1")).expect("made").flatten().map(|f| f.path()).collect();
    man.sort();
    let named = |command: &str| to.join(format!("man/man1/lockkeeper{command}.1"));
    assert!(man.len() > 15 && man.contains(&named("")) && man.contains(&named("-serve")), "{man:?}");
    for page in man {
        let text = std::fs::read_to_string(&page).expect("made");
        assert!(text.contains(".TH ") && text.contains(".SH OPTIONS"), "{}", page.display());
    }
    for file in ["bash-completion/completions/lockkeeper", "zsh/vendor-completions/_lockkeeper"] {
        assert!(std::fs::read_to_string(to.join(file)).expect("made").contains("max-hold"), "{file}");
    }
    assert!(to.join("fish/vendor_completions.d/lockkeeper.fish").is_file());
}

/// Files that the Debian package is made of, and no others of `packaging/` that it needs.
#[test]
fn the_debian_package_names_files_that_exist() {
    let manifest = include_str!("../Cargo.toml");
    let assets = manifest.split("[package.metadata.deb]").nth(1).expect("a package");
    let named: Vec<_> = assets.split('"').filter(|word| word.starts_with("../../")).collect();
    assert!(named.len() > 8, "{named:?}");
    for path in named {
        // These are made by packaging/pages first.
        let made = path.contains("packaging/made/");
        assert!(made || Path::new(env!("CARGO_MANIFEST_DIR")).join(path).exists(), "{path}");
    }
    for script in ["deb/postinst", "deb/prerm", "pages"] {
        let path = Path::new(ROOT).join("packaging").join(script);
        passes(Command::new("sh").arg("-n").arg(path), "part of the system");
    }
}
