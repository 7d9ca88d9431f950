//! What operators use: `ls`, `show`, `break`, completions, the manual, the help; and how the store is chosen.

mod common;

use common::{Place, one_sentence};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use testkit::{Proc, Pty};
use unicode_width::UnicodeWidthStr;

#[test]
fn ls_shows_a_table_and_an_object() {
    let place = Place::new();
    one_sentence(&place.ends(&["ls"]), 0, "no lock is held");
    let holder = place.holder("billing/invoices", &["--label", "month end"]);
    let _waiter = place.start(&["run", "billing/invoices", "--", "true"]);
    place.until_waiting("billing/invoices", 1);
    let table = place.ends(&["ls", "billing/"]);
    let lines: Vec<_> = table.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{table:?}");
    for word in ["NAME", "MODE", "HOLDER", "LABEL", "TOKEN", "HELD FOR", "ENDS IN", "WAITERS"] {
        assert!(lines[0].contains(word), "{table:?}");
    }
    for word in ["billing/invoices", "exclusive", &format!("(pid {})", holder.pid()), "month end", &place.text("token")]
    {
        assert!(lines[1].contains(word), "{word}: {table:?}");
    }
    assert!(lines[1].ends_with(" 1") && !table.stdout.contains('\x1b'), "{table:?}");
    let object = place.ends(&["ls", "--json"]).stdout;
    assert!(object.contains("\"v\":1") && object.contains("\"name\":\"billing/invoices\""), "{object}");
    assert_eq!(place.ends(&["ls", "other"]).stdout, "");
}

#[test]
fn ls_fits_the_screen_and_never_cuts_a_token() {
    let place = Place::new();
    let name = format!("billing/{}", "x".repeat(80));
    let _holder = place.holder(&name, &["--label", &"label ".repeat(12)]);
    let _other = place.start(&["run", &name, "--", "true"]);
    place.until_waiting(&name, 1);
    let token = place.text("token");
    let piped = place.ends(&["ls"]).stdout;
    assert!(piped.contains(&name) && piped.contains(&"label ".repeat(12)), "{piped}");
    for (columns, words) in [
        (120, &["NAME", "MODE", "HOLDER", "LABEL", "TOKEN", "HELD FOR", "ENDS IN", "WAITERS"][..]),
        (80, &["NAME", "HOLDER", "LABEL", "TOKEN", "HELD FOR"]),
        (60, &["NAME", "HOLDER", "TOKEN"]),
        (34, &["NAME", "TOKEN"]),
    ] {
        for by_variable in [true, false] {
            let ls = place.lockkeeper(&["ls"]);
            let mut shell = Command::new("sh");
            let set = if by_variable { "stty cols 200; export COLUMNS=" } else { "stty cols " };
            shell.args(["-c", &format!("{set}{columns}; exec \"$@\""), "sh"]).arg(ls.get_program()).args(ls.get_args());
            ls.get_envs().for_each(|(key, value)| _ = shell.env(key, value.unwrap_or_default()));
            let mut pty = Pty::start(shell.env("NO_COLOR", "1").current_dir(place.dir.path()));
            assert_eq!(pty.wait(), 0, "{}", pty.screen());
            pty.shows(&token);
            let screen = pty.screen();
            let lines: Vec<_> = screen.lines().collect();
            assert_eq!(lines.len(), 2, "{screen}");
            assert!(lines.iter().all(|line| line.width() <= columns), "{columns}: {screen}");
            assert!(words.iter().all(|word| lines[0].contains(word)), "{columns}: {screen}");
            assert!(lines[1].starts_with("billing/xxxxxxx") && lines[1].contains('…'), "{columns}: {screen}");
        }
    }
}

