use super::*;
use crate::stores::shared::options_tests::refused;

const MISTAKES: &str = "
    mysql:h/d
    mysql://h
    mysql:///d
    mysql://h:x/d
    mysql://h:70000/d
    mysql://a,b/d
    mysql://a:1,b:2/d
    mysql://h/d?socket=
    mysql://h/d?ssl-ca=/nowhere
    mysql://h/d?ssl-mode=maybe
    mysql://h/d?connections=0
    mysql://h/d?prefix=a`b
    mysql://h/d?table=jobs
    mysql://h/d?layout=shedlock&time_zone='; --
    mysql://h/d?mode=get_lock&layout=shedlock
    mysql://h/d?key=raw
    mysql://u:geheim@h/d?password_file=/nowhere
    mysql://u:geheim@h/d?colour=geheim
";

fn parse(url: &str) -> Result<Options> {
    let url = crate::url::parse(url)?;
    Options::parse(&url.raw_place, &url.options)
}

#[test]
fn a_url_names_the_server_the_login_and_the_database() {
    let options = parse("mysql://ann:p%40s%3as@h:7000/my%20db?connections=2").unwrap();
    let opts = options.opts(true);
    assert_eq!((opts.ip_or_hostname(), opts.tcp_port(), opts.db_name()), ("h", 7000, Some("my db")));
    assert_eq!((opts.user(), opts.pass()), (Some("ann"), Some("p@s:s")));
    assert_eq!((options.prefix.as_str(), options.connections), ("lockkeeper_", 2));
    assert_eq!(parse("mysql://[::1]/d").unwrap().opts(false).ip_or_hostname(), "::1");
    for host in ["", "ann@", "h"] {
        let opts = parse(&format!("mysql://{host}/d?socket=/run/s")).unwrap().opts(false);
        assert_eq!((opts.socket(), opts.db_name()), (Some("/run/s"), Some("d")), "{host}");
    }
    let shed = parse("mysql://h/d?layout=shedlock&table=jobs").unwrap();
    assert_eq!(shed.shedlock.unwrap().name, "jobs");
}

#[test]
fn what_is_made_for_one_of_shedlocks_tables_is_not_used_for_another() {
    let prefix = |more: &str| parse(&format!("mysql://h/d?layout=shedlock&{more}")).unwrap().prefix;
    assert_eq!(prefix(""), "lockkeeper_shed_");
    assert_eq!(prefix("table=shedlock"), "lockkeeper_shed_");
    let one = prefix("table=one");
    assert!(one.starts_with("lockkeeper_shed_") && one.len() == "lockkeeper_shed_".len() + 9, "{one}");
    let others = [prefix("table=two"), prefix("time_zone=UTC"), prefix("")];
    assert!(!others.contains(&one) && others[0] != others[1], "{one} {others:?}");
    // With the longest prefix, too, names are short enough for the server.
    let longest = prefix(&format!("table=one&prefix={}", "x".repeat(40)));
    assert!(longest.len() + "register".len() <= 64, "{longest}");
}

#[test]
fn mistakes_are_named_and_secrets_are_not() {
    refused(parse, MISTAKES);
    let options = parse("mysql://u:geheim@h/d").unwrap();
    assert!(!format!("{options:?}").contains("geheim"));
}