#[test]
fn show_tells_holder_waiters_and_the_worst_case() {
    let place = Place::new();
    let free = place.ends(&["show", "job"]);
    assert!(free.code == Some(0) && free.stdout.contains("not held"), "{free:?}");
    let _holder = place.holder("job", &[]);
    let _first = place.start(&["run", "--label", "one", "job", "--", "true"]);
    place.until_waiting("job", 1);
    let _second = place.start(&["run", "--label", "two", "job", "--", "true"]);
    place.until_waiting("job", 2);
    let page = place.ends(&["show", "job"]).stdout;
    let at = |word: &str| page.find(word).unwrap_or_else(|| panic!("{word} is not in {page}"));
    assert!(at("1. ") < at("\"one\"") && at("\"one\"") < at("2. ") && at("2. ") < at("\"two\""), "{page}");
    assert!(page.contains(&format!("token     {}", place.text("token"))), "{page}");
    assert!(page.contains("if a holder died now"), "{page}");
    let object = place.ends(&["show", "job", "--json"]).stdout;
    assert!(object.contains("\"worst_hand_over_ms\":") && object.contains("\"waiting\":2"), "{object}");
}

#[test]
fn break_needs_the_token_that_was_seen() {
    let place = Place::new();
    let holder = place.holder("job", &["--ttl", "2s"]);
    let token = place.text("token");
    let wrong = place.ends(&["break", "job", "--token", "1"]);
    one_sentence(&wrong, 1, &format!("with token {token}"));
    let right = place.ends(&["break", "job", "--token", &token]);
    assert!(right.code == Some(0) && right.stdout.contains("was taken from the holder"), "{right:?}");
    assert_eq!(holder.wait().code, Some(76));
    one_sentence(&place.ends(&["break", "job", "--token", &token]), 1, "it is not held now");
    let object = place.ends(&["break", "job", "--token", &token, "--json"]);
    assert!(object.code == Some(1) && object.stdout.contains("\"broken\":false"), "{object:?}");
}

#[test]
fn completions_manual_and_help_come_from_one_table() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.ends(&["completions", shell]).stdout;
        assert!(script.contains("max-hold") && !script.contains("__shim"), "{shell}");
    }
    for args in [&["--help"] as &[&str], &["run", "--help"], &["help"], &["help", "run"]] {
        let help = place.ends(args);
        assert_eq!(help.code, Some(0));
        for word in ["cron:", "deploy:", "systemd:", "semaphore:", "Exit codes:", "  75  ", "  76  ", "  130  "] {
            assert!(help.stdout.contains(word), "{word}: {}", help.stdout);
        }
        assert!(!help.stdout.contains('\x1b'));
    }
    assert!(place.ends(&["--version"]).stdout.starts_with("lockkeeper "));
}

#[test]
fn help_is_a_command() {
    let place = Place::new();
    for words in [&["run"][..], &["ls"], &["fence"], &["fence", "install"], &["store", "init"]] {
        let by_command = place.ends(&[&["help"], words].concat());
        assert_eq!(by_command.code, Some(0), "{by_command:?}");
        assert_eq!(by_command.stdout, place.ends(&[words, &["--help"]].concat()).stdout, "{words:?}");
    }
    one_sentence(&place.ends(&["help", "rnu"]), 64, "'rnu' is not a command");
}

#[test]
fn the_manual_has_the_sections_that_people_look_for() {
    let place = Place::new();
    let page = |args: &[&str]| {
        let ended = place.ends(&[&["man"], args].concat());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{args:?}");
        ended.stdout
    };
    for (args, title) in [(&[][..], ".TH lockkeeper 1"), (&["run"], ".TH lockkeeper-run 1")] {
        let page = page(args);
        assert!(page.contains(title), "{page}");
        let section = |name: &str| {
            let from = page.find(&format!("\n.SH {name}\n")).unwrap_or_else(|| panic!("{name} is not in {page}"));
            page[from..].split("\n.SH ").nth(1).unwrap_or_default().to_owned()
        };
        assert!(!page.contains(".SH EXTRA"), "{page}");
        for code in ["0", "1", "64", "69", "75", "76", "127", "130"] {
            assert!(section("\"EXIT STATUS\"").contains(&format!("\\fB{code}")), "{code}: {page}");
        }
        for name in ["STORE", "STORE_FILE", "LOG", "NAME", "TOKEN", "HOLDER", "TTL_MS"] {
            assert!(section("ENVIRONMENT").contains(&format!("\\fBLOCKKEEPER_{name}\\fR")), "{name}: {page}");
        }
        assert!(section("EXAMPLES").contains("lockkeeper run \\-\\-store local \\-n \\-\\-busy\\-code 0"), "{page}");
    }
    assert!(page(&["run"]).contains("run\\fR [OPTIONS] <NAME> \\-\\- <CMD>..."), "{}", page(&["run"]));
    assert!(page(&["run"]).contains("max\\-hold"));
    for command in ["ls", "show", "break", "fence", "store", "completions", "man", "help"] {
        assert!(page(&[command]).contains(".SH SYNOPSIS"));
    }
}

#[test]
fn the_store_is_chosen_in_order() {
    let place = Place::new();
    let store_of = |command: &mut std::process::Command| {
        let ended = Proc::start(command).wait();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        (ended.stdout.trim().to_owned(), ended.stderr.trim().to_owned())
    };
    let base = place.dir.path().display().to_string();
    let args = ["run", "x", "--", "printenv", "LOCKKEEPER_STORE"];
    let (store, said) = store_of(&mut place.bare(&args));
    let local = format!("{base}/.local/state/lockkeeper/locks.db");
    assert_eq!(
        (store, said),
        (
            format!("sqlite:{local}"),
            format!("lockkeeper: local store {local}: excludes only this user on this machine")
        )
    );
    let mode = |path: &str| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&format!("{base}/.local/state/lockkeeper")), 0o700);
    let on_purpose = [&args[..1], &["--store", "local"], &args[1..]].concat();
    assert_eq!(store_of(&mut place.bare(&on_purpose)), (format!("sqlite:{local}"), String::new()));
    // Each of these comes before the one above it.
    place.dir.write("etc/lockkeeper/config.toml", "store = 'sqlite:system.db'\n");
    assert_eq!(store_of(&mut place.bare(&args)).0, format!("sqlite:{base}/system.db"));
    place.dir.write(".config/lockkeeper/config.toml", "store = 'sqlite:user.db'\n");
    assert_eq!(store_of(&mut place.bare(&args)).0, format!("sqlite:{base}/user.db"));
    let file = place.dir.write("url", "sqlite:named.db\n");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (store, said) = store_of(place.bare(&args).env("LOCKKEEPER_STORE_FILE", &file));
    assert_eq!(store, format!("sqlite:{base}/named.db"));
    assert!(said.contains("has mode 0644"), "{said}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let with_file = |command: &mut std::process::Command| store_of(command.env("LOCKKEEPER_STORE_FILE", &file));
    assert_eq!(with_file(&mut place.bare(&args)).1, "");
    assert_eq!(with_file(&mut place.lockkeeper(&args)).0, place.store());
    let flag = [&args[..1], &["--store", "sqlite:flag.db"], &args[1..]].concat();
    assert_eq!(with_file(&mut place.lockkeeper(&flag)).0, format!("sqlite:{base}/flag.db"));
}

#[test]
fn the_systems_directory_comes_before_the_users() {
    let place = Place::new();
    let system = place.dir.join("system");
    std::fs::create_dir(&system).unwrap();
    let mut command = place.bare(&["run", "--store", "local", "x", "--", "printenv", "LOCKKEEPER_STORE"]);
    let ended = Proc::start(command.env("LOCKKEEPER_TEST_SYSTEM_DIR", &system).env_remove("HOME")).wait();
    assert_eq!(ended.stdout.trim(), format!("sqlite:{}/locks.db", system.display()), "{ended:?}");
}
